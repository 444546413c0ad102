// Package conversion brings custom resources from one version into another: by
// renaming the version, or by asking a webhook, whose answers it does not trust.
package conversion

import (
	"context"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Converter converts the objects of one definition.
type Converter struct {
	group    string
	versions map[string]bool
	webhook  *webhook // nil renames the version
}

// New makes the converter of a definition, which it does not keep. Clients
// reaches the webhooks.
func New(crd *apiextensionsv1.CustomResourceDefinition, clients *Clients) (*Converter, error) {
	c := &Converter{group: crd.Spec.Group, versions: map[string]bool{}}
	for _, version := range crd.Spec.Versions {
		c.versions[version.Name] = true
	}
	if conversion := crd.Spec.Conversion; conversion != nil && conversion.Strategy == apiextensionsv1.WebhookConverter {
		var err error
		if c.webhook, err = newWebhook(crd.Name, conversion.Webhook, clients); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// ByWebhook says that another program converts.
func (c *Converter) ByWebhook() bool { return c.webhook != nil }

// Convert brings obj, which it takes over, into a version. It fails with
// runtime.IsNotRegisteredError for versions that the definition does not have.
func (c *Converter) Convert(ctx context.Context, obj *unstructured.Unstructured, to schema.GroupVersion) (*unstructured.Unstructured, error) {
	converted := []*unstructured.Unstructured{obj}
	if err := c.ConvertAll(ctx, converted, to); err != nil {
		return nil, err
	}
	return converted[0], nil
}

// ConvertAll is Convert for many objects, each of which it replaces. A webhook is
// asked about all of them together.
func (c *Converter) ConvertAll(ctx context.Context, objects []*unstructured.Unstructured, to schema.GroupVersion) error {
	var remote []*unstructured.Unstructured
	var at []int
	for i, obj := range objects {
		from := obj.GroupVersionKind()
		for _, gv := range []schema.GroupVersion{to, from.GroupVersion()} {
			if gv.Group != c.group || !c.versions[gv.Version] {
				return runtime.NewNotRegisteredErrForKind("customresource", gv.WithKind(from.Kind))
			}
		}
		switch {
		case from.Version == to.Version:
		case c.webhook == nil || bare(obj):
			obj.SetAPIVersion(to.String())
		default:
			remote, at = append(remote, obj), append(at, i)
		}
	}
	if len(remote) == 0 {
		return nil
	}
	converted, err := c.webhook.convert(ctx, remote, to)
	if err != nil {
		return fmt.Errorf("conversion webhook for %v failed: %w", remote[0].GroupVersionKind(), err)
	}
	for i, obj := range converted {
		from := remote[i].GroupVersionKind()
		if err := accept(remote[i], obj, to.WithKind(from.Kind)); err != nil {
			return fmt.Errorf("conversion webhook for %v returned invalid converted object: %w", from, err)
		}
		objects[at[i]] = obj
	}
	return nil
}

// bare objects have nothing to convert.
func bare(obj *unstructured.Unstructured) bool {
	return len(obj.Object) == 2 && obj.GetKind() != "" && obj.GetAPIVersion() != ""
}
