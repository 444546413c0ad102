// Package pluginregistration takes plugins that announce themselves by a socket in
// one directory, by the kubelet's plugin registration protocol, version 1.
package pluginregistration

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const (
	// patience is how long a plugin may take to answer.
	patience = 10 * time.Second
	// rescan is how often the directory is read though nothing was heard of it.
	rescan               = 10 * time.Second
	firstRetry, maxRetry = 500 * time.Millisecond, 2 * time.Minute
)

// Handler takes the plugins of one type.
type Handler interface {
	// Register takes a plugin that serves at endpoint; an error refuses it.
	Register(ctx context.Context, name, endpoint string, versions []string) error
	// Deregister is told that the plugin's registration socket has gone.
	Deregister(ctx context.Context, name string)
}

// Watcher follows the sockets in a directory.
type Watcher struct {
	Dir string
	// Handlers are by the plugin's type, CSIPlugin for one. Other types are refused.
	Handlers map[string]Handler
	Log      *slog.Logger
}

// identity tells a socket from another one of the same name.
type identity struct {
	inode   uint64
	changed syscall.Timespec
}

// follower deals with one socket.
type follower struct {
	socket identity
	stop   context.CancelFunc
	ended  chan struct{}
}

// Run takes plugins until ctx ends. Each is dealt with on its own: one that hangs
// holds up no other.
func (w *Watcher) Run(ctx context.Context) error {
	if err := os.MkdirAll(w.Dir, 0o750); err != nil {
		return fmt.Errorf("making the directory of plugins: %w", err)
	}
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching for plugins: %w", err)
	}
	defer func() { _ = notify.Close() }()
	if err := notify.Add(w.Dir); err != nil {
		return fmt.Errorf("watching %s: %w", w.Dir, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	followed := map[string]*follower{}
	ticker := time.NewTicker(rescan)
	defer ticker.Stop()
	for {
		w.scan(ctx, notify, followed, &group)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case _, open := <-notify.Events:
			if !open {
				return errors.New("watching for plugins has ended")
			}
		case err := <-notify.Errors:
			w.Log.WarnContext(ctx, "Watching for plugins", "dir", w.Dir, "err", err)
		}
	}
}

// scan begins to follow new sockets and ends with those that are gone or replaced.
func (w *Watcher) scan(ctx context.Context, notify *fsnotify.Watcher, followed map[string]*follower, group *sync.WaitGroup) {
	sockets, err := w.sockets(notify)
	if err != nil {
		w.Log.WarnContext(ctx, "Looking for plugins", "dir", w.Dir, "err", err)
		return
	}
	before := map[string]*follower{}
	for path, f := range followed {
		if found, still := sockets[path]; !still || found != f.socket {
			f.stop()
			before[path] = f
			delete(followed, path)
		}
	}
	for path, socket := range sockets {
		if _, known := followed[path]; known {
			continue
		}
		followCtx, stop := context.WithCancel(ctx)
		f := &follower{socket: socket, stop: stop, ended: make(chan struct{})}
		followed[path] = f
		group.Go(func() {
			defer close(f.ended)
			defer stop()
			if old := before[path]; old != nil {
				<-old.ended // or it would deregister the new one
			}
			w.follow(ctx, followCtx, path)
		})
	}
}

// sockets are those in the directory and below. Names that begin with a dot are
// the plugins' own.
func (w *Watcher) sockets(notify *fsnotify.Watcher) (map[string]identity, error) {
	found := map[string]identity{}
	err := filepath.WalkDir(w.Dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist) && path != w.Dir:
			return nil
		case err != nil:
			return err
		case path != w.Dir && strings.HasPrefix(entry.Name(), "."):
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case entry.IsDir():
			return notify.Add(path)
		case entry.Type()&fs.ModeSocket == 0:
			return nil
		}
		info, err := entry.Info()
		if err != nil {
			return nil //nolint:nilerr // it has gone since
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			found[path] = identity{stat.Ino, stat.Ctim}
		}
		return nil
	})
	return found, err
}

// follow registers the plugin behind a socket, trying again until it works, and
// deregisters it when ctx ends before agent does: plugins outlive the agent.
func (w *Watcher) follow(agent, ctx context.Context, path string) {
	pause := firstRetry
	for {
		info, err := w.register(agent, ctx, path)
		if err == nil {
			<-ctx.Done()
			if agent.Err() != nil {
				return
			}
			w.Handlers[info.GetType()].Deregister(context.WithoutCancel(ctx), info.GetName())
			return
		}
		if ctx.Err() != nil {
			return
		}
		w.Log.WarnContext(ctx, "Registering a plugin", "socket", path, "err", err)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		pause = min(2*pause, maxRetry)
	}
}

func (w *Watcher) register(agent, ctx context.Context, path string) (*registerapi.PluginInfo, error) {
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	if err != nil {
		return nil, fmt.Errorf("connecting: %w", err)
	}
	defer func() { _ = conn.Close() }()
	client := registerapi.NewRegistrationClient(conn)
	info, err := ask(ctx, func(ctx context.Context) (*registerapi.PluginInfo, error) {
		return client.GetInfo(ctx, &registerapi.InfoRequest{})
	})
	if err != nil {
		return nil, fmt.Errorf("asking what it is: %w", err)
	}
	refused := w.hand(ctx, path, info)
	status := &registerapi.RegistrationStatus{PluginRegistered: refused == nil}
	if refused != nil {
		status.Error = refused.Error()
	}
	if _, err := ask(ctx, func(ctx context.Context) (*registerapi.RegistrationStatusResponse, error) {
		return client.NotifyRegistrationStatus(ctx, status)
	}); err != nil && refused == nil {
		if agent.Err() == nil {
			w.Handlers[info.GetType()].Deregister(context.WithoutCancel(ctx), info.GetName())
		}
		return nil, fmt.Errorf("telling %s that it is registered: %w", info.GetName(), err)
	}
	return info, refused
}

func (w *Watcher) hand(ctx context.Context, path string, info *registerapi.PluginInfo) error {
	handler, known := w.Handlers[info.GetType()]
	if !known {
		return fmt.Errorf("plugins of type %q are not supported by this node", info.GetType())
	}
	endpoint := info.GetEndpoint()
	if endpoint == "" { // the same socket serves both
		endpoint = path
	}
	return handler.Register(ctx, info.GetName(), endpoint, info.GetSupportedVersions())
}

func ask[T any](ctx context.Context, call func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return call(ctx)
}
