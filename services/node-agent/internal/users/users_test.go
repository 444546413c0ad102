package users

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func ownPod(uid string) *corev1.Pod {
	no := false
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}, Spec: corev1.PodSpec{HostUsers: &no}}
}

func first(t *testing.T, r *Ranges, uid string) uint32 {
	t.Helper()
	user, err := r.Namespace(ownPod(uid))
	if err != nil {
		t.Fatal(err)
	}
	ids := user.GetUids()[0]
	if ids.GetHostId() < IDsPerPod || ids.GetLength() != IDsPerPod || ids.GetContainerId() != 0 {
		t.Fatalf("ids %v", ids)
	}
	return ids.GetHostId()
}

func TestPodsKeepRangesOfTheirOwn(t *testing.T) {
	dir := t.TempDir()
	r, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	got := map[uint32]string{}
	for i := range 200 {
		uid := fmt.Sprintf("pod-%d", i)
		id := first(t, r, uid)
		if other, taken := got[id]; taken {
			t.Fatalf("%s and %s have the same ids", uid, other)
		}
		got[id] = uid
	}
	again, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	for id, uid := range got {
		if first(t, again, uid) != id {
			t.Errorf("%s has other ids after a restart", uid)
		}
	}
}

func TestRangesOfPodsThatAreGoneAreFree(t *testing.T) {
	dir := t.TempDir()
	r, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	first(t, r, "gone")
	if err := os.RemoveAll(filepath.Join(dir, "gone")); err != nil {
		t.Fatal(err)
	}
	first(t, r, "new")
	if len(r.taken) != 1 {
		t.Errorf("taken %v", r.taken)
	}
}

func TestPodsOfTheNodesUsersHaveNoRange(t *testing.T) {
	r, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if user, err := r.Namespace(&corev1.Pod{}); user != nil || err != nil {
		t.Errorf("%v, %v", user, err)
	}
}

func TestDamagedRangesAreNotGuessed(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "pod"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "{", `{"firstID":0,"length":65536}`, `{"firstID":65537,"length":65536}`, `{"firstID":65536,"length":1}`} {
		if err := os.WriteFile(filepath.Join(dir, "pod", fileName), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}
