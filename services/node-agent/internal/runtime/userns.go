package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/namespaces"
	"github.com/sampan-io/sampan/services/node-agent/internal/overlay"
	"github.com/sampan-io/sampan/services/node-agent/internal/runc"
)

// ownUsers tells whether the sandbox has a user namespace of its own.
func ownUsers(config *runtimeapi.PodSandboxConfig) bool {
	user := sandboxNamespaces(config).GetUsernsOptions()
	return user != nil && user.GetMode() == runtimeapi.NamespaceMode_POD
}

func (s *Server) validateUsers(config *runtimeapi.PodSandboxConfig, handler string) error {
	user := sandboxNamespaces(config).GetUsernsOptions()
	if user == nil || user.GetMode() == runtimeapi.NamespaceMode_NODE {
		if len(user.GetUids()) > 0 || len(user.GetGids()) > 0 {
			return fmt.Errorf("%w: ids are mapped only in a user namespace of the pod's own", errInvalid)
		}
		return nil
	}
	if user.GetMode() != runtimeapi.NamespaceMode_POD {
		return fmt.Errorf("%w: a user namespace belongs to a pod or to the node", errInvalid)
	}
	if !s.features(handler).UserNamespaces {
		return fmt.Errorf("%w: user namespaces are not supported: %s", errInvalid, s.noUserNamespaces(handler))
	}
	if hostNetwork(config) || hostIPC(config) {
		return fmt.Errorf("%w: a pod with a user namespace of its own cannot share the node's network or IPC", errInvalid)
	}
	_, err := mappingOf(user)
	return err
}

// mappingOf refuses what other runtimes refuse too: more ranges than one, and a root
// user that is nobody.
func mappingOf(user *runtimeapi.UserNamespace) (namespaces.Mapping, error) {
	uids, err := idMap("uid", user.GetUids())
	if err != nil {
		return namespaces.Mapping{}, err
	}
	gids, err := idMap("gid", user.GetGids())
	if err != nil {
		return namespaces.Mapping{}, err
	}
	return namespaces.Mapping{UIDs: uids, GIDs: gids}, nil
}

func idMap(kind string, list []*runtimeapi.IDMapping) (namespaces.IDMap, error) {
	if len(list) != 1 {
		return namespaces.IDMap{}, fmt.Errorf("%w: %d %s mappings were given; exactly one is supported", errInvalid, len(list), kind)
	}
	m := namespaces.IDMap{Container: list[0].GetContainerId(), Host: list[0].GetHostId(), Length: list[0].GetLength()}
	switch {
	case m.Container != 0:
		return m, fmt.Errorf("%w: %s 0 of the container is not mapped", errInvalid, kind)
	case m.Length == 0 || uint64(m.Host)+uint64(m.Length) > math.MaxUint32:
		return m, fmt.Errorf("%w: the %s mapping has %d ids from %d on", errInvalid, kind, m.Length, m.Host)
	}
	return m, nil
}

// hostRoot is who root of the sandbox is on the host.
func hostRoot(config *runtimeapi.PodSandboxConfig) (uid, gid int) {
	if !ownUsers(config) {
		return 0, 0
	}
	user := sandboxNamespaces(config).GetUsernsOptions()
	return int(user.GetUids()[0].GetHostId()), int(user.GetGids()[0].GetHostId())
}

// giveToRoot makes files belong to the sandbox's root.
func giveToRoot(config *runtimeapi.PodSandboxConfig, paths ...string) error {
	uid, gid := hostRoot(config)
	if uid == 0 && gid == 0 {
		return nil
	}
	for _, path := range paths {
		if err := os.Lchown(path, uid, gid); err != nil {
			return fmt.Errorf("giving a file to the pod's root: %w", err)
		}
	}
	return nil
}

// userNamespace is the path of the sandbox's own one, or empty.
func (s *Server) userNamespace(sb *sandboxRecord) string {
	if !ownUsers(sb.Config) {
		return ""
	}
	return s.namespacePath(sb.ID, namespaces.User)
}

// checkUsers finds out whether pods can have user namespaces here: layers must be on a
// file system that can be mounted with other owners, and so must the runtime directory.
func (s *Server) checkUsers() error {
	if s.cfg.Pause == "" {
		return errors.New("no pause program is configured")
	}
	dir := filepath.Join(s.cfg.Run, "check")
	ids := namespaces.IDMap{Host: 1 << 16, Length: 1 << 16}
	err := namespaces.CreateOwned(dir, nil, namespaces.Mapping{UIDs: ids, GIDs: ids}, s.cfg.Pause, func() error {
		return overlay.Mappable(s.cfg.imageRoot(), filepath.Join(dir, string(namespaces.User)))
	})
	return errors.Join(err, namespaces.Unpin(dir))
}

// handlerFeatures asks an OCI runtime what it can do. One that does not answer, as
// older ones do not, can do nothing special.
func (s *Server) handlerFeatures(ctx context.Context, oci runc.Runc) *runtimeapi.RuntimeHandlerFeatures {
	out := &runtimeapi.RuntimeHandlerFeatures{}
	data, err := oci.Features(ctx)
	if err != nil {
		return out
	}
	var features struct {
		MountOptions []string `json:"mountOptions"`
		Linux        struct {
			Namespaces      []string `json:"namespaces"`
			MountExtensions struct {
				IDMap struct {
					Enabled bool `json:"enabled"`
				} `json:"idmap"`
			} `json:"mountExtensions"`
		} `json:"linux"`
	}
	if json.Unmarshal(data, &features) != nil {
		return out
	}
	out.RecursiveReadOnlyMounts = slices.Contains(features.MountOptions, "rro")
	out.UserNamespaces = s.usersErr == nil && slices.Contains(features.Linux.Namespaces, "user") && features.Linux.MountExtensions.IDMap.Enabled
	return out
}

// features of a handler, as found at the start.
func (s *Server) features(handler string) *runtimeapi.RuntimeHandlerFeatures {
	if handler == "" {
		handler = defaultHandler
	}
	if features := s.handlers[handler]; features != nil {
		return features
	}
	return &runtimeapi.RuntimeHandlerFeatures{}
}

func (s *Server) noUserNamespaces(handler string) string {
	if s.usersErr != nil {
		return s.usersErr.Error()
	}
	return fmt.Sprintf("the OCI runtime %q cannot mount with other owners", handler)
}

func (s *Server) detectFeatures(ctx context.Context) {
	s.usersErr = s.checkUsers()
	s.handlers = map[string]*runtimeapi.RuntimeHandlerFeatures{defaultHandler: s.handlerFeatures(ctx, s.runc)}
	for name := range s.cfg.Handlers {
		s.handlers[name] = s.handlerFeatures(ctx, s.runcOf(name))
	}
}
