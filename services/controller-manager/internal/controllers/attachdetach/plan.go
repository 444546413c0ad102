package attachdetach

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/controller-manager/internal/pods"
)

// wanted is a volume that pods of a node use.
type wanted struct {
	volume *corev1.PersistentVolume
	users  []*corev1.Pod
}

// plan is what one node has and what it should have, by the attachments' names.
type plan struct {
	node *corev1.Node // nil when it is gone
	have map[string]*storagev1.VolumeAttachment
	want map[string]*wanted
	all  []*storagev1.VolumeAttachment
}

// attachmentName is upstream's name for the attachment of a volume to a node.
func attachmentName(volume *corev1.PersistentVolume, node string) string {
	source := volume.Spec.CSI
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(source.VolumeHandle+source.Driver+node)))
}

func uniqueName(volume *corev1.PersistentVolume) corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName("kubernetes.io/csi/" + volume.Spec.CSI.Driver + "^" + volume.Spec.CSI.VolumeHandle)
}

// claimsOf are the names of the claims that a pod uses.
func claimsOf(pod *corev1.Pod) []string {
	var names []string
	for i := range pod.Spec.Volumes {
		switch v := &pod.Spec.Volumes[i]; {
		case v.PersistentVolumeClaim != nil:
			names = append(names, v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			names = append(names, pod.Name+"-"+v.Name)
		}
	}
	return names
}

func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// wanted are the volumes that must be attached to a node for its pods.
func (c *Controller) wanted(node string) (map[string]*wanted, error) {
	want := map[string]*wanted{}
	for _, pod := range pods.OnNode(c.pods, node) {
		if ended(pod) {
			continue
		}
		for _, claim := range claimsOf(pod) {
			volume, err := c.bound(pod.Namespace, claim)
			if err != nil {
				return nil, err
			}
			if volume == nil {
				continue
			}
			attachable, err := c.attachable(volume)
			if err != nil {
				return nil, err
			}
			if !attachable {
				continue
			}
			name := attachmentName(volume, node)
			if want[name] == nil {
				want[name] = &wanted{volume: volume}
			}
			want[name].users = append(want[name].users, pod)
		}
	}
	return want, nil
}

// bound is the volume of a claim, nil if it has none yet.
func (c *Controller) bound(namespace, name string) (*corev1.PersistentVolume, error) {
	claim, err := c.claims.PersistentVolumeClaims(namespace).Get(name)
	if apierrors.IsNotFound(err) || err == nil && (claim.Spec.VolumeName == "" || claim.Status.Phase != corev1.ClaimBound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading claim %s/%s: %w", namespace, name, err)
	}
	volume, err := c.volumes.Get(claim.Spec.VolumeName)
	if apierrors.IsNotFound(err) || err == nil && (volume.Spec.ClaimRef == nil || volume.Spec.ClaimRef.UID != claim.UID) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading volume %s: %w", claim.Spec.VolumeName, err)
	}
	return volume, nil
}

// attachable says whether a volume's driver wants it attached.
func (c *Controller) attachable(volume *corev1.PersistentVolume) (bool, error) {
	if volume.Spec.CSI == nil {
		return false, nil
	}
	driver, err := c.drivers.Get(volume.Spec.CSI.Driver)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading CSI driver %s: %w", volume.Spec.CSI.Driver, err)
	}
	return driver.Spec.AttachRequired == nil || *driver.Spec.AttachRequired, nil
}

// detach deletes the attachments that no pod needs, once the node has let go of
// them. The node's status stops to call a volume attached before it is detached.
func (c *Controller) detach(ctx context.Context, p plan) (waits bool, err error) {
	var goes []*storagev1.VolumeAttachment
	for name, a := range p.have {
		if p.want[name] != nil {
			delete(c.unwanted, name)
			continue
		}
		if a.DeletionTimestamp != nil {
			continue
		}
		if c.mayDetach(p.node, a) {
			goes = append(goes, a)
		} else {
			waits = true
		}
	}
	for name := range c.unwanted {
		if !slices.ContainsFunc(p.all, func(a *storagev1.VolumeAttachment) bool { return a.Name == name }) {
			delete(c.unwanted, name)
		}
	}
	if len(goes) > 0 && p.node != nil {
		// What the watch has shown may be older than the node's last word.
		node, err := c.client.CoreV1().Nodes().Get(ctx, p.node.Name, metav1.GetOptions{})
		if err != nil {
			return true, fmt.Errorf("reading the volumes that node %s uses: %w", p.node.Name, err)
		}
		p.node = node
		found := len(goes)
		goes = slices.DeleteFunc(goes, func(a *storagev1.VolumeAttachment) bool { return !c.mayDetach(p.node, a) })
		waits = waits || len(goes) < found
	}
	if err := c.writeAttached(ctx, p, goes); err != nil {
		return waits, err
	}
	for _, a := range goes {
		err := c.client.StorageV1().VolumeAttachments().Delete(ctx, a.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &a.UID}})
		if err != nil && !apierrors.IsNotFound(err) {
			return waits, fmt.Errorf("detaching %s from node %s: %w", *a.Spec.Source.PersistentVolumeName, a.Spec.NodeName, err)
		}
		delete(c.unwanted, a.Name)
	}
	return waits, nil
}

