package authz

import (
	"context"
	"fmt"
	"slices"
	"sync"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// refKind is the kind of object that a ref names.
type refKind uint8

const (
	podRef refKind = iota
	secretRef
	configMapRef
	claimRef
	volumeRef
	serviceAccountRef
	resourceClaimRef
	sliceRef
	attachmentRef
	certificateRequestRef
)

// ref names an object that a node may have to do with.
type ref struct {
	kind      refKind
	namespace string
	name      string
}

// graph knows which objects have to do with which nodes. Edges are kept from the
// object's side, so that a question is one or two look-ups:
//
//	node ← pod ← secret, configmap, claim, service account, resource claim
//	              claim ← volume ← secret
//	node ← volume attachment, resource slice, pod certificate request
type graph struct {
	mu sync.RWMutex
	// nodes counts, per object, the pods of each node that refer to it (and for a
	// pod, attachment or slice the node that it is on).
	nodes map[ref]map[string]int
	// pods are the refs that each pod on a node accounts for.
	pods map[ref]podRefs
	// volumes are the persistent volumes that are bound to a claim.
	volumes map[string]volume
	// secretVolumes are the volumes that refer to a secret.
	secretVolumes map[ref][]string
	// fixed is the node of each attachment, slice and certificate request.
	fixed map[ref]string
}

type podRefs struct {
	node string
	refs []ref
}

type volume struct {
	claim   ref
	secrets []ref
}

func newGraph() *graph {
	return &graph{
		nodes: map[ref]map[string]int{}, pods: map[ref]podRefs{}, volumes: map[string]volume{},
		secretVolumes: map[ref][]string{}, fixed: map[ref]string{},
	}
}

// start subscribes to what the graph is made of. Kinds that this server does not
// serve refer to nothing.
func (g *graph) start(ctx context.Context, state registry.Subscriber) error {
	if err := state.Subscribe(ctx, corev1.Resource("pods"), follow(g.setPod)); err != nil {
		return fmt.Errorf("following pods: %w", err)
	}
	for resource, handle := range map[schema.GroupResource]func(old, new runtime.Object){
		corev1.Resource("persistentvolumes"):              follow(g.setVolume),
		storagev1.Resource("volumeattachments"):           follow(g.setAttachment),
		resourcev1.Resource("resourceslices"):             follow(g.setSlice),
		certificatesv1.Resource("podcertificaterequests"): follow(g.setCertificateRequest),
	} {
		if err := state.Subscribe(ctx, resource, handle); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("following %s: %w", resource, err)
		}
	}
	return nil
}

// related says whether the object has to do with the node.
func (g *graph) related(object ref, node string) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	switch object.kind {
	case volumeRef:
		v, ok := g.volumes[object.name]
		return ok && g.nodes[v.claim][node] > 0
	case secretRef:
		for _, name := range g.secretVolumes[object] {
			if g.nodes[g.volumes[name].claim][node] > 0 {
				return true
			}
		}
	case sliceRef, attachmentRef, certificateRequestRef:
		return g.fixed[object] == node
	}
	return g.nodes[object][node] > 0
}

func (g *graph) setPod(old, new *corev1.Pod) {
	if old != nil && new != nil && samePodRefs(old, new) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if old != nil {
		g.removePod(ref{podRef, old.Namespace, old.Name})
	}
	if new != nil && new.Spec.NodeName != "" {
		key := ref{podRef, new.Namespace, new.Name}
		g.removePod(key)
		refs := append(refsOfPod(new), key)
		g.pods[key] = podRefs{node: new.Spec.NodeName, refs: refs}
		for _, r := range refs {
			if g.nodes[r] == nil {
				g.nodes[r] = map[string]int{}
			}
			g.nodes[r][new.Spec.NodeName]++
		}
	}
}

// removePod takes a pod's edges out. Caller must hold mu.
func (g *graph) removePod(key ref) {
	have, ok := g.pods[key]
	if !ok {
		return
	}
	delete(g.pods, key)
	for _, r := range have.refs {
		counts := g.nodes[r]
		if counts[have.node]--; counts[have.node] <= 0 {
			delete(counts, have.node)
		}
		if len(counts) == 0 {
			delete(g.nodes, r)
		}
	}
}

func (g *graph) setVolume(old, new *corev1.PersistentVolume) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if old != nil {
		g.removeVolume(old.Name)
	}
	if new == nil || new.Spec.ClaimRef == nil {
		return
	}
	g.removeVolume(new.Name)
	claim := new.Spec.ClaimRef
	v := volume{claim: ref{claimRef, claim.Namespace, claim.Name}, secrets: secretsOfVolume(new)}
	g.volumes[new.Name] = v
	for _, secret := range v.secrets {
		g.secretVolumes[secret] = append(g.secretVolumes[secret], new.Name)
	}
}

// removeVolume takes a volume's edges out. Caller must hold mu.
func (g *graph) removeVolume(name string) {
	for _, secret := range g.volumes[name].secrets {
		left := slices.DeleteFunc(slices.Clone(g.secretVolumes[secret]), func(v string) bool { return v == name })
		if len(left) == 0 {
			delete(g.secretVolumes, secret)
		} else {
			g.secretVolumes[secret] = left
		}
	}
	delete(g.volumes, name)
}

func (g *graph) setAttachment(old, new *storagev1.VolumeAttachment) {
	if old != nil {
		g.fix(ref{attachmentRef, "", old.Name}, "")
	}
	if new != nil {
		g.fix(ref{attachmentRef, "", new.Name}, new.Spec.NodeName)
	}
}

func (g *graph) setSlice(old, new *resourcev1.ResourceSlice) {
	if old != nil {
		g.fix(ref{sliceRef, "", old.Name}, "")
	}
	if new != nil && new.Spec.NodeName != nil {
		g.fix(ref{sliceRef, "", new.Name}, *new.Spec.NodeName)
	}
}

func (g *graph) setCertificateRequest(old, new *certificatesv1.PodCertificateRequest) {
	if old != nil {
		g.fix(ref{certificateRequestRef, old.Namespace, old.Name}, "")
	}
	if new != nil {
		g.fix(ref{certificateRequestRef, new.Namespace, new.Name}, string(new.Spec.NodeName))
	}
}

// fix sets the one node of an object; "" is none.
func (g *graph) fix(object ref, node string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if node == "" {
		delete(g.fixed, object)
		return
	}
	g.fixed[object] = node
}
