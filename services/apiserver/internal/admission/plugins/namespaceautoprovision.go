package plugins

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// namespaceAutoProvision makes the namespace of a new object that is in none.
type namespaceAutoProvision struct {
	plugin
	reader registry.Reader
	writer registry.Writer
}

func newNamespaceAutoProvision(config Config) admission.Plugin {
	return &namespaceAutoProvision{plugin{"NamespaceAutoProvision", []admission.Operation{admission.Create}}, config.State, config.Writer}
}

// Admit implements admission.Mutator.
func (p *namespaceAutoProvision) Admit(ctx context.Context, a *admission.Attributes) error {
	namespaces := corev1.Resource("namespaces")
	if a.Namespace == "" || a.DryRun || a.Resource.GroupResource() == namespaces {
		return nil
	}
	_, err := p.reader.Get(ctx, namespaces, "", a.Namespace)
	if !apierrors.IsNotFound(err) {
		return err
	}
	_, err = p.writer.Create(ctx, namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: a.Namespace}})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
