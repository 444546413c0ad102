// Command operator is a small operator of the usual kind, made with
// controller-runtime: a custom resource, a reconciler with a finalizer and a status,
// and webhooks that default and check.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

func main() {
	var o options
	kubeconfig := flag.String("kubeconfig", "", "how to reach the cluster")
	flag.StringVar(&o.host, "webhook-host", "127.0.0.1", "address of the webhooks")
	flag.IntVar(&o.port, "webhook-port", 9443, "port of the webhooks")
	flag.StringVar(&o.certDir, "webhook-cert-dir", "", "folder with tls.crt and tls.key of the webhooks")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if o.config, err = clientcmd.BuildConfigFromFlags("", *kubeconfig); err == nil {
		err = run(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "operator:", err)
		os.Exit(1)
	}
}

type options struct {
	config  *rest.Config
	host    string
	port    int
	certDir string
}

// run works until ctx ends.
func run(ctx context.Context, o options) error {
	ctrl.SetLogger(klog.Background())
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return err
	}
	addToScheme(scheme)
	mgr, err := ctrl.NewManager(o.config, ctrl.Options{
		Scheme: scheme, Metrics: server.Options{BindAddress: "0"},
		LeaderElection: true, LeaderElectionID: "operator.ships.example.com", LeaderElectionNamespace: "default", LeaderElectionReleaseOnCancel: true,
		WebhookServer: webhook.NewServer(webhook.Options{Host: o.host, Port: o.port, CertDir: o.certDir}),
		Controller:    config.Controller{SkipNameValidation: new(true)}, // a test runs several in one process
	})
	if err != nil {
		return err
	}
	if err := (&reconciler{mgr.GetClient()}).setUp(mgr); err != nil {
		return err
	}
	if err := (webhooks{}).setUp(mgr); err != nil {
		return err
	}
	return mgr.Start(ctx)
}
