package authz_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/statetest"
)

// pod refers to one object of every kind, each named after the kind and the pod.
func pod(name, node string) *corev1.Pod {
	local := func(kind string) corev1.LocalObjectReference {
		return corev1.LocalObjectReference{Name: kind + "-" + name}
	}
	volume := func(source corev1.VolumeSource) corev1.Volume { return corev1.Volume{Name: "v", VolumeSource: source} }
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: name, UID: "1"},
		Spec: corev1.PodSpec{
			NodeName: node, ServiceAccountName: "sa-" + name,
			ImagePullSecrets: []corev1.LocalObjectReference{local("pull")},
			InitContainers: []corev1.Container{{EnvFrom: []corev1.EnvFromSource{
				{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: local("envfrom")}},
				{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: local("envfrom")}},
			}}},
			Containers: []corev1.Container{{Env: []corev1.EnvVar{
				{ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: local("env")}}},
				{ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: local("env")}}},
			}}},
			Volumes: []corev1.Volume{
				volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "volume-" + name}}),
				volume(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: local("volume")}}),
				volume(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
					{Secret: &corev1.SecretProjection{LocalObjectReference: local("projected")}},
					{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: local("projected")}},
				}}}),
				volume(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim-" + name}}),
				{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
				volume(corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{NodePublishSecretRef: new(local("csi"))}}),
			},
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("device-" + name)}},
		},
	}
}

func nodeState(t testing.TB) (*statetest.State, *authz.Node) {
	t.Helper()
	state := statetest.New()
	state.Put(corev1.Resource("pods"), pod("here", "node-1"))
	state.Put(corev1.Resource("pods"), pod("there", "node-2"))
	state.Put(corev1.Resource("pods"), pod("nowhere", ""))
	mirror := pod("mirror", "node-1")
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	state.Put(corev1.Resource("pods"), mirror)
	state.Put(corev1.Resource("persistentvolumes"), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-here"},
		Spec: corev1.PersistentVolumeSpec{
			ClaimRef: &corev1.ObjectReference{Namespace: "blue", Name: "claim-here"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				NodeStageSecretRef:         &corev1.SecretReference{Namespace: "storage", Name: "stage"},
				ControllerPublishSecretRef: &corev1.SecretReference{Namespace: "storage", Name: "controller"},
			}},
		},
	})
	state.Put(storagev1.Resource("volumeattachments"), &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va"}, Spec: storagev1.VolumeAttachmentSpec{NodeName: "node-1"}})
	state.Put(resourcev1.Resource("resourceslices"), &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "slice"}, Spec: resourcev1.ResourceSliceSpec{NodeName: new("node-1")}})
	node := authz.NewNode()
	if err := node.Start(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	return state, node
}

func agent(name string) *authn.User {
	return &authn.User{Name: authn.NodeUserPrefix + name, Groups: []string{authn.NodesGroup, authn.AuthenticatedGroup}}
}

