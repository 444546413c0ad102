// Package persistentvolume binds claims to volumes: each claim to one volume that
// fits and each volume to one claim, both naming the other. It has external
// provisioners make volumes, and releases those whose claim is gone.
package persistentvolume

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/sampan-io/sampan/services/controller-manager/internal/controller"
)

const (
	name = "persistentvolume-binder-controller"
	// Keys of the queue are of claims or of volumes.
	claimKey, volumeKey = "claim/", "volume/"
	// retry is how long a claim that cannot be bound waits for a new look, besides
	// the looks that changes of volumes bring.
	retry = 15 * time.Second
)

// Definition is the controller's entry in the list.
func Definition() controller.Definition {
	return controller.Definition{Name: name, Aliases: []string{"persistentvolume-binder"}, Account: "persistent-volume-binder", New: New}
}

// Controller binds. One worker does all, so that no volume is given away twice.
type Controller struct {
	client   kubernetes.Interface
	recorder record.EventRecorder
	claims   corelisters.PersistentVolumeClaimLister
	volumes  corelisters.PersistentVolumeLister
	classes  storagelisters.StorageClassLister
	queue    *controller.Queue
	synced   []cache.InformerSynced
	// given are volumes that were bound but that the cache may still show as free:
	// the claim's UID by volume.
	given map[string]string
}

// New makes the controller from env.
func New(env controller.Env) (controller.Runner, error) {
	core, storage := env.Informers.Core().V1(), env.Informers.Storage().V1()
	c := &Controller{
		client: env.Client, recorder: env.Events.Recorder("persistentvolume-controller"), claims: core.PersistentVolumeClaims().Lister(),
		volumes: core.PersistentVolumes().Lister(), classes: storage.StorageClasses().Lister(), given: map[string]string{},
	}
	c.queue = controller.NewQueue("persistentvolume_binder", 1, env.Log, c.reconcile)
	claim := func(claim *corev1.PersistentVolumeClaim) {
		c.queue.Add(claimKey + claim.Namespace + "/" + claim.Name)
		if claim.Spec.VolumeName != "" {
			c.queue.Add(volumeKey + claim.Spec.VolumeName)
		}
	}
	volume := func(volume *corev1.PersistentVolume) {
		c.queue.Add(volumeKey + volume.Name)
		if reference := volume.Spec.ClaimRef; reference != nil {
			c.queue.Add(claimKey + reference.Namespace + "/" + reference.Name)
			return
		}
		c.lookAgain()
	}
	claims, err := controller.Watch(core.PersistentVolumeClaims().Informer(), claim, func(_, new *corev1.PersistentVolumeClaim) { claim(new) }, claim)
	if err != nil {
		return nil, err
	}
	volumes, err := controller.Watch(core.PersistentVolumes().Informer(), volume, func(_, new *corev1.PersistentVolume) { volume(new) }, volume)
	if err != nil {
		return nil, err
	}
	c.synced = []cache.InformerSynced{claims, volumes, storage.StorageClasses().Informer().HasSynced}
	return c, nil
}

// lookAgain looks at all claims that wait for a volume.
func (c *Controller) lookAgain() {
	claims, err := c.claims.List(everything())
	if err != nil {
		return
	}
	for _, claim := range claims {
		if claim.Spec.VolumeName == "" {
			c.queue.Add(claimKey + claim.Namespace + "/" + claim.Name)
		}
	}
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.queue.Run(ctx, c.synced...) }

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	if volume, is := strings.CutPrefix(key, volumeKey); is {
		read, err := c.volumes.Get(volume)
		if apierrors.IsNotFound(err) {
			delete(c.given, volume)
			return 0, nil
		}
		if err != nil {
			return 0, fmt.Errorf("reading volume %s: %w", volume, err)
		}
		if read.Spec.ClaimRef != nil {
			delete(c.given, volume)
		}
		return 0, c.syncVolume(ctx, read)
	}
	namespace, claim, _ := strings.Cut(strings.TrimPrefix(key, claimKey), "/")
	read, err := c.claims.PersistentVolumeClaims(namespace).Get(claim)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading claim %s/%s: %w", namespace, claim, err)
	}
	return c.syncClaim(ctx, read)
}
