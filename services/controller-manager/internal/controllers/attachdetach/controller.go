// Package attachdetach has volumes of CSI drivers attached to the nodes whose pods
// use them, and detached when they do not any more, through VolumeAttachments that
// the drivers' attachers act on.
package attachdetach

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/sampan-io/sampan/services/controller-manager/internal/controller"
	"github.com/sampan-io/sampan/services/controller-manager/internal/pods"
)

const (
	name = "persistentvolume-attach-detach-controller"
	// unmountWait is how long a node that is not ready may keep a volume that none
	// of its pods uses.
	unmountWait = 6 * time.Minute
	// look is how often a node that waits for something is looked at again, besides
	// the looks that changes bring.
	look = 5 * time.Second
)

// Definition is the controller's entry in the list.
func Definition() controller.Definition {
	return controller.Definition{Name: name, Aliases: []string{"attachdetach"}, Account: "attachdetach-controller", New: New}
}

// Controller works on nodes by their names.
type Controller struct {
	client      kubernetes.Interface
	recorder    record.EventRecorder
	pods        cache.Indexer
	podLister   corelisters.PodLister
	nodes       corelisters.NodeLister
	claims      corelisters.PersistentVolumeClaimLister
	volumes     corelisters.PersistentVolumeLister
	attachments storagelisters.VolumeAttachmentLister
	drivers     storagelisters.CSIDriverLister
	queue       *controller.Queue
	synced      []cache.InformerSynced
	log         *slog.Logger
	now         func() time.Time
	// unwanted is since when no pod has used an attached volume, by its attachment.
	// Only the one worker uses it.
	unwanted map[string]time.Time
}

// New makes the controller from env.
func New(env controller.Env) (controller.Runner, error) {
	core, storage := env.Informers.Core().V1(), env.Informers.Storage().V1()
	c := &Controller{
		client: env.Client, recorder: env.Events.Recorder("attachdetach-controller"), pods: core.Pods().Informer().GetIndexer(), podLister: core.Pods().Lister(),
		nodes: core.Nodes().Lister(), claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister(),
		attachments: storage.VolumeAttachments().Lister(), drivers: storage.CSIDrivers().Lister(), log: env.Log, now: time.Now, unwanted: map[string]time.Time{},
	}
	if err := pods.AddNodeIndex(core.Pods().Informer()); err != nil {
		return nil, err
	}
	// One worker: what one node lets go of and another wants is judged by one.
	c.queue = controller.NewQueue("attachdetach", 1, env.Log, c.reconcile)
	return c, c.watch(env)
}

// watch queues the nodes that a change matters to.
func (c *Controller) watch(env controller.Env) error {
	core, storage := env.Informers.Core().V1(), env.Informers.Storage().V1()
	pod := func(pod *corev1.Pod) {
		if pod.Spec.NodeName != "" && len(claimsOf(pod)) > 0 {
			c.queue.Add(pod.Spec.NodeName)
		}
	}
	podsSynced, err := controller.Watch(core.Pods().Informer(), pod, func(_, pod2 *corev1.Pod) { pod(pod2) }, pod)
	if err != nil {
		return err
	}
	nodesSynced, err := controller.Watch(core.Nodes().Informer(), nil, func(old, node *corev1.Node) {
		if !slices.Equal(old.Status.VolumesInUse, node.Status.VolumesInUse) || !slices.Equal(old.Status.VolumesAttached, node.Status.VolumesAttached) ||
			outOfService(old) != outOfService(node) || ready(old) != ready(node) {
			c.queue.Add(node.Name)
		}
	}, func(node *corev1.Node) { c.queue.Add(node.Name) })
	if err != nil {
		return err
	}
	claim := func(claim *corev1.PersistentVolumeClaim) { c.users(claim.Namespace, claim.Name) }
	claimsSynced, err := controller.Watch(core.PersistentVolumeClaims().Informer(), claim, func(old, claim2 *corev1.PersistentVolumeClaim) {
		if old.Spec.VolumeName != claim2.Spec.VolumeName || old.Status.Phase != claim2.Status.Phase {
			claim(claim2)
		}
	}, nil)
	if err != nil {
		return err
	}
	attachmentsSynced, err := controller.Watch(storage.VolumeAttachments().Informer(), c.attachment, func(old, now *storagev1.VolumeAttachment) {
		c.attachment(now)
		c.tell(old, now)
	}, c.detached)
	if err != nil {
		return err
	}
	c.synced = []cache.InformerSynced{podsSynced, nodesSynced, claimsSynced, attachmentsSynced, core.PersistentVolumes().Informer().HasSynced, storage.CSIDrivers().Informer().HasSynced}
	return nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.queue.Run(ctx, c.synced...) }

