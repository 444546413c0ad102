package pulling

import (
	"strings"
	"sync"
	"time"

	providerv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
)

// credentialCache keeps what plugins have answered, each for as long and for as many
// images as the plugin says.
type credentialCache struct {
	mu      sync.Mutex
	entries map[string]cachedRing
}

type cachedRing struct {
	ring    keyring
	expires time.Time
}

func newCredentialCache() *credentialCache {
	return &credentialCache{entries: map[string]cachedRing{}}
}

func cacheKey(plugin, scope string, kind providerv1.PluginCacheKeyType, image string) string {
	what := ""
	switch kind {
	case providerv1.ImagePluginCacheKeyType:
		what = image
	case providerv1.RegistryPluginCacheKeyType:
		what = serverOf(image)
	}
	return strings.Join([]string{plugin, scope, string(kind), what}, "\x00")
}

// get looks for the most precise answer first.
func (c *credentialCache) get(plugin, scope, image string, now time.Time) (keyring, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, kind := range []providerv1.PluginCacheKeyType{providerv1.ImagePluginCacheKeyType, providerv1.RegistryPluginCacheKeyType, providerv1.GlobalPluginCacheKeyType} {
		if entry, ok := c.entries[cacheKey(plugin, scope, kind, image)]; ok && now.Before(entry.expires) {
			return entry.ring, true
		}
	}
	return nil, false
}

func (c *credentialCache) put(plugin, scope, image string, kind providerv1.PluginCacheKeyType, ring keyring, expires time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, entry := range c.entries {
		if time.Now().After(entry.expires) {
			delete(c.entries, key)
		}
	}
	c.entries[cacheKey(plugin, scope, kind, image)] = cachedRing{ring, expires}
}
