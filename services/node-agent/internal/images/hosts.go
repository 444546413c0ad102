package images

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// endpoint is one place to pull from: a mirror or the registry itself.
type endpoint struct {
	host      string // empty for the registry itself
	insecure  bool   // plain HTTP
	transport http.RoundTripper
}

// reference is the image's name at the endpoint.
func (e endpoint) reference(ref name.Reference) (name.Reference, error) {
	if e.host == "" && !e.insecure {
		return ref, nil
	}
	host := e.host
	if host == "" {
		host = ref.Context().RegistryStr()
	}
	var options []name.Option
	if e.insecure {
		options = append(options, name.Insecure)
	}
	separator := ":"
	if _, ok := ref.(name.Digest); ok {
		separator = "@"
	}
	return name.ParseReference(host+"/"+ref.Context().RepositoryStr()+separator+ref.Identifier(), options...)
}

// endpoints are those of a registry, in the order to try.
func (s *Store) endpoints(registry string) ([]endpoint, error) {
	direct := endpoint{transport: remote.DefaultTransport}
	config, err := s.hostsConfig(familiarHost(registry))
	if err != nil || config == nil {
		return []endpoint{direct}, err
	}
	var list []endpoint
	for _, host := range config.hosts {
		if !host.resolves() {
			continue
		}
		point, err := host.endpoint(config.dir)
		if err != nil {
			return nil, fmt.Errorf("%s: host %s: %w", config.file(), host.url, err)
		}
		list = append(list, point)
	}
	if config.server.url == "" {
		return append(list, direct), nil
	}
	point, err := config.server.endpoint(config.dir)
	if err != nil {
		return nil, fmt.Errorf("%s: server: %w", config.file(), err)
	}
	return append(list, point), nil
}

// hostsConfig reads the registry's hosts.toml, or that of _default; nil is none.
func (s *Store) hostsConfig(registry string) (*hostsFile, error) {
	if s.cfg.HostsDir == "" {
		return nil, nil
	}
	for _, dir := range []string{registry, strings.ReplaceAll(registry, ":", "_") + "_", "_default"} {
		dir = filepath.Join(s.cfg.HostsDir, filepath.Base(dir))
		data, err := os.ReadFile(filepath.Join(dir, hostsFileName))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		config, err := parseHosts(string(data))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Join(dir, hostsFileName), err)
		}
		config.dir = dir
		return config, nil
	}
	return nil, nil
}

func (h hostConfig) resolves() bool {
	if len(h.capabilities) == 0 {
		return true
	}
	for _, capability := range h.capabilities {
		if capability == "pull" {
			return true
		}
	}
	return false
}

func (h hostConfig) endpoint(dir string) (endpoint, error) {
	raw := h.url
	if !strings.Contains(raw, "://") {
		raw = "https://" + raw
	}
	parsed, err := url.Parse(raw)
	if err != nil {
		return endpoint{}, err
	}
	transport, err := h.transport(dir)
	if err != nil {
		return endpoint{}, err
	}
	base := strings.TrimRight(parsed.Path, "/")
	if !h.overridePath && !strings.HasSuffix(base, apiRoot) {
		base += apiRoot
	}
	if base != apiRoot {
		transport = withBase{next: transport, host: parsed.Host, base: base}
	}
	return endpoint{host: parsed.Host, insecure: parsed.Scheme == "http", transport: transport}, nil
}

// apiRoot is where a registry's API is, unless hosts.toml says otherwise.
const apiRoot = "/v2"

// withBase sends requests for the API of one host to where it is there.
type withBase struct {
	next       http.RoundTripper
	host, base string
}

func (t withBase) RoundTrip(req *http.Request) (*http.Response, error) {
	if rest, ok := strings.CutPrefix(req.URL.Path, apiRoot+"/"); ok && req.URL.Host == t.host {
		req = req.Clone(req.Context())
		req.URL.Path, req.URL.RawPath = t.base+"/"+rest, ""
	}
	return t.next.RoundTrip(req)
}

func (h hostConfig) transport(dir string) (http.RoundTripper, error) {
	if len(h.ca) == 0 && len(h.client) == 0 && !h.skipVerify && len(h.header) == 0 && h.dialTimeout == 0 {
		return remote.DefaultTransport, nil
	}
	transport := remote.DefaultTransport.(*http.Transport).Clone()
	if h.dialTimeout > 0 {
		transport.DialContext = (&net.Dialer{Timeout: h.dialTimeout}).DialContext
	}
	transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: h.skipVerify, MinVersion: tls.VersionTLS12}
	if len(h.ca) > 0 {
		pool, err := x509.SystemCertPool()
		if err != nil {
			return nil, err
		}
		for _, file := range h.ca {
			data, err := os.ReadFile(resolvePath(dir, file))
			if err != nil {
				return nil, err
			}
			if !pool.AppendCertsFromPEM(data) {
				return nil, fmt.Errorf("%s holds no certificate", file)
			}
		}
		transport.TLSClientConfig.RootCAs = pool
	}
	for _, pair := range h.client {
		certificate, err := tls.LoadX509KeyPair(resolvePath(dir, pair[0]), resolvePath(dir, pair[1]))
		if err != nil {
			return nil, err
		}
		transport.TLSClientConfig.Certificates = append(transport.TLSClientConfig.Certificates, certificate)
	}
	return withHeader{next: transport, header: h.header}, nil
}

func resolvePath(dir, file string) string {
	if filepath.IsAbs(file) {
		return file
	}
	return filepath.Join(dir, file)
}

// withHeader adds fixed headers to each request.
type withHeader struct {
	next   http.RoundTripper
	header http.Header
}

func (t withHeader) RoundTrip(req *http.Request) (*http.Response, error) {
	if len(t.header) > 0 {
		req = req.Clone(req.Context())
		for key, values := range t.header {
			req.Header[key] = values
		}
	}
	return t.next.RoundTrip(req)
}
