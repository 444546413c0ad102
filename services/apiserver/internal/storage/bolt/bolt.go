// Package bolt is the default backend of the store: one bbolt file.
//
// Writers queue; one committer applies all that wait in one transaction, syncs
// once, hands the batch to the sinks, and then answers the writers. Nothing is
// acknowledged, delivered or readable before it is durable.
package bolt

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
)

// Options of a store. The zero value of each but Path has a default.
type Options struct {
	Path string // of the file, which is made when it does not exist
	// KeepAge and KeepBytes bound the history: superseded values older than KeepAge,
	// or beyond KeepBytes, are compacted. Defaults: 10 minutes, 256 MiB.
	KeepAge   time.Duration
	KeepBytes int64
	// NoSync leaves syncing to the kernel. Acknowledged writes are lost in a power
	// cut; only for tests and throw-away servers.
	NoSync bool
	// Exit ends the process after an error that leaves the file's state unknown;
	// default os.Exit(1). It must not return in production.
	Exit func(code int)
	Log  *slog.Logger

	now    func() time.Time
	commit func(*bolt.Tx) error // tests let it fail
}

const (
	fileMode    = 0o600
	lockTimeout = time.Second
	mmapSize    = 1 << 30 // of address space, not of memory
	queueLength = 4096
	batchWrites = 512
	batchBytes  = 8 << 20
	maxKeyBytes = 16 << 10
)

// Store is an open file. It implements storage.Interface.
type Store struct {
	db      *bolt.DB
	options Options
	log     *slog.Logger

	queue  chan *write
	stop   chan struct{} // closed by Close
	closed chan struct{} // closed when the committer has ended
	once   sync.Once
	group  sync.WaitGroup

	current   atomic.Int64 // newest revision that sinks have seen
	compacted atomic.Int64
	failed    atomic.Bool   // nothing is acknowledged any more
	expiry    chan struct{} // wakes the expirer
	full      bool          // the committer's: the device was full at the last try

	writing    sync.Mutex // one write transaction at a time; guards failed
	compacting sync.Mutex

	counts  counts
	metrics *metrics

	mu      sync.Mutex
	sinks   map[int]*sink // by id; committer and Attach
	nextID  int
	history history
}

type sink struct {
	prefix  string
	deliver storage.Sink
	after   int64 // what Attach has delivered itself
}

var _ storage.Interface = (*Store)(nil)

// Open opens or makes the file. A file that another process has open, or that
// is damaged, is an error.
func Open(options Options) (*Store, error) {
	if options.KeepAge == 0 {
		options.KeepAge = 10 * time.Minute
	}
	if options.KeepBytes == 0 {
		options.KeepBytes = 256 << 20
	}
	if options.Exit == nil {
		options.Exit = os.Exit
	}
	if options.Log == nil {
		options.Log = slog.Default()
	}
	if options.now == nil {
		options.now = time.Now
	}
	if options.commit == nil {
		options.commit = (*bolt.Tx).Commit
	}
	if err := os.MkdirAll(filepath.Dir(options.Path), 0o700); err != nil {
		return nil, fmt.Errorf("making the store's folder: %w", err)
	}
	db, err := openFile(options)
	if err != nil {
		return nil, err
	}
	s := &Store{
		db: db, options: options, log: options.Log, queue: make(chan *write, queueLength),
		stop: make(chan struct{}), closed: make(chan struct{}), expiry: make(chan struct{}, 1), sinks: map[int]*sink{},
	}
	s.metrics = newMetrics(s)
	if err := s.load(); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	if err := s.reserve(); err != nil {
		s.log.Warn("No reserve for a full disk", "err", err)
	}
	s.group.Go(s.commitAll)
	s.group.Go(s.expireAll)
	s.group.Go(s.compactAll)
	return s, nil
}

func openFile(options Options) (db *bolt.DB, err error) {
	// bbolt panics on some damaged files.
	defer func() {
		if problem := recover(); problem != nil {
			db, err = nil, fmt.Errorf("%w: %s: %v", errCorrupt, options.Path, problem)
		}
	}()
	if err := checkLength(options.Path); err != nil {
		return nil, err
	}
	db, err = bolt.Open(options.Path, fileMode, &bolt.Options{
		Timeout: lockTimeout, NoFreelistSync: true, FreelistType: bolt.FreelistMapType, InitialMmapSize: mmapSize, NoSync: options.NoSync,
	})
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, fmt.Errorf("the store %s is in use by another process", options.Path)
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrChecksum), errors.Is(err, bolterrors.ErrVersionMismatch):
		return nil, fmt.Errorf("%w: %s: %w", errCorrupt, options.Path, err)
	case err != nil:
		return nil, fmt.Errorf("opening the store %s: %w", options.Path, err)
	}
	return db, nil
}

