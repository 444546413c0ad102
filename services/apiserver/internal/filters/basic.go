package filters

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sampan-io/sampan/services/apiserver/internal/request"
	"github.com/sampan-io/sampan/services/apiserver/internal/response"
)

// errPanicked is all that a client reads of a panic.
var errPanicked = errors.New("this request caused the API server to panic; its log has the details")

// Recovery answers 500 when a handler panics, and counts it. The process goes
// on.
func Recovery(log *slog.Logger, metrics *Metrics) Filter {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() {
				cause := recover()
				if cause == nil {
					return
				}
				if err, ok := cause.(error); ok && errors.Is(err, http.ErrAbortHandler) {
					panic(cause) // net/http's own way to drop a connection
				}
				metrics.panics.Inc()
				log.Error("Handler panicked", "method", r.Method, "path", r.URL.Path, "panic", fmt.Sprint(cause), "stack", string(debug.Stack()))
				response.Error(w, r, apierrors.NewInternalError(errPanicked))
			}()
			next.ServeHTTP(w, r)
		})
	}
}

// Info parses the path once, and gives the request its audit id: the client's,
// or a new one.
func Info() Filter {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			id := r.Header.Get("Audit-Id")
			if id == "" || len(id) > 64 {
				id = uuid.NewString()
			}
			w.Header().Set("Audit-Id", id)
			ctx := request.WithInfo(r.Context(), request.Parse(r.Method, r.URL))
			next.ServeHTTP(w, r.WithContext(request.WithAuditID(ctx, id)))
		})
	}
}

// Deadline ends requests after timeout, or earlier when the client says so by
// ?timeout, except those that are long by nature.
func Deadline(timeout time.Duration, long func(*http.Request, *request.Info) bool) Filter {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			info := request.InfoFrom(r.Context())
			if timeout <= 0 || info.IsResourceRequest && long(r, info) {
				next.ServeHTTP(w, r)
				return
			}
			limit := timeout
			if text := timeoutParameter(r); text != "" {
				asked, err := time.ParseDuration(text)
				if err != nil {
					response.Error(w, r, apierrors.NewBadRequest(fmt.Sprintf("invalid timeout specified in the request URL - time: invalid duration %q", text)))
					return
				}
				if asked > 0 && asked < limit {
					limit = asked
				}
			}
			ctx, cancel := context.WithTimeout(r.Context(), limit)
			defer cancel()
			defer boundTransfer(w, r, limit)()
			next.ServeHTTP(w, r.WithContext(ctx))
		})
	}
}

// boundTransfer drops clients that send their body, or take the answer, too
// slowly. The function that it returns lifts the bound from the connection.
func boundTransfer(w http.ResponseWriter, r *http.Request, limit time.Duration) func() {
	control := http.NewResponseController(w)
	end := time.Now().Add(limit)
	if r.Body != nil && r.Body != http.NoBody {
		_ = control.SetReadDeadline(end)
	}
	if r.ProtoMajor >= 2 || r.Method != http.MethodGet {
		return func() {}
	}
	// On HTTP/2 a stalled stream costs its own memory only, and a stalled
	// connection is closed by the server.
	_ = control.SetWriteDeadline(end.Add(limit))
	return func() { _ = control.SetWriteDeadline(time.Time{}) }
}

func timeoutParameter(r *http.Request) string {
	if !strings.Contains(r.URL.RawQuery, "timeout=") {
		return ""
	}
	return r.URL.Query().Get("timeout")
}

// Warnings puts what was collected into Warning headers when the answer begins.
func Warnings() Filter {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, warnings := request.WithWarnings(r.Context())
			next.ServeHTTP(&warningWriter{ResponseWriter: w, warnings: warnings}, r.WithContext(ctx))
		})
	}
}

// Limits on warnings of one answer, in bytes: beyond the first, each is cut;
// beyond the second, the rest are left out.
const (
	maxWarningLength = 256
	maxWarningsTotal = 4 << 10
)

type warningWriter struct {
	http.ResponseWriter
	warnings *request.Warnings
	began    bool
}

// Unwrap lets http.ResponseController reach the connection.
func (w *warningWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *warningWriter) WriteHeader(code int) {
	if !w.began {
		w.began = true
		list := w.warnings.List()
		total := 0
		for _, text := range list {
			total += len(text)
		}
		written := 0
		for _, text := range list {
			if total > maxWarningsTotal && len(text) > maxWarningLength {
				text = text[:maxWarningLength] + "..."
			}
			if written += len(text); written > maxWarningsTotal {
				break
			}
			w.Header().Add("Warning", `299 - "`+escapeWarning(text)+`"`)
		}
	}
	w.ResponseWriter.WriteHeader(code)
}

func (w *warningWriter) Write(data []byte) (int, error) {
	if !w.began {
		w.WriteHeader(http.StatusOK)
	}
	return w.ResponseWriter.Write(data)
}

// escapeWarning makes text fit into a quoted string of a header.
func escapeWarning(text string) string {
	var out strings.Builder
	for _, c := range text {
		switch {
		case c == '"' || c == '\\':
			out.WriteRune('\\')
			out.WriteRune(c)
		case c < ' ' || c == 0x7f:
			out.WriteRune(' ')
		default:
			out.WriteRune(c)
		}
	}
	return out.String()
}

// CORS lets browsers of the allowed origins read answers.
func CORS(patterns []string) Filter {
	var allowed []*regexp.Regexp
	for _, pattern := range patterns {
		allowed = append(allowed, regexp.MustCompile(pattern))
	}
	return func(next http.Handler) http.Handler {
		if len(allowed) == 0 {
			return next
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			origin := r.Header.Get("Origin")
			if origin == "" || !matchesAny(allowed, origin) {
				next.ServeHTTP(w, r)
				return
			}
			header := w.Header()
			header.Set("Access-Control-Allow-Origin", origin)
			header.Set("Access-Control-Allow-Methods", "POST, GET, OPTIONS, PUT, DELETE, PATCH")
			header.Set("Access-Control-Allow-Headers", "Content-Type, Content-Length, Accept-Encoding, X-CSRF-Token, Authorization, X-Requested-With, If-Modified-Since")
			header.Set("Access-Control-Expose-Headers", "Date")
			header.Set("Access-Control-Allow-Credentials", "true")
			if r.Method == http.MethodOptions {
				w.WriteHeader(http.StatusNoContent)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

func matchesAny(patterns []*regexp.Regexp, origin string) bool {
	for _, pattern := range patterns {
		if pattern.MatchString(origin) {
			return true
		}
	}
	return false
}
