// Package controller defines what a controller of the controller manager is,
// what it is given, and the queue that drives it.
package controller

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
)

// Runner is a controller at work. Run blocks until ctx ends and has joined all
// that it started when it returns.
type Runner interface {
	Run(ctx context.Context) error
}

// Definition describes one controller. Adding one is a directory under
// internal/controllers and a line in controllers.go.
type Definition struct {
	// Name is upstream's name of the controller, as --controllers takes it.
	Name string
	// Aliases are older names that --controllers takes too.
	Aliases []string
	// Account is the service account in kube-system that the controller acts as.
	Account string
	// New makes the controller. A nil Runner without an error means that the
	// configuration leaves it nothing to do.
	New func(env Env) (Runner, error)
}

// Env is what a controller is given. The informers are shared by all
// controllers and are started once every controller has asked for its own.
type Env struct {
	// Client acts as the controller's own account.
	Client kubernetes.Interface
	// Metadata acts as the controller's own account.
	Metadata  metadata.Interface
	Discovery discovery.DiscoveryInterface
	Mapper    meta.ResettableRESTMapper
	Informers informers.SharedInformerFactory
	// MetadataInformers hold only the metadata of their objects.
	MetadataInformers metadatainformer.SharedInformerFactory
	// Events is where the controller's recorder sends its events.
	Events EventSink
	Config Config
	Log    *slog.Logger
}

// Config holds the settings that controllers read. Durations and counts have
// upstream's meaning and defaults.
type Config struct {
	ClusterCIDRs           []netip.Prefix
	ServiceCIDRs           []netip.Prefix
	NodeCIDRMaskSizeIPv4   int
	NodeCIDRMaskSizeIPv6   int
	AllocateNodeCIDRs      bool
	RootCA                 []byte // PEM; empty disables the publisher
	ConcurrentSyncs        map[string]int
	NodeMonitorPeriod      time.Duration
	NodeMonitorGracePeriod time.Duration
	NodeStartupGracePeriod time.Duration
	TerminatedPodThreshold int // 0 or less keeps all terminated pods
	MaxEndpointsPerSlice   int
	EnableGarbageCollector bool
	QuotaSyncPeriod        time.Duration
}

// Workers is how many keys the controller of that name works on at once.
func (c Config) Workers(name string) int {
	if n := c.ConcurrentSyncs[name]; n > 0 {
		return n
	}
	return 5
}

// EventSink makes recorders whose events are written until the sink is closed.
type EventSink interface {
	Recorder(component string) record.EventRecorder
}

// Broadcaster is the EventSink that writes core/v1 events through a client.
type Broadcaster struct{ broadcaster record.EventBroadcaster }

// NewBroadcaster writes events through client until Shutdown.
func NewBroadcaster(ctx context.Context, client kubernetes.Interface) *Broadcaster {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return &Broadcaster{broadcaster}
}

// Recorder makes a recorder whose events name component as their source.
func (b *Broadcaster) Recorder(component string) record.EventRecorder {
	return b.broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component})
}

// Shutdown stops writing events.
func (b *Broadcaster) Shutdown() { b.broadcaster.Shutdown() }

// Key is the queue key of obj, which may be a tombstone. It is empty for what
// is neither.
func Key(obj any) string {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
	if err != nil {
		return ""
	}
	return key
}

// Gone unwraps the object of a delete notification, which may be a tombstone.
func Gone[T any](obj any) (T, bool) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	typed, ok := obj.(T)
	return typed, ok
}

// Watch registers typed handlers with an informer; nil ones are skipped. The
// result says when the handlers have been given all of the first list.
func Watch[T any](informer cache.SharedIndexInformer, added func(T), updated func(old, new T), deleted func(T)) (cache.InformerSynced, error) {
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if typed, ok := obj.(T); ok && added != nil {
				added(typed)
			}
		},
		UpdateFunc: func(before, after any) {
			old, okOld := before.(T)
			current, okNew := after.(T)
			if okOld && okNew && updated != nil {
				updated(old, current)
			}
		},
		DeleteFunc: func(obj any) {
			if typed, ok := Gone[T](obj); ok && deleted != nil {
				deleted(typed)
			}
		},
	}
	registration, err := informer.AddEventHandler(handler)
	if err != nil {
		return nil, fmt.Errorf("adding event handler: %w", err)
	}
	return registration.HasSynced, nil
}
