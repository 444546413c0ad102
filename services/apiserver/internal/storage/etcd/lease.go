package etcd

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// reuseFraction bounds how much longer than it asked a key may live, because it
	// shares a lease.
	reuseFraction = 0.05
	keysPerLease  = 1000
)

// leases hands out leases, the last one again while it ends when a new one
// would: a lease for each key would cost etcd more than the keys.
type leases struct {
	client *clientv3.Client
	reuse  time.Duration

	mu   sync.Mutex
	id   clientv3.LeaseID
	ends time.Time
	keys int
}

// get is a lease that ends at least ttl from now, and the zero lease for a key
// that is kept.
func (l *leases) get(ctx context.Context, ttl time.Duration) (clientv3.LeaseID, error) {
	if ttl <= 0 {
		return clientv3.NoLease, nil
	}
	seconds := int64((ttl + time.Second - 1) / time.Second)
	ttl = time.Duration(seconds) * time.Second
	extra := min(l.reuse, time.Duration(reuseFraction*float64(ttl))).Truncate(time.Second)
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.keys < keysPerLease && !l.ends.Before(now.Add(ttl)) && !l.ends.After(now.Add(ttl+extra)) {
		l.keys++
		return l.id, nil
	}
	granted, err := l.client.Grant(ctx, int64((ttl+extra)/time.Second))
	if err != nil {
		return clientv3.NoLease, err
	}
	l.id, l.ends, l.keys = granted.ID, now.Add(ttl+extra), 1
	return l.id, nil
}
