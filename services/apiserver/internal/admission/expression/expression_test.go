package expression_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/cel-go/common/types"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission/expression"
	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
)

// variables are those of a request to create obj.
func variables(obj runtime.Object) expression.Variables {
	all, own := expression.AuthorizerValues(authz.Masters{}, &authn.User{Name: "root", Groups: []string{authn.MastersGroup}}, expression.Resource{Name: "a"})
	return expression.Variables{
		Object: expression.Value(obj), OldObject: types.NullValue, Authorizer: all, RequestResource: own,
		Request:   expression.RequestValue(&admissionv1.AdmissionRequest{Operation: admissionv1.Create, Name: "a"}),
		Namespace: expression.NamespaceValue(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}),
	}
}

func configMap() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"x": "y"}}, Data: map[string]string{"k": "v"}}
}

func TestExpressionsSeeTheRequest(t *testing.T) {
	environments := expression.NewEnvironments()
	untyped := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "a", "labels": map[string]any{"x": "y"}}, "data": map[string]any{"k": "v"}}}
	for _, source := range []string{
		"object.metadata.name == 'a' && object.data.k == 'v' && object.metadata.?labels['x'].orValue('') == 'y'",
		"!has(object.metadata.annotations) && oldObject == null && params == null",
		"request.operation == 'CREATE' && request.name == 'a' && namespaceObject.metadata.name == 'default'",
		"authorizer.group('').resource('pods').check('get').allowed() && authorizer.requestResource.check('create').allowed()",
		"object.data.map(k, k + object.data[k]).join(',') == 'kv'",
	} {
		program, problem := environments.Compile(expression.Declarations{Params: true, Authorizer: true}, expression.New, source)
		if problem != nil {
			t.Errorf("%s: %v", source, problem)
			continue
		}
		for _, obj := range []runtime.Object{configMap(), untyped} {
			vars, budget := variables(obj), expression.Budget(1000000)
			if value, err := program.Run(t.Context(), &vars, &budget); err != nil || value != types.True {
				t.Errorf("%s of a %T: %v, %v", source, obj, value, err)
			}
		}
	}
}

func TestVariablesAreEvaluatedOnceAndOnlyWhenAsked(t *testing.T) {
	environments := expression.NewEnvironments()
	scope, err := environments.Scope(expression.Declarations{}, true)
	if err != nil {
		t.Fatal(err)
	}
	for name, source := range map[string]string{"broken": "object.missing", "name": "object.metadata.name"} {
		if problem := scope.Variable(name, expression.New, source); problem != nil {
			t.Fatal(problem)
		}
	}
	if problem := scope.Variable("long", expression.New, "variables.name + '!'"); problem != nil {
		t.Fatal(problem)
	}
	run := func(source string) (any, error) {
		program, problem := scope.Compile(expression.New, source)
		if problem != nil {
			t.Fatal(problem)
		}
		vars, budget := variables(configMap()), expression.Budget(1000)
		value, err := program.Run(t.Context(), vars.With(scope, nil), &budget)
		if err != nil {
			return nil, err
		}
		return value.Value(), nil
	}
	if got, err := run("variables.long"); err != nil || got != "a!" {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := run("variables.broken == 'x'"); err == nil || !strings.Contains(err.Error(), `composited variable "broken" fails to evaluate: no such key: missing`) {
		t.Errorf("%v", err)
	}
}

func TestBudgetIsShared(t *testing.T) {
	program, problem := expression.NewEnvironments().Compile(expression.Declarations{}, expression.New, "object.data.all(a, a != 'x')")
	if problem != nil {
		t.Fatal(problem)
	}
	vars, budget := variables(configMap()), expression.Budget(20)
	var spent *expression.OutOfBudgetError
	for range 20 {
		if _, err := program.Run(t.Context(), &vars, &budget); errors.As(err, &spent) {
			return
		}
	}
	t.Error("twenty runs within a budget of twenty")
}

// FuzzExpressions compiles and runs whatever an author may write: that may fail,
// but must neither panic nor take long.
func FuzzExpressions(f *testing.F) {
	for _, seed := range []string{
		"true", "object", "object.data.all(k, object.data.exists(l, k + l == 'kv'))", "[1,2,3].map(x, [x].map(y, [y].map(z, z)))",
		"'a'.matches('(a*)*$')", "object.metadata.name.split('').join('').repeat(9)", "Object{spec: Object.spec{a: 1}}",
		"[JSONPatch{op: 'add', path: '/a', value: {'b': [1, 'c', null]}}]", "authorizer.group('').resource('pods').check('get').allowed()",
		"request.userInfo.groups[99]", "duration('1h') > duration('1s') && timestamp('2020-01-01T00:00:00Z').getFullYear() == 2020",
		"quantity('1Gi').isGreaterThan(quantity('1'))", "cel.bind(x, object.data, x.size())", strings.Repeat("(", 200), strings.Repeat("!", 300) + "true",
		strings.Repeat("[", 100) + strings.Repeat("]", 100), "1/0", "-9223372036854775808 - 1", "string(b'\\xff')", "{}[{}]",
	} {
		f.Add(seed)
	}
	environments := expression.NewEnvironments()
	f.Fuzz(func(t *testing.T, source string) {
		for _, d := range []expression.Declarations{{Params: true, Authorizer: true}, {Authorizer: true, Patches: true}} {
			program, problem := environments.Compile(d, expression.New, source)
			if problem != nil {
				continue
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			vars, budget := variables(configMap()), expression.Budget(1000000)
			_, _ = program.Run(ctx, &vars, &budget)
			if ctx.Err() != nil {
				t.Errorf("%q runs for ten seconds", source)
			}
			cancel()
		}
	})
}
