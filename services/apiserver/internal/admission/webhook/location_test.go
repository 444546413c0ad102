package webhook

import (
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
)

func TestPathsOfWebhooksAreClean(t *testing.T) {
	service := func(path string) *admissionregistrationv1.WebhookClientConfig {
		return &admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Namespace: "a", Name: "b", Path: &path}}
	}
	for _, c := range []struct {
		config *admissionregistrationv1.WebhookClientConfig
		want   string
	}{
		{&admissionregistrationv1.WebhookClientConfig{URL: new("https://127.0.0.1:9443//failing")}, "https://127.0.0.1:9443/failing"},
		{&admissionregistrationv1.WebhookClientConfig{URL: new("https://127.0.0.1:9443")}, "https://127.0.0.1:9443/"},
		{service("//x/../failing"), "https://b.a.svc:443/failing"},
	} {
		if got, _, err := location(c.config); err != nil || got != c.want {
			t.Errorf("got %s, %v; want %s", got, err, c.want)
		}
	}
}
