package app

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"strconv"

	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"

	"github.com/sampan-io/sampan/services/internal/component"
	"github.com/sampan-io/sampan/services/node-agent/internal/identity"
)

func (o *Options) addIdentityFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.certDir, "cert-dir", o.certDir, "folder of the certificates that the node asks for; pki below --root-dir by default")
	fs.StringVar(&o.bootstrap, "bootstrap-kubeconfig", o.bootstrap, "kubeconfig that may only ask for a certificate; used when --kubeconfig is not there, which is then written")
	fs.BoolVar(&o.rotateClient, "rotate-certificates", o.rotateClient, "renew the client certificate by certificate signing requests")
	fs.BoolVar(&o.rotateServing, "rotate-server-certificates", o.rotateServing, "get and renew the certificate of the agent's API by certificate signing requests")
}

// identify makes the client, with a certificate that is renewed if it is to be.
func (a *agent) identify(ctx context.Context) error {
	certificates := identity.Config{Node: a.hostname, Dir: a.certDir, Kubeconfig: a.client.Kubeconfig, Bootstrap: a.bootstrap, Log: a.log}
	var err error
	if a.rotateClient || a.bootstrap != "" {
		if a.ownClient, err = identity.NewClient(ctx, certificates); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return &component.UsageError{Err: err}
		}
	}
	config, err := a.client.Config("kubelet")
	if err != nil {
		return err
	}
	if a.ownClient != nil {
		a.ownClient.Use(config)
	}
	if a.api, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	if a.rotateServing {
		a.ownServing, err = identity.NewServing(certificates, a.api, a.parsed.nodeIPs)
	}
	return err
}

// serve answers the agent's API.
func (a *agent) serve(ctx context.Context, handler http.Handler) error {
	if a.ownServing == nil || a.port == 0 {
		return a.serving().Serve(ctx, handler)
	}
	listener, err := component.Listen(ctx, net.JoinHostPort(a.address, strconv.Itoa(a.port)))
	if err != nil {
		return err
	}
	return component.Serve(ctx, listener, handler, &tls.Config{
		MinVersion: tls.VersionTLS12, GetCertificate: a.ownServing.Certificate, ClientAuth: tls.RequestClientCert,
	})
}
