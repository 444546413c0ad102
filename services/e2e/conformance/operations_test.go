package conformance

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"
)

func gone(err error) bool { return apierrors.IsNotFound(err) }

// operations drives every verb of one kind, as the "API operations" behaviours
// ask.
type operations struct {
	resource   schema.GroupVersionResource
	namespaced bool
	// object is made three times, under generated names; it carries the kind.
	object runtime.Object
	// change alters the object in a way that an update keeps.
	change func(object map[string]any)
	// statuses are the subresources that take a patch of .status.
	statuses []string
	// status is what is patched there, in JSON.
	status string
}

func (o operations) run(t *testing.T) {
	t.Helper()
	o.discovered(t)
	test := unique("ops")
	namespace := ""
	if o.namespaced {
		namespace = newNamespace(t)
	}
	everywhere := dynamics.Resource(o.resource)
	var api dynamic.ResourceInterface = everywhere
	if o.namespaced {
		api = everywhere.Namespace(namespace)
	}
	deleteAfter(t, o.resource.Resource, func(ctx context.Context) error {
		return api.DeleteCollection(ctx, metav1.DeleteOptions{}, labelled(test))
	})
	made := o.create(t, api, test)
	o.read(t, api, everywhere, test, made)
	events, err := api.Watch(t.Context(), metav1.ListOptions{LabelSelector: "test=" + test, ResourceVersion: made[2].GetResourceVersion()})
	must(t, err)
	defer events.Stop()
	o.write(t, api, events, made[0].GetName())
	for _, status := range o.statuses {
		o.writeStatus(t, api, made[0].GetName(), status)
	}
	o.remove(t, api, events, test, made)
}

// discovered asserts that the group, the version and the resource are in
// discovery.
func (o operations) discovered(t *testing.T) {
	t.Helper()
	groups, err := client.Discovery().ServerGroups()
	must(t, err)
	found := o.resource.Group == ""
	for _, group := range groups.Groups {
		for _, version := range group.Versions {
			found = found || group.Name == o.resource.Group && version.Version == o.resource.Version
		}
	}
	if !found {
		t.Fatalf("group version %s is not in discovery", o.resource.GroupVersion())
	}
	resources, err := client.Discovery().ServerResourcesForGroupVersion(o.resource.GroupVersion().String())
	must(t, err)
	want := map[string]bool{o.resource.Resource: true}
	for _, status := range o.statuses {
		want[o.resource.Resource+"/"+status] = true
	}
	for _, resource := range resources.APIResources {
		delete(want, resource.Name)
	}
	if len(want) > 0 {
		t.Fatalf("not in discovery: %v", want)
	}
}

func (o operations) create(t *testing.T, api dynamic.ResourceInterface, test string) []*unstructured.Unstructured {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o.object)
	must(t, err)
	var made []*unstructured.Unstructured
	for range 3 {
		object := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(content)}
		if object.GetName() == "" && object.GetGenerateName() == "" {
			object.SetGenerateName("conformance-")
		}
		object.SetLabels(testLabels(test))
		created, err := api.Create(t.Context(), object, metav1.CreateOptions{})
		must(t, err)
		made = append(made, created)
	}
	return made
}

func (o operations) read(t *testing.T, api, everywhere dynamic.ResourceInterface, test string, made []*unstructured.Unstructured) {
	t.Helper()
	read := got(api.Get(t.Context(), made[0].GetName(), metav1.GetOptions{}))(t)
	if read.GetUID() != made[0].GetUID() {
		t.Errorf("reading gives uid %s, not %s", read.GetUID(), made[0].GetUID())
	}
	for _, scope := range []dynamic.ResourceInterface{api, everywhere} {
		if list := got(scope.List(t.Context(), labelled(test)))(t); len(list.Items) != 3 {
			t.Errorf("listing gives %d objects, not 3", len(list.Items))
		}
	}
}

func (o operations) write(t *testing.T, api dynamic.ResourceInterface, events watch.Interface, name string) {
	t.Helper()
	patch := []byte(`{"metadata":{"annotations":{"patched":"true"}}}`)
	patched := got(api.Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}))(t)
	if patched.GetAnnotations()["patched"] != "true" {
		t.Error("the patched object lacks its new annotation")
	}
	awaitEvent(t, events, watch.Modified, annotated("patched"))
	updated := edit(t, api, name, func(read *unstructured.Unstructured) {
		annotations := read.GetAnnotations()
		annotations["updated"] = "true"
		read.SetAnnotations(annotations)
		if o.change != nil {
			o.change(read.Object)
		}
	})
	if updated.GetAnnotations()["updated"] != "true" {
		t.Error("the updated object lacks its new annotation")
	}
	awaitEvent(t, events, watch.Modified, annotated("updated"))
}

func annotated(key string) func(watch.Event) bool {
	return func(event watch.Event) bool {
		return event.Object.(*unstructured.Unstructured).GetAnnotations()[key] == "true"
	}
}

// writeStatus reads, patches and updates a status subresource.
func (o operations) writeStatus(t *testing.T, api dynamic.ResourceInterface, name, subresource string) {
	t.Helper()
	patch := []byte(`{"metadata":{"annotations":{"patchedstatus":"true"}},"status":` + o.status + `}`)
	patched := got(api.Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}, subresource))(t)
	var want map[string]any
	must(t, json.Unmarshal([]byte(o.status), &want))
	for field := range want {
		if _, found, _ := unstructured.NestedFieldNoCopy(patched.Object, "status", field); !found {
			t.Errorf("status.%s was not taken by %s", field, subresource)
		}
	}
	edit(t, api, name, func(*unstructured.Unstructured) {}, subresource)
}

// edit reads, changes and updates an object, again where the cluster's own
// controllers wrote it in between.
func edit(t *testing.T, api dynamic.ResourceInterface, name string, change func(*unstructured.Unstructured), subresources ...string) *unstructured.Unstructured {
	t.Helper()
	var updated *unstructured.Unstructured
	must(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		read, err := api.Get(t.Context(), name, metav1.GetOptions{}, subresources...)
		if err != nil {
			return err
		}
		change(read)
		updated, err = api.Update(t.Context(), read, metav1.UpdateOptions{}, subresources...)
		return err
	}))
	return updated
}

func (o operations) remove(t *testing.T, api dynamic.ResourceInterface, events watch.Interface, test string, made []*unstructured.Unstructured) {
	t.Helper()
	name := made[0].GetName()
	must(t, api.Delete(t.Context(), name, metav1.DeleteOptions{}))
	awaitEvent(t, events, watch.Deleted, func(event watch.Event) bool {
		return event.Object.(*unstructured.Unstructured).GetName() == name
	})
	if _, err := api.Get(t.Context(), name, metav1.GetOptions{}); !gone(err) {
		t.Errorf("reading what was deleted gives %v", err)
	}
	must(t, api.DeleteCollection(t.Context(), metav1.DeleteOptions{}, labelled(test)))
	eventually(t, "the collection to be empty", func(ctx context.Context) (bool, error) {
		list, err := api.List(ctx, labelled(test))
		return err == nil && len(list.Items) == 0, err
	})
}

// conditionStatus is a status with one condition that says that it was patched.
func conditionStatus(kind string) string {
	return strings.ReplaceAll(`{"conditions":[{"type":"KIND","status":"False","reason":"ByPatch","message":"written by a patch","lastTransitionTime":"2026-01-02T03:04:05Z"}]}`, "KIND", kind)
}
