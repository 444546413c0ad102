package conformance

import (
	"fmt"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// objectVolume is a kind of volume that shows the data of an object.
type objectVolume struct {
	// source is the volume of the named object; mode and items may be nil.
	source func(name string, mode *int32, optional bool, items ...corev1.KeyToPath) corev1.VolumeSource
	// store makes the object or replaces its data.
	store func(t *testing.T, namespace, name string, data map[string]string)
	// remove deletes the object.
	remove func(t *testing.T, namespace, name string)
}

var configMapVolume = objectVolume{
	source: func(name string, mode *int32, optional bool, items ...corev1.KeyToPath) corev1.VolumeSource {
		return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: name}, DefaultMode: mode, Optional: &optional, Items: items,
		}}
	},
	store: storeConfigMap, remove: removeConfigMap,
}

var projectedConfigMapVolume = objectVolume{
	source: func(name string, mode *int32, optional bool, items ...corev1.KeyToPath) corev1.VolumeSource {
		return projected(mode, corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: name}, Optional: &optional, Items: items,
		}})
	},
	store: storeConfigMap, remove: removeConfigMap,
}

var secretVolume = objectVolume{
	source: func(name string, mode *int32, optional bool, items ...corev1.KeyToPath) corev1.VolumeSource {
		return corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name, DefaultMode: mode, Optional: &optional, Items: items}}
	},
	store: storeSecret, remove: removeSecret,
}

var projectedSecretVolume = objectVolume{
	source: func(name string, mode *int32, optional bool, items ...corev1.KeyToPath) corev1.VolumeSource {
		return projected(mode, corev1.VolumeProjection{Secret: &corev1.SecretProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: name}, Optional: &optional, Items: items,
		}})
	},
	store: storeSecret, remove: removeSecret,
}

func projected(mode *int32, sources ...corev1.VolumeProjection) corev1.VolumeSource {
	return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{DefaultMode: mode, Sources: sources}}
}

func storeConfigMap(t *testing.T, namespace, name string, data map[string]string) {
	t.Helper()
	api := client.CoreV1().ConfigMaps(namespace)
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}
	_, err := api.Update(t.Context(), object, metav1.UpdateOptions{})
	if gone(err) {
		_, err = api.Create(t.Context(), object, metav1.CreateOptions{})
	}
	must(t, err)
}

func removeConfigMap(t *testing.T, namespace, name string) {
	t.Helper()
	must(t, client.CoreV1().ConfigMaps(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}))
}

func storeSecret(t *testing.T, namespace, name string, data map[string]string) {
	t.Helper()
	api := client.CoreV1().Secrets(namespace)
	object := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: data}
	_, err := api.Update(t.Context(), object, metav1.UpdateOptions{})
	if gone(err) {
		_, err = api.Create(t.Context(), object, metav1.CreateOptions{})
	}
	must(t, err)
}

func removeSecret(t *testing.T, namespace, name string) {
	t.Helper()
	must(t, client.CoreV1().Secrets(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}))
}

var threeValues = map[string]string{"data-1": "value-1", "data-2": "value-2", "data-3": "value-3"}

const (
	showFirst  = "stat -L -c %a /etc/vol/data-1; cat /etc/vol/data-1"
	showMapped = "stat -L -c %a /etc/vol/path/to/data-2; cat /etc/vol/path/to/data-2"
)

// shows runs a pod with the volume and asserts what it prints.
func (v objectVolume) shows(script, want string, user int64, mode *int32, items ...corev1.KeyToPath) func(*testing.T) {
	return func(t *testing.T) {
		namespace := newNamespace(t)
		v.store(t, namespace, "object", threeValues)
		made := withVolume(pod("reader", script), v.source("object", mode, false, items...))
		if user != 0 {
			asUser(made, user)
		}
		if got := output(t, namespace, made); got != want {
			t.Errorf("the pod prints %q, not %q", got, want)
		}
	}
}

func mapped(mode *int32) corev1.KeyToPath {
	return corev1.KeyToPath{Key: "data-2", Path: "path/to/data-2", Mode: mode}
}

// common are the behaviours that volumes of config maps and of secrets share.
func (v objectVolume) common(plural, itemMode string) map[string]func(*testing.T) {
	return map[string]func(*testing.T){
		"should be consumable from pods in volume [NodeConformance]":                                                    v.shows(showFirst, "644\nvalue-1", 0, nil),
		"should be consumable from pods in volume with defaultMode set [LinuxOnly] [NodeConformance]":                   v.shows(showFirst, "400\nvalue-1", 0, new(int32(0o400))),
		"should be consumable from pods in volume with mappings [NodeConformance]":                                      v.shows(showMapped, "644\nvalue-2", 0, nil, mapped(nil)),
		"should be consumable from pods in volume with mappings and " + itemMode + " set [LinuxOnly] [NodeConformance]": v.shows(showMapped, "400\nvalue-2", 0, nil, mapped(new(int32(0o400)))),
		"should be consumable in multiple volumes in " + plural + " [NodeConformance]":                                  v.inTwoVolumes,
		"optional updates should be reflected in volume [NodeConformance]":                                              v.optionalUpdates,
	}
}

// ofConfigMaps are the further behaviours of volumes of config maps.
func (v objectVolume) ofConfigMaps() map[string]func(*testing.T) {
	all := v.common("the same pod", "Item mode")
	maps.Copy(all, map[string]func(*testing.T){
		"should be consumable from pods in volume as non-root [NodeConformance]":               v.shows(showFirst, "644\nvalue-1", 1000, nil),
		"should be consumable from pods in volume with mappings as non-root [NodeConformance]": v.shows(showMapped, "644\nvalue-2", 1000, nil, mapped(nil)),
		"updates should be reflected in volume [NodeConformance]":                              v.updates,
	})
	return all
}

