package apps

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

func webLabels() map[string]string { return map[string]string{"app": "web"} }

func selector() *metav1.LabelSelector { return &metav1.LabelSelector{MatchLabels: webLabels()} }

func template() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: webLabels()},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "web:1"}, {Name: "d", Image: "log:2"}}},
	}
}

func meta() metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "default", Name: "web", CreationTimestamp: metav1.NewTime(time.Now().Add(-3 * time.Minute))}
}

func deployment(changes ...func(*appsv1.DeploymentSpec)) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: meta(), Spec: appsv1.DeploymentSpec{Selector: selector(), Template: template()}}
	for _, change := range changes {
		change(&d.Spec)
	}
	defaultDeployment(d)
	return d
}

func statefulSet(changes ...func(*appsv1.StatefulSetSpec)) *appsv1.StatefulSet {
	s := &appsv1.StatefulSet{ObjectMeta: meta(), Spec: appsv1.StatefulSetSpec{Selector: selector(), Template: template()}}
	for _, change := range changes {
		change(&s.Spec)
	}
	defaultStatefulSet(s)
	return s
}

func daemonSet(changes ...func(*appsv1.DaemonSetSpec)) *appsv1.DaemonSet {
	d := &appsv1.DaemonSet{ObjectMeta: meta(), Spec: appsv1.DaemonSetSpec{Selector: selector(), Template: template()}}
	for _, change := range changes {
		change(&d.Spec)
	}
	defaultDaemonSet(d)
	return d
}

func errorsOf(r *registry.Resource, obj, old runtime.Object) string {
	errs := r.Strategy.Validate(context.Background(), obj)
	if old != nil {
		errs = r.Strategy.ValidateUpdate(context.Background(), obj, old)
	}
	if err := errs.ToAggregate(); err != nil {
		return err.Error()
	}
	return ""
}

func TestDefaults(t *testing.T) {
	d := deployment().Spec
	if *d.Replicas != 1 || d.Strategy.Type != "RollingUpdate" || d.Strategy.RollingUpdate.MaxSurge.String() != "25%" || d.Strategy.RollingUpdate.MaxUnavailable.String() != "25%" ||
		*d.RevisionHistoryLimit != 10 || *d.ProgressDeadlineSeconds != 600 || d.Template.Spec.RestartPolicy != "Always" || d.Template.Spec.SchedulerName != "default-scheduler" {
		t.Errorf("deployment is %+v", d)
	}
	s := statefulSet(func(s *appsv1.StatefulSetSpec) { s.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{}} }).Spec
	if s.PodManagementPolicy != "OrderedReady" || *s.UpdateStrategy.RollingUpdate.Partition != 0 || s.PersistentVolumeClaimRetentionPolicy.WhenDeleted != "Retain" ||
		s.VolumeClaimTemplates[0].Status.Phase != "Pending" || s.VolumeClaimTemplates[0].Kind != "PersistentVolumeClaim" || *s.VolumeClaimTemplates[0].Spec.VolumeMode != "Filesystem" {
		t.Errorf("stateful set is %+v", s)
	}
	ds := daemonSet().Spec
	if ds.UpdateStrategy.Type != "RollingUpdate" || ds.UpdateStrategy.RollingUpdate.MaxUnavailable.IntVal != 1 || ds.UpdateStrategy.RollingUpdate.MaxSurge.IntVal != 0 {
		t.Errorf("daemon set is %+v", ds)
	}
}

func TestDeploymentRefusals(t *testing.T) {
	r := Deployments()
	zero := intstr.FromInt32(0)
	for want, d := range map[string]*appsv1.Deployment{
		"":                              deployment(),
		"spec.selector: Required value": deployment(func(s *appsv1.DeploymentSpec) { s.Selector = nil }),
		"spec.template.metadata.labels: Invalid value: {\"app\":\"web\"}: `selector` does not match template `labels`": deployment(func(s *appsv1.DeploymentSpec) { s.Selector.MatchLabels["app"] = "other" }),
		`spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"`:                     deployment(func(s *appsv1.DeploymentSpec) { s.Template.Spec.RestartPolicy = "Never" }),
		"spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in ReplicaSet is not Supported":    deployment(func(s *appsv1.DeploymentSpec) { s.Template.Spec.ActiveDeadlineSeconds = ptr.To(int64(5)) }),
		"spec.replicas: Invalid value: -1: must be greater than or equal to 0":                                         deployment(func(s *appsv1.DeploymentSpec) { s.Replicas = ptr.To(int32(-1)) }),
		"spec.progressDeadlineSeconds: Invalid value: 600: must be greater than minReadySeconds":                       deployment(func(s *appsv1.DeploymentSpec) { s.MinReadySeconds = 600 }),
		"spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'": deployment(func(s *appsv1.DeploymentSpec) {
			s.Strategy = appsv1.DeploymentStrategy{Type: "Recreate", RollingUpdate: &appsv1.RollingUpdateDeployment{}}
		}),
		"spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0": deployment(func(s *appsv1.DeploymentSpec) {
			s.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxUnavailable: &zero, MaxSurge: &zero}
		}),
		`spec.strategy.rollingUpdate.maxUnavailable: Invalid value: "101%": must not be greater than 100%`: deployment(func(s *appsv1.DeploymentSpec) {
			s.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxUnavailable: ptr.To(intstr.FromString("101%"))}
		}),
		"spec.template.spec.containers: Required value": deployment(func(s *appsv1.DeploymentSpec) { s.Template.Spec.Containers = nil }),
	} {
		if got := errorsOf(r, d, nil); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	moved := deployment(func(s *appsv1.DeploymentSpec) {
		s.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "b"}}
		s.Template.Labels = map[string]string{"app": "b"}
	})
	if got := errorsOf(r, moved, deployment()); !strings.Contains(got, "spec.selector: Invalid value: ") || !strings.Contains(got, "field is immutable") {
		t.Errorf("got %q", got)
	}
}

