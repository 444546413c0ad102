package policy_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

// apply creates policies and bindings of a document of several parts.
func apply(t testing.TB, client kubernetes.Interface, document string) {
	t.Helper()
	ctx, r := context.Background(), client.AdmissionregistrationV1()
	for _, part := range strings.Split(document, "\n---\n") {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(part), &kind); err != nil {
			t.Fatal(err)
		}
		var err error
		switch kind.Kind {
		case "ValidatingAdmissionPolicy":
			_, err = r.ValidatingAdmissionPolicies().Create(ctx, decode[admissionregistrationv1.ValidatingAdmissionPolicy](t, part), metav1.CreateOptions{})
		case "ValidatingAdmissionPolicyBinding":
			_, err = r.ValidatingAdmissionPolicyBindings().Create(ctx, decode[admissionregistrationv1.ValidatingAdmissionPolicyBinding](t, part), metav1.CreateOptions{})
		case "MutatingAdmissionPolicy":
			_, err = r.MutatingAdmissionPolicies().Create(ctx, decode[admissionregistrationv1.MutatingAdmissionPolicy](t, part), metav1.CreateOptions{})
		case "MutatingAdmissionPolicyBinding":
			_, err = r.MutatingAdmissionPolicyBindings().Create(ctx, decode[admissionregistrationv1.MutatingAdmissionPolicyBinding](t, part), metav1.CreateOptions{})
		default:
			t.Fatalf("kind %q", kind.Kind)
		}
		if err != nil {
			t.Fatalf("creating %s: %v", kind.Kind, err)
		}
	}
}

func decode[T any](t testing.TB, text string) *T {
	t.Helper()
	var out T
	if err := yaml.UnmarshalStrict([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return &out
}

// validating is a policy for ConfigMaps with a binding; more goes into the
// policy's spec.
func validating(name, more string, actions ...string) string {
	if len(actions) == 0 {
		actions = []string{"Deny"}
	}
	return fmt.Sprintf(`
kind: ValidatingAdmissionPolicy
metadata: {name: %[1]s}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], resources: [configmaps], operations: [CREATE, UPDATE]}]}
%[2]s
---
kind: ValidatingAdmissionPolicyBinding
metadata: {name: %[1]s}
spec: {policyName: %[1]s, validationActions: [%[3]s]}`, name, more, strings.Join(actions, ", "))
}

// mutating is a policy for ConfigMaps with a binding.
func mutating(name, more string) string {
	return fmt.Sprintf(`
kind: MutatingAdmissionPolicy
metadata: {name: %[1]s}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], resources: [configmaps], operations: [CREATE]}]}
%[2]s
---
kind: MutatingAdmissionPolicyBinding
metadata: {name: %[1]s}
spec: {policyName: %[1]s}`, name, more)
}

func create(t testing.TB, client kubernetes.Interface, name string, data map[string]string) (*corev1.ConfigMap, error) {
	t.Helper()
	return client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}, metav1.CreateOptions{})
}

func assertError(t testing.TB, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want one with %q", err, want)
	}
}

func deployment(name string, replicas int32) *appsv1.Deployment {
	labels := map[string]string{"a": "b"}
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
	}}
}

