package authn

import (
	"crypto/x509"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// HeaderConfig says which proxies may name users in headers, and in which
// headers (the --requestheader flags).
type HeaderConfig struct {
	UserHeaders   []string // X-Remote-User when empty
	GroupHeaders  []string // X-Remote-Group when empty
	UIDHeaders    []string // X-Remote-Uid when empty
	ExtraPrefixes []string // X-Remote-Extra- when empty
	AllowedNames  []string // common names of proxies; empty is every name
}

// WithDefaults is the configuration with upstream's header names where it has
// none.
func (c HeaderConfig) WithDefaults() HeaderConfig {
	orDefault(&c.UserHeaders, "X-Remote-User")
	orDefault(&c.GroupHeaders, "X-Remote-Group")
	orDefault(&c.UIDHeaders, "X-Remote-Uid")
	orDefault(&c.ExtraPrefixes, "X-Remote-Extra-")
	return c
}

func orDefault(list *[]string, value string) {
	if len(*list) == 0 {
		*list = []string{value}
	}
}

// Headers authenticates users that a front proxy names in headers. They count
// only on a connection with a certificate of the front-proxy authority, and are
// taken out of every request whatever its connection.
type Headers struct {
	verifier verifier
	config   HeaderConfig
}

// NewHeaders trusts proxies with certificates of bundle's authorities; with a nil
// bundle it trusts nobody, and only takes the headers out.
func NewHeaders(bundle *Bundle, config HeaderConfig) *Headers {
	h := &Headers{config: config.WithDefaults()}
	h.verifier = verifier{bundle: bundle, identify: h.proxy}
	return h
}

func (h *Headers) proxy(certificate *x509.Certificate) (*User, error) {
	name := certificate.Subject.CommonName
	if len(h.config.AllowedNames) > 0 && !slices.Contains(h.config.AllowedNames, name) {
		return nil, fmt.Errorf("front proxy %q is not among the allowed names", name)
	}
	return &User{Name: name}, nil
}

// Authenticate implements Authenticator. Headers on a connection that is not a
// front proxy's are ignored: the sender may authenticate in another way.
func (h *Headers) Authenticate(r *http.Request) (*User, error) {
	user := h.read(r.Header)
	if user == nil || h.verifier.bundle == nil || r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, nil
	}
	if _, err := h.verifier.verify(r.TLS.PeerCertificates, time.Now()); err != nil {
		return nil, nil //nolint:nilerr // not a front proxy's certificate: the next authenticator judges it
	}
	return user, nil
}

// read takes the identity headers out of header.
func (h *Headers) read(header http.Header) *User {
	user := &User{
		Name:   first(take(header, h.config.UserHeaders)),
		UID:    first(take(header, h.config.UIDHeaders)),
		Groups: take(header, h.config.GroupHeaders),
		Extra:  map[string][]string{},
	}
	for name, values := range header {
		for _, prefix := range h.config.ExtraPrefixes {
			if len(name) > len(prefix) && strings.EqualFold(name[:len(prefix)], prefix) {
				key := strings.ToLower(name[len(prefix):])
				if unescaped, err := url.PathUnescape(key); err == nil {
					key = unescaped
				}
				user.Extra[key] = append(user.Extra[key], values...)
				delete(header, name)
			}
		}
	}
	if user.Name == "" {
		return nil
	}
	return user
}

func take(header http.Header, names []string) []string {
	var values []string
	for _, name := range names {
		values = append(values, header.Values(name)...)
		header.Del(name)
	}
	return values
}

func first(values []string) string {
	for _, value := range values {
		if value != "" {
			return value
		}
	}
	return ""
}
