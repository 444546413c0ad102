package robustness

import (
	"os"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sampan-io/sampan/services/internal/testenv"
)

// cycles is how often each fault is made: SAMPAN_CYCLES, 5 by default.
func cycles(t *testing.T) int {
	t.Helper()
	text := os.Getenv("SAMPAN_CYCLES")
	if text == "" {
		return 5
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("SAMPAN_CYCLES is %q, not a positive number", text)
	}
	return n
}

func requireBin(t *testing.T) {
	t.Helper()
	if _, err := testenv.Bin(); err != nil {
		t.Skip(err)
	}
}

func mustNamespace(t *testing.T, client kubernetes.Interface) string {
	t.Helper()
	namespace, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "robust-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return namespace.Name
}
