package filters

import (
	"bufio"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/sampan-io/sampan/services/apiserver/internal/request"
)

// slowRequest is how long a request may take before it is logged as slow.
const slowRequest = time.Second

// Observe measures and logs each request.
func Observe(log *slog.Logger, metrics *Metrics) Filter {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			start := time.Now()
			recorder := &recorder{ResponseWriter: w, code: http.StatusOK}
			info := request.InfoFrom(r.Context())
			kind := requestLabels(info, r)
			longRunning := metrics.begin(kind)
			defer func() {
				longRunning()
				took := time.Since(start)
				metrics.observe(kind, recorder, took)
				logRequest(log, r, info, recorder, took, kind)
			}()
			next.ServeHTTP(recorder, r)
		})
	}
}

func logRequest(log *slog.Logger, r *http.Request, info *request.Info, rec *recorder, took time.Duration, kind labels) {
	level := slog.LevelDebug
	if rec.code >= http.StatusInternalServerError && !isHealth(info.Path) || took > slowRequest && !kind.long() {
		level = slog.LevelInfo
	}
	if !log.Enabled(r.Context(), level) {
		return
	}
	log.Log(r.Context(), level, "Request", "verb", kind.verb, "uri", r.URL.RequestURI(), "code", rec.code, "took", took,
		"bytes", rec.bytes, "agent", r.UserAgent(), "remote", r.RemoteAddr, "auditID", request.AuditIDFrom(r.Context()))
}

// isHealth says whether a path is one by which others ask until the answer is
// good.
func isHealth(path string) bool {
	for _, health := range []string{"/healthz", "/livez", "/readyz"} {
		if path == health || strings.HasPrefix(path, health+"/") {
			return true
		}
	}
	return false
}

// recorder remembers an answer's code and size.
type recorder struct {
	http.ResponseWriter
	code     int
	bytes    int
	began    bool
	hijacked bool
}

// Unwrap lets http.ResponseController reach the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) WriteHeader(code int) {
	if !r.began {
		r.began, r.code = true, code
	}
	r.ResponseWriter.WriteHeader(code)
}

func (r *recorder) Write(data []byte) (int, error) {
	r.began = true
	n, err := r.ResponseWriter.Write(data)
	r.bytes += n
	return n, err
}

// Flush implements http.Flusher, for handlers that ask for it directly.
func (r *recorder) Flush() { _ = http.NewResponseController(r.ResponseWriter).Flush() }

// Hijack implements http.Hijacker, for upgrades.
func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	r.hijacked, r.code = true, http.StatusSwitchingProtocols
	return http.NewResponseController(r.ResponseWriter).Hijack()
}

// Flush implements http.Flusher.
func (w *warningWriter) Flush() {
	if !w.began {
		w.WriteHeader(http.StatusOK)
	}
	_ = http.NewResponseController(w.ResponseWriter).Flush()
}

// Hijack implements http.Hijacker.
func (w *warningWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(w.ResponseWriter).Hijack()
}

// labels of a request's metrics. Their values come from fixed sets or from names
// of served resources: never from what clients make up.
type labels struct {
	verb, group, version, resource, subresource, scope string
}

func (l labels) long() bool { return l.verb == "WATCH" || l.verb == "CONNECT" }

func requestLabels(info *request.Info, r *http.Request) labels {
	if !info.IsResourceRequest {
		return labels{verb: httpVerb(r.Method)}
	}
	l := labels{
		verb: strings.ToUpper(info.Verb), group: info.APIGroup, version: info.APIVersion,
		resource: info.Resource, subresource: info.Subresource, scope: "cluster",
	}
	switch info.Verb {
	case "create":
		l.verb = "POST"
	case "update":
		l.verb = "PUT"
	case "":
		l.verb = httpVerb(r.Method)
	case "patch":
		if strings.HasPrefix(r.Header.Get("Content-Type"), "application/apply-patch") {
			l.verb = "APPLY"
		}
	}
	switch info.Subresource {
	case "exec", "attach", "portforward", "proxy":
		l.verb = "CONNECT"
	}
	switch {
	case info.Name != "" || info.Verb == "create":
		l.scope = "resource"
	case info.Namespace != "":
		l.scope = "namespace"
	}
	return l
}

func httpVerb(method string) string {
	switch method {
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodHead, http.MethodOptions:
		return method
	}
	return "other"
}
