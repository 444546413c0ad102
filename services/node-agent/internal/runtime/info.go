package runtime

import (
	"context"
	"encoding/json"
	"maps"
	"net/netip"
	"slices"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Version tells the runtime's name and version.
func (s *Server) Version(ctx context.Context, req *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	version, err := s.runc.Version(ctx)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "sampan", RuntimeVersion: version, RuntimeApiVersion: "v1"}, nil
}

// Status tells whether containers and pod networks can be made.
func (s *Server) Status(_ context.Context, req *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	network := &runtimeapi.RuntimeCondition{Type: runtimeapi.NetworkReady, Status: true}
	if err := s.network.Status(); err != nil {
		network.Status, network.Reason, network.Message = false, "NetworkPluginNotReady", err.Error()
	}
	handlers := []*runtimeapi.RuntimeHandler{{Features: s.features("")}}
	for _, name := range slices.Sorted(maps.Keys(s.handlers)) {
		handlers = append(handlers, &runtimeapi.RuntimeHandler{Name: name, Features: s.features(name)})
	}
	resp := &runtimeapi.StatusResponse{
		Status:          &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{{Type: runtimeapi.RuntimeReady, Status: true}, network}},
		RuntimeHandlers: handlers,
		Features:        &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true},
	}
	if req.GetVerbose() {
		data, err := json.Marshal(map[string]any{"root": s.cfg.Root, "run": s.cfg.Run, "stateDir": s.cfg.imageRoot(), "runc": s.cfg.Runc, "conmon": s.cfg.Conmon, "cgroupParent": s.cfg.CgroupParent})
		if err != nil {
			return nil, err
		}
		resp.Info = map[string]string{"config": string(data)}
	}
	return resp, nil
}

// UpdateRuntimeConfig takes the pod CIDR of clients that hand it to the runtime. Here
// the CNI configuration has it; a malformed one is refused.
func (s *Server) UpdateRuntimeConfig(_ context.Context, req *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	if cidr := req.GetRuntimeConfig().GetNetworkConfig().GetPodCidr(); cidr != "" {
		if _, err := netip.ParsePrefix(cidr); err != nil {
			return nil, grpcstatus.Errorf(codes.InvalidArgument, "pod CIDR %q: %v", cidr, err)
		}
	}
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}

// RuntimeConfig tells which cgroup driver the kubelet must use.
func (s *Server) RuntimeConfig(context.Context, *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS}}, nil
}

// CheckpointContainer is not supported.
func (s *Server) CheckpointContainer(context.Context, *runtimeapi.CheckpointContainerRequest) (*runtimeapi.CheckpointContainerResponse, error) {
	return nil, grpcstatus.Error(codes.Unimplemented, "checkpointing containers is not supported by this runtime")
}
