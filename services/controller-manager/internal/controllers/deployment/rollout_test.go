package deployment_test

import (
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/sampan-io/sampan/services/controller-manager/internal/controllers/deployment"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// world is a Deployment with its ReplicaSets, on which plans are carried out, in
// part only where the controller is killed.
type world struct {
	d      *appsv1.Deployment
	sets   []*appsv1.ReplicaSet
	now    time.Time
	serial int
}

func newWorld(replicas int32, surge, unavailable intstr.IntOrString) *world {
	labels := map[string]string{"app": "web"}
	history, deadline := int32(2), int32(600)
	return &world{now: start, d: &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "d", Generation: 1},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels}, RevisionHistoryLimit: &history, ProgressDeadlineSeconds: &deadline,
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &unavailable}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "v1"}}}},
		},
	}}
}

func (w *world) decide() deployment.Plan {
	return deployment.Decide(deployment.State{Deployment: w.d, Sets: w.sets, Now: w.now, OldPodsRunning: func(newest *appsv1.ReplicaSet) bool {
		for _, rs := range w.sets {
			if (newest == nil || rs.UID != newest.UID) && rs.Status.Replicas > 0 {
				return true
			}
		}
		return false
	}})
}

// carryOut does the first steps of plan and returns how many there were.
func (w *world) carryOut(plan deployment.Plan, steps int) int {
	done := 0
	do := func(step func()) {
		if done < steps {
			step()
		}
		done++
	}
	if plan.Create != nil {
		do(func() {
			w.serial++
			made := plan.Create.DeepCopy()
			made.UID = types.UID(fmt.Sprint("rs-", w.serial))
			made.CreationTimestamp = metav1.NewTime(start.Add(time.Duration(w.serial) * time.Second))
			made.Generation = 1
			w.sets = append(w.sets, made)
		})
	}
	for _, resize := range plan.Update {
		do(func() {
			rs := w.set(resize.Set.UID)
			if *rs.Spec.Replicas != *resize.Set.Spec.Replicas {
				rs.Generation++
			}
			rs.Spec, rs.Annotations = resize.Set.Spec, resize.Set.Annotations
		})
	}
	for _, gone := range plan.Delete {
		do(func() {
			var kept []*appsv1.ReplicaSet
			for _, rs := range w.sets {
				if rs.UID != gone.UID {
					kept = append(kept, rs)
				}
			}
			w.sets = kept
		})
	}
	if plan.Deployment != nil {
		do(func() { w.d.Status, w.d.Annotations = plan.Deployment.Status, plan.Deployment.Annotations })
	}
	return done
}

func (w *world) set(uid types.UID) *appsv1.ReplicaSet {
	for _, rs := range w.sets {
		if rs.UID == uid {
			return rs
		}
	}
	panic("no such set")
}

// run lets the ReplicaSet controller and the nodes work on rs: all pods that are
// asked for exist, up to ready of them are available.
func (w *world) run(rs *appsv1.ReplicaSet, ready int32) {
	rs.Status.Replicas = *rs.Spec.Replicas
	rs.Status.AvailableReplicas = min(max(rs.Status.AvailableReplicas, ready), rs.Status.Replicas)
	rs.Status.ReadyReplicas = rs.Status.AvailableReplicas
	rs.Status.ObservedGeneration = rs.Generation
}

func (w *world) roll(image string) {
	w.d.Spec.Template.Spec.Containers[0].Image = image
	w.d.Generation++
}

func (w *world) asked() (n int32) {
	for _, rs := range w.sets {
		n += *rs.Spec.Replicas
	}
	return n
}

// running counts the pods that are there.
func (w *world) running() (n int32) {
	for _, rs := range w.sets {
		n += rs.Status.Replicas
	}
	return n
}

// available counts what stays available: shrinking takes unready pods first.
func (w *world) available() (n int32) {
	for _, rs := range w.sets {
		n += min(rs.Status.AvailableReplicas, *rs.Spec.Replicas)
	}
	return n
}

// settle works without faults until nothing is left to do.
func (w *world) settle(fail func(format string, args ...any)) {
	for range 200 {
		for _, rs := range w.sets {
			w.run(rs, *rs.Spec.Replicas)
		}
		if w.carryOut(w.decide(), 1000) == 0 {
			return
		}
	}
	fail("the rollout does not settle: %+v", w.decide())
}

