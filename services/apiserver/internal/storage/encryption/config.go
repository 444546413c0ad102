package encryption

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
)

// codecs reads configurations, strictly.
var codecs = sync.OnceValues(func() (serializer.CodecFactory, error) {
	scheme := runtime.NewScheme()
	err := errors.Join(apiserver.AddToScheme(scheme), apiserverv1.AddToScheme(scheme))
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict), err
})

// table is a configuration in use.
type table struct {
	chains map[schema.GroupResource]*chain
	kms    []*kms
	hash   [sha256.Size]byte
	close  context.CancelFunc // ends what follows key services
}

// of is the chain of a resource; nil stores it as it is.
func (t *table) of(resource schema.GroupResource) *chain {
	for _, pattern := range []schema.GroupResource{resource, {Group: resource.Group, Resource: "*"}, {Group: "*", Resource: "*"}} {
		if c := t.chains[pattern]; c != nil {
			return c
		}
	}
	return nil
}

func hashOf(file string) (data []byte, hash [sha256.Size]byte, err error) {
	data, err = os.ReadFile(file)
	return data, sha256.Sum256(data), err
}

// load reads an EncryptionConfiguration and starts its providers.
func load(ctx context.Context, file string, reload bool, measures *measures) (*table, error) {
	data, hash, err := hashOf(file)
	if err != nil {
		return nil, err
	}
	config, err := decode(data, reload)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	t := &table{chains: map[schema.GroupResource]*chain{}, hash: hash, close: cancel}
	for _, entry := range config.Resources {
		if err := t.add(ctx, entry, measures); err != nil {
			cancel()
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	for _, k := range t.kms {
		go k.run(ctx)
	}
	return t, nil
}

func decode(data []byte, reload bool) (*apiserver.EncryptionConfiguration, error) {
	factory, err := codecs()
	if err != nil {
		return nil, err
	}
	obj, kind, err := factory.UniversalDecoder().Decode(data, nil, nil)
	if err != nil {
		return nil, err
	}
	config, is := obj.(*apiserver.EncryptionConfiguration)
	if !is {
		return nil, fmt.Errorf("it is a %v, not an EncryptionConfiguration", kind)
	}
	return config, validation.ValidateEncryptionConfiguration(config, reload).ToAggregate()
}

func (t *table) add(ctx context.Context, entry apiserver.ResourceConfiguration, measures *measures) error {
	var providers []provider
	for _, p := range entry.Providers {
		if p.KMS != nil {
			k, provider, err := startKMS(ctx, p.KMS)
			if err != nil {
				return err
			}
			t.kms = append(t.kms, k)
			providers = append(providers, provider)
			continue
		}
		more, err := local(p)
		if err != nil {
			return err
		}
		providers = append(providers, more...)
	}
	for _, resource := range entry.Resources {
		pattern := schema.ParseGroupResource(resource)
		if t.chains[pattern] == nil {
			t.chains[pattern] = &chain{resource: pattern.String(), measures: measures}
		}
		t.chains[pattern].providers = append(t.chains[pattern].providers, providers...)
	}
	return nil
}
