// Package aggregation passes requests for the API groups of other servers on to
// them, as APIServices say, and describes those groups beside the server's own.
//
// Each remote APIService has a backend here, whose goroutine checks that the server
// answers, and reads how it describes itself. A request goes to a server only while
// its checks pass: otherwise it is answered 503 at once, and nothing else waits.
package aggregation

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/discovery"
	"github.com/sampan-io/sampan/services/apiserver/internal/openapi"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/apiregistration"
	"github.com/sampan-io/sampan/services/apiserver/internal/serviceresolver"
)

// Config is what an Aggregator needs.
type Config struct {
	Log      *slog.Logger
	State    registry.State
	Resolver *serviceresolver.Resolver
	// ClientCertFile and ClientKeyFile (PEM) prove to other servers that users are
	// named by this one (--proxy-client-cert-file, --proxy-client-key-file). They are
	// read again at each handshake. Without them other servers see an anonymous
	// client.
	ClientCertFile, ClientKeyFile string
	// FollowRedirects lets other servers' redirects through to clients
	// (--aggregator-reject-forwarding-redirect=false); they are never followed here.
	FollowRedirects bool
	// BuiltIn are the group versions that the server serves itself and that get
	// APIServices of their own.
	BuiltIn []schema.GroupVersion
	// Discovery and OpenAPI are told what other servers serve.
	Discovery interface {
		SetRemote(remote []discovery.Remote)
	}
	OpenAPI interface{ SetRemote(remote []openapi.Remote) }
}

// Aggregator passes requests on. Make one with New; it serves nothing remote until
// Run has read the APIServices.
type Aggregator struct {
	config    Config
	registrar *registrar
	measures  *measures

	// serving is what requests look at.
	serving atomic.Pointer[map[schema.GroupVersion]*backend]
	// cluster is the cluster's id, by which a request that comes back is known.
	cluster atomic.Pointer[string]

	mu       sync.Mutex
	backends map[string]*backend // by the APIService's name
	closed   bool                // no backend starts any more
	running  sync.WaitGroup
}

// New makes an aggregator.
func New(config Config) *Aggregator {
	a := &Aggregator{config: config, backends: map[string]*backend{}}
	a.measures = newMeasures(a)
	a.registrar = newRegistrar(config.State, config.BuiltIn, config.Log)
	a.serving.Store(&map[schema.GroupVersion]*backend{})
	return a
}

// Run follows the APIServices until ctx ends.
func (a *Aggregator) Run(ctx context.Context) error {
	defer func() {
		a.mu.Lock()
		a.closed = true
		a.mu.Unlock()
		a.running.Wait()
	}()
	ctx = admission.Internal(ctx) // no webhook stands between the server and what it says of itself
	if err := a.config.State.Subscribe(ctx, apiregistration.Resource, func(old, obj runtime.Object) { a.changed(ctx, old, obj) }); err != nil {
		return err
	}
	for _, resource := range []schema.GroupResource{corev1.Resource("services"), discoveryv1.Resource("endpointslices")} {
		if err := a.config.State.Subscribe(ctx, resource, a.moved); err != nil {
			return err
		}
	}
	return a.registrar.run(ctx)
}

// changed follows one APIService.
func (a *Aggregator) changed(ctx context.Context, old, obj runtime.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return
	}
	service, _ := obj.(*apiregistrationv1.APIService)
	before, _ := old.(*apiregistrationv1.APIService)
	if service == nil {
		if before != nil {
			a.registrar.look()
			a.drop(before.Name)
		}
		return
	}
	if service.Spec.Service == nil || protected(service.Spec.Group) {
		a.registrar.look()
		a.drop(service.Name)
		return
	}
	if have := a.backends[service.Name]; have != nil && have.same(service) {
		return
	}
	a.drop(service.Name)
	b := newBackend(a, service)
	a.backends[service.Name] = b
	a.publish()
	ctx, b.stop = context.WithCancel(ctx)
	a.running.Go(func() { b.run(ctx) })
}

// protected groups are never another server's: without them the cluster could not
// be repaired.
func protected(group string) bool { return group == "" || group == apiregistrationv1.GroupName }

// drop ends a backend. Caller must hold mu.
func (a *Aggregator) drop(name string) {
	b := a.backends[name]
	if b == nil {
		return
	}
	b.stop()
	delete(a.backends, name)
	a.publish()
}

// publish lets requests and descriptions see the backends. Caller must hold mu.
func (a *Aggregator) publish() {
	serving := map[schema.GroupVersion]*backend{}
	var described []discovery.Remote
	var schemas []openapi.Remote
	for _, b := range a.backends {
		serving[b.gv] = b
		d, s := b.described()
		described, schemas = append(described, d), append(schemas, s)
	}
	a.serving.Store(&serving)
	a.config.Discovery.SetRemote(described)
	a.config.OpenAPI.SetRemote(schemas)
}

// republish is publish for a backend that has learned something new.
func (a *Aggregator) republish(b *backend) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.backends[b.name] == b {
		a.publish()
	}
}

// moved has the backends checked that are behind a Service that changed, or whose
// endpoints did.
func (a *Aggregator) moved(old, obj runtime.Object) {
	for _, o := range []runtime.Object{old, obj} {
		var namespace, name string
		switch object := o.(type) {
		case *corev1.Service:
			namespace, name = object.Namespace, object.Name
		case *discoveryv1.EndpointSlice:
			namespace, name = object.Namespace, object.Labels[discoveryv1.LabelServiceName]
		}
		if name == "" {
			continue
		}
		a.mu.Lock()
		for _, b := range a.backends {
			if b.spec.Service.Namespace == namespace && b.spec.Service.Name == name {
				b.look()
			}
		}
		a.mu.Unlock()
	}
}

// Handler passes on what other servers serve; next serves the rest.
func (a *Aggregator) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b := a.backendOf(r.URL.Path); b != nil {
			b.serve(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Long says that a request to another server has no deadline: an upgraded
// connection. Watches are known to have none.
func (a *Aggregator) Long(r *http.Request) bool {
	return r.Header.Get("Upgrade") != "" && a.backendOf(r.URL.Path) != nil
}

// backendOf finds who serves a path below /apis, or describes it below
// /openapi/v3/apis.
func (a *Aggregator) backendOf(path string) *backend {
	serving := *a.serving.Load()
	if len(serving) == 0 {
		return nil
	}
	rest, ok := strings.CutPrefix(strings.TrimPrefix(path, "/openapi/v3"), "/apis/")
	if !ok {
		return nil
	}
	parts := strings.SplitN(rest, "/", 3)
	if len(parts) < 2 {
		return nil
	}
	return serving[schema.GroupVersion{Group: parts[0], Version: parts[1]}]
}

// clusterID is the same on all API servers of the cluster; "" while the cluster is
// not set up yet.
func (a *Aggregator) clusterID(ctx context.Context) string {
	if id := a.cluster.Load(); id != nil {
		return *id
	}
	obj, err := a.config.State.Get(ctx, corev1.Resource("namespaces"), "", metav1.NamespaceSystem)
	if err != nil {
		return ""
	}
	namespace, ok := obj.(*corev1.Namespace)
	if !ok {
		return ""
	}
	id := string(namespace.UID)
	a.cluster.Store(&id)
	return id
}
