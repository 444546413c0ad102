package app_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

// canary must not be found where nothing plain may be.
const canary = "plain-canary-4711"

// encryptionOf writes a configuration whose first key is the one that is named.
func encryptionOf(t *testing.T, file string, resources string, keys map[string]string, order ...string) {
	t.Helper()
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [" + resources + "]\n  providers:\n  - aesgcm:\n      keys:\n"
	for _, name := range order {
		text += "      - {name: " + name + ", secret: \"" + keys[name] + "\"}\n"
	}
	if err := os.WriteFile(file, []byte(text+"  - identity: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func newKey(t *testing.T) string {
	t.Helper()
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(key)
}

// onDisk is everything that a stopped server has left in its data directory.
func onDisk(t *testing.T, s *testserver.Server) []byte {
	t.Helper()
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	var all []byte
	entries, err := os.ReadDir(filepath.Join(s.Dir, "data"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(s.Dir, "data", e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, data...)
	}
	return all
}

// widgets makes a kind and an object of it that holds the canary.
func widgets(t *testing.T, s *testserver.Server) dynamic.ResourceInterface {
	t.Helper()
	client := s.Dynamic(t)
	definition := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "widgets.example.com"},
		"spec": map[string]any{
			"group": "example.com", "scope": "Cluster", "names": map[string]any{"plural": "widgets", "singular": "widget", "kind": "Widget"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{
				"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true},
			}}},
		},
	}}
	crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	if _, err := client.Resource(crds).Create(t.Context(), definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	api := client.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"})
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "w"}, "spec": canary,
	}}
	err := wait.ExponentialBackoffWithContext(t.Context(), wait.Backoff{Duration: 5e6, Factor: 1.3, Steps: 30}, func(ctx context.Context) (bool, error) {
		_, err := api.Create(ctx, object, metav1.CreateOptions{})
		return err == nil, nil
	})
	if err != nil {
		t.Fatalf("creating a custom resource: %v", err)
	}
	return api
}

func TestNothingPlainOfEncryptedResourcesIsStored(t *testing.T) {
	file, keys := filepath.Join(t.TempDir(), "encryption.yaml"), map[string]string{"one": newKey(t), "two": newKey(t)}
	encryptionOf(t, file, "secrets, widgets.example.com", keys, "one")
	dir := t.TempDir()
	s := testserver.StartIn(t, dir, "--encryption-provider-config="+file)
	widgets(t, s)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"password": canary}}
	if _, err := s.Client.CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	encoded := base64.StdEncoding.EncodeToString([]byte(canary))
	data := onDisk(t, s)
	if bytes.Contains(data, []byte(canary)) || bytes.Contains(data, []byte(encoded[:len(encoded)-4])) {
		t.Error("the store holds an encrypted resource in plain text")
	}
	if !bytes.Contains(data, []byte("k8s:enc:aesgcm:v1:one:")) {
		t.Error("the store holds nothing encrypted")
	}
	// Rotation: an update that changes nothing writes by the new key.
	encryptionOf(t, file, "secrets, widgets.example.com", keys, "two", "one")
	s = testserver.StartIn(t, dir, "--encryption-provider-config="+file)
	rewriteSecret(t, s)
	if data := onDisk(t, s); !bytes.Contains(data, []byte("k8s:enc:aesgcm:v1:two:")) {
		t.Error("the secret was not written by the new key")
	}
}

// rewriteSecret writes the secret s as it is, as a migration does, and asserts that it
// is readable and written once.
func rewriteSecret(t *testing.T, s *testserver.Server) {
	t.Helper()
	api := s.Client.CoreV1().Secrets("default")
	read, err := api.Get(t.Context(), "s", metav1.GetOptions{})
	if err != nil || string(read.Data["password"]) != canary {
		t.Fatalf("read %q, %v", read.Data, err)
	}
	written, err := api.Update(t.Context(), read, metav1.UpdateOptions{})
	if err != nil || written.ResourceVersion == read.ResourceVersion {
		t.Fatalf("the outdated value was not written: %v", err)
	}
	again, err := api.Update(t.Context(), written, metav1.UpdateOptions{})
	if err != nil || again.ResourceVersion != written.ResourceVersion {
		t.Fatalf("the new value was written again: %v", err)
	}
}

func TestEncryptionComesLaterAndIsNotForgotten(t *testing.T) {
	dir := t.TempDir()
	s := testserver.StartIn(t, dir)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"password": canary}}
	if _, err := s.Client.CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	file, keys := filepath.Join(t.TempDir(), "encryption.yaml"), map[string]string{"one": newKey(t), "two": newKey(t)}
	encryptionOf(t, file, "'*.*'", keys, "one")
	s = testserver.StartIn(t, dir, "--encryption-provider-config="+file)
	rewriteSecret(t, s)
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	// Without its key the server does not start, rather than show less than there is.
	encryptionOf(t, file, "'*.*'", keys, "two")
	for name, flags := range map[string][]string{"another key": {"--encryption-provider-config=" + file}, "no configuration": nil} {
		if err := testserver.Refused(t, dir, flags...); err == nil || !strings.Contains(err.Error(), "/registry/") {
			t.Errorf("a start with %s: %v", name, err)
		}
	}
}
