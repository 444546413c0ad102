// Command bus-consumer prints every change of the cluster's Services as the
// watch bus brings it, and how often the API server had to fill a gap. It shows
// all that a program needs to follow a resource on the bus: a token, the API
// server's ListerWatcher, and an ordinary client-go informer.
package main

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sampan-io/sampan/proto/bus"
)

type options struct {
	kubeconfig, url    string
	namespace, account string
	loseEvery          int
}

func main() {
	var o options
	flag.StringVar(&o.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig of someone who may ask for tokens of the account, and list and watch Services")
	flag.StringVar(&o.url, "bus", "tls://10.89.0.1:4222", "URL of the bus")
	flag.StringVar(&o.namespace, "account-namespace", "default", "namespace of the service account")
	flag.StringVar(&o.account, "account", "bus-consumer", "service account that listens; it needs the right to watch Services")
	flag.IntVar(&o.loseEvery, "lose-every", 0, "lose every n-th message on purpose, to see gaps repaired")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := o.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bus-consumer:", err)
		os.Exit(1)
	}
}

func (o *options) run(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return fmt.Errorf("reading kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making API client: %w", err)
	}
	authority, err := rest.TLSConfigFor(config)
	if err != nil {
		return fmt.Errorf("reading the cluster's authority: %w", err)
	}
	conn, err := bus.Connect(bus.Options{
		URL: o.url, TLS: &tls.Config{RootCAs: authority.RootCAs, MinVersion: tls.VersionTLS12},
		Token: o.token(ctx, client), Received: o.lose(),
	})
	if err != nil {
		return err
	}
	defer conn.Close()

	source := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "services", metav1.NamespaceAll, fields.Everything())
	services := conn.ListerWatcher(schema.GroupResource{Resource: "services"}, metav1.NamespaceAll, source)
	informer := cache.NewSharedInformer(services, &corev1.Service{}, 0)
	show := func(what string) func(any) {
		return func(obj any) {
			if service, ok := obj.(*corev1.Service); ok {
				stats := conn.Stats()
				fmt.Printf("%s %-8s %s/%s %s revision=%s (bus events %d, repairs %d)\n", time.Now().Format("15:04:05.000"),
					what, service.Namespace, service.Name, service.Spec.ClusterIP, service.ResourceVersion, stats.Events, stats.Repairs)
			}
		}
	}
	added, deleted := show("ADDED"), show("DELETED")
	modified := show("MODIFIED")
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: added, UpdateFunc: func(_, obj any) { modified(obj) }, DeleteFunc: deleted,
	}); err != nil {
		return fmt.Errorf("adding handler: %w", err)
	}
	informer.Run(ctx.Done())
	return nil
}

// token asks for a new token at each connect.
func (o *options) token(ctx context.Context, client kubernetes.Interface) func() (string, error) {
	return func() (string, error) {
		answer, err := client.CoreV1().ServiceAccounts(o.namespace).CreateToken(ctx, o.account, &authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{Audiences: []string{bus.TokenAudience}},
		}, metav1.CreateOptions{})
		if err != nil {
			return "", fmt.Errorf("asking for a token of %s/%s: %w", o.namespace, o.account, err)
		}
		return answer.Status.Token, nil
	}
}

func (o *options) lose() func(string) bool {
	if o.loseEvery <= 0 {
		return nil
	}
	n := 0 // there is one listener, so one caller
	return func(string) bool {
		n++
		return n%o.loseEvery != 0
	}
}
