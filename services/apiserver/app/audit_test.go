package app_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

func write(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitManagedFields: true
rules:
- level: RequestResponse
  resources:
  - {group: "", resources: [configmaps, secrets]}
  - {group: "", resources: [serviceaccounts/token]}
- level: Metadata
  omitStages: [RequestReceived]
  resources: [{group: "", resources: [namespaces]}]
- level: None
`

// events reads the audit log until an event is there that ends it.
func events(t *testing.T, file string, last func(auditv1.Event) bool) []auditv1.Event {
	t.Helper()
	var out []auditv1.Event
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 20*time.Second, true, func(context.Context) (bool, error) {
		out = nil
		opened, err := os.Open(file)
		if err != nil {
			return false, err
		}
		defer func() { _ = opened.Close() }()
		lines := bufio.NewScanner(opened)
		lines.Buffer(nil, 8<<20)
		for lines.Scan() {
			var e auditv1.Event
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				return false, err
			}
			out = append(out, e)
		}
		return slices.ContainsFunc(out, last), lines.Err()
	})
	if err != nil {
		t.Fatalf("the last event is not there: %v\n%+v", err, out)
	}
	return out
}

// one is the only event of a stage that matches.
func one(t *testing.T, list []auditv1.Event, stage auditv1.Stage, match func(auditv1.Event) bool) auditv1.Event {
	t.Helper()
	var found []auditv1.Event
	for _, e := range list {
		if e.Stage == stage && match(e) {
			found = append(found, e)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d events of stage %s, want one: %+v", len(found), stage, found)
	}
	return found[0]
}

func named(verb, resource, name string) func(auditv1.Event) bool {
	return func(e auditv1.Event) bool {
		return e.Verb == verb && e.ObjectRef != nil && e.ObjectRef.Resource == resource && (name == "" || e.ObjectRef.Name == name)
	}
}

func TestRequestsAreAuditedAsThePolicySays(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log", "audit.log")
	s := testserver.Start(t, "--audit-policy-file="+write(t, "policy.yaml", auditPolicy), "--audit-log-path="+file)
	protobuf := rest.CopyConfig(s.Config)
	protobuf.ContentType, protobuf.UserAgent = "application/vnd.kubernetes.protobuf", "auditor/1"
	client := kubernetes.NewForConfigOrDie(protobuf)
	api := client.CoreV1().ConfigMaps("default")
	if _, err := api.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"k": "v"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"data":{"k":"w"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.Get(t.Context(), "none", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"k": canary}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	jane := kubernetes.NewForConfigOrDie(s.As("jane", "readers"))
	if _, err := jane.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w, err := api.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	<-w.ResultChan()
	cancel()
	list := events(t, file, func(e auditv1.Event) bool { return e.Verb == "watch" && e.Stage == auditv1.StageResponseComplete })

	made := one(t, list, auditv1.StageResponseComplete, named("create", "configmaps", ""))
	if made.ResponseStatus.Code != http.StatusCreated || made.UserAgent != "auditor/1" || made.AuditID == "" || made.User.Username == "" || len(made.SourceIPs) != 1 || made.Annotations["authorization.k8s.io/decision"] != "allow" {
		t.Errorf("created: %+v", made)
	}
	if body := string(made.RequestObject.Raw); !strings.Contains(body, `"k":"v"`) {
		t.Errorf("what was created reads %s", body)
	}
	if body := string(made.ResponseObject.Raw); !strings.Contains(body, `"uid"`) || strings.Contains(body, "managedFields") {
		t.Errorf("what was answered reads %s", body)
	}
	one(t, list, auditv1.StageRequestReceived, named("create", "configmaps", ""))
	if patched := one(t, list, auditv1.StageResponseComplete, named("patch", "configmaps", "a")); string(patched.RequestObject.Raw) != `{"data":{"k":"w"}}` {
		t.Errorf("the patch reads %s", patched.RequestObject.Raw)
	}
	if missing := one(t, list, auditv1.StageResponseComplete, named("get", "configmaps", "none")); missing.ResponseStatus.Code != http.StatusNotFound || missing.ResponseStatus.Reason != metav1.StatusReasonNotFound {
		t.Errorf("not found: %+v", missing.ResponseStatus)
	}
	refused := one(t, list, auditv1.StageResponseComplete, named("get", "namespaces", "default"))
	if refused.ImpersonatedUser == nil || refused.ImpersonatedUser.Username != "jane" || refused.User.Username == "jane" || refused.Annotations["authorization.k8s.io/decision"] != "forbid" || refused.ResponseStatus.Code != http.StatusForbidden {
		t.Errorf("impersonated: %+v", refused)
	}
	if secret := one(t, list, auditv1.StageResponseComplete, named("create", "secrets", "")); secret.Level != auditv1.LevelMetadata || secret.RequestObject != nil || secret.ResponseObject != nil {
		t.Errorf("a secret's event has a body: %+v", secret)
	}
	if watched := one(t, list, auditv1.StageResponseStarted, named("watch", "configmaps", "")); watched.ResponseStatus.Code != http.StatusOK {
		t.Errorf("watched: %+v", watched)
	}
	for _, e := range list {
		if e.Stage == auditv1.StageRequestReceived && e.ObjectRef.Resource == "namespaces" || e.ObjectRef.Resource == "pods" {
			t.Errorf("not asked for: %+v", e)
		}
	}
}

func TestUnknownUsersAreAudited(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.log")
	policy := "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Metadata\n  resources: [{group: \"\", resources: [pods]}]\n"
	s := testserver.Start(t, "--audit-policy-file="+write(t, "policy.yaml", policy), "--audit-log-path="+file)
	config := rest.AnonymousClientConfig(s.Config)
	config.BearerToken = "made-up"
	if _, err := kubernetes.NewForConfigOrDie(config).CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Fatal(err)
	}
	list := events(t, file, named("list", "pods", ""))
	if list[0].ResponseStatus.Code != http.StatusUnauthorized || strings.Contains(list[0].ResponseStatus.Message, "made-up") {
		t.Errorf("refused: %+v", list[0])
	}
}

func TestWebhookGetsEventsOnceItIsThere(t *testing.T) {
	var mu sync.Mutex
	var got []auditv1.Event
	tries := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		var list auditv1.EventList
		if tries++; tries == 1 || json.NewDecoder(r.Body).Decode(&list) != nil {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		got = append(got, list.Items...)
	}))
	defer server.Close()
	kubeconfig := "apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: " + server.URL + "}}]\ncontexts: [{name: a, context: {cluster: a, user: \"\"}}]\ncurrent-context: a\n"
	s := testserver.Start(t, "--audit-policy-file="+write(t, "policy.yaml", auditPolicy), "--audit-webhook-config-file="+write(t, "webhook.yaml", kubeconfig),
		"--audit-webhook-initial-backoff=10ms", "--audit-webhook-batch-max-wait=10ms")
	if _, err := s.Client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "hooked"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 20*time.Second, true, func(context.Context) (bool, error) {
		mu.Lock()
		defer mu.Unlock()
		return slices.ContainsFunc(got, func(e auditv1.Event) bool {
			return e.Stage == auditv1.StageResponseComplete && e.RequestObject != nil && strings.Contains(string(e.RequestObject.Raw), "hooked")
		}), nil
	})
	if err != nil {
		t.Errorf("the event has not come in %d tries: %v", tries, err)
	}
}

// TestFullDiskRefusesOnlyWhereItMust writes the log where there is never room.
func TestFullDiskRefusesOnlyWhereItMust(t *testing.T) {
	policy := write(t, "policy.yaml", auditPolicy)
	for mode, refused := range map[string]bool{"blocking-strict": true, "blocking": false, "batch": false} {
		t.Run(mode, func(t *testing.T) {
			s := testserver.Start(t, "--audit-policy-file="+policy, "--audit-log-path=/dev/full", "--audit-log-mode="+mode)
			_, err := s.Client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
			if (err != nil) != refused || refused && !strings.Contains(err.Error(), "cannot be audited") {
				t.Errorf("the answer is %v", err)
			}
			_, err = s.Client.CoreV1().ConfigMaps("default").Get(t.Context(), "a", metav1.GetOptions{})
			if refused == (err == nil) {
				t.Errorf("read: %v", err)
			}
		})
	}
}

func TestPoliciesThatCannotBeUsedEndTheStart(t *testing.T) {
	for name, policy := range map[string]string{
		"level":   "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Everything}]\n",
		"version": "apiVersion: audit.k8s.io/v1beta1\nkind: Policy\nrules: [{level: None}]\n",
		"rules":   "apiVersion: audit.k8s.io/v1\nkind: Policy\n",
	} {
		err := testserver.Refused(t, t.TempDir(), "--audit-policy-file="+write(t, "policy.yaml", policy), "--audit-log-path=-")
		if err == nil || !strings.Contains(err.Error(), "--audit-policy-file") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
