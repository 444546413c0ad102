package resources_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apimachinery/pkg/watch"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

// fixtures are the objects in testdata, without types.
func fixtures(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	file, err := os.Open("testdata/kinds.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	decoder := yaml.NewYAMLOrJSONDecoder(file, 4096)
	var list []*unstructured.Unstructured
	for {
		obj := &unstructured.Unstructured{}
		err := decoder.Decode(obj)
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, obj)
	}
}

// elsewhere are groups whose kinds are tested where they are made: their types
// are not client-go's.
func elsewhere(group string) bool {
	return slices.Contains([]string{"apiextensions.k8s.io", "apiregistration.k8s.io", "metrics.k8s.io"}, group)
}

// kindClient is client-go for one kind in one media type.
type kindClient struct {
	t          *testing.T
	rest       rest.Interface
	kind       schema.GroupVersionKind
	resource   string
	namespaced bool
	name       string
}

func newKindClient(t *testing.T, server *testserver.Server, mapping *meta.RESTMapping, mediaType, name string) *kindClient {
	t.Helper()
	config := rest.CopyConfig(server.Config)
	version := mapping.GroupVersionKind.GroupVersion()
	config.GroupVersion, config.APIPath = &version, "/apis"
	if version.Group == "" {
		config.APIPath = "/api"
	}
	config.NegotiatedSerializer = clientscheme.Codecs.WithoutConversion()
	config.ContentType, config.AcceptContentTypes, config.WarningHandler = mediaType, mediaType, rest.NoWarnings{}
	client, err := rest.RESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return &kindClient{
		t: t, rest: client, kind: mapping.GroupVersionKind, resource: mapping.Resource.Resource,
		namespaced: mapping.Scope.Name() == meta.RESTScopeNameNamespace, name: name,
	}
}

func (k *kindClient) on(r *rest.Request) *rest.Request {
	return r.NamespaceIfScoped("default", k.namespaced).Resource(k.resource)
}

func (k *kindClient) new() registry.Object {
	k.t.Helper()
	obj, err := clientscheme.Scheme.New(k.kind)
	if err != nil {
		k.t.Fatal(err)
	}
	return obj.(registry.Object)
}

// must sends a request and reads the object that it answers with.
func (k *kindClient) must(what string, r *rest.Request) registry.Object {
	k.t.Helper()
	obj := k.new()
	if err := k.on(r).Do(k.t.Context()).Into(obj); err != nil {
		k.t.Fatalf("%s: %v", what, err)
	}
	return obj
}

func (k *kindClient) get() (registry.Object, error) {
	obj := k.new()
	return obj, k.on(k.rest.Get()).Name(k.name).Do(k.t.Context()).Into(obj)
}

// patch sets a label with each kind of patch.
func (k *kindClient) patch() registry.Object {
	k.t.Helper()
	encode := func(value any) []byte {
		data, err := json.Marshal(value)
		if err != nil {
			k.t.Fatal(err)
		}
		return data
	}
	label := func(name string) map[string]any {
		return map[string]any{"metadata": map[string]any{"labels": map[string]any{name: "set"}}}
	}
	k.must("merge patch", k.rest.Patch(types.MergePatchType).Name(k.name).Body(encode(label("merge"))))
	k.must("JSON patch", k.rest.Patch(types.JSONPatchType).Name(k.name).Body(encode([]any{map[string]any{"op": "add", "path": "/metadata/labels/json", "value": "set"}})))
	k.must("strategic merge patch", k.rest.Patch(types.StrategicMergePatchType).Name(k.name).Body(encode(label("strategic"))))
	applied := label("applied")
	applied["apiVersion"], applied["kind"] = k.kind.GroupVersion().String(), k.kind.Kind
	applied["metadata"].(map[string]any)["name"] = k.name
	return k.must("apply", k.rest.Patch(types.ApplyYAMLPatchType).Name(k.name).Param("fieldManager", "applier").Body(encode(applied)))
}

