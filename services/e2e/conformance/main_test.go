// Package conformance shows the behaviours of Kubernetes' conformance list, each
// under its listed name, against a two-node cluster.
package conformance

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/sampan-io/sampan/services/internal/testenv"
)

var (
	cluster     *testenv.Cluster
	client      kubernetes.Interface
	dynamics    dynamic.Interface
	definitions apiextensions.Interface

	// passed counts the behaviours that were shown.
	passed atomic.Int32
)

// historyBytes bounds the superseded values that the cluster keeps.
const historyBytes = 64 << 20

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	// Little enough that a test can write so much that the rest is compacted.
	if err := os.Setenv("SAMPAN_APISERVER_HISTORY_MAX_BYTES", fmt.Sprint(historyBytes)); err != nil {
		fmt.Println(err)
		return 1
	}
	cluster, err = testenv.Start(2)
	if errors.Is(err, testenv.ErrUnavailable) {
		fmt.Println("SKIP:", err)
		return 0
	}
	if err == nil {
		err = connect()
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	code := m.Run()
	if code != 0 {
		fmt.Println(cluster.Logs(40))
	}
	if err := cluster.Purge(); err != nil {
		fmt.Println(err)
		return 1
	}
	if listed, err := readNames(); err == nil {
		fmt.Printf("%d of %d\n", passed.Load(), len(listed))
	}
	return code
}

func connect() error {
	client = cluster.Client
	var err error
	if dynamics, err = dynamic.NewForConfig(cluster.Config); err != nil {
		return err
	}
	definitions, err = apiextensions.NewForConfig(cluster.Config)
	return err
}
