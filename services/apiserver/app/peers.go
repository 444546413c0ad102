package app

import (
	"context"
	"net"
	"os"

	"github.com/google/uuid"

	"github.com/sampan-io/sampan/services/apiserver/internal/election"
)

// announce tells the other servers over the store of this one, and where all are
// reached.
func (s *server) announce(ctx context.Context) ([]net.IP, error) {
	if err := s.peers.Announce(ctx); err != nil {
		return nil, err
	}
	return s.peers.Addresses(ctx)
}

func (s *server) leavePeers(ctx context.Context) {
	if s.peers == nil {
		return
	}
	if err := s.peers.Leave(ctx); err != nil {
		s.log.Warn("The other API servers count this one for a while", "err", err)
	}
}

// alone runs what only one server over a store may run: at once when there is no
// other, else while this one is chosen by the Lease of that name.
func (s *server) alone(ctx context.Context, lease string, run func(context.Context) error) error {
	if s.peers == nil {
		return run(ctx)
	}
	host, err := os.Hostname()
	if err != nil {
		host = s.advertise.String()
	}
	e := &election.Election{State: s.engine, Name: lease, Identity: host + "_" + uuid.NewString(), Log: s.log}
	return e.Run(ctx, run)
}
