package customresource

import (
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/sampan-io/sampan/services/apiserver/internal/apiextensions/structural"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

func subresourceVerbs() []string { return []string{"get", "patch", "update"} }

func (v *view) subresources() []registry.Subresource {
	var out []registry.Subresource
	if v.hasStatus() {
		out = append(out, registry.Subresource{Name: "status", Verbs: subresourceVerbs(), Update: v.statusStrategy()})
	}
	if v.spec.Subresources != nil && v.spec.Subresources.Scale != nil {
		out = append(out, registry.Subresource{Name: "scale", Verbs: subresourceVerbs(), Scale: scale(v.spec.Subresources.Scale)})
	}
	return out
}

// scale reads and writes the replicas at the paths that the definition names.
func scale(paths *apiextensionsv1.CustomResourceSubresourceScale) *registry.Scale {
	spec, status := structural.Path(paths.SpecReplicasPath), structural.Path(paths.StatusReplicasPath)
	return &registry.Scale{
		Replicas: func(obj runtime.Object) (int32, int32) {
			wanted, _, _ := unstructured.NestedInt64(content(obj), spec...)
			have, _, _ := unstructured.NestedInt64(content(obj), status...)
			return int32(wanted), int32(have)
		},
		Selector: func(obj runtime.Object) string {
			if paths.LabelSelectorPath == nil {
				return ""
			}
			selector, _, _ := unstructured.NestedString(content(obj), structural.Path(*paths.LabelSelectorPath)...)
			return selector
		},
		SetReplicas: func(obj runtime.Object, replicas int32) {
			_ = unstructured.SetNestedField(content(obj), int64(replicas), spec...)
		},
		Check: func(obj runtime.Object) error {
			_, found, err := unstructured.NestedInt64(content(obj), spec...)
			switch {
			case err != nil:
				return apierrors.NewInternalError(err)
			case !found:
				return apierrors.NewInternalError(fmt.Errorf("the spec replicas field %q does not exist", paths.SpecReplicasPath))
			}
			return nil
		},
	}
}

// replicasPaths is where each version keeps its replicas, nil where it has no
// scale.
func (k *kind) replicasPaths() managedfields.ResourcePathMappings {
	out := managedfields.ResourcePathMappings{}
	for _, v := range k.specs {
		version := schema.GroupVersion{Group: k.group, Version: v.Name}.String()
		out[version] = nil
		if v.Subresources == nil || v.Subresources.Scale == nil {
			continue
		}
		for _, name := range structural.Path(v.Subresources.Scale.SpecReplicasPath) {
			out[version] = append(out[version], fieldpath.PathElement{FieldName: &name})
		}
	}
	return out
}
