package aggregation

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"sync"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/discovery"
	"github.com/sampan-io/sampan/services/apiserver/internal/openapi"
	"github.com/sampan-io/sampan/services/apiserver/internal/serviceresolver"
)

const (
	// checkInterval is how often a server is asked that answers.
	checkInterval = 30 * time.Second
	// firstRetry doubles up to checkInterval while a server does not.
	firstRetry = time.Second
)

// backend is another server that serves a group version.
type backend struct {
	aggregator *Aggregator
	name       string // of the APIService
	uid        string
	gv         schema.GroupVersion
	spec       apiregistrationv1.APIServiceSpec
	transport  *http.Transport
	wake       chan struct{} // has room for one
	stop       context.CancelFunc
	lastReason string // of run's own

	mu        sync.Mutex
	available bool
	learned   learned
}

// learned is what a server said of itself.
type learned struct {
	resources *metav1.APIResourceList
	v3        string
	v2        *openapi.Share
	v2ETag    string
}

func newBackend(a *Aggregator, service *apiregistrationv1.APIService) *backend {
	b := &backend{
		aggregator: a, name: service.Name, uid: string(service.UID), spec: *service.Spec.DeepCopy(), wake: make(chan struct{}, 1),
		gv: schema.GroupVersion{Group: service.Spec.Group, Version: service.Spec.Version},
	}
	b.transport = a.config.Resolver.Transport(b.tls(), true)
	return b
}

// same says whether an APIService still asks for this backend.
func (b *backend) same(service *apiregistrationv1.APIService) bool {
	return b.uid == string(service.UID) && apiequality.Semantic.DeepEqual(b.spec, service.Spec)
}

// port of the Service.
func (b *backend) port() int32 {
	if b.spec.Service.Port == nil {
		return 443
	}
	return *b.spec.Service.Port
}

// tls proves who this server is, and checks who the other is.
func (b *backend) tls() *tls.Config {
	config := &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: serviceresolver.ServerName(b.spec.Service.Namespace, b.spec.Service.Name),
		InsecureSkipVerify: b.spec.InsecureSkipTLSVerify, //nolint:gosec // the APIService says so
	}
	if len(b.spec.CABundle) > 0 {
		config.RootCAs = x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM(b.spec.CABundle) // what is no certificate leaves a pool that trusts nobody
	}
	cert, key := b.aggregator.config.ClientCertFile, b.aggregator.config.ClientKeyFile
	if cert != "" {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(cert, key)
			return &pair, err
		}
	}
	return config
}

// look has the server checked now.
func (b *backend) look() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// run checks the server until ctx ends.
func (b *backend) run(ctx context.Context) {
	defer b.transport.CloseIdleConnections()
	retry := firstRetry
	for {
		result := b.check(ctx)
		if ctx.Err() != nil {
			return
		}
		b.settle(ctx, result)
		pause := checkInterval
		if result.status != apiregistrationv1.ConditionTrue {
			pause, retry = retry, min(2*retry, checkInterval)
		} else {
			retry = firstRetry
			b.learn(ctx)
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-b.wake:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// settle opens or closes the way to the server, and tells in the APIService's
// status.
func (b *backend) settle(ctx context.Context, result result) {
	available := result.status == apiregistrationv1.ConditionTrue
	b.mu.Lock()
	changed := available != b.available
	b.available = available
	if result.resources != nil && !apiequality.Semantic.DeepEqual(result.resources, b.learned.resources) {
		b.learned.resources, changed = result.resources, true
	}
	b.mu.Unlock()
	if !available && (changed || result.reason != b.lastReason) {
		b.aggregator.measures.failures.WithLabelValues(b.name, result.reason).Inc()
	}
	b.lastReason = result.reason
	if changed {
		b.aggregator.republish(b)
	}
	err := setAvailable(ctx, b.aggregator.config.State, b.name, b.uid, result.condition())
	if err != nil && ctx.Err() == nil && !errors.Is(err, errOther) {
		b.aggregator.config.Log.Warn("Telling whether an APIService is available", "apiservice", b.name, "err", err)
	}
}

// described is the backend for discovery and OpenAPI.
func (b *backend) described() (discovery.Remote, openapi.Remote) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return discovery.Remote{
		Group: b.gv.Group, Version: b.gv.Version, GroupPriority: b.spec.GroupPriorityMinimum, VersionPriority: b.spec.VersionPriority,
		Resources: b.learned.resources, Stale: !b.available,
	}, openapi.Remote{GroupVersion: b.gv, V3: b.learned.v3, V2: b.learned.v2}
}

func (b *backend) isAvailable() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.available
}
