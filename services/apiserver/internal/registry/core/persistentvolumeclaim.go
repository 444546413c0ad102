package core

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// PersistentVolumeClaims ask for storage.
func PersistentVolumeClaims() *registry.Resource {
	doc, statusDoc := corev1.PersistentVolumeClaimSpec{}.SwaggerDoc(), corev1.PersistentVolumeClaimStatus{}.SwaggerDoc()
	status := claimBehaviour()
	status.PrepareForUpdate = func(_ context.Context, obj, old *corev1.PersistentVolumeClaim) { obj.Spec = old.Spec }
	status.ValidateUpdate = func(_ context.Context, obj, _ *corev1.PersistentVolumeClaim) field.ErrorList {
		errs := podspec.ValidateQuantities(obj.Status.Capacity, field.NewPath("status", "capacity"))
		return append(errs, podspec.ValidateQuantities(obj.Status.AllocatedResources, field.NewPath("status", "allocatedResources"))...)
	}
	status.ResetFields = []string{"spec"}
	status.Warnings = nil
	return registry.Define(registry.Definition[*corev1.PersistentVolumeClaim]{
		GroupVersion: v1, Resource: "persistentvolumeclaims", Kind: "PersistentVolumeClaim", Singular: "persistentvolumeclaim",
		ReturnDeleted: true,
		ShortNames:    []string{"pvc"}, Namespaced: true,
		New:       func() *corev1.PersistentVolumeClaim { return &corev1.PersistentVolumeClaim{} },
		NewList:   func() runtime.Object { return &corev1.PersistentVolumeClaimList{} },
		KeyPrefix: "/registry/persistentvolumeclaims",
		Fields:    func(obj *corev1.PersistentVolumeClaim) fields.Set { return fields.Set{"name": obj.Name} },
		Strategy:  claimBehaviour(),
		Columns: []metav1.TableColumnDefinition{
			table.Name(),
			table.String("Status", statusDoc["phase"]),
			table.String("Volume", doc["volumeName"]),
			table.String("Capacity", statusDoc["capacity"]),
			table.String("Access Modes", statusDoc["accessModes"]),
			table.String("StorageClass", "StorageClass of the pvc"),
			table.String("VolumeAttributesClass", "VolumeAttributesClass of the pvc"),
			table.Age(),
			table.Wide(table.String("VolumeMode", doc["volumeMode"])),
		},
		Row: claimRow,
		Subresources: []registry.Subresource{
			{Name: "status", Verbs: readWrite(), Update: registry.Erase(status)},
		},
	})
}

// storageClass is the class by field, or by the annotation that was before it.
func storageClass(annotations map[string]string, class *string) string {
	if name, set := annotations[corev1.BetaStorageClassAnnotation]; set {
		return name
	}
	return table.Value(class)
}

// accessModes are short names, each once.
func accessModes(modes []corev1.PersistentVolumeAccessMode) string {
	var out []string
	for _, m := range []struct {
		mode  corev1.PersistentVolumeAccessMode
		short string
	}{{corev1.ReadWriteOnce, "RWO"}, {corev1.ReadOnlyMany, "ROX"}, {corev1.ReadWriteMany, "RWX"}, {corev1.ReadWriteOncePod, "RWOP"}} {
		for _, have := range modes {
			if have == m.mode {
				out = append(out, m.short)
				break
			}
		}
	}
	return strings.Join(out, ",")
}

func orUnset[T ~string](p *T) string {
	if p == nil {
		return "<unset>"
	}
	return string(*p)
}

func claimRow(obj *corev1.PersistentVolumeClaim) []any {
	phase := string(obj.Status.Phase)
	if !obj.DeletionTimestamp.IsZero() {
		phase = "Terminating"
	}
	capacity, modes := "", ""
	if obj.Spec.VolumeName != "" {
		size := obj.Status.Capacity[corev1.ResourceStorage]
		capacity, modes = size.String(), accessModes(obj.Status.AccessModes)
	}
	return []any{
		obj.Name, phase, obj.Spec.VolumeName, capacity, modes, storageClass(obj.Annotations, obj.Spec.StorageClassName),
		orUnset(obj.Spec.VolumeAttributesClassName), table.Since(obj.CreationTimestamp), orUnset(obj.Spec.VolumeMode),
	}
}

