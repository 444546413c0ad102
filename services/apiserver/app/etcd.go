package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"path"
	"time"

	"github.com/spf13/pflag"

	"github.com/sampan-io/sampan/services/apiserver/internal/storage"
	"github.com/sampan-io/sampan/services/apiserver/internal/storage/etcd"
	"github.com/sampan-io/sampan/services/internal/component"
)

// registryRoot is what the keys of all resources start with.
const registryRoot = "/registry"

// EtcdOptions say how etcd is reached, for servers that keep their objects
// there.
type EtcdOptions struct {
	Servers                   []string
	CAFile, CertFile, KeyFile string
	Prefix                    string
	Backend                   string
	CompactionInterval        time.Duration
	HealthTimeout             time.Duration
	LeaseReuseSeconds         int64
}

func (o *EtcdOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.Servers, "etcd-servers", nil, "etcd's members (URLs); with them objects are kept in etcd, and --data-dir is not used")
	fs.StringVar(&o.CAFile, "etcd-cafile", "", "authorities (PEM) of etcd's serving certificates; without it the host's")
	fs.StringVar(&o.CertFile, "etcd-certfile", "", "client certificate (PEM) to etcd")
	fs.StringVar(&o.KeyFile, "etcd-keyfile", "", "key of --etcd-certfile")
	fs.StringVar(&o.Prefix, "etcd-prefix", registryRoot, "what the keys in etcd start with")
	fs.StringVar(&o.Backend, "storage-backend", "", `where objects are kept: "etcd3" needs --etcd-servers; empty is etcd with --etcd-servers, and a file in --data-dir without`)
	fs.DurationVar(&o.CompactionInterval, "etcd-compaction-interval", 5*time.Minute, "pause between compactions of etcd; 0 leaves them to others")
	fs.DurationVar(&o.HealthTimeout, "etcd-healthcheck-timeout", 2*time.Second, "how long etcd may take to answer a health check")
	fs.Int64Var(&o.LeaseReuseSeconds, "lease-reuse-duration-seconds", 60, "for how many seconds events share a lease of etcd at most")
}

func (o *EtcdOptions) used() bool { return len(o.Servers) > 0 }

func (o *EtcdOptions) check() error {
	if o.Backend != "" && o.Backend != "etcd3" {
		return fmt.Errorf("--storage-backend: %q is not etcd3", o.Backend)
	}
	if !o.used() {
		if o.Backend != "" {
			return errors.New("--storage-backend=etcd3 needs --etcd-servers")
		}
		return nil
	}
	for _, server := range o.Servers {
		u, err := url.Parse(server)
		if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
			return fmt.Errorf("--etcd-servers: %q is not of the form http://HOST:PORT or https://HOST:PORT", server)
		}
	}
	if (o.CertFile == "") != (o.KeyFile == "") {
		return errors.New("--etcd-certfile and --etcd-keyfile must be given together")
	}
	if o.CompactionInterval < 0 || o.LeaseReuseSeconds <= 0 || o.HealthTimeout <= 0 {
		return errors.New("--etcd-compaction-interval must not be negative; --lease-reuse-duration-seconds and --etcd-healthcheck-timeout must be positive")
	}
	return nil
}

func (o *EtcdOptions) tls() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		pool, err := component.CertPool(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("--etcd-cafile: %w", err)
		}
		config.RootCAs = pool
	}
	if o.CertFile != "" {
		if _, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile); err != nil {
			return nil, fmt.Errorf("--etcd-certfile: %w", err)
		}
		// Read at each handshake, so that a renewed certificate is used at once.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
			return &pair, err
		}
	}
	return config, nil
}

func (c *config) openEtcd(ctx context.Context) (storage.Interface, error) {
	o := &c.Etcd
	config, err := o.tls()
	if err != nil {
		return nil, err
	}
	prefix := path.Join("/", o.Prefix)
	if prefix == "/" {
		prefix = ""
	}
	return etcd.Open(ctx, etcd.Options{
		Endpoints: o.Servers, TLS: config, Root: registryRoot, Prefix: prefix, CompactEvery: o.CompactionInterval,
		LeaseReuse: time.Duration(o.LeaseReuseSeconds) * time.Second, Log: c.log,
	})
}

// probeStore asks the store for its newest revision, within the time that a
// health check has.
func (c *config) probeStore(store storage.Interface) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, c.Etcd.HealthTimeout)
		defer cancel()
		_, err := store.Current(ctx)
		return err
	}
}