// ofSecrets are the further behaviours of volumes of secrets.
func (v objectVolume) ofSecrets() map[string]func(*testing.T) {
	all := v.common("a pod", "Item Mode")
	all["should be consumable from pods in volume as non-root with defaultMode and fsGroup set [LinuxOnly] [NodeConformance]"] = func(t *testing.T) {
		namespace := newNamespace(t)
		v.store(t, namespace, "object", threeValues)
		made := asUser(withVolume(pod("reader", "stat -L -c '%a %g' /etc/vol/data-1; cat /etc/vol/data-1"), v.source("object", new(int32(0o440)), false)), 1000)
		made.Spec.SecurityContext.FSGroup = new(int64(1001))
		if got, want := output(t, namespace, made), "440 1001\nvalue-1"; got != want {
			t.Errorf("the pod prints %q, not %q", got, want)
		}
	}
	return all
}

func (v objectVolume) inTwoVolumes(t *testing.T) {
	namespace := newNamespace(t)
	v.store(t, namespace, "object", threeValues)
	made := pod("reader", "cat /etc/one/data-1 /etc/two/data-1")
	withVolumeAt(made, "one", "/etc/one", v.source("object", nil, false))
	withVolumeAt(made, "two", "/etc/two", v.source("object", nil, false))
	if got := output(t, namespace, made); got != "value-1value-1" {
		t.Errorf("the pod prints %q", got)
	}
}

func (v objectVolume) updates(t *testing.T) {
	namespace := newNamespace(t)
	v.store(t, namespace, "object", threeValues)
	create(t, namespace, withVolume(pod("reader", "sleep 3600"), v.source("object", nil, false)))
	awaitRunning(t, namespace, "reader")
	eventuallyShell(t, namespace, "reader", "cat /etc/vol/data-1", "value-1")
	v.store(t, namespace, "object", map[string]string{"data-1": "changed"})
	eventuallyShell(t, namespace, "reader", "cat /etc/vol/data-1; ls /etc/vol | wc -l", "changed1")
}

func (v objectVolume) optionalUpdates(t *testing.T) {
	namespace := newNamespace(t)
	v.store(t, namespace, "deleted", threeValues)
	v.store(t, namespace, "updated", threeValues)
	made := pod("reader", "sleep 3600")
	for _, name := range []string{"deleted", "updated", "created"} {
		withVolumeAt(made, name, "/etc/"+name, v.source(name, nil, true))
	}
	create(t, namespace, made)
	awaitRunning(t, namespace, "reader")
	eventuallyShell(t, namespace, "reader", "cat /etc/deleted/data-1 /etc/updated/data-1; ls /etc/created | wc -l", "value-1value-10")
	v.remove(t, namespace, "deleted")
	v.store(t, namespace, "updated", map[string]string{"data-3": "changed"})
	v.store(t, namespace, "created", map[string]string{"data-1": "new"})
	eventuallyShell(t, namespace, "reader", "ls /etc/deleted | wc -l; cat /etc/updated/data-3 /etc/created/data-1; ls /etc/updated | wc -l", "0\nchangednew1")
}

func binaryData(t *testing.T) {
	namespace := newNamespace(t)
	binary := []byte{0xde, 0xca, 0xfe, 0xba, 0xd0, 0xfe, 0xff}
	got(client.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "object"}, Data: map[string]string{"data": "text"}, BinaryData: map[string][]byte{"dump.bin": binary},
	}, metav1.CreateOptions{}))(t)
	want := fmt.Sprintf("%x\n", binary)
	made := withVolume(pod("reader", "busybox hexdump -v -e '1/1 \"%02x\"' /etc/vol/dump.bin; echo; cat /etc/vol/data"), configMapVolume.source("object", nil, false))
	if got := output(t, namespace, made); got != want+"text" {
		t.Errorf("the pod prints %q", got)
	}
}

// sameNameElsewhere asserts that a volume shows the secret of its own namespace.
func sameNameElsewhere(t *testing.T) {
	namespace, other := newNamespace(t), newNamespace(t)
	storeSecret(t, other, "object", map[string]string{"data-1": "wrong"})
	storeSecret(t, namespace, "object", threeValues)
	if got := output(t, namespace, withVolume(pod("reader", showFirst), secretVolume.source("object", nil, false))); got != "644\nvalue-1" {
		t.Errorf("the pod prints %q", got)
	}
}

// projectedTogether asserts that one volume shows a config map, a secret and
// the pod's own fields.
func projectedTogether(t *testing.T) {
	namespace := newNamespace(t)
	storeConfigMap(t, namespace, "config", map[string]string{"configmap-data": "from a config map"})
	storeSecret(t, namespace, "secret", map[string]string{"secret-data": "from a secret"})
	made := withVolume(pod("together", "cat /etc/vol/podname; echo; cat /etc/vol/secret-data /etc/vol/configmap-data"), projected(nil,
		corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{fieldFile("podname", "metadata.name")}}},
		corev1.VolumeProjection{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "secret"}}},
		corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "config"}}},
	))
	if got := output(t, namespace, made); got != "together\nfrom a secretfrom a config map" {
		t.Errorf("the pod prints %q", got)
	}
}
