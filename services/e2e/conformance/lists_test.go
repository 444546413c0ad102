package conformance

import (
	"fmt"
	"net/http"
	"reflect"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var chunking = map[string]func(*testing.T){
	"should return chunks of results for list calls": listInChunks,
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