func TestValidatingPolicyChecksDeployments(t *testing.T) {
	s := testserver.Start(t)
	apply(t, s.Client, `
kind: ValidatingAdmissionPolicy
metadata: {name: replicas}
spec:
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: default}}
    resourceRules: [{apiGroups: [apps], apiVersions: [v1], resources: [deployments], operations: [CREATE]}]
  variables:
  - {name: replicas, expression: object.spec.replicas}
  - {name: odd, expression: variables.replicas % 2 == 1}
  validations:
  - {expression: variables.replicas > 1, message: "wants more than one"}
  - {expression: variables.odd, messageExpression: "string(variables.replicas) + ' is even in ' + namespaceObject.metadata.name", reason: Forbidden}
---
kind: ValidatingAdmissionPolicyBinding
metadata: {name: replicas-here}
spec: {policyName: replicas, validationActions: [Deny]}`)
	deployments := s.Client.AppsV1().Deployments("default")
	if _, err := deployments.Create(t.Context(), deployment("good", 3), metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	_, err := deployments.Create(t.Context(), deployment("one", 1), metav1.CreateOptions{})
	assertError(t, err, `deployments.apps "one" is forbidden: ValidatingAdmissionPolicy 'replicas' with binding 'replicas-here' denied request: wants more than one`)
	if !apierrors.IsInvalid(err) {
		t.Errorf("%v is not invalid", err)
	}
	_, err = deployments.Create(t.Context(), deployment("two", 2), metav1.CreateOptions{})
	assertError(t, err, "2 is even in default")
	if !apierrors.IsForbidden(err) {
		t.Errorf("%v is not forbidden", err)
	}
}

func TestTypesAreChecked(t *testing.T) {
	s := testserver.Start(t)
	apply(t, s.Client, `
kind: ValidatingAdmissionPolicy
metadata: {name: typed}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [apps], apiVersions: [v1], resources: [deployments], operations: [CREATE]}]}
  variables: [{name: replicas, expression: object.spec.replicas}]
  validations:
  - {expression: "variables.replicas > 1"}
  - {expression: "object.spec.nonsense > 1", messageExpression: "object.metadata.nothing + 'x'"}
  - {expression: "object.spec.replicas > '1'"}`)
	policies := s.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	var got *admissionregistrationv1.ValidatingAdmissionPolicy
	for got == nil || got.Status.ObservedGeneration == 0 {
		var err error
		if got, err = policies.Get(t.Context(), "typed", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if got.Status.TypeChecking == nil || got.Status.ObservedGeneration != 1 {
		t.Fatalf("status %+v", got.Status)
	}
	var refs []string
	for _, w := range got.Status.TypeChecking.ExpressionWarnings {
		refs = append(refs, w.FieldRef)
		if !strings.HasPrefix(w.Warning, "apps/v1, Kind=Deployment: ERROR: <input>:1:") {
			t.Errorf("warning %q", w.Warning)
		}
	}
	if want := []string{"spec.validations[1].expression", "spec.validations[1].messageExpression", "spec.validations[2].expression"}; !slices.Equal(refs, want) {
		t.Errorf("warnings of %q: %+v", refs, got.Status.TypeChecking)
	}
}

func TestPolicyTakesEffectWithItsWrite(t *testing.T) {
	s := testserver.Start(t)
	r := s.Client.AdmissionregistrationV1()
	for i := range 10 {
		name := fmt.Sprintf("p%d", i)
		apply(t, s.Client, validating(name, "  validations: [{expression: 'false'}]"))
		if _, err := create(t, s.Client, name, nil); err == nil {
			t.Fatalf("round %d: the policy did not refuse", i)
		}
		if err := r.ValidatingAdmissionPolicyBindings().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := create(t, s.Client, name, nil); err != nil {
			t.Fatalf("round %d: without its binding: %v", i, err)
		}
	}
}

func TestParameters(t *testing.T) {
	s := testserver.Start(t)
	for name, limit := range map[string]string{"limits": "3", "other": "9"} {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"limits": "yes"}}, Data: map[string]string{"max": limit}}
		if _, err := s.Client.CoreV1().ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	const policy = `
kind: ValidatingAdmissionPolicy
metadata: {name: limited}
spec:
  paramKind: {apiVersion: v1, kind: ConfigMap}
  matchConstraints: {resourceRules: [{apiGroups: [apps], apiVersions: [v1], resources: [deployments], operations: [CREATE]}]}
  validations: [{expression: "params == null || object.spec.replicas <= int(params.data.max)", messageExpression: "'at most ' + params.data.max"}]
---
kind: ValidatingAdmissionPolicyBinding
metadata: {name: limited}
spec: {policyName: limited, validationActions: [Deny], paramRef: REF}`
	deployments := s.Client.AppsV1().Deployments("default")
	cases := []struct{ name, ref, want string }{
		{"by name", "{name: limits, parameterNotFoundAction: Deny}", "at most 3"},
		{"by name and namespace", "{name: limits, namespace: default, parameterNotFoundAction: Deny}", "at most 3"},
		{"by selector", "{selector: {matchLabels: {limits: 'yes'}}, parameterNotFoundAction: Deny}", "at most 3"},
		{"none, denied", "{name: nothing, parameterNotFoundAction: Deny}", "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"},
		{"none, allowed", "{name: nothing, parameterNotFoundAction: Allow}", ""},
		{"without reference", "null", ""},
	}
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			apply(t, s.Client, strings.Replace(policy, "REF", c.ref, 1))
			defer remove(t, s.Client, "limited")
			_, err := deployments.Create(t.Context(), deployment(fmt.Sprintf("d%d", i), 5), metav1.CreateOptions{})
			if c.want == "" && err != nil || c.want != "" {
				assertOutcome(t, err, c.want)
			}
		})
	}
}

