package csi

import (
	"context"
	"fmt"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
)

// driver is one that has registered.
type driver struct {
	csipb.NodeClient
	name         string
	conn         *grpc.ClientConn
	capabilities map[csipb.NodeServiceCapability_RPC_Type]bool
}

func (d *driver) can(what csipb.NodeServiceCapability_RPC_Type) bool { return d.capabilities[what] }

// Register takes a driver that serves the CSI node service at endpoint, and makes
// it known in this node's CSINode. It implements pluginregistration.Handler.
func (s *Store) Register(ctx context.Context, name, endpoint string, versions []string) error {
	if !supported(versions) {
		return fmt.Errorf("driver %s supports versions %s of CSI; this node needs 1.x", name, strings.Join(versions, ", "))
	}
	conn, err := grpc.NewClient("unix://"+endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"), grpc.WithUnaryInterceptor(s.measure.interceptor(name)))
	if err != nil {
		return fmt.Errorf("connecting to driver %s: %w", name, err)
	}
	d := &driver{NodeClient: csipb.NewNodeClient(conn), name: name, conn: conn}
	if err := s.introduce(ctx, d); err != nil {
		_ = conn.Close()
		return err
	}
	s.mu.Lock()
	old := s.drivers[name]
	s.drivers[name] = d
	s.mu.Unlock()
	if old != nil {
		_ = old.conn.Close()
	}
	s.cfg.Log.InfoContext(ctx, "CSI driver registered", "driver", name)
	return nil
}

// introduce asks a driver what it can do and what it calls this node.
func (s *Store) introduce(ctx context.Context, d *driver) error {
	answer, err := d.NodeGetCapabilities(ctx, &csipb.NodeGetCapabilitiesRequest{})
	if err != nil {
		return fmt.Errorf("asking driver %s what it can do: %w", d.name, err)
	}
	d.capabilities = map[csipb.NodeServiceCapability_RPC_Type]bool{}
	for _, capability := range answer.GetCapabilities() {
		d.capabilities[capability.GetRpc().GetType()] = true
	}
	info, err := d.NodeGetInfo(ctx, &csipb.NodeGetInfoRequest{})
	if err != nil {
		return fmt.Errorf("asking driver %s of this node: %w", d.name, err)
	}
	if info.GetNodeId() == "" {
		return fmt.Errorf("driver %s gives this node no id", d.name)
	}
	return s.publish(ctx, d.name, info)
}

func supported(versions []string) bool {
	for _, text := range versions {
		if parsed, err := version.ParseGeneric(text); err == nil && parsed.Major() == 1 {
			return true
		}
	}
	return false
}

// Deregister forgets a driver. Its volumes stay as they are until it is back.
func (s *Store) Deregister(ctx context.Context, name string) {
	s.mu.Lock()
	d := s.drivers[name]
	delete(s.drivers, name)
	s.mu.Unlock()
	if d != nil {
		_ = d.conn.Close()
	}
	if err := s.withdraw(ctx, name); err != nil {
		s.cfg.Log.WarnContext(ctx, "Taking a CSI driver out of the node's CSINode", "driver", name, "err", err)
	}
	s.cfg.Log.InfoContext(ctx, "CSI driver deregistered", "driver", name)
}

func (s *Store) driver(name string) (*driver, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := s.drivers[name]; d != nil {
		return d, nil
	}
	return nil, fmt.Errorf("driver name %s not found in the list of registered CSI drivers", name)
}

// spec is what the cluster says of a driver; what it does not say has the defaults
// of a driver that has no CSIDriver.
func (s *Store) spec(ctx context.Context, name string) (*storagev1.CSIDriverSpec, error) {
	object, err := s.cfg.Client.StorageV1().CSIDrivers().Get(ctx, name, metav1.GetOptions{})
	spec := &storagev1.CSIDriverSpec{}
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return nil, fmt.Errorf("reading CSIDriver %s: %w", name, err)
	default:
		spec = object.Spec.DeepCopy()
	}
	if spec.AttachRequired == nil {
		spec.AttachRequired = new(true)
	}
	if spec.FSGroupPolicy == nil {
		spec.FSGroupPolicy = new(storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
	}
	if len(spec.VolumeLifecycleModes) == 0 {
		spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	}
	return spec, nil
}

func isTrue(value *bool) bool { return value != nil && *value }
