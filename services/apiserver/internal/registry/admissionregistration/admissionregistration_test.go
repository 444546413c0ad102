package admissionregistration_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission/expression"
	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/admissionregistration"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
)

func resourceOf(t *testing.T, name string, deps admissionregistration.Deps) *registry.Resource {
	t.Helper()
	deps.Environments = expression.NewEnvironments()
	for _, r := range admissionregistration.Resources(deps) {
		if r.Resource == name {
			return r
		}
	}
	t.Fatalf("no resource %s", name)
	return nil
}

// faults are what is wrong with a document, each a line, after defaulting.
func faults(t *testing.T, r *registry.Resource, document string) []string {
	t.Helper()
	obj := parsed(t, r, document)
	var out []string
	for _, err := range r.Strategy.Validate(context.Background(), obj) {
		out = append(out, err.Error())
	}
	return out
}

func parsed(t *testing.T, r *registry.Resource, document string) runtime.Object {
	t.Helper()
	obj := r.New()
	if err := yaml.UnmarshalStrict([]byte(document), obj); err != nil {
		t.Fatal(err)
	}
	r.Strategy.Default(obj)
	return obj
}

func assertFaults(t *testing.T, got []string, want ...string) {
	t.Helper()
	for _, fault := range want {
		if !slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, fault) }) {
			t.Errorf("missing fault %q in %q", fault, got)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d faults, want %d: %q", len(got), len(want), got)
	}
}

const goodWebhook = `
metadata: {name: w}
webhooks:
- name: a.example.com
  sideEffects: None
  admissionReviewVersions: [v1]
  clientConfig: {service: {namespace: ns, name: svc, path: /x}}
  rules: [{apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE]}]
`

func TestWebhookConfigurationsAreDefaulted(t *testing.T) {
	for _, name := range []string{"mutatingwebhookconfigurations", "validatingwebhookconfigurations"} {
		r := resourceOf(t, name, admissionregistration.Deps{})
		assertFaults(t, faults(t, r, goodWebhook))
		data, err := json.Marshal(parsed(t, r, goodWebhook))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{`"timeoutSeconds":10`, `"failurePolicy":"Fail"`, `"matchPolicy":"Equivalent"`, `"port":443`, `"scope":"*"`, `"namespaceSelector":{}`, `"objectSelector":{}`} {
			if !strings.Contains(string(data), want) {
				t.Errorf("%s: %s lacks %s", name, data, want)
			}
		}
		if mutating := strings.Contains(string(data), `"reinvocationPolicy":"Never"`); mutating != (name == "mutatingwebhookconfigurations") {
			t.Errorf("%s: reinvocationPolicy in %s", name, data)
		}
	}
}

func TestWebhookConfigurationsAreValidated(t *testing.T) {
	r := resourceOf(t, "validatingwebhookconfigurations", admissionregistration.Deps{})
	cases := []struct {
		name, from, to string
		want           []string
	}{
		{"no side effects", "sideEffects: None", "", []string{"webhooks[0].sideEffects: Required value: must specify one of None, NoneOnDryRun"}},
		{"side effects", "sideEffects: None", "sideEffects: Some", []string{`webhooks[0].sideEffects: Unsupported value: "Some": supported values: "None", "NoneOnDryRun"`}},
		{"no versions", "admissionReviewVersions: [v1]", "", []string{"webhooks[0].admissionReviewVersions: Required value: must specify one of v1, v1beta1"}},
		{"old version", "[v1]\n  client", "[v1beta1]\n  client", []string{"must include v1"}},
		{"name", "a.example.com", "a", []string{`webhooks[0].name: Invalid value: "a": should be a domain with at least three segments separated by dots`}},
		{"timeout", "sideEffects: None", "sideEffects: None\n  timeoutSeconds: 31", []string{"the timeout value must be between 1 and 30 seconds"}},
		{"plain url", "{service: {namespace: ns, name: svc, path: /x}}", "{url: 'http://a/b'}", []string{"'https' is the only allowed URL scheme"}},
		{"url with query", "{service: {namespace: ns, name: svc, path: /x}}", "{url: 'https://u@a/b?c#d'}", []string{"user information", "fragments", "query parameters"}},
		{"neither", "{service: {namespace: ns, name: svc, path: /x}}", "{}", []string{"exactly one of url or service is required"}},
		{"operations", "[CREATE]", "['*', CREATE]", []string{"if '*' is present, must not specify other operations"}},
		{"resources", "[pods]", "['*/*', pods, 'a/*', 'a/b']", []string{"if '*/*' is present, must not specify a/*", "if 'a/*' is present, must not specify a/b", "if '*/*' is present, must not specify other resources"}},
		{"condition", "sideEffects: None", "sideEffects: None\n  matchConditions: [{name: x, expression: 'object.x > '}]", []string{"webhooks[0].matchConditions[0].expression: Invalid value: \"object.x >\": compilation failed"}},
		{"condition type", "sideEffects: None", "sideEffects: None\n  matchConditions: [{name: x, expression: '1'}, {name: x, expression: 'true'}]", []string{"must evaluate to bool but got int", `matchConditions[1].name: Duplicate value: "x"`}},
		{"params", "sideEffects: None", "sideEffects: None\n  matchConditions: [{name: x, expression: 'params == null'}]", []string{"undeclared reference to 'params'"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			document := strings.Replace(goodWebhook, c.from, c.to, 1)
			if document == goodWebhook {
				t.Fatal("the case changes nothing")
			}
			assertFaults(t, faults(t, r, document), c.want...)
		})
	}
}

