// Package batch has the kinds of the batch group, v1.
package batch

import (
	"context"
	"fmt"
	"maps"
	"math"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

var v1 = batchv1.SchemeGroupVersion

func readWrite() []string { return []string{"get", "patch", "update"} }

// The labels that tie pods to their job, in both spellings.
const (
	legacyJobName       = "job-name"
	legacyControllerUID = "controller-uid"
)

// Jobs run pods to completion.
func Jobs() *registry.Resource {
	doc := batchv1.JobSpec{}.SwaggerDoc()
	status := jobBehaviour()
	status.PrepareForUpdate = func(_ context.Context, obj, old *batchv1.Job) { obj.Spec = old.Spec }
	status.ValidateUpdate = validateJobStatus
	status.ResetFields = []string{"spec"}
	status.SpecOf, status.Warnings = nil, nil
	return registry.Define(registry.Definition[*batchv1.Job]{
		GroupVersion: v1, Resource: "jobs", Kind: "Job", Singular: "job", Categories: []string{"all"}, Namespaced: true,
		New:       func() *batchv1.Job { return &batchv1.Job{} },
		NewList:   func() runtime.Object { return &batchv1.JobList{} },
		KeyPrefix: "/registry/jobs",
		Fields: func(obj *batchv1.Job) fields.Set {
			return fields.Set{"status.successful": strconv.Itoa(int(obj.Status.Succeeded))}
		},
		Strategy: jobBehaviour(),
		Columns: append([]metav1.TableColumnDefinition{
			table.Name(),
			table.String("Status", "Status of the job."),
			table.String("Completions", batchv1.JobStatus{}.SwaggerDoc()["succeeded"]),
			table.String("Duration", "Time required to complete the job."),
			table.Age(),
		}, append(table.ContainerColumns(), table.Wide(table.String("Selector", doc["selector"])))...),
		Row: jobRow,
		Subresources: []registry.Subresource{
			{Name: "status", Verbs: readWrite(), Update: registry.Erase(status)},
		},
	})
}

func jobRow(obj *batchv1.Job) []any {
	completions := fmt.Sprintf("%d/1", obj.Status.Succeeded)
	if obj.Spec.Completions != nil {
		completions = fmt.Sprintf("%d/%d", obj.Status.Succeeded, *obj.Spec.Completions)
	} else if p := table.Value(obj.Spec.Parallelism); p > 1 {
		completions = fmt.Sprintf("%d/1 of %d", obj.Status.Succeeded, p)
	}
	took := ""
	if start := obj.Status.StartTime; start != nil {
		took = table.Since(*start)
		if end := obj.Status.CompletionTime; end != nil {
			took = duration.HumanDuration(end.Sub(start.Time))
		}
	}
	names, images := table.Containers(obj.Spec.Template.Spec.Containers)
	return []any{obj.Name, jobStatus(obj), completions, took, table.Since(obj.CreationTimestamp), names, images, table.Selector(obj.Spec.Selector)}
}

func jobStatus(obj *batchv1.Job) string {
	has := func(kind batchv1.JobConditionType) bool {
		for _, c := range obj.Status.Conditions {
			if c.Type == kind {
				return c.Status == corev1.ConditionTrue
			}
		}
		return false
	}
	switch {
	case has(batchv1.JobComplete):
		return "Complete"
	case has(batchv1.JobFailed):
		return "Failed"
	case !obj.DeletionTimestamp.IsZero():
		return "Terminating"
	case has(batchv1.JobSuspended):
		return "Suspended"
	case has(batchv1.JobFailureTarget):
		return "FailureTarget"
	case has(batchv1.JobSuccessCriteriaMet):
		return "SuccessCriteriaMet"
	}
	return "Running"
}

func jobBehaviour() registry.Behaviour[*batchv1.Job] {
	return registry.Behaviour[*batchv1.Job]{
		Default: defaultJob,
		PrepareForCreate: func(_ context.Context, obj *batchv1.Job) {
			obj.Status = batchv1.JobStatus{}
			generateSelector(obj)
			podspec.DropDisabled(&obj.Spec.Template.Spec, nil)
			defaultJob(obj) // a job without labels has those that its template was just given
		},
		PrepareForUpdate: func(_ context.Context, obj, old *batchv1.Job) {
			obj.Status = old.Status
			podspec.DropDisabled(&obj.Spec.Template.Spec, &old.Spec.Template.Spec)
		},
		Validate:       func(_ context.Context, obj *batchv1.Job) field.ErrorList { return validateJob(obj) },
		ValidateUpdate: func(_ context.Context, obj, old *batchv1.Job) field.ErrorList { return validateJobUpdate(obj, old) },
		Warnings: func(_ context.Context, obj, old *batchv1.Job) []string {
			var was *corev1.PodTemplateSpec
			if old != nil {
				was = &old.Spec.Template
			}
			return podspec.TemplateWarnings(&obj.Spec.Template, was, field.NewPath("spec", "template"))
		},
		SpecOf:             func(obj *batchv1.Job) any { return &obj.Spec },
		DefaultPropagation: metav1.DeletePropagationOrphan,
		ResetFields:        []string{"status"},
	}
}

func defaultJob(obj *batchv1.Job) {
	defaultJobSpec(&obj.Spec)
	spec := &obj.Spec
	if spec.Completions == nil && spec.Parallelism == nil {
		spec.Completions, spec.Parallelism = ptr.To(int32(1)), ptr.To(int32(1))
	}
	if spec.Parallelism == nil {
		spec.Parallelism = ptr.To(int32(1))
	}
	if spec.BackoffLimit == nil {
		spec.BackoffLimit = ptr.To(int32(6))
		if spec.BackoffLimitPerIndex != nil {
			spec.BackoffLimit = ptr.To(int32(math.MaxInt32))
		}
	}
	if len(obj.Labels) == 0 && spec.Template.Labels != nil {
		obj.Labels = spec.Template.Labels
	}
	if spec.CompletionMode == nil {
		spec.CompletionMode = ptr.To(batchv1.NonIndexedCompletion)
	}
	if spec.Suspend == nil {
		spec.Suspend = ptr.To(false)
	}
	if spec.PodReplacementPolicy == nil {
		spec.PodReplacementPolicy = ptr.To(batchv1.TerminatingOrFailed)
		if spec.PodFailurePolicy != nil {
			spec.PodReplacementPolicy = ptr.To(batchv1.Failed)
		}
	}
}

// defaultJobSpec sets what a CronJob's template has set as well.
func defaultJobSpec(spec *batchv1.JobSpec) {
	podspec.Default(&spec.Template.Spec)
	if spec.PodFailurePolicy == nil {
		return
	}
	for i := range spec.PodFailurePolicy.Rules {
		conditions := spec.PodFailurePolicy.Rules[i].OnPodConditions
		for j := range conditions {
			if conditions[j].Status == "" {
				conditions[j].Status = corev1.ConditionTrue
			}
		}
	}
}

// generateSelector ties the job to pods by its UID, which no other job has.
func generateSelector(obj *batchv1.Job) {
	if table.Value(obj.Spec.ManualSelector) {
		return
	}
	template := &obj.Spec.Template
	if template.Labels == nil {
		template.Labels = map[string]string{}
	} else {
		template.Labels = maps.Clone(template.Labels) // the job's own labels may be the same map
	}
	for key, value := range jobLabels(obj) {
		if _, set := template.Labels[key]; !set {
			template.Labels[key] = value
		}
	}
	if obj.Spec.Selector == nil {
		obj.Spec.Selector = &metav1.LabelSelector{}
	}
	if obj.Spec.Selector.MatchLabels == nil {
		obj.Spec.Selector.MatchLabels = map[string]string{}
	}
	if _, set := obj.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel]; !set {
		obj.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel] = string(obj.UID)
	}
}

func jobLabels(obj *batchv1.Job) map[string]string {
	return map[string]string{
		batchv1.JobNameLabel: obj.Name, legacyJobName: obj.Name,
		batchv1.ControllerUidLabel: string(obj.UID), legacyControllerUID: string(obj.UID),
	}
}
