package plugins

import (
	"context"
	"fmt"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/quota"
)

// resourceQuota keeps namespaces within their ResourceQuotas. It is the last of
// the plugins that may refuse, so that what is refused is not charged.
type resourceQuota struct {
	plugin
	limiter *quota.Limiter
}

func newResourceQuota(config Config) admission.Plugin {
	return &resourceQuota{
		plugin{"ResourceQuota", []admission.Operation{admission.Create, admission.Update}},
		quota.New(config.State, config.Writer, config.Configurations.ResourceQuota),
	}
}

// Validate implements admission.Validator.
func (p *resourceQuota) Validate(ctx context.Context, a *admission.Attributes) error {
	return p.limiter.Charge(ctx, a)
}

func readResourceQuota(c *Configurations, data []byte, _ string) error {
	var file struct {
		header
		LimitedResources []quota.Limited `json:"limitedResources"`
	}
	if err := decodeStrictly(data, &file); err != nil {
		return err
	}
	kind := "Configuration"
	if file.APIVersion == "apiserver.config.k8s.io/v1" {
		kind = "ResourceQuotaConfiguration"
	}
	if err := file.check(kind, "apiserver.config.k8s.io/v1", "resourcequota.admission.k8s.io/v1beta1", "resourcequota.admission.k8s.io/v1alpha1"); err != nil {
		return err
	}
	for i, limited := range file.LimitedResources {
		if limited.Resource == "" {
			return fmt.Errorf("limitedResources[%d].resource must not be empty", i)
		}
	}
	c.ResourceQuota = file.LimitedResources
	return nil
}
