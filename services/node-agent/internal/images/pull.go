package images

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// Credentials are those for one pull, as the CRI hands them over; all may be empty.
type Credentials struct {
	Username, Password string
	Auth               string // base64 of user:password
	ServerAddress      string // when set, they are for this registry only
	IdentityToken      string
	RegistryToken      string
}

func (c Credentials) authenticator(registry string) (authn.Authenticator, error) {
	if c.ServerAddress != "" && !sameHost(c.ServerAddress, registry) {
		return authn.Anonymous, nil
	}
	switch {
	case c.Username != "":
		return authn.FromConfig(authn.AuthConfig{Username: c.Username, Password: c.Password}), nil
	case c.IdentityToken != "":
		return authn.FromConfig(authn.AuthConfig{IdentityToken: c.IdentityToken}), nil
	case c.RegistryToken != "":
		return authn.FromConfig(authn.AuthConfig{RegistryToken: c.RegistryToken}), nil
	case c.Auth != "":
		decoded, err := base64.StdEncoding.DecodeString(c.Auth)
		user, password, found := strings.Cut(string(decoded), ":")
		if err != nil || !found {
			return nil, errors.New("the registry credentials are malformed")
		}
		return authn.FromConfig(authn.AuthConfig{Username: user, Password: strings.TrimRight(password, "\x00")}), nil
	}
	return authn.Anonymous, nil
}

func sameHost(address, registry string) bool {
	if !strings.Contains(address, "://") {
		address = "https://" + address
	}
	parsed, err := url.Parse(address)
	if err != nil {
		return false
	}
	return familiarHost(parsed.Host) == familiarHost(registry)
}

func familiarHost(host string) string {
	if host == "index.docker.io" || host == "registry-1.docker.io" {
		return "docker.io"
	}
	return host
}

// Pull fetches an image with all layers that are not there yet. Mirrors are tried in
// the order of the registry's hosts.toml, and the registry itself last.
func (s *Store) Pull(ctx context.Context, ref string, credentials Credentials) (*Image, error) {
	parsed, err := parse(ref)
	if err != nil {
		return nil, err
	}
	endpoints, err := s.endpoints(parsed.Context().RegistryStr())
	if err != nil {
		return nil, fmt.Errorf("pulling %s: %w", ref, err)
	}
	return s.measured(ctx, familiar(parsed.Name()), func(ctx context.Context, m *meter) (*Image, error) {
		return s.pullAny(ctx, parsed, endpoints, credentials, m)
	})
}

func (s *Store) pullAny(ctx context.Context, parsed name.Reference, endpoints []endpoint, credentials Credentials, m *meter) (*Image, error) {
	var errs []error
	for _, endpoint := range endpoints {
		image, err := s.pullFrom(ctx, parsed, endpoint, credentials, m)
		if err == nil {
			s.cfg.Log.InfoContext(ctx, "Pulled an image", "image", familiar(parsed.Name()), "id", image.ID, "bytes", image.Size)
			return image, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("pulling %s: %w", familiar(parsed.Name()), errors.Join(errs...))
}

func (s *Store) pullFrom(ctx context.Context, ref name.Reference, at endpoint, credentials Credentials, m *meter) (*Image, error) {
	target, err := at.reference(ref)
	if err != nil {
		return nil, err
	}
	auth, err := credentials.authenticator(ref.Context().RegistryStr())
	if err != nil {
		return nil, err
	}
	descriptor, err := remote.Get(target, remote.WithContext(ctx), remote.WithAuth(auth), remote.WithPlatform(s.platform), remote.WithTransport(at.transport))
	if err != nil {
		return nil, err
	}
	image, err := s.chooseImage(descriptor)
	if err != nil {
		return nil, err
	}
	digests := []string{familiar(ref.Context().Name()) + "@" + descriptor.Digest.String()}
	var tags []string
	if tag, ok := ref.(name.Tag); ok {
		tags = []string{familiar(tag.Name())}
	}
	return s.ingest(ctx, image, tags, digests, m)
}

func (s *Store) chooseImage(descriptor *remote.Descriptor) (v1.Image, error) {
	image, err := descriptor.Image()
	if err != nil {
		return nil, fmt.Errorf("choosing the image for %s: %w", s.platform.String(), err)
	}
	return image, nil
}
