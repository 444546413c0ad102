package handlers_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

func TestCreateFillsSystemFields(t *testing.T) {
	s := testserver.Start(t)
	in := configMap("a")
	in.UID, in.ResourceVersion, in.Generation = "mine", "", 7
	in.CreationTimestamp = metav1.Unix(1, 0)
	got, err := s.Client.CoreV1().ConfigMaps("default").Create(t.Context(), in, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got.UID == "mine" || len(got.UID) != 36 || got.ResourceVersion == "" || got.CreationTimestamp.Unix() < 2 {
		t.Errorf("system fields are the client's: %+v", got.ObjectMeta)
	}
	if len(got.ManagedFields) != 1 || got.ManagedFields[0].Operation != metav1.ManagedFieldsOperationUpdate {
		t.Errorf("managed fields: %+v", got.ManagedFields)
	}
	if want := `{"f:data":{".":{},"f:key":{}}}`; string(got.ManagedFields[0].FieldsV1.GetRawBytes()) != want {
		t.Errorf("managed fields are %s, want %s", got.ManagedFields[0].FieldsV1.GetRawBytes(), want)
	}
}

func TestCreateGeneratesNames(t *testing.T) {
	s := testserver.Start(t)
	seen := map[string]bool{}
	for range 3 {
		got, err := s.Client.CoreV1().ConfigMaps("default").Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: strings.Repeat("long", 20)}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Name) != 63 || seen[got.Name] {
			t.Errorf("generated name %q", got.Name)
		}
		seen[got.Name] = true
	}
}

