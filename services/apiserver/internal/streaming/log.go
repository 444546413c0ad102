package streaming

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxAgentMessage bounds what is repeated of an agent's error.
const maxAgentMessage = 64 << 10

// Log serves pods/log.
func (c *Connections) Log(ctx context.Context, namespace, name, _ string, options runtime.Object) (http.Handler, error) {
	o := options.(*corev1.PodLogOptions)
	if problems := validateLog(o); len(problems) > 0 {
		return nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("PodLogOptions").GroupKind(), name, problems)
	}
	pod, err := c.pod(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	chosen, err := container(pod, o.Container)
	if err != nil {
		return nil, err
	}
	if pod.Spec.NodeName == "" { // not scheduled yet: nothing was logged
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
		}), nil
	}
	location, err := c.agent(ctx, pod)
	if err != nil {
		return nil, err
	}
	location.Path = "/containerLogs/" + pod.Namespace + "/" + pod.Name + "/" + chosen
	location.RawQuery = logQuery(o).Encode()
	transport := c.transport
	if o.InsecureSkipTLSVerifyBackend {
		transport = transport.Clone()
		transport.TLSClientConfig.InsecureSkipVerify = true
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		copyLog(w, r, transport, location)
	}), nil
}

func validateLog(o *corev1.PodLogOptions) field.ErrorList {
	var problems field.ErrorList
	if o.TailLines != nil && *o.TailLines < 0 {
		problems = append(problems, field.Invalid(field.NewPath("tailLines"), *o.TailLines, "must be greater than or equal to 0"))
	}
	if o.LimitBytes != nil && *o.LimitBytes < 1 {
		problems = append(problems, field.Invalid(field.NewPath("limitBytes"), *o.LimitBytes, "must be greater than 0"))
	}
	switch {
	case o.SinceSeconds != nil && o.SinceTime != nil:
		problems = append(problems, field.Forbidden(field.NewPath(""), "at most one of `sinceTime` or `sinceSeconds` may be specified"))
	case o.SinceSeconds != nil && *o.SinceSeconds < 1:
		problems = append(problems, field.Invalid(field.NewPath("sinceSeconds"), *o.SinceSeconds, "must be greater than 0"))
	}
	if o.Stream != nil {
		switch *o.Stream {
		case corev1.LogStreamAll:
		case corev1.LogStreamStdout, corev1.LogStreamStderr:
			if o.TailLines != nil {
				problems = append(problems, field.Forbidden(field.NewPath(""), "`tailLines` and specific `stream` are mutually exclusive for now"))
			}
		default:
			problems = append(problems, field.NotSupported(field.NewPath("stream"), *o.Stream, []string{corev1.LogStreamAll, corev1.LogStreamStdout, corev1.LogStreamStderr}))
		}
	}
	return problems
}

func logQuery(o *corev1.PodLogOptions) url.Values {
	query := url.Values{}
	for key, on := range map[string]bool{"follow": o.Follow, "previous": o.Previous, "timestamps": o.Timestamps} {
		if on {
			query.Set(key, "true")
		}
	}
	for key, number := range map[string]*int64{"sinceSeconds": o.SinceSeconds, "tailLines": o.TailLines, "limitBytes": o.LimitBytes} {
		if number != nil {
			query.Set(key, strconv.FormatInt(*number, 10))
		}
	}
	if o.SinceTime != nil {
		query.Set("sinceTime", o.SinceTime.Format(time.RFC3339))
	}
	if o.Stream != nil && *o.Stream != corev1.LogStreamAll {
		query.Set("stream", *o.Stream)
	}
	return query
}

// copyLog passes an agent's log on, each part as soon as it comes; to who asks by
// WebSocket as messages.
func copyLog(w http.ResponseWriter, r *http.Request, transport http.RoundTripper, location *url.URL) {
	ctx, end := context.WithCancel(r.Context())
	defer end()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, location.String(), nil)
	if err != nil {
		writeError(w, err)
		return
	}
	answer, err := transport.RoundTrip(request) // not through a client: redirects are not followed
	if err != nil {
		writeError(w, apierrors.NewServiceUnavailable(fmt.Sprintf("Get %q: %v", location.Redacted(), err)))
		return
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, maxAgentMessage))
		writeError(w, agentError(answer.StatusCode, string(text)))
		return
	}
	if websocket.IsWebSocketUpgrade(r) {
		sendMessages(w, r, answer.Body, end)
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	flusher := http.NewResponseController(w)
	_ = flusher.Flush()
	buffer := make([]byte, 32<<10)
	for {
		n, err := answer.Body.Read(buffer)
		if n > 0 {
			if _, writeErr := w.Write(buffer[:n]); writeErr != nil {
				return
			}
			_ = flusher.Flush()
		}
		if err != nil {
			return
		}
	}
}

func agentError(code int, text string) error {
	switch code {
	case http.StatusBadRequest:
		return apierrors.NewBadRequest(text)
	case http.StatusNotFound:
		return apierrors.NewGenericServerResponse(code, "get", podResource, "", text, 0, true)
	default:
		return apierrors.NewInternalError(fmt.Errorf("the node's agent answered %d: %s", code, text))
	}
}
