// Package pulling makes sure that a container's image is on the node, as its
// pull policy and its pod's secrets say.
package pulling

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// keyring has the credentials of a pod's pull secrets.
type keyring []credential

type credential struct {
	registry string // "host[:port][/path]", the host may have wildcards
	auth     *runtimeapi.AuthConfig
}

type dockerAuth struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

// newKeyring reads secrets of the types dockerconfigjson and dockercfg; it returns
// what it could read along with the first error.
func newKeyring(secrets []*corev1.Secret) (keyring, error) {
	var ring keyring
	var first error
	for _, secret := range secrets {
		auths, err := parseSecret(secret)
		if err != nil && first == nil {
			first = fmt.Errorf("pull secret %s/%s: %w", secret.Namespace, secret.Name, err)
		}
		for registry, auth := range auths {
			ring = append(ring, credential{registry: normalizeRegistry(registry), auth: auth.config(registry)})
		}
	}
	ring.sort()
	return ring, first
}

// sort puts the most precise entry first of those that match an image.
func (k keyring) sort() {
	slices.SortStableFunc(k, func(a, b credential) int { return strings.Compare(b.registry, a.registry) })
}

func parseSecret(secret *corev1.Secret) (map[string]dockerAuth, error) {
	if data, ok := secret.Data[corev1.DockerConfigJsonKey]; ok {
		var config struct {
			Auths map[string]dockerAuth `json:"auths"`
		}
		err := json.Unmarshal(data, &config)
		return config.Auths, err
	}
	if data, ok := secret.Data[corev1.DockerConfigKey]; ok {
		var auths map[string]dockerAuth
		err := json.Unmarshal(data, &auths)
		return auths, err
	}
	return nil, nil
}

func (a dockerAuth) config(registry string) *runtimeapi.AuthConfig {
	config := &runtimeapi.AuthConfig{
		Username: a.Username, Password: a.Password, ServerAddress: registry, IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken,
	}
	if a.Auth == "" || a.Username != "" {
		return config
	}
	if decoded, err := base64.StdEncoding.DecodeString(a.Auth); err == nil {
		config.Username, config.Password, _ = strings.Cut(strings.TrimRight(string(decoded), "\x00"), ":")
	}
	return config
}

// normalizeRegistry drops the scheme and the API version that old tools write.
func normalizeRegistry(registry string) string {
	registry = strings.TrimPrefix(strings.TrimPrefix(registry, "https://"), "http://")
	registry = strings.TrimSuffix(registry, "/")
	for _, version := range []string{"/v1", "/v2"} {
		registry = strings.TrimSuffix(registry, version)
	}
	switch registry {
	case "docker.io", "registry-1.docker.io":
		return "index.docker.io"
	}
	return registry
}

// lookup finds the credentials for an image, the best first.
func (k keyring) lookup(image string) []*runtimeapi.AuthConfig {
	where := imageLocation(image)
	var found []*runtimeapi.AuthConfig
	for _, entry := range k {
		if matches(entry.registry, where) {
			auth := proto.CloneOf(entry.auth)
			auth.ServerAddress = serverOf(image) // an entry may be a pattern, which is no server
			found = append(found, auth)
		}
	}
	return found
}

// imageLocation is the registry and repository of an image: "index.docker.io/library/busybox".
func imageLocation(image string) string {
	name, _, _ := strings.Cut(image, "@")
	if at := strings.LastIndexByte(name, ':'); at > strings.LastIndexByte(name, '/') {
		name = name[:at]
	}
	host, rest, found := strings.Cut(name, "/")
	if !found || (!strings.ContainsAny(host, ".:") && host != "localhost") {
		if !found {
			name = "library/" + name
		}
		return "index.docker.io/" + name
	}
	return normalizeRegistry(host) + "/" + rest
}

// matches compares hosts label by label, where * stands for any one, and paths by
// their beginnings.
func matches(pattern, where string) bool {
	patternURL, err := url.Parse("//" + pattern)
	if err != nil {
		return false
	}
	whereURL, err := url.Parse("//" + where)
	if err != nil || patternURL.Port() != whereURL.Port() || !strings.HasPrefix(whereURL.Path, patternURL.Path) {
		return false
	}
	patternLabels, labels := strings.Split(patternURL.Hostname(), "."), strings.Split(whereURL.Hostname(), ".")
	if len(patternLabels) != len(labels) {
		return false
	}
	for i := range labels {
		if ok, err := path.Match(patternLabels[i], labels[i]); err != nil || !ok {
			return false
		}
	}
	return true
}
