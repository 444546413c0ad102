package handlers_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"sigs.k8s.io/yaml"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

func fill(t *testing.T, s *testserver.Server, count int) {
	t.Helper()
	for i := range count {
		in := configMap(fmt.Sprintf("m%02d", i))
		in.Labels = map[string]string{"third": fmt.Sprint(i % 3)}
		if _, err := s.Client.CoreV1().ConfigMaps("default").Create(t.Context(), in, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestBytesAreThoseOfUpstreamsEncoders compares answers, which are put together
// from cached parts, with what the codecs of apimachinery make of the typed
// objects.
func TestBytesAreThoseOfUpstreamsEncoders(t *testing.T) {
	s := testserver.Start(t)
	fill(t, s, 3)
	if _, err := s.Client.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "s", Annotations: map[string]string{"html": "<a & b>"}},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r := newRaw(t, s)
	codecs := serializer.NewCodecFactory(clientscheme.Scheme, serializer.WithSerializer(cbor.NewSerializerInfo))
	for path, into := range map[string]runtime.Object{
		"/api/v1/namespaces/default/configmaps":                   &corev1.ConfigMapList{},
		"/api/v1/namespaces/default/configmaps?limit=2":           &corev1.ConfigMapList{},
		"/api/v1/namespaces/default/configmaps?labelSelector=a=b": &corev1.ConfigMapList{},
		"/api/v1/namespaces/default/configmaps/m00":               &corev1.ConfigMap{},
		"/api/v1/namespaces/default/services/s":                   &corev1.Service{},
		"/api/v1/services":                                        &corev1.ServiceList{},
		"/api/v1/namespaces":                                      &corev1.NamespaceList{},
		"/api/v1/namespaces/default":                              &corev1.Namespace{},
	} {
		for _, mediaType := range []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "application/cbor", "application/json;pretty=1"} {
			got := r.want(200, "GET", path, nil, "Accept: "+mediaType)
			base, pretty := strings.CutSuffix(mediaType, ";pretty=1")
			if have := got.header.Get("Content-Type"); have != base {
				t.Errorf("%s as %s: content type %q", path, mediaType, have)
			}
			info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), base)
			obj, kind, err := info.Serializer.Decode(got.body, nil, into.DeepCopyObject())
			if err != nil {
				t.Fatalf("%s as %s: %v", path, mediaType, err)
			}
			obj.GetObjectKind().SetGroupVersionKind(*kind)
			encoder := info.Serializer
			if pretty {
				encoder = info.PrettySerializer
			}
			want, err := runtime.Encode(encoder, obj)
			if err != nil {
				t.Fatal(err)
			}
			if string(want) != string(got.body) {
				t.Errorf("%s as %s:\ngot  %q\nwant %q", path, mediaType, got.body, want)
			}
		}
	}
}

