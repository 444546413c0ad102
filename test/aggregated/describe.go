package main

import (
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type object = map[string]any

// describe serves discovery and OpenAPI.
func (f *fleet) describe() {
	serve := func(path string, value any) {
		f.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, value) })
	}
	gv := metav1.GroupVersionForDiscovery{GroupVersion: group + "/" + version, Version: version}
	described := metav1.APIGroup{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIGroup"}, Name: group,
		Versions: []metav1.GroupVersionForDiscovery{gv}, PreferredVersion: gv,
	}
	serve("/apis", metav1.APIGroupList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIGroupList"}, Groups: []metav1.APIGroup{described}})
	serve("/apis/"+group, described)
	serve(root, metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: gv.GroupVersion,
		APIResources: []metav1.APIResource{
			{Name: "boats", SingularName: "boat", Kind: "Boat", Namespaced: true, ShortNames: []string{"bo"}, Verbs: []string{"create", "delete", "get", "list", "watch"}},
			{Name: "boats/radio", Kind: "Boat", Namespaced: true, Verbs: []string{"get"}},
		},
	})
	serve("/openapi/v3", object{"paths": object{root[1:]: object{"serverRelativeURL": "/openapi/v3" + root + "?hash=1"}}})
	serve("/openapi/v3"+root, object{
		"openapi": "3.0.0", "info": object{"title": "fleet", "version": version}, "paths": paths("#/components/schemas/"), "components": object{"schemas": models()},
	})
	serve("/openapi/v2", object{
		"swagger": "2.0", "info": object{"title": "fleet", "version": version}, "paths": paths("#/definitions/"), "definitions": models(),
	})
}

func models() object {
	return object{"com.example.fleet.v1.Boat": object{
		"type": "object", "description": "Boat is a vessel of the fleet.",
		"x-kubernetes-group-version-kind": []any{object{"group": group, "version": version, "kind": "Boat"}},
		"properties": object{
			"apiVersion": object{"type": "string"}, "kind": object{"type": "string"}, "metadata": object{"type": "object"},
			"spec": object{"type": "object", "properties": object{"masts": object{"type": "integer", "description": "How many masts the boat has."}}},
		},
	}}
}

func paths(prefix string) object {
	answer := object{"$ref": prefix + "com.example.fleet.v1.Boat"}
	response := object{"description": "OK", "schema": answer}
	if prefix != "#/definitions/" {
		response = object{"description": "OK", "content": object{"application/json": object{"schema": answer}}}
	}
	return object{root + "/namespaces/{namespace}/boats/{name}": object{"get": object{
		"operationId": "readBoat", "responses": object{"200": response},
		"x-kubernetes-action": "get", "x-kubernetes-group-version-kind": object{"group": group, "version": version, "kind": "Boat"},
	}}}
}
