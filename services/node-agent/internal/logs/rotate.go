package logs

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Runtime is what rotating needs of the container runtime.
type Runtime interface {
	RunningLogs(ctx context.Context) (map[string]string, error) // container id → path of its log
	Reopen(ctx context.Context, containerID string) error
}

// Rotator keeps the logs of running containers below a size.
type Rotator struct {
	Root     string
	Runtime  Runtime
	MaxSize  int64 // bytes after which a log is rotated; 0 or less never
	MaxFiles int   // of a container, the current one included; at least 2
	Interval time.Duration
	Log      *slog.Logger
}

// Run rotates until ctx ends.
func (r *Rotator) Run(ctx context.Context) error {
	if r.MaxSize <= 0 {
		<-ctx.Done()
		return nil
	}
	ticker := time.NewTicker(r.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if err := r.Rotate(ctx); err != nil && ctx.Err() == nil {
				r.Log.WarnContext(ctx, "Rotating logs", "err", err)
			}
		}
	}
}

// Rotate rotates the logs that have grown too large.
func (r *Rotator) Rotate(ctx context.Context) error {
	running, err := r.Runtime.RunningLogs(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for id, path := range running {
		info, err := os.Lstat(path)
		if err != nil || !info.Mode().IsRegular() || info.Size() < r.MaxSize {
			continue // not there, or a link that someone else has made
		}
		if err := r.rotate(ctx, id, path); err != nil {
			errs = append(errs, fmt.Errorf("rotating %s: %w", path, err))
		}
	}
	return errors.Join(errs...)
}

const (
	stampFormat  = "20060102-150405"
	gzipSuffix   = ".gz"
	unfinishedGz = ".tmp"
)

func (r *Rotator) rotate(ctx context.Context, id, path string) error {
	old, err := rotated(path)
	if err != nil {
		return err
	}
	// The current log, and the one that it becomes, count too.
	keep := max(0, r.MaxFiles-2)
	for len(old) > keep {
		if err := os.Remove(old[0]); err != nil {
			return err
		}
		old = old[1:]
	}
	for _, file := range old {
		if !strings.HasSuffix(file, gzipSuffix) {
			if err := compress(r.Root, file); err != nil {
				return err
			}
		}
	}
	target := path + "." + time.Now().Format(stampFormat)
	if err := os.Rename(path, target); err != nil {
		return err
	}
	if err := r.Runtime.Reopen(ctx, id); err != nil {
		// The container goes on writing to the old file: put it back.
		return errors.Join(err, os.Rename(target, path))
	}
	return nil
}

// rotated lists the former logs, the oldest first.
func rotated(path string) ([]string, error) {
	files, err := filepath.Glob(path + ".*")
	if err != nil {
		return nil, err
	}
	files = slices.DeleteFunc(files, func(file string) bool {
		if strings.HasSuffix(file, unfinishedGz) {
			_ = os.Remove(file)
			return true
		}
		_, err := time.Parse(stampFormat, strings.TrimSuffix(strings.TrimPrefix(file, path+"."), gzipSuffix))
		return err != nil
	})
	slices.Sort(files)
	return files, nil
}

func compress(root, file string) error {
	in, err := Open(root, file)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	tmp := file + unfinishedGz
	out, err := os.OpenFile(tmp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC|os.O_EXCL, 0o640)
	if err != nil {
		return err
	}
	zipped := gzip.NewWriter(out)
	_, err = io.Copy(zipped, in)
	if err := errors.Join(err, zipped.Close(), out.Close()); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	if err := os.Rename(tmp, file+gzipSuffix); err != nil {
		return err
	}
	return os.Remove(file)
}

// RunningLogs tells where the logs of running containers are.
func RunningLogs(statuses []*runtimeapi.ContainerStatus) map[string]string {
	logs := map[string]string{}
	for _, status := range statuses {
		if status.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING && status.GetLogPath() != "" {
			logs[status.GetId()] = status.GetLogPath()
		}
	}
	return logs
}
