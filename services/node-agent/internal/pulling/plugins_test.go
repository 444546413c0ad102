package pulling

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// plugin writes a provider that notes what it was asked and answers with text.
func plugin(t *testing.T, dir, name, answer string) {
	t.Helper()
	script := fmt.Sprintf("#!/bin/sh\necho \"${GREETING:-none} $*\" >>%[1]s/%[2]s.calls\ncat >>%[1]s/%[2]s.calls\necho >>%[1]s/%[2]s.calls\n%[3]s\n", dir, name, answer)
	if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
}

func answer(kind, duration, registry, user string) string {
	return fmt.Sprintf(`echo '{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":%q,"cacheDuration":%q,"auth":{%q:{"username":%q,"password":"secret"}}}'`,
		kind, duration, registry, user)
}

const pluginHead = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n"

func provider(name, match, more string) string {
	return fmt.Sprintf("- name: %s\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n  matchImages: [%q]\n  defaultCacheDuration: 1h\n%s", name, match, more)
}

func load(t *testing.T, dir, config string, accounts Accounts) (*Plugins, error) {
	t.Helper()
	path := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(path, []byte(pluginHead+config), 0o600); err != nil {
		t.Fatal(err)
	}
	return LoadPlugins(path, dir, accounts)
}

func mustLoad(t *testing.T, dir, config string, accounts Accounts) *Plugins {
	t.Helper()
	plugins, err := load(t, dir, config, accounts)
	if err != nil {
		t.Fatal(err)
	}
	return plugins
}

func calls(t *testing.T, dir, name string) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name+".calls"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

func users(auths []*runtimeapi.AuthConfig) string {
	var names []string
	for _, auth := range auths {
		names = append(names, auth.GetUsername()+"@"+auth.GetServerAddress())
	}
	return strings.Join(names, " ")
}

func TestPluginsAreAskedForTheirImagesAndRemembered(t *testing.T) {
	for _, c := range []struct {
		kind, duration string
		asked          int // for two images of one registry and one of another, each twice
	}{{"Image", "1h", 3}, {"Registry", "1h", 2}, {"Global", "1h", 1}, {"Image", "0s", 6}} {
		t.Run(c.kind+c.duration, func(t *testing.T) {
			dir := t.TempDir()
			plugin(t, dir, "cloud", answer(c.kind, c.duration, "*.cloud.test", "robot"))
			plugins := mustLoad(t, dir, provider("cloud", "*.cloud.test", "  args: [get, --now]\n  env: [{name: GREETING, value: hello}]\n"), nil)
			for range 2 {
				for _, image := range []string{"eu.cloud.test/app:v1", "eu.cloud.test/other:v1", "us.cloud.test/app:v1"} {
					ring, err := plugins.keyring(t.Context(), image, &corev1.Pod{})
					if err != nil {
						t.Fatal(err)
					}
					if got, want := users(ring.lookup(image)), "robot@"+image[:len("eu.cloud.test")]; got != want {
						t.Errorf("%s: credentials %q, want %q", image, got, want)
					}
				}
			}
			if ring, err := plugins.keyring(t.Context(), "elsewhere.test/app", &corev1.Pod{}); err != nil || len(ring) != 0 {
				t.Errorf("an image of others: %v, %v", ring, err)
			}
			lines := calls(t, dir, "cloud")
			if len(lines) != 2*c.asked || lines[0] != "hello get --now" || !strings.Contains(lines[1], `"image":"eu.cloud.test/app:v1"`) || strings.Contains(lines[1], "serviceAccountToken") {
				t.Errorf("%d calls: %q", len(lines)/2, lines)
			}
		})
	}
}

type fakeAccounts struct{ tokens int }

func (f *fakeAccounts) Token(_ context.Context, pod *corev1.Pod, audience string, _ time.Duration) (string, time.Time, error) {
	f.tokens++
	return fmt.Sprintf("token-%d-of-%s-for-%s", f.tokens, pod.Name, audience), time.Now().Add(time.Hour), nil
}

func (f *fakeAccounts) Account(_ context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "uid"}}
	if name == "marked" {
		account.Annotations = map[string]string{"role": "reader", "private": "x"}
	}
	return account, nil
}

