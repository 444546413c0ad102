package pulling

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletconfigv1 "k8s.io/kubelet/config/v1"
	providerv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
	"sigs.k8s.io/yaml"
)

// Accounts is what plugins that act for a pod's service account need.
type Accounts interface {
	// Token is one for the pod's service account, bound to the pod.
	Token(ctx context.Context, pod *corev1.Pod, audience string, lifetime time.Duration) (token string, renew time.Time, err error)
	// Account is the pod's service account.
	Account(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error)
}

// pluginTimeout is upstream's.
const pluginTimeout = time.Minute

// Plugins are credential providers: programs that are asked for the credentials of
// images (KEP-2133, KEP-4412).
type Plugins struct {
	dir      string
	list     []kubeletconfigv1.CredentialProvider
	accounts Accounts
	cache    *credentialCache
}

// LoadPlugins reads upstream's CredentialProviderConfig, of v1 alone. Programs are looked
// for in dir.
func LoadPlugins(path, dir string, accounts Accounts) (*Plugins, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading credential provider configuration: %w", err)
	}
	config := kubeletconfigv1.CredentialProviderConfig{}
	if err := yaml.UnmarshalStrict(data, &config); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if config.Kind != "CredentialProviderConfig" || config.APIVersion != kubeletconfigv1.SchemeGroupVersion.String() {
		return nil, fmt.Errorf("%s: it is a %s of %s, not a CredentialProviderConfig of %s", path, config.Kind, config.APIVersion, kubeletconfigv1.SchemeGroupVersion)
	}
	var errs []error
	seen := map[string]bool{}
	for _, provider := range config.Providers {
		err := checkProvider(provider, dir)
		if err == nil && seen[provider.Name] {
			err = errors.New("it is there twice")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: provider %q: %w", path, provider.Name, err))
		}
		seen[provider.Name] = true
	}
	if len(config.Providers) == 0 {
		errs = append(errs, fmt.Errorf("%s: at least one provider is needed", path))
	}
	return &Plugins{dir: dir, list: config.Providers, accounts: accounts, cache: newCredentialCache()}, errors.Join(errs...)
}

func checkProvider(p kubeletconfigv1.CredentialProvider, dir string) error {
	switch {
	case p.Name == "" || p.Name == "." || p.Name == ".." || strings.ContainsAny(p.Name, "/\\ "):
		return errors.New("the name is not that of a file")
	case p.APIVersion != providerv1.SchemeGroupVersion.String():
		return fmt.Errorf("apiVersion %q is not supported, only %s", p.APIVersion, providerv1.SchemeGroupVersion)
	case len(p.MatchImages) == 0:
		return errors.New("matchImages is needed")
	case p.DefaultCacheDuration == nil || p.DefaultCacheDuration.Duration < 0:
		return errors.New("defaultCacheDuration is needed, and not negative")
	}
	if err := checkTokenAttributes(p.TokenAttributes); err != nil {
		return fmt.Errorf("tokenAttributes: %w", err)
	}
	if info, err := os.Stat(filepath.Join(dir, p.Name)); err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
		return fmt.Errorf("there is no program of that name in %s", dir)
	}
	return nil
}

func checkTokenAttributes(t *kubeletconfigv1.ServiceAccountTokenAttributes) error {
	if t == nil {
		return nil
	}
	switch {
	case t.ServiceAccountTokenAudience == "" || t.RequireServiceAccount == nil:
		return errors.New("serviceAccountTokenAudience and requireServiceAccount are needed")
	case t.CacheType != kubeletconfigv1.ServiceAccountServiceAccountTokenCacheType && t.CacheType != kubeletconfigv1.TokenServiceAccountTokenCacheType:
		return fmt.Errorf("cacheType %q is neither ServiceAccount nor Token", t.CacheType)
	case len(t.RequiredServiceAccountAnnotationKeys) > 0 && !*t.RequireServiceAccount:
		return errors.New("required annotations need requireServiceAccount")
	}
	return nil
}

// keyring asks the plugins that match the image. One that fails leaves the others to it;
// the error tells of it.
func (p *Plugins) keyring(ctx context.Context, image string, pod *corev1.Pod) (keyring, error) {
	if p == nil {
		return nil, nil
	}
	where := imageLocation(image)
	var ring keyring
	var errs []error
	for _, provider := range p.list {
		if !slices.ContainsFunc(provider.MatchImages, func(pattern string) bool { return matches(normalizeRegistry(pattern), where) }) {
			continue
		}
		found, err := p.ask(ctx, provider, image, pod)
		if err != nil {
			errs = append(errs, fmt.Errorf("credential provider %s: %w", provider.Name, err))
		}
		ring = append(ring, found...)
	}
	return ring, errors.Join(errs...)
}

