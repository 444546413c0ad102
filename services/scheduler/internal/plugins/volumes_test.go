package plugins

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
)

const testDriver = "disks.example.com"

// fakeVolumes has what tests put there, by name.
type fakeVolumes struct {
	claims     map[string]*corev1.PersistentVolumeClaim
	csiNode    *storagev1.CSINode
	driver     *storagev1.CSIDriver
	capacities []*storagev1.CSIStorageCapacity
}

func (f fakeVolumes) Claim(_, name string) *corev1.PersistentVolumeClaim { return f.claims[name] }
func (f fakeVolumes) CSINode(string) *storagev1.CSINode                  { return f.csiNode }
func (f fakeVolumes) CSIDriver(string) *storagev1.CSIDriver              { return f.driver }
func (f fakeVolumes) Capacities(string) []*storagev1.CSIStorageCapacity  { return f.capacities }
func (fakeVolumes) OfClass(string) []*corev1.PersistentVolume            { return nil }
func (fakeVolumes) Node(string) *corev1.Node                             { return nil }

func (fakeVolumes) Volume(name string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: testDriver, VolumeHandle: name}},
	}}
}

func (fakeVolumes) Class(name string) *storagev1.StorageClass {
	late := storagev1.VolumeBindingWaitForFirstConsumer
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: testDriver, VolumeBindingMode: &late}
}

func (fakeVolumes) Assign(context.Context, *corev1.PersistentVolumeClaim, *corev1.PersistentVolume, string) error {
	return nil
}

func claimTo(volume string, modes ...corev1.PersistentVolumeAccessMode) *corev1.PersistentVolumeClaim {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: volume}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: volume, AccessModes: modes}}
	claim.Status.Phase = corev1.ClaimBound
	return claim
}

func podWith(t *testing.T, name string, claims ...string) *cluster.Pod {
	t.Helper()
	object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: types.UID(name)}}
	for _, claim := range claims {
		object.Spec.Volumes = append(object.Spec.Volumes, corev1.Volume{Name: claim, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
	}
	pod, err := cluster.NewPod(object)
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func TestNodeTakesNoMoreVolumesThanItsDriverCanAttach(t *testing.T) {
	volumes := fakeVolumes{
		claims: map[string]*corev1.PersistentVolumeClaim{"a": claimTo("a"), "b": claimTo("b"), "c": claimTo("c")},
		csiNode: &storagev1.CSINode{Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
			Name: testDriver, Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(2))},
		}}}},
	}
	plugin, err := newNodeVolumeLimits(nil, framework.Handle{Volumes: volumes})
	if err != nil {
		t.Fatal(err)
	}
	filter, ok := plugin.(framework.Filter)
	if !ok {
		t.Fatal("the plugin filters nothing")
	}
	node := cluster.NewNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}, 0)
	node.Pods = []*cluster.Pod{podWith(t, "there", "a", "b")}
	if status := filter.Filter(t.Context(), framework.NewCycleState(), podWith(t, "again", "a"), node); !status.OK() {
		t.Errorf("a volume that the node has already is refused: %v", status.Reasons)
	}
	if status := filter.Filter(t.Context(), framework.NewCycleState(), podWith(t, "more", "c"), node); status.CodeOf() != framework.Unschedulable {
		t.Errorf("a third volume is answered %+v", status)
	}
}

func TestClaimOfOnePodIsGivenToNoOther(t *testing.T) {
	volumes := fakeVolumes{claims: map[string]*corev1.PersistentVolumeClaim{
		"alone": claimTo("alone", corev1.ReadWriteOncePod), "shared": claimTo("shared", corev1.ReadWriteOnce),
	}}
	p := &volumeRestrictions{volumes}
	first, second := podWith(t, "first", "alone"), podWith(t, "second", "alone")
	e := &exclusive{claims: sets.New("alone")}
	state := framework.NewCycleState()
	state.Write(volumeRestrictionsName, e)
	if status := p.Filter(t.Context(), state, second, nil); !status.OK() {
		t.Errorf("a claim that nobody has is refused: %v", status.Reasons)
	}
	p.AddPod(state, second, first, nil, nil)
	if status := p.Filter(t.Context(), state, second, nil); status.CodeOf() != framework.Unschedulable {
		t.Errorf("a claim that another pod has is answered %+v", status)
	}
	whatIf := state.Clone()
	p.RemovePod(whatIf, second, first, nil, nil)
	if status := p.Filter(t.Context(), whatIf, second, nil); !status.OK() {
		t.Errorf("without the other pod it is refused: %v", status.Reasons)
	}
	if status := p.Filter(t.Context(), state, second, nil); status.OK() {
		t.Error("a what-if has changed the state that it is made of")
	}
}

func TestVolumeIsMadeWhereThereIsRoom(t *testing.T) {
	room := resource.MustParse("5Gi")
	volumes := fakeVolumes{
		driver: &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{StorageCapacity: new(true)}},
		capacities: []*storagev1.CSIStorageCapacity{{
			StorageClassName: "disks", Capacity: &room, NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{"rack": "one"}},
		}},
	}
	p := &volumeBinding{volumes: volumes}
	class := "disks"
	claim := claimTo("")
	claim.Name, claim.Spec.StorageClassName = "new", &class
	for _, test := range []struct {
		size, rack string
		fits       bool
	}{{"1Gi", "one", true}, {"10Gi", "one", false}, {"1Gi", "two", false}} {
		claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(test.size)}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", Labels: map[string]string{"rack": test.rack}}}
		if _, status := p.match([]*corev1.PersistentVolumeClaim{claim}, node); status.OK() != test.fits {
			t.Errorf("%s in rack %s: %+v", test.size, test.rack, status)
		}
	}
}
