package openapi

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// Models that operations refer to beside the kinds themselves.
const (
	metaPrefix         = "io.k8s.apimachinery.pkg.apis.meta.v1."
	modelStatus        = metaPrefix + "Status"
	modelDeleteOptions = metaPrefix + "DeleteOptions"
	modelPatch         = metaPrefix + "Patch"
	modelResourceList  = metaPrefix + "APIResourceList"
	modelScale         = "io.k8s.api.autoscaling.v1.Scale"
)

// operation is one method of one path, before it is rendered for a version of
// OpenAPI.
type operation struct {
	method     string // lower-case
	id         string
	about      string
	action     string // x-kubernetes-action
	kind       schema.GroupVersionKind
	body       string // model, "" is none
	answer     string // model, "" is a string
	patch      bool
	created    bool // answers 201 too
	untyped    bool // of a kind without a Go type
	parameters []parameter
}

type parameter struct {
	name, in, kind, about string
	required              bool
}

// paths are operations by path.
type paths map[string][]operation

func (p paths) add(path string, op operation) { p[path] = append(p[path], op) }

// groupPaths are the paths of one group version's resources.
func groupPaths(gv schema.GroupVersion, resources []*registry.Resource) paths {
	out := paths{}
	root := "/apis/" + gv.String()
	if gv.Group == "" {
		root = "/api/" + gv.Version
	}
	out.add(root+"/", operation{method: "get", id: "get" + title(gv) + "APIResources", about: "get available resources", answer: modelResourceList})
	for _, r := range resources {
		b := builder{paths: out, root: root, resource: r, title: title(gv), model: kindModel(r)}
		b.addResource()
	}
	return out
}

type builder struct {
	paths    paths
	root     string
	resource *registry.Resource
	title    string // "AppsV1"
	model    string
}

func (b *builder) addResource() {
	r := b.resource
	verbs := r.Verbs
	if verbs == nil {
		verbs = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	}
	has := func(verb string) bool { return slices.Contains(verbs, verb) }
	scope, base, collection := "", b.root+"/"+r.GroupVersionResource.Resource, []parameter(nil)
	if r.Namespaced {
		if has("list") {
			b.paths.add(base, b.op("get", "list", "", "ForAllNamespaces", list(r), listParameters))
		}
		scope, base = "Namespaced", b.root+"/namespaces/{namespace}/"+r.GroupVersionResource.Resource
		collection = []parameter{namespaceParameter}
	}
	if has("list") {
		b.paths.add(base, b.op("get", "list", scope, "", list(r), listParameters, collection))
	}
	if has("create") {
		op := b.op("post", "create", scope, "", b.model, writeParameters, collection)
		op.body, op.created = b.model, true
		b.paths.add(base, op)
	}
	if has("deletecollection") {
		op := b.op("delete", "deleteCollection", scope, "", modelStatus, listParameters, deleteParameters, collection)
		op.action, op.body = "deletecollection", modelDeleteOptions
		b.paths.add(base, op)
	}
	item := append([]parameter{nameParameter}, collection...)
	b.addItem(base+"/{name}", scope, "", b.model, has, item)
	for _, sub := range r.Subresources {
		b.addSubresource(base+"/{name}/"+sub.Name, scope, sub, item)
	}
}

func (b *builder) addItem(path, scope, suffix, model string, has func(string) bool, item []parameter) {
	if has("get") {
		b.paths.add(path, b.op("get", "read", scope, suffix, model, item))
	}
	if has("update") {
		op := b.op("put", "replace", scope, suffix, model, writeParameters, item)
		op.body, op.created = model, true
		b.paths.add(path, op)
	}
	if has("patch") {
		op := b.op("patch", "patch", scope, suffix, model, patchParameters, item)
		op.body, op.patch, op.created = modelPatch, true, true
		b.paths.add(path, op)
	}
	if has("delete") {
		answer := modelStatus
		if b.resource.ReturnDeleted || b.resource.Strategy != nil && b.resource.Strategy.GracePeriod != nil {
			answer = model
		}
		op := b.op("delete", "delete", scope, suffix, answer, deleteParameters, item)
		op.body = modelDeleteOptions
		b.paths.add(path, op)
	}
}

func (b *builder) addSubresource(path, scope string, sub registry.Subresource, item []parameter) {
	suffix := upper(sub.Name)
	has := func(verb string) bool { return slices.Contains(sub.Verbs, verb) }
	switch {
	case sub.Update != nil:
		b.addItem(path, scope, suffix, b.model, func(v string) bool { return v != "delete" && has(v) }, item)
	case sub.Scale != nil:
		b.addItem(path, scope, suffix, modelScale, func(v string) bool { return v != "delete" && has(v) }, item)
	case sub.Create != nil:
		body := model(sub.Create.New())
		op := b.op("post", "create", scope, suffix, body, writeParameters, item)
		op.body, op.created, op.kind = body, true, kindOr(sub.Kind, op.kind)
		b.paths.add(path, op)
	case sub.Connect != nil:
		for _, method := range sub.Connect.Methods {
			op := b.op(strings.ToLower(method), "connect"+upper(strings.ToLower(method)), scope, suffix, "", item)
			op.action, op.kind = "connect", kindOr(sub.Kind, op.kind)
			b.paths.add(path, op)
		}
	}
}

var actions = map[string]string{"list": "list", "create": "post", "read": "get", "replace": "put", "patch": "patch", "delete": "delete"}

func (b *builder) op(method, verb, scope, suffix, answer string, parameters ...[]parameter) operation {
	return operation{
		method: method, id: verb + b.title + scope + b.resource.Kind + suffix,
		about:  verb + " " + strings.TrimSpace(suffix+" of the specified "+b.resource.Kind),
		action: actions[verb], answer: answer,
		kind:       schema.GroupVersionKind{Group: b.resource.Group, Version: b.resource.Version, Kind: b.resource.Kind},
		parameters: slices.Concat(parameters...), untyped: b.resource.Untyped != nil,
	}
}

func kindOr(kind, otherwise schema.GroupVersionKind) schema.GroupVersionKind {
	if kind.Empty() {
		return otherwise
	}
	return kind
}

// model is the OpenAPI model name of an object's type, "" where it has none.
func model(obj runtime.Object) string {
	if named, ok := obj.(interface{ OpenAPIModelName() string }); ok {
		return named.OpenAPIModelName()
	}
	return ""
}

func kindModel(r *registry.Resource) string {
	if r.Untyped != nil {
		return r.Untyped.Model
	}
	return model(r.New())
}

func list(r *registry.Resource) string {
	if r.Untyped != nil {
		return r.Untyped.ListModel
	}
	if r.NewList == nil {
		return model(r.New())
	}
	return model(r.NewList())
}

// title is a group version as operation ids spell it: "CoreV1", "RbacAuthorizationV1".
func title(gv schema.GroupVersion) string {
	group := strings.TrimSuffix(gv.Group, ".k8s.io")
	if group == "" {
		group = "core"
	}
	var out strings.Builder
	for _, part := range strings.FieldsFunc(group, func(r rune) bool { return r == '.' || r == '-' }) {
		out.WriteString(upper(part))
	}
	return out.String() + upper(gv.Version)
}

func upper(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
