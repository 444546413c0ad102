package app

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry/resources"
	"github.com/sampan-io/sampan/services/apiserver/internal/tokens"
	"github.com/sampan-io/sampan/services/internal/pki"
)

// Complete implements component.Service.
func (o *Options) Complete() error {
	if err := o.known.check(); err != nil {
		return err
	}
	checks := []func() error{o.Serving.check, o.Store.check, o.Hardening.check, o.Etcd.check, o.Network.check, o.Tokens.check, o.Kubelet.check, o.Bus.check, o.Aggregation.check, o.Audit.check}
	for _, check := range checks {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (o *StoreOptions) check() error {
	if o.DataDir == "" {
		return errors.New("--data-dir must not be empty")
	}
	if o.HistoryAge <= 0 || o.HistoryBytes.Value() <= 0 {
		return errors.New("--history-max-age and --history-max-bytes must be positive")
	}
	if o.EncryptionReload && o.EncryptionFile == "" {
		return errors.New("--encryption-provider-config-automatic-reload needs --encryption-provider-config")
	}
	return nil
}

func (o *ServingOptions) check() error {
	if net.ParseIP(o.BindAddress) == nil {
		return fmt.Errorf("--bind-address: %q is not an IP address", o.BindAddress)
	}
	if o.AdvertiseAddress != "" && net.ParseIP(o.AdvertiseAddress) == nil {
		return fmt.Errorf("--advertise-address: %q is not an IP address", o.AdvertiseAddress)
	}
	if o.SecurePort < 0 || o.SecurePort > 65535 {
		return fmt.Errorf("--secure-port: %d is not a port", o.SecurePort)
	}
	if (o.CertFile == "") != (o.KeyFile == "") {
		return errors.New("--tls-cert-file and --tls-private-key-file must be given together")
	}
	if o.MinVersion != "VersionTLS12" && o.MinVersion != "VersionTLS13" {
		return fmt.Errorf("--tls-min-version: %q is neither VersionTLS12 nor VersionTLS13", o.MinVersion)
	}
	for _, pattern := range o.CORSAllowed {
		if _, err := regexp.Compile(pattern); err != nil {
			return fmt.Errorf("--cors-allowed-origins: %w", err)
		}
	}
	if o.MaxRequests < 0 || o.MaxMutating < 0 || o.RequestTimeout < 0 || o.MinRequestTimeout < 0 {
		return errors.New("--max-requests-inflight, --max-mutating-requests-inflight, --request-timeout and --min-request-timeout must not be negative")
	}
	return nil
}

func (o *NetworkOptions) check() error {
	if !o.AllowPriv {
		return errors.New("--allow-privileged=false is not supported: this server cannot refuse privileged containers")
	}
	_, err := o.deps()
	return err
}

// deps are the ranges as the resources want them.
func (o *NetworkOptions) deps() (resources.Deps, error) {
	var d resources.Deps
	for _, text := range o.ServiceCIDRs {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return d, fmt.Errorf("--service-cluster-ip-range: %w", err)
		}
		d.ServiceCIDRs = append(d.ServiceCIDRs, prefix.Masked())
	}
	first, last, ok := strings.Cut(o.NodePortRange, "-")
	if !ok {
		last = first
	}
	var err error
	if d.FirstNodePort, err = strconv.Atoi(first); err == nil {
		d.LastNodePort, err = strconv.Atoi(last)
	}
	if err != nil {
		return d, fmt.Errorf("--service-node-port-range: %q is not of the form FIRST-LAST", o.NodePortRange)
	}
	if _, err := d.NewAllocations(); err != nil {
		return d, fmt.Errorf("--service-cluster-ip-range or --service-node-port-range: %w", err)
	}
	return d, nil
}

func (o *TokenOptions) check() error {
	if o.SigningKey == "" && len(o.KeyFiles) > 0 {
		return errors.New("--service-account-key-file needs --service-account-signing-key-file beside it")
	}
	if o.MaxExpiration != 0 && o.MaxExpiration < time.Hour {
		return errors.New("--service-account-max-token-expiration must be at least an hour")
	}
	return nil
}

func (o *KubeletOptions) check() error {
	if (o.CertFile == "") != (o.KeyFile == "") {
		return errors.New("--kubelet-client-certificate and --kubelet-client-key must be given together")
	}
	known := []corev1.NodeAddressType{corev1.NodeHostName, corev1.NodeInternalDNS, corev1.NodeInternalIP, corev1.NodeExternalDNS, corev1.NodeExternalIP}
	for _, t := range o.AddressTypes {
		if !slices.Contains(known, corev1.NodeAddressType(t)) {
			return fmt.Errorf("--kubelet-preferred-address-types: %q is not one of %v", t, known)
		}
	}
	return nil
}

func (o *BusOptions) check() error {
	if o.URL != "" && o.ListenAddress != "" && o.ListenAddress != busOff {
		return errors.New("--nats-url and --nats-listen-address exclude each other")
	}
	if o.ListenAddress == "" || o.ListenAddress == busOff {
		return nil
	}
	if _, _, err := net.SplitHostPort(o.ListenAddress); err != nil {
		return fmt.Errorf("--nats-listen-address: %w", err)
	}
	return nil
}

// busOff is the value of --nats-listen-address that switches the bus off.
const busOff = "none"

// config is everything that running needs, with the files that the server makes
// itself.
type config struct {
	*Options
	log       *slog.Logger
	tokens    tokens.Config
	deps      resources.Deps
	advertise net.IP
}

func (o *Options) config(log *slog.Logger) (*config, error) {
	for _, name := range o.known.ignored {
		log.Warn("Flag has no effect on this server", "flag", "--"+name)
	}
	c := &config{Options: o, log: log}
	var err error
	if c.deps, err = o.Network.deps(); err != nil {
		return nil, err
	}
	c.deps.EventTTL = o.Store.EventTTL
	if c.advertise, err = o.Serving.advertised(); err != nil {
		return nil, err
	}
	if c.tokens, err = o.Tokens.config(o.Serving.CertDir); err != nil {
		return nil, err
	}
	return c, nil
}

// advertised is the address by which the cluster reaches the server; loopback
// only where the host has no other.
func (o *ServingOptions) advertised() (net.IP, error) {
	if o.AdvertiseAddress != "" {
		return net.ParseIP(o.AdvertiseAddress), nil
	}
	if ip := net.ParseIP(o.BindAddress); !ip.IsUnspecified() && !ip.IsLoopback() {
		return ip, nil
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("finding the host's address: %w", err)
	}
	for _, address := range addresses {
		if ip, ok := address.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() && ip.IP.To4() != nil {
			return ip.IP, nil
		}
	}
	return net.IPv4(127, 0, 0, 1), nil
}

const defaultIssuer = "https://kubernetes.default.svc.cluster.local"

// config reads the keys, and makes a signing key when none is given.
func (o *TokenOptions) config(dir string) (tokens.Config, error) {
	c := tokens.Config{Issuers: o.Issuers, Audiences: o.Audiences, MaxExpiration: o.MaxExpiration, Extend: o.Extend}
	if len(c.Issuers) == 0 {
		c.Issuers = []string{defaultIssuer}
	}
	if len(c.Audiences) == 0 {
		c.Audiences = c.Issuers[:1]
	}
	var err error
	if o.SigningKey != "" {
		c.SigningKey, err = pki.LoadKey(o.SigningKey)
	} else {
		c.SigningKey, err = pki.EnsureSigningKey(filepath.Join(dir, "sa.key"), filepath.Join(dir, "sa.pub"))
	}
	if err != nil {
		return c, fmt.Errorf("--service-account-signing-key-file: %w", err)
	}
	for _, file := range o.KeyFiles {
		keys, err := pki.LoadPublicKeys(file)
		if err != nil {
			return c, fmt.Errorf("--service-account-key-file: %w", err)
		}
		c.Keys = append(c.Keys, keys...)
	}
	return c, nil
}
