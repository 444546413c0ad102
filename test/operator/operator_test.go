package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"

	"github.com/sampan-io/sampan/test/standalone"
)

// harbor is a control plane in which the operator is installed.
type harbor struct {
	*standalone.Cluster
	t       *testing.T
	kubectl string
	certDir string
	port    int
	account *rest.Config // the operator's
}

func newHarbor(t *testing.T) *harbor {
	t.Helper()
	h := &harbor{Cluster: standalone.Start(t), t: t, certDir: t.TempDir()}
	h.kubectl = h.Kubectl(t)
	h.RunControllers(t)
	h.must(h.read("install.yaml"), "apply", "-f", "-")
	h.must("", "wait", "crd/crews.ships.example.com", "--for=condition=Established", "--timeout=30s")
	token, err := h.Client.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "operator", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h.account = rest.AnonymousClientConfig(h.Config)
	h.account.BearerToken, h.account.QPS = token.Status.Token, -1
	h.openWebhooks()
	return h
}

// openWebhooks picks a port, makes a certificate for it, and configures the
// webhooks there.
func (h *harbor) openWebhooks() {
	h.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		h.t.Fatal(err)
	}
	h.port = listener.Addr().(*net.TCPAddr).Port
	_ = listener.Close()
	certificate, key, err := certutil.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	for name, data := range map[string][]byte{"tls.crt": certificate, "tls.key": key} {
		if err := os.WriteFile(filepath.Join(h.certDir, name), data, 0o600); err != nil {
			h.t.Fatal(err)
		}
	}
	h.must(strings.NewReplacer(
		"BASE", fmt.Sprintf("https://127.0.0.1:%d", h.port), "BUNDLE", base64.StdEncoding.EncodeToString(certificate),
	).Replace(h.read("webhooks.yaml")), "apply", "-f", "-")
}

func (h *harbor) read(name string) string {
	h.t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		h.t.Fatal(err)
	}
	return string(data)
}

// operate runs the operator until the function that it returns is called, or the
// test ends. It waits until the webhooks answer.
func (h *harbor) operate() (stop func()) {
	h.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, options{config: h.account, host: "127.0.0.1", port: h.port, certDir: h.certDir})
	}()
	stopped := false
	stop = func() {
		h.t.Helper()
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			h.t.Errorf("the operator ended with %v", err)
		}
	}
	h.t.Cleanup(stop)
	standalone.Eventually(h.t, "the webhooks answer", func(context.Context) bool {
		_, err := h.run(crew("probe", ""), "create", "--dry-run=server", "-f", "-")
		return err == nil
	})
	return stop
}

func (h *harbor) run(input string, args ...string) (string, error) {
	command := exec.Command(h.kubectl, append([]string{"--kubeconfig", h.Kubeconfig, "--cache-dir", filepath.Join(filepath.Dir(h.Kubeconfig), "cache")}, args...)...)
	command.Stdin = strings.NewReader(input)
	out, err := command.CombinedOutput()
	return string(out), err
}

