package conformance

import (
	"fmt"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/types"
)

var fieldValidation = map[string]func(*testing.T){
	"should detect unknown and duplicate fields of a typed object":                           typedUnknownAndDuplicate,
	"should detect unknown metadata fields of a typed object":                                typedUnknownMetadata,
	"should detect duplicates in a CR when preserving unknown fields":                        customDuplicates,
	"should detect unknown metadata fields in both the root and embedded object of a CR":     customUnknownMetadata,
	"should create/apply a CR with unknown fields for CRD with no validation schema":         customWithoutSchema,
	"should create/apply a valid CR for CRD with validation schema":                          customValid,
	"should create/apply an invalid CR with extra properties for CRD with validation schema": customExtraProperties,
}

// applyStrict sends a body by server-side apply with strict field validation.
func applyStrict(t *testing.T, path, body string) error {
	t.Helper()
	return client.Discovery().RESTClient().Patch(types.ApplyPatchType).AbsPath(path).
		Param("fieldManager", "conformance").Param("fieldValidation", "Strict").Body([]byte(body)).Do(t.Context()).Error()
}

func createStrict(t *testing.T, path, body string) error {
	t.Helper()
	return client.Discovery().RESTClient().Post().AbsPath(path).SetHeader("Content-Type", "application/json").
		Param("fieldValidation", "Strict").Body([]byte(body)).Do(t.Context()).Error()
}

func assertRefused(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("it was taken; wanted %v", parts)
		return
	}
	contains(t, err.Error(), parts...)
}

const deploymentBody = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"%s},"spec":{%s"selector":{"matchLabels":{"app":"x"}},"template":{"metadata":{"labels":{"app":"x"}},"spec":{"containers":[{"name":"c","image":"nginx"}]}}}}`

func typedUnknownAndDuplicate(t *testing.T) {
	path := fmt.Sprintf("/apis/apps/v1/namespaces/%s/deployments", newNamespace(t))
	body := fmt.Sprintf(deploymentBody, "", `"unknown1":"val1","unknownDupe":"valDupe","unknownDupe":"valDupe2","paused":true,"paused":false,`)
	assertRefused(t, createStrict(t, path, body), `strict decoding error`, `unknown field "spec.unknown1"`, `unknown field "spec.unknownDupe"`, `duplicate field "spec.paused"`)
}

func typedUnknownMetadata(t *testing.T) {
	path := fmt.Sprintf("/apis/apps/v1/namespaces/%s/deployments", newNamespace(t))
	body := fmt.Sprintf(deploymentBody, `,"unknownMeta":"foo"`, "")
	assertRefused(t, createStrict(t, path, body), `strict decoding error`, `unknown field "metadata.unknownMeta"`)
}

func customPath(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition) string {
	t.Helper()
	return fmt.Sprintf("/apis/%s/v1/namespaces/%s/%s", crd.Spec.Group, newNamespace(t), crd.Spec.Names.Plural)
}

func customBody(crd *apiextensionsv1.CustomResourceDefinition, metadata, fields string) string {
	return fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":"mycr"%s},%s}`, crd.Spec.Group+"/v1", crd.Spec.Names.Kind, metadata, fields)
}

// portSchema is a spec with a number, a list of ports and an embedded object.
func portSchema(preserve bool) *apiextensionsv1.CustomResourceValidation {
	text, number := apiextensionsv1.JSONSchemaProps{Type: "string"}, apiextensionsv1.JSONSchemaProps{Type: "integer"}
	props := apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
		"spec": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"knownField1": text, "foo": text, "cronSpec": text,
			"ports": {
				Type: "array", XListType: new("map"), XListMapKeys: []string{"containerPort", "protocol"},
				Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", Required: []string{"containerPort", "protocol"},
					Properties: map[string]apiextensionsv1.JSONSchemaProps{"containerPort": number, "hostIP": text, "hostPort": number, "name": text, "protocol": text},
				}},
			},
			"embeddedObj": {Type: "object", XEmbeddedResource: true, Properties: map[string]apiextensionsv1.JSONSchemaProps{
				"apiVersion": text, "kind": text, "metadata": {Type: "object"},
			}},
		}},
	}}
	if preserve {
		spec := props.Properties["spec"]
		spec.XPreserveUnknownFields = new(true)
		props.Properties["spec"] = spec
	}
	return objectSchema(props)
}

func withPorts(preserve bool) func(*apiextensionsv1.CustomResourceDefinition) {
	return func(crd *apiextensionsv1.CustomResourceDefinition) {
		crd.Spec.Versions[0].Schema = portSchema(preserve)
	}
}

const validSpec = `"spec":{"cronSpec":"* * * * */5","ports":[{"name":"x","containerPort":80,"protocol":"TCP"}]}`

func customDuplicates(t *testing.T) {
	crd := newDefinition(t, withPorts(true))
	path := customPath(t, crd)
	body := customBody(crd, "", `"spec":{"unknown":"uk1","cronSpec":"* * * * */5","cronSpec":"* * * * */6"}`)
	assertRefused(t, applyStrict(t, path+"/mycr", body), `key "cronSpec" already set in map`)
	assertRefused(t, createStrict(t, path, body), `duplicate field "spec.cronSpec"`)
}

func customUnknownMetadata(t *testing.T) {
	crd := newDefinition(t, withPorts(false))
	path := customPath(t, crd)
	body := customBody(crd, `,"unknownMeta":"unknown"`, `"spec":{"embeddedObj":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"my-cm","namespace":"my-ns","embeddedUnknown":true}}}`)
	for _, err := range []error{createStrict(t, path, body), applyStrict(t, path+"/mycr", body)} {
		assertRefused(t, err, "metadata.unknownMeta", "spec.embeddedObj.metadata.embeddedUnknown")
	}
}

func customWithoutSchema(t *testing.T) {
	crd := newDefinition(t, nil)
	path := customPath(t, crd)
	body := customBody(crd, "", `"spec":{"foo":"foo1","cronSpec":"* * * * */5","any":{"deep":[1,2]}}`)
	must(t, applyStrict(t, path+"/mycr", body))
	must(t, applyStrict(t, path+"/mycr", customBody(crd, "", `"free":1`)))
}

func customValid(t *testing.T) {
	crd := newDefinition(t, withPorts(false))
	path := customPath(t, crd)
	must(t, applyStrict(t, path+"/mycr", customBody(crd, "", validSpec)))
	must(t, applyStrict(t, path+"/mycr", customBody(crd, "", validSpec)))
}

func customExtraProperties(t *testing.T) {
	crd := newDefinition(t, withPorts(false))
	path := customPath(t, crd)
	body := customBody(crd, "", `"spec":{"extraProperty":"arbitrary-value","cronSpec":"* * * * */5"}`)
	assertRefused(t, applyStrict(t, path+"/mycr", body), "extraProperty")
	assertRefused(t, createStrict(t, path, body), `unknown field "spec.extraProperty"`)
}
