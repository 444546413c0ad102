package webhook_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

const (
	creating = admissionregistrationv1.Create
	updating = admissionregistrationv1.Update
	deleting = admissionregistrationv1.Delete
	linking  = admissionregistrationv1.Connect
	all      = admissionregistrationv1.OperationAll
)

func TestValidatingWebhookRefuses(t *testing.T) {
	s := testserver.Start(t)
	h := newHook(t, func(r *request) *response {
		if r.Name == "bad" {
			return &response{Result: &metav1.Status{Message: "no bad ones", Code: 418, Reason: "Teapot"}, Warnings: []string{"beware"}}
		}
		return &response{Allowed: true}
	})
	validating(t, s.Client, "v", h.Server, configMaps(all), nil)
	if _, err := create(t, s.Client, configMap("good")); err != nil {
		t.Fatalf("an allowed object: %v", err)
	}
	warnings := &collected{}
	config := rest.CopyConfig(s.Config)
	config.WarningHandler = warnings
	client := kubernetes.NewForConfigOrDie(config)
	_, err := create(t, client, configMap("bad"))
	assertError(t, err, `admission webhook "v.example.com" denied the request: no bad ones`)
	var status *apierrors.StatusError
	if !errors.As(err, &status) || status.ErrStatus.Code != 418 || status.ErrStatus.Reason != "Teapot" {
		t.Errorf("status %#v", err)
	}
	if !slices.Contains(warnings.texts, "beware") {
		t.Errorf("warnings %q", warnings.texts)
	}
	asked := h.requests()
	if len(asked) != 2 {
		t.Fatalf("asked %d times", len(asked))
	}
	r := asked[0]
	if r.Operation != admissionv1.Create || r.Kind.Kind != "ConfigMap" || r.Resource.Resource != "configmaps" || r.Namespace != "default" ||
		r.UserInfo.Username != "kubernetes-admin" || *r.DryRun || r.RequestKind == nil || !strings.Contains(string(r.Options.Raw), `"kind":"CreateOptions"`) {
		t.Errorf("request %+v, options %s", r, r.Options.Raw)
	}
	var cm corev1.ConfigMap
	if err := json.Unmarshal(r.Object.Raw, &cm); err != nil || cm.Kind != "ConfigMap" || cm.Data["a"] != "1" || cm.UID == "" {
		t.Errorf("object %s: %v", r.Object.Raw, err)
	}
	if r.OldObject.Raw != nil && string(r.OldObject.Raw) != "null" {
		t.Errorf("a create has the old object %s", r.OldObject.Raw)
	}
}

// collected are warnings.
type collected struct{ texts []string }

func (c *collected) HandleWarningHeader(_ int, _, text string) { c.texts = append(c.texts, text) }

func TestConfigurationTakesEffectWithItsWrite(t *testing.T) {
	s := testserver.Start(t)
	h := newHook(t, func(*request) *response { return &response{} })
	for i := range 20 {
		name := fmt.Sprintf("v%d", i)
		validating(t, s.Client, name, h.Server, configMaps(creating), nil)
		if _, err := create(t, s.Client, configMap(name)); err == nil {
			t.Fatalf("round %d: the webhook was not asked", i)
		}
		if err := s.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := create(t, s.Client, configMap(name)); err != nil {
			t.Fatalf("round %d: after the webhook went: %v", i, err)
		}
	}
}

func TestMutatingWebhooksRunInOrderAndDefaultsFollow(t *testing.T) {
	s := testserver.Start(t)
	first := newHook(t, patching(`[{"op":"add","path":"/spec/initContainers","value":[{"name":"init","image":"busybox"}]}]`))
	second := newHook(t, func(r *request) *response {
		var pod corev1.Pod
		if err := json.Unmarshal(r.Object.Raw, &pod); err != nil || len(pod.Spec.InitContainers) != 1 || pod.Spec.InitContainers[0].TerminationMessagePath != "/dev/termination-log" {
			return &response{Result: &metav1.Status{Message: "the first webhook's change is not seen with defaults"}}
		}
		return patching(`[{"op":"add","path":"/metadata/labels","value":{"seen":"yes"}}]`)(r)
	})
	mutating(t, s.Client, "b", second.Server, rule("", "v1", "pods", creating), nil)
	mutating(t, s.Client, "a", first.Server, rule("", "v1", "pods", creating), nil)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := s.Client.CoreV1().ServiceAccounts("default").Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod, err := s.Client.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "nginx"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if pod.Labels["seen"] != "yes" || len(pod.Spec.InitContainers) != 1 || pod.Spec.InitContainers[0].ImagePullPolicy != corev1.PullAlways {
		t.Errorf("pod %+v", pod)
	}
	if first, second := len(first.requests()), len(second.requests()); first != 1 || second != 1 {
		t.Errorf("called %d and %d times", first, second)
	}
}

