package encryption_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	kmsservice "k8s.io/kms/pkg/service"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage/encryption"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage/memory"
)

const (
	secretKey = "/registry/secrets/default/a"
	plain     = "the plain value"
)

func random(n int) string {
	key := make([]byte, n)
	_, _ = rand.Read(key) // never fails
	return base64.StdEncoding.EncodeToString(key)
}

// configure writes a configuration of one list of resources.
func configure(t *testing.T, file, resources string, providers ...string) {
	t.Helper()
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [" + resources + "]\n  providers:\n"
	for _, p := range providers {
		text += "  - " + p + "\n"
	}
	if err := os.WriteFile(file+".part", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".part", file); err != nil {
		t.Fatal(err)
	}
}

func keys(kind string, secrets ...string) string {
	text := kind + ": {keys: ["
	for i, s := range secrets {
		text += fmt.Sprintf("{name: key%d, secret: %q},", i+1, s)
	}
	return text + "]}"
}

const none = "identity: {}"

func try(t *testing.T, store storage.Interface, file string, reload bool) (*encryption.Store, error) {
	t.Helper()
	return encryption.New(t.Context(), store, encryption.Options{
		File: file, Reload: reload, Root: "/registry", Prefix: "/registry", Every: 10 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
		Resources: map[string]schema.GroupResource{
			"/registry/secrets":        {Resource: "secrets"},
			"/registry/configmaps":     {Resource: "configmaps"},
			"/registry/services/specs": {Resource: "services"},
			"/registry/deployments":    {Group: "apps", Resource: "deployments"},
		},
	})
}

