package pulling

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestKeyringFindsTheBestCredentials(t *testing.T) {
	auth := base64.StdEncoding.EncodeToString([]byte("user:pass:word"))
	secret := &corev1.Secret{Data: map[string][]byte{corev1.DockerConfigJsonKey: fmt.Appendf(nil, `{"auths":{
		"https://index.docker.io/v1/":{"auth":%q},
		"registry.test:5000":{"username":"all","password":"x"},
		"registry.test:5000/team":{"username":"team","password":"x"},
		"*.cloud.test":{"username":"wild","password":"x"}}}`, auth)}}
	ring, err := newKeyring([]*corev1.Secret{secret})
	if err != nil {
		t.Fatal(err)
	}
	for image, want := range map[string]string{
		"busybox":                         "user",
		"library/busybox:1":               "user",
		"docker.io/library/busybox":       "user",
		"registry.test:5000/other/app:v1": "all",
		"registry.test:5000/team/app:v1":  "team all",
		"registry.test/team/app":          "",
		"eu.cloud.test/app@sha256:0123":   "wild",
		"a.b.cloud.test/app":              "",
		"localhost/app":                   "",
	} {
		var got []string
		for _, found := range ring.lookup(image) {
			got = append(got, found.GetUsername())
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %q", image, got, want)
		}
	}
	if found := ring.lookup("busybox"); found[0].GetPassword() != "pass:word" {
		t.Errorf("password %q", found[0].GetPassword())
	}
}

func TestKeyringTellsOfSecretsThatAreNotRead(t *testing.T) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte("{")}}
	if _, err := newKeyring([]*corev1.Secret{secret}); err == nil || !strings.Contains(err.Error(), "pull secret ns/s") {
		t.Errorf("error %v", err)
	}
}

// fakeService has images, and pulls those that are named.
type fakeService struct {
	have, remote map[string]bool
	pulls        int
}

func (f *fakeService) Image(_ context.Context, image string) (*runtimeapi.Image, error) {
	if f.have[image] {
		return &runtimeapi.Image{Id: "id-" + image}, nil
	}
	return nil, nil
}

func (f *fakeService) Pull(_ context.Context, image string, _ *runtimeapi.AuthConfig, _ *runtimeapi.PodSandboxConfig) (string, error) {
	f.pulls++
	if !f.remote[image] {
		return "", errors.New("no such image")
	}
	f.have[image] = true
	return "id-" + image, nil
}

func TestEnsureFollowsThePolicy(t *testing.T) {
	for _, c := range []struct {
		name   string
		image  string
		policy corev1.PullPolicy
		pulls  int
		reason string
		events string
	}{
		{"there already", "here:v1", corev1.PullIfNotPresent, 0, "", "Pulled"},
		{"there, but always", "here:v1", corev1.PullAlways, 1, "", "Pulling Pulled"},
		{"not there", "away:v1", corev1.PullIfNotPresent, 1, "", "Pulling Pulled"},
		{"no tag is latest", "away", corev1.PullIfNotPresent, 1, "", "Pulling Pulled"},
		{"never", "away:v1", corev1.PullNever, 0, ReasonErrImageNeverPull, "ErrImageNeverPull"},
		{"nowhere", "nowhere:v1", corev1.PullIfNotPresent, 1, ReasonErrImagePull, "Pulling Failed"},
		{"no name", "UPPER CASE", corev1.PullIfNotPresent, 0, ReasonInvalidImageName, "InspectFailed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			service := &fakeService{have: map[string]bool{"here:v1": true}, remote: map[string]bool{"here:v1": true, "away:v1": true, "away:latest": true}}
			var events []string
			p := &Puller{Service: service, Event: func(_ *corev1.Pod, _ *corev1.Container, _ bool, reason, _ string) { events = append(events, reason) }}
			state := NewState()
			request := ForContainer(&corev1.Pod{}, &corev1.Container{Image: c.image, ImagePullPolicy: c.policy})
			request.State = state
			_, err := p.Ensure(t.Context(), request)
			if got := reason(err); got != c.reason {
				t.Errorf("reason %q, want %q", got, c.reason)
			}
			if service.pulls != c.pulls || strings.Join(events, " ") != c.events {
				t.Errorf("%d pulls, events %q", service.pulls, events)
			}
			if c.reason != ReasonErrImagePull {
				return
			}
			if _, err := p.Ensure(t.Context(), request); reason(err) != ReasonImagePullBackOff || service.pulls != 1 {
				t.Errorf("the next try: %v after %d pulls", err, service.pulls)
			}
		})
	}
}

func reason(err error) string {
	var failure *Error
	if errors.As(err, &failure) {
		return failure.Reason
	}
	return ""
}