// put replaces the labels by a PUT, of the fresh object when the server itself
// wrote the status meanwhile.
func (k *kindClient) put(obj registry.Object) registry.Object {
	k.t.Helper()
	for {
		obj.SetLabels(map[string]string{"put": "set"})
		updated := k.new()
		err := k.on(k.rest.Put()).Name(k.name).Body(obj).Do(k.t.Context()).Into(updated)
		if err == nil {
			return updated
		}
		if !apierrors.IsConflict(err) {
			k.t.Fatalf("update: %v", err)
		}
		if obj, err = k.get(); err != nil {
			k.t.Fatalf("get: %v", err)
		}
	}
}

// remove deletes the object, and gives up what holds it.
func (k *kindClient) remove() {
	k.t.Helper()
	if err := k.on(k.rest.Delete()).Name(k.name).Do(k.t.Context()).Error(); err != nil {
		k.t.Fatalf("delete: %v", err)
	}
	obj, err := k.get()
	if apierrors.IsNotFound(err) {
		return
	}
	if err != nil {
		k.t.Fatalf("get after delete: %v", err)
	}
	if obj.GetDeletionTimestamp() == nil {
		k.t.Error("a deleted object has no deletionTimestamp")
	}
	if namespace, ok := obj.(*corev1.Namespace); ok {
		namespace.Spec.Finalizers = nil
		if err := k.on(k.rest.Put()).Name(k.name).SubResource("finalize").Body(namespace).Do(k.t.Context()).Error(); err != nil {
			k.t.Fatalf("finalize: %v", err)
		}
	} else if err := k.on(k.rest.Patch(types.MergePatchType)).Name(k.name).Body([]byte(`{"metadata":{"finalizers":null}}`)).Do(k.t.Context()).Error(); err != nil {
		k.t.Fatalf("giving up finalizers: %v", err)
	}
	if _, err := k.get(); !apierrors.IsNotFound(err) {
		k.t.Fatalf("get after delete: %v", err)
	}
}

// list is the list's version and its members of the name.
func (k *kindClient) list() (version string, items []runtime.Object) {
	k.t.Helper()
	obj, err := clientscheme.Scheme.New(k.kind.GroupVersion().WithKind(k.kind.Kind + "List"))
	if err != nil {
		k.t.Fatal(err)
	}
	if err := k.on(k.rest.Get()).Param("fieldSelector", "metadata.name="+k.name).Do(k.t.Context()).Into(obj); err != nil {
		k.t.Fatalf("list: %v", err)
	}
	if items, err = meta.ExtractList(obj); err != nil {
		k.t.Fatal(err)
	}
	return obj.(metav1.ListInterface).GetResourceVersion(), items
}

// follow collects the types of the name's events until it is deleted.
func (k *kindClient) follow(from string) func() []watch.EventType {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), 20*time.Second)
	watcher, err := k.on(k.rest.Get()).VersionedParams(&metav1.ListOptions{Watch: true, ResourceVersion: from, FieldSelector: "metadata.name=" + k.name}, clientscheme.ParameterCodec).Watch(ctx)
	if err != nil {
		k.t.Fatalf("watch: %v", err)
	}
	return func() []watch.EventType {
		defer cancel()
		defer watcher.Stop()
		var seen []watch.EventType
		for event := range watcher.ResultChan() {
			obj, ok := event.Object.(registry.Object)
			if !ok || obj.GetName() != k.name {
				k.t.Errorf("watch tells of %T %v", event.Object, event.Type)
				continue
			}
			if seen = append(seen, event.Type); event.Type == watch.Deleted {
				return seen
			}
		}
		return seen
	}
}

