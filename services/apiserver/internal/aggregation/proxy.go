package aggregation

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	proxyutil "k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/client-go/transport"

	"github.com/sampan-io/sampan/services/apiserver/internal/request"
	"github.com/sampan-io/sampan/services/apiserver/internal/response"
	"github.com/sampan-io/sampan/services/apiserver/internal/serviceresolver"
)

// passedHeader names the clusters whose API servers passed a request on. One that
// sees its own cluster in it would only send the request to itself again.
const passedHeader = "Sampan-Passed-By"

// serve passes a request on to the server, as the user that it is of.
func (b *backend) serve(w http.ResponseWriter, r *http.Request) {
	id := b.aggregator.clusterID(r.Context())
	if id != "" && slices.Contains(r.Header.Values(passedHeader), id) {
		response.Error(w, r, &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusLoopDetected, Reason: metav1.StatusReasonServiceUnavailable,
			Message: fmt.Sprintf("APIService %s refers to the API server that it is registered with", b.name),
		}})
		return
	}
	if !b.isAvailable() {
		response.Error(w, r, apierrors.NewServiceUnavailable(fmt.Sprintf("the server of APIService %s is not available", b.name)))
		return
	}
	user := request.UserFrom(r.Context())
	if user == nil {
		response.Error(w, r, apierrors.NewInternalError(fmt.Errorf("a request without a user")))
		return
	}
	location := serviceresolver.URL(b.spec.Service.Namespace, b.spec.Service.Name, b.port(), r.URL.Path)
	location.RawPath, location.RawQuery = r.URL.RawPath, r.URL.RawQuery
	passed := r.Clone(r.Context())
	passed.URL, passed.Host = location, location.Host
	// The client proved who it is to this server; the proof is nobody else's.
	passed.Header.Del("Authorization")
	passed.Header.Add(passedHeader, id)
	transport.SetAuthProxyHeaders(passed, user.Name, user.UID, user.Groups, user.Extra)
	upgrade := r.Header.Get("Upgrade") != ""
	handler := proxyutil.NewUpgradeAwareHandler(location, b.transport, true, upgrade, responder{b.name})
	handler.UseLocationHost, handler.RejectForwardingRedirects = true, !b.aggregator.config.FollowRedirects
	handler.FlushInterval = -1 // an event that waits is late
	handler.ServeHTTP(w, passed)
}

// responder answers what goes wrong on the way to a server.
type responder struct{ apiService string }

// Error implements proxyutil.ErrorResponder.
func (r responder) Error(w http.ResponseWriter, req *http.Request, err error) {
	if errors.Is(req.Context().Err(), context.DeadlineExceeded) {
		response.Error(w, req, apierrors.NewTimeoutError(fmt.Sprintf("the server of APIService %s did not answer within the request's timeout", r.apiService), 0))
		return
	}
	response.Error(w, req, apierrors.NewServiceUnavailable(fmt.Sprintf("error trying to reach the server of APIService %s: %v", r.apiService, err)))
}
