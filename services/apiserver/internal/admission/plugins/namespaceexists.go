package plugins

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// namespaceExists refuses writes, deletions among them, in namespaces that do not
// exist. NamespaceLifecycle says so of all but deletions.
type namespaceExists struct {
	plugin
	reader registry.Reader
}

func newNamespaceExists(config Config) admission.Plugin {
	return &namespaceExists{
		plugin{"NamespaceExists", []admission.Operation{admission.Create, admission.Update, admission.Delete}}, config.State,
	}
}

// Validate implements admission.Validator.
func (p *namespaceExists) Validate(ctx context.Context, a *admission.Attributes) error {
	if a.Namespace == "" || a.Resource.GroupResource() == corev1.Resource("namespaces") {
		return nil
	}
	_, err := p.reader.Get(ctx, corev1.Resource("namespaces"), "", a.Namespace)
	return err
}
