package csi

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
)

// nodeIDs is the annotation of a node that maps drivers to what they call it.
const nodeIDs = "csi.volume.kubernetes.io/nodeid"

// publish makes a driver known: in the node's annotations and labels, then in its
// CSINode.
func (s *Store) publish(ctx context.Context, name string, info *csipb.NodeGetInfoResponse) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	s.publishing.Lock()
	defer s.publishing.Unlock()
	topology := info.GetAccessibleTopology().GetSegments()
	if err := s.markNode(ctx, topology, func(ids map[string]string) { ids[name] = info.GetNodeId() }); err != nil {
		return err
	}
	entry := storagev1.CSINodeDriver{Name: name, NodeID: info.GetNodeId(), TopologyKeys: slices.Sorted(maps.Keys(topology))}
	if most := info.GetMaxVolumesPerNode(); most > 0 {
		entry.Allocatable = &storagev1.VolumeNodeResources{Count: new(int32(min(most, math.MaxInt32)))}
	}
	return s.updateCSINode(ctx, name, &entry)
}

// withdraw takes a driver out again.
func (s *Store) withdraw(ctx context.Context, name string) error {
	const patience = callTimeout / 4
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s.publishing.Lock()
	defer s.publishing.Unlock()
	if err := s.updateCSINode(ctx, name, nil); err != nil {
		return err
	}
	return s.markNode(ctx, nil, func(ids map[string]string) { delete(ids, name) })
}

// markNode writes labels and, changed by change, the ids that drivers give the node.
func (s *Store) markNode(ctx context.Context, labels map[string]string, change func(ids map[string]string)) error {
	select {
	case <-s.cfg.Node.Registered():
	case <-ctx.Done():
		return fmt.Errorf("waiting for the node to be registered: %w", ctx.Err())
	}
	node, err := s.cfg.Client.CoreV1().Nodes().Get(ctx, s.cfg.NodeName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading this node: %w", err)
	}
	ids := map[string]string{}
	if text := node.Annotations[nodeIDs]; text != "" && json.Unmarshal([]byte(text), &ids) != nil {
		ids = map[string]string{}
	}
	before := maps.Clone(ids)
	change(ids)
	changed := !maps.Equal(ids, before)
	for key, value := range labels {
		if have, has := node.Labels[key]; has && have != value {
			return fmt.Errorf("detected topology value collision: driver reported %q:%q but existing label is %q:%q", key, value, key, have)
		}
		changed = changed || node.Labels[key] != value
	}
	if !changed {
		return nil
	}
	meta := map[string]any{"annotations": map[string]any{nodeIDs: nil}}
	if len(labels) > 0 { // null would take all labels away
		meta["labels"] = labels
	}
	if len(ids) > 0 {
		text, err := json.Marshal(ids)
		if err != nil {
			return err
		}
		meta["annotations"] = map[string]any{nodeIDs: string(text)}
	}
	patch, err := json.Marshal(map[string]any{"metadata": meta})
	if err != nil {
		return err
	}
	if _, err := s.cfg.Client.CoreV1().Nodes().Patch(ctx, s.cfg.NodeName, types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("writing the ids of this node: %w", err)
	}
	return nil
}

// EnsureCSINode makes this node's CSINode if there is none, so that the scheduler
// knows that no driver is here.
func (s *Store) EnsureCSINode(ctx context.Context) error {
	select {
	case <-s.cfg.Node.Registered():
	case <-ctx.Done():
		return ctx.Err()
	}
	s.publishing.Lock()
	defer s.publishing.Unlock()
	return s.updateCSINode(ctx, "", nil)
}

// updateCSINode puts entry, nil for none, in the place of the driver of that name.
func (s *Store) updateCSINode(ctx context.Context, name string, entry *storagev1.CSINodeDriver) error {
	api := s.cfg.Client.StorageV1().CSINodes()
	err := retry.OnError(retry.DefaultBackoff, func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }, func() error {
		current, err := api.Get(ctx, s.cfg.NodeName, metav1.GetOptions{})
		missing := apierrors.IsNotFound(err)
		if missing {
			current = &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: s.cfg.NodeName, OwnerReferences: s.owner()}}
		} else if err != nil {
			return err
		}
		updated := current.DeepCopy()
		updated.Spec.Drivers = slices.DeleteFunc(updated.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == name })
		if entry != nil {
			updated.Spec.Drivers = append(updated.Spec.Drivers, *entry)
		}
		switch {
		case missing:
			_, err = api.Create(ctx, updated, metav1.CreateOptions{})
		case !equality.Semantic.DeepEqual(byName(current.Spec.Drivers), byName(updated.Spec.Drivers)):
			_, err = api.Update(ctx, updated, metav1.UpdateOptions{})
		default:
			err = nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("writing this node's CSINode: %w", err)
	}
	return nil
}

func byName(drivers []storagev1.CSINodeDriver) map[string]storagev1.CSINodeDriver {
	all := map[string]storagev1.CSINodeDriver{}
	for _, driver := range drivers {
		all[driver.Name] = driver
	}
	return all
}

func (s *Store) owner() []metav1.OwnerReference {
	node := s.cfg.Node.Object()
	if node == nil {
		return nil
	}
	return []metav1.OwnerReference{*ownerOf(node)}
}

func ownerOf(node *corev1.Node) *metav1.OwnerReference {
	return &metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
}
