package encryption

import (
	"bytes"
	"context"
	"crypto/aes"
	"encoding/base64"
	"errors"
	"fmt"

	"k8s.io/apiserver/pkg/apis/apiserver"
	aestransformer "k8s.io/apiserver/pkg/storage/value/encrypt/aes"
	"k8s.io/apiserver/pkg/storage/value/encrypt/secretbox"
)

// allPrefixes is what every encrypted value starts with.
const allPrefixes = "k8s:enc:"

// provider encrypts values and finds its own by their prefix; one without a
// prefix is the identity.
type provider struct {
	prefix  string
	encrypt func(ctx context.Context, plain []byte, key string) ([]byte, error)
	// decrypt says also whether the provider would encrypt the value otherwise now.
	decrypt func(ctx context.Context, data []byte, key string) (plain []byte, stale bool, err error)
}

// place binds a value to the key that it is stored at: it cannot be read at
// another.
type place string

// AuthenticatedData implements the context of upstream's transformers.
func (p place) AuthenticatedData() []byte { return []byte(p) }

// newProvider makes a provider of an upstream transformer's two methods. C is the
// interface of their context, which place implements.
func newProvider[C any](prefix string, read func(context.Context, []byte, C) ([]byte, bool, error), write func(context.Context, []byte, C) ([]byte, error)) provider {
	at := func(key string) C { return any(place(key)).(C) }
	return provider{
		prefix: prefix,
		encrypt: func(ctx context.Context, plain []byte, key string) ([]byte, error) {
			data, err := write(ctx, plain, at(key))
			if err != nil {
				return nil, err
			}
			return append([]byte(prefix), data...), nil
		},
		decrypt: func(ctx context.Context, data []byte, key string) ([]byte, bool, error) {
			return read(ctx, data[len(prefix):], at(key))
		},
	}
}

// identity stores values as they are, and refuses to take an encrypted one for
// plain.
func identity() provider {
	return provider{
		encrypt: func(_ context.Context, plain []byte, _ string) ([]byte, error) { return plain, nil },
		decrypt: func(_ context.Context, data []byte, _ string) ([]byte, bool, error) {
			if bytes.HasPrefix(data, []byte(allPrefixes)) {
				return nil, false, errors.New("the value is encrypted, and no provider is configured that can read it")
			}
			return data, false, nil
		},
	}
}

// local are the providers of keys that the configuration holds.
func local(p apiserver.ProviderConfiguration) ([]provider, error) {
	switch {
	case p.Identity != nil:
		return []provider{identity()}, nil
	case p.AESGCM != nil:
		return withKeys("aesgcm", p.AESGCM.Keys, func(prefix string, key []byte) (provider, error) {
			block, err := aes.NewCipher(key)
			if err != nil {
				return provider{}, err
			}
			t, err := aestransformer.NewGCMTransformer(block)
			if err != nil {
				return provider{}, err
			}
			return newProvider(prefix, t.TransformFromStorage, t.TransformToStorage), nil
		})
	case p.AESCBC != nil:
		return withKeys("aescbc", p.AESCBC.Keys, func(prefix string, key []byte) (provider, error) {
			block, err := aes.NewCipher(key)
			if err != nil {
				return provider{}, err
			}
			t := aestransformer.NewCBCTransformer(block)
			return newProvider(prefix, t.TransformFromStorage, t.TransformToStorage), nil
		})
	case p.Secretbox != nil:
		return withKeys("secretbox", p.Secretbox.Keys, func(prefix string, key []byte) (provider, error) {
			const size = 32
			if len(key) != size {
				return provider{}, fmt.Errorf("a key of secretbox has %d bytes, not %d", size, len(key))
			}
			t := secretbox.NewSecretboxTransformer([size]byte(key))
			return newProvider(prefix, t.TransformFromStorage, t.TransformToStorage), nil
		})
	}
	return nil, errors.New("a provider is none of identity, aesgcm, aescbc, secretbox and kms")
}

func withKeys(kind string, keys []apiserver.Key, each func(prefix string, key []byte) (provider, error)) ([]provider, error) {
	out := make([]provider, 0, len(keys))
	for _, key := range keys {
		secret, err := base64.StdEncoding.DecodeString(key.Secret)
		if err != nil {
			return nil, fmt.Errorf("key %s of %s: not base64", key.Name, kind)
		}
		p, err := each(allPrefixes+kind+":v1:"+key.Name+":", secret)
		if err != nil {
			return nil, fmt.Errorf("key %s of %s: %w", key.Name, kind, err)
		}
		out = append(out, p)
	}
	return out, nil
}

// chain is the providers of a resource: the first encrypts, all decrypt.
type chain struct {
	resource  string
	providers []provider
	measures  *measures
}

func (c *chain) encrypt(ctx context.Context, plain []byte, key string) ([]byte, error) {
	done := c.measures.begin(toStorage, c.resource)
	data, err := c.providers[0].encrypt(ctx, plain, key)
	done(c.providers[0].prefix, err)
	if err != nil {
		return nil, &Error{Key: key, Err: fmt.Errorf("encrypting: %w", err)}
	}
	return data, nil
}

// decrypt says also whether the value would be encrypted otherwise now.
func (c *chain) decrypt(ctx context.Context, data []byte, key string) (plain []byte, stale bool, err error) {
	done := c.measures.begin(fromStorage, c.resource)
	var errs []error
	for i, p := range c.providers {
		if !bytes.HasPrefix(data, []byte(p.prefix)) {
			continue
		}
		plain, stale, err := p.decrypt(ctx, data, key)
		if err == nil {
			done(p.prefix, nil)
			return plain, stale || i != 0, nil
		}
		errs = append(errs, fmt.Errorf("provider %q: %w", name(p.prefix), err))
	}
	if errs == nil {
		errs = append(errs, errors.New("no provider is configured for values of its kind"))
	}
	err = &Error{Key: key, Err: fmt.Errorf("decrypting: %w", errors.Join(errs...))}
	done("unknown", err)
	return nil, false, err
}

// name is a prefix as people configure it.
func name(prefix string) string {
	if prefix == "" {
		return "identity"
	}
	return prefix[len(allPrefixes) : len(prefix)-1]
}

// Error says which value could not be encrypted or decrypted, and why.
type Error struct {
	Key string
	Err error
}

func (e *Error) Error() string { return e.Key + ": " + e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }
