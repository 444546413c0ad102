package batch

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // time zones are known without the host having them

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/podspec"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// maxCronJobName leaves room for the 11 characters that its jobs' names add.
const maxCronJobName = 63 - 11

// CronJobs make jobs by the clock.
func CronJobs() *registry.Resource {
	doc, statusDoc := batchv1.CronJobSpec{}.SwaggerDoc(), batchv1.CronJobStatus{}.SwaggerDoc()
	status := cronJobBehaviour()
	status.PrepareForUpdate = func(_ context.Context, obj, old *batchv1.CronJob) { obj.Spec = old.Spec }
	status.ValidateUpdate = nil
	status.ResetFields = []string{"spec"}
	status.SpecOf, status.Warnings = nil, nil
	return registry.Define(registry.Definition[*batchv1.CronJob]{
		GroupVersion: v1, Resource: "cronjobs", Kind: "CronJob", Singular: "cronjob", ShortNames: []string{"cj"},
		Categories: []string{"all"}, Namespaced: true,
		New:       func() *batchv1.CronJob { return &batchv1.CronJob{} },
		NewList:   func() runtime.Object { return &batchv1.CronJobList{} },
		KeyPrefix: "/registry/cronjobs",
		Strategy:  cronJobBehaviour(),
		Columns: append([]metav1.TableColumnDefinition{
			table.Name(),
			table.String("Schedule", doc["schedule"]),
			table.String("Timezone", doc["timeZone"]),
			table.Boolean("Suspend", doc["suspend"]),
			table.Integer("Active", statusDoc["active"]),
			table.String("Last Schedule", statusDoc["lastScheduleTime"]),
			table.Age(),
		}, append(table.ContainerColumns(), table.Wide(table.String("Selector", batchv1.JobSpec{}.SwaggerDoc()["selector"])))...),
		Row: cronJobRow,
		Subresources: []registry.Subresource{
			{Name: "status", Verbs: readWrite(), Update: registry.Erase(status)},
		},
	})
}

func cronJobRow(obj *batchv1.CronJob) []any {
	last, zone, suspend := table.None, table.None, "<unset>"
	if t := obj.Status.LastScheduleTime; t != nil {
		last = table.Since(*t)
	}
	if obj.Spec.TimeZone != nil {
		zone = *obj.Spec.TimeZone
	}
	if obj.Spec.Suspend != nil {
		suspend = "False"
		if *obj.Spec.Suspend {
			suspend = "True"
		}
	}
	job := &obj.Spec.JobTemplate.Spec
	names, images := table.Containers(job.Template.Spec.Containers)
	return []any{
		obj.Name, obj.Spec.Schedule, zone, suspend, int64(len(obj.Status.Active)), last, table.Since(obj.CreationTimestamp),
		names, images, table.Selector(job.Selector),
	}
}

func cronJobBehaviour() registry.Behaviour[*batchv1.CronJob] {
	return registry.Behaviour[*batchv1.CronJob]{
		Default: defaultCronJob,
		PrepareForCreate: func(_ context.Context, obj *batchv1.CronJob) {
			obj.Status = batchv1.CronJobStatus{}
			podspec.DropDisabled(&obj.Spec.JobTemplate.Spec.Template.Spec, nil)
		},
		PrepareForUpdate: func(_ context.Context, obj, old *batchv1.CronJob) {
			obj.Status = old.Status
			podspec.DropDisabled(&obj.Spec.JobTemplate.Spec.Template.Spec, &old.Spec.JobTemplate.Spec.Template.Spec)
		},
		Validate: func(_ context.Context, obj *batchv1.CronJob) field.ErrorList {
			errs := validateCronJob(obj, nil)
			if len(obj.Name) > maxCronJobName {
				errs = append(errs, field.Invalid(field.NewPath("metadata").Child("name"), obj.Name, fmt.Sprintf("must be no more than %d characters", maxCronJobName)))
			}
			return errs
		},
		ValidateUpdate: func(_ context.Context, obj, old *batchv1.CronJob) field.ErrorList { return validateCronJob(obj, old) },
		Warnings:       warnOfCronJob,
		SpecOf:         func(obj *batchv1.CronJob) any { return &obj.Spec },
		ResetFields:    []string{"status"},
	}
}

func defaultCronJob(obj *batchv1.CronJob) {
	spec := &obj.Spec
	defaultJobSpec(&spec.JobTemplate.Spec)
	if spec.ConcurrencyPolicy == "" {
		spec.ConcurrencyPolicy = batchv1.AllowConcurrent
	}
	if spec.Suspend == nil {
		spec.Suspend = ptr.To(false)
	}
	if spec.SuccessfulJobsHistoryLimit == nil {
		spec.SuccessfulJobsHistoryLimit = ptr.To(int32(3))
	}
	if spec.FailedJobsHistoryLimit == nil {
		spec.FailedJobsHistoryLimit = ptr.To(int32(1))
	}
}