func TestStatefulSetRefusals(t *testing.T) {
	r := StatefulSets()
	for want, s := range map[string]*appsv1.StatefulSet{
		"": statefulSet(func(s *appsv1.StatefulSetSpec) { s.RevisionHistoryLimit = ptr.To(int32(-1)) }),
		`spec.podManagementPolicy: Invalid value: "Chaos": must be 'OrderedReady' or 'Parallel'`: statefulSet(func(s *appsv1.StatefulSetSpec) { s.PodManagementPolicy = "Chaos" }),
		"spec.updateStrategy.rollingUpdate.partition: Invalid value: -1: must be greater than or equal to 0": statefulSet(func(s *appsv1.StatefulSetSpec) {
			s.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: ptr.To(int32(-1))}
		}),
		`spec.persistentVolumeClaimRetentionPolicy.whenScaled: Unsupported value: "Burn": supported values: "Retain", "Delete"`: statefulSet(func(s *appsv1.StatefulSetSpec) {
			s.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{WhenScaled: "Burn"}
		}),
	} {
		if got := errorsOf(r, s, nil); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	grown := statefulSet(func(s *appsv1.StatefulSetSpec) { s.Replicas, s.MinReadySeconds = ptr.To(int32(5)), 3 })
	if got := errorsOf(r, grown, statefulSet()); got != "" {
		t.Error(got)
	}
	renamed := statefulSet(func(s *appsv1.StatefulSetSpec) { s.ServiceName = "other" })
	want := "spec: Forbidden: updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
	if got := errorsOf(r, renamed, statefulSet()); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	warnings := r.Strategy.Warnings(context.Background(), statefulSet(func(s *appsv1.StatefulSetSpec) { s.RevisionHistoryLimit = ptr.To(int32(-1)) }), nil)
	if len(warnings) != 1 || !strings.HasPrefix(warnings[0], "spec.revisionHistoryLimit: a negative value") {
		t.Errorf("warnings are %q", warnings)
	}
}

