package fairness_test

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

func awaitDangling(t *testing.T, s *testserver.Server, name string, want flowcontrolv1.ConditionStatus) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 10*time.Second, true, func(ctx context.Context) (bool, error) {
		schema, err := s.Client.FlowcontrolV1().FlowSchemas().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, condition := range schema.Status.Conditions {
			if condition.Type == flowcontrolv1.FlowSchemaConditionDangling {
				return condition.Status == want, nil
			}
		}
		return false, nil
	})
	if err != nil {
		t.Fatalf("Dangling is not %s: %v", want, err)
	}
}

func TestSchemaWithoutItsLevelDangles(t *testing.T) {
	s := testserver.Start(t)
	schema := users("nobody", "later", 500)
	if _, err := s.Client.FlowcontrolV1().FlowSchemas().Create(t.Context(), schema, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitDangling(t, s, schema.Name, flowcontrolv1.ConditionTrue)
	if _, err := s.Client.FlowcontrolV1().PriorityLevelConfigurations().Create(t.Context(), queued("later", 1, 2, 1, 10), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitDangling(t, s, schema.Name, flowcontrolv1.ConditionFalse)
}

// TestFloodIsRefusedAndAdministratorsAreServed takes a user's only seat by a
// request whose body does not end.
func TestFloodIsRefusedAndAdministratorsAreServed(t *testing.T) {
	s := testserver.Start(t, "--max-requests-inflight=1", "--max-mutating-requests-inflight=1", "--request-timeout=8s")
	client := s.HTTP(t)
	ask := func(user string, body io.Reader) (*http.Response, error) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.Config.Host+"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/json")
		if user != "" {
			request.Header.Set("Impersonate-User", user)
		}
		return client.Do(request)
	}
	halves := make([]*io.PipeWriter, 4)
	answered := make(chan struct{}, len(halves))
	for i := range halves {
		var reader *io.PipeReader
		reader, halves[i] = io.Pipe()
		go func() {
			if response, err := ask("jane", reader); err == nil {
				_ = response.Body.Close()
			}
			answered <- struct{}{}
		}()
		if _, err := halves[i].Write([]byte("{")); err != nil {
			t.Fatal(err)
		}
	}
	// The halves may still be on their way to their seats.
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 7*time.Second, true, func(context.Context) (bool, error) {
		refused, err := ask("jane", nil)
		if err != nil {
			return false, err
		}
		_ = refused.Body.Close()
		return refused.StatusCode == http.StatusTooManyRequests && refused.Header.Get("Retry-After") != "" &&
			refused.Header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID) != "", nil
	})
	if err != nil {
		t.Errorf("no request is refused: %v", err)
	}
	if _, err := s.Client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("an administrator is refused: %v", err)
	}
	for _, half := range halves {
		_ = half.Close()
	}
	for range halves {
		<-answered
	}
}
