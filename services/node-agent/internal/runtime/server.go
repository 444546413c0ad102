// Package runtime is a container runtime: a CRI v1 server over runc.
//
// A sandbox is a set of pinned namespaces and a few files; a container is a runc
// container with a monitor (conmon) of its own. Neither needs this program to
// live: all is written down in records, and a new Server over the same
// directories goes on where the last one stopped, wherever that was.
//
// Locks: an operation that changes a sandbox holds the sandbox's lock, one that
// changes a container the container's, in this order. Reading takes no lock, and
// no operation on one object waits for another's.
package runtime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"

	"github.com/sampan-io/sampan/services/node-agent/internal/cgroups"
	"github.com/sampan-io/sampan/services/node-agent/internal/images"
	"github.com/sampan-io/sampan/services/node-agent/internal/monitor"
	"github.com/sampan-io/sampan/services/node-agent/internal/network"
	"github.com/sampan-io/sampan/services/node-agent/internal/ocispec"
	"github.com/sampan-io/sampan/services/node-agent/internal/records"
	"github.com/sampan-io/sampan/services/node-agent/internal/runc"
)

// Server is the runtime. It implements RuntimeServiceServer and ImageServiceServer,
// also for callers in the same process; Run must be running meanwhile.
type Server struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer

	cfg     Config
	log     *slog.Logger
	runc    runc.Runc
	conmon  monitor.Conmon
	network *network.CNI
	images  *images.Store
	host    ocispec.Host
	cgroups cgroups.Hierarchy
	bootID  string

	sandboxRecords   *records.Dir
	containerRecords *records.Dir
	objects          registry
	events           broadcaster
	usage            usageCache

	// What the OCI runtimes can do, by handler; usersErr is why no pod can have a user
	// namespace.
	handlers map[string]*runtimeapi.RuntimeHandlerFeatures
	usersErr error

	streams  streaming.Server
	listener net.Listener
	lock     *os.File // keeps other servers off the directories

	// watches are the goroutines that wait for monitors; background ends them.
	watches    sync.WaitGroup
	background context.Context
	stop       context.CancelFunc
}

// New opens the directories, finds what runs already, and finishes or undoes what
// was cut off. It serves nothing before Run.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, log: cfg.Log, cgroups: cgroups.Detect(), network: network.New(cfg.Network)}
	s.runc = runc.Runc{Path: cfg.Runc, Root: cfg.runcRoot()}
	s.conmon = monitor.Conmon{Path: cfg.Conmon, Runc: s.runc, ExitDir: cfg.exitDir()}
	s.objects = newRegistry()
	s.background, s.stop = context.WithCancel(context.Background())
	if err := s.open(); err != nil {
		s.stop()
		s.lock.Close()
		return nil, err
	}
	return s, nil
}

// lockRoot makes sure that no other server works on the directories: what that one has
// half made would look cut off to this one.
func lockRoot(root string) (*os.File, error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fmt.Errorf("making the runtime's directories: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(root, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking the runtime's directories: %w", err)
	}
	// A program that a killed server was about to start holds the lock until it is one.
	const patience, look = 3 * time.Second, 20 * time.Millisecond
	for deadline := time.Now().Add(patience); ; time.Sleep(look) {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return file, nil
		}
		if time.Now().After(deadline) {
			file.Close()
			return nil, fmt.Errorf("another runtime uses %s: %w", root, err)
		}
	}
}

func (s *Server) open() error {
	var err error
	if s.lock, err = lockRoot(s.cfg.Root); err != nil {
		return err
	}
	for _, dir := range []string{s.cfg.runcRoot(), s.cfg.exitDir(), s.cfg.execDir(), s.cfg.bundle(""), s.cfg.sandboxDir(""), s.cfg.writable("")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("making the runtime's directories: %w", err)
		}
	}
	// A pod's own root, who is nobody here, has to come through to its root file system.
	for _, dir := range []string{s.cfg.Run, s.cfg.bundle(""), s.cfg.sandboxDir("")} {
		if err := os.Chmod(dir, 0o711); err != nil {
			return fmt.Errorf("making the runtime's directories: %w", err)
		}
	}
	if s.host, err = ocispec.DetectHost(s.log); err != nil {
		return err
	}
	if s.bootID, err = readBootID(); err != nil {
		return err
	}
	if s.sandboxRecords, err = records.Open(s.cfg.sandboxRecords()); err != nil {
		return err
	}
	if s.containerRecords, err = records.Open(s.cfg.containerRecords()); err != nil {
		return err
	}
	s.images, err = images.Open(images.Config{Root: s.cfg.imageRoot(), HostsDir: s.cfg.HostsDir, Pinned: s.cfg.PinnedImages, Log: s.log})
	if err != nil {
		return err
	}
	s.detectFeatures(s.background)
	if err := s.recover(); err != nil {
		return fmt.Errorf("recovering the runtime's state: %w", err)
	}
	return s.openStreams()
}

// defaultHandler is runc, by its own name and by none.
const defaultHandler = "runc"

// runcOf is the OCI runtime of a handler. State directories are apart, since each
// runtime keeps state in a form of its own.
func (s *Server) runcOf(handler string) runc.Runc {
	if path, ok := s.cfg.Handlers[handler]; ok {
		return runc.Runc{Path: path, Root: s.cfg.handlerRoot(handler)}
	}
	return s.runc
}

// settle makes a record survive a power cut too. A pod's start does not wait for the
// disk: what the cut takes from the records, it takes from the running pods as well.
func (s *Server) settle(dir *records.Dir, id string) {
	s.watches.Go(func() {
		if err := dir.Sync(id); err != nil {
			s.log.Warn("Syncing a record", "id", id, "err", err)
		}
	})
}

// Images is the image store, for those in the same process.
func (s *Server) Images() *images.Store { return s.images }

// Run serves until ctx ends. Containers go on without it.
func (s *Server) Run(ctx context.Context) error {
	defer s.lock.Close()
	defer s.watches.Wait()
	defer s.stop()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.watchExits(ctx) })
	group.Go(func() error { return s.serveStreams(ctx) })
	group.Go(func() error { return s.images.Watch(ctx) })
	if s.cfg.Socket != "" {
		group.Go(func() error { return s.serveSocket(ctx) })
	}
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (s *Server) serveSocket(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Dir(s.cfg.Socket), 0o700); err != nil {
		return err
	}
	if err := os.Remove(s.cfg.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing the old socket: %w", err)
	}
	listener, err := net.Listen("unix", s.cfg.Socket)
	if err != nil {
		return fmt.Errorf("listening on the CRI socket: %w", err)
	}
	if err := os.Chmod(s.cfg.Socket, 0o600); err != nil {
		return errors.Join(err, listener.Close())
	}
	server := grpc.NewServer(
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		grpc.UnaryInterceptor(s.intercept), grpc.StreamInterceptor(s.interceptStream),
	)
	runtimeapi.RegisterRuntimeServiceServer(server, s)
	runtimeapi.RegisterImageServiceServer(server, s)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		stopServer(server)
	}()
	err = server.Serve(listener)
	if ctx.Err() != nil {
		<-stopped
		return nil
	}
	return err
}

// maxMessage is upstream's limit for CRI messages.
const maxMessage = 16 << 20

// stopServer lets running calls end, but not wait for long: streams never end on
// their own.
func stopServer(server *grpc.Server) {
	const patience = 2 * time.Second
	timer := time.AfterFunc(patience, server.Stop)
	defer timer.Stop()
	server.GracefulStop()
}