// load reads the revisions, or makes the buckets of a new file.
func (s *Store) load() (err error) {
	defer func() {
		if problem := recover(); problem != nil {
			err = fmt.Errorf("%w: %s: %v", errCorrupt, s.options.Path, problem)
		}
	}()
	fresh := false
	if err := s.db.View(func(tx *bolt.Tx) error {
		fresh = tx.Bucket(metaBucket) == nil
		if fresh {
			return nil
		}
		return s.loadFrom(tx)
	}); err != nil || !fresh {
		return err
	}
	if err := s.db.Update(s.initialize); err != nil {
		return err
	}
	return s.db.View(s.loadFrom)
}

func (s *Store) loadFrom(tx *bolt.Tx) error {
	meta := tx.Bucket(metaBucket)
	have, err := decodeRevision(meta.Get(formatKey))
	if err != nil {
		return fmt.Errorf("%s: %w", s.options.Path, err)
	}
	if have != format {
		return fmt.Errorf("the store %s has format %d; this version reads format %d", s.options.Path, have, format)
	}
	current, err := decodeRevision(meta.Get(revisionKey))
	if err != nil {
		return fmt.Errorf("%s: %w", s.options.Path, err)
	}
	compacted, err := decodeRevision(meta.Get(compactedKey))
	if err != nil {
		return fmt.Errorf("%s: %w", s.options.Path, err)
	}
	for _, bucket := range [][]byte{logBucket, keysBucket, ttlBucket} {
		if tx.Bucket(bucket) == nil {
			return fmt.Errorf("%w: %s: no bucket %s", errCorrupt, s.options.Path, bucket)
		}
	}
	if last, _ := tx.Bucket(logBucket).Cursor().Last(); last != nil && int64(binary.BigEndian.Uint64(last)) > current {
		return fmt.Errorf("%w: %s: log beyond revision %d", errCorrupt, s.options.Path, current)
	}
	s.current.Store(current)
	s.compacted.Store(compacted)
	s.history.start(current, s.options.now())
	return nil
}

func (s *Store) initialize(tx *bolt.Tx) error {
	for _, name := range [][]byte{logBucket, keysBucket, ttlBucket, metaBucket} {
		if _, err := tx.CreateBucket(name); err != nil {
			return fmt.Errorf("making bucket %s: %w", name, err)
		}
	}
	meta := tx.Bucket(metaBucket)
	return errors.Join(
		meta.Put(formatKey, revisionBytes(format)),
		meta.Put(revisionKey, revisionBytes(storage.EmptyRevision)),
		meta.Put(compactedKey, revisionBytes(0)),
	)
}

// Current is the newest revision; sinks have seen it.
func (s *Store) Current(context.Context) (int64, error) {
	if s.ended() {
		return 0, storage.ErrClosed
	}
	return s.current.Load(), nil
}

// Applied is the newest revision: sinks see a write before anybody else does.
func (s *Store) Applied() int64 { return s.current.Load() }

// ended says that the store was closed or has failed.
func (s *Store) ended() bool {
	select {
	case <-s.closed:
		return true
	default:
		return s.failed.Load()
	}
}

// CompactedRevision is the revision from which on reads are exact.
func (s *Store) CompactedRevision() int64 { return s.compacted.Load() }

// Close ends the store after the writes that it has taken. The last commit
// writes the free list, so that the next open need not read the whole file.
func (s *Store) Close() error {
	var err error
	s.once.Do(func() {
		close(s.stop)
		s.group.Wait()
		if s.failed.Load() {
			err = s.db.Close()
			return
		}
		s.db.NoFreelistSync = false
		if commitErr := s.db.Update(func(tx *bolt.Tx) error {
			return tx.Bucket(metaBucket).Put(formatKey, revisionBytes(format))
		}); commitErr != nil {
			err = fmt.Errorf("closing the store: %w", commitErr)
		}
		err = errors.Join(err, s.db.Close())
	})
	return err
}

// Size is the file's length in bytes.
func (s *Store) Size() int64 {
	info, err := os.Stat(s.options.Path)
	if err != nil {
		return 0
	}
	return info.Size()
}
