// Command bench measures an API server of any kind, given by a kubeconfig, so
// that a peer is measured by the same program. Each benchmark names its load,
// warms up, and reports p50 and p99.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// benchmark is one measurement. Adding one is a file and a line in benchmarks.
type benchmark struct {
	name string
	run  func(ctx context.Context, b *bench) error
}

var benchmarks = []benchmark{
	{"create", benchCreate},
	{"patch", benchPatch},
	{"list", benchList},
	{"watch", benchWatch},
	{"memory", benchMemory},
	{"custom", benchCustom},
	{"pods", benchPods},
	{"bursts", benchBursts},
	{"admission", benchAdmission},
}

// bench is what a benchmark works with.
type bench struct {
	config    *rest.Config
	client    kubernetes.Interface // JSON
	namespace string
	scale     int // divides sizes, for a quick look
}

func main() {
	kubeconfig := flag.String("kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig of the server to measure")
	only := flag.String("only", "", "benchmarks to run, separated by commas; default all")
	scale := flag.Int("scale", 1, "divide the sizes by this")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *kubeconfig, *only, *scale); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, kubeconfig, only string, scale int) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("reading kubeconfig: %w", err)
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	for _, chosen := range strings.FieldsFunc(only, func(r rune) bool { return r == ',' }) {
		if !slices.ContainsFunc(benchmarks, func(b benchmark) bool { return b.name == chosen }) {
			return fmt.Errorf("there is no benchmark %q", chosen)
		}
	}
	for _, benchmark := range benchmarks {
		if only != "" && !slices.Contains(strings.Split(only, ","), benchmark.name) {
			continue
		}
		if err := inNamespace(ctx, client, func(namespace string) error {
			return benchmark.run(ctx, &bench{config: config, client: client, namespace: namespace, scale: scale})
		}); err != nil {
			return fmt.Errorf("%s: %w", benchmark.name, err)
		}
	}
	return nil
}

func inNamespace(ctx context.Context, client kubernetes.Interface, work func(namespace string) error) error {
	namespace, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "bench-"}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("making namespace: %w", err)
	}
	workErr := work(namespace.Name)
	clean := context.WithoutCancel(ctx)
	_ = client.CoreV1().ConfigMaps(namespace.Name).DeleteCollection(clean, metav1.DeleteOptions{}, metav1.ListOptions{})
	if err := client.CoreV1().Namespaces().Delete(clean, namespace.Name, metav1.DeleteOptions{}); err != nil {
		fmt.Fprintln(os.Stderr, "bench: deleting namespace:", err)
	}
	return workErr
}
