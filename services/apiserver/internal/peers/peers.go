// Package peers lets the API servers over one store know of each other: each
// keeps a key with its address there, which goes when the server has not renewed
// it for a while. Keys and values are upstream's.
package peers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
)

const (
	prefix = "/registry/masterleases/"
	// life is how long a server counts after it was heard of last, upstream's figure.
	life         = 15 * time.Second
	leaveTimeout = 5 * time.Second
)

// Peers are the API servers over a store, of which one is this.
type Peers struct {
	store   storage.Interface
	address net.IP

	revision int64 // of this server's key; 0 before the first announcement
}

// New is for the server that clients reach at address. It is used by one
// goroutine at a time.
func New(store storage.Interface, address net.IP) *Peers {
	return &Peers{store: store, address: address}
}

func (p *Peers) key() string { return prefix + p.address.String() }

// Announce tells the others of this server, for a while: it must be called
// again within ten seconds or so.
func (p *Peers) Announce(ctx context.Context) error {
	value, err := encode(p.address)
	if err != nil {
		return err
	}
	put := storage.Put{Key: p.key(), Value: value, TTL: life}
	for {
		kv, err := p.write(ctx, put)
		var exists *storage.ExistsError
		var conflict *storage.ConflictError
		switch {
		case errors.As(err, &exists): // of this server's earlier life
			p.revision = exists.Current.Revision
		case errors.As(err, &conflict):
			p.revision = conflict.Current.Revision
		case errors.Is(err, storage.ErrNotFound):
			p.revision = 0
		case err != nil:
			return fmt.Errorf("announcing this API server: %w", err)
		default:
			p.revision = kv.Revision
			return nil
		}
	}
}

func (p *Peers) write(ctx context.Context, put storage.Put) (storage.KeyValue, error) {
	if p.revision == 0 {
		return p.store.Create(ctx, put)
	}
	return p.store.Update(ctx, put, p.revision)
}

// Addresses are where all servers are reached that count now, in order.
func (p *Peers) Addresses(ctx context.Context) ([]net.IP, error) {
	list, err := p.store.List(ctx, prefix, storage.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing the API servers: %w", err)
	}
	var out []net.IP
	for _, item := range list.Items {
		if ip := net.ParseIP(strings.TrimPrefix(item.Key, prefix)); ip != nil {
			out = append(out, ip)
		}
	}
	slices.SortFunc(out, func(a, b net.IP) int { return bytes.Compare(a.To16(), b.To16()) })
	return out, nil
}

// Leave tells the others that this server does not count any more.
func (p *Peers) Leave(ctx context.Context) error {
	if p.revision == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	if _, err := p.store.Delete(ctx, p.key(), p.revision); err != nil && !errors.Is(err, storage.ErrNotFound) {
		return fmt.Errorf("leaving the other API servers: %w", err)
	}
	p.revision = 0
	return nil
}

// encode is the value that upstream stores.
func encode(address net.IP) ([]byte, error) {
	obj := &corev1.Endpoints{ //nolint:staticcheck // the kind that upstream stores
		Subsets: []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: address.String()}}}}, //nolint:staticcheck // as above
	}
	serializer := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	data, err := runtime.Encode(scheme.Codecs.EncoderForVersion(serializer, corev1.SchemeGroupVersion), obj)
	if err != nil {
		return nil, fmt.Errorf("encoding the address of this API server: %w", err)
	}
	return data, nil
}