func TestWebhookConfigurationUpdateKeepsWhatIsStored(t *testing.T) {
	r := resourceOf(t, "validatingwebhookconfigurations", admissionregistration.Deps{})
	old := parsed(t, r, strings.Replace(goodWebhook, "sideEffects: None", "sideEffects: Some", 1))
	if errs := r.Strategy.ValidateUpdate(context.Background(), old.DeepCopyObject(), old); len(errs) > 0 {
		t.Errorf("an unchanged configuration is refused: %v", errs)
	}
}

const goodPolicy = `
metadata: {name: p}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [apps], apiVersions: [v1], resources: [deployments], operations: [CREATE, UPDATE]}]
  variables: [{name: replicas, expression: object.spec.replicas}]
  validations: [{expression: variables.replicas <= 5, messageExpression: "'not ' + string(variables.replicas)"}]
`

func TestValidatingPoliciesAreValidated(t *testing.T) {
	r := resourceOf(t, "validatingadmissionpolicies", admissionregistration.Deps{})
	assertFaults(t, faults(t, r, goodPolicy))
	assertFaults(t, faults(t, r, "metadata: {name: p}"), "spec.matchConstraints: Required value",
		"spec.validations: Required value", "spec.auditAnnotations: Required value")
	cases := []struct {
		name, from, to string
		want           []string
	}{
		{"unknown variable", "variables.replicas <= 5", "variables.other <= 5", []string{"undefined field 'other'"}},
		{"type of a variable", "variables.replicas <= 5", "variables.replicas", []string{"must evaluate to bool but got dyn"}},
		{"type of a literal", "variables.replicas <= 5", "\"'a'\"", []string{"must evaluate to bool but got string"}},
		{"message type", `"'not ' + string(variables.replicas)"`, `"1"`, []string{"must evaluate to string but got int"}},
		{"message asks the authorizer", `"'not ' + string(variables.replicas)"`, `"string(authorizer.group('').resource('pods').check('get').allowed())"`, []string{"undeclared reference to 'authorizer'"}},
		{"variable name", "name: replicas", "name: in", []string{"name is not a valid CEL identifier", "undefined field 'replicas'", "undefined field 'replicas'"}},
		{"reason", "messageExpression", "reason: Gone, messageExpression", []string{`spec.validations[0].reason: Unsupported value: "Gone"`}},
		{"cost", "variables.replicas <= 5", "true", nil},
		{"param kind", "matchConstraints:", "paramKind: {apiVersion: a/b/c, kind: 'X Y'}\n  matchConstraints:", []string{"spec.paramKind.apiVersion: Invalid value", "spec.paramKind.kind: Invalid value"}},
		{"audit key", "validations:", "auditAnnotations: [{key: 'a b', valueExpression: '1'}]\n  validations:", []string{"spec.auditAnnotations[0].key", "must evaluate to one of [string null_type] but got int"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			document := strings.Replace(goodPolicy, c.from, c.to, 1)
			if document == goodPolicy {
				t.Fatal("the case changes nothing")
			}
			assertFaults(t, faults(t, r, document), c.want...)
		})
	}
}

const goodMutation = `
metadata: {name: m}
spec:
  reinvocationPolicy: IfNeeded
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE]}]
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration: {expression: "Object{metadata: Object.metadata{labels: {'a': 'b'}}}"}
  - patchType: JSONPatch
    jsonPatch: {expression: "[JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('x/y'), value: 'z'}]"}
`

