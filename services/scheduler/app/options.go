// Package app wires the scheduler.
package app

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/sampan-io/sampan/services/internal/client"
	"github.com/sampan-io/sampan/services/internal/component"
	"github.com/sampan-io/sampan/services/internal/delegated"
	"github.com/sampan-io/sampan/services/scheduler/internal/config"
)

// Options is what the flags say. Their names and defaults are upstream's.
type Options struct {
	client     client.Options
	serving    component.SecureServing
	access     delegated.Options
	election   component.LeaderElection
	configFile string

	config *config.Config
}

// New has the defaults.
func New() *Options {
	return &Options{serving: component.SecureServing{Port: 10259}, election: component.NewLeaderElection("kube-scheduler")}
}

// AddFlags registers the flags.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	o.client.AddFlags(fs)
	o.serving.AddFlags(fs)
	o.access.AddFlags(fs)
	o.election.AddFlags(fs)
	fs.StringVar(&o.configFile, "config", "", "path of a KubeSchedulerConfiguration file; its leaderElection and clientConnection win over the flags")
}

// Complete reads the configuration file and refuses contradictions.
func (o *Options) Complete() error {
	if err := o.serving.Validate(); err != nil {
		return err
	}
	o.config = config.Default()
	if o.configFile == "" {
		return nil
	}
	loaded, err := config.Load(o.configFile)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	o.config = loaded
	if path := loaded.ClientConnection.Kubeconfig; path != "" {
		o.client.Kubeconfig = path
	}
	o.config.ApplyLeaderElection(&o.election)
	return nil
}