func TestListInPartsIsConsistent(t *testing.T) {
	s := testserver.Start(t)
	fill(t, s, 10)
	maps := s.Client.CoreV1().ConfigMaps("default")
	var names []string
	options := metav1.ListOptions{Limit: 4}
	for part := 0; ; part++ {
		list, err := maps.List(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range list.Items {
			names = append(names, item.Name)
		}
		if part == 0 {
			if list.RemainingItemCount == nil || *list.RemainingItemCount != 6 {
				t.Errorf("remaining: %v, want 6", list.RemainingItemCount)
			}
			// What changes now is not part of the list.
			if err := maps.Delete(t.Context(), "m07", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := maps.Create(t.Context(), configMap("m055"), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if options.Continue = list.Continue; options.Continue == "" {
			break
		}
	}
	if want := "m00 m01 m02 m03 m04 m05 m06 m07 m08 m09"; strings.Join(names, " ") != want {
		t.Errorf("got %v", names)
	}
	selected, err := maps.List(t.Context(), metav1.ListOptions{Limit: 1, LabelSelector: "third=0"})
	if err != nil || selected.RemainingItemCount != nil || selected.Continue == "" {
		t.Errorf("with a selector the remaining count is unknown: %+v, %v", selected.ListMeta, err)
	}
}

func TestListAtVersions(t *testing.T) {
	s := testserver.Start(t)
	maps := s.Client.CoreV1().ConfigMaps("default")
	fill(t, s, 2)
	before, err := maps.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Create(t.Context(), configMap("later"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		version string
		match   metav1.ResourceVersionMatch
		limit   int64
		want    int
	}{
		{"", "", 0, 3},
		{"0", "", 0, 3},
		{before.ResourceVersion, "", 0, 3},
		{before.ResourceVersion, "", 10, 2}, // a limited list is exact
		{before.ResourceVersion, metav1.ResourceVersionMatchExact, 0, 2},
		{before.ResourceVersion, metav1.ResourceVersionMatchNotOlderThan, 0, 3},
	} {
		got, err := maps.List(t.Context(), metav1.ListOptions{ResourceVersion: c.version, ResourceVersionMatch: c.match, Limit: c.limit})
		if err != nil || len(got.Items) != c.want {
			t.Errorf("%+v: got %d items: %v", c, len(got.Items), err)
		}
		if c.match == metav1.ResourceVersionMatchExact && got.ResourceVersion != before.ResourceVersion {
			t.Errorf("%+v: list is at %s", c, got.ResourceVersion)
		}
	}
	for _, bad := range []metav1.ListOptions{
		{ResourceVersion: "0", ResourceVersionMatch: metav1.ResourceVersionMatchExact},
		{ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan},
		{ResourceVersion: "1", ResourceVersionMatch: "Nonsense"},
		{ResourceVersion: "nonsense"},
	} {
		if _, err := maps.List(t.Context(), bad); !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func TestSelectors(t *testing.T) {
	s := testserver.Start(t)
	fill(t, s, 9)
	maps := s.Client.CoreV1().ConfigMaps("")
	for selector, want := range map[string]int{
		"third=0": 3, "third!=0": 7, "third in (0,1)": 6, "!third": 1, "third": 9, "third=0,third=1": 0,
	} {
		got, err := maps.List(t.Context(), metav1.ListOptions{LabelSelector: selector})
		if err != nil || len(got.Items) != want {
			t.Errorf("%s: got %d, want %d: %v", selector, len(got.Items), want, err)
		}
	}
	for selector, want := range map[string]int{
		"metadata.name=m03": 1, "metadata.name!=m03,metadata.namespace=default": 8, "metadata.namespace=nowhere": 0,
	} {
		got, err := maps.List(t.Context(), metav1.ListOptions{FieldSelector: selector})
		if err != nil || len(got.Items) != want {
			t.Errorf("%s: got %d, want %d: %v", selector, len(got.Items), want, err)
		}
	}
}

func TestTables(t *testing.T) {
	s := testserver.Start(t)
	fill(t, s, 2)
	r := newRaw(t, s)
	const accept = "Accept: application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
	table := func(path string) metav1.Table {
		t.Helper()
		var out metav1.Table
		if err := json.Unmarshal(r.want(200, "GET", path, nil, accept).body, &out); err != nil || out.Kind != "Table" {
			t.Fatalf("%s: %+v, %v", path, out, err)
		}
		return out
	}
	got := table(configMaps)
	if len(got.Rows) != 2 || len(got.ColumnDefinitions) != 3 || got.Rows[0].Cells[0] != "m00" || got.Rows[0].Cells[1] != float64(1) || got.ResourceVersion == "" {
		t.Errorf("table: %+v", got)
	}
	if object := string(got.Rows[0].Object.Raw); !strings.HasPrefix(object, `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"m00"`) {
		t.Errorf("row's object: %s", object)
	}
	if whole := table(configMaps + "/m00?includeObject=Object"); !strings.Contains(string(whole.Rows[0].Object.Raw), `"data":{"key":"value"}`) {
		t.Errorf("included object: %s", whole.Rows[0].Object.Raw)
	}
	if none := table(configMaps + "?includeObject=None&limit=1"); none.Rows[0].Object.Raw != nil && string(none.Rows[0].Object.Raw) != "null" || none.Continue == "" {
		t.Errorf("table without objects: %+v", none)
	}
	r.want(400, "GET", configMaps+"?includeObject=Some", nil, accept)
	// A Table has no protobuf form; the next clause counts.
	if next := r.want(200, "GET", configMaps, nil, "Accept: application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io,application/json"); !strings.Contains(string(next.body), `"kind":"ConfigMapList"`) {
		t.Errorf("fallback: %.80s", next.body)
	}
}

func TestMetadataOnly(t *testing.T) {
	s := testserver.Start(t)
	fill(t, s, 2)
	client, err := metadata.NewForConfig(s.Config) // speaks protobuf
	if err != nil {
		t.Fatal(err)
	}
	maps := client.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).Namespace("default")
	list, err := maps.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 2 || list.Items[1].Name != "m01" || list.Items[1].Labels["third"] != "1" {
		t.Errorf("list: %+v, %v", list, err)
	}
	got, err := maps.Get(t.Context(), "m00", metav1.GetOptions{})
	if err != nil || got.UID == "" {
		t.Errorf("get: %+v, %v", got, err)
	}
	r := newRaw(t, s)
	body := r.want(200, "GET", configMaps, nil, "Accept: application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io").body
	var decoded metav1.PartialObjectMetadataList
	if err := json.Unmarshal(body, &decoded); err != nil || decoded.Kind != "PartialObjectMetadataList" || decoded.Items[0].Kind != "PartialObjectMetadata" {
		t.Errorf("JSON list: %s", body)
	}
}

func TestAcceptsYAMLBodies(t *testing.T) {
	s := testserver.Start(t)
	body, err := yaml.Marshal(configMap("a"))
	if err != nil {
		t.Fatal(err)
	}
	r := newRaw(t, s)
	got := r.want(201, "POST", configMaps, body, "Content-Type: application/yaml", "Accept: application/yaml")
	if !strings.Contains(string(got.body), "key: value") {
		t.Errorf("answer: %s", got.body)
	}
}

func TestExpiredContinueCarriesANewToken(t *testing.T) {
	s := testserver.Start(t)
	fill(t, s, 3)
	old := base64.RawURLEncoding.EncodeToString([]byte(`{"v":"meta.k8s.io/v1","rv":-1,"start":"default/m00\u0000"}`))
	// The inconsistent token goes on from its key at the newest state.
	r := newRaw(t, s)
	body := r.want(200, "GET", "/api/v1/configmaps?limit=10&continue="+url.QueryEscape(old), nil).body
	if strings.Contains(string(body), `"name":"m00"`) || !strings.Contains(string(body), `"name":"m01"`) {
		t.Errorf("inconsistent continuation: %s", body)
	}
	escape := base64.RawURLEncoding.EncodeToString([]byte(`{"v":"meta.k8s.io/v1","rv":5,"start":"../../secrets/"}`))
	r.want(400, "GET", configMaps+"?continue="+url.QueryEscape(escape), nil)
	r.want(400, "GET", configMaps+"?resourceVersion=5&continue="+url.QueryEscape(old), nil)
}

func TestTokenOfOneNamespaceNeverListsAnother(t *testing.T) {
	s := testserver.Start(t)
	fill(t, s, 3)
	r := newRaw(t, s)
	token := base64.RawURLEncoding.EncodeToString([]byte(`{"v":"meta.k8s.io/v1","rv":-1,"start":"aaa/m\u0000"}`))
	body := r.want(200, "GET", "/api/v1/namespaces/kube-system/configmaps?continue="+url.QueryEscape(token), nil).body
	if strings.Contains(string(body), `"namespace":"default"`) {
		t.Errorf("a list of kube-system has objects of default: %s", body)
	}
}
