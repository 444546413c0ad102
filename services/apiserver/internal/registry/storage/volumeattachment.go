package storage

import (
	"context"

	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// maxAttachError bounds an attacher's message, and maxAttachMetadata what it
// reports of an attachment, in bytes.
const (
	maxAttachError    = 1024
	maxAttachMetadata = 256 * 1024
)

// VolumeAttachments ask for a volume on a node.
func VolumeAttachments() *registry.Resource {
	doc := storagev1.VolumeAttachmentSpec{}.SwaggerDoc()
	status := attachmentBehaviour()
	status.PrepareForUpdate = func(_ context.Context, obj, old *storagev1.VolumeAttachment) { obj.Spec = old.Spec }
	status.ResetFields = []string{"spec"}
	return registry.Define(registry.Definition[*storagev1.VolumeAttachment]{
		GroupVersion: v1, Resource: "volumeattachments", Kind: "VolumeAttachment", Singular: "volumeattachment",
		ReturnDeleted: true,
		New:           func() *storagev1.VolumeAttachment { return &storagev1.VolumeAttachment{} },
		NewList:       func() runtime.Object { return &storagev1.VolumeAttachmentList{} },
		KeyPrefix:     "/registry/volumeattachments",
		Strategy:      attachmentBehaviour(),
		Columns: []metav1.TableColumnDefinition{
			table.Name(),
			{Name: "Attacher", Type: "string", Format: "name", Description: doc["attacher"]},
			table.String("PV", storagev1.VolumeAttachmentSource{}.SwaggerDoc()["persistentVolumeName"]),
			table.String("Node", doc["nodeName"]),
			table.Boolean("Attached", storagev1.VolumeAttachmentStatus{}.SwaggerDoc()["attached"]),
			table.Age(),
		},
		Row: func(obj *storagev1.VolumeAttachment) []any {
			return []any{
				obj.Name, obj.Spec.Attacher, table.Value(obj.Spec.Source.PersistentVolumeName), obj.Spec.NodeName, obj.Status.Attached,
				table.Since(obj.CreationTimestamp),
			}
		},
		Subresources: []registry.Subresource{
			{Name: "status", Verbs: []string{"get", "patch", "update"}, Update: registry.Erase(status)},
		},
	})
}

func attachmentBehaviour() registry.Behaviour[*storagev1.VolumeAttachment] {
	return registry.Behaviour[*storagev1.VolumeAttachment]{
		PrepareForCreate: func(_ context.Context, obj *storagev1.VolumeAttachment) {
			obj.Status = storagev1.VolumeAttachmentStatus{}
		},
		PrepareForUpdate: func(_ context.Context, obj, old *storagev1.VolumeAttachment) { obj.Status = old.Status },
		Validate: func(_ context.Context, obj *storagev1.VolumeAttachment) field.ErrorList {
			errs := validateAttachment(obj)
			errs = append(errs, podspec.ValidateCSIDriverName(obj.Spec.Attacher, field.NewPath("spec.attacher"))...)
			if name := obj.Spec.Source.PersistentVolumeName; name != nil {
				errs = append(errs, invalid(field.NewPath("spec.source.persistentVolumeName"), *name, apivalidation.NameIsDNSSubdomain(*name, false))...)
			}
			return errs
		},
		ValidateUpdate: func(_ context.Context, obj, old *storagev1.VolumeAttachment) field.ErrorList {
			errs := validateAttachment(obj)
			if !apiequality.Semantic.DeepEqual(obj.Spec, old.Spec) {
				errs = append(errs, field.Invalid(field.NewPath("spec"), obj.Spec, "field is immutable"))
			}
			return errs
		},
		RequireVersionOnUpdate: true,
		ResetFields:            []string{"status"},
	}
}

func validateAttachment(obj *storagev1.VolumeAttachment) field.ErrorList {
	spec, path := &obj.Spec, field.NewPath("spec")
	var errs field.ErrorList
	if spec.Attacher == "" {
		errs = append(errs, field.Required(path.Child("attacher"), ""))
	}
	source := path.Child("source")
	switch inline, name := spec.Source.InlineVolumeSpec, spec.Source.PersistentVolumeName; {
	case inline == nil && name == nil:
		errs = append(errs, field.Required(source, "must specify exactly one of inlineVolumeSpec and persistentVolumeName"))
	case inline != nil && name != nil:
		errs = append(errs, field.Forbidden(source, "must specify exactly one of inlineVolumeSpec and persistentVolumeName"))
	case name != nil && *name == "":
		errs = append(errs, field.Required(source.Child("persistentVolumeName"), "must specify non empty persistentVolumeName"))
	}
	errs = append(errs, invalid(path.Child("nodeName"), spec.NodeName, apivalidation.NameIsDNSSubdomain(spec.NodeName, false))...)
	status := field.NewPath("status")
	size := 0
	for key, value := range obj.Status.AttachmentMetadata {
		size += len(key) + len(value)
	}
	if size > maxAttachMetadata {
		errs = append(errs, field.TooLong(status.Child("attachmentMetadata"), "", maxAttachMetadata))
	}
	if e := obj.Status.AttachError; e != nil && len(e.Message) > maxAttachError {
		errs = append(errs, field.TooLong(status.Child("attachError", "message"), "", maxAttachError))
	}
	if e := obj.Status.DetachError; e != nil && len(e.Message) > maxAttachError {
		errs = append(errs, field.TooLong(status.Child("detachError", "message"), "", maxAttachError))
	}
	return errs
}
