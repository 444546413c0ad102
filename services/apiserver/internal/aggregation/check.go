package aggregation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/transport"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/openapi"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/apiregistration"
	"github.com/sampan-io/sampan/services/apiserver/internal/serviceresolver"
)

const (
	checkTimeout = 5 * time.Second
	// Bounds on what a server may say of itself.
	maxResources = 4 << 20
	maxIndex     = 1 << 20
	maxDocument  = 32 << 20
)

// checker is who asks for health and descriptions, upstream's name.
const checker = "system:kube-aggregator"

// result is the outcome of a check.
type result struct {
	status          apiregistrationv1.ConditionStatus
	reason, message string
	// resources is how the server describes the group version; nil where it says
	// nothing that can be read.
	resources *metav1.APIResourceList
}

func failed(reason, format string, args ...any) result {
	return result{status: apiregistrationv1.ConditionFalse, reason: reason, message: fmt.Sprintf(format, args...)}
}

func (r result) condition() apiregistrationv1.APIServiceCondition {
	return apiregistrationv1.APIServiceCondition{Type: apiregistrationv1.Available, Status: r.status, Reason: r.reason, Message: r.message}
}

// check looks at the Service first, and then asks the server.
func (b *backend) check(ctx context.Context) result {
	namespace, name := b.spec.Service.Namespace, b.spec.Service.Name
	obj, err := b.aggregator.config.State.Get(ctx, corev1.Resource("services"), namespace, name)
	if apierrors.IsNotFound(err) {
		return failed("ServiceNotFound", "service/%s in %q is not present", name, namespace)
	}
	service, ok := obj.(*corev1.Service)
	if err != nil || !ok {
		return failed("ServiceAccessError", "service/%s in %q cannot be checked due to: %v", name, namespace, err)
	}
	if service.Spec.Type != corev1.ServiceTypeExternalName {
		if !listens(service, b.port()) {
			return failed("ServicePortError", "service/%s in %q is not listening on port %d", name, namespace, b.port())
		}
		if _, err := b.aggregator.config.Resolver.Resolve(ctx, namespace, name, b.port()); err != nil {
			return failed("MissingEndpoints", "endpoints for service/%s in %q have no addresses with port name %q", name, namespace, portName(service, b.port()))
		}
	}
	return b.ask(ctx)
}

func listens(service *corev1.Service, port int32) bool {
	for _, p := range service.Spec.Ports {
		if p.Port == port {
			return true
		}
	}
	return false
}

func portName(service *corev1.Service, port int32) string {
	for _, p := range service.Spec.Ports {
		if p.Port == port {
			return p.Name
		}
	}
	return ""
}

// ask gets the list of the group version's resources, which shows that the server
// serves it.
func (b *backend) ask(ctx context.Context) result {
	path := "/apis/" + b.gv.String()
	answer, body, err := b.get(ctx, path, "application/json", "", maxResources)
	at := serviceresolver.URL(b.spec.Service.Namespace, b.spec.Service.Name, b.port(), path)
	switch {
	case err != nil:
		return failed("FailedDiscoveryCheck", "failing or missing response from %s: %v", at, err)
	case answer.StatusCode == http.StatusLoopDetected:
		return failed("FailedDiscoveryCheck", "failing or missing response from %s: the APIService refers to the API server that it is registered with", at)
	case answer.StatusCode < 200 || answer.StatusCode > 299:
		return failed("FailedDiscoveryCheck", "failing or missing response from %s: bad status from %s: %d", at, at, answer.StatusCode)
	}
	passed := result{status: apiregistrationv1.ConditionTrue, reason: "Passed", message: "all checks passed"}
	var list metav1.APIResourceList
	if json.Unmarshal(body, &list) == nil && list.Kind == "APIResourceList" && list.GroupVersion == b.gv.String() {
		passed.resources = &list
	}
	return passed
}

// get asks the server as the checker, without following redirects. It refuses an
// answer that is longer than limit.
func (b *backend) get(ctx context.Context, path, accept, etag string, limit int64) (*http.Response, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	url := serviceresolver.URL(b.spec.Service.Namespace, b.spec.Service.Name, b.port(), path)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url.String(), nil)
	if err != nil {
		return nil, nil, err
	}
	request.Header.Set("Accept", accept)
	if etag != "" {
		request.Header.Set("If-None-Match", etag)
	}
	transport.SetAuthProxyHeaders(request, checker, "", []string{"system:masters"}, nil)
	request.Header.Set(passedHeader, b.aggregator.clusterID(ctx))
	answer, err := b.transport.RoundTrip(request)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(answer.Body, limit+1))
	if err == nil && int64(len(body)) > limit {
		err = fmt.Errorf("the answer to %s is longer than %d bytes", path, limit)
	}
	return answer, body, err
}

// learn reads how the server describes itself in OpenAPI. What it does not offer,
// or what cannot be read, is left out.
func (b *backend) learn(ctx context.Context) {
	b.mu.Lock()
	now := b.learned
	b.mu.Unlock()
	next := now
	if answer, body, err := b.get(ctx, "/openapi/v3", "application/json", "", maxIndex); err == nil && answer.StatusCode == http.StatusOK {
		var index struct {
			Paths map[string]struct {
				URL string `json:"serverRelativeURL"`
			} `json:"paths"`
		}
		if json.Unmarshal(body, &index) == nil {
			next.v3 = safeURL(index.Paths["apis/"+b.gv.String()].URL, "/openapi/v3/apis/"+b.gv.String())
		}
	}
	if answer, body, err := b.get(ctx, "/openapi/v2", "application/json", now.v2ETag, maxDocument); err == nil && answer.StatusCode == http.StatusOK {
		if share, err := openapi.ParseShare(body, b.gv); err == nil {
			next.v2, next.v2ETag = share, answer.Header.Get("Etag")
		}
	}
	if reflect.DeepEqual(next, now) {
		return
	}
	b.mu.Lock()
	b.learned.v3, b.learned.v2, b.learned.v2ETag = next.v3, next.v2, next.v2ETag
	b.mu.Unlock()
	b.aggregator.republish(b)
}

// safeURL is a server's URL of its description if it is the path where this server
// passes requests for it on.
func safeURL(url, path string) string {
	if len(url) >= len(path) && url[:len(path)] == path && (len(url) == len(path) || url[len(path)] == '?') {
		return url
	}
	return ""
}

// errOther says that an APIService is not any more the one that was checked.
var errOther = errors.New("it is another APIService by now")

// setAvailable sets the condition in an APIService's status, if it differs.
func setAvailable(ctx context.Context, writer registry.Writer, name, uid string, condition apiregistrationv1.APIServiceCondition) error {
	_, err := writer.Update(ctx, apiregistration.Resource, "status", "", name, false, func(obj runtime.Object) error {
		service, ok := obj.(*apiregistrationv1.APIService)
		if !ok || string(service.UID) != uid {
			return errOther
		}
		condition.LastTransitionTime = metav1.Now()
		for i := range service.Status.Conditions {
			have := &service.Status.Conditions[i]
			if have.Type != condition.Type {
				continue
			}
			if have.Status == condition.Status {
				condition.LastTransitionTime = have.LastTransitionTime
			}
			*have = condition
			return nil
		}
		service.Status.Conditions = append(service.Status.Conditions, condition)
		return nil
	})
	if apierrors.IsNotFound(err) {
		return errOther
	}
	return err
}