func (h *harbor) must(input string, args ...string) string {
	h.t.Helper()
	out, err := h.run(input, args...)
	if err != nil {
		h.t.Fatalf("kubectl %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}

// refused runs kubectl, which must fail with the text.
func (h *harbor) refused(want, input string, args ...string) {
	h.t.Helper()
	if out, err := h.run(input, args...); err == nil || !strings.Contains(out, want) {
		h.t.Errorf("kubectl %s: %v: %s, want %q", strings.Join(args, " "), err, out, want)
	}
}

// hands waits until a crew has as many.
func (h *harbor) hands(name string, want int) []corev1.ConfigMap {
	h.t.Helper()
	var list *corev1.ConfigMapList
	err := wait.PollUntilContextTimeout(h.t.Context(), 10*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		var err error
		list, err = h.Client.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{LabelSelector: crewLabel + "=" + name})
		return err == nil && len(list.Items) == want, nil
	})
	if err != nil {
		h.t.Fatalf("crew %s has not %d hands: %+v", name, want, list)
	}
	return list.Items
}

func (h *harbor) registered(name string) string {
	h.t.Helper()
	book, err := h.Client.CoreV1().ConfigMaps("default").Get(h.t.Context(), register, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return ""
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return book.Data[name]
}

// crew is a crew's manifest; size "" leaves it out.
func crew(name, size string) string {
	if size != "" {
		size = ", size: " + size
	}
	return fmt.Sprintf("{apiVersion: ships.example.com/v1, kind: Crew, metadata: {name: %s, namespace: default}, spec: {ship: Argo%s}}", name, size)
}

func TestOperatorKeepsCrews(t *testing.T) {
	h := newHarbor(t)
	h.operate()
	h.must(crew("first", ""), "apply", "-f", "-")
	h.must("", "wait", "crew/first", "--for=condition=Ready", "--timeout=30s")
	if out := h.must("", "get", "cw", "first", "--no-headers"); strings.Join(strings.Fields(out)[:4], " ") != "first Argo 1 True" {
		t.Errorf("get: %s", out)
	}
	hand := h.hands("first", 1)[0]
	if owner := metav1.GetControllerOf(&hand); owner == nil || owner.Kind != "Crew" || hand.Data["ship"] != "Argo" {
		t.Errorf("a hand: %+v", hand)
	}
	if got := h.registered("first"); got != "Argo" {
		t.Errorf("registered with %q", got)
	}
	h.must("", "scale", "crew/first", "--replicas=4")
	h.hands("first", 4)
	h.must("", "wait", "crew/first", "--for=jsonpath={.status.hands}=4", "--timeout=30s")
	h.must("", "delete", "configmap", "first-2")
	h.hands("first", 4)
	h.must("", "patch", "crew", "first", "--type=merge", "-p", `{"spec":{"size":2}}`)
	h.hands("first", 2)
	h.must("", "wait", "crew/first", "--for=jsonpath={.status.observedGeneration}=3", "--timeout=30s")
	h.must("", "delete", "crew", "first", "--timeout=30s")
	if got := h.registered("first"); got != "" {
		t.Errorf("still registered with %q", got)
	}
	h.hands("first", 0) // the garbage collector's work
}

func TestOperatorsWebhooksCheck(t *testing.T) {
	h := newHarbor(t)
	h.operate()
	h.refused(`admission webhook "checks.ships.example.com" denied the request: a ship takes 10 hands, not 11`, crew("big", "11"), "create", "-f", "-")
	h.refused("spec.size: Invalid value: -1", crew("negative", "-1"), "create", "-f", "-")
	if out := h.must(crew("empty", "0"), "create", "-f", "-"); !strings.Contains(out, "Warning: a ship without hands drifts") {
		t.Errorf("create: %s", out)
	}
	h.refused("the crew of Argo stays on board", "", "patch", "crew", "empty", "--type=merge", "-p", `{"spec":{"ship":"Medea"}}`)
	h.must("", "annotate", "crew", "empty", "ships.example.com/at-sea=yes")
	h.refused("Argo is at sea", "", "delete", "crew", "empty")
	h.must("", "annotate", "crew", "empty", "ships.example.com/at-sea-")
	h.must("", "delete", "crew", "empty", "--timeout=30s")
}

// While the operator is away its webhooks refuse, and its finalizer holds; when it
// comes back it makes up for what it missed.
func TestOperatorComesBack(t *testing.T) {
	h := newHarbor(t)
	stop := h.operate()
	h.must(crew("second", "2"), "apply", "-f", "-")
	h.hands("second", 2)
	stop()
	h.refused(`failed calling webhook "defaults.ships.example.com"`, crew("third", ""), "create", "-f", "-")
	h.must("", "delete", "configmap", "second-0")
	h.operate()
	h.hands("second", 2)
	h.must("", "delete", "crew", "second", "--timeout=30s")
	if got := h.registered("second"); got != "" {
		t.Errorf("still registered with %q", got)
	}
}
