package volumes

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

type fakeClaims struct {
	claims  map[string]*corev1.PersistentVolumeClaim
	volumes map[string]*corev1.PersistentVolume
}

func (f fakeClaims) Claim(_ context.Context, _, name string) (*corev1.PersistentVolumeClaim, error) {
	if claim := f.claims[name]; claim != nil {
		return claim, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("persistentvolumeclaims"), name)
}

func (f fakeClaims) Volume(_ context.Context, name string) (*corev1.PersistentVolume, error) {
	if volume := f.volumes[name]; volume != nil {
		return volume, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("persistentvolumes"), name)
}

func boundClaim(name string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
}

func volumeFor(name string, source corev1.PersistentVolumeSource) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}, Spec: corev1.PersistentVolumeSpec{
		PersistentVolumeSource: source, ClaimRef: &corev1.ObjectReference{Name: name, UID: types.UID(name)},
	}}
}

func TestClaimsAreMounted(t *testing.T) {
	dir := t.TempDir()
	local := filepath.Join(dir, "local")
	if err := os.Mkdir(local, 0o755); err != nil {
		t.Fatal(err)
	}
	pending := boundClaim("pending")
	pending.Status.Phase = corev1.ClaimPending
	block := volumeFor("block", corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: local}})
	block.Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
	stolen := volumeFor("stolen", corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: local}})
	stolen.Spec.ClaimRef.UID = "another"
	fake := fakeClaims{claims: map[string]*corev1.PersistentVolumeClaim{"pending": pending}, volumes: map[string]*corev1.PersistentVolume{"pv-block": block, "pv-stolen": stolen}}
	for name, source := range map[string]corev1.PersistentVolumeSource{
		"local": {Local: &corev1.LocalVolumeSource{Path: local}}, "gone": {Local: &corev1.LocalVolumeSource{Path: filepath.Join(dir, "gone")}},
		"host": {HostPath: &corev1.HostPathVolumeSource{Path: filepath.Join(dir, "host"), Type: new(corev1.HostPathDirectoryOrCreate)}},
		"nfs":  {NFS: &corev1.NFSVolumeSource{Server: "s", Path: "/"}},
	} {
		fake.volumes["pv-"+name] = volumeFor(name, source)
	}
	for _, name := range []string{"local", "gone", "host", "nfs", "block", "stolen"} {
		fake.claims[name] = boundClaim(name)
	}
	m := New(Config{Root: dir, Claims: fake, Failed: func(*corev1.Pod, string, error) {}, Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(m.Close)
	mount := func(claim string) (Mounted, error) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: types.UID("pod-" + claim)}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{{
			Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}},
		}}}}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		mounted, err := m.Mount(ctx, pod)
		return mounted["v"], err
	}
	for claim, path := range map[string]string{"local": local, "host": filepath.Join(dir, "host")} {
		if mounted, err := mount(claim); err != nil || mounted.HostPath != path {
			t.Errorf("claim %s is mounted from %q, %v", claim, mounted.HostPath, err)
		}
	}
	for claim, want := range map[string]string{
		"none": "not found", "pending": "not bound to a volume yet", "gone": "no such file", "nfs": "not supported by this node", "block": "block device", "stolen": "bound to another claim",
	} {
		if _, err := mount(claim); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("claim %s: %v, want an error with %q", claim, err, want)
		}
	}
}