// TestDeploymentNeverOvershootsAcrossKills rolls out again and again while the
// controller is killed between any two of its writes.
func TestDeploymentNeverOvershootsAcrossKills(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		replicas := rapid.Int32Range(0, 12).Draw(t, "replicas")
		surge := rapid.Int32Range(0, 4).Draw(t, "surge")
		unavailable := rapid.Int32Range(0, 4).Draw(t, "unavailable")
		w := newWorld(replicas, intstr.FromInt32(surge), intstr.FromInt32(unavailable))
		w.settle(t.Fatalf)
		if surge == 0 && unavailable == 0 {
			unavailable = 1
		}
		version := 1
		t.Repeat(map[string]func(*rapid.T){
			"decide": func(t *rapid.T) {
				w.carryOut(w.decide(), rapid.IntRange(0, 4).Draw(t, "steps before the kill"))
			},
			"run": func(t *rapid.T) {
				rs := rapid.SampledFrom(w.sets).Draw(t, "set")
				w.run(rs, rapid.Int32Range(0, *rs.Spec.Replicas).Draw(t, "ready"))
			},
			"roll": func(t *rapid.T) {
				version = rapid.IntRange(1, 5).Draw(t, "version") // back to an old one too
				w.roll(fmt.Sprint("v", version))
			},
			"": func(t *rapid.T) {
				if n := w.asked(); n > replicas+surge {
					t.Fatalf("%d replicas are asked for, %d and a surge of %d are allowed", n, replicas, surge)
				}
				if n := w.running(); n > replicas+surge {
					t.Fatalf("%d pods are there, %d and a surge of %d are allowed", n, replicas, surge)
				}
				if n := w.available(); n < replicas-unavailable {
					t.Fatalf("%d replicas are available of %d with %d unavailable allowed", n, replicas, unavailable)
				}
			},
		})
		w.settle(t.Fatalf)
		current := 0
		for _, rs := range w.sets {
			wants := int32(0)
			if rs.Spec.Template.Spec.Containers[0].Image == w.d.Spec.Template.Spec.Containers[0].Image {
				wants, current = replicas, current+1
			}
			if *rs.Spec.Replicas != wants {
				t.Fatalf("set of %s ends with %d replicas, not %d", rs.Spec.Template.Spec.Containers[0].Image, *rs.Spec.Replicas, wants)
			}
		}
		if current != 1 || len(w.sets) > 3 {
			t.Fatalf("%d sets have the current template, and %d are kept beyond a history of 2", current, len(w.sets))
		}
	})
}

func mustSettle(t *testing.T, w *world) {
	t.Helper()
	w.settle(t.Fatalf)
}

func (w *world) byImage(image string) *appsv1.ReplicaSet {
	for _, rs := range w.sets {
		if rs.Spec.Template.Spec.Containers[0].Image == image {
			return rs
		}
	}
	return nil
}

func TestDeploymentNamesReplicaSetsAsUpstream(t *testing.T) {
	w := newWorld(1, intstr.FromInt32(1), intstr.FromInt32(0))
	plan := w.decide()
	hash := plan.Create.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
	if plan.Create.Name != "web-"+hash || plan.Create.Spec.Selector.MatchLabels[appsv1.DefaultDeploymentUniqueLabelKey] != hash || plan.Create.Spec.Template.Labels[appsv1.DefaultDeploymentUniqueLabelKey] != hash {
		t.Errorf("set %s has hash %s, selector %v", plan.Create.Name, hash, plan.Create.Spec.Selector)
	}
	again := w.decide()
	if again.Create.Name != plan.Create.Name {
		t.Errorf("the same template gave %s and %s", plan.Create.Name, again.Create.Name)
	}
	collisions := int32(1)
	w.d.Status.CollisionCount = &collisions
	if other := w.decide(); other.Create.Name == plan.Create.Name {
		t.Error("a collision does not change the name")
	}
}

func TestDeploymentRollbackRaisesTheRevisionOfTheOldSet(t *testing.T) {
	w := newWorld(3, intstr.FromInt32(1), intstr.FromInt32(0))
	mustSettle(t, w)
	w.roll("v2")
	mustSettle(t, w)
	w.roll("v1")
	mustSettle(t, w)
	annotations := w.byImage("v1").Annotations
	if annotations["deployment.kubernetes.io/revision"] != "3" || annotations["deployment.kubernetes.io/revision-history"] != "1" {
		t.Errorf("annotations are %v", annotations)
	}
	if w.d.Annotations["deployment.kubernetes.io/revision"] != "3" || len(w.sets) != 2 {
		t.Errorf("deployment has %v and %d sets", w.d.Annotations, len(w.sets))
	}
}