// run takes a fixture through its whole life.
func (k *kindClient) run(fixture *unstructured.Unstructured) {
	k.t.Helper()
	from, _ := k.list()
	events := k.follow(from)
	obj := k.new()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fixture.Object, obj); err != nil {
		k.t.Fatal(err)
	}
	created := k.must("create", k.rest.Post().Body(obj))
	if created.GetUID() == "" || created.GetResourceVersion() == "" || created.GetCreationTimestamp().Time.IsZero() {
		k.t.Errorf("created %+v", created)
	}
	got, err := k.get()
	if err != nil || got.GetResourceVersion() == created.GetResourceVersion() && !apiequality.Semantic.DeepEqual(created, got) {
		k.t.Errorf("read %+v\ncreated %+v (%v)", got, created, err)
	}
	patched := k.patch()
	for _, label := range []string{"merge", "json", "strategic", "applied"} {
		if patched.GetLabels()[label] != "set" {
			k.t.Errorf("label %s is missing in %v", label, patched.GetLabels())
		}
	}
	if !slices.ContainsFunc(patched.GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool {
		return e.Manager == "applier" && e.Operation == metav1.ManagedFieldsOperationApply && e.APIVersion == k.kind.GroupVersion().String()
	}) {
		k.t.Errorf("managed by %+v", patched.GetManagedFields())
	}
	updated := k.put(patched)
	if labels := updated.GetLabels(); labels["put"] != "set" || labels["merge"] != "" || updated.GetResourceVersion() == patched.GetResourceVersion() {
		k.t.Errorf("updated %+v", labels)
	}
	if _, items := k.list(); len(items) != 1 || items[0].(registry.Object).GetUID() != created.GetUID() || items[0].(registry.Object).GetLabels()["put"] != "set" {
		k.t.Errorf("listed %d objects", len(items))
	}
	k.remove()
	seen := events()
	if len(seen) < 7 || seen[0] != watch.Added || seen[1] != watch.Modified || seen[len(seen)-1] != watch.Deleted {
		k.t.Errorf("watched %v", seen)
	}
	k.apply(fixture)
}

// apply makes the fixture by server-side apply, as client-go's schemas know it.
func (k *kindClient) apply(fixture *unstructured.Unstructured) {
	k.t.Helper()
	body, err := fixture.MarshalJSON()
	if err != nil {
		k.t.Fatal(err)
	}
	send := func() *rest.Request {
		return k.rest.Patch(types.ApplyYAMLPatchType).Name(k.name).Param("fieldManager", "applier").Body(body)
	}
	first, writers := k.must("applying", send()), 3 // the server itself writes some kinds' status once
	for again := k.must("applying again", send()); again.GetResourceVersion() != first.GetResourceVersion(); again = k.must("applying again", send()) {
		if first, writers = again, writers-1; writers == 0 || !slices.ContainsFunc(again.GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool { return e.Subresource == "status" }) {
			k.t.Error("applying the same again is a change")
			break
		}
	}
	k.remove()
}

func TestEveryKindLivesItsWholeLife(t *testing.T) {
	server := testserver.Start(t)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}} // pods need it
	if _, err := server.Client.CoreV1().ServiceAccounts("default").Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	groups, err := restmapper.GetAPIGroupResources(server.Client.Discovery())
	if err != nil {
		t.Fatal(err)
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	missing := stored(t, server)
	for _, fixture := range fixtures(t) {
		kind := fixture.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			t.Errorf("%s is not served: %v", kind, err)
			continue
		}
		delete(missing, mapping.Resource)
		for _, mediaType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
			t.Run(mapping.Resource.GroupVersion().String()+"/"+mapping.Resource.Resource+" "+strings.TrimPrefix(mediaType, "application/"), func(t *testing.T) {
				newKindClient(t, server, mapping, mediaType, fixture.GetName()).run(fixture.DeepCopy())
			})
		}
	}
	for resource := range missing {
		t.Errorf("there is no fixture of %s", resource)
	}
}

// stored are the resources that discovery says can be created and read.
func stored(t *testing.T, server *testserver.Server) map[schema.GroupVersionResource]bool {
	t.Helper()
	_, lists, err := server.Client.Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	all := map[schema.GroupVersionResource]bool{}
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			if !elsewhere(version.Group) && !strings.Contains(r.Name, "/") && slices.Contains(r.Verbs, "create") && slices.Contains(r.Verbs, "get") {
				all[version.WithResource(r.Name)] = true
			}
		}
	}
	return all
}
