package batch

import (
	"context"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func jobSpec() batchv1.JobSpec {
	return batchv1.JobSpec{Template: corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "x"}},
		Spec:       corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "c:1"}}},
	}}
}

// newJob is a job as the engine has it before validation.
func newJob(change func(*batchv1.Job)) *batchv1.Job {
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "j", UID: "u"}, Spec: jobSpec()}
	change(job)
	r := Jobs()
	r.Strategy.Default(job)
	r.Strategy.PrepareForCreate(context.Background(), job)
	return job
}

func TestJobGetsASelectorOfItsOwn(t *testing.T) {
	job := newJob(func(*batchv1.Job) {})
	if errs := validateJob(job); len(errs) > 0 {
		t.Fatal(errs)
	}
	if job.Spec.Selector.MatchLabels["batch.kubernetes.io/controller-uid"] != "u" || job.Spec.Template.Labels["job-name"] != "j" || job.Labels["job-name"] != "" || job.Labels["app"] != "x" {
		t.Errorf("job is %+v", job)
	}
	if *job.Spec.Completions != 1 || *job.Spec.Parallelism != 1 || *job.Spec.BackoffLimit != 6 || *job.Spec.CompletionMode != "NonIndexed" {
		t.Errorf("spec is %+v", job.Spec)
	}
}

func TestJobRefusals(t *testing.T) {
	for want, change := range map[string]func(*batchv1.Job){
		`spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"`: func(j *batchv1.Job) { j.Spec.Template.Spec.RestartPolicy = "" },
		"spec.parallelism: Invalid value: -1: must be greater than or equal to 0":              func(j *batchv1.Job) { j.Spec.Parallelism = ptr.To(int32(-1)) },
		"spec.completions: Required value: when completion mode is Indexed": func(j *batchv1.Job) {
			j.Spec.CompletionMode, j.Spec.Parallelism = ptr.To(batchv1.IndexedCompletion), ptr.To(int32(1))
		},
		"`selector` not auto-generated": func(j *batchv1.Job) {
			j.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
		},
		"specifying one of OnExitCodes and OnPodConditions is required": func(j *batchv1.Job) {
			j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{Action: "Ignore"}}}
		},
		`error parsing succeededIndexes: too large index: "1-9"`: func(j *batchv1.Job) {
			j.Spec.CompletionMode, j.Spec.Completions = ptr.To(batchv1.IndexedCompletion), ptr.To(int32(3))
			j.Spec.SuccessPolicy = &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{SucceededIndexes: ptr.To("1-9")}}}
		},
	} {
		if errs := validateJob(newJob(change)); len(errs) == 0 || !strings.Contains(errs.ToAggregate().Error(), want) {
			t.Errorf("got %v, want %s", errs, want)
		}
	}
}

func TestJobUpdates(t *testing.T) {
	old := newJob(func(*batchv1.Job) {})
	now := old.DeepCopy()
	now.Spec.Parallelism, now.Spec.Suspend = ptr.To(int32(3)), ptr.To(true)
	if errs := validateJobUpdate(now, old); len(errs) > 0 {
		t.Error(errs)
	}
	now.Spec.Template.Spec.NodeSelector = map[string]string{"a": "b"}
	if errs := validateJobUpdate(now, old); len(errs) != 1 || !strings.Contains(errs[0].Error(), "spec.template: Invalid value") {
		t.Errorf("a running job's template changed: %v", errs)
	}
	suspended := newJob(func(j *batchv1.Job) { j.Spec.Suspend = ptr.To(true) })
	now = suspended.DeepCopy()
	now.Spec.Template.Spec.NodeSelector = map[string]string{"a": "b"}
	if errs := validateJobUpdate(now, suspended); len(errs) > 0 {
		t.Errorf("a suspended job is told where to run: %v", errs)
	}
}

func TestSchedules(t *testing.T) {
	for schedule, want := range map[string]string{
		"* * * * *": "", "*/5 0-6,12 1 jan-mar MON": "", "@hourly": "", "@every 1h30m": "", "0 0 ? * 0": "",
		"* * * *":       "expected exactly 5 fields, found 4: [* * * *]",
		"60 * * * *":    "end of range (60) above maximum (59): 60",
		"* * 0 * *":     "beginning of range (0) below minimum (1): 0",
		"5-1 * * * *":   "beginning of range (5) beyond end of range (1): 5-1",
		"*/0 * * * *":   "step of range should be a positive number: */0",
		"1-2-3 * * * *": "too many hyphens: 1-2-3",
		"x * * * *":     `failed to parse int from x: strconv.Atoi: parsing "x": invalid syntax`,
		"@sometimes":    "unrecognized descriptor: @sometimes",
	} {
		got := ""
		if err := parseSchedule(schedule); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %q, want %q", schedule, got, want)
		}
	}
}

func TestCronJobs(t *testing.T) {
	r := CronJobs()
	cron := func(change func(*batchv1.CronJob)) string {
		c := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: batchv1.CronJobSpec{Schedule: "0 * * * *", JobTemplate: batchv1.JobTemplateSpec{Spec: jobSpec()}}}
		change(c)
		r.Strategy.Default(c)
		if err := r.Strategy.Validate(context.Background(), c).ToAggregate(); err != nil {
			return err.Error()
		}
		return ""
	}
	for want, change := range map[string]func(*batchv1.CronJob){
		"": func(*batchv1.CronJob) {},
		"metadata.name: Invalid value: \"" + strings.Repeat("x", 53) + "\": must be no more than 52 characters": func(c *batchv1.CronJob) { c.Name = strings.Repeat("x", 53) },
		"spec.schedule: Required value": func(c *batchv1.CronJob) { c.Spec.Schedule = "" },
		`spec.timeZone: Invalid value: "Nowhere/City": unknown time zone Nowhere/City`:                                       func(c *batchv1.CronJob) { c.Spec.TimeZone = ptr.To("Nowhere/City") },
		`spec.timeZone: Invalid value: "../etc": unknown time zone ../etc`:                                                   func(c *batchv1.CronJob) { c.Spec.TimeZone = ptr.To("../etc") },
		`spec.schedule: Invalid value: "TZ=UTC 0 * * * *": cannot use TZ or CRON_TZ in schedule, use timeZone field instead`: func(c *batchv1.CronJob) { c.Spec.Schedule = "TZ=UTC 0 * * * *" },
	} {
		if got := cron(change); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
