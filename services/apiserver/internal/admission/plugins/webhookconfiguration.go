package plugins

import (
	"fmt"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission/webhook"
)

// readWebhooks reads a WebhookAdmissionConfiguration, which names the kubeconfig
// by whose users the server is known to webhooks.
func readWebhooks(into func(c *Configurations) **webhook.Credentials) func(c *Configurations, data []byte, dir string) error {
	return func(c *Configurations, data []byte, dir string) error {
		var file struct {
			header
			KubeConfigFile string `json:"kubeConfigFile"`
		}
		if err := decodeStrictly(data, &file); err != nil {
			return err
		}
		if err := file.check("WebhookAdmissionConfiguration", "apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1alpha1"); err != nil {
			return err
		}
		if file.KubeConfigFile == "" {
			return nil
		}
		credentials, err := webhook.LoadCredentials(relativeTo(file.KubeConfigFile, dir))
		if err != nil {
			return fmt.Errorf("kubeConfigFile: %w", err)
		}
		*into(c) = credentials
		return nil
	}
}
