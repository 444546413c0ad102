package plugins

import (
	"context"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// defaultIngressClass gives Ingresses that name no class the default one.
type defaultIngressClass struct {
	plugin
	reader registry.Reader
}

func newDefaultIngressClass(config Config) admission.Plugin {
	return &defaultIngressClass{plugin{"DefaultIngressClass", []admission.Operation{admission.Create}}, config.State}
}

// Admit implements admission.Mutator.
func (p *defaultIngressClass) Admit(ctx context.Context, a *admission.Attributes) error {
	ingress, ok := a.Object.(*networkingv1.Ingress)
	if !ok || !is(a, networkingv1.Resource("ingresses")) || ingress.Spec.IngressClassName != nil {
		return nil
	}
	if _, ok := ingress.Annotations["kubernetes.io/ingress.class"]; ok {
		return nil
	}
	classes, err := listOf[*networkingv1.IngressClass](ctx, p.reader, networkingv1.Resource("ingressclasses"), "")
	if err != nil {
		return err
	}
	if class, ok := newestDefault(classes, networkingv1.AnnotationIsDefaultIngressClass); ok {
		ingress.Spec.IngressClassName = new(class.Name)
	}
	return nil
}
