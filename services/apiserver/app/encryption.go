package app

import (
	"context"
	"fmt"
	"path"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/rest"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage/encryption"
	"github.com/sampan-io/sampan/services/internal/component"
)

// encrypted is the store behind the configured encryption, until life ends.
func (s *server) encrypted(life context.Context, store storage.Interface) (storage.Interface, error) {
	if s.Store.EncryptionFile == "" {
		return store, nil
	}
	resources := map[string]schema.GroupResource{}
	for _, cache := range rest.CacheConfigs(s.resources) {
		resources[strings.TrimSuffix(cache.Prefix, "/")] = cache.Resource
	}
	prefix := registryRoot
	if s.Etcd.used() {
		prefix = path.Join("/", s.Etcd.Prefix)
	}
	encrypted, err := encryption.New(life, store, encryption.Options{
		File: s.Store.EncryptionFile, Reload: s.Store.EncryptionReload, Root: registryRoot, Prefix: prefix, Resources: resources, Log: s.log,
	})
	if err != nil {
		return nil, &component.UsageError{Err: fmt.Errorf("--encryption-provider-config: %w", err)}
	}
	s.health.AddReady(component.Check{Name: "kms-providers", Probe: encrypted.Healthy})
	return encrypted, nil
}
