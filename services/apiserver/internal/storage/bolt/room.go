package bolt

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	reserveBytes = 16 << 20
	// pagesPerByte is how much room a commit may take for each byte it writes, and
	// slack what it takes besides.
	pagesPerByte = 4
	slack        = 1 << 20
)

// outOfSpace says that a commit failed because the device is full, while its
// pages were written or the file was grown. The same error from a sync is not
// this: by then pages may be lost.
func outOfSpace(err error) bool {
	if err == nil {
		return false
	}
	var path *fs.PathError
	if errors.As(err, &path) && path.Op == "write" {
		return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
	}
	// bbolt gives the error of growing the file as text.
	text := err.Error()
	return strings.HasPrefix(text, "file resize error") &&
		(strings.HasSuffix(text, syscall.ENOSPC.Error()) || strings.HasSuffix(text, syscall.EDQUOT.Error()))
}

// hasRoom says whether a commit of that many bytes is worth a try. Once the
// device was full, a failed commit costs bbolt a scan of the whole file, so
// writes are refused without a try until the device or the file's free pages
// have room. Called by the committer.
func (s *Store) hasRoom(bytes int64) bool {
	if !s.full {
		return true
	}
	need := pagesPerByte*bytes + slack
	var device unix.Statfs_t
	if err := unix.Statfs(s.options.Path, &device); err == nil && int64(device.Bavail)*device.Bsize >= need+2*reserveBytes {
		if err := s.reserve(); err != nil {
			s.log.Warn("No reserve for a full disk", "err", err)
		}
		s.full = false
		s.log.Info("Disk has room again: writes are taken")
		return true
	}
	stats := s.db.Stats()
	return int64(stats.FreePageN+stats.PendingPageN)*int64(s.db.Info().PageSize) >= need
}

// reserve keeps room beside the file that deletions and compaction may use when
// the disk is full.
func (s *Store) reserve() error {
	file, err := os.OpenFile(s.reservePath(), os.O_CREATE|os.O_RDWR, fileMode)
	if err != nil {
		return fmt.Errorf("making reserve: %w", err)
	}
	defer func() { _ = file.Close() }()
	if err := unix.Fallocate(int(file.Fd()), 0, 0, reserveBytes); err != nil {
		return errors.Join(fmt.Errorf("filling reserve: %w", err), os.Remove(s.reservePath()))
	}
	return nil
}

func (s *Store) reservePath() string { return s.options.Path + ".reserve" }

// release gives the reserve's room to the file. It is made again when the disk
// has room.
func (s *Store) release() {
	if err := os.Remove(s.reservePath()); err == nil {
		s.log.Warn("Disk full: reserve released for deletions")
	}
}