func assertOutcome(t *testing.T, err error, want string) {
	t.Helper()
	if want == "" {
		if err != nil {
			t.Errorf("refused: %v", err)
		}
		return
	}
	assertError(t, err, want)
}

// remove deletes a validating policy and its binding.
func remove(t testing.TB, client kubernetes.Interface, name string) {
	t.Helper()
	r := client.AdmissionregistrationV1()
	if err := r.ValidatingAdmissionPolicies().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if err := r.ValidatingAdmissionPolicyBindings().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

func TestUnknownParameterKindFails(t *testing.T) {
	s := testserver.Start(t)
	apply(t, s.Client, strings.Replace(validating("p", "  paramKind: {apiVersion: nowhere.example.com/v1, kind: Nothing}\n  validations: [{expression: 'true'}]"),
		"validationActions: [Deny]", "validationActions: [Deny], paramRef: {name: x, parameterNotFoundAction: Deny}", 1))
	_, err := create(t, s.Client, "a", nil)
	assertError(t, err, "paramKind kind `nowhere.example.com/v1, Kind=Nothing` not known")
}

// collected are warnings.
type collected struct{ texts []string }

func (c *collected) HandleWarningHeader(_ int, _, text string) { c.texts = append(c.texts, text) }

func TestActions(t *testing.T) {
	s := testserver.Start(t)
	apply(t, s.Client, validating("warning", "  validations: [{expression: 'false', message: careful}]", "Warn", "Audit"))
	warnings := &collected{}
	config := rest.CopyConfig(s.Config)
	config.WarningHandler = warnings
	if _, err := create(t, kubernetes.NewForConfigOrDie(config), "a", nil); err != nil {
		t.Error(err)
	}
	if want := "Validation failed for ValidatingAdmissionPolicy 'warning' with binding 'warning': careful"; !slices.Contains(warnings.texts, want) {
		t.Errorf("warnings %q", warnings.texts)
	}
}

func TestExpressionErrorsFollowFailurePolicy(t *testing.T) {
	s := testserver.Start(t)
	const broken = "  failurePolicy: POLICY\n  validations: [{expression: \"object.data.missing == 'x'\"}]"
	apply(t, s.Client, validating("ignoring", strings.Replace(broken, "POLICY", "Ignore", 1)))
	if _, err := create(t, s.Client, "a", map[string]string{"b": "c"}); err != nil {
		t.Errorf("Ignore: %v", err)
	}
	apply(t, s.Client, validating("failing", strings.Replace(broken, "POLICY", "Fail", 1)))
	_, err := create(t, s.Client, "b", map[string]string{"b": "c"})
	assertError(t, err, "resulted in error: no such key: missing")
}

func TestCostIsBounded(t *testing.T) {
	s := testserver.Start(t)
	// Each item is compared with each, for each of each: a hundred million steps.
	apply(t, s.Client, validating("costly", `  validations: [{expression: "object.data.all(a, object.data.all(b, object.data.all(c, object.data.all(d, a + b + c + d != 'x'))))"}]`))
	data := map[string]string{}
	for i := range 100 {
		data[fmt.Sprint(i)] = "value"
	}
	_, err := create(t, s.Client, "a", data)
	assertError(t, err, "cost")
	if _, err := create(t, s.Client, "b", map[string]string{"a": "b"}); err != nil {
		t.Errorf("a small object: %v", err)
	}
	many := "  validations:\n" + strings.Repeat("  - {expression: \"object.data.all(a, object.data.all(b, object.data.all(c, a + b + c != 'x')))\"}\n", 60)
	remove(t, s.Client, "costly")
	apply(t, s.Client, validating("many", many))
	for k := range data {
		if len(data) > 30 {
			delete(data, k)
		}
	}
	_, err = create(t, s.Client, "c", data)
	assertError(t, err, "validation failed due to running out of cost budget, no further validation rules will be run")
}

func TestAuthorizerAndRequest(t *testing.T) {
	s := testserver.Start(t)
	apply(t, s.Client, validating("rights", `  validations:
  - {expression: "authorizer.group('').resource('secrets').namespace('kube-system').check('get').allowed()", message: "you cannot read secrets"}
  - {expression: "authorizer.requestResource.check('create').allowed()"}
  - {expression: "request.userInfo.groups.exists(g, g == 'system:authenticated') && request.operation == 'CREATE' && request.resource.resource == 'configmaps' && !request.dryRun"}
  - {expression: "request.options.fieldManager == 'tester'", messageExpression: "'manager ' + request.options.fieldManager"}`))
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	options := metav1.CreateOptions{FieldManager: "tester"}
	if _, err := s.Client.CoreV1().ConfigMaps("default").Create(t.Context(), cm, options); err != nil {
		t.Errorf("an administrator: %v", err)
	}
	if _, err := s.Client.RbacV1().RoleBindings("default").Create(t.Context(), roleBinding("edit", "jane"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	jane := kubernetes.NewForConfigOrDie(s.As("jane", "system:authenticated"))
	cm.Name = "b"
	err := errors.New("cannot create")
	for err != nil && strings.Contains(err.Error(), "cannot create") { // until the role binding is in force
		_, err = jane.CoreV1().ConfigMaps("default").Create(t.Context(), cm, options)
	}
	assertError(t, err, "you cannot read secrets")
}

func TestConfigurationIsExemptFromPolicies(t *testing.T) {
	s := testserver.Start(t)
	const everything = "matchConstraints: {resourceRules: [{apiGroups: ['*'], apiVersions: ['*'], resources: ['*'], operations: ['*']}]}"
	document := validating("never", "  validations: [{expression: 'false'}]")
	i, j := strings.Index(document, "matchConstraints"), strings.Index(document, "\n  validations")
	apply(t, s.Client, document[:i]+everything+document[j:])
	if _, err := create(t, s.Client, "a", nil); err == nil {
		t.Error("nothing refuses a ConfigMap")
	}
	remove(t, s.Client, "never")
	if _, err := create(t, s.Client, "a", nil); err != nil {
		t.Errorf("after the repair: %v", err)
	}
}

func TestMutatingPolicyAppliesConfigurations(t *testing.T) {
	s := testserver.Start(t)
	apply(t, s.Client, `
kind: MutatingAdmissionPolicy
metadata: {name: sidecar}
spec:
  reinvocationPolicy: Never
  matchConstraints: {resourceRules: [{apiGroups: [apps], apiVersions: [v1], resources: [deployments], operations: [CREATE]}]}
  matchConditions: [{name: none-yet, expression: "!object.spec.template.spec.containers.exists(c, c.name == 'proxy')"}]
  variables: [{name: image, expression: "'proxy:' + string(object.spec.replicas)"}]
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: >
        Object{metadata: Object.metadata{labels: {"seen": "yes"}},
          spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{
            containers: [Object.spec.template.spec.containers{name: "proxy", image: variables.image}]}}}}
---
kind: MutatingAdmissionPolicyBinding
metadata: {name: sidecar}
spec: {policyName: sidecar}`)
	d, err := s.Client.AppsV1().Deployments("default").Create(t.Context(), deployment("d", 2), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	containers := d.Spec.Template.Spec.Containers
	if len(containers) != 2 || d.Labels["seen"] != "yes" {
		t.Fatalf("deployment %+v", d)
	}
	i := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == "proxy" })
	if i < 0 || containers[i].Image != "proxy:2" || containers[i].ImagePullPolicy != corev1.PullIfNotPresent || containers[i].TerminationMessagePath == "" {
		t.Errorf("containers %+v", containers)
	}
}

func TestMutatingPolicyPatches(t *testing.T) {
	s := testserver.Start(t)
	apply(t, s.Client, mutating("patch", `  reinvocationPolicy: Never
  mutations:
  - patchType: JSONPatch
    jsonPatch: {expression: "[JSONPatch{op: 'test', path: '/data/a', value: 'no'}, JSONPatch{op: 'add', path: '/data/never', value: 'x'}]"}
  - patchType: JSONPatch
    jsonPatch: {expression: "[JSONPatch{op: 'add', path: '/metadata/labels', value: Object.metadata.labels{x: 'y'}}, JSONPatch{op: 'add', path: '/data/' + jsonpatch.escapeKey('b'), value: object.data.a + '!'}]"}`))
	cm, err := create(t, s.Client, "a", map[string]string{"a": "1"})
	if err != nil {
		t.Fatal(err)
	}
	if cm.Labels["x"] != "y" || cm.Data["b"] != "1!" || cm.Data["never"] != "" {
		t.Errorf("%+v", cm)
	}
}

func TestMutatingPoliciesRunAgainWhenOthersChangeTheObject(t *testing.T) {
	s := testserver.Start(t)
	count := func(name, key, policy string) string {
		return mutating(name, fmt.Sprintf(`  reinvocationPolicy: %s
  mutations:
  - patchType: JSONPatch
    jsonPatch: {expression: "[JSONPatch{op: 'add', path: '/data/%s', value: has(object.data.%[2]s) ? object.data.%[2]s + 'x' : 'x'}]"}`, policy, key))
	}
	apply(t, s.Client, count("a", "first", "IfNeeded"))
	apply(t, s.Client, count("b", "second", "Never"))
	cm, err := create(t, s.Client, "a", map[string]string{"a": "1"})
	if err != nil {
		t.Fatal(err)
	}
	if cm.Data["first"] != "xx" || cm.Data["second"] != "x" {
		t.Errorf("data %v", cm.Data)
	}
}

func TestMutationsThatCannotBeApplied(t *testing.T) {
	s := testserver.Start(t)
	cases := []struct{ name, mutation, want string }{
		{"atomic list", `{patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{dnsConfig: Object.spec.template.spec.dnsConfig{searches: ['a']}}}}}"}}`, "may not mutate atomic arrays, maps or structs: .spec.template.spec.dnsConfig.searches"},
		{"unknown field", `{patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{spec: Object.spec{nonsense: 1}}"}}`, "field not declared in schema"},
		{"mismatched type", `{patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{spec: Object.spec{selector: Object.spec.wrong{}}}"}}`, "type mismatch"},
		{"out of range", `{patchType: JSONPatch, jsonPatch: {expression: "[JSONPatch{op: 'remove', path: '/spec/template/spec/containers/7'}]"}}`, "JSON Patch:"},
		{"error", `{patchType: JSONPatch, jsonPatch: {expression: "[JSONPatch{op: 'add', path: '/x', value: object.missing}]"}}`, "no such key: missing"},
		{"invalid result", `{patchType: JSONPatch, jsonPatch: {expression: "[JSONPatch{op: 'replace', path: '/spec/replicas', value: -1}]"}}`, "spec.replicas: Invalid value: -1"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			apply(t, s.Client, `
kind: MutatingAdmissionPolicy
metadata: {name: m}
spec:
  reinvocationPolicy: Never
  matchConstraints: {resourceRules: [{apiGroups: [apps], apiVersions: [v1], resources: [deployments], operations: [CREATE]}]}
  mutations: [`+c.mutation+`]
---
kind: MutatingAdmissionPolicyBinding
metadata: {name: m}
spec: {policyName: m}`)
			_, err := s.Client.AppsV1().Deployments("default").Create(t.Context(), deployment("d", 2), metav1.CreateOptions{})
			assertError(t, err, c.want)
			r := s.Client.AdmissionregistrationV1()
			if err := r.MutatingAdmissionPolicies().Delete(t.Context(), "m", metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
			if err := r.MutatingAdmissionPolicyBindings().Delete(t.Context(), "m", metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
}