func TestMutatingPoliciesAreValidated(t *testing.T) {
	r := resourceOf(t, "mutatingadmissionpolicies", admissionregistration.Deps{})
	assertFaults(t, faults(t, r, goodMutation))
	assertFaults(t, faults(t, r, "metadata: {name: m}"), "spec.matchConstraints: Required value", "spec.mutations: Required value: mutations must contain at least one item", "spec.reinvocationPolicy: Required value")
	cases := []struct {
		name, from, to string
		want           []string
	}{
		{"operation", "[CREATE]", "[DELETE]", []string{`spec.matchConstraints.resourceRules.operations: Unsupported value: "DELETE": supported values: "*", "CONNECT", "CREATE", "UPDATE"`}},
		{"patch type", "patchType: JSONPatch", "patchType: Merge", []string{`Unsupported value: "Merge": supported values: "ApplyConfiguration", "JSONPatch"`}},
		{"wrong part", "patchType: JSONPatch", "patchType: ApplyConfiguration", []string{"must not be specified when patchType is ApplyConfiguration", "must be specified when patchType is ApplyConfiguration"}},
		{"wrong type", `"Object{metadata: Object.metadata{labels: {'a': 'b'}}}"`, `"'a'"`, []string{"must evaluate to Object but got string"}},
		{"reinvocation", "IfNeeded", "Sometimes", []string{`spec.reinvocationPolicy: Unsupported value: "Sometimes": supported values: "IfNeeded", "Never"`}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			assertFaults(t, faults(t, r, strings.Replace(goodMutation, c.from, c.to, 1)), c.want...)
		})
	}
}

func TestBindingsAreValidated(t *testing.T) {
	r := resourceOf(t, "validatingadmissionpolicybindings", admissionregistration.Deps{})
	assertFaults(t, faults(t, r, "metadata: {name: b}\nspec: {policyName: p, validationActions: [Deny, Audit], paramRef: {name: x, parameterNotFoundAction: Deny}, matchResources: {}}"))
	assertFaults(t, faults(t, r, "metadata: {name: b}"), "spec.policyName: Required value", "spec.validationActions: Required value: at least one validation action is required")
	assertFaults(t, faults(t, r, "metadata: {name: b}\nspec: {policyName: p, validationActions: [Deny, Warn, Deny], paramRef: {name: x, selector: {}}}"),
		"must not contain both Deny and Warn", "spec.validationActions[2]: Duplicate value", "spec.paramRef.name: Forbidden", "spec.paramRef.selector: Forbidden",
		"spec.paramRef.parameterNotFoundAction: Required value")
	r = resourceOf(t, "mutatingadmissionpolicybindings", admissionregistration.Deps{})
	assertFaults(t, faults(t, r, "metadata: {name: b}\nspec: {policyName: p, matchResources: {resourceRules: [{apiGroups: [''], apiVersions: [v1], resources: [pods], operations: [DELETE]}]}}"),
		`spec.matchResources.resourceRules.operations: Unsupported value: "DELETE"`)
}

// nobody denies everything.
type nobody struct{}

func (nobody) Authorize(context.Context, authz.Attributes) (authz.Decision, string, error) {
	return authz.NoOpinion, "", nil
}

func TestAuthorsOfPoliciesMustBeAbleToReadParameters(t *testing.T) {
	ctx := request.WithUser(context.Background(), &authn.User{Name: "jane"})
	deps := admissionregistration.Deps{Authorizer: nobody{}}
	r := resourceOf(t, "validatingadmissionpolicies", deps)
	obj := parsed(t, r, strings.Replace(goodPolicy, "matchConstraints:", "paramKind: {apiVersion: v1, kind: Secret}\n  matchConstraints:", 1))
	errs := r.Strategy.Validate(ctx, obj)
	if len(errs) != 1 || !strings.Contains(errs[0].Error(), `user jane must have "get" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)`) {
		t.Errorf("policy: %v", errs)
	}
	if errs := r.Strategy.ValidateUpdate(ctx, obj, obj); len(errs) > 0 {
		t.Errorf("an update that does not change the kind: %v", errs)
	}
	r = resourceOf(t, "validatingadmissionpolicybindings", deps)
	errs = r.Strategy.Validate(ctx, parsed(t, r, "metadata: {name: b}\nspec: {policyName: p, validationActions: [Deny], paramRef: {name: x, parameterNotFoundAction: Deny}}"))
	if len(errs) != 1 || !strings.Contains(errs[0].Error(), `user jane does not have "get" permission on the object referenced by paramRef`) {
		t.Errorf("binding: %v", errs)
	}
}
