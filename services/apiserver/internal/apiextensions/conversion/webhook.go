package conversion

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/google/uuid"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/apiserver/internal/serviceresolver"
)

const (
	// callTimeout bounds one conversion of any number of objects, as upstream does.
	callTimeout = 30 * time.Second
	// maxAnswer bounds a webhook's answer in bytes: more than the largest object
	// that can be stored.
	maxAnswer = 6 << 20
	// maxFailureText bounds what is quoted of an answer that is no success.
	maxFailureText = 1 << 10
)

// Transports make the HTTP transport for a webhook.
type Transports interface {
	Transport(config *tls.Config, http2 bool) *http.Transport
}

// Clients reaches webhooks.
type Clients struct {
	transports Transports
}

// NewClients makes clients whose connections transports opens.
func NewClients(transports Transports) *Clients { return &Clients{transports: transports} }

// webhook is a program that converts the objects of one definition.
type webhook struct {
	url     string
	version schema.GroupVersion // of ConversionReview
	client  *http.Client
}

func newWebhook(definition string, config *apiextensionsv1.WebhookConversion, clients *Clients) (*webhook, error) {
	if config == nil || config.ClientConfig == nil {
		return nil, fmt.Errorf("%s has no webhook for its conversion", definition)
	}
	w := &webhook{}
	var err error
	if w.version, err = reviewVersion(config.ConversionReviewVersions); err != nil {
		return nil, err
	}
	tlsConfig := &tls.Config{MinVersion: tls.VersionTLS12}
	if bundle := config.ClientConfig.CABundle; len(bundle) > 0 {
		tlsConfig.RootCAs = x509.NewCertPool()
		if !tlsConfig.RootCAs.AppendCertsFromPEM(bundle) {
			return nil, errors.New("the caBundle of its webhook has no certificate")
		}
	}
	switch {
	case config.ClientConfig.Service != nil:
		w.url = serviceURL(config.ClientConfig.Service)
		tlsConfig.ServerName = serviceresolver.ServerName(config.ClientConfig.Service.Namespace, config.ClientConfig.Service.Name)
	case config.ClientConfig.URL != nil:
		w.url = *config.ClientConfig.URL
	default:
		return nil, fmt.Errorf("the webhook of %s has neither a service nor a URL", definition)
	}
	w.client = &http.Client{
		Transport: clients.transports.Transport(tlsConfig, true), Timeout: callTimeout,
		// A webhook answers itself, or not at all.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return w, nil
}

const defaultPort = 443

func serviceURL(service *apiextensionsv1.ServiceReference) string {
	port, path := int32(defaultPort), ""
	if service.Port != nil {
		port = *service.Port
	}
	if service.Path != nil {
		path = *service.Path
	}
	return serviceresolver.URL(service.Namespace, service.Name, port, path).String()
}

// maxReview bounds the objects of one review in bytes, unless it has one alone.
const maxReview = 1 << 20

// convert asks for objects in a version, which come back in their order. What comes
// back is to be checked.
func (w *webhook) convert(ctx context.Context, objects []*unstructured.Unstructured, to schema.GroupVersion) ([]*unstructured.Unstructured, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var converted []*unstructured.Unstructured
	var review [][]byte
	size := 0
	ask := func() error {
		answered, err := w.ask(ctx, review, to)
		converted, review, size = append(converted, answered...), nil, 0
		return err
	}
	for _, obj := range objects {
		data, err := obj.MarshalJSON()
		if err != nil {
			return nil, err
		}
		if len(review) > 0 && size+len(data) > maxReview {
			if err := ask(); err != nil {
				return nil, err
			}
		}
		review, size = append(review, data), size+len(data)
	}
	if err := ask(); err != nil {
		return nil, err
	}
	return converted, nil
}

// ask sends one review.
func (w *webhook) ask(ctx context.Context, objects [][]byte, to schema.GroupVersion) ([]*unstructured.Unstructured, error) {
	uid := types.UID(uuid.NewString())
	body, err := newReview(w.version, uid, objects, to)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	answer, err := w.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, maxFailureText))
		return nil, fmt.Errorf("it answered %s: %q", answer.Status, text)
	}
	data, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("reading its answer: %w", err)
	}
	if len(data) > maxAnswer {
		return nil, fmt.Errorf("its answer is larger than %d bytes", maxAnswer)
	}
	return parse(data, w.version, uid, len(objects))
}