// mayDetach says whether a node has let go of a volume, or will never do so.
func (c *Controller) mayDetach(node *corev1.Node, a *storagev1.VolumeAttachment) bool {
	since, known := c.unwanted[a.Name]
	if !known {
		since = c.now()
		c.unwanted[a.Name] = since
	}
	volume := c.volumeOf(a)
	if node != nil && (volume == nil || volume.Spec.CSI == nil || !slices.Contains(node.Status.VolumesInUse, uniqueName(volume))) {
		return true
	}
	switch {
	case node != nil && outOfService(node):
	case (node == nil || !ready(node)) && c.now().Sub(since) >= unmountWait:
	default:
		return false
	}
	c.log.Info("Detaching a volume that its node has not let go of", "volume", *a.Spec.Source.PersistentVolumeName, "node", a.Spec.NodeName)
	return true
}

func outOfService(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == corev1.TaintNodeOutOfService })
}

func ready(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool {
		return condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
	})
}

// writeAttached writes into the node's status which volumes are attached and stay so.
func (c *Controller) writeAttached(ctx context.Context, p plan, goes []*storagev1.VolumeAttachment) error {
	if p.node == nil {
		return nil
	}
	attached := []corev1.AttachedVolume{}
	for _, a := range p.have {
		if !a.Status.Attached || a.DeletionTimestamp != nil || slices.Contains(goes, a) {
			continue
		}
		if volume := c.volumeOf(a); volume != nil && volume.Spec.CSI != nil {
			attached = append(attached, corev1.AttachedVolume{Name: uniqueName(volume)})
		}
	}
	slices.SortFunc(attached, func(a, b corev1.AttachedVolume) int { return strings.Compare(string(a.Name), string(b.Name)) })
	if slices.Equal(attached, p.node.Status.VolumesAttached) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"volumesAttached": attached}})
	if err != nil {
		return err
	}
	_, err = c.client.CoreV1().Nodes().Patch(ctx, p.node.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("writing the attached volumes of node %s: %w", p.node.Name, err)
	}
	return nil
}

// attach makes the attachments that are missing, but for volumes that another node
// has and that only one may have.
func (c *Controller) attach(ctx context.Context, p plan) (blocked bool, err error) {
	if p.node == nil {
		return false, nil
	}
	for name, w := range p.want {
		if a := p.have[name]; a != nil {
			blocked = blocked || a.DeletionTimestamp != nil // it must go first
			continue
		}
		if elsewhere := c.elsewhere(p, w); elsewhere != nil {
			c.refuse(w, elsewhere)
			blocked = true
			continue
		}
		made := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.VolumeAttachmentSpec{
			Attacher: w.volume.Spec.CSI.Driver, NodeName: p.node.Name, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &w.volume.Name},
		}}
		if _, err := c.client.StorageV1().VolumeAttachments().Create(ctx, made, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return blocked, fmt.Errorf("attaching %s to node %s: %w", w.volume.Name, p.node.Name, err)
		}
	}
	return blocked, nil
}

// elsewhere is the attachment of a volume to another node, if that forbids ours.
func (c *Controller) elsewhere(p plan, w *wanted) *storagev1.VolumeAttachment {
	if slices.ContainsFunc(w.volume.Spec.AccessModes, func(mode corev1.PersistentVolumeAccessMode) bool {
		return mode == corev1.ReadWriteMany || mode == corev1.ReadOnlyMany
	}) || len(w.volume.Spec.AccessModes) == 0 {
		return nil
	}
	for _, a := range p.all {
		if a.Spec.NodeName != p.node.Name && a.Spec.Source.PersistentVolumeName != nil && *a.Spec.Source.PersistentVolumeName == w.volume.Name {
			return a
		}
	}
	return nil
}

// refuse tells the pods why their volume is not attached.
func (c *Controller) refuse(w *wanted, elsewhere *storagev1.VolumeAttachment) {
	const event = "FailedAttachVolume"
	reference := w.volume.Spec.ClaimRef
	var others, names []string
	for _, pod := range c.podsOf(reference.Namespace, reference.Name) {
		if pod.Spec.NodeName == elsewhere.Spec.NodeName {
			others = append(others, pod.Name)
		}
	}
	slices.Sort(others)
	for _, pod := range w.users {
		names = append(names, pod.Name)
		if len(others) == 0 {
			c.recorder.Eventf(pod, corev1.EventTypeWarning, event, "Multi-Attach error for volume %q Volume is already exclusively attached to one node and can't be attached to another", w.volume.Name)
			continue
		}
		c.recorder.Eventf(pod, corev1.EventTypeWarning, event, "Multi-Attach error for volume %q Volume is already used by pod(s) %s", w.volume.Name, strings.Join(others, ", "))
	}
	c.log.Info("Volume is attached to another node", "volume", w.volume.Name, "node", elsewhere.Spec.NodeName, "pods", names)
}