func TestDryRunStoresNothing(t *testing.T) {
	s := testserver.Start(t)
	maps := s.Client.CoreV1().ConfigMaps("default")
	dry := []string{metav1.DryRunAll}
	if got, err := maps.Create(t.Context(), configMap("a"), metav1.CreateOptions{DryRun: dry}); err != nil || got.UID == "" {
		t.Fatalf("dry create: %v, %v", got, err)
	}
	if _, err := maps.Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Fatalf("after a dry create: %v", err)
	}
	stored, err := maps.Create(t.Context(), configMap("a"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Create(t.Context(), configMap("a"), metav1.CreateOptions{DryRun: dry}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("dry create of a taken name: %v", err)
	}
	changed := stored.DeepCopy()
	changed.Data["key"] = "other"
	if got, err := maps.Update(t.Context(), changed, metav1.UpdateOptions{DryRun: dry}); err != nil || got.Data["key"] != "other" {
		t.Errorf("dry update: %v, %v", got, err)
	}
	if _, err := maps.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"data":{"key":"patched"}}`), metav1.PatchOptions{DryRun: dry}); err != nil {
		t.Errorf("dry patch: %v", err)
	}
	if err := maps.Delete(t.Context(), "a", metav1.DeleteOptions{DryRun: dry}); err != nil {
		t.Errorf("dry delete: %v", err)
	}
	if got, err := maps.Get(t.Context(), "a", metav1.GetOptions{}); err != nil || got.ResourceVersion != stored.ResourceVersion {
		t.Errorf("after dry writes: %v, %v", got, err)
	}
}

func TestFieldValidationLevels(t *testing.T) {
	s := testserver.Start(t)
	r := newRaw(t, s)
	body := `{"metadata":{"name":"%s"},"data":{"k":"1","k":"2"},"nonsense":1}`
	warned := r.want(201, "POST", configMaps, fmt.Sprintf(body, "warn"))
	if got := warned.header.Values("Warning"); !slices.Equal(got, []string{`299 - "duplicate field \"data[k]\""`, `299 - "unknown field \"nonsense\""`}) &&
		!slices.Equal(got, []string{`299 - "unknown field \"nonsense\""`, `299 - "duplicate field \"data[k]\""`}) && len(got) != 2 {
		t.Errorf("warnings: %q", got)
	}
	if got := r.want(201, "POST", configMaps+"?fieldValidation=Ignore", fmt.Sprintf(body, "ignore")).header.Values("Warning"); len(got) > 0 {
		t.Errorf("warnings with Ignore: %q", got)
	}
	status := r.want(400, "POST", configMaps+"?fieldValidation=Strict", fmt.Sprintf(body, "strict")).status(t)
	if !strings.Contains(status.Message, `strict decoding error: `) || !strings.Contains(status.Message, `unknown field "nonsense"`) {
		t.Errorf("strict: %s", status.Message)
	}
	// Patches are checked, too.
	for _, kind := range []string{"application/merge-patch+json", "application/strategic-merge-patch+json"} {
		r.want(422, "PATCH", configMaps+"/warn?fieldValidation=Strict", `{"nonsense":1}`, "Content-Type: "+kind)
		if got := r.want(200, "PATCH", configMaps+"/warn", `{"nonsense":1}`, "Content-Type: "+kind).header.Values("Warning"); len(got) != 1 {
			t.Errorf("%s: warnings %q", kind, got)
		}
	}
}

func TestUpdateChecksWhatTheClientPinned(t *testing.T) {
	s := testserver.Start(t)
	maps := s.Client.CoreV1().ConfigMaps("default")
	first, err := maps.Create(t.Context(), configMap("a"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	second := first.DeepCopy()
	second.Data["key"] = "second"
	second, err = maps.Update(t.Context(), second, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stale := first.DeepCopy()
	stale.Data["key"] = "stale"
	if _, err := maps.Update(t.Context(), stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "the object has been modified; please apply your changes to the latest version and try again") {
		t.Errorf("stale update: %v", err)
	}
	other := second.DeepCopy()
	other.UID = "other"
	if _, err := maps.Update(t.Context(), other, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("update with another uid: %v", err)
	}
	free := configMap("a")
	free.Data["key"] = "unconditional"
	third, err := maps.Update(t.Context(), free, metav1.UpdateOptions{})
	if err != nil || third.Data["key"] != "unconditional" || third.UID != first.UID {
		t.Errorf("unconditional update: %v, %v", third, err)
	}
	if _, err := maps.Update(t.Context(), configMap("b"), metav1.UpdateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("update of nothing: %v", err)
	}
	wrong := newRaw(t, s).want(400, "PUT", configMaps+"/a", configMap("b")).status(t)
	if want := "the name of the object (b) does not match the name on the URL (a)"; wrong.Message != want {
		t.Errorf("got %q, want %q", wrong.Message, want)
	}
}

func TestEqualUpdateWritesNothing(t *testing.T) {
	s := testserver.Start(t)
	maps := s.Client.CoreV1().ConfigMaps("default")
	first, err := maps.Create(t.Context(), configMap("a"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	same, err := maps.Update(t.Context(), first, metav1.UpdateOptions{})
	if err != nil || same.ResourceVersion != first.ResourceVersion {
		t.Errorf("equal update: version %s became %s: %v", first.ResourceVersion, same.ResourceVersion, err)
	}
	for _, patch := range []string{`{}`, `{"data":{"key":"value"}}`, `{"metadata":{"labels":{}}}`} {
		got, err := maps.Patch(t.Context(), "a", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		if err != nil || got.ResourceVersion != first.ResourceVersion {
			t.Errorf("patch %s: version %s became %s: %v", patch, first.ResourceVersion, got.ResourceVersion, err)
		}
	}
}

func TestConcurrentPatchesNeverConflict(t *testing.T) {
	s := testserver.Start(t)
	maps := s.Client.CoreV1().ConfigMaps("default")
	if _, err := maps.Create(t.Context(), configMap("a"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const writers, each = 8, 10
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			for i := range each {
				patch := fmt.Sprintf(`{"data":{"w%d-%d":"x"}}`, w, i)
				if _, err := maps.Patch(t.Context(), "a", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
					t.Errorf("patch: %v", err)
				}
			}
		})
	}
	group.Wait()
	got, err := maps.Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil || len(got.Data) != writers*each+1 {
		t.Errorf("got %d keys, want %d: %v", len(got.Data), writers*each+1, err)
	}
}

func TestProtobufClientsReadAndWrite(t *testing.T) {
	s := testserver.Start(t)
	config := rest.CopyConfig(s.Config)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = config.ContentType
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	maps := client.CoreV1().ConfigMaps("default")
	for _, name := range []string{"a", "b"} {
		if _, err := maps.Create(t.Context(), configMap(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	byProtobuf, err := maps.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	byJSON, err := s.Client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a, _ := json.Marshal(byProtobuf)
	b, _ := json.Marshal(byJSON)
	if string(a) != string(b) {
		t.Errorf("lists differ:\nprotobuf %s\nJSON     %s", a, b)
	}
	if _, err := maps.Get(t.Context(), "c", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a Status in protobuf: %v", err)
	}
}

func TestScaleChangesReplicasOnly(t *testing.T) {
	s := testserver.Start(t)
	r := newRaw(t, s)
	const deployments = "/apis/apps/v1/namespaces/default/deployments"
	r.want(201, "POST", deployments, `{"metadata":{"name":"d"},"spec":{"replicas":1,"selector":{"matchLabels":{"a":"b"}},
		"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`)
	client := s.Client.AppsV1().Deployments("default")
	scale, err := client.GetScale(t.Context(), "d", metav1.GetOptions{})
	if err != nil || scale.Spec.Replicas != 1 || scale.Status.Selector != "a=b" {
		t.Fatalf("scale: %v, %v", scale, err)
	}
	scale.Spec.Replicas = 3
	if scale, err = client.UpdateScale(t.Context(), "d", scale, metav1.UpdateOptions{}); err != nil || scale.Spec.Replicas != 3 {
		t.Fatalf("update of the scale: %v, %v", scale, err)
	}
	got, err := client.Get(t.Context(), "d", metav1.GetOptions{})
	if err != nil || *got.Spec.Replicas != 3 || got.Generation != 2 {
		t.Errorf("deployment has replicas %d, generation %d: %v", *got.Spec.Replicas, got.Generation, err)
	}
	if !slices.ContainsFunc(got.ManagedFields, func(e metav1.ManagedFieldsEntry) bool { return e.Subresource == "scale" }) {
		t.Errorf("nobody manages the replicas through the scale: %+v", got.ManagedFields)
	}
	r.want(422, "PATCH", deployments+"/d/scale", `{"spec":{"replicas":-1}}`, "Content-Type: application/merge-patch+json")
	r.want(200, "PATCH", deployments+"/d/scale", `{"spec":{"replicas":5}}`, "Content-Type: application/merge-patch+json")
}
