package conformance

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

var plainDiscovery = map[string]func(*testing.T){
	"should locate the groupVersion and a resource within each APIGroup": groupVersionsAreLocated,
	"should validate PreferredVersion for each APIGroup":                 preferredVersions,
}

var aggregatedDiscovery = map[string]func(*testing.T){
	"should support aggregated discovery interface":          aggregatedInterface,
	"should support aggregated discovery interface for CRDs": aggregatedInterfaceForDefinitions,
	"should support raw aggregated discovery endpoint Accept headers": func(t *testing.T) {
		for _, path := range []string{"/api", "/apis"} {
			rawDiscovery(t, path)
		}
	},
	"should support raw aggregated discovery request for CRDs": rawDiscoveryForDefinitions,
}

var serverVersion = map[string]func(*testing.T){
	"should find the server version": func(t *testing.T) {
		version := got(client.Discovery().ServerVersion())(t)
		if version.Major != "1" {
			t.Errorf("major version is %q", version.Major)
		}
		if !regexp.MustCompile(`^\d+$`).MatchString(strings.TrimRight(version.Minor, "+")) {
			t.Errorf("minor version is %q", version.Minor)
		}
	},
}

func preferredVersions(t *testing.T) {
	groups := got(client.Discovery().ServerGroups())(t)
	if len(groups.Groups) == 0 {
		t.Fatal("there are no groups")
	}
	for _, group := range groups.Groups {
		if group.Name == "" || strings.HasSuffix(group.Name, ".conformance.example.com") {
			continue // the groups of other tests come and go
		}
		var read metav1.APIGroup
		raw := got(client.Discovery().RESTClient().Get().AbsPath("/apis/" + group.Name).DoRaw(t.Context()))(t)
		must(t, json.Unmarshal(raw, &read))
		found := false
		for _, version := range read.Versions {
			found = found || version.GroupVersion == read.PreferredVersion.GroupVersion
		}
		if !found {
			t.Errorf("%s: preferred version %q is not among %v", group.Name, read.PreferredVersion.GroupVersion, read.Versions)
		}
	}
}

// groupVersionsAreLocated looks for one resource of each group that must be
// there, by its path.
func groupVersionsAreLocated(t *testing.T) {
	want := []schema.GroupVersionResource{
		{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingwebhookconfigurations"},
		{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
		{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"},
		{Group: "apps", Version: "v1", Resource: "deployments"},
		{Group: "authentication.k8s.io", Version: "v1", Resource: "tokenreviews"},
		{Group: "authorization.k8s.io", Version: "v1", Resource: "selfsubjectaccessreviews"},
		{Group: "autoscaling", Version: "v1", Resource: "horizontalpodautoscalers"},
		{Group: "autoscaling", Version: "v2", Resource: "horizontalpodautoscalers"},
		{Group: "batch", Version: "v1", Resource: "jobs"},
		{Group: "certificates.k8s.io", Version: "v1", Resource: "certificatesigningrequests"},
		{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"},
		{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"},
		{Group: "events.k8s.io", Version: "v1", Resource: "events"},
		{Group: "networking.k8s.io", Version: "v1", Resource: "ingresses"},
		{Group: "node.k8s.io", Version: "v1", Resource: "runtimeclasses"},
		{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"},
		{Group: "scheduling.k8s.io", Version: "v1", Resource: "priorityclasses"},
		{Group: "storage.k8s.io", Version: "v1", Resource: "csinodes"},
	}
	for _, resource := range want {
		var group metav1.APIGroup
		raw := got(client.Discovery().RESTClient().Get().AbsPath("/apis/" + resource.Group).DoRaw(t.Context()))(t)
		must(t, json.Unmarshal(raw, &group))
		found := false
		for _, version := range group.Versions {
			found = found || version.GroupVersion == resource.GroupVersion().String()
		}
		if !found {
			t.Errorf("%s is not a version of its group", resource.GroupVersion())
		}
		list := got(client.Discovery().ServerResourcesForGroupVersion(resource.GroupVersion().String()))(t)
		if !hasResource(list, resource.Resource) {
			t.Errorf("%s is not in its group version", resource)
		}
	}
}

func hasResource(list *metav1.APIResourceList, name string) bool {
	for _, resource := range list.APIResources {
		if resource.Name == name {
			return true
		}
	}
	return false
}

func aggregatedInterface(t *testing.T) {
	aggregated := client.Discovery().(discovery.AggregatedDiscoveryInterface)
	groups, resources, failed, err := aggregated.GroupsAndMaybeResources()
	must(t, err)
	if len(failed) > 0 {
		t.Errorf("group versions failed: %v", failed)
	}
	for groupVersion, resource := range map[schema.GroupVersion]string{
		{Group: "", Version: "v1"}:                             "namespaces",
		{Group: "apps", Version: "v1"}:                         "deployments",
		{Group: "apiextensions.k8s.io", Version: "v1"}:         "customresourcedefinitions",
		{Group: "admissionregistration.k8s.io", Version: "v1"}: "mutatingwebhookconfigurations",
		{Group: "batch", Version: "v1"}:                        "jobs",
		{Group: "rbac.authorization.k8s.io", Version: "v1"}:    "clusterroles",
	} {
		if list := resources[groupVersion]; list == nil || !hasResource(list, resource) {
			t.Errorf("%s of %s is not in the aggregated documents", resource, groupVersion)
		}
	}
	if len(groups.Groups) < 10 {
		t.Errorf("only %d groups", len(groups.Groups))
	}
}

const aggregatedType = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

func rawDiscovery(t *testing.T, path string) apidiscoveryv2.APIGroupDiscoveryList {
	t.Helper()
	result := client.Discovery().RESTClient().Get().AbsPath(path).SetHeader("Accept", aggregatedType).Do(t.Context())
	var contentType string
	result.ContentType(&contentType)
	raw := got(result.Raw())(t)
	var list apidiscoveryv2.APIGroupDiscoveryList
	must(t, json.Unmarshal(raw, &list))
	if contentType != aggregatedType || list.Kind != "APIGroupDiscoveryList" || list.APIVersion != "apidiscovery.k8s.io/v2" || len(list.Items) == 0 {
		t.Errorf("%s: type %q, kind %s of %s with %d items", path, contentType, list.Kind, list.APIVersion, len(list.Items))
	}
	return list
}

func rawDiscoveryForDefinitions(t *testing.T) {
	first, second := newDefinition(t, nil), newDefinition(t, nil)
	eventuallyHas(t, func() string {
		raw, err := client.Discovery().RESTClient().Get().AbsPath("/apis").SetHeader("Accept", aggregatedType).DoRaw(t.Context())
		if err != nil {
			return err.Error()
		}
		return string(raw)
	}, first.Spec.Group, second.Spec.Group)
	for _, group := range rawDiscovery(t, "/apis").Items {
		if group.Name == first.Spec.Group && (len(group.Versions) != 1 || group.Versions[0].Resources[0].Resource != first.Spec.Names.Plural) {
			t.Errorf("the group of the definition holds %+v", group.Versions)
		}
	}
}

func aggregatedInterfaceForDefinitions(t *testing.T) {
	crd := newDefinition(t, nil)
	groupVersion := schema.GroupVersion{Group: crd.Spec.Group, Version: "v1"}
	eventuallyHas(t, func() string {
		_, resources, _, err := client.Discovery().(discovery.AggregatedDiscoveryInterface).GroupsAndMaybeResources()
		if err != nil || resources[groupVersion] == nil {
			return ""
		}
		return resources[groupVersion].APIResources[0].Name
	}, crd.Spec.Names.Plural)
}
