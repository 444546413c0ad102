// Package etcd is a backend of the store that keeps everything in etcd, for
// those who outgrow one machine: several API servers share one etcd.
//
// Keys and values are upstream's, and the revision is etcd's, so that a cluster
// can move between this server and upstream's over the same etcd.
//
// One watch over all keys feeds the sinks of this process. A write is answered,
// and a linearizable revision given, only after that watch has delivered it;
// that is what makes reads from the caches see all that was acknowledged, by
// this server or by another one.
package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
)

const (
	openTimeout      = 20 * time.Second // for the first answer, upstream's figure
	keepAliveEvery   = 30 * time.Second
	keepAliveTimeout = 10 * time.Second
)

// Options of a store.
type Options struct {
	Endpoints []string    // URLs of etcd's members
	TLS       *tls.Config // nil talks in the clear
	// Root is what all keys of this store start with, and Prefix what stands in
	// etcd for it (--etcd-prefix): with /registry and /other, key /registry/pods/a
	// is /other/pods/a there.
	Root, Prefix string
	// CompactEvery is the pause between compactions of what is older than that; 0
	// leaves compaction to others.
	CompactEvery time.Duration
	// LeaseReuse is for how long keys share a lease at most, which then live so much
	// longer. Default one minute.
	LeaseReuse time.Duration
	Log        *slog.Logger
	// Exit ends the process when the store has missed events for good; default
	// os.Exit. It must not return in production.
	Exit func(code int)
}

// Store implements storage.Interface.
//
// Lock order: mu, then what sinks lock.
type Store struct {
	options Options
	client  *clientv3.Client
	leases  leases
	metrics *metrics

	// life ends with Close; running are the goroutines.
	life    context.Context
	end     context.CancelFunc
	running sync.WaitGroup

	// applied is the revision up to which the sinks have seen everything, and
	// compacted the highest one that is known to be compacted.
	applied, compacted atomic.Int64

	mu       sync.Mutex
	moved    chan struct{} // closed and replaced when applied grows
	sinks    map[int]*sink
	nextSink int
	hints    map[string][]*hint // of writes that are under way, by key

	roundMu sync.Mutex
	round   *round // the one that callers of Current join; nil when none waits
	asking  bool   // a round is being answered

	histories atomic.Int64 // names the streams that read history
}

var _ storage.Interface = (*Store)(nil)

// Open connects to etcd and follows it from its newest revision on.
func Open(ctx context.Context, options Options) (*Store, error) {
	if options.Log == nil {
		options.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if options.LeaseReuse == 0 {
		options.LeaseReuse = time.Minute
	}
	if options.Exit == nil {
		options.Exit = os.Exit
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: options.Endpoints, TLS: options.TLS, Logger: zap.NewNop(),
		DialTimeout: openTimeout, DialKeepAliveTime: keepAliveEvery, DialKeepAliveTimeout: keepAliveTimeout,
	})
	if err != nil {
		return nil, fmt.Errorf("connecting to etcd: %w", err)
	}
	s := &Store{
		options: options, client: client, leases: leases{client: client, reuse: options.LeaseReuse},
		moved: make(chan struct{}), sinks: map[int]*sink{}, hints: map[string][]*hint{},
	}
	s.metrics = newMetrics(s)
	s.life, s.end = context.WithCancel(context.WithoutCancel(ctx))
	if err := s.start(ctx); err != nil {
		s.end()
		return nil, errors.Join(fmt.Errorf("connecting to etcd at %s: %w", strings.Join(options.Endpoints, ", "), err), client.Close())
	}
	return s, nil
}

// start asks etcd where it is and starts to follow.
func (s *Store) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	compacted, revision, err := s.readCompacted(ctx)
	if err != nil {
		return err
	}
	s.compacted.Store(compacted)
	s.applied.Store(revision)
	s.running.Go(s.follow)
	s.running.Go(s.pace)
	if s.options.CompactEvery > 0 {
		s.running.Go(s.compactAtIntervals)
	}
	return nil
}

// Close ends all that runs and closes the connection.
func (s *Store) Close() error {
	if s.life.Err() != nil {
		return nil
	}
	s.roundMu.Lock() // no round starts any more
	s.end()
	s.roundMu.Unlock()
	s.running.Wait()
	err := s.client.Close()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// physical is a key as etcd has it.
func (s *Store) physical(key string) string {
	return s.options.Prefix + strings.TrimPrefix(key, s.options.Root)
}

// logical is the reverse of physical.
func (s *Store) logical(key []byte) string {
	return s.options.Root + strings.TrimPrefix(string(key), s.options.Prefix)
}

// top is the prefix of all keys in etcd.
func (s *Store) top() string { return s.options.Prefix + "/" }
