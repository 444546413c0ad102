package audit

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/audit"

	"github.com/sampan-io/sampan/services/apiserver/internal/request"
	"github.com/sampan-io/sampan/services/apiserver/internal/response"
)

// Handler audits the requests that go through next. Long says which of them answer for
// as long as the client likes: those are told of when the answer begins, too.
func (a *Auditor) Handler(long func(*http.Request, *request.Info) bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, record := a.Begin(r)
		if record == nil {
			next.ServeHTTP(w, r)
			return
		}
		r = r.WithContext(ctx)
		if err := record.emit(audit.StageRequestReceived, outcome{}); err != nil {
			a.measures.rejected.Inc()
			response.Error(w, r, apierrors.NewInternalError(fmt.Errorf("the request cannot be audited: %w", err)))
			return
		}
		x := &exchange{ResponseWriter: w, record: record, code: http.StatusOK, long: long(r, request.InfoFrom(ctx))}
		in, out := record.bodies()
		x.keep = out && !x.long
		if in && r.Body != nil {
			x.contentType = r.Header.Get("Content-Type")
			r.Body = &tee{ReadCloser: r.Body, copy: &x.in}
		}
		defer func() {
			if cause := recover(); cause != nil {
				status := response.Status(apierrors.NewInternalError(fmt.Errorf("%v", cause)))
				_ = record.emit(audit.StagePanic, outcome{status: status}) // the sink has counted what is lost
				panic(cause)
			}
			x.complete()
		}()
		next.ServeHTTP(x, r)
	})
}

// Refused audits a request whose user could not be found out.
func (a *Auditor) Refused(r *http.Request) {
	if a == nil {
		return
	}
	_, record := a.Begin(r)
	if record == nil {
		return
	}
	status := &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonUnauthorized, Code: http.StatusUnauthorized, Message: "Authentication failed"}
	_ = record.emit(audit.StageResponseStarted, outcome{status: status}) // the sink has counted what is lost
}

// maxStatusBytes is how much of a failure's body is read for its status.
const maxStatusBytes = 64 << 10

// exchange is an answer on its way.
type exchange struct {
	http.ResponseWriter
	record      *Record
	long        bool
	keep        bool // the body is wanted
	contentType string
	in, out     bytes.Buffer
	code        int
	began       bool
}

// Unwrap lets http.ResponseController reach the connection.
func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

func (x *exchange) WriteHeader(code int) {
	if !x.began && code >= http.StatusOK {
		x.begin(code)
	}
	x.ResponseWriter.WriteHeader(code)
}

func (x *exchange) begin(code int) {
	x.began, x.code = true, code
	if x.long {
		_ = x.record.emit(audit.StageResponseStarted, outcome{status: x.status()}) // the sink has counted what is lost
	}
}

func (x *exchange) Write(data []byte) (int, error) {
	if !x.began {
		x.begin(http.StatusOK)
	}
	switch {
	case x.keep:
		x.out.Write(data)
	case x.code >= http.StatusBadRequest:
		x.out.Write(data[:min(len(data), maxStatusBytes-x.out.Len())])
	}
	return x.ResponseWriter.Write(data)
}

// Flush implements http.Flusher, for handlers that ask for it directly.
func (x *exchange) Flush() {
	if !x.began {
		x.WriteHeader(http.StatusOK)
	}
	_ = http.NewResponseController(x.ResponseWriter).Flush()
}

// Hijack implements http.Hijacker, for upgrades.
func (x *exchange) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	connection, buffered, err := http.NewResponseController(x.ResponseWriter).Hijack()
	if err == nil && !x.began {
		x.begin(http.StatusSwitchingProtocols)
	}
	return connection, buffered, err
}

// status is what the answer says of its outcome: the code, and for a failure the rest.
func (x *exchange) status() *metav1.Status {
	status := &metav1.Status{Code: int32(x.code)}
	if x.code < http.StatusBadRequest || x.out.Len() == 0 {
		return status
	}
	if told := statusOf(x.header(), x.out.Bytes()); told != nil {
		told.Code = int32(x.code)
		return told
	}
	status.Status = metav1.StatusFailure
	return status
}

func (x *exchange) header() http.Header { return x.ResponseWriter.Header() }

func (x *exchange) complete() {
	o := outcome{status: x.status()}
	if in, _ := x.record.bodies(); in && x.in.Len() > 0 {
		o.request = toJSON(x.contentType, "", x.in.Bytes(), x.record.rule.omitManaged)
	}
	if x.keep && x.out.Len() > 0 {
		o.response = toJSON(x.header().Get("Content-Type"), x.header().Get("Content-Encoding"), x.out.Bytes(), x.record.rule.omitManaged)
	}
	_ = x.record.emit(audit.StageResponseComplete, o) // the sink has counted what is lost
}

// tee copies a body as it is read.
type tee struct {
	io.ReadCloser
	copy *bytes.Buffer
}

func (t *tee) Read(data []byte) (int, error) {
	n, err := t.ReadCloser.Read(data)
	t.copy.Write(data[:n])
	return n, err
}