func TestPluginsActForServiceAccounts(t *testing.T) {
	pod := func(name, account string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: corev1.PodSpec{ServiceAccountName: account}}
	}
	attributes := func(cache string) string {
		return "  tokenAttributes: {serviceAccountTokenAudience: registry, cacheType: " + cache + ", requireServiceAccount: true, requiredServiceAccountAnnotationKeys: [role]}\n"
	}
	for cache, want := range map[string]int{"ServiceAccount": 1, "Token": 2} {
		t.Run(cache, func(t *testing.T) {
			dir := t.TempDir()
			plugin(t, dir, "cloud", answer("Registry", "1h", "cloud.test", "robot"))
			plugins := mustLoad(t, dir, provider("cloud", "cloud.test", attributes(cache)), &fakeAccounts{})
			for _, name := range []string{"a", "b"} {
				if ring, err := plugins.keyring(t.Context(), "cloud.test/app", pod(name, "marked")); err != nil || len(ring) != 1 {
					t.Errorf("%v, %v", ring, err)
				}
			}
			lines := calls(t, dir, "cloud")
			if len(lines) != 2*want || !strings.Contains(lines[1], `"serviceAccountToken":"token-1-of-a-for-registry","serviceAccountAnnotations":{"role":"reader"}`) {
				t.Errorf("calls %q", lines)
			}
			for _, refused := range []*corev1.Pod{pod("c", "plain"), pod("d", "")} {
				if _, err := plugins.keyring(t.Context(), "cloud.test/app", refused); err == nil {
					t.Errorf("pod %s got credentials", refused.Name)
				}
			}
		})
	}
}

func TestPluginsThatFailAreNamedInTheError(t *testing.T) {
	dir := t.TempDir()
	plugin(t, dir, "broken", "echo no luck >&2; exit 3")
	plugin(t, dir, "talkative", "yes | head -c 3000000")
	plugin(t, dir, "other", "echo '{}'")
	plugin(t, dir, "good", answer("Image", "1h", "cloud.test", "robot"))
	var config strings.Builder
	for _, name := range []string{"broken", "talkative", "other", "good"} {
		config.WriteString(provider(name, "cloud.test", ""))
	}
	service := &fakeService{have: map[string]bool{}, remote: map[string]bool{}}
	p := &Puller{Service: service, Plugins: mustLoad(t, dir, config.String(), nil), Event: func(*corev1.Pod, *corev1.Container, bool, string, string) {}}
	request := ForContainer(&corev1.Pod{}, &corev1.Container{Image: "cloud.test/app:v1"})
	request.State = NewState()
	_, err := p.Ensure(t.Context(), request)
	if err == nil {
		t.Fatal("pulled")
	}
	for _, want := range []string{"no such image", "broken: exit status 3: no luck", "credential provider talkative", "credential provider other"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
	if service.pulls != 1 {
		t.Errorf("%d pulls with the credentials of the one that works", service.pulls)
	}
}

func TestPluginConfigurationIsChecked(t *testing.T) {
	dir := t.TempDir()
	plugin(t, dir, "ok", "")
	good := provider("ok", "*.test", "")
	for name, config := range map[string]string{
		"nothing":        "",
		"twice":          good + good,
		"path":           provider("../ok", "*.test", ""),
		"no program":     provider("missing", "*.test", ""),
		"old version":    strings.Replace(good, "k8s.io/v1", "k8s.io/v1beta1", 1),
		"no images":      "- name: ok\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n  defaultCacheDuration: 1h\n",
		"no duration":    "- name: ok\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n  matchImages: [a.test]\n",
		"unknown field":  good + "  surprise: 1\n",
		"half a token":   provider("ok", "*.test", "  tokenAttributes: {serviceAccountTokenAudience: a}\n"),
		"bad cache type": provider("ok", "*.test", "  tokenAttributes: {serviceAccountTokenAudience: a, cacheType: Pod, requireServiceAccount: true}\n"),
	} {
		if _, err := load(t, dir, config, nil); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	mustLoad(t, dir, good, nil)
}