func open(t *testing.T, store storage.Interface, resources string, providers ...string) *encryption.Store {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	configure(t, file, resources, providers...)
	s, err := try(t, store, file, false)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func create(t *testing.T, s storage.Interface, key string) storage.KeyValue {
	t.Helper()
	kv, err := s.Create(t.Context(), storage.Put{Key: key, Value: []byte(plain)})
	if err != nil {
		t.Fatal(err)
	}
	return kv
}

// stored is what lies in the store below.
func stored(t *testing.T, s storage.Interface, key string) string {
	t.Helper()
	kv, err := s.Get(t.Context(), key, 0)
	if err != nil {
		t.Fatal(err)
	}
	return string(kv.Value)
}

func TestValuesAreEncryptedBelowAndPlainAbove(t *testing.T) {
	address := serveKMS(t, &keyService{id: "one"})
	for prefix, provider := range map[string]string{
		"k8s:enc:aesgcm:v1:key1:":    keys("aesgcm", random(32)),
		"k8s:enc:aescbc:v1:key1:":    keys("aescbc", random(32)),
		"k8s:enc:secretbox:v1:key1:": keys("secretbox", random(32)),
		"k8s:enc:kms:v2:vault:":      "kms: {apiVersion: v2, name: vault, endpoint: " + address + "}",
	} {
		t.Run(prefix, func(t *testing.T) {
			below := memory.New()
			s := open(t, below, "secrets", provider, none)
			var events []storage.Event
			if err := s.Attach(t.Context(), "/registry/secrets/", 0, func(batch []storage.Event) { events = append(events, batch...) }); err != nil {
				t.Fatal(err)
			}
			made := create(t, s, secretKey)
			if string(made.Value) != plain {
				t.Errorf("the writer gets %q", made.Value)
			}
			if raw := stored(t, below, secretKey); !strings.HasPrefix(raw, prefix) || strings.Contains(raw, plain) {
				t.Errorf("stored is %q", raw)
			}
			if got := stored(t, s, secretKey); got != plain {
				t.Errorf("read is %q", got)
			}
			assertErrorsArePlain(t, s, made)
			removed, err := s.Delete(t.Context(), secretKey, made.Revision)
			if err != nil || string(removed.Value) != plain {
				t.Errorf("removed is %q, %v", removed.Value, err)
			}
			log, _, err := s.Log(t.Context(), "/registry/secrets/", 0, 10)
			if err != nil || len(log) != 2 || string(log[0].Value) != plain || string(log[1].PrevValue) != plain {
				t.Errorf("the log has %v, %v", log, err)
			}
			if len(events) != 2 || string(events[0].Value) != plain || string(events[1].PrevValue) != plain {
				t.Errorf("events are %v", events)
			}
		})
	}
}

// assertErrorsArePlain asserts that the states in errors are readable.
func assertErrorsArePlain(t *testing.T, s storage.Interface, made storage.KeyValue) {
	t.Helper()
	var exists *storage.ExistsError
	if _, err := s.Create(t.Context(), storage.Put{Key: made.Key, Value: []byte("other")}); !errors.As(err, &exists) || string(exists.Current.Value) != plain {
		t.Errorf("creating again: %v", err)
	}
	var conflict *storage.ConflictError
	if _, err := s.Update(t.Context(), storage.Put{Key: made.Key, Value: []byte("other")}, made.Revision+7); !errors.As(err, &conflict) || string(conflict.Current.Value) != plain {
		t.Errorf("updating another revision: %v", err)
	}
	list, err := s.List(t.Context(), "/registry/secrets/", storage.ListOptions{})
	if err != nil || len(list.Items) != 1 || string(list.Items[0].Value) != plain {
		t.Errorf("listed: %v, %v", list.Items, err)
	}
}

func TestResourcesAreChosenByNameAndWildcard(t *testing.T) {
	const secret, services, deployment, widget = secretKey, "/registry/services/specs/default/a", "/registry/deployments/default/a", "/registry/example.com/widgets/default/a"
	for resources, encrypted := range map[string][]string{
		"secrets":             {secret},
		"services, secrets":   {services, secret},
		"'*.apps'":            {deployment},
		"'*.'":                {secret, services},
		"widgets.example.com": {widget},
		"'*.*'":               {secret, services, deployment, widget},
	} {
		t.Run(resources, func(t *testing.T) {
			below := memory.New()
			s := open(t, below, resources, keys("secretbox", random(32)))
			for _, key := range []string{secret, services, deployment, widget, "/registry/masterleases/10.0.0.1"} {
				create(t, s, key)
				want := false
				for _, k := range encrypted {
					want = want || k == key
				}
				if got := stored(t, below, key) != plain; got != want {
					t.Errorf("%s is encrypted: %t, want %t", key, got, want)
				}
			}
		})
	}
}

func TestValuesOfOtherKeysAndProvidersAreRead(t *testing.T) {
	first, second := random(32), random(32)
	below := memory.New()
	made := create(t, below, secretKey) // before encryption was configured
	steps := []struct {
		providers []string
		prefix    string
	}{
		{[]string{keys("aescbc", first), none}, "k8s:enc:aescbc:v1:key1:"},
		{[]string{"aescbc: {keys: [{name: key2, secret: " + second + "}, {name: key1, secret: " + first + "}]}"}, "k8s:enc:aescbc:v1:key2:"},
		{[]string{keys("aesgcm", first), "aescbc: {keys: [{name: key2, secret: " + second + "}]}"}, "k8s:enc:aesgcm:v1:key1:"},
		{[]string{none, keys("aesgcm", first)}, plain},
	}
	for _, step := range steps {
		s := open(t, below, "secrets", step.providers...)
		if got := stored(t, s, secretKey); got != plain {
			t.Fatalf("before %s: %q", step.prefix, got)
		}
		if outdated, err := s.Outdated(t.Context(), secretKey); err != nil || !outdated {
			t.Errorf("before %s the value is outdated: %t, %v", step.prefix, outdated, err)
		}
		var err error
		if made, err = s.Update(t.Context(), storage.Put{Key: secretKey, Value: []byte(plain)}, made.Revision); err != nil {
			t.Fatal(err)
		}
		if raw := stored(t, below, secretKey); !strings.HasPrefix(raw, step.prefix) {
			t.Errorf("stored is %q, want %s", raw, step.prefix)
		}
		if outdated, err := s.Outdated(t.Context(), secretKey); err != nil || outdated {
			t.Errorf("after %s the value is outdated: %t, %v", step.prefix, outdated, err)
		}
	}
}

func TestWhatCannotBeDecryptedIsAnError(t *testing.T) {
	below := memory.New()
	create(t, open(t, below, "secrets", keys("aesgcm", random(32))), secretKey)
	moved := stored(t, below, secretKey)
	for name, provider := range map[string]string{
		"another key":        keys("aesgcm", random(32)),
		"another provider":   keys("secretbox", random(32)),
		"no provider at all": none,
	} {
		s := open(t, below, "secrets", provider)
		var failed *encryption.Error
		if _, err := s.Get(t.Context(), secretKey, 0); !errors.As(err, &failed) || failed.Key != secretKey {
			t.Errorf("%s: %v", name, err)
		}
		if list, err := s.List(t.Context(), "/registry/secrets/", storage.ListOptions{}); !errors.As(err, &failed) || len(list.Items) != 0 {
			t.Errorf("%s: the list has %d, %v", name, len(list.Items), err)
		}
	}
	// A value is bound to its place.
	secret := random(32)
	s := open(t, below, "configmaps", keys("aesgcm", secret))
	create(t, s, "/registry/configmaps/default/a")
	moved = stored(t, below, "/registry/configmaps/default/a")
	if _, err := below.Create(t.Context(), storage.Put{Key: "/registry/configmaps/default/b", Value: []byte(moved)}); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Get(t.Context(), "/registry/configmaps/default/b", 0); err == nil {
		t.Errorf("a value that was moved to another key reads %q", got.Value)
	}
}

func TestConfigurationsThatCannotBeUsedAreRefused(t *testing.T) {
	for want, c := range map[string]struct{ resources, provider string }{
		"aesgcm.keys: Required value": {"secrets", "aesgcm: {keys: []}"},
		"not supported, only v2":      {"secrets", "kms: {name: old, endpoint: unix:///nowhere}"},
		"kms vault: ":                 {"secrets", "kms: {apiVersion: v2, name: vault, endpoint: unix:///nowhere.sock, timeout: 100ms}"},
		"unknown field":               {"secrets", "aesgmc: {}"},
		"secret is not of the expect": {"secrets", keys("aesgcm", random(5))},
		"resources[0].resources":      {"", none},
	} {
		file := filepath.Join(t.TempDir(), "config.yaml")
		configure(t, file, c.resources, c.provider)
		if _, err := try(t, memory.New(), file, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if _, err := try(t, memory.New(), filepath.Join(t.TempDir(), "absent"), false); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
}

func TestChangedConfigurationIsTakenOver(t *testing.T) {
	file, first, second := filepath.Join(t.TempDir(), "config.yaml"), random(32), random(32)
	configure(t, file, "secrets", keys("aesgcm", first))
	below := memory.New()
	s, err := try(t, below, file, true)
	if err != nil {
		t.Fatal(err)
	}
	create(t, s, secretKey)
	configure(t, file, "secrets", "aesgcm: {keys: [{name: key2, secret: "+second+"}, {name: key1, secret: "+first+"}]}")
	err = wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 20*time.Second, true, func(ctx context.Context) (bool, error) {
		return s.Outdated(ctx, secretKey)
	})
	if err != nil {
		t.Fatalf("the new key is not used: %v", err)
	}
	if got := stored(t, s, secretKey); got != plain {
		t.Errorf("read is %q", got)
	}
}

// keyService wraps by XOR, under a key whose name can change.
type keyService struct {
	mu   sync.Mutex
	id   string
	sick error
}

func (k *keyService) set(id string, sick error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.id, k.sick = id, sick
}

func turn(data []byte, id string) []byte {
	out := bytes.Clone(data)
	for i := range out {
		out[i] ^= id[i%len(id)] | 0x80
	}
	return out
}

func (k *keyService) Encrypt(_ context.Context, _ string, data []byte) (*kmsservice.EncryptResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return &kmsservice.EncryptResponse{Ciphertext: turn(data, k.id), KeyID: k.id}, k.sick
}

func (k *keyService) Decrypt(_ context.Context, _ string, r *kmsservice.DecryptRequest) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return turn(r.Ciphertext, r.KeyID), k.sick
}

func (k *keyService) Status(context.Context) (*kmsservice.StatusResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return &kmsservice.StatusResponse{Version: "v2", Healthz: "ok", KeyID: k.id}, k.sick
}

// serveKMS serves a key service on a socket.
func serveKMS(t *testing.T, service kmsservice.Service) (endpoint string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "kms") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "kms.sock")
	server := kmsservice.NewGRPCService(socket, 10*time.Second, service)
	ended := make(chan error, 1)
	go func() { ended <- server.ListenAndServe() }()
	err = wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 10*time.Second, true, func(context.Context) (bool, error) {
		_, err := os.Stat(socket)
		return err == nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Close()
		if err := errors.Join(<-ended, os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return "unix://" + socket
}

func TestKeyServiceWrapsSeedsAndRotates(t *testing.T) {
	service := &keyService{id: "one"}
	provider := "kms: {apiVersion: v2, name: vault, endpoint: " + serveKMS(t, service) + "}"
	below := memory.New()
	create(t, open(t, below, "secrets", provider), secretKey)
	service.set("two", nil)
	s := open(t, below, "secrets", provider) // as after a restart
	if got := stored(t, s, secretKey); got != plain {
		t.Errorf("read is %q", got)
	}
	if outdated, err := s.Outdated(t.Context(), secretKey); err != nil || !outdated {
		t.Errorf("a value of the old key is outdated: %t, %v", outdated, err)
	}
	if err := s.Healthy(t.Context()); err != nil {
		t.Errorf("the service is not healthy: %v", err)
	}
	// While the service is away, its wrapped seed still serves.
	service.set("two", errors.New("sealed"))
	create(t, s, "/registry/secrets/default/b")
	if got := stored(t, s, "/registry/secrets/default/b"); got != plain {
		t.Errorf("read is %q", got)
	}
	file := filepath.Join(t.TempDir(), "config.yaml")
	configure(t, file, "secrets", provider)
	if _, err := try(t, memory.New(), file, false); err == nil || !strings.Contains(err.Error(), "sealed") {
		t.Errorf("a start without its key service: %v", err)
	}
}
