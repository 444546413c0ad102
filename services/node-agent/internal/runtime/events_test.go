package runtime_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// dial starts the node with a socket and connects to it as any CRI client.
func dial(t *testing.T) (*node, *grpc.ClientConn) {
	t.Helper()
	n := &node{t: t, cfg: newConfig(t)}
	n.cfg.Socket = filepath.Join(filepath.Dir(n.cfg.Root), "cri.sock")
	n.start()
	t.Cleanup(n.destroy)
	if _, err := n.Images().Import(t.Context(), testArchive(t)); err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("unix://"+n.cfg.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return n, conn
}

func TestSocketServesBothServices(t *testing.T) {
	_, conn := dial(t)
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	version, err := runtimeapi.NewRuntimeServiceClient(conn).Version(ctx, &runtimeapi.VersionRequest{}, grpc.WaitForReady(true))
	if err != nil || version.GetRuntimeApiVersion() != "v1" {
		t.Fatalf("version %v, error %v", version, err)
	}
	state, err := runtimeapi.NewRuntimeServiceClient(conn).Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, condition := range state.GetStatus().GetConditions() {
		if !condition.GetStatus() {
			t.Errorf("condition %v", condition)
		}
	}
	images, err := runtimeapi.NewImageServiceClient(conn).ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil || len(images.GetImages()) != 1 || images.GetImages()[0].GetRepoTags()[0] != image {
		t.Errorf("images %v, error %v", images, err)
	}
	_, err = runtimeapi.NewRuntimeServiceClient(conn).ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: "nothing"})
	if status.Code(err) != codes.NotFound {
		t.Errorf("error for a container that is not there: %v", err)
	}
}

func TestEventsTellOfEveryChange(t *testing.T) {
	n, conn := dial(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	events, err := runtimeapi.NewRuntimeServiceClient(conn).GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := events.Header(); err != nil { // the stream counts from here on
		t.Fatal(err)
	}
	p := n.runPod("events")
	c := p.run([]string{"exit", "5"})
	c.exited()
	if _, err := n.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.id}); err != nil {
		t.Fatal(err)
	}
	want := []struct {
		id   string
		kind runtimeapi.ContainerEventType
	}{
		{p.id, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT},
		{p.id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT},
		{c.id, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT},
		{c.id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT},
		{c.id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT},
		{p.id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT},
		{c.id, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT},
		{p.id, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT},
	}
	for i, w := range want {
		event, err := events.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if event.GetContainerId() != w.id || event.GetContainerEventType() != w.kind {
			t.Errorf("event %d: %v of %s", i, event.GetContainerEventType(), event.GetContainerId())
		}
		if w.kind == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT && w.id == c.id {
			statuses := event.GetContainersStatuses()
			if len(statuses) != 1 || statuses[0].GetExitCode() != 5 || event.GetPodSandboxStatus().GetId() != p.id {
				t.Errorf("statuses in the event: %v", event)
			}
		}
	}
}