func TestDeploymentScalesProportionallyDuringRollout(t *testing.T) {
	w := newWorld(10, intstr.FromInt32(3), intstr.FromInt32(2))
	mustSettle(t, w)
	w.roll("bad")
	for range 20 { // pods of the new template never become available
		w.carryOut(w.decide(), 1000)
		for _, rs := range w.sets {
			w.run(rs, 0)
		}
	}
	old, fresh := *w.byImage("v1").Spec.Replicas, *w.byImage("bad").Spec.Replicas
	if old != 8 || fresh != 5 {
		t.Fatalf("the stuck rollout is at %d old and %d new, want 8 and 5", old, fresh)
	}
	thirty := int32(15)
	w.d.Spec.Replicas = &thirty
	w.d.Generation++
	w.carryOut(w.decide(), 1000)
	if old, fresh = *w.byImage("v1").Spec.Replicas, *w.byImage("bad").Spec.Replicas; old != 11 || fresh != 7 {
		t.Errorf("scaled to 15 it is at %d old and %d new, want 11 and 7", old, fresh)
	}
}

func TestDeploymentPausedOnlyScales(t *testing.T) {
	w := newWorld(3, intstr.FromInt32(1), intstr.FromInt32(0))
	mustSettle(t, w)
	w.d.Spec.Paused = true
	w.roll("v2")
	five := int32(5)
	w.d.Spec.Replicas = &five
	mustSettle(t, w)
	if w.byImage("v2") != nil || *w.byImage("v1").Spec.Replicas != 5 {
		t.Errorf("a paused deployment rolled out, or did not scale: %d sets", len(w.sets))
	}
	if c := progressing(w.d); c == nil || c.Reason != "DeploymentPaused" || c.Status != corev1.ConditionUnknown {
		t.Errorf("condition is %+v", c)
	}
	w.d.Spec.Paused = false
	w.d.Generation++
	mustSettle(t, w)
	if *w.byImage("v2").Spec.Replicas != 5 {
		t.Error("resumed, it did not roll out")
	}
}

func progressing(d *appsv1.Deployment) *appsv1.DeploymentCondition {
	for i := range d.Status.Conditions {
		if d.Status.Conditions[i].Type == appsv1.DeploymentProgressing {
			return &d.Status.Conditions[i]
		}
	}
	return nil
}

func TestDeploymentReportsAStuckRollout(t *testing.T) {
	w := newWorld(2, intstr.FromInt32(1), intstr.FromInt32(0))
	mustSettle(t, w)
	if c := progressing(w.d); c.Reason != "NewReplicaSetAvailable" || c.Status != corev1.ConditionTrue {
		t.Fatalf("after the first rollout it says %+v", c)
	}
	w.roll("bad")
	var plan deployment.Plan
	for range 10 {
		plan = w.decide()
		w.carryOut(plan, 1000)
		for _, rs := range w.sets {
			w.run(rs, 0)
		}
	}
	if wait := plan.RequeueAfter; wait < 9*time.Minute || wait > 11*time.Minute {
		t.Errorf("it looks again after %v, the deadline is 10 minutes", wait)
	}
	w.now = w.now.Add(11 * time.Minute)
	w.carryOut(w.decide(), 1000)
	if c := progressing(w.d); c.Reason != "ProgressDeadlineExceeded" || c.Status != corev1.ConditionFalse {
		t.Errorf("after the deadline it says %+v", c)
	}
}

func TestDeploymentRecreateWaitsForTheLastOldPod(t *testing.T) {
	w := newWorld(3, intstr.FromInt32(1), intstr.FromInt32(0))
	w.d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	mustSettle(t, w)
	w.roll("v2")
	w.carryOut(w.decide(), 1000)
	if w.byImage("v2") != nil || *w.byImage("v1").Spec.Replicas != 0 {
		t.Fatal("it did not begin by removing the old pods")
	}
	w.carryOut(w.decide(), 1000)
	if w.byImage("v2") != nil {
		t.Error("the new set was made while old pods run")
	}
	mustSettle(t, w)
	if *w.byImage("v2").Spec.Replicas != 3 {
		t.Error("the new set was not made once the old pods were gone")
	}
}
