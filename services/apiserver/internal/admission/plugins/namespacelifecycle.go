package plugins

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// namespaceLifecycle refuses writes into namespaces that do not exist, new
// objects in namespaces that are going, and the deletion of the namespaces that
// everything relies on.
type namespaceLifecycle struct {
	plugin
	reader registry.Reader
}

func newNamespaceLifecycle(config Config) admission.Plugin {
	return &namespaceLifecycle{
		plugin{"NamespaceLifecycle", []admission.Operation{admission.Create, admission.Update, admission.Delete}}, config.State,
	}
}

// Admit implements admission.Mutator.
func (p *namespaceLifecycle) Admit(ctx context.Context, a *admission.Attributes) error {
	if a.Resource.GroupResource() == corev1.Resource("namespaces") {
		immortal := []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic}
		if a.Operation == admission.Delete && a.Subresource == "" && slices.Contains(immortal, a.Name) {
			return errors.New("this namespace may not be deleted")
		}
		return nil
	}
	// A review of access must not tell whether a namespace exists.
	if a.Namespace == "" || a.Operation == admission.Delete || a.Resource.Resource == "localsubjectaccessreviews" {
		return nil
	}
	obj, err := p.reader.Get(ctx, corev1.Resource("namespaces"), "", a.Namespace)
	if err != nil {
		return err
	}
	namespace, ok := obj.(*corev1.Namespace)
	if !ok || a.Operation != admission.Create {
		return nil
	}
	if namespace.Status.Phase != corev1.NamespaceTerminating && namespace.DeletionTimestamp == nil {
		return nil
	}
	refused := apierrors.NewForbidden(a.Resource.GroupResource(), a.Name,
		fmt.Errorf("unable to create new content in namespace %s because it is being terminated", a.Namespace))
	refused.ErrStatus.Details.Causes = append(refused.ErrStatus.Details.Causes, metav1.StatusCause{
		Type:    corev1.NamespaceTerminatingCause,
		Message: fmt.Sprintf("namespace %s is being terminated", a.Namespace),
		Field:   "metadata.namespace",
	})
	return refused
}
