// Command aggregated is a small API server of the kind that joins a cluster by an
// APIService: it serves boats.fleet.example.com/v1 from memory. It knows users by
// the headers of the front proxy that the cluster names in
// kube-system/extension-apiserver-authentication.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	var o options
	flag.StringVar(&o.listen, "listen", "127.0.0.1:0", "address to serve at")
	flag.StringVar(&o.certFile, "tls-cert-file", "", "serving certificate (PEM)")
	flag.StringVar(&o.keyFile, "tls-private-key-file", "", "key of --tls-cert-file")
	flag.StringVar(&o.kubeconfig, "kubeconfig", "", "how to reach the cluster")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, func(address string) { fmt.Println("serving at", address) }); err != nil {
		fmt.Fprintln(os.Stderr, "aggregated:", err)
		os.Exit(1)
	}
}

type options struct {
	listen            string
	certFile, keyFile string
	kubeconfig        string
}

// run serves until ctx ends; serving is told the address.
func run(ctx context.Context, o options, serving func(address string)) error {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	proxy, err := readFrontProxy(ctx, client)
	if err != nil {
		return err
	}
	certificate, err := tls.LoadX509KeyPair(o.certFile, o.keyFile)
	if err != nil {
		return fmt.Errorf("--tls-cert-file: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: proxy.authenticate(newFleet()), ReadHeaderTimeout: 10 * time.Second,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12},
	}
	stopped := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stopped()
	serving(listener.Addr().String())
	if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
