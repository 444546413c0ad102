package conformance

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var chunking = map[string]func(*testing.T){
	"should return chunks of results for list calls": listInChunks,
	"should support continue listing from the last key if the original version has been compacted away, though the list is inconsistent [Slow]": listAfterCompaction,
}

var tables = map[string]func(*testing.T){
	"should return a 406 for a backend which does not implement metadata": func(t *testing.T) {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/", Verb: "get"},
		}}
		err := client.AuthorizationV1().RESTClient().Post().Resource("selfsubjectaccessreviews").
			SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Body(review).Do(t.Context()).Error()
		if status, is := err.(apierrors.APIStatus); !is || status.Status().Code != http.StatusNotAcceptable {
			t.Errorf("the answer is %v", err)
		}
	},
}

const templates = 400

func makeTemplates(t *testing.T, namespace string) {
	t.Helper()
	for i := range templates {
		name := fmt.Sprintf("template-%04d", i)
		got(client.CoreV1().PodTemplates(namespace).Create(t.Context(), &corev1.PodTemplate{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Template:   corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "test", Image: "test2"}}}},
		}, metav1.CreateOptions{}))(t)
	}
}

func listInChunks(t *testing.T) {
	namespace := newNamespace(t)
	makeTemplates(t, namespace)
	api := client.CoreV1().PodTemplates(namespace)
	for _, limit := range []int64{7, 45, 399} {
		options, found, version := metav1.ListOptions{Limit: limit}, 0, ""
		for {
			list := got(api.List(t.Context(), options))(t)
			if len(list.Items) > int(limit) {
				t.Fatalf("a chunk of %d holds %d", limit, len(list.Items))
			}
			if version == "" {
				version = list.ResourceVersion
			}
			if list.ResourceVersion != version {
				t.Errorf("the version of a later chunk is %s, not %s", list.ResourceVersion, version)
			}
			for _, item := range list.Items {
				if want := fmt.Sprintf("template-%04d", found); item.Name != want {
					t.Fatalf("place %d holds %s", found, item.Name)
				}
				found++
			}
			if list.RemainingItemCount != nil && int(*list.RemainingItemCount) != templates-found {
				t.Errorf("%d are said to remain after %d", *list.RemainingItemCount, found)
			}
			if list.Continue == "" {
				break
			}
			options.Continue = list.Continue
		}
		if found != templates {
			t.Errorf("chunks of %d hold %d in all", limit, found)
		}
	}
	first, whole := got(api.List(t.Context(), metav1.ListOptions{Limit: 1}))(t), got(api.List(t.Context(), metav1.ListOptions{}))(t)
	if !reflect.DeepEqual(first.Items[0].UID, whole.Items[0].UID) || len(whole.Items) != templates {
		t.Errorf("the whole list has %d", len(whole.Items))
	}
}

// listAfterCompaction writes until the history that a continue token needs is
// gone, and goes on by the token that the refusal brings.
func listAfterCompaction(t *testing.T) {
	namespace := newNamespace(t)
	makeTemplates(t, namespace)
	const limit = 40
	api := client.CoreV1().PodTemplates(namespace)
	first := got(api.List(t.Context(), metav1.ListOptions{Limit: limit}))(t)
	fillHistory(t, namespace)
	var again string
	eventually(t, "the first chunk's version to be compacted", func(ctx context.Context) (bool, error) {
		_, err := api.List(ctx, metav1.ListOptions{Limit: limit, Continue: first.Continue})
		if !apierrors.IsResourceExpired(err) {
			return false, err
		}
		again = err.(apierrors.APIStatus).Status().Continue
		return true, nil
	})
	if again == "" {
		t.Fatal("the refusal brings no token")
	}
	found, version, options := limit, "", metav1.ListOptions{Limit: limit, Continue: again}
	for options.Continue != "" {
		list := got(api.List(t.Context(), options))(t)
		if version == "" {
			version = list.ResourceVersion
		}
		if list.ResourceVersion != version || version == first.ResourceVersion {
			t.Errorf("a chunk after the compaction is of version %s, its first of %s, the one before of %s", list.ResourceVersion, version, first.ResourceVersion)
		}
		for _, item := range list.Items {
			if want := fmt.Sprintf("template-%04d", found); item.Name != want {
				t.Fatalf("place %d holds %s", found, item.Name)
			}
			found++
		}
		options.Continue = list.Continue
	}
	if found != templates {
		t.Errorf("%d were listed, not %d", found, templates)
	}
}

// fillHistory writes more superseded values than the cluster keeps.
func fillHistory(t *testing.T, namespace string) {
	t.Helper()
	const size = 900 << 10
	api := client.CoreV1().ConfigMaps(namespace)
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "large"}, Data: map[string]string{"value": strings.Repeat("x", size)}}
	object = got(api.Create(t.Context(), object, metav1.CreateOptions{}))(t)
	for range historyBytes/size + 1 {
		object.Data["value"] = object.Data["value"][1:]
		object = got(api.Update(t.Context(), object, metav1.UpdateOptions{}))(t)
	}
	must(t, api.Delete(t.Context(), "large", metav1.DeleteOptions{}))
}