func validateCronJob(obj, old *batchv1.CronJob) field.ErrorList {
	spec, path := &obj.Spec, field.NewPath("spec")
	var errs field.ErrorList
	if spec.Schedule == "" {
		errs = append(errs, field.Required(path.Child("schedule"), ""))
	} else {
		errs = append(errs, validateSchedule(obj, old, path.Child("schedule"))...)
	}
	if s := spec.StartingDeadlineSeconds; s != nil {
		errs = append(errs, apivalidation.ValidateNonnegativeField(*s, path.Child("startingDeadlineSeconds"))...)
	}
	if old == nil || table.Value(old.Spec.TimeZone) != table.Value(spec.TimeZone) {
		errs = append(errs, validateTimeZone(spec.TimeZone, path.Child("timeZone"))...)
	}
	policies := []batchv1.ConcurrencyPolicy{batchv1.AllowConcurrent, batchv1.ForbidConcurrent, batchv1.ReplaceConcurrent}
	if spec.ConcurrencyPolicy == "" {
		errs = append(errs, field.Required(path.Child("concurrencyPolicy"), ""))
	} else if !slices.Contains(policies, spec.ConcurrencyPolicy) {
		errs = append(errs, field.NotSupported(path.Child("concurrencyPolicy"), spec.ConcurrencyPolicy, policies))
	}
	template := path.Child("jobTemplate", "spec")
	errs = append(errs, validateJobSpec(&spec.JobTemplate.Spec, template)...)
	if spec.JobTemplate.Spec.ManualSelector != nil {
		errs = append(errs, field.NotSupported(template.Child("manualSelector"), *spec.JobTemplate.Spec.ManualSelector, []string{"nil"}))
	}
	for name, limit := range map[string]*int32{"successfulJobsHistoryLimit": spec.SuccessfulJobsHistoryLimit, "failedJobsHistoryLimit": spec.FailedJobsHistoryLimit} {
		if limit != nil {
			errs = append(errs, apivalidation.ValidateNonnegativeField(int64(*limit), path.Child(name))...)
		}
	}
	return errs
}

func validateSchedule(obj, old *batchv1.CronJob, path *field.Path) field.ErrorList {
	schedule := obj.Spec.Schedule
	var errs field.ErrorList
	if err := parseSchedule(schedule); err != nil {
		errs = append(errs, field.Invalid(path, schedule, err.Error()))
	}
	zoned := strings.Contains(schedule, "TZ")
	switch {
	case zoned && obj.Spec.TimeZone != nil:
		errs = append(errs, field.Invalid(path, schedule, "cannot use both timeZone field and TZ or CRON_TZ in schedule"))
	case zoned && (old == nil || !strings.Contains(old.Spec.Schedule, "TZ")):
		errs = append(errs, field.Invalid(path, schedule, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"))
	}
	return errs
}

func validateTimeZone(zone *string, path *field.Path) field.ErrorList {
	switch {
	case zone == nil:
		return nil
	case *zone == "":
		return field.ErrorList{field.Invalid(path, zone, "timeZone must be nil or non-empty string")}
	case strings.EqualFold(*zone, "Local"):
		return field.ErrorList{field.Invalid(path, zone, "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones")}
	case strings.ContainsAny(*zone, ". \\") || strings.HasPrefix(*zone, "/"):
		return field.ErrorList{field.Invalid(path, zone, fmt.Sprintf("unknown time zone %s", *zone))}
	}
	if _, err := time.LoadLocation(*zone); err != nil {
		return field.ErrorList{field.Invalid(path, zone, err.Error())}
	}
	return nil
}

func warnOfCronJob(_ context.Context, obj, old *batchv1.CronJob) []string {
	var warnings []string
	if msgs := utilvalidation.IsDNS1123Label(obj.Name); old == nil && obj.Name != "" && len(msgs) > 0 {
		warnings = append(warnings, fmt.Sprintf("metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: %v", msgs))
	}
	var was *corev1.PodTemplateSpec
	if old != nil {
		was = &old.Spec.JobTemplate.Spec.Template
	}
	warnings = append(warnings, podspec.TemplateWarnings(&obj.Spec.JobTemplate.Spec.Template, was, field.NewPath("spec", "jobTemplate", "spec", "template"))...)
	if strings.Contains(obj.Spec.Schedule, "TZ") {
		warnings = append(warnings, fmt.Sprintf("%s is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details", field.NewPath("spec", "schedule")))
	}
	return warnings
}
