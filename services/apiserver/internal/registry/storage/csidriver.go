package storage

import (
	"context"
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// CSIDrivers say what storage drivers can do.
func CSIDrivers() *registry.Resource {
	doc := storagev1.CSIDriverSpec{}.SwaggerDoc()
	return registry.Define(registry.Definition[*storagev1.CSIDriver]{
		GroupVersion: v1, Resource: "csidrivers", Kind: "CSIDriver", Singular: "csidriver",
		ReturnDeleted: true,
		New:           func() *storagev1.CSIDriver { return &storagev1.CSIDriver{} },
		NewList:       func() runtime.Object { return &storagev1.CSIDriverList{} },
		KeyPrefix:     "/registry/csidrivers",
		Strategy: registry.Behaviour[*storagev1.CSIDriver]{
			Default:  defaultDriver,
			Validate: func(_ context.Context, obj *storagev1.CSIDriver) field.ErrorList { return validateDriver(obj) },
			ValidateUpdate: func(_ context.Context, obj, old *storagev1.CSIDriver) field.ErrorList {
				spec := field.NewPath("spec")
				errs := validateDriver(obj)
				errs = append(errs, apivalidation.ValidateImmutableField(obj.Spec.AttachRequired, old.Spec.AttachRequired, spec.Child("attachedRequired"))...)
				return append(errs, apivalidation.ValidateImmutableField(obj.Spec.VolumeLifecycleModes, old.Spec.VolumeLifecycleModes, spec.Child("volumeLifecycleModes"))...)
			},
			RequireVersionOnUpdate: true,
			SpecOf:                 func(obj *storagev1.CSIDriver) any { return &obj.Spec },
		},
		Columns: []metav1.TableColumnDefinition{
			table.Name(),
			table.Boolean("AttachRequired", doc["attachRequired"]),
			table.Boolean("PodInfoOnMount", doc["podInfoOnMount"]),
			table.Boolean("StorageCapacity", doc["storageCapacity"]),
			table.String("TokenRequests", doc["tokenRequests"]),
			table.Boolean("RequiresRepublish", doc["requiresRepublish"]),
			table.String("Modes", doc["volumeLifecycleModes"]),
			table.Age(),
		},
		Row: driverRow,
	})
}

func driverRow(obj *storagev1.CSIDriver) []any {
	spec := &obj.Spec
	var modes, audiences []string
	for _, mode := range spec.VolumeLifecycleModes {
		modes = append(modes, string(mode))
	}
	tokens := "<unset>"
	if spec.TokenRequests != nil {
		for _, r := range spec.TokenRequests {
			audiences = append(audiences, r.Audience)
		}
		tokens = strings.Join(audiences, ",")
	}
	attach := spec.AttachRequired == nil || *spec.AttachRequired
	return []any{
		obj.Name, attach, table.Value(spec.PodInfoOnMount), table.Value(spec.StorageCapacity), tokens, table.Value(spec.RequiresRepublish),
		table.OrNone(strings.Join(modes, ",")), table.Since(obj.CreationTimestamp),
	}
}

func defaultDriver(obj *storagev1.CSIDriver) {
	spec := &obj.Spec
	for p, value := range map[**bool]bool{
		&spec.AttachRequired: true, &spec.PodInfoOnMount: false, &spec.StorageCapacity: false, &spec.RequiresRepublish: false, &spec.SELinuxMount: false,
	} {
		if *p == nil {
			*p = ptr.To(value)
		}
	}
	if spec.FSGroupPolicy == nil {
		spec.FSGroupPolicy = ptr.To(storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
	}
	if len(spec.VolumeLifecycleModes) == 0 {
		spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	}
}

// minUpdatePeriod is the shortest period in which a driver may be asked again
// how many volumes a node takes, in seconds.
const minUpdatePeriod = 10

func validateDriver(obj *storagev1.CSIDriver) field.ErrorList {
	spec, path := &obj.Spec, field.NewPath("spec")
	errs := podspec.ValidateCSIDriverName(obj.Name, field.NewPath("name"))
	for _, f := range []struct {
		name  string
		value *bool
	}{{"attachedRequired", spec.AttachRequired}, {"podInfoOnMount", spec.PodInfoOnMount}, {"storageCapacity", spec.StorageCapacity}, {"seLinuxMount", spec.SELinuxMount}} {
		if f.value == nil {
			errs = append(errs, field.Required(path.Child(f.name), ""))
		}
	}
	if p := spec.FSGroupPolicy; p != nil {
		errs = append(errs, oneOf(*p, path.Child("fsGroupPolicy"), storagev1.FileFSGroupPolicy, storagev1.NoneFSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)...)
	}
	errs = append(errs, validateTokenRequests(spec.TokenRequests, path.Child("tokenRequests"))...)
	for _, mode := range spec.VolumeLifecycleModes {
		errs = append(errs, oneOf(mode, path.Child("volumeLifecycleModes"), storagev1.VolumeLifecycleEphemeral, storagev1.VolumeLifecyclePersistent)...)
	}
	if s := spec.NodeAllocatableUpdatePeriodSeconds; s != nil && *s < minUpdatePeriod {
		errs = append(errs, field.Invalid(path.Child("nodeAllocatableUpdatePeriodSeconds"), *s, "must be greater than or equal to 10 seconds"))
	}
	return errs
}

func validateTokenRequests(requests []storagev1.TokenRequest, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	audiences := map[string]bool{}
	for i, r := range requests {
		at := path.Index(i)
		if audiences[r.Audience] {
			errs = append(errs, field.Duplicate(at.Child("audience"), r.Audience))
		}
		audiences[r.Audience] = true
		if s := r.ExpirationSeconds; s != nil {
			if *s < 600 {
				errs = append(errs, field.Invalid(at.Child("expirationSeconds"), *s, "may not specify a duration less than 10 minutes"))
			}
			if *s > 1<<32 {
				errs = append(errs, field.Invalid(at.Child("expirationSeconds"), *s, "may not specify a duration larger than 2^32 seconds"))
			}
		}
	}
	return errs
}
