package storage

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

func errorsOf(r *registry.Resource, obj runtime.Object) string {
	if r.Strategy.Default != nil {
		r.Strategy.Default(obj)
	}
	if err := r.Strategy.Validate(context.Background(), obj).ToAggregate(); err != nil {
		return err.Error()
	}
	return ""
}

func updateErrors(r *registry.Resource, obj, old runtime.Object) string {
	if err := r.Strategy.ValidateUpdate(context.Background(), obj, old).ToAggregate(); err != nil {
		return err.Error()
	}
	return ""
}

func TestClassesDefaultAndValidate(t *testing.T) {
	r := StorageClasses()
	class := &storagev1.StorageClass{Provisioner: "kubernetes.io/local"}
	if got := errorsOf(r, class); got != "" {
		t.Fatal(got)
	}
	if *class.ReclaimPolicy != "Delete" || *class.VolumeBindingMode != "Immediate" {
		t.Errorf("class is %+v", class)
	}
	for want, bad := range map[string]*storagev1.StorageClass{
		"provisioner: Required value": {},
		`reclaimPolicy: Unsupported value: "Recycle": supported values: "Delete", "Retain"`:       {Provisioner: "p", ReclaimPolicy: ptr.To(corev1.PersistentVolumeReclaimRecycle)},
		`parameters: Invalid value: "": field can not be empty.`:                                  {Provisioner: "p", Parameters: map[string]string{"": "x"}},
		`allowedTopologies[0].matchLabelExpressions[0].values: Required value`:                    {Provisioner: "p", AllowedTopologies: []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "k"}}}}},
		`volumeBindingMode: Unsupported value: "Never": supported values: "Immediate", "WaitForF`: {Provisioner: "p", VolumeBindingMode: ptr.To(storagev1.VolumeBindingMode("Never"))},
	} {
		if got := errorsOf(r, bad); !strings.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	changed := class.DeepCopy()
	changed.Provisioner = "other"
	if got, want := updateErrors(r, changed, class), "provisioner: Forbidden: updates to provisioner are forbidden."; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestClassRow(t *testing.T) {
	class := &storagev1.StorageClass{
		ObjectMeta:  metav1.ObjectMeta{Name: "fast", CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Hour)), Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}},
		Provisioner: "p", AllowVolumeExpansion: ptr.To(true),
	}
	row := StorageClasses().Table.Cells(class, time.Now())
	want := []any{"fast (default)", "p", "Delete", "Immediate", true, "60m"}
	if !slices.Equal(row, want) {
		t.Errorf("row is %v, want %v", row, want)
	}
}

func TestDrivers(t *testing.T) {
	r := CSIDrivers()
	driver := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "csi.example.com"}}
	if got := errorsOf(r, driver); got != "" {
		t.Fatal(got)
	}
	if !*driver.Spec.AttachRequired || *driver.Spec.PodInfoOnMount || *driver.Spec.FSGroupPolicy != "ReadWriteOnceWithFSType" || driver.Spec.VolumeLifecycleModes[0] != "Persistent" {
		t.Errorf("driver is %+v", driver.Spec)
	}
	bad := driver.DeepCopy()
	bad.Spec.TokenRequests = []storagev1.TokenRequest{{Audience: "a", ExpirationSeconds: ptr.To(int64(1))}, {Audience: "a"}}
	got := errorsOf(r, bad)
	for _, want := range []string{"spec.tokenRequests[0].expirationSeconds: Invalid value: 1: may not specify a duration less than 10 minutes", `spec.tokenRequests[1].audience: Duplicate value: "a"`} {
		if !strings.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	changed := driver.DeepCopy()
	changed.Spec.AttachRequired = ptr.To(false)
	if got := updateErrors(r, changed, driver); !strings.Contains(got, "spec.attachedRequired: Invalid value: false: field is immutable") {
		t.Error(got)
	}
}

func TestCSINodeDriversDoNotChange(t *testing.T) {
	r := CSINodes()
	old := &storagev1.CSINode{Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "a.example.com", NodeID: "n"}}}}
	grown := old.DeepCopy()
	grown.Spec.Drivers = append(grown.Spec.Drivers, storagev1.CSINodeDriver{Name: "b.example.com", NodeID: "n"})
	grown.Spec.Drivers[0].Allocatable = &storagev1.VolumeNodeResources{Count: ptr.To(int32(4))}
	if got := updateErrors(r, grown, old); got != "" {
		t.Error(got)
	}
	grown.Spec.Drivers[0].NodeID = "m"
	if got := updateErrors(r, grown, old); !strings.Contains(got, "field is immutable") {
		t.Errorf("got %q", got)
	}
}

func TestAttachments(t *testing.T) {
	r := VolumeAttachments()
	attachment := &storagev1.VolumeAttachment{Spec: storagev1.VolumeAttachmentSpec{Attacher: "a.example.com", NodeName: "n", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To("pv")}}}
	if got := errorsOf(r, attachment); got != "" {
		t.Error(got)
	}
	moved := attachment.DeepCopy()
	moved.Spec.NodeName = "m"
	if got := updateErrors(r, moved, attachment); !strings.HasPrefix(got, "spec: Invalid value: ") {
		t.Error(got)
	}
	reported := moved.DeepCopy()
	reported.Status.Attached = true
	sub := r.Subresources[0].Update
	sub.PrepareForUpdate(context.Background(), reported, attachment)
	if reported.Spec.NodeName != "n" || !reported.Status.Attached {
		t.Errorf("attachment is %+v", reported)
	}
	none := attachment.DeepCopy()
	none.Spec.Source = storagev1.VolumeAttachmentSource{}
	if got, want := errorsOf(r, none), "spec.source: Required value: must specify exactly one of inlineVolumeSpec and persistentVolumeName"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestCapacities(t *testing.T) {
	r := CSIStorageCapacities()
	capacity := &storagev1.CSIStorageCapacity{StorageClassName: "fast", Capacity: ptr.To(resource.MustParse("1Gi"))}
	if got := errorsOf(r, capacity); got != "" {
		t.Error(got)
	}
	moved := capacity.DeepCopy()
	moved.StorageClassName = "slow"
	if got, want := updateErrors(r, moved, capacity), `storageClassName: Invalid value: "slow": field is immutable`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestAttributesClasses(t *testing.T) {
	r := VolumeAttributesClasses()
	if got, want := errorsOf(r, &storagev1.VolumeAttributesClass{DriverName: "a.example.com"}), "parameters: Required value: must contain at least one key/value pair"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