func TestNodeReadsOnlyWhatItsPodsUse(t *testing.T) {
	_, node := nodeState(t)
	for _, prefix := range []string{"pull", "envfrom", "env", "volume", "projected", "csi"} {
		assertDecision(t, node, agent("node-1"), "get - secrets blue "+prefix+"-here", authz.Allow)
		for _, pod := range []string{"there", "nowhere", "mirror"} {
			assertDecision(t, node, agent("node-1"), "get - secrets blue "+prefix+"-"+pod, authz.NoOpinion)
		}
	}
	for _, prefix := range []string{"envfrom", "env", "volume", "projected"} {
		assertDecision(t, node, agent("node-1"), "watch - configmaps blue "+prefix+"-here", authz.Allow)
		assertDecision(t, node, agent("node-2"), "watch - configmaps blue "+prefix+"-here", authz.NoOpinion)
	}
	for _, c := range []struct {
		text string
		want authz.Decision
	}{
		{"list - secrets blue pull-here", authz.Allow},
		{"list - secrets blue -", authz.NoOpinion},
		{"list - secrets - pull-here", authz.NoOpinion},
		{"get - secrets green pull-here", authz.NoOpinion},
		{"update - secrets blue pull-here", authz.NoOpinion},
		{"delete - configmaps blue env-here", authz.NoOpinion},
		{"get - secrets storage stage", authz.Allow},
		{"get - secrets storage controller", authz.NoOpinion},
		{"get - persistentvolumes - pv-here", authz.Allow},
		{"list - persistentvolumes - -", authz.NoOpinion},
		{"get - persistentvolumeclaims blue claim-here", authz.Allow},
		{"get - persistentvolumeclaims blue here-scratch", authz.Allow},
		{"get - persistentvolumeclaims blue claim-there", authz.NoOpinion},
		{"patch - persistentvolumeclaims/status blue claim-here", authz.Allow},
		{"patch - persistentvolumeclaims blue claim-here", authz.NoOpinion},
		{"get resource.k8s.io resourceclaims blue device-here", authz.Allow},
		{"get resource.k8s.io resourceclaims blue device-there", authz.NoOpinion},
		{"get storage.k8s.io volumeattachments - va", authz.Allow},
		{"delete resource.k8s.io resourceslices - slice", authz.Allow},
		{"create - serviceaccounts/token blue sa-here", authz.Allow},
		{"create - serviceaccounts/token blue sa-there", authz.NoOpinion},
		{"create - serviceaccounts/token blue sa-mirror", authz.NoOpinion},
		{"create - serviceaccounts blue sa-here", authz.NoOpinion},
		{"get - serviceaccounts blue sa-here", authz.Allow},
		{"list - serviceaccounts blue -", authz.NoOpinion},
	} {
		assertDecision(t, node, agent("node-1"), c.text, c.want)
	}
	for _, text := range []string{"get - secrets storage stage", "get - persistentvolumes - pv-here", "get storage.k8s.io volumeattachments - va", "delete resource.k8s.io resourceslices - slice"} {
		assertDecision(t, node, agent("node-2"), text, authz.NoOpinion)
	}
}

func TestNodeKeepsToItsOwnObjects(t *testing.T) {
	_, node := nodeState(t)
	for _, c := range []struct {
		text string
		want authz.Decision
	}{
		{"get - nodes - node-1", authz.Allow},
		{"get - nodes - node-2", authz.NoOpinion},
		{"list - nodes - -", authz.NoOpinion},
		{"create - nodes - -", authz.Allow},
		{"patch - nodes/status - node-1", authz.Allow},
		{"delete - nodes - node-1", authz.NoOpinion},
		{"get - nodes/proxy - node-1", authz.NoOpinion},
		{"update coordination.k8s.io leases kube-node-lease node-1", authz.Allow},
		{"update coordination.k8s.io leases kube-node-lease node-2", authz.NoOpinion},
		{"create coordination.k8s.io leases kube-node-lease -", authz.Allow},
		{"list coordination.k8s.io leases kube-node-lease -", authz.NoOpinion},
		{"get coordination.k8s.io leases kube-system node-1", authz.NoOpinion},
		{"get storage.k8s.io csinodes - node-1", authz.Allow},
		{"get storage.k8s.io csinodes - node-2", authz.NoOpinion},
		{"get - pods blue here", authz.Allow},
		{"get - pods blue there", authz.NoOpinion},
		{"list - pods - -", authz.NoOpinion},
		{"watch - pods blue here", authz.Allow},
		{"create - pods blue -", authz.Allow},
		{"delete - pods blue here", authz.Allow},
		{"update - pods blue here", authz.NoOpinion},
		{"patch - pods/status blue here", authz.Allow},
		{"create - pods/eviction blue here", authz.Allow},
		{"create - pods/exec blue here", authz.NoOpinion},
		{"create - pods/binding blue here", authz.NoOpinion},
		{"list - services - -", authz.Allow},
		{"create - events default -", authz.Allow},
		{"create authorization.k8s.io subjectaccessreviews - -", authz.Allow},
		{"create certificates.k8s.io certificatesigningrequests - -", authz.Allow},
		{"watch node.k8s.io runtimeclasses - -", authz.Allow},
		{"update apps deployments blue d", authz.NoOpinion},
		{"get /metrics", authz.NoOpinion},
	} {
		assertDecision(t, node, agent("node-1"), c.text, c.want)
	}
	// Others are not its business, whatever they are called.
	assertDecision(t, node, &authn.User{Name: "system:node:node-1"}, "get - nodes - node-1", authz.NoOpinion)
	assertDecision(t, node, &authn.User{Name: "alice", Groups: []string{authn.NodesGroup}}, "get - nodes - node-1", authz.NoOpinion)
	assertDecision(t, node, agent(""), "get - nodes - -", authz.NoOpinion)
}