func TestReinvocation(t *testing.T) {
	s := testserver.Start(t)
	add := func(key string) func(*request) *response {
		return func(r *request) *response {
			var cm corev1.ConfigMap
			_ = json.Unmarshal(r.Object.Raw, &cm)
			if cm.Data[key] != "" {
				return &response{Allowed: true}
			}
			return patching(`[{"op":"add","path":"/data/` + key + `","value":"x"}]`)(r)
		}
	}
	again, once, last := newHook(t, add("again")), newHook(t, add("once")), newHook(t, add("last"))
	ifNeeded := func(w *admissionregistrationv1.MutatingWebhook) {
		w.ReinvocationPolicy = ptr.To(admissionregistrationv1.IfNeededReinvocationPolicy)
	}
	mutating(t, s.Client, "a", again.Server, configMaps(creating), ifNeeded)
	mutating(t, s.Client, "b", once.Server, configMaps(creating), nil)
	mutating(t, s.Client, "c", last.Server, configMaps(creating), ifNeeded)
	cm, err := create(t, s.Client, configMap("x"))
	if err != nil || len(cm.Data) != 4 {
		t.Fatalf("%v: %v", cm, err)
	}
	if a, b, c := len(again.requests()), len(once.requests()), len(last.requests()); a != 2 || b != 1 || c != 1 {
		t.Errorf("called %d, %d and %d times, want 2, 1 and 1", a, b, c)
	}
}

func TestSelectorsAndConditions(t *testing.T) {
	s := testserver.Start(t)
	for _, ns := range []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "red", Labels: map[string]string{"color": "red"}}}, {ObjectMeta: metav1.ObjectMeta{Name: "blue"}}} {
		if _, err := s.Client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	h := newHook(t, nil)
	validating(t, s.Client, "v", h.Server, rules{{
		Operations: []admissionregistrationv1.OperationType{all},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"configmaps", "namespaces"}},
	}}, func(w *admissionregistrationv1.ValidatingWebhook) {
		w.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"color": "red"}}
		w.ObjectSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "skip", Operator: metav1.LabelSelectorOpDoesNotExist}}}
		w.MatchConditions = []admissionregistrationv1.MatchCondition{
			{Name: "not-me", Expression: "object == null || object.metadata.name != 'me'"},
			{Name: "authorized", Expression: "authorizer.group('').resource('configmaps').namespace('default').check('create').allowed()"},
			{Name: "user", Expression: "request.userInfo.username == 'kubernetes-admin'"},
		}
	})
	put := func(namespace, name string, labels map[string]string) {
		t.Helper()
		cm := configMap(name)
		cm.Namespace, cm.Labels = namespace, labels
		if _, err := create(t, s.Client, cm); err != nil {
			t.Fatal(err)
		}
	}
	put("blue", "a", nil)
	put("red", "skipped", map[string]string{"skip": "1"})
	put("red", "me", nil)
	put("red", "wanted", nil)
	if _, err := s.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "red2", Labels: map[string]string{"color": "red"}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range h.requests() {
		names = append(names, r.Name)
	}
	if !slices.Equal(names, []string{"wanted", "red2"}) {
		t.Errorf("asked about %q", names)
	}
}

func TestMatchConditionErrorFollowsFailurePolicy(t *testing.T) {
	s := testserver.Start(t)
	h := newHook(t, nil)
	broken := []admissionregistrationv1.MatchCondition{{Name: "broken", Expression: "object.data.missing == 'x'"}}
	validating(t, s.Client, "v", h.Server, configMaps(creating), func(w *admissionregistrationv1.ValidatingWebhook) {
		w.MatchConditions = broken
		w.FailurePolicy = ptr.To(admissionregistrationv1.Ignore)
	})
	if _, err := create(t, s.Client, configMap("a")); err != nil {
		t.Errorf("Ignore: %v", err)
	}
	validating(t, s.Client, "w", h.Server, configMaps(creating), func(w *admissionregistrationv1.ValidatingWebhook) { w.MatchConditions = broken })
	_, err := create(t, s.Client, configMap("b"))
	assertError(t, err, "no such key: missing")
	if !apierrors.IsForbidden(err) || len(h.requests()) != 0 {
		t.Errorf("%v, asked %d times", err, len(h.requests()))
	}
}

