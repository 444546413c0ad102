package customresource_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

// hung starts endpoints with one object in v1, whose conversions hang until the
// channel is closed; asked tells of each.
func hung(t *testing.T) (server *testserver.Server, c *converter, asked, release chan struct{}) {
	t.Helper()
	server = testserver.Start(t)
	c = newConverter(t)
	v1 := mustDefine(t, server, c.endpointDefinition()).Namespace("default")
	if _, err := v1.Create(t.Context(), endpointV1("a"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	asked, release = make(chan struct{}, 100), make(chan struct{})
	c.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		select {
		case <-release:
			c.serve(w, r)
		case <-r.Context().Done():
		}
	})
	return server, c, asked, release
}

const (
	endpointPath = "/apis/example.com/v2/namespaces/default/endpoints"
	endpointBody = `{"apiVersion":"example.com/v2","kind":"Endpoint","metadata":{"name":"NAME"},"spec":{"address":"h:81"}}`
)

func TestConversionsEndWithTheirRequest(t *testing.T) {
	server, _, _, release := hung(t)
	defer close(release)
	client := server.Client.Discovery().RESTClient()
	body := func(name string) []byte { return []byte(strings.ReplaceAll(endpointBody, "NAME", name)) }
	for name, request := range map[string]*rest.Request{
		"get":         client.Get().AbsPath(endpointPath + "/a"),
		"list":        client.Get().AbsPath(endpointPath),
		"table":       client.Get().AbsPath(endpointPath).SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io"),
		"select":      client.Get().AbsPath(endpointPath).Param("fieldSelector", "spec.address=h:80"),
		"create":      client.Post().AbsPath(endpointPath).Body(body("b")),
		"update":      client.Put().AbsPath(endpointPath + "/a").Body(body("a")),
		"patch":       client.Patch("application/merge-patch+json").AbsPath(endpointPath + "/a").Body([]byte(`{"spec":{"address":"h:82"}}`)),
		"apply":       client.Patch("application/apply-patch+yaml").AbsPath(endpointPath+"/a").Param("fieldManager", "m").Body(body("a")),
		"apply a new": client.Patch("application/apply-patch+yaml").AbsPath(endpointPath+"/b").Param("fieldManager", "m").Body(body("b")),
		"delete":      client.Delete().AbsPath(endpointPath + "/a"),
	} {
		t.Run(name, func(t *testing.T) {
			started := time.Now()
			err := request.Param("timeout", "1s").Do(t.Context()).Error()
			if !apierrors.IsTimeout(err) {
				t.Errorf("after %s: %v", time.Since(started), err)
			}
		})
	}
	v1 := server.Dynamic(t).Resource(gvr(newConverter(t).endpointDefinition(), "v1")).Namespace("default")
	list, err := v1.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].GetGeneration() != 1 {
		t.Errorf("what was stored: %v, %v", list, err)
	}
}

// Readers share a conversion. One whose time ends leaves the others waiting for it,
// and one whose time ends while it makes the conversion leaves it to them.
func TestConversionsAreSharedByReadersOfDifferentPatience(t *testing.T) {
	for _, first := range []string{"1s", "30s"} {
		server, c, asked, release := hung(t)
		client := server.Client.Discovery().RESTClient()
		get := func(timeout string) <-chan error {
			done := make(chan error, 1)
			go func() {
				done <- client.Get().AbsPath(endpointPath+"/a").Param("timeout", timeout).Do(context.Background()).Error()
			}()
			return done
		}
		results := map[string]<-chan error{first: get(first)}
		<-asked
		second := map[string]string{"1s": "30s", "30s": "1s"}[first]
		results[second] = get(second)
		if err := <-results["1s"]; !apierrors.IsTimeout(err) {
			t.Errorf("the impatient one, with %s first: %v", first, err)
		}
		close(release)
		if err := <-results["30s"]; err != nil {
			t.Errorf("the patient one, with %s first: %v", first, err)
		}
		c.answers(func(w http.ResponseWriter, _ *apiextensionsv1.ConversionReview) {
			http.Error(w, "asked again", http.StatusTeapot)
		})
		if err := <-get("30s"); err != nil {
			t.Errorf("a later one, with %s first: %v", first, err)
		}
	}
}
