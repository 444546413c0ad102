package podsource

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestStaticPodsGetWhatTheAPIServerWouldGive(t *testing.T) {
	text := "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: img}]}\n"
	pod, err := parseStatic([]byte(text), "Node-1")
	if err != nil {
		t.Fatal(err)
	}
	c := pod.Spec.Containers[0]
	if pod.Name != "web-node-1" || pod.Namespace != "default" || pod.Spec.NodeName != "Node-1" || pod.UID == "" ||
		pod.Spec.RestartPolicy != corev1.RestartPolicyAlways || *pod.Spec.TerminationGracePeriodSeconds != 30 || c.ImagePullPolicy != corev1.PullAlways ||
		c.TerminationMessagePath != "/dev/termination-log" {
		t.Errorf("pod %+v", pod)
	}
	again, err := parseStatic([]byte(text), "Node-1")
	if err != nil || again.UID != pod.UID {
		t.Errorf("the same file makes the UIDs %s and %s, %v", pod.UID, again.UID, err)
	}
	other, err := parseStatic([]byte(strings.Replace(text, "img", "img:v2", 1)), "Node-1")
	if err != nil || other.UID == pod.UID || other.Spec.Containers[0].ImagePullPolicy != corev1.PullIfNotPresent {
		t.Errorf("another file makes %+v, %v", other, err)
	}
}

func TestStaticPodsAreRefusedWithAReason(t *testing.T) {
	for text, want := range map[string]string{
		"kind: [":                      "did not find expected",
		"apiVersion: v1\nkind: Secret": "it is a Secret of v1",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: x}":                                                                                 "needs a name and containers",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {serviceAccountName: a, containers: [{name: c}]}":                         "cannot use service accounts",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: [{name: c}], volumes: [{name: v, secret: {secretName: s}}]}": "cannot use service accounts",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: [{name: c, envFrom: [{configMapRef: {name: s}}]}]}":          "cannot use service accounts",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {contaners: []}":                                                          "unknown field",
	} {
		if _, err := parseStatic([]byte(text), "n"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