func claimBehaviour() registry.Behaviour[*corev1.PersistentVolumeClaim] {
	return registry.Behaviour[*corev1.PersistentVolumeClaim]{
		Default: func(obj *corev1.PersistentVolumeClaim) {
			podspec.DefaultClaim(&obj.Spec)
			if obj.Status.Phase == "" {
				obj.Status.Phase = corev1.ClaimPending
			}
			podspec.RoundQuantities(obj.Status.Capacity)
			podspec.RoundQuantities(obj.Status.AllocatedResources)
		},
		PrepareForCreate: func(_ context.Context, obj *corev1.PersistentVolumeClaim) {
			obj.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
			mirrorDataSource(&obj.Spec)
		},
		PrepareForUpdate: func(_ context.Context, obj, old *corev1.PersistentVolumeClaim) {
			obj.Status = old.Status
			mirrorDataSource(&obj.Spec)
		},
		Validate: func(_ context.Context, obj *corev1.PersistentVolumeClaim) field.ErrorList {
			return podspec.ValidateClaimSpec(&obj.Spec, field.NewPath("spec"))
		},
		ValidateUpdate: func(_ context.Context, obj, old *corev1.PersistentVolumeClaim) field.ErrorList {
			return validateClaimUpdate(obj, old)
		},
		Warnings: func(_ context.Context, obj, _ *corev1.PersistentVolumeClaim) []string {
			return podspec.ClaimWarnings(&obj.Spec, field.NewPath("spec"))
		},
		ResetFields: []string{"status"},
	}
}

// mirrorDataSource keeps the two fields that name where the data comes from
// equal when only one is set.
func mirrorDataSource(spec *corev1.PersistentVolumeClaimSpec) {
	const snapshots = "snapshot.storage.k8s.io"
	if s, r := spec.DataSource, spec.DataSourceRef; s != nil && r == nil {
		spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: s.APIGroup, Kind: s.Kind, Name: s.Name}
	} else if r != nil && s == nil && table.Value(r.Namespace) == "" {
		claim := r.Kind == "PersistentVolumeClaim" && table.Value(r.APIGroup) == ""
		if claim || (r.Kind == "VolumeSnapshot" && table.Value(r.APIGroup) == snapshots) {
			spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: r.APIGroup, Kind: r.Kind, Name: r.Name}
		}
	}
}

// validateClaimUpdate lets the binding be made once, a class be set where none
// was, and a bound claim grow.
func validateClaimUpdate(obj, old *corev1.PersistentVolumeClaim) field.ErrorList {
	path := field.NewPath("spec")
	errs := podspec.ValidateClaimSpec(&obj.Spec, path)
	rest, was := obj.Spec.DeepCopy(), old.Spec.DeepCopy()
	if was.VolumeName == "" { // the binder fills it in once
		was.VolumeName = rest.VolumeName
	}
	if annotation, set := old.Annotations[corev1.BetaStorageClassAnnotation]; was.StorageClassName == nil && rest.StorageClassName != nil && (!set || annotation == *rest.StorageClassName) {
		was.StorageClassName = rest.StorageClassName
	}
	if obj.Status.Phase == corev1.ClaimBound {
		rest.Resources.Requests = was.Resources.Requests
		if rest.VolumeAttributesClassName != nil {
			rest.VolumeAttributesClassName = was.VolumeAttributesClassName
		}
	}
	if !apiequality.Semantic.DeepEqual(*rest, *was) {
		errs = append(errs, field.Forbidden(path, fmt.Sprintf("spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n%v", diff.Diff(*was, *rest))))
	}
	size, before := obj.Spec.Resources.Requests[corev1.ResourceStorage], old.Spec.Resources.Requests[corev1.ResourceStorage]
	have := old.Status.Capacity[corev1.ResourceStorage]
	if size.Cmp(before) < 0 && size.Cmp(have) <= 0 {
		errs = append(errs, field.Forbidden(path.Child("resources", "requests", "storage"), "field can not be less than status.capacity"))
	}
	errs = append(errs, apivalidation.ValidateImmutableField(obj.Spec.VolumeMode, old.Spec.VolumeMode, field.NewPath("volumeMode"))...)
	if now, was := obj.Spec.VolumeAttributesClassName, old.Spec.VolumeAttributesClassName; was != nil {
		at := path.Child("volumeAttributesClassName")
		if now == nil {
			errs = append(errs, field.Forbidden(at, "update from non-nil value to nil is forbidden"))
		} else if *now == "" && *was != "" {
			errs = append(errs, field.Forbidden(at, "update from non-nil value to an empty string is forbidden"))
		}
	}
	return errs
}
