package request

import (
	"net/http"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/fields"
)

// Parse reads a request's path and query in the grammar of the Kubernetes API:
//
//	/api/{version}[/watch][/namespaces/{namespace}]/{resource}[/{name}[/{subresource}]]
//	/apis/{group}/{version}…
//
// What does not follow it is a non-resource request.
func Parse(method string, target *url.URL) *Info {
	info := &Info{Path: target.Path, Verb: strings.ToLower(method)}
	parts := strings.Split(strings.Trim(target.Path, "/"), "/")
	for _, part := range parts {
		if part == "" {
			return info
		}
	}
	groupless := parts[0] == "api"
	if !groupless && parts[0] != "apis" || groupless && len(parts) < 3 || !groupless && len(parts) < 4 {
		return info
	}
	info.APIPrefix, parts = parts[0], parts[1:]
	if !groupless {
		info.APIGroup, parts = parts[0], parts[1:]
	}
	info.IsResourceRequest = true
	info.APIVersion, parts = parts[0], parts[1:]
	info.Verb = resourceVerb(method)
	if parts[0] == "watch" && len(parts) > 1 {
		info.Verb, parts = "watch", parts[1:]
	}
	info.takeResource(parts)
	info.adjustVerb(target)
	return info
}

func resourceVerb(method string) string {
	switch method {
	case http.MethodPost:
		return "create"
	case http.MethodGet, http.MethodHead:
		return "get"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	default:
		return ""
	}
}

// takeResource reads what follows the version. A namespace's own subresources
// are told from resources within it by their names.
func (i *Info) takeResource(parts []string) {
	if parts[0] == "namespaces" && len(parts) > 1 {
		i.Namespace = parts[1]
		if len(parts) > 2 && parts[2] != "status" && parts[2] != "finalize" {
			parts = parts[2:]
		}
	}
	i.Parts = parts
	i.Resource = parts[0]
	if len(parts) > 1 {
		i.Name = parts[1]
	}
	if len(parts) > 2 {
		i.Subresource = parts[2]
	}
}

// adjustVerb tells reads and deletes of a collection from those of an object,
// and takes the name that a field selector pins: rights may be given by name.
func (i *Info) adjustVerb(target *url.URL) {
	if i.Name != "" {
		return
	}
	switch i.Verb {
	case "get":
		i.Verb = "list"
		if isWatch(target) {
			i.Verb = "watch"
		}
	case "delete":
		i.Verb = "deletecollection"
	}
	if i.Verb != "list" && i.Verb != "watch" && i.Verb != "deletecollection" || target.RawQuery == "" {
		return
	}
	query := target.Query()
	i.FieldSelector, i.LabelSelector = query.Get("fieldSelector"), query.Get("labelSelector")
	if i.FieldSelector == "" || i.Verb == "deletecollection" {
		return
	}
	selector, err := fields.ParseSelector(i.FieldSelector)
	if err != nil {
		return
	}
	if name, ok := selector.RequiresExactMatch("metadata.name"); ok && len(content.IsPathSegmentName(name)) == 0 {
		i.Name = name
	}
}

func isWatch(target *url.URL) bool {
	if !strings.Contains(target.RawQuery, "watch") {
		return false
	}
	values := target.Query()["watch"]
	if len(values) == 0 {
		return false
	}
	switch strings.ToLower(values[0]) {
	case "false", "0":
		return false
	}
	return true
}
