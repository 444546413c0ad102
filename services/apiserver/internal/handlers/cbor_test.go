package handlers_test

import (
	"bytes"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	clientscheme "k8s.io/client-go/kubernetes/scheme"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

const (
	sendCBOR = "Content-Type: application/cbor"
	takeCBOR = "Accept: application/cbor"
)

func toCBOR(t *testing.T, obj runtime.Object) []byte {
	t.Helper()
	var buffer bytes.Buffer
	if err := cbor.NewSerializer(clientscheme.Scheme, clientscheme.Scheme).Encode(obj, &buffer); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}

func fromCBOR(t *testing.T, data []byte) map[string]any {
	t.Helper()
	var content map[string]any
	if err := direct.Unmarshal(data, &content); err != nil {
		t.Fatalf("%v: %x", err, data)
	}
	return content
}

func TestObjectsAreWrittenInCBOR(t *testing.T) {
	r := newRaw(t, testserver.Start(t))
	in := configMap("m")
	in.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}
	made := fromCBOR(t, r.want(201, "POST", configMaps, toCBOR(t, in), sendCBOR, takeCBOR).body)
	if data, _ := made["data"].(map[string]any); data["key"] != "value" || made["kind"] != "ConfigMap" {
		t.Errorf("the answer is %v", made)
	}
	apply := map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "m"}, "data": map[string]any{"more": "x"}}
	body, err := direct.Marshal(apply)
	if err != nil {
		t.Fatal(err)
	}
	applied := fromCBOR(t, r.want(200, "PATCH", configMaps+"/m?fieldManager=test", body, "Content-Type: application/apply-patch+cbor", takeCBOR).body)
	if data, _ := applied["data"].(map[string]any); data["key"] != "value" || data["more"] != "x" {
		t.Errorf("after the apply: %v", applied["data"])
	}
	for what, bad := range map[string][]byte{"cut short": body[:len(body)-1], "no CBOR": []byte("{}"), "empty": {}, "not a map": {0x80}} {
		r.want(400, "PATCH", configMaps+"/m?fieldManager=test", bad, "Content-Type: application/apply-patch+cbor")
		if answer := r.do("POST", configMaps, bad, sendCBOR); answer.code != 400 {
			t.Errorf("%s: creating answers %d", what, answer.code)
		}
	}
	if refused := fromCBOR(t, r.want(404, "GET", configMaps+"/none", nil, takeCBOR).body); refused["kind"] != "Status" {
		t.Errorf("an error is %v", refused)
	}
}

func TestViewsAndWatchesAreReadInCBOR(t *testing.T) {
	s := testserver.Start(t)
	fill(t, s, 2)
	r := newRaw(t, s)
	table := fromCBOR(t, r.want(200, "GET", configMaps, nil, "Accept: application/cbor;as=Table;v=v1;g=meta.k8s.io").body)
	if rows, _ := table["rows"].([]any); table["kind"] != "Table" || len(rows) < 2 {
		t.Errorf("the table is %v", table)
	}
	partial := fromCBOR(t, r.want(200, "GET", configMaps, nil, "Accept: application/cbor;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io").body)
	if partial["kind"] != "PartialObjectMetadataList" || len(partial["items"].([]any)) < 2 {
		t.Errorf("the metadata are %v", partial)
	}
	answer := r.want(200, "GET", configMaps+"?watch=1&timeoutSeconds=1&fieldSelector=metadata.name=m01", nil, takeCBOR)
	if got := answer.header.Get("Content-Type"); got != "application/cbor-seq" {
		t.Errorf("a watch is of type %q", got)
	}
	frames := cbor.NewFramer().NewFrameReader(readCloser{bytes.NewReader(answer.body)})
	buffer := make([]byte, 1<<16)
	n, err := frames.Read(buffer)
	if err != nil {
		t.Fatal(err)
	}
	var event metav1.WatchEvent
	if err := direct.Unmarshal(buffer[:n], &event); err != nil {
		t.Fatal(err)
	}
	obj, _, err := cbor.NewSerializer(clientscheme.Scheme, clientscheme.Scheme).Decode(event.Object.Raw, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := obj.(*corev1.ConfigMap); !ok || event.Type != "ADDED" || got.Name != "m01" || got.Data["key"] != "value" {
		t.Errorf("the event is %s of %v", event.Type, obj)
	}
}

type readCloser struct{ *bytes.Reader }

func (readCloser) Close() error { return nil }
