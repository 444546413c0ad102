// Package app wires the API server: options, certificates, store, caches,
// engine, security, handlers and their life.
package app

import (
	"context"
	"log/slog"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/internal/component"
)

// Options are the server's flags. It implements component.Service.
type Options struct {
	Serving     ServingOptions
	Store       StoreOptions
	Etcd        EtcdOptions
	Hardening   HardeningOptions
	Identity    IdentityOptions
	Tokens      TokenOptions
	Network     NetworkOptions
	Kubelet     KubeletOptions
	Bus         BusOptions
	Admission   AdmissionOptions
	Audit       AuditOptions
	Aggregation AggregationOptions
	known       knownFlags
}

// ServingOptions say where and how requests are served.
type ServingOptions struct {
	BindAddress       string
	SecurePort        int
	AdvertiseAddress  string
	CertFile, KeyFile string
	CertDir           string
	MinVersion        string
	CORSAllowed       []string
	MaxRequests       int
	MaxMutating       int
	Fairness          bool
	RequestTimeout    time.Duration
	MinRequestTimeout int // seconds
	Profiling         bool
}

// StoreOptions say where objects are kept.
type StoreOptions struct {
	DataDir      string
	EventTTL     time.Duration
	HistoryAge   time.Duration
	HistoryBytes resource.QuantityValue
	NoSync       bool
	// EncryptionFile says which resources are encrypted in the store, and how.
	EncryptionFile   string
	EncryptionReload bool
}

// IdentityOptions say whom the server believes, and what they may do.
type IdentityOptions struct {
	ClientCAFile       string
	AnonymousAuth      bool
	BootstrapTokens    bool
	AuthorizationModes []string
	FrontProxyCAFile   string
	FrontProxy         authn.HeaderConfig
}

// TokenOptions are about service-account tokens.
type TokenOptions struct {
	Issuers       []string
	KeyFiles      []string
	SigningKey    string
	Audiences     []string
	JWKSURI       string
	MaxExpiration time.Duration
	Extend        bool
}

// NetworkOptions are about what the cluster allocates.
type NetworkOptions struct {
	ServiceCIDRs  []string
	NodePortRange string
	AllowPriv     bool
	DNSService    bool
}

// KubeletOptions say how node agents are reached.
type KubeletOptions struct {
	CertFile, KeyFile, CAFile string
	AddressTypes              []string
}

// BusOptions are about the message bus that carries watch events.
type BusOptions struct {
	ListenAddress string
	URL           string
	// Of an external NATS server.
	CAFile, UserSeedFile, IssuerSeedFile, Account string
}

// AdmissionOptions switch admission plugins on and off.
type AdmissionOptions struct {
	Enable, Disable                     []string
	ConfigFile                          string
	NotReadySeconds, UnreachableSeconds int64
}

// New is the service with its defaults.
func New() *Options { return &Options{} }

// AddFlags implements component.Service.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	o.Serving.addFlags(fs)
	o.Store.addFlags(fs)
	o.Etcd.addFlags(fs)
	o.Hardening.addFlags(fs)
	o.Identity.addFlags(fs)
	o.Tokens.addFlags(fs)
	o.Network.addFlags(fs)
	o.Kubelet.addFlags(fs)
	o.Bus.addFlags(fs)
	o.Admission.addFlags(fs)
	o.Audit.addFlags(fs)
	o.Aggregation.addFlags(fs)
	o.known.addFlags(fs)
}

// Run implements component.Service.
func (o *Options) Run(ctx context.Context, log *slog.Logger) error {
	config, err := o.config(log)
	if err != nil {
		return &component.UsageError{Err: err}
	}
	return config.run(ctx)
}