func TestNodeListsPodsByItsSelectorOnly(t *testing.T) {
	_, node := nodeState(t)
	for selector, want := range map[string]authz.Decision{
		"spec.nodeName=node-1":                       authz.Allow,
		"spec.nodeName==node-1":                      authz.Allow,
		"status.phase!=Failed,spec.nodeName=node-1":  authz.Allow,
		"metadata.name=here":                         authz.Allow,
		"metadata.name=there":                        authz.NoOpinion,
		"spec.nodeName=node-2":                       authz.NoOpinion,
		"spec.nodeName!=node-1":                      authz.NoOpinion,
		"spec.nodeName=":                             authz.NoOpinion,
		"spec.nodeName=node-1\\,x":                   authz.NoOpinion,
		"spec.nodename=node-1":                       authz.NoOpinion,
		"spec.nodeName=node-1,spec.nodeName!=node-1": authz.Allow, // matches nothing
		"=": authz.NoOpinion,
	} {
		attributes := action(agent("node-1"), "watch - pods blue -")
		attributes.FieldSelector = selector
		if decision, reason, err := node.Authorize(t.Context(), attributes); err != nil || decision != want {
			t.Errorf("%q: %v %s %v, want %v", selector, decision, reason, err, want)
		}
	}
}

func TestNodeLosesRightsWithThePod(t *testing.T) {
	state, node := nodeState(t)
	second := pod("second", "node-1")
	second.Spec.ImagePullSecrets[0].Name = "pull-here"
	state.Put(corev1.Resource("pods"), second)
	if err := state.Delete(t.Context(), corev1.Resource("pods"), "blue", "here", nil, false); err != nil {
		t.Fatal(err)
	}
	assertDecision(t, node, agent("node-1"), "get - secrets blue pull-here", authz.Allow)
	assertDecision(t, node, agent("node-1"), "get - secrets blue env-here", authz.NoOpinion)
	assertDecision(t, node, agent("node-1"), "get - secrets storage stage", authz.NoOpinion)
	if err := state.Delete(t.Context(), corev1.Resource("pods"), "blue", "second", nil, false); err != nil {
		t.Fatal(err)
	}
	assertDecision(t, node, agent("node-1"), "get - secrets blue pull-here", authz.NoOpinion)

	state.Put(corev1.Resource("pods"), pod("nowhere", "node-2"))
	assertDecision(t, node, agent("node-2"), "get - secrets blue env-nowhere", authz.Allow)
	debugged := pod("nowhere", "node-2")
	debugged.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
		EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "debug"}}}},
	}}}
	state.Put(corev1.Resource("pods"), debugged)
	assertDecision(t, node, agent("node-2"), "get - secrets blue debug", authz.Allow)
}

// BenchmarkNode decides among 10,000 pods that share a config map.
func BenchmarkNode(b *testing.B) {
	state := statetest.New()
	node := authz.NewNode()
	if err := node.Start(b.Context(), state); err != nil {
		b.Fatal(err)
	}
	for i := range 10000 {
		p := pod(fmt.Sprintf("p-%d", i), fmt.Sprintf("node-%d", i%1000))
		p.Spec.Volumes[1].ConfigMap.Name = "kube-root-ca.crt"
		state.Put(corev1.Resource("pods"), p)
	}
	for _, c := range []struct{ name, text, selector string }{
		{"SharedConfigMap", "get - configmaps blue kube-root-ca.crt", ""},
		{"Secret", "get - secrets blue env-p-7", ""},
		{"Denied", "get - secrets blue env-p-8", ""},
		{"WatchPods", "watch - pods - -", "spec.nodeName=node-7"},
	} {
		attributes := action(agent("node-7"), c.text)
		attributes.FieldSelector = c.selector
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				if _, _, err := node.Authorize(b.Context(), attributes); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
