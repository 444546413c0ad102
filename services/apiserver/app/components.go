package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/core"
)

// componentTimeout bounds asking one component for its health.
const componentTimeout = 5 * time.Second

// maxHealthAnswer bounds what is read of an answer, in bytes.
const maxHealthAnswer = 4096

// components are the parts of a control plane on this host, and the store.
func components(state registry.Reader) []core.Component {
	client := &http.Client{Timeout: componentTimeout, Transport: &http.Transport{
		// Components have certificates of their own, and say nothing that is secret.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true,
	}}
	return []core.Component{
		{Name: "scheduler", Check: func(ctx context.Context) (string, error) {
			return askHealth(ctx, client, "https://127.0.0.1:10259/healthz")
		}},
		{Name: "controller-manager", Check: func(ctx context.Context) (string, error) {
			return askHealth(ctx, client, "https://127.0.0.1:10257/healthz")
		}},
		{Name: "etcd-0", Check: func(ctx context.Context) (string, error) {
			_, err := state.Get(ctx, corev1.Resource("namespaces"), "", metav1.NamespaceDefault)
			if err != nil && !apierrors.IsNotFound(err) {
				return "", err
			}
			return "ok", nil
		}},
	}
}

func askHealth(ctx context.Context, client *http.Client, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	answer, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxHealthAnswer))
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", url, err)
	}
	message := strings.TrimSpace(string(body))
	if answer.StatusCode != http.StatusOK {
		return message, errors.New("unhealthy http status code received: " + answer.Status)
	}
	return message, nil
}
