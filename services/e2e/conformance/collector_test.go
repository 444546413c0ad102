package conformance

import (
	"context"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var garbageCollector = map[string]func(*testing.T){
	"should delete RS created by deployment when not orphaning":                                                     deploymentTakesReplicaSets,
	"should orphan RS created by deployment when deleteOptions.PropagationPolicy is Orphan":                         deploymentOrphansReplicaSets,
	"should not be blocked by dependency circle":                                                                    dependencyCircle,
	"should not delete dependents that have both valid owner and owner that's waiting for dependents to be deleted": dependentsWithTwoOwners,
}

// pause is a container that does nothing.
func pause() []corev1.Container {
	return []corev1.Container{{Name: "c", Image: image, Command: []string{"/bin/sh", "-c", "sleep 3600"}}}
}

func podTemplate(test string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: testLabels(test)},
		Spec:       corev1.PodSpec{TerminationGracePeriodSeconds: new(int64), Containers: pause()},
	}
}

func deployment(name string, replicas int32) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: testLabels(name)},
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Selector: metav1.SetAsLabelSelector(testLabels(name)), Template: podTemplate(name)},
	}
}

func newDeployment(t *testing.T, namespace, name string, replicas int32) *appsv1.Deployment {
	t.Helper()
	made := got(client.AppsV1().Deployments(namespace).Create(t.Context(), deployment(name, replicas), metav1.CreateOptions{}))(t)
	awaitReplicaSets(t, namespace, name, 1)
	return made
}

func awaitReplicaSets(t *testing.T, namespace, test string, want int) []appsv1.ReplicaSet {
	t.Helper()
	var items []appsv1.ReplicaSet
	eventually(t, "the wanted replica sets", func(ctx context.Context) (bool, error) {
		list, err := client.AppsV1().ReplicaSets(namespace).List(ctx, labelled(test))
		if err != nil {
			return false, err
		}
		items = list.Items
		return len(items) == want, nil
	})
	return items
}

func deploymentTakesReplicaSets(t *testing.T) {
	namespace := newNamespace(t)
	newDeployment(t, namespace, "taken", 2)
	must(t, client.AppsV1().Deployments(namespace).Delete(t.Context(), "taken", metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}))
	awaitReplicaSets(t, namespace, "taken", 0)
	eventually(t, "the pods to be gone", func(ctx context.Context) (bool, error) {
		list, err := client.CoreV1().Pods(namespace).List(ctx, labelled("taken"))
		return err == nil && len(list.Items) == 0, err
	})
}

func deploymentOrphansReplicaSets(t *testing.T) {
	namespace := newNamespace(t)
	newDeployment(t, namespace, "orphaned", 1)
	api := client.AppsV1().Deployments(namespace)
	must(t, api.Delete(t.Context(), "orphaned", metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationOrphan)}))
	eventually(t, "the deployment to be gone", func(ctx context.Context) (bool, error) {
		_, err := api.Get(ctx, "orphaned", metav1.GetOptions{})
		return gone(err), nil
	})
	for _, set := range awaitReplicaSets(t, namespace, "orphaned", 1) {
		if len(set.OwnerReferences) > 0 {
			t.Errorf("the replica set still has owners: %+v", set.OwnerReferences)
		}
	}
}

func owner(pod *corev1.Pod) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: new(true), BlockOwnerDeletion: new(true)}
}

func setOwners(t *testing.T, namespace, name string, owners ...metav1.OwnerReference) {
	t.Helper()
	patch := `{"metadata":{"ownerReferences":[`
	for i, owner := range owners {
		if i > 0 {
			patch += ","
		}
		patch += `{"apiVersion":"` + owner.APIVersion + `","kind":"` + owner.Kind + `","name":"` + owner.Name + `","uid":"` + string(owner.UID) + `","blockOwnerDeletion":true}`
	}
	got(client.CoreV1().Pods(namespace).Patch(t.Context(), name, types.StrategicMergePatchType, []byte(patch+"]}}"), metav1.PatchOptions{}))(t)
}

// dependencyCircle makes three pods that own each other in a circle, and
// deletes one in the foreground.
func dependencyCircle(t *testing.T) {
	namespace := newNamespace(t)
	api := client.CoreV1().Pods(namespace)
	var pods []*corev1.Pod
	for _, name := range []string{"pod1", "pod2", "pod3"} {
		pods = append(pods, got(api.Create(t.Context(), pod(name, "sleep 3600"), metav1.CreateOptions{}))(t))
	}
	for i := range pods {
		setOwners(t, namespace, pods[i].Name, owner(pods[(i+2)%3]))
	}
	must(t, api.Delete(t.Context(), "pod1", metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationForeground), Preconditions: metav1.NewUIDPreconditions(string(pods[0].UID))}))
	eventually(t, "all three pods to be gone", func(ctx context.Context) (bool, error) {
		list, err := api.List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 0, err
	})
}

func controller(t *testing.T, namespace, name string, replicas int32) *corev1.ReplicationController {
	t.Helper()
	template := podTemplate(name)
	return got(client.CoreV1().ReplicationControllers(namespace).Create(t.Context(), &corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ReplicationControllerSpec{Replicas: &replicas, Selector: testLabels(name), Template: &template},
	}, metav1.CreateOptions{}))(t)
}

// dependentsWithTwoOwners gives pods an owner that stays and one that is
// deleted in the foreground, and asserts that the pods stay with the first.
func dependentsWithTwoOwners(t *testing.T) {
	namespace := newNamespace(t)
	api := client.CoreV1().ReplicationControllers(namespace)
	leaving, staying := controller(t, namespace, "leaving", 0), controller(t, namespace, "staying", 0)
	reference := func(rc *corev1.ReplicationController) metav1.OwnerReference {
		return metav1.OwnerReference{APIVersion: "v1", Kind: "ReplicationController", Name: rc.Name, UID: rc.UID}
	}
	for _, name := range []string{"shared", "own"} {
		got(client.CoreV1().Pods(namespace).Create(t.Context(), pod(name, "sleep 3600"), metav1.CreateOptions{}))(t)
	}
	setOwners(t, namespace, "shared", reference(leaving), reference(staying))
	setOwners(t, namespace, "own", reference(leaving))
	must(t, api.Delete(t.Context(), "leaving", metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationForeground), Preconditions: metav1.NewUIDPreconditions(string(leaving.UID))}))
	eventually(t, "the leaving owner to be gone", func(ctx context.Context) (bool, error) {
		_, err := api.Get(ctx, "leaving", metav1.GetOptions{})
		return gone(err), nil
	})
	if _, err := client.CoreV1().Pods(namespace).Get(t.Context(), "own", metav1.GetOptions{}); !gone(err) {
		t.Errorf("the pod of the leaving owner alone: %v", err)
	}
	// A short while longer: the shared pod must not follow.
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); {
		shared := got(client.CoreV1().Pods(namespace).Get(t.Context(), "shared", metav1.GetOptions{}))(t)
		if shared.DeletionTimestamp != nil {
			t.Fatal("the shared pod is being deleted")
		}
		if len(shared.OwnerReferences) == 1 && shared.OwnerReferences[0].UID == staying.UID {
			return
		}
	}
	t.Error("the shared pod still names its old owner")
}
