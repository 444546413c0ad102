package resources_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/restmapper"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

// upstreamBytes are an object as upstream's serializer of the media type has it.
func upstreamBytes(t *testing.T, obj runtime.Object, kind schema.GroupVersionKind, mediaType string) []byte {
	t.Helper()
	info, ok := runtime.SerializerInfoForMediaType(clientscheme.Codecs.SupportedMediaTypes(), mediaType)
	if !ok {
		t.Fatalf("there is no serializer of %s", mediaType)
	}
	data, err := runtime.Encode(clientscheme.Codecs.WithoutConversion().EncoderForVersion(info.Serializer, kind.GroupVersion()), obj)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// answer is an open answer to a GET.
func answer(t *testing.T, server *testserver.Server, path, accept string) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.Config.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", accept)
	response, err := server.HTTP(t).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	if response.StatusCode != http.StatusOK || response.Header.Get("Content-Type") != accept {
		t.Fatalf("%s: %s, %s", path, response.Status, response.Header.Get("Content-Type"))
	}
	return response
}

// firstEvent reads a watch's first event and checks how it is framed.
func firstEvent(t *testing.T, body io.Reader, mediaType string) *metav1.WatchEvent {
	t.Helper()
	event := &metav1.WatchEvent{}
	if mediaType == runtime.ContentTypeJSON {
		line, err := bufio.NewReader(body).ReadBytes('\n')
		if err == nil {
			err = json.Unmarshal(line, event)
		}
		if err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		if want := `{"type":"ADDED","object":` + string(event.Object.Raw) + "}\n"; string(line) != want {
			t.Errorf("the event is\n%swant\n%s", line, want)
		}
		return event
	}
	var length [4]byte
	if _, err := io.ReadFull(body, length[:]); err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, binary.BigEndian.Uint32(length[:]))
	_, err := io.ReadFull(body, frame)
	if err == nil {
		err = event.Unmarshal(frame)
	}
	if err != nil {
		t.Fatal(err)
	}
	if again, err := event.Marshal(); err != nil || !bytes.Equal(again, frame) {
		t.Errorf("the event is %q, want %q (%v)", frame, again, err)
	}
	return event
}

// sameBytes checks that data are what upstream makes of the object they mean.
func sameBytes(t *testing.T, what string, data []byte, kind schema.GroupVersionKind, mediaType string, items bool) {
	t.Helper()
	obj, got, err := clientscheme.Codecs.UniversalDeserializer().Decode(data, nil, nil)
	if err != nil || *got != kind {
		t.Fatalf("%s: %v, %v", what, got, err)
	}
	want := upstreamBytes(t, obj, kind, mediaType)
	if mediaType == runtime.ContentTypeJSON && what == "event" {
		want = bytes.TrimSuffix(want, []byte("\n"))
	}
	if !bytes.Equal(data, want) {
		t.Errorf("%s\n got %q\nwant %q", what, data, want)
	}
	if !items {
		return
	}
	list, err := meta.ExtractList(obj)
	if err != nil || len(list) == 0 {
		t.Fatalf("%s has %d items (%v)", what, len(list), err)
	}
	for _, item := range list {
		if kind := item.GetObjectKind().GroupVersionKind(); !kind.Empty() {
			t.Errorf("%s: an item is typed: %s", what, kind)
		}
	}
}

func TestListsAndWatchesOfEveryKindHaveUpstreamsBytes(t *testing.T) {
	server := testserver.Start(t)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}} // pods need it
	if _, err := server.Client.CoreV1().ServiceAccounts("default").Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	groups, err := restmapper.GetAPIGroupResources(server.Client.Discovery())
	if err != nil {
		t.Fatal(err)
	}
	mapper, objects := restmapper.NewDiscoveryRESTMapper(groups), server.Dynamic(t)
	for _, fixture := range fixtures(t) {
		kind := fixture.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			t.Fatal(err)
		}
		path := "/apis/" + kind.GroupVersion().String() + "/"
		if kind.Group == "" {
			path = "/api/v1/"
		}
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			path += "namespaces/default/"
			_, err = objects.Resource(mapping.Resource).Namespace("default").Create(t.Context(), fixture, metav1.CreateOptions{})
		} else {
			_, err = objects.Resource(mapping.Resource).Create(t.Context(), fixture, metav1.CreateOptions{})
		}
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		path += mapping.Resource.Resource + "?fieldSelector=metadata.name%3D" + fixture.GetName()
		for _, mediaType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
			t.Run(path+" "+mediaType, func(t *testing.T) {
				data, err := io.ReadAll(answer(t, server, path, mediaType).Body)
				if err != nil {
					t.Fatal(err)
				}
				sameBytes(t, "list", data, kind.GroupVersion().WithKind(kind.Kind+"List"), mediaType, true)
				stream := mediaType
				if mediaType == runtime.ContentTypeProtobuf {
					stream += ";stream=watch"
				}
				event := firstEvent(t, answer(t, server, path+"&watch=true&resourceVersion=0", stream).Body, mediaType)
				sameBytes(t, "event", event.Object.Raw, kind, mediaType, false)
			})
		}
	}
}
