package customresource_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

const ruledSchema = `
type: object
properties:
  spec:
    type: object
    x-kubernetes-validations:
    - rule: self.min <= self.max
      messageExpression: "self.min > 15 ? 'min is far above max' : 'min is above max'"
      fieldPath: .min
      reason: FieldValueForbidden
    properties:
      min: {type: integer, default: 0}
      max: {type: integer, default: 10}
      fixed:
        type: string
        x-kubernetes-validations:
        - {rule: self == oldSelf, message: fixed cannot change}
      grows:
        type: integer
        x-kubernetes-validations:
        - rule: "oldSelf.hasValue() ? self >= oldSelf.value() : self == 1"
          optionalOldSelf: true
          message: grows starts at 1 and never shrinks
      word:
        type: string
        maxLength: 10
        x-kubernetes-validations:
        - {rule: "self.startsWith('x')", message: word must start with x}
`

func ruled(name string, spec map[string]any) *unstructured.Unstructured {
	return object("example.com/v1", "Ruled", name, spec)
}

func TestRulesOfCustomResources(t *testing.T) {
	server := testserver.Start(t)
	ruleds := mustDefine(t, server, definition("example.com", "Ruled", ruledSchema)).Namespace("default")
	ctx := context.Background()
	_, err := ruleds.Create(ctx, ruled("a", map[string]any{"min": int64(20)}), metav1.CreateOptions{})
	var status *apierrors.StatusError
	if !errors.As(err, &status) || len(status.ErrStatus.Details.Causes) != 1 {
		t.Fatalf("rule: %v", err)
	}
	if cause := status.ErrStatus.Details.Causes[0]; cause.Type != metav1.CauseTypeForbidden || cause.Field != "spec.min" || !strings.Contains(cause.Message, "min is far above max") {
		t.Errorf("cause: %+v", cause)
	}
	if _, err := ruleds.Create(ctx, ruled("a", map[string]any{"grows": int64(2)}), metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), "grows starts at 1") {
		t.Errorf("optional old self on create: %v", err)
	}
	obj, err := ruleds.Create(ctx, ruled("a", map[string]any{"grows": int64(1), "fixed": "f"}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		field string
		value any
		want  string
	}{
		{"fixed", "g", "fixed cannot change"}, {"grows", int64(0), "never shrinks"}, {"grows", int64(5), ""},
	} {
		changed := obj.DeepCopy()
		if err := unstructured.SetNestedField(changed.Object, test.value, "spec", test.field); err != nil {
			t.Fatal(err)
		}
		_, err := ruleds.Update(ctx, changed, metav1.UpdateOptions{})
		if test.want == "" && err != nil || test.want != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s = %v: %v, want %q", test.field, test.value, err, test.want)
		}
	}
}

func TestWhatWasInvalidBeforeMayStayButNotChange(t *testing.T) {
	server := testserver.Start(t)
	d := definition("example.com", "Ruled", strings.ReplaceAll(ruledSchema, "self.startsWith('x')", "'true' == 'true'"))
	ruleds := mustDefine(t, server, d).Namespace("default")
	ctx := context.Background()
	if _, err := ruleds.Create(ctx, ruled("a", map[string]any{"word": "abc"}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	mustChange(t, server, d.Name, func(d *definitionObject) { d.Spec.Versions[0].Schema.OpenAPIV3Schema = mustSchema(ruledSchema) })
	awaitServed(t, func() bool {
		_, err := ruleds.Create(ctx, ruled("b", map[string]any{"word": "abc"}), metav1.CreateOptions{DryRun: []string{"All"}})
		return apierrors.IsInvalid(err)
	})
	update := func(field string, value any) error {
		obj, err := ruleds.Get(ctx, "a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := unstructured.SetNestedField(obj.Object, value, "spec", field); err != nil {
			t.Fatal(err)
		}
		_, err = ruleds.Update(ctx, obj, metav1.UpdateOptions{})
		return err
	}
	if err := update("max", int64(11)); err != nil {
		t.Errorf("a change beside what is invalid: %v", err)
	}
	if err := update("word", "def"); !apierrors.IsInvalid(err) {
		t.Errorf("a change to another invalid value: %v", err)
	}
	if err := update("word", "xyz"); err != nil {
		t.Errorf("a change to a valid value: %v", err)
	}
}

func TestRulesThatCostTooMuchAreRefused(t *testing.T) {
	server := testserver.Start(t)
	for name, schema := range map[string]string{
		"rule cost exceeds budget": `
type: object
properties:
  spec:
    type: array
    items:
      type: array
      items:
        type: array
        items:
          type: string
          x-kubernetes-validations: [{rule: "self.contains('x')"}]
`,
		"undefined field": `
type: object
properties:
  spec: {type: object, x-kubernetes-validations: [{rule: self.nothing == 1}]}
`,
		"Syntax error": `
type: object
properties:
  spec: {type: object, x-kubernetes-validations: [{rule: "self =="}]}
`,
	} {
		_, err := definitions(t, server).ApiextensionsV1().CustomResourceDefinitions().Create(context.Background(), definition("example.com", "Costly", schema), metav1.CreateOptions{})
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
