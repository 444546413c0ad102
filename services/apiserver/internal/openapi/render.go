package openapi

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

type object = map[string]any

var (
	bodyTypes  = []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "application/cbor"}
	patchTypes = []string{"application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json", "application/apply-patch+yaml", "application/apply-patch+cbor"}
	// Kinds without a Go type have no protobuf form, and no strategic merges.
	untypedBodies  = []string{"application/json", "application/yaml"}
	untypedPatches = []string{"application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"}
	streamTypes    = []string{"application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch", "application/cbor-seq"}
)

func common(op operation) object {
	out := object{"operationId": op.id, "description": op.about}
	if op.action != "" {
		out["x-kubernetes-action"] = op.action
		out["x-kubernetes-group-version-kind"] = kindObject(op.kind)
	}
	return out
}

func kindObject(kind schema.GroupVersionKind) object {
	return object{"group": kind.Group, "version": kind.Version, "kind": kind.Kind}
}

func answers(op operation) []string {
	if op.untyped {
		return untypedBodies
	}
	if op.action == "list" {
		return append(bodyTypes[:len(bodyTypes):len(bodyTypes)], streamTypes...)
	}
	return bodyTypes
}

func patches(op operation) []string {
	if op.untyped {
		return untypedPatches
	}
	return patchTypes
}

// renderV3 is an operation of OpenAPI 3.0.
func renderV3(op operation) object {
	out := common(op)
	var parameters []any
	for _, p := range op.parameters {
		one := object{"name": p.name, "in": p.in, "description": p.about, "schema": object{"type": p.kind, "uniqueItems": true}}
		if p.required {
			one["required"] = true
		}
		parameters = append(parameters, one)
	}
	if parameters != nil {
		out["parameters"] = parameters
	}
	if op.body != "" {
		types := []string{"*/*"}
		if op.patch {
			types = patches(op)
		}
		content := object{}
		for _, t := range types {
			content[t] = object{"schema": object{"$ref": "#/components/schemas/" + op.body}}
		}
		out["requestBody"] = object{"content": content, "required": op.method != "delete"}
	}
	content := object{}
	for _, t := range answers(op) {
		shape := object{"type": "string"}
		if op.answer != "" {
			shape = object{"$ref": "#/components/schemas/" + op.answer}
		}
		content[t] = object{"schema": shape}
	}
	responses := object{"200": object{"description": "OK", "content": content}, "401": object{"description": "Unauthorized"}}
	if op.created {
		responses["201"] = object{"description": "Created", "content": content}
	}
	out["responses"] = responses
	return out
}

// renderV2 is an operation of OpenAPI 2.0.
func renderV2(op operation) object {
	out := common(op)
	out["schemes"] = []string{"https"}
	out["produces"] = answers(op)
	out["consumes"] = []string{"*/*"}
	if op.patch {
		out["consumes"] = patches(op)
	}
	parameters := []any{}
	for _, p := range op.parameters {
		one := object{"name": p.name, "in": p.in, "type": p.kind, "uniqueItems": true, "description": p.about}
		if p.required {
			one["required"] = true
		}
		parameters = append(parameters, one)
	}
	if op.body != "" {
		body := object{"name": "body", "in": "body", "schema": object{"$ref": "#/definitions/" + op.body}}
		if op.method != "delete" {
			body["required"] = true
		}
		parameters = append(parameters, body)
	}
	out["parameters"] = parameters
	shape := object{"type": "string"}
	if op.answer != "" {
		shape = object{"$ref": "#/definitions/" + op.answer}
	}
	responses := object{"200": object{"description": "OK", "schema": shape}, "401": object{"description": "Unauthorized"}}
	if op.created {
		responses["201"] = object{"description": "Created", "schema": shape}
	}
	out["responses"] = responses
	return out
}

// renderPaths renders all operations and names the models that they use.
func renderPaths(all paths, render func(operation) object) (out object, models []string) {
	out = object{}
	for path, operations := range all {
		item := object{}
		for _, op := range operations {
			item[strings.ToLower(op.method)] = render(op)
			models = append(models, op.body, op.answer)
		}
		out[path] = item
	}
	return out, models
}
