package customresource_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

func TestCustomResourcesAreDiscovered(t *testing.T) {
	server := testserver.Start(t)
	d := twoVersions()
	d.Spec.Names.Categories, d.Spec.Names.ShortNames = []string{"all", "things"}, []string{"wd"}
	selector := ".status.selector"
	d.Spec.Versions[0].Subresources.Scale = &apiextensionsv1.CustomResourceSubresourceScale{
		SpecReplicasPath: ".spec.size", StatusReplicasPath: ".status.size", LabelSelectorPath: &selector,
	}
	mustDefine(t, server, d)
	client := discovery.NewDiscoveryClientForConfigOrDie(server.Config)
	for name, list := range map[string]func() (*metav1.APIResourceList, error){
		"plain": func() (*metav1.APIResourceList, error) {
			return client.ServerResourcesForGroupVersion("example.com/v1")
		},
		"aggregated": func() (*metav1.APIResourceList, error) {
			_, lists, _, err := client.GroupsAndMaybeResources()
			for gv, l := range lists {
				if gv.String() == "example.com/v1" {
					return l, err
				}
			}
			return &metav1.APIResourceList{}, err
		},
	} {
		resources, err := list()
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, r := range resources.APIResources {
			names = append(names, r.Name+"="+r.Kind)
			if r.Name == "widgets" && (!slices.Equal(r.ShortNames, []string{"wd"}) || !slices.Equal(r.Categories, []string{"all", "things"}) || len(r.Verbs) != 8 || r.SingularName != "widget") {
				t.Errorf("%s: %+v", name, r)
			}
		}
		slices.Sort(names)
		if got := strings.Join(names, " "); got != "widgets/scale=Scale widgets/status=Widget widgets=Widget" {
			t.Errorf("%s: %s", name, got)
		}
	}
	groups, err := client.ServerGroups()
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == "example.com" })
	if at < 0 || groups.Groups[at].PreferredVersion.Version != "v1" || len(groups.Groups[at].Versions) != 2 {
		t.Errorf("groups: %+v", groups.Groups)
	}
	if err := definitions(t, server).ApiextensionsV1().CustomResourceDefinitions().Delete(context.Background(), d.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitServed(t, func() bool {
		_, err := client.ServerResourcesForGroupVersion("example.com/v1")
		return err != nil
	})
}