func (p *Plugins) ask(ctx context.Context, provider kubeletconfigv1.CredentialProvider, image string, pod *corev1.Pod) (keyring, error) {
	request := &providerv1.CredentialProviderRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: provider.APIVersion, Kind: "CredentialProviderRequest"}, Image: image,
	}
	scope, err := p.actFor(ctx, provider.TokenAttributes, pod, request)
	if err != nil {
		return nil, err
	}
	if ring, ok := p.cache.get(provider.Name, scope, image, time.Now()); ok {
		return ring, nil
	}
	response, err := p.run(ctx, provider, request)
	if err != nil {
		return nil, err
	}
	var ring keyring
	for registry, auth := range response.Auth {
		ring = append(ring, credential{
			registry: normalizeRegistry(registry),
			auth:     &runtimeapi.AuthConfig{Username: auth.Username, Password: auth.Password},
		})
	}
	ring.sort()
	lifetime := provider.DefaultCacheDuration.Duration
	if response.CacheDuration != nil {
		lifetime = response.CacheDuration.Duration
	}
	if lifetime > 0 {
		p.cache.put(provider.Name, scope, image, response.CacheKeyType, ring, time.Now().Add(lifetime))
	}
	return ring, nil
}

// serverOf is the image's registry.
func serverOf(image string) string {
	host, _, _ := strings.Cut(imageLocation(image), "/")
	return host
}

// actFor puts the pod's service account into the request, and returns for whom the answer
// may be kept.
func (p *Plugins) actFor(ctx context.Context, attributes *kubeletconfigv1.ServiceAccountTokenAttributes, pod *corev1.Pod, request *providerv1.CredentialProviderRequest) (scope string, err error) {
	if attributes == nil {
		return "", nil
	}
	if pod.Spec.ServiceAccountName == "" {
		if *attributes.RequireServiceAccount {
			return "", errors.New("the pod has no service account")
		}
		return "", nil
	}
	account, err := p.accounts.Account(ctx, pod.Namespace, pod.Spec.ServiceAccountName)
	if err != nil {
		return "", err
	}
	request.ServiceAccountAnnotations = map[string]string{}
	for _, key := range attributes.RequiredServiceAccountAnnotationKeys {
		value, ok := account.Annotations[key]
		if !ok {
			return "", fmt.Errorf("service account %s/%s has no annotation %s", account.Namespace, account.Name, key)
		}
		request.ServiceAccountAnnotations[key] = value
	}
	for _, key := range attributes.OptionalServiceAccountAnnotationKeys {
		if value, ok := account.Annotations[key]; ok {
			request.ServiceAccountAnnotations[key] = value
		}
	}
	const lifetime = 10 * time.Minute
	if request.ServiceAccountToken, _, err = p.accounts.Token(ctx, pod, attributes.ServiceAccountTokenAudience, lifetime); err != nil {
		return "", err
	}
	annotations, err := json.Marshal(request.ServiceAccountAnnotations)
	if err != nil {
		return "", err
	}
	scope = strings.Join([]string{account.Namespace, account.Name, string(account.UID), string(annotations)}, "\x00")
	if attributes.CacheType == kubeletconfigv1.TokenServiceAccountTokenCacheType {
		scope += "\x00" + request.ServiceAccountToken
	}
	return scope, nil
}

// run executes the plugin.
func (p *Plugins) run(ctx context.Context, provider kubeletconfigv1.CredentialProvider, request *providerv1.CredentialProviderRequest) (*providerv1.CredentialProviderResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, pluginTimeout)
	defer cancel()
	input, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(p.dir, provider.Name), provider.Args...)
	cmd.Env = os.Environ()
	for _, variable := range provider.Env {
		cmd.Env = append(cmd.Env, variable.Name+"="+variable.Value)
	}
	stdout, stderr := &bounded{most: 1 << 20}, &bounded{most: 1 << 12}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), stdout, stderr
	cmd.WaitDelay = time.Second // for what it may have started
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	response := &providerv1.CredentialProviderResponse{}
	if err := json.Unmarshal(stdout.Bytes(), response); err != nil {
		return nil, fmt.Errorf("reading its answer: %w", err)
	}
	if response.Kind != "CredentialProviderResponse" || response.APIVersion != provider.APIVersion {
		return nil, fmt.Errorf("its answer is a %q of %q", response.Kind, response.APIVersion)
	}
	switch response.CacheKeyType {
	case providerv1.ImagePluginCacheKeyType, providerv1.RegistryPluginCacheKeyType, providerv1.GlobalPluginCacheKeyType:
		return response, nil
	}
	return nil, fmt.Errorf("its answer has the cacheKeyType %q", response.CacheKeyType)
}

// bounded fails when more is written than it may hold.
type bounded struct {
	bytes.Buffer
	most int
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > b.most {
		return 0, fmt.Errorf("more than %d bytes of output", b.most)
	}
	return b.Buffer.Write(p)
}
