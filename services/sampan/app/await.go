package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sampan-io/sampan/services/sampan/internal/cluster"
	"github.com/sampan-io/sampan/services/sampan/internal/supervisor"
)

const (
	probePause  = 20 * time.Millisecond
	tooMany     = 4 // restarts after which a service is given up
	linesOfLog  = 5
	logTailSize = 8 << 10
)

// await shows how the cluster comes up until every node is Ready.
func (c *command) await(ctx context.Context, layout cluster.Layout, config cluster.Config, began time.Time) error {
	client, err := adminClient(layout)
	if err != nil {
		return err
	}
	if err := awaitSupervisor(ctx, layout, config); err != nil {
		return err
	}
	if err := c.awaitServer(ctx, layout, client); err != nil {
		return err
	}
	c.printf("%6.2fs  API server ready\n", time.Since(began).Seconds())
	ready := map[string]bool{}
	for len(ready) < config.Nodes {
		if err := c.watchNodes(ctx, client, config, ready, began); err == nil {
			continue
		}
		if reason := trouble(layout); reason != nil {
			return reason
		}
		if ctx.Err() != nil {
			return fmt.Errorf("not all nodes became Ready in time (%d of %d); logs are in %s", len(ready), config.Nodes, layout.Dir+"/logs")
		}
	}
	return nil
}

func adminClient(layout cluster.Layout) (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", layout.AdminKubeconfig())
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", layout.AdminKubeconfig(), err)
	}
	config.QPS = -1
	// The default handler prints the server's warnings to this command's output.
	config.WarningHandler = rest.NoWarnings{}
	return kubernetes.NewForConfig(config)
}

// awaitSupervisor waits until the supervisor has told of every service.
func awaitSupervisor(ctx context.Context, layout cluster.Layout, config cluster.Config) error {
	for {
		all, err := supervisor.ReadStatus(layout)
		if err == nil && len(all) == len(layout.Processes(config)) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the supervisor does not run; its log is %s:\n%s", layout.Log("supervisor"), tail(layout.Log("supervisor")))
		case <-time.After(probePause):
		}
	}
}

func (c *command) awaitServer(ctx context.Context, layout cluster.Layout, client kubernetes.Interface) error {
	for {
		var code int
		err := client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).StatusCode(&code).Error()
		if err == nil && code == http.StatusOK {
			return nil
		}
		if reason := trouble(layout); reason != nil {
			return reason
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the API server did not become ready in time: %w; its log is %s", err, layout.Log("apiserver"))
		case <-time.After(probePause):
		}
	}
}

// watchNodes prints each node that becomes Ready, until all are or the watch
// ends with an error. It wakes every second for a look at the services.
func (c *command) watchNodes(ctx context.Context, client kubernetes.Interface, config cluster.Config, ready map[string]bool, began time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	watcher, err := client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		node, ok := event.Object.(*corev1.Node)
		if !ok || ready[node.Name] || !isReady(node) || !expected(node.Name, config) {
			continue
		}
		ready[node.Name] = true
		c.printf("%6.2fs  %s Ready\n", time.Since(began).Seconds(), node.Name)
		if len(ready) == config.Nodes {
			return nil
		}
	}
	return errors.New("watch ended")
}

func isReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func expected(name string, config cluster.Config) bool {
	for i := 1; i <= config.Nodes; i++ {
		if cluster.NodeName(i) == name {
			return true
		}
	}
	return false
}

// trouble is an error when a service keeps ending, with the end of its log.
func trouble(layout cluster.Layout) error {
	all, err := supervisor.ReadStatus(layout)
	if err != nil {
		return nil //nolint:nilerr // the supervisor has not written it yet
	}
	for _, status := range all {
		if status.Restarts >= tooMany {
			return fmt.Errorf("%s keeps ending (%s):\n%s", status.Name, status.Last, tail(layout.Log(status.Name)))
		}
	}
	return nil
}

// tail is the end of a log.
func tail(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = file.Close() }()
	if info, err := file.Stat(); err == nil && info.Size() > logTailSize {
		_, _ = file.Seek(-logTailSize, 2)
	}
	buffer := make([]byte, logTailSize)
	n, _ := file.Read(buffer)
	lines := strings.Split(strings.TrimSpace(string(buffer[:n])), "\n")
	return strings.Join(lines[max(0, len(lines)-linesOfLog):], "\n")
}
