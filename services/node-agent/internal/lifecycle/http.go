// Package lifecycle runs what a pod's author lets the node call: the requests of
// probes and the handlers after a container's start and before its stop.
package lifecycle

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sampan-io/sampan/services/internal/component"
)

// maxBody is how much of a response is read.
const maxBody = 10 << 10

// ErrRedirect tells that the endpoint answered with a redirect to another host,
// which is not followed.
var ErrRedirect = errors.New("redirect to another host")

// Response is what an HTTP endpoint answered.
type Response struct {
	Status string
	Code   int
	Body   string
}

// Port finds the number that a port of a container means: itself, or that of the
// container's port of that name.
func Port(port intstr.IntOrString, container *corev1.Container) (int, error) {
	number := port.IntValue()
	if port.Type == intstr.String {
		for _, p := range container.Ports {
			if p.Name == port.StrVal {
				number = int(p.ContainerPort)
			}
		}
		if number == 0 {
			return 0, fmt.Errorf("couldn't find port: %v in %v", port.StrVal, container.Name)
		}
	}
	if number < 1 || number > 65535 {
		return 0, fmt.Errorf("invalid port number: %v", number)
	}
	return number, nil
}

// Get does a request of a probe or handler. Host is used where the action names
// none. The agent is product, "kube-probe" or "kube-lifecycle".
func Get(ctx context.Context, action *corev1.HTTPGetAction, container *corev1.Container, host, product string) (Response, error) {
	request, err := newRequest(ctx, action, container, host, product)
	if err != nil {
		return Response{}, err
	}
	client := &http.Client{
		// A connection a request, for the endpoint may be another process next time.
		// Certificates are not checked, as upstream: pods' are signed by nobody that we
		// know, and the question is whether it answers.
		Transport: &http.Transport{
			TLSClientConfig:    &tls.Config{InsecureSkipVerify: true},
			DisableKeepAlives:  true,
			DisableCompression: true,
			Proxy:              nil,
			DialContext:        (&net.Dialer{Control: lingerControl}).DialContext,
		},
		CheckRedirect: stayOnHost,
	}
	response, err := client.Do(request)
	if err != nil {
		return Response{}, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBody))
	if err != nil && len(body) == 0 {
		return Response{}, err
	}
	return Response{Status: response.Status, Code: response.StatusCode, Body: string(body)}, nil
}

func newRequest(ctx context.Context, action *corev1.HTTPGetAction, container *corev1.Container, host, product string) (*http.Request, error) {
	port, err := Port(action.Port, container)
	if err != nil {
		return nil, err
	}
	if action.Host != "" {
		host = action.Host
	}
	scheme := strings.ToLower(string(action.Scheme))
	if scheme == "" {
		scheme = "http"
	}
	target, err := url.Parse(action.Path)
	if err != nil {
		target = &url.URL{Path: action.Path}
	}
	target.Scheme, target.Host = scheme, net.JoinHostPort(host, strconv.Itoa(port))
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, err
	}
	version := component.Version()
	request.Header.Set("User-Agent", fmt.Sprintf("%s/%s.%s", product, version.Major, version.Minor))
	request.Header.Set("Accept", "*/*")
	request.Header["Connection"] = []string{"close"}
	for i, header := range action.HTTPHeaders {
		if strings.EqualFold(header.Name, "Host") {
			request.Host = header.Value
			continue
		}
		setHeader(request.Header, action.HTTPHeaders[:i], header)
	}
	if values := request.Header.Values("Accept"); len(values) == 1 && values[0] == "" {
		request.Header.Del("Accept")
	}
	return request, nil
}

// setHeader replaces a default at its first mention and adds at the next ones.
func setHeader(headers http.Header, before []corev1.HTTPHeader, header corev1.HTTPHeader) {
	for _, earlier := range before {
		if strings.EqualFold(earlier.Name, header.Name) {
			headers.Add(header.Name, header.Value)
			return
		}
	}
	headers.Set(header.Name, header.Value)
}

func stayOnHost(request *http.Request, via []*http.Request) error {
	const limit = 10
	if request.URL.Hostname() != via[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(via) >= limit {
		return errors.New("stopped after 10 redirects")
	}
	return nil
}

// Dial checks that a TCP port answers.
func Dial(ctx context.Context, host string, port int) error {
	dialer := net.Dialer{Control: lingerControl}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return conn.Close()
}

// Sleep waits, or returns ctx's error.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