func (c *Controller) attachment(a *storagev1.VolumeAttachment) { c.queue.Add(a.Spec.NodeName) }

// detached lets the nodes look again that may have waited for the volume.
func (c *Controller) detached(a *storagev1.VolumeAttachment) {
	c.queue.Add(a.Spec.NodeName)
	if volume := c.volumeOf(a); volume != nil && volume.Spec.ClaimRef != nil {
		c.users(volume.Spec.ClaimRef.Namespace, volume.Spec.ClaimRef.Name)
	}
}

// users queues the nodes of the pods that use a claim.
func (c *Controller) users(namespace, claim string) {
	for _, pod := range c.podsOf(namespace, claim) {
		c.queue.Add(pod.Spec.NodeName)
	}
}

// podsOf are the pods with a node that use a claim.
func (c *Controller) podsOf(namespace, claim string) []*corev1.Pod {
	all, err := c.podLister.Pods(namespace).List(labels.Everything())
	if err != nil {
		return nil
	}
	var users []*corev1.Pod
	for _, pod := range all {
		if pod.Spec.NodeName != "" && slices.Contains(claimsOf(pod), claim) {
			users = append(users, pod)
		}
	}
	return users
}

// tell tells a volume's pods what its attacher has done.
func (c *Controller) tell(old, now *storagev1.VolumeAttachment) {
	attached := now.Status.Attached && !old.Status.Attached
	failed := now.Status.AttachError != nil && (old.Status.AttachError == nil || !old.Status.AttachError.Time.Equal(&now.Status.AttachError.Time))
	volume := c.volumeOf(now)
	if !attached && !failed || volume == nil || volume.Spec.ClaimRef == nil {
		return
	}
	for _, pod := range c.podsOf(volume.Spec.ClaimRef.Namespace, volume.Spec.ClaimRef.Name) {
		switch {
		case pod.Spec.NodeName != now.Spec.NodeName:
		case attached:
			c.recorder.Eventf(pod, corev1.EventTypeNormal, "SuccessfulAttachVolume", "AttachVolume.Attach succeeded for volume %q ", volume.Name)
		default:
			c.recorder.Eventf(pod, corev1.EventTypeWarning, "FailedAttachVolume", "AttachVolume.Attach failed for volume %q : %s", volume.Name, now.Status.AttachError.Message)
		}
	}
}

func (c *Controller) volumeOf(a *storagev1.VolumeAttachment) *corev1.PersistentVolume {
	if a.Spec.Source.PersistentVolumeName == nil {
		return nil
	}
	volume, err := c.volumes.Get(*a.Spec.Source.PersistentVolumeName)
	if err != nil {
		return nil
	}
	return volume
}

// reconcile brings the attachments of one node in step with its pods.
func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	node, err := c.nodes.Get(key)
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("reading node %s: %w", key, err)
	}
	if apierrors.IsNotFound(err) {
		node = nil
	}
	all, err := c.attachments.List(labels.Everything())
	if err != nil {
		return 0, fmt.Errorf("listing volume attachments: %w", err)
	}
	have := map[string]*storagev1.VolumeAttachment{}
	for _, a := range all {
		if a.Spec.NodeName == key && a.Spec.Source.PersistentVolumeName != nil {
			have[a.Name] = a
		}
	}
	want, err := c.wanted(key)
	if err != nil {
		return 0, err
	}
	p := plan{node: node, have: have, want: want, all: all}
	waits, err := c.detach(ctx, p)
	if err != nil {
		return 0, err
	}
	blocked, err := c.attach(ctx, p)
	if err != nil || !waits && !blocked {
		return 0, err
	}
	return look, nil
}
