package plugins

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	podsecurityapi "k8s.io/pod-security-admission/admission/api"
	"sigs.k8s.io/yaml"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission/webhook"
	"github.com/sampan-io/sampan/services/apiserver/internal/quota"
)

// Configurations are the sections of the file of --admission-control-config-file,
// by plugin. The zero value is a server without such a file.
type Configurations struct {
	PodSecurity              *podsecurityapi.PodSecurityConfiguration
	ResourceQuota            []quota.Limited
	EventRateLimit           []EventLimit
	PodNodeSelector          map[string]string // by namespace
	PodTolerationRestriction TolerationLists
	ImagePolicyWebhook       *ImagePolicy
	// MutatingWebhooks and ValidatingWebhooks are by whom webhooks know the server.
	MutatingWebhooks, ValidatingWebhooks *webhook.Credentials
}

// section reads one plugin's configuration. Relative paths in it are relative to
// dir.
type section struct {
	plugin string
	read   func(c *Configurations, data []byte, dir string) error
}

func sections() []section {
	return []section{
		{"ImagePolicyWebhook", readImagePolicy},
		{"PodSecurity", readPodSecurity},
		{"PodNodeSelector", readPodNodeSelector},
		{"PodTolerationRestriction", readTolerationLists},
		{"EventRateLimit", readEventLimits},
		{"MutatingAdmissionWebhook", readWebhooks(func(c *Configurations) **webhook.Credentials { return &c.MutatingWebhooks })},
		{"ValidatingAdmissionWebhook", readWebhooks(func(c *Configurations) **webhook.Credentials { return &c.ValidatingWebhooks })},
		{"ResourceQuota", readResourceQuota},
	}
}

// admissionConfiguration is upstream's AdmissionConfiguration.
type admissionConfiguration struct {
	header
	Plugins []struct {
		Name          string         `json:"name"`
		Path          string         `json:"path"`
		Configuration map[string]any `json:"configuration"`
	} `json:"plugins"`
}

// header is the type of a configuration.
type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

func (h header) check(kind string, versions ...string) error {
	if h.Kind != kind || !slices.Contains(versions, h.APIVersion) {
		return fmt.Errorf("a %s of %s is expected, not a %q of %q", kind, strings.Join(versions, " or "), h.Kind, h.APIVersion)
	}
	return nil
}

// LoadConfigurations reads a file of --admission-control-config-file. It refuses
// fields that it does not know, and plugins that take no configuration.
func LoadConfigurations(path string) (Configurations, error) {
	var c Configurations
	data, err := os.ReadFile(path)
	if err != nil {
		return c, err
	}
	var file admissionConfiguration
	if err := decodeStrictly(data, &file); err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	if err := file.check("AdmissionConfiguration", "apiserver.config.k8s.io/v1", "apiserver.k8s.io/v1alpha1"); err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	dir := filepath.Dir(path)
	seen := map[string]bool{}
	for _, p := range file.Plugins {
		if seen[p.Name] {
			return c, fmt.Errorf("%s: plugin %q is configured twice", path, p.Name)
		}
		seen[p.Name] = true
		if err := c.read(p.Name, p.Path, p.Configuration, dir); err != nil {
			return c, fmt.Errorf("%s: plugin %q: %w", path, p.Name, err)
		}
	}
	return c, nil
}

// read reads one plugin's section, which is written in the file or in one of its
// own.
func (c *Configurations) read(name, path string, written map[string]any, dir string) error {
	if !slices.Contains(Names(), name) {
		return fmt.Errorf("this server has no such plugin (it has %s)", strings.Join(Names(), ", "))
	}
	var data []byte
	var err error
	switch {
	case written != nil:
		data, err = yaml.Marshal(written)
	case path != "":
		path = relativeTo(path, dir)
		dir = filepath.Dir(path)
		data, err = os.ReadFile(path)
	}
	if err != nil || len(bytes.TrimSpace(data)) == 0 {
		return err
	}
	for _, s := range sections() {
		if s.plugin == name {
			return s.read(c, data, dir)
		}
	}
	return fmt.Errorf("it takes no configuration")
}

// relativeTo is a path that may be relative to dir.
func relativeTo(path, dir string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// decodeStrictly decodes YAML or JSON, and refuses unknown and repeated fields.
func decodeStrictly(data []byte, into any) error { return yaml.UnmarshalStrict(data, into) }