func TestFailurePolicies(t *testing.T) {
	s := testserver.Start(t)
	gone := newHook(t, nil)
	gone.Close()
	validating(t, s.Client, "open", gone.Server, configMaps(creating), func(w *admissionregistrationv1.ValidatingWebhook) {
		w.FailurePolicy = ptr.To(admissionregistrationv1.Ignore)
	})
	if _, err := create(t, s.Client, configMap("a")); err != nil {
		t.Errorf("Ignore: %v", err)
	}
	mutating(t, s.Client, "shut", gone.Server, configMaps(creating), nil)
	_, err := create(t, s.Client, configMap("b"))
	assertError(t, err, `failed calling webhook "shut.example.com": failed to call webhook: Post "`)
	if !apierrors.IsInternalError(err) {
		t.Errorf("%v is no internal error", err)
	}
	out := metrics(t, s)
	for _, want := range []string{
		`apiserver_admission_webhook_fail_open_count{name="open.example.com",type="validating"} 1`,
		`apiserver_admission_webhook_rejection_count{error_type="calling_webhook_error",name="shut.example.com",operation="CREATE",rejection_code="503",type="admit"} 1`,
		`apiserver_admission_webhook_request_total{code="503",name="shut.example.com",operation="CREATE",rejected="true",type="admit"} 1`,
	} {
		if !strings.Contains(out, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
}

func TestConfigurationsAreExempt(t *testing.T) {
	s := testserver.Start(t)
	h := newHook(t, func(*request) *response { return &response{} })
	everything := rule("*", "*", "*/*", all)
	validating(t, s.Client, "v", h.Server, everything, nil)
	mutating(t, s.Client, "m", h.Server, everything, nil)
	if _, err := create(t, s.Client, configMap("a")); err == nil {
		t.Error("nothing refuses a ConfigMap")
	}
	configurations := s.Client.AdmissionregistrationV1()
	if _, err := configurations.ValidatingWebhookConfigurations().Patch(t.Context(), "v", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}); err != nil {
		t.Errorf("patching a configuration: %v", err)
	}
	if err := configurations.MutatingWebhookConfigurations().Delete(t.Context(), "m", metav1.DeleteOptions{}); err != nil {
		t.Errorf("deleting a configuration: %v", err)
	}
	if err := configurations.ValidatingWebhookConfigurations().Delete(t.Context(), "v", metav1.DeleteOptions{}); err != nil {
		t.Errorf("deleting a configuration: %v", err)
	}
	if _, err := create(t, s.Client, configMap("a")); err != nil {
		t.Errorf("after the repair: %v", err)
	}
}

func TestServerStartsWithWebhooksThatRefuseEverything(t *testing.T) {
	dir := t.TempDir()
	s := testserver.StartIn(t, dir)
	gone := newHook(t, nil)
	gone.Close()
	validating(t, s.Client, "v", gone.Server, rule("*", "*", "*/*", all), nil)
	mutating(t, s.Client, "m", gone.Server, rule("*", "*", "*/*", all), nil)
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	s = testserver.StartIn(t, dir, "--service-cluster-ip-range=10.96.0.0/16", "--advertise-address=192.0.2.7")
	if _, err := create(t, s.Client, configMap("a")); err == nil {
		t.Error("the webhooks are gone")
	}
	for _, err := range []error{
		s.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(t.Context(), "v", metav1.DeleteOptions{}),
		s.Client.AdmissionregistrationV1().MutatingWebhookConfigurations().Delete(t.Context(), "m", metav1.DeleteOptions{}),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	if _, err := create(t, s.Client, configMap("a")); err != nil {
		t.Errorf("after the repair: %v", err)
	}
}

func TestOperationsAndSubresources(t *testing.T) {
	s := testserver.Start(t)
	h := newHook(t, nil)
	validating(t, s.Client, "v", h.Server, rule("*", "*", "*/*", all), func(w *admissionregistrationv1.ValidatingWebhook) {
		w.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "default"}}
		w.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "mine", Expression: "request.userInfo.username == 'kubernetes-admin'"}}
	})
	ctx, client := t.Context(), s.Client
	// Applied: a create is CREATE with CreateOptions, an update UPDATE with UpdateOptions.
	for _, value := range []string{"1", "2"} {
		if _, err := client.CoreV1().ConfigMaps("default").Apply(ctx, corev1apply.ConfigMap("x", "default").WithData(map[string]string{"a": value}), metav1.ApplyOptions{FieldManager: "me"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := client.CoreV1().ConfigMaps("default").Delete(ctx, "x", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}); err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{"a": "b"}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
	}}
	if _, err := client.AppsV1().Deployments("default").Create(ctx, deployment, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.AppsV1().Deployments("default").UpdateScale(ctx, "d", &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: autoscalingv1.ScaleSpec{Replicas: 3}}, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, r := range h.requests() {
		var options struct{ Kind string }
		_ = json.Unmarshal(r.Options.Raw, &options)
		lines = append(lines, fmt.Sprintf("%s %s/%s %s %s new=%t old=%t", r.Operation, r.Resource.Resource, r.SubResource, r.Kind.Kind, options.Kind, len(r.Object.Raw) > 4, len(r.OldObject.Raw) > 4))
	}
	want := []string{
		"CREATE configmaps/ ConfigMap CreateOptions new=true old=false",
		"UPDATE configmaps/ ConfigMap UpdateOptions new=true old=true",
		"DELETE configmaps/ ConfigMap DeleteOptions new=false old=true",
		"CREATE deployments/ Deployment CreateOptions new=true old=false",
		"UPDATE deployments/scale Scale UpdateOptions new=true old=true",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("asked\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}

func TestScaleCanBeMutated(t *testing.T) {
	s := testserver.Start(t)
	h := newHook(t, patching(`[{"op":"replace","path":"/spec/replicas","value":7}]`))
	mutating(t, s.Client, "m", h.Server, rule("apps", "v1", "deployments/scale", updating), nil)
	labels := map[string]string{"a": "b"}
	if _, err := s.Client.AppsV1().Deployments("default").Create(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Client.AppsV1().Deployments("default").Patch(t.Context(), "d", types.MergePatchType, []byte(`{"spec":{"replicas":2}}`), metav1.PatchOptions{}, "scale"); err != nil {
		t.Fatal(err)
	}
	d, err := s.Client.AppsV1().Deployments("default").Get(t.Context(), "d", metav1.GetOptions{})
	if err != nil || *d.Spec.Replicas != 7 {
		t.Errorf("replicas %v, %v", d.Spec.Replicas, err)
	}
}

func TestDeniedConnect(t *testing.T) {
	s := testserver.Start(t)
	h := newHook(t, func(r *request) *response { return &response{Result: &metav1.Status{Message: "no attaching"}} })
	validating(t, s.Client, "v", h.Server, rule("", "v1", "pods/attach", linking), nil)
	err := s.Client.CoreV1().RESTClient().Post().Namespace("default").Resource("pods").Name("p").SubResource("attach").
		Param("stdin", "true").Do(t.Context()).Error()
	assertError(t, err, "no attaching")
	asked := h.requests()
	if len(asked) != 1 || asked[0].Operation != admissionv1.Connect || asked[0].Kind.Kind != "PodAttachOptions" || !strings.Contains(string(asked[0].Object.Raw), `"stdin":true`) {
		t.Errorf("asked %+v", asked)
	}
}

func TestDryRun(t *testing.T) {
	s := testserver.Start(t)
	h := newHook(t, nil)
	validating(t, s.Client, "quiet", h.Server, configMaps(creating), func(w *admissionregistrationv1.ValidatingWebhook) {
		w.SideEffects = ptr.To(admissionregistrationv1.SideEffectClassNoneOnDryRun)
	})
	if _, err := s.Client.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("a"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Fatal(err)
	}
	if asked := h.requests(); len(asked) != 1 || !*asked[0].DryRun {
		t.Errorf("asked %+v", asked)
	}
}

func TestEquivalentVersionsMatch(t *testing.T) {
	s := testserver.Start(t)
	equivalent, exact := newHook(t, nil), newHook(t, nil)
	r := rule("events.k8s.io", "v1", "events", creating)
	validating(t, s.Client, "equivalent", equivalent.Server, r, nil)
	validating(t, s.Client, "exact", exact.Server, r, func(w *admissionregistrationv1.ValidatingWebhook) {
		w.MatchPolicy = ptr.To(admissionregistrationv1.Exact)
	})
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "default"}, InvolvedObject: corev1.ObjectReference{Namespace: "default", Name: "x"}, Message: "hello", Reason: "R"}
	if _, err := s.Client.CoreV1().Events("default").Create(t.Context(), event, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if asked := exact.requests(); len(asked) != 0 {
		t.Errorf("Exact was asked %d times", len(asked))
	}
	asked := equivalent.requests()
	if len(asked) != 1 {
		t.Fatalf("Equivalent was asked %d times", len(asked))
	}
	var shown struct{ APIVersion, Note string }
	_ = json.Unmarshal(asked[0].Object.Raw, &shown)
	if shown.APIVersion != "events.k8s.io/v1" || shown.Note != "hello" || asked[0].Resource.Group != "events.k8s.io" || asked[0].RequestResource.Group != "" {
		t.Errorf("asked %+v with %s", asked[0], asked[0].Object.Raw)
	}
}
