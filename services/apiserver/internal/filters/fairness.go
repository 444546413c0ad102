package filters

import (
	"net/http"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sampan-io/sampan/services/apiserver/internal/fairness"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
	"github.com/sampan-io/sampan/services/apiserver/internal/response"
)

// Objects says how many objects a list or a watch reads.
type Objects func(info *request.Info) int

// Fairness lets requests through as their priority levels have seats, and
// answers 429 to those that find none in time. Long requests do not take part,
// but for watches, which keep their seat until they have begun.
func Fairness(dispatcher *fairness.Dispatcher, long func(*http.Request, *request.Info) bool, objects Objects, metrics *Metrics) Filter {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			info := request.InfoFrom(r.Context())
			watching := info.IsResourceRequest && info.Verb == "watch"
			if !watching && long(r, info) {
				next.ServeHTTP(w, r)
				return
			}
			classified, release, err := dispatcher.Acquire(r.Context(), asked(r, info, objects))
			w.Header().Set(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID, classified.SchemaUID)
			w.Header().Set(flowcontrolv1.ResponseHeaderMatchedPriorityLevelConfigurationUID, classified.LevelUID)
			kind := requestKind(r.Method)
			if err != nil {
				metrics.dropped.WithLabelValues(kind).Inc()
				metrics.terminated.WithLabelValues(httpVerb(r.Method), "429").Inc()
				response.Error(w, r, apierrors.NewTooManyRequests("too many requests, please try again later", 1))
				return
			}
			defer release()
			if watching {
				next.ServeHTTP(w, r.WithContext(request.WithBegun(r.Context(), release)))
				return
			}
			gauge := metrics.inflight.WithLabelValues(kind)
			gauge.Inc()
			defer gauge.Dec()
			next.ServeHTTP(w, r)
		})
	}
}

func requestKind(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return "readOnly"
	}
	return "mutating"
}

// asked is a request as the levels see it.
func asked(r *http.Request, info *request.Info, objects Objects) *fairness.Request {
	asked := &fairness.Request{Attributes: fairness.Attributes{
		Verb: info.Verb, IsResource: info.IsResourceRequest, APIGroup: info.APIGroup, Resource: info.Resource,
		Subresource: info.Subresource, Namespace: info.Namespace, Path: info.Path,
	}}
	if user := request.UserFrom(r.Context()); user != nil {
		asked.Subject = fairness.Subject{User: user.Name, Groups: user.Groups}
	}
	if info.IsResourceRequest && info.Name == "" && (info.Verb == "list" || info.Verb == "watch") {
		asked.Objects = objects(info)
	}
	return asked
}
