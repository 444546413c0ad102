package deployment

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/dump"
)

// templateHash names a pod template as upstream does: FNV-1a over a textual dump
// of the template and the collision count, in an alphabet without vowels.
func templateHash(template *corev1.PodTemplateSpec, collisions *int32) string {
	hash := fnv.New32a()
	fmt.Fprint(hash, dump.ForHash(*template))
	if collisions != nil {
		var count [8]byte
		binary.LittleEndian.PutUint32(count[:], uint32(*collisions))
		hash.Write(count[:])
	}
	return rand.SafeEncodeString(fmt.Sprint(hash.Sum32()))
}

// sameTemplate compares two templates without their pod-template-hash label.
func sameTemplate(a, b *corev1.PodTemplateSpec) bool {
	return equality.Semantic.DeepEqual(withoutHash(a), withoutHash(b))
}

func withoutHash(template *corev1.PodTemplateSpec) *corev1.PodTemplateSpec {
	if _, ok := template.Labels[appsv1.DefaultDeploymentUniqueLabelKey]; !ok {
		return template
	}
	plain := *template
	plain.Labels = maps.Clone(template.Labels)
	delete(plain.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	return &plain
}

// newReplicaSet is the ReplicaSet for the current template of d, without pods.
func newReplicaSet(d *appsv1.Deployment) *appsv1.ReplicaSet {
	hash := templateHash(&d.Spec.Template, d.Status.CollisionCount)
	template := *d.Spec.Template.DeepCopy()
	template.Labels = withLabel(template.Labels, hash)
	selector := d.Spec.Selector.DeepCopy()
	selector.MatchLabels = withLabel(selector.MatchLabels, hash)
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Name: d.Name + "-" + hash, Namespace: d.Namespace, Labels: maps.Clone(template.Labels),
			OwnerReferences: []metav1.OwnerReference{reference(d)},
		},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: new(int32), MinReadySeconds: d.Spec.MinReadySeconds, Selector: selector, Template: template,
		},
	}
}

func withLabel(labels map[string]string, hash string) map[string]string {
	with := make(map[string]string, len(labels)+1)
	maps.Copy(with, labels)
	with[appsv1.DefaultDeploymentUniqueLabelKey] = hash
	return with
}

func reference(d *appsv1.Deployment) metav1.OwnerReference {
	return *metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))
}
