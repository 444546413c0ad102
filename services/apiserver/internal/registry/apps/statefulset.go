package apps

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// StatefulSets keep pods with names and volumes of their own.
func StatefulSets() *registry.Resource {
	status := statefulSetBehaviour()
	status.PrepareForUpdate = func(_ context.Context, obj, old *appsv1.StatefulSet) { obj.Spec = old.Spec }
	status.ValidateUpdate = validateStatefulSetStatus
	status.ResetFields = []string{"spec"}
	status.SpecOf, status.Warnings = nil, nil
	return registry.Define(registry.Definition[*appsv1.StatefulSet]{
		GroupVersion: v1, Resource: "statefulsets", Kind: "StatefulSet", Singular: "statefulset", ShortNames: []string{"sts"},
		Categories: []string{"all"}, Namespaced: true,
		New:       func() *appsv1.StatefulSet { return &appsv1.StatefulSet{} },
		NewList:   func() runtime.Object { return &appsv1.StatefulSetList{} },
		KeyPrefix: "/registry/statefulsets",
		Strategy:  statefulSetBehaviour(),
		Columns: append([]metav1.TableColumnDefinition{
			table.Name(), table.String("Ready", "Number of the pod with ready state"), table.Age(),
		}, table.ContainerColumns()...),
		Row: func(obj *appsv1.StatefulSet) []any {
			names, images := table.Containers(obj.Spec.Template.Spec.Containers)
			return []any{
				obj.Name, table.Fraction(obj.Status.ReadyReplicas, table.Value(obj.Spec.Replicas)), table.Since(obj.CreationTimestamp), names, images,
			}
		},
		Subresources: []registry.Subresource{
			{Name: "scale", Verbs: readWrite(), Scale: scaleOf(
				func(s *appsv1.StatefulSet) (*int32, int32) { return s.Spec.Replicas, s.Status.Replicas },
				func(s *appsv1.StatefulSet) *metav1.LabelSelector { return s.Spec.Selector },
				func(s *appsv1.StatefulSet, n int32) { s.Spec.Replicas = &n },
			)},
			{Name: "status", Verbs: readWrite(), Update: registry.Erase(status)},
		},
	})
}

func statefulSetBehaviour() registry.Behaviour[*appsv1.StatefulSet] {
	return registry.Behaviour[*appsv1.StatefulSet]{
		Default: defaultStatefulSet,
		PrepareForCreate: func(_ context.Context, obj *appsv1.StatefulSet) {
			obj.Status = appsv1.StatefulSetStatus{}
			podspec.DropDisabled(&obj.Spec.Template.Spec, nil)
		},
		PrepareForUpdate: func(_ context.Context, obj, old *appsv1.StatefulSet) {
			obj.Status = old.Status
			podspec.DropDisabled(&obj.Spec.Template.Spec, &old.Spec.Template.Spec)
		},
		Validate: func(_ context.Context, obj *appsv1.StatefulSet) field.ErrorList { return validateStatefulSet(obj) },
		ValidateUpdate: func(_ context.Context, obj, old *appsv1.StatefulSet) field.ErrorList {
			return validateStatefulSetUpdate(obj, old)
		},
		Warnings:    warnOfStatefulSet,
		SpecOf:      func(obj *appsv1.StatefulSet) any { return &obj.Spec },
		ResetFields: []string{"status"},
	}
}

func defaultStatefulSet(obj *appsv1.StatefulSet) {
	spec := &obj.Spec
	podspec.Default(&spec.Template.Spec)
	if spec.PodManagementPolicy == "" {
		spec.PodManagementPolicy = appsv1.OrderedReadyPodManagement
	}
	if spec.UpdateStrategy.Type == "" {
		spec.UpdateStrategy.Type = appsv1.RollingUpdateStatefulSetStrategyType
		if spec.UpdateStrategy.RollingUpdate == nil {
			spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{}
		}
	}
	if r := spec.UpdateStrategy.RollingUpdate; r != nil && spec.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType {
		if r.Partition == nil {
			r.Partition = ptr.To(int32(0))
		}
		if r.MaxUnavailable == nil {
			r.MaxUnavailable = ptr.To(intstr.FromInt32(1))
		}
	}
	if spec.PersistentVolumeClaimRetentionPolicy == nil {
		spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{}
	}
	if p := spec.PersistentVolumeClaimRetentionPolicy; p.WhenDeleted == "" {
		p.WhenDeleted = appsv1.RetainPersistentVolumeClaimRetentionPolicyType
	}
	if p := spec.PersistentVolumeClaimRetentionPolicy; p.WhenScaled == "" {
		p.WhenScaled = appsv1.RetainPersistentVolumeClaimRetentionPolicyType
	}
	if spec.Replicas == nil {
		spec.Replicas = ptr.To(int32(1))
	}
	if spec.RevisionHistoryLimit == nil {
		spec.RevisionHistoryLimit = ptr.To(int32(10))
	}
	for i := range spec.VolumeClaimTemplates {
		claim := &spec.VolumeClaimTemplates[i]
		podspec.DefaultClaim(&claim.Spec)
		if claim.Status.Phase == "" {
			claim.Status.Phase = corev1.ClaimPending
		}
		claim.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"))
	}
}
