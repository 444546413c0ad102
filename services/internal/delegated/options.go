package delegated

import (
	"errors"
	"log/slog"

	"k8s.io/client-go/kubernetes"

	"github.com/sampan-io/sampan/services/internal/client"
)

// Gate is the gate that the flags ask for. Without a kubeconfig of their own,
// reviews are made through usual; component names the user agent. Two different
// kubeconfigs are refused: both reviews go to one API server.
func (o *Options) Gate(component string, usual kubernetes.Interface, log *slog.Logger) (*Gate, error) {
	if o.AuthenticationKubeconfig != "" && o.AuthorizationKubeconfig != "" && o.AuthenticationKubeconfig != o.AuthorizationKubeconfig {
		return nil, errors.New("--authentication-kubeconfig and --authorization-kubeconfig must name the same file")
	}
	reviewer := usual
	if file := o.AuthenticationKubeconfig + o.AuthorizationKubeconfig; file != "" {
		if o.AuthenticationKubeconfig != "" {
			file = o.AuthenticationKubeconfig
		}
		var err error
		if reviewer, _, err = (&client.Options{Kubeconfig: file}).Clientset(component); err != nil {
			return nil, err
		}
	}
	return New(Config{Client: reviewer, ClientCAFile: o.ClientCAFile, Open: o.Open, Log: log})
}
