package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sampan-io/sampan/services/node-agent/internal/namespaces"
	"github.com/sampan-io/sampan/services/node-agent/internal/network"
	"github.com/sampan-io/sampan/services/node-agent/internal/overlay"
)

func readBootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("reading the boot id: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// recover reads the records, adopts what lives, and undoes what was half made or half
// removed. One object that cannot be cleared now does not stop the others; its record
// stays for the next start.
func (s *Server) recover() error {
	if err := s.recoverSandboxes(); err != nil {
		return err
	}
	if err := s.recoverContainers(); err != nil {
		return err
	}
	return s.clearDebris()
}

func (s *Server) recoverSandboxes() error {
	ids, err := s.sandboxRecords.IDs()
	if err != nil {
		return err
	}
	for _, id := range ids {
		record := &sandboxRecord{}
		if err := s.sandboxRecords.Read(id, record); err != nil || record.Config == nil {
			s.log.Warn("Forgetting a damaged sandbox record", "sandbox", id, "err", err)
			if err := s.dropSandbox(id); err != nil {
				s.log.Warn("Clearing up after a damaged sandbox record", "sandbox", id, "err", err)
			}
			continue
		}
		if record.Phase == creating {
			if err := s.objects.reserve(sandboxName(record.Config), id); err != nil {
				s.log.Warn("Two sandboxes have one name", "sandbox", id, "err", err)
			}
			s.abandonSandbox(record)
			continue
		}
		if record.Phase == ready && !s.sandboxAlive(record) {
			if err := s.lostSandbox(record); err != nil {
				return err
			}
		}
		sb := newSandbox(record)
		s.objects.addSandbox(sb)
		s.watchPause(sb)
		if err := s.objects.reserve(sandboxName(record.Config), id); err != nil {
			s.log.Warn("Two sandboxes have one name", "sandbox", id, "err", err)
		}
	}
	return nil
}

func (s *Server) sandboxAlive(record *sandboxRecord) bool {
	if record.BootID != s.bootID || !namespaces.Pinned(s.namespacePath(record.ID, namespaces.UTS)) {
		return false
	}
	return !sharesPIDs(record.Config) || record.Pause.Alive()
}

// lostSandbox marks a sandbox that did not outlive a reboot, or whose first process died
// while nobody looked. What cannot be given back now is when it is stopped.
func (s *Server) lostSandbox(record *sandboxRecord) error {
	record.Phase = notReady
	if err := s.releaseSandbox(s.background, record); err != nil {
		s.log.Warn("Releasing a sandbox that is gone", "sandbox", record.ID, "err", err)
		record.Phase = failed
	}
	return s.sandboxRecords.Write(record.ID, record, false)
}

func (s *Server) recoverContainers() error {
	ids, err := s.containerRecords.IDs()
	if err != nil {
		return err
	}
	for _, id := range ids {
		record := &containerRecord{}
		if err := s.containerRecords.Read(id, record); err != nil || record.Config == nil {
			s.log.Warn("Forgetting a damaged container record", "container", id, "err", err)
			record = &containerRecord{ID: id, Phase: creating, BootID: s.bootID}
		}
		if _, err := s.objects.sandbox(record.SandboxID); err != nil || record.Phase == creating {
			if err := s.undoContainer(record); err != nil {
				s.log.Warn("Undoing a half-made container", "container", id, "err", err)
			}
			continue
		}
		if err := s.adopt(record); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) adopt(record *containerRecord) error {
	if record.Phase != exited && record.BootID != s.bootID {
		record.Phase, record.ExitCode, record.Reason = exited, 255, "Unknown"
		record.Message = "the machine was restarted while the container ran"
		record.FinishedAt = time.Now().UnixNano()
		if err := s.containerRecords.Write(record.ID, record, false); err != nil {
			return err
		}
	}
	if record.Phase == running && s.runcOf(record.Handler).Created(record.ID) {
		// The start was cut off before runc let the process go.
		record.Phase, record.StartedAt = created, 0
	}
	c := newContainer(record)
	s.objects.addContainer(c)
	if err := s.objects.reserve(containerName(record.SandboxID, record.Config), record.ID); err != nil {
		s.log.Warn("Two containers have one name", "container", record.ID, "err", err)
	}
	if record.Phase != exited {
		s.watch(c)
	}
	return nil
}

// dropSandbox gives back what a sandbox holds of which only the id is known.
func (s *Server) dropSandbox(id string) error {
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	err := errors.Join(
		deleteRunc(ctx, s.runc, id), // of its pause process
		s.network.Detach(ctx, network.Pod{ID: id, NetNS: s.pinned(id, namespaces.Network)}),
		namespaces.Unpin(s.cfg.pins(id)), overlay.Unmount(s.cfg.sharedMemory(id)),
	)
	if err != nil {
		return err
	}
	return s.forgetSandbox(id)
}

// pinned is the path of the sandbox's namespace; empty when there is none.
func (s *Server) pinned(id string, kind namespaces.Kind) string {
	if path := s.namespacePath(id, kind); namespaces.Pinned(path) {
		return path
	}
	return ""
}

// clearSandboxes gives back what no record tells of: a power cut may take a record and
// leave the address.
func (s *Server) clearSandboxes() error {
	ids, err := s.network.Attached()
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(s.cfg.sandboxDir(""))
	if err != nil {
		return err
	}
	for _, entry := range entries {
		ids = append(ids, entry.Name())
	}
	var errs []error
	for _, id := range ids {
		if !s.sandboxRecords.Has(id) {
			errs = append(errs, s.dropSandbox(id))
		}
	}
	return errors.Join(errs...)
}

// clearDebris removes directories that no record owns, and exit codes of containers
// that are gone.
func (s *Server) clearDebris() error {
	errs := []error{s.clearSandboxes()}
	for _, dir := range []string{s.cfg.bundle(""), s.cfg.writable(""), s.cfg.exitDir()} {
		entries, err := os.ReadDir(dir)
		errs = append(errs, err)
		for _, entry := range entries {
			if _, err := s.objects.container(entry.Name()); err == nil {
				continue
			}
			if s.containerRecords.Has(entry.Name()) {
				continue // undoing it has failed; the next start tries again
			}
			errs = append(errs, s.unmountAll(entry.Name()), os.RemoveAll(filepath.Join(dir, entry.Name())))
		}
	}
	entries, err := os.ReadDir(s.cfg.execDir())
	errs = append(errs, err)
	for _, entry := range entries {
		errs = append(errs, os.RemoveAll(filepath.Join(s.cfg.execDir(), entry.Name())))
	}
	return errors.Join(errs...)
}
