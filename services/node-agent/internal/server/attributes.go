package server

import (
	"net/http"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/sampan-io/sampan/services/internal/delegated"
)

// attributes are the right that a request needs: a subresource of nodes by its
// path, or nodes/proxy, which covers all (KEP-2862).
//
// Commands in containers need create, whatever the method: a WebSocket client
// opens them with GET, and who may read through nodes/proxy may not run commands.
func attributes(r *http.Request) []delegated.Attributes {
	verb := verbOf(r)
	var list []delegated.Attributes
	for _, subresource := range subresources(r.URL.Path) {
		list = append(list, delegated.Attributes{Resource: &authorizationv1.ResourceAttributes{
			Verb: verb, Group: "", Version: "v1", Resource: "nodes", Subresource: subresource,
		}})
	}
	return list
}

func verbOf(r *http.Request) string {
	if below(r.URL.Path, "/exec", "/attach", "/portForward", "/run") {
		return "create"
	}
	switch r.Method {
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	}
	return "get"
}

func subresources(path string) []string {
	switch {
	case below(path, "/stats"):
		return []string{"stats"}
	case below(path, "/metrics"):
		return []string{"metrics"}
	case below(path, "/logs"):
		return []string{"log"}
	case below(path, "/checkpoint"):
		return []string{"checkpoint"}
	case below(path, "/pods", "/runningpods"):
		return []string{"pods", "proxy"}
	case below(path, "/healthz", "/livez", "/readyz"):
		return []string{"healthz", "proxy"}
	case below(path, "/configz"):
		return []string{"configz", "proxy"}
	}
	return []string{"proxy"}
}

func below(path string, roots ...string) bool {
	for _, root := range roots {
		if path == root || strings.HasPrefix(path, root+"/") {
			return true
		}
	}
	return false
}