func TestSchemasArePublished(t *testing.T) {
	server := testserver.Start(t)
	d := definition("example.com", "Gadget", gadgetSchema)
	mustDefine(t, server, d)
	rest := server.Client.Discovery().RESTClient()
	get := func(path string) string {
		t.Helper()
		data, err := rest.Get().RequestURI(path).SetHeader("Accept", "application/json").DoRaw(context.Background())
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		return string(data)
	}
	v3 := func() string {
		var index struct {
			Paths map[string]struct{ ServerRelativeURL string }
		}
		if err := json.Unmarshal([]byte(get("/openapi/v3")), &index); err != nil {
			t.Fatal(err)
		}
		return get(index.Paths["apis/example.com/v1"].ServerRelativeURL)
	}
	var document struct {
		Components struct {
			Schemas map[string]struct {
				Properties map[string]json.RawMessage
				Kinds      []map[string]string `json:"x-kubernetes-group-version-kind"`
			}
		}
		Paths map[string]any
	}
	if err := json.Unmarshal([]byte(v3()), &document); err != nil {
		t.Fatal(err)
	}
	model := document.Components.Schemas["com.example.v1.Gadget"]
	if len(model.Kinds) != 1 || model.Kinds[0]["kind"] != "Gadget" || !strings.Contains(string(model.Properties["spec"]), `"x-kubernetes-list-map-keys":["key"]`) ||
		!strings.Contains(string(model.Properties["metadata"]), "ObjectMeta") || document.Paths["/apis/example.com/v1/namespaces/{namespace}/gadgets/{name}/status"] == nil {
		t.Errorf("version 3: %+v", model)
	}
	if document.Components.Schemas["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"].Properties == nil {
		t.Error("version 3 lacks the model of metadata")
	}
	v2 := func() map[string]any {
		var document struct {
			Definitions map[string]any
			Paths       map[string]any
		}
		if err := json.Unmarshal([]byte(get("/openapi/v2")), &document); err != nil {
			t.Fatal(err)
		}
		if document.Definitions["io.k8s.api.core.v1.Pod"] == nil || document.Paths["/api/v1/pods"] == nil {
			t.Error("version 2 lacks built-in kinds")
		}
		m, _ := document.Definitions["com.example.v1.Gadget"].(map[string]any)
		return m
	}
	if m := v2(); m == nil || m["properties"] == nil {
		t.Errorf("version 2: %v", m)
	}
	mustChange(t, server, d.Name, func(d *definitionObject) {
		d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["added"] = *mustSchema("{type: string, description: added later}")
	})
	awaitServed(t, func() bool {
		return strings.Contains(v3(), "added later") && strings.Contains(jsonOf(t, v2()), "added later")
	})
	if err := definitions(t, server).ApiextensionsV1().CustomResourceDefinitions().Delete(context.Background(), d.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitServed(t, func() bool { return v2() == nil && !strings.Contains(get("/openapi/v3"), "example.com") })
}

func TestKubectlWorksWithCustomResources(t *testing.T) {
	kubectl, err := exec.LookPath("kubectl")
	if err != nil {
		t.Skip("kubectl is not installed")
	}
	server := testserver.Start(t)
	dir := t.TempDir()
	run := func(stdin string, args ...string) string {
		t.Helper()
		command := exec.Command(kubectl, append([]string{"--kubeconfig", filepath.Join(server.Dir, "certs", "admin.kubeconfig"), "--cache-dir", filepath.Join(dir, "cache")}, args...)...)
		command.Stdin = strings.NewReader(stdin)
		command.Env = append(os.Environ(), "HOME="+dir)
		out, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("kubectl %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	d := fleetDefinition()
	d.Spec.Names.Categories, d.Spec.Names.ShortNames = []string{"all"}, []string{"fl"}
	d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["count"] = *mustSchema("{type: integer, description: How many there shall be.}")
	d.APIVersion, d.Kind = "apiextensions.k8s.io/v1", "CustomResourceDefinition"
	run(jsonOf(t, d), "apply", "-f", "-")
	run("", "wait", "--for=condition=Established", "--timeout=10s", "crd/fleets.example.com")
	manifest := "apiVersion: example.com/v1\nkind: Fleet\nmetadata: {name: a}\nspec: {count: 2}\n"
	for _, test := range []struct {
		stdin, args, want string
	}{
		{manifest, "apply -f -", "fleet.example.com/a created"},
		{strings.Replace(manifest, "2", "3", 1), "apply -f -", "fleet.example.com/a configured"},
		{strings.Replace(manifest, "2", "4", 1), "apply --server-side --force-conflicts -f -", "fleet.example.com/a serverside-applied"},
		{"", "get fl", "a      4"},
		{"", "get all", "fleet.example.com/a"},
		{"", "get fleets -o yaml", "count: 4"},
		{"", "explain fleets.spec.count", "How many there shall be."},
		{"", "explain fleets", "GROUP:      example.com"},
		{"", "scale fleet a --replicas=6", "fleet.example.com/a scaled"},
		{"", "label fleet a x=y", "fleet.example.com/a labeled"},
		{"", "patch fleet a --type=merge -p {\"spec\":{\"note\":\"n\"}}", "fleet.example.com/a patched"},
		{"", "describe fleet a", "Count:  6"},
		{"", "get crd fleets.example.com", "fleets.example.com"},
		{"", "delete fleet a", `fleet.example.com "a" deleted`},
		{"", "delete crd fleets.example.com", `customresourcedefinition.apiextensions.k8s.io "fleets.example.com" deleted`},
	} {
		if out := run(test.stdin, strings.Fields(test.args)...); !strings.Contains(out, test.want) {
			t.Errorf("kubectl %s:\n%s", test.args, out)
		}
	}
}
