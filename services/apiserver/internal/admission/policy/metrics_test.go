package policy_test

import (
	"strings"
	"testing"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

func TestPoliciesAreMeasured(t *testing.T) {
	s := testserver.Start(t)
	for _, document := range []string{
		validating("denies", `  validations: [{expression: "object.data.size() < 2"}]`),
		validating("warns", `  validations: [{expression: "object.data.size() < 2"}]`, "Warn", "Audit"),
		validating("breaks", `  failurePolicy: Ignore
  matchConditions: [{name: broken, expression: "object.data.missing == 'x'"}]
  validations: [{expression: "true"}]`),
		mutating("mutates", `  reinvocationPolicy: Never
  mutations: [{patchType: JSONPatch, jsonPatch: {expression: "[JSONPatch{op: 'add', path: '/data/more', value: 'x'}]"}}]`),
	} {
		apply(t, s.Client, document)
	}
	_, err := create(t, s.Client, "a", map[string]string{"k": "v"})
	assertError(t, err, "ValidatingAdmissionPolicy 'denies' with binding 'denies' denied request: failed expression: object.data.size() < 2")
	data, err := s.Client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`apiserver_validating_admission_policy_check_total{enforcement_action="deny",error_type="invalid_error",policy="denies",policy_binding="denies"} 1`,
		`apiserver_validating_admission_policy_check_total{enforcement_action="warn",error_type="invalid_error",policy="warns",policy_binding="warns"} 1`,
		`apiserver_validating_admission_policy_check_total{enforcement_action="audit",error_type="invalid_error",policy="warns",policy_binding="warns"} 1`,
		`apiserver_validating_admission_policy_check_total{enforcement_action="allow",error_type="invalid_error",policy="breaks",policy_binding="breaks"} 1`,
		`apiserver_validating_admission_policy_check_duration_seconds_count{enforcement_action="deny",error_type="invalid_error",policy="denies",policy_binding="denies"} 1`,
		`apiserver_mutating_admission_policy_check_total{error_type="no_error",policy="mutates",policy_binding="mutates"} 1`,
		`apiserver_admission_match_condition_evaluation_errors_total{kind="policy",name="breaks",operation="CREATE",type="validate"} 1`,
		`apiserver_admission_match_condition_evaluation_seconds_count{kind="policy",name="breaks",operation="CREATE",type="validate"} 1`,
	} {
		if !strings.Contains(string(data), want) {
			t.Errorf("metrics lack %s", want)
		}
	}
}