func TestDaemonSetRefusals(t *testing.T) {
	r := DaemonSets()
	one := intstr.FromInt32(1)
	for want, d := range map[string]*appsv1.DaemonSet{
		"": daemonSet(),
		"spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: 1: may not be set when maxUnavailable is non-zero": daemonSet(func(s *appsv1.DaemonSetSpec) {
			s.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &one, MaxSurge: &one}
		}),
		`spec.updateStrategy: Unsupported value: "Never": supported values: `: daemonSet(func(s *appsv1.DaemonSetSpec) { s.UpdateStrategy.Type = "Never" }),
	} {
		if got := errorsOf(r, d, nil); !strings.Contains(got, want) || (want == "" && got != "") {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestRevisions(t *testing.T) {
	r := ControllerRevisions()
	old := &appsv1.ControllerRevision{Revision: 1, Data: runtime.RawExtension{Raw: []byte(`{"a":1}`)}}
	if got := errorsOf(r, old, nil); got != "" {
		t.Error(got)
	}
	if got, want := errorsOf(r, &appsv1.ControllerRevision{Revision: -1}, nil), "[revision: Invalid value: -1: must be greater than or equal to 0, data: Required value: data is mandatory]"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	changed := old.DeepCopy()
	changed.Data.Raw = []byte(`{"a":2}`)
	if got := errorsOf(r, changed, old); !strings.Contains(got, "field is immutable") {
		t.Errorf("got %q", got)
	}
}

func TestStatusAndSpecStayApart(t *testing.T) {
	ctx := context.Background()
	r := Deployments()
	old := deployment()
	old.Status.Replicas = 2
	now := deployment(func(s *appsv1.DeploymentSpec) { s.Replicas = ptr.To(int32(7)) })
	now.Status.Replicas = 9
	r.Strategy.PrepareForUpdate(ctx, now, old)
	if now.Status.Replicas != 2 || *now.Spec.Replicas != 7 {
		t.Errorf("an update wrote %+v", now.Status)
	}
	now.Status.Replicas, now.Labels = 9, map[string]string{"x": "y"}
	status := r.Subresources[1].Update
	status.PrepareForUpdate(ctx, now, old)
	if now.Status.Replicas != 9 || *now.Spec.Replicas != 1 || now.Labels != nil {
		t.Errorf("a status update wrote %+v", now)
	}
	now.Status.AvailableReplicas = 10
	if err := status.ValidateUpdate(ctx, now, old).ToAggregate(); err == nil || !strings.Contains(err.Error(), "status.availableReplicas: Invalid value: 10: cannot be greater than status.replicas") {
		t.Errorf("got %v", err)
	}
	now.Status = appsv1.DeploymentStatus{}
	old.Status.CollisionCount = ptr.To(int32(1))
	if err := status.ValidateUpdate(ctx, now, old).ToAggregate(); err == nil || err.Error() != "status.collisionCount: Invalid value: 0: cannot be decremented" {
		t.Errorf("got %v", err)
	}
}

func TestScale(t *testing.T) {
	for _, r := range []*registry.Resource{Deployments(), ReplicaSets(), StatefulSets()} {
		scale := r.Subresources[0].Scale
		var obj runtime.Object
		switch r.Kind {
		case "Deployment":
			obj = deployment()
		case "StatefulSet":
			obj = statefulSet()
		default:
			obj = &appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Selector: selector(), Replicas: ptr.To(int32(1))}}
		}
		scale.SetReplicas(obj, 4)
		if spec, _ := scale.Replicas(obj); spec != 4 || scale.Selector(obj) != "app=web" {
			t.Errorf("%s: %d replicas of %q", r.Kind, spec, scale.Selector(obj))
		}
	}
}

func TestTables(t *testing.T) {
	d := deployment(func(s *appsv1.DeploymentSpec) { s.Replicas = ptr.To(int32(3)) })
	d.Status = appsv1.DeploymentStatus{ReadyReplicas: 2, UpdatedReplicas: 3, AvailableReplicas: 1}
	rs := &appsv1.ReplicaSet{ObjectMeta: meta(), Spec: appsv1.ReplicaSetSpec{Selector: selector(), Template: template(), Replicas: ptr.To(int32(3))}, Status: appsv1.ReplicaSetStatus{Replicas: 2, ReadyReplicas: 1}}
	s := statefulSet()
	s.Status.ReadyReplicas = 1
	ds := daemonSet(func(s *appsv1.DaemonSetSpec) { s.Template.Spec.NodeSelector = map[string]string{"os": "linux"} })
	ds.Status = appsv1.DaemonSetStatus{DesiredNumberScheduled: 5, CurrentNumberScheduled: 4, NumberReady: 3, UpdatedNumberScheduled: 2, NumberAvailable: 1}
	for _, c := range []struct {
		r    *registry.Resource
		obj  runtime.Object
		head string
		want []any
	}{
		{Deployments(), d, "Name Ready Up-to-date Available Age Containers Images Selector", []any{"web", "2/3", int64(3), int64(1), "3m", "c,d", "web:1,log:2", "app=web"}},
		{ReplicaSets(), rs, "Name Desired Current Ready Age Containers Images Selector", []any{"web", int64(3), int64(2), int64(1), "3m", "c,d", "web:1,log:2", "app=web"}},
		{StatefulSets(), s, "Name Ready Age Containers Images", []any{"web", "1/1", "3m", "c,d", "web:1,log:2"}},
		{DaemonSets(), ds, "Name Desired Current Ready Up-to-date Available Node Selector Age Containers Images Selector", []any{"web", int64(5), int64(4), int64(3), int64(2), int64(1), "os=linux", "3m", "c,d", "web:1,log:2", "app=web"}},
	} {
		var head []string
		for _, column := range c.r.Table.Columns {
			head = append(head, column.Name)
		}
		if got := strings.Join(head, " "); got != c.head {
			t.Errorf("%s: columns are %q, want %q", c.r.Kind, got, c.head)
		}
		if got := c.r.Table.Cells(c.obj, time.Now()); !slices.Equal(got, c.want) {
			t.Errorf("%s: row is %v, want %v", c.r.Kind, got, c.want)
		}
	}
}
