// Package client makes the client-go clients that Sampan's services use.
package client

import (
	"fmt"

	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sampan-io/sampan/services/internal/component"
)

// Options says how to reach the API server.
type Options struct {
	Kubeconfig string // path; empty uses the in-cluster configuration
	Master     string // URL that overrides the kubeconfig's server
}

// AddFlags registers --kubeconfig and --master.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Kubeconfig, "kubeconfig", o.Kubeconfig, "path of the kubeconfig that says how to reach the API server; empty uses the in-cluster configuration")
	fs.StringVar(&o.Master, "master", o.Master, "URL of the API server; overrides the kubeconfig's")
}

// Config makes a client configuration for the component of that name: protobuf,
// and no client-side rate limit, for the API server's fairness is the limit.
func (o *Options) Config(name string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags(o.Master, o.Kubeconfig)
	if err != nil {
		return nil, &component.UsageError{Err: fmt.Errorf("reading kubeconfig %q: %w", o.Kubeconfig, err)}
	}
	config.UserAgent = name + "/" + component.Version().GitVersion
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.QPS = -1
	return config, nil
}

// Clientset is a typed client from Config.
func (o *Options) Clientset(name string) (kubernetes.Interface, *rest.Config, error) {
	config, err := o.Config(name)
	if err != nil {
		return nil, nil, err
	}
	set, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("making API client: %w", err)
	}
	return set, config, nil
}
