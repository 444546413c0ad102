package encryption

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/storage/value/encrypt/envelope/kmsv2"
	kmsservice "k8s.io/kms/pkg/service"
)

const (
	// kmsLife is how long values are written with a seed whose service does not
	// answer; reads go on.
	kmsLife = 3 * time.Minute
	// kmsEvery and kmsSoon are the pauses between questions to a healthy service and
	// to one that is not.
	kmsEvery = time.Minute
	kmsSoon  = 10 * time.Second
	// kmsStart is the time that a service has to answer first.
	kmsStart = 10 * time.Second
)

// kms follows one key management service: a seed that it has wrapped encrypts
// values, until the service names another key.
type kms struct {
	name    string
	service kmsservice.Service
	current atomic.Pointer[kmsv2.State]

	mu   sync.Mutex
	last error
}

// startKMS connects to a service, until ctx ends, and has it wrap a seed.
func startKMS(ctx context.Context, config *apiserver.KMSConfiguration) (*kms, provider, error) {
	if config.APIVersion != "v2" {
		return nil, provider{}, fmt.Errorf("kms %s: apiVersion %s is not supported, only v2", config.Name, config.APIVersion)
	}
	service, err := kmsv2.NewGRPCService(ctx, config.Endpoint, config.Name, config.Timeout.Duration)
	if err != nil {
		return nil, provider{}, fmt.Errorf("kms %s: %w", config.Name, err)
	}
	k := &kms{name: config.Name, service: service}
	starting, cancel := context.WithTimeout(ctx, kmsStart)
	defer cancel()
	if err := k.ask(starting); err != nil {
		return nil, provider{}, err
	}
	const server = "" // upstream tells its servers apart in a metric
	t := kmsv2.NewEnvelopeTransformer(service, config.Name, k.state, server)
	return k, newProvider(allPrefixes+"kms:v2:"+config.Name+":", t.TransformFromStorage, t.TransformToStorage), nil
}

// follow asks the service for its health and its key: the seed lives on while the key
// stays, and is replaced when it changes.
func (k *kms) follow(ctx context.Context) error {
	status, err := k.service.Status(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("asking for its status: %w", err)
	case status.Healthz != "ok":
		return fmt.Errorf("it is not healthy: %s", status.Healthz)
	case status.Version != kmsv2.KMSAPIVersionv2 && status.Version != kmsv2.KMSAPIVersionv2beta1:
		return fmt.Errorf("it speaks version %q, not %s", status.Version, kmsv2.KMSAPIVersionv2)
	}
	if _, err := kmsv2.ValidateKeyID(status.KeyID); err != nil {
		return fmt.Errorf("the name of its key: %w", err)
	}
	until := time.Now().Add(kmsLife)
	if state := k.current.Load(); state != nil && state.EncryptedObjectKeyID == status.KeyID {
		extended := *state
		extended.ExpirationTimestamp = until
		k.current.Store(&extended)
		return nil
	}
	uid := uuid.NewString()
	seed, wrapped, cacheKey, err := kmsv2.GenerateTransformer(ctx, uid, k.service, true)
	if err != nil {
		return fmt.Errorf("having a seed wrapped: %w", err)
	}
	if wrapped.KeyID != status.KeyID {
		return errors.New("it wraps by another key than it names")
	}
	k.current.Store(&kmsv2.State{
		Transformer: seed, EncryptedObjectKeyID: wrapped.KeyID, EncryptedObjectEncryptedDEKSource: wrapped.EncryptedDEKSource,
		EncryptedObjectAnnotations: wrapped.Annotations, EncryptedObjectEncryptedDEKSourceType: wrapped.EncryptedDEKSourceType,
		UID: uid, ExpirationTimestamp: until, CacheKey: cacheKey, KMSProviderName: k.name,
	})
	return nil
}

func (k *kms) state() (kmsv2.State, error) {
	if state := k.current.Load(); state != nil {
		return *state, nil
	}
	return kmsv2.State{}, fmt.Errorf("kms %s has wrapped no seed yet", k.name)
}

// ask is one question to the service, whose outcome the health check tells.
func (k *kms) ask(ctx context.Context) error {
	err := k.follow(ctx)
	if err != nil {
		err = fmt.Errorf("kms %s: %w", k.name, err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.last = err
	return err
}

// run asks the service from time to time until ctx ends.
func (k *kms) run(ctx context.Context) {
	pause := kmsEvery
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = kmsEvery
		if k.ask(ctx) != nil {
			pause = kmsSoon
		}
	}
}

func (k *kms) healthy() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.last
}
