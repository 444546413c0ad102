package main

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// frontProxy says whom to believe about users.
type frontProxy struct {
	authorities  *x509.CertPool
	allowedNames []string
	userHeaders  []string
}

// readFrontProxy reads what the cluster publishes for servers such as this one.
func readFrontProxy(ctx context.Context, client kubernetes.Interface) (*frontProxy, error) {
	config, err := client.CoreV1().ConfigMaps("kube-system").Get(ctx, "extension-apiserver-authentication", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	p := &frontProxy{authorities: x509.NewCertPool()}
	if !p.authorities.AppendCertsFromPEM([]byte(config.Data["requestheader-client-ca-file"])) {
		return nil, errors.New("the cluster names no authority of front proxies")
	}
	for key, into := range map[string]*[]string{"requestheader-allowed-names": &p.allowedNames, "requestheader-username-headers": &p.userHeaders} {
		if err := json.Unmarshal([]byte(config.Data[key]), into); err != nil {
			return nil, fmt.Errorf("reading %s: %w", key, err)
		}
	}
	return p, nil
}

type userKey struct{}

// authenticate lets through whom the front proxy names.
func (p *frontProxy) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user := ""
		for _, header := range p.userHeaders {
			if user == "" {
				user = r.Header.Get(header)
			}
		}
		if user == "" || !p.trusts(r) {
			writeStatus(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized")
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, user)))
	})
}

func (p *frontProxy) trusts(r *http.Request) bool {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return false
	}
	leaf := r.TLS.PeerCertificates[0]
	_, err := leaf.Verify(x509.VerifyOptions{Roots: p.authorities, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return err == nil && (len(p.allowedNames) == 0 || slices.Contains(p.allowedNames, leaf.Subject.CommonName))
}
