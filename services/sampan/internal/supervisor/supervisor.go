// Package supervisor keeps a cluster's services running. It runs detached; when
// it is killed the services go on, and the next one adopts them.
package supervisor

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/sampan-io/sampan/services/internal/pki"
	"github.com/sampan-io/sampan/services/sampan/internal/cluster"
)

// A service that keeps ending is started again after a pause that doubles from
// minPause to maxPause; one that ran for calm starts afresh.
const (
	minPause = 50 * time.Millisecond
	maxPause = time.Second
	calm     = 30 * time.Second
	// renewEvery is how often certificates are looked at for renewal.
	renewEvery = time.Hour
)

// Status is what the supervisor tells of one service.
type Status struct {
	Name     string    `json:"name"`
	PID      int       `json:"pid"`
	Started  time.Time `json:"started"`
	Restarts int       `json:"restarts"`
	Last     string    `json:"last,omitempty"` // how it ended the last time
}

// Supervisor runs the services of one cluster.
type Supervisor struct {
	layout cluster.Layout
	config cluster.Config
	log    *slog.Logger

	mu     sync.Mutex
	status map[string]Status
}

// New supervises the cluster in layout.
func New(layout cluster.Layout, config cluster.Config, log *slog.Logger) *Supervisor {
	return &Supervisor{layout: layout, config: config, log: log, status: map[string]Status{}}
}

// Run starts or adopts every service and keeps it running until ctx ends. It
// does not stop the services then: that is Stop's job, so that a supervisor can
// be replaced.
func (s *Supervisor) Run(ctx context.Context) error {
	running, err := Find(s.layout.Dir)
	if err != nil {
		return err
	}
	var group sync.WaitGroup
	for _, process := range s.layout.Processes(s.config) {
		var adopted *child
		for _, found := range running {
			if found.Name == process.Name && sameBinary(found.Binary, process.Binary) {
				if c, ok := adopt(found.PID, s.layout.Dir, process); ok {
					adopted = c
					break
				}
			}
		}
		group.Go(func() { s.keep(ctx, process, adopted) })
	}
	group.Go(func() { s.renew(ctx) })
	group.Wait()
	return nil
}

// keep runs one service again and again.
func (s *Supervisor) keep(ctx context.Context, process cluster.Process, running *child) {
	pause := minPause
	restarts := 0
	for ctx.Err() == nil {
		began := time.Now()
		if running == nil {
			c, err := start(s.layout.Dir, process)
			if err != nil {
				s.log.Error("Service does not start", "process", process.Name, "err", err)
				s.report(Status{Name: process.Name, Restarts: restarts, Last: err.Error()})
			}
			running = c
		} else {
			s.log.Info("Service adopted", "process", process.Name, "pid", running.pid)
		}
		if running != nil {
			s.report(Status{Name: process.Name, PID: running.pid, Started: began, Restarts: restarts})
			ended, reason := running.wait(ctx)
			if !ended {
				return
			}
			running = nil
			s.log.Warn("Service ended", "process", process.Name, "reason", reason)
			s.report(Status{Name: process.Name, Restarts: restarts, Last: reason})
		}
		if time.Since(began) > calm {
			pause = minPause
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, maxPause)
		restarts++
	}
}

// renew keeps the cluster's certificates from running out.
func (s *Supervisor) renew(ctx context.Context) {
	ticker := time.NewTicker(renewEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if err := s.layout.EnsureIdentities(s.config); err != nil {
				s.log.Error("Certificates not renewed", "err", err)
			}
		}
	}
}

// report writes the state of all services where `sampan status` reads it.
func (s *Supervisor) report(status Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status[status.Name] = status
	var all []Status
	for _, process := range s.layout.Processes(s.config) {
		if known, ok := s.status[process.Name]; ok {
			all = append(all, known)
		}
	}
	data, err := json.MarshalIndent(all, "", "  ")
	if err == nil {
		err = pki.WriteFile(s.layout.StatusFile(), data, 0o644)
	}
	if err != nil {
		s.log.Error("State not written", "err", err)
	}
}

// ReadStatus is what the supervisor wrote last.
func ReadStatus(layout cluster.Layout) ([]Status, error) {
	data, err := os.ReadFile(layout.StatusFile())
	if err != nil {
		return nil, fmt.Errorf("reading state of processes: %w", err)
	}
	var all []Status
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, fmt.Errorf("reading state of processes %s: %w", layout.StatusFile(), err)
	}
	return all, nil
}
