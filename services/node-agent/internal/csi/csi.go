// Package csi has storage drivers stage, publish and take back volumes on this
// node, by the Container Storage Interface.
//
// What has been asked of a driver is written down before it is asked, where the
// kubelet has it, so that after a kill at any point it is found and undone:
//
//	<root>/pods/<uid>/volumes/kubernetes.io~csi/<volume>/vol_data.json   a published volume
//	<root>/pods/<uid>/volumes/kubernetes.io~csi/<volume>/mount           where it is published
//	<root>/plugins/kubernetes.io/csi/<driver>/<sha256 of handle>/vol_data.json   a staged volume
//	<root>/plugins/kubernetes.io/csi/<driver>/<sha256 of handle>/globalmount     where it is staged
//
// One lock per volume is held while a driver works on it; a driver that hangs
// holds up the pods of that volume and no others.
package csi

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	// plugin is the name of the volume plugin in paths and in volumes' unique names.
	plugin = "kubernetes.io/csi"
	// Dir is the directory of the kind among a pod's volumes.
	Dir = "kubernetes.io~csi"
	// callTimeout is how long a driver may take for one call.
	callTimeout = 2 * time.Minute
)

// Secrets reads secrets that volumes refer to.
type Secrets interface {
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
}

// Tokens makes service account tokens that are bound to a pod.
type Tokens interface {
	Token(ctx context.Context, pod *corev1.Pod, audience string, lifetime time.Duration) (token string, renew time.Time, err error)
}

// Node is what of this node's object volumes depend on.
type Node interface {
	// Object is the node as the API server has it, or nil.
	Object() *corev1.Node
	// Registered is closed once the object exists.
	Registered() <-chan struct{}
	// Changed lets the status be sent.
	Changed()
}

// Config is what a Store needs.
type Config struct {
	Root     string // the agent's root directory
	NodeName string
	Client   kubernetes.Interface
	Secrets  Secrets
	Tokens   Tokens
	Node     Node
	Metrics  prometheus.Registerer // nil measures nothing
	Log      *slog.Logger
}

// Store has the drivers of this node and the volumes that they have made here.
type Store struct {
	cfg     Config
	measure *measure

	mu      sync.Mutex
	drivers map[string]*driver
	locks   map[string]*lock
	inUse   []corev1.UniqueVolumeName

	publishing sync.Mutex // of the CSINode object
}

// New makes a store that knows the volumes which earlier runs have left.
func New(cfg Config) *Store {
	s := &Store{cfg: cfg, measure: newMeasure(cfg.Metrics), drivers: map[string]*driver{}, locks: map[string]*lock{}}
	s.recount()
	return s
}

// InUse are the unique names of the volumes that must not be detached from this
// node, sorted.
func (s *Store) InUse() []corev1.UniqueVolumeName {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inUse
}
