// Package config reads KubeSchedulerConfiguration files into profiles.
package config

import (
	"fmt"
	"os"
	"time"

	kubeschedulerv1 "k8s.io/kube-scheduler/config/v1"
	"sigs.k8s.io/yaml"

	"github.com/sampan-io/sampan/services/internal/component"
)

// DefaultSchedulerName is the profile's name when none is given.
const DefaultSchedulerName = "default-scheduler"

// Config is what a configuration says, with upstream's defaults filled in.
type Config struct {
	kubeschedulerv1.KubeSchedulerConfiguration
	// Present is the fields that the file has, by their names in YAML.
	present map[string]any
}

// Default is what no file says.
func Default() *Config {
	c := &Config{}
	c.complete()
	return c
}

// Load reads the file at path. Fields that do not exist or are not supported are
// refused by name.
func Load(path string) (*Config, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading scheduler configuration: %w", err)
	}
	c, err := parse(content)
	if err != nil {
		return nil, fmt.Errorf("scheduler configuration %s: %w", path, err)
	}
	return c, nil
}

func parse(content []byte) (*Config, error) {
	c := &Config{}
	if err := yaml.UnmarshalStrict(content, &c.KubeSchedulerConfiguration); err != nil {
		return nil, err
	}
	if err := yaml.Unmarshal(content, &c.present); err != nil {
		return nil, err
	}
	if c.Kind != "KubeSchedulerConfiguration" || c.APIVersion != kubeschedulerv1.SchemeGroupVersion.String() {
		return nil, fmt.Errorf("wants apiVersion %s and kind KubeSchedulerConfiguration, has %q and %q", kubeschedulerv1.SchemeGroupVersion, c.APIVersion, c.Kind)
	}
	if err := c.refuse(); err != nil {
		return nil, err
	}
	c.complete()
	return c, c.validate()
}

// refuse names a field that is not supported.
func (c *Config) refuse() error {
	for field, why := range map[string]string{
		"extenders":                 "scheduler extenders are not supported; write a plugin",
		"delayCacheUntilActive":     "it is not supported: the cache is always filled before leading",
		"parallelism":               "nodes are looked at one after the other",
		"enableProfiling":           "profiling is not served",
		"enableContentionProfiling": "profiling is not served",
	} {
		if _, ok := c.present[field]; ok {
			return fmt.Errorf("%s: %s", field, why)
		}
	}
	if connection, ok := c.present["clientConnection"].(map[string]any); ok {
		for field := range connection {
			if field != "kubeconfig" {
				return fmt.Errorf("clientConnection.%s: only kubeconfig is supported: requests are not limited here, and go as protobuf", field)
			}
		}
	}
	if lock := c.LeaderElection.ResourceLock; lock != "" && lock != "leases" {
		return fmt.Errorf("leaderElection.resourceLock: only leases is supported, not %q", lock)
	}
	for i := range c.Profiles {
		plugins := c.Profiles[i].Plugins
		if plugins == nil {
			continue
		}
		for field, set := range map[string]kubeschedulerv1.PluginSet{
			"placementGenerate": plugins.PlacementGenerate, "placementScore": plugins.PlacementScore, "podGroupPostFilter": plugins.PodGroupPostFilter,
		} {
			if len(set.Enabled)+len(set.Disabled) > 0 {
				return fmt.Errorf("profiles[%d].plugins.%s: pod groups are not supported", i, field)
			}
		}
	}
	return nil
}

func (c *Config) complete() {
	if c.PodInitialBackoffSeconds == nil {
		c.PodInitialBackoffSeconds = ptr(int64(1))
	}
	if c.PodMaxBackoffSeconds == nil {
		c.PodMaxBackoffSeconds = ptr(int64(10))
	}
	if c.PercentageOfNodesToScore == nil {
		c.PercentageOfNodesToScore = ptr(int32(0))
	}
	if len(c.Profiles) == 0 {
		c.Profiles = []kubeschedulerv1.KubeSchedulerProfile{{}}
	}
	if len(c.Profiles) == 1 && c.Profiles[0].SchedulerName == nil {
		c.Profiles[0].SchedulerName = ptr(DefaultSchedulerName)
	}
}

func ptr[T any](v T) *T { return &v }

func (c *Config) validate() error {
	switch {
	case *c.PodInitialBackoffSeconds <= 0:
		return fmt.Errorf("podInitialBackoffSeconds: %d is not positive", *c.PodInitialBackoffSeconds)
	case *c.PodMaxBackoffSeconds < *c.PodInitialBackoffSeconds:
		return fmt.Errorf("podMaxBackoffSeconds: %d is below podInitialBackoffSeconds", *c.PodMaxBackoffSeconds)
	case *c.PercentageOfNodesToScore < 0 || *c.PercentageOfNodesToScore > 100:
		return fmt.Errorf("percentageOfNodesToScore: %d is not within 0 and 100", *c.PercentageOfNodesToScore)
	}
	seen := map[string]bool{}
	for i := range c.Profiles {
		name := c.Profiles[i].SchedulerName
		switch {
		case name == nil || *name == "":
			return fmt.Errorf("profiles[%d].schedulerName: required", i)
		case seen[*name]:
			return fmt.Errorf("profiles[%d].schedulerName: %q is there twice", i, *name)
		}
		seen[*name] = true
	}
	return nil
}

// Backoff is the initial and the longest pause of a pod that was refused.
func (c *Config) Backoff() (initial, longest time.Duration) {
	return time.Duration(*c.PodInitialBackoffSeconds) * time.Second, time.Duration(*c.PodMaxBackoffSeconds) * time.Second
}

// ApplyLeaderElection overrides the fields of election that the file sets.
func (c *Config) ApplyLeaderElection(election *component.LeaderElection) {
	given := c.LeaderElection
	if given.LeaderElect != nil {
		election.LeaderElect = *given.LeaderElect
	}
	for _, d := range []struct {
		from time.Duration
		to   *time.Duration
	}{
		{given.LeaseDuration.Duration, &election.LeaseDuration}, {given.RenewDeadline.Duration, &election.RenewDeadline},
		{given.RetryPeriod.Duration, &election.RetryPeriod},
	} {
		if d.from > 0 {
			*d.to = d.from
		}
	}
	if given.ResourceName != "" {
		election.ResourceName = given.ResourceName
	}
	if given.ResourceNamespace != "" {
		election.ResourceNamespace = given.ResourceNamespace
	}
}

// Name is the scheduler name of the first profile, which events carry.
func (c *Config) Name() string { return *c.Profiles[0].SchedulerName }
