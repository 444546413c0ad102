// Package healthcheck answers load balancers that ask whether this node has
// endpoints of a Service with externalTrafficPolicy Local, on the Service's
// healthCheckNodePort.
package healthcheck

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Service is what is said of one Service.
type Service struct {
	Namespace, Name string
	LocalEndpoints  int
}

// Server listens on one port for each Service.
type Server struct {
	healthy func() error

	mu    sync.Mutex
	ports map[uint16]*listener
}

type listener struct {
	server *http.Server
	done   chan struct{}

	mu      sync.Mutex
	service Service
}

// New makes a server without ports. While healthy returns an error no load
// balancer should send anything here.
func New(healthy func() error) *Server {
	return &Server{healthy: healthy, ports: map[uint16]*listener{}}
}

// Set opens and closes ports until exactly those wanted are answered. A port that
// cannot be opened is reported and tried again by the next Set.
func (s *Server) Set(ctx context.Context, wanted map[uint16]Service) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for port, l := range s.ports {
		if _, ok := wanted[port]; !ok {
			l.close()
			delete(s.ports, port)
		}
	}
	var problems []error
	for port, service := range wanted {
		l, open := s.ports[port]
		if !open {
			var err error
			if l, err = s.open(ctx, port); err != nil {
				problems = append(problems, fmt.Errorf("health check port %d of Service %s/%s: %w", port, service.Namespace, service.Name, err))
				continue
			}
			s.ports[port] = l
		}
		l.mu.Lock()
		l.service = service
		l.mu.Unlock()
	}
	return errors.Join(problems...)
}

func (s *Server) open(ctx context.Context, port uint16) (*listener, error) {
	var config net.ListenConfig
	socket, err := config.Listen(ctx, "tcp", ":"+strconv.Itoa(int(port)))
	if err != nil {
		return nil, err
	}
	l := &listener{done: make(chan struct{})}
	l.server = &http.Server{
		Handler:     http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { s.answer(w, l) }),
		ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 1 << 14,
	}
	go func() {
		defer close(l.done)
		_ = l.server.Serve(socket) // ends with close
	}()
	return l, nil
}

func (l *listener) close() {
	_ = l.server.Close()
	<-l.done
}

// Close ends all ports.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for port, l := range s.ports {
		l.close()
		delete(s.ports, port)
	}
}

// answer is upstream's: 200 with at least one endpoint here, 503 without or when
// the rules are old, and the number as weight.
func (s *Server) answer(w http.ResponseWriter, l *listener) {
	l.mu.Lock()
	service := l.service
	l.mu.Unlock()
	healthy := s.healthy() == nil
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(service.LocalEndpoints))
	if service.LocalEndpoints == 0 || !healthy {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{
		"service":             map[string]string{"namespace": service.Namespace, "name": service.Name},
		"localEndpoints":      service.LocalEndpoints,
		"serviceProxyHealthy": healthy,
	})
}
