package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/serviceresolver"
)

const (
	// maxResponse bounds the body of a webhook's answer, in bytes: twice the largest
	// request body, for patches come in base64.
	maxResponse = 6 << 20
	// maxExplanation bounds what of an error's body is quoted, in bytes.
	maxExplanation = 512
	// idlePerHook is how many connections to a webhook without HTTP/2 stay open.
	idlePerHook = 16
)

// clients makes clients of webhooks.
type clients struct {
	resolver    *serviceresolver.Resolver
	credentials *Credentials // nil without a kubeconfig for webhooks
}

// client posts reviews to one webhook. It is made on first use.
type client struct {
	once  sync.Once
	make  func() (*http.Client, string, error)
	http  *http.Client
	url   string
	err   error
	extra func(http.Header) error // credentials in headers, may be nil
}

// of is the client of a webhook's endpoint.
func (c *clients) of(config *admissionregistrationv1.WebhookClientConfig) *client {
	out := &client{}
	out.make = func() (*http.Client, string, error) {
		target, host, err := location(config)
		if err != nil {
			return nil, "", err
		}
		tlsConfig := &tls.Config{MinVersion: tls.VersionTLS12}
		if len(config.CABundle) > 0 {
			tlsConfig.RootCAs = x509.NewCertPool()
			if !tlsConfig.RootCAs.AppendCertsFromPEM(config.CABundle) {
				return nil, "", errors.New("unable to load root certificates: the caBundle has none")
			}
		}
		if c.credentials != nil {
			identity := c.credentials.of(host)
			identity.apply(tlsConfig)
			out.extra = identity.headers
		}
		transport := c.resolver.Transport(tlsConfig, true)
		transport.MaxIdleConnsPerHost = idlePerHook
		return &http.Client{
			Transport: transport,
			// A redirect would carry the review somewhere that nobody configured.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}, target, nil
	}
	return out
}

// location is where a webhook is reached, and the name under which a kubeconfig
// has its credentials.
func location(config *admissionregistrationv1.WebhookClientConfig) (target, host string, err error) {
	if s := config.Service; s != nil {
		port := int32(443)
		if s.Port != nil {
			port = *s.Port
		}
		at := ""
		if s.Path != nil {
			at = path.Join("/", *s.Path)
		}
		host = serviceresolver.ServerName(s.Namespace, s.Name)
		if port != 443 {
			host += ":" + strconv.Itoa(int(port))
		}
		return serviceresolver.URL(s.Namespace, s.Name, port, at).String(), host, nil
	}
	if config.URL == nil {
		return "", "", errors.New("webhook configuration must have either service or URL")
	}
	u, err := url.Parse(*config.URL)
	if err != nil {
		return "", "", fmt.Errorf("unparsable webhook URL: %w", err)
	}
	// As upstream asks: many servers answer two slashes with a redirect.
	u.Path, u.RawPath = path.Join("/", u.Path), ""
	return u.String(), u.Host, nil
}

func (c *client) prepare() error {
	c.once.Do(func() { c.http, c.url, c.err = c.make() })
	return c.err
}

// close lets idle connections go. Calls that have begun go on.
func (c *client) close() {
	if c.prepare() == nil {
		c.http.CloseIdleConnections()
	}
}

// post sends a document and reads the answer.
func (c *client) post(ctx context.Context, body []byte) ([]byte, error) {
	if err := c.prepare(); err != nil {
		return nil, err
	}
	target := c.url
	if deadline, ok := ctx.Deadline(); ok {
		// The webhook is told how long its answer is waited for, in whole seconds.
		if left := time.Until(deadline); left > 0 {
			target += "?timeout=" + (left + time.Second - time.Nanosecond).Truncate(time.Second).String()
		}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json, */*")
	request.Header.Set("User-Agent", "kube-apiserver-admission")
	if c.extra != nil {
		if err := c.extra(request.Header); err != nil {
			return nil, err
		}
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }() // what matters of it is read
	data, err := io.ReadAll(io.LimitReader(response.Body, maxResponse+1))
	if err != nil {
		return nil, fmt.Errorf("reading the response: %w", err)
	}
	switch {
	case response.StatusCode >= 300 && response.StatusCode < 400:
		return nil, &statusError{response.StatusCode, fmt.Sprintf("the webhook redirects to %q, which is not followed", response.Header.Get("Location"))}
	case response.StatusCode != http.StatusOK && response.StatusCode != http.StatusCreated && response.StatusCode != http.StatusAccepted:
		return nil, &statusError{response.StatusCode, string(data[:min(len(data), maxExplanation)])}
	case len(data) > maxResponse:
		return nil, &statusError{http.StatusRequestEntityTooLarge, fmt.Sprintf("the webhook's response is larger than %d bytes", maxResponse)}
	}
	return data, nil
}

// statusError is an answer that is no review.
type statusError struct {
	code        int
	explanation string
}

// Error implements error.
func (e *statusError) Error() string {
	return fmt.Sprintf("the server answered %d (%s): %s", e.code, http.StatusText(e.code), e.explanation)
}
