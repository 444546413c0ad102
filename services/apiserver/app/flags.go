package app

import (
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
)

func (o *ServingOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.BindAddress, "bind-address", "0.0.0.0", "IP address to listen on")
	fs.IntVar(&o.SecurePort, "secure-port", 6443, "port on which HTTPS is served; 0 takes a free one")
	fs.StringVar(&o.AdvertiseAddress, "advertise-address", "", "IP address by which pods reach this server; empty is --bind-address, or the host's first address")
	fs.StringVar(&o.CertFile, "tls-cert-file", "", "serving certificate (PEM, with intermediates); without it one is made in --cert-dir")
	fs.StringVar(&o.KeyFile, "tls-private-key-file", "", "key of --tls-cert-file (PEM)")
	fs.StringVar(&o.CertDir, "cert-dir", "/var/run/kubernetes", "directory of what the server makes itself: certificates, keys and an administrator's kubeconfig")
	fs.StringVar(&o.MinVersion, "tls-min-version", "VersionTLS12", "oldest TLS version that is accepted: VersionTLS12 or VersionTLS13")
	fs.StringSliceVar(&o.CORSAllowed, "cors-allowed-origins", nil, "regular expressions of origins whose browsers may read answers")
	fs.IntVar(&o.MaxRequests, "max-requests-inflight", 400, "read-only requests served at a time, others get 429; 0 is without a bound; with priority and fairness its sum with --max-mutating-requests-inflight is what the levels share")
	fs.IntVar(&o.MaxMutating, "max-mutating-requests-inflight", 200, "mutating requests served at a time, others get 429; 0 is without a bound")
	fs.BoolVar(&o.Fairness, "enable-priority-and-fairness", true, "divide what is served at a time between priority levels and the flows within them")
	fs.DurationVar(&o.RequestTimeout, "request-timeout", time.Minute, "time that a request may take, watches and streams aside")
	fs.IntVar(&o.MinRequestTimeout, "min-request-timeout", 1800, "seconds after which a watch is ended, at random between that and twice that")
	fs.BoolVar(&o.Profiling, "profiling", true, "serve /debug/pprof")
}

func (o *StoreOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.DataDir, "data-dir", "/var/lib/sampan/apiserver", "directory of the store")
	fs.DurationVar(&o.EventTTL, "event-ttl", time.Hour, "how long events are kept")
	fs.DurationVar(&o.HistoryAge, "history-max-age", 10*time.Minute, "age up to which superseded values are kept, for watches and lists that go on from an old revision")
	o.HistoryBytes.Quantity = resource.MustParse("256Mi")
	fs.Var(&o.HistoryBytes, "history-max-bytes", "size up to which superseded values are kept, whatever their age")
	fs.StringVar(&o.EncryptionFile, "encryption-provider-config", "", "EncryptionConfiguration that says which resources are encrypted in the store, and by what; without it none are")
	fs.BoolVar(&o.EncryptionReload, "encryption-provider-config-automatic-reload", false, "take changes of --encryption-provider-config over while running")
	fs.BoolVar(&o.NoSync, "unsafe-no-fsync", false, "leave syncing to the kernel: faster, and loses acknowledged writes in a power cut")
}

func (o *IdentityOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.ClientCAFile, "client-ca-file", "", "authorities of client certificates (PEM): the common name is the user, the organizations are the groups")
	fs.BoolVar(&o.AnonymousAuth, "anonymous-auth", true, "let anyone ask for health and version; no other path is open to requests without credentials")
	fs.BoolVar(&o.BootstrapTokens, "enable-bootstrap-token-auth", false, "accept the tokens in Secrets of type bootstrap.kubernetes.io/token in kube-system")
	fs.StringSliceVar(&o.AuthorizationModes, "authorization-mode", []string{"Node", "RBAC"}, "ordered authorizers: Node, RBAC, AlwaysAllow, AlwaysDeny")
	fs.StringVar(&o.FrontProxyCAFile, "requestheader-client-ca-file", "", "authorities of front proxies, which name users in headers")
	fs.StringSliceVar(&o.FrontProxy.AllowedNames, "requestheader-allowed-names", nil, "common names of front proxies; empty is every one")
	fs.StringSliceVar(&o.FrontProxy.UserHeaders, "requestheader-username-headers", nil, "headers that name the user")
	fs.StringSliceVar(&o.FrontProxy.GroupHeaders, "requestheader-group-headers", nil, "headers that name groups")
	fs.StringSliceVar(&o.FrontProxy.UIDHeaders, "requestheader-uid-headers", nil, "headers that hold the user's uid")
	fs.StringSliceVar(&o.FrontProxy.ExtraPrefixes, "requestheader-extra-headers-prefix", nil, "prefixes of headers that hold extras")
}

func (o *TokenOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringArrayVar(&o.Issuers, "service-account-issuer", nil, "issuer of service-account tokens; the first signs, all are accepted")
	fs.StringArrayVar(&o.KeyFiles, "service-account-key-file", nil, "keys (PEM) that verify service-account tokens")
	fs.StringVar(&o.SigningKey, "service-account-signing-key-file", "", "private key (PEM) that signs service-account tokens; without it one is made in --cert-dir")
	fs.StringSliceVar(&o.Audiences, "api-audiences", nil, "audiences of this server; empty is the first issuer")
	fs.StringVar(&o.JWKSURI, "service-account-jwks-uri", "", "public address of the token keys")
	fs.DurationVar(&o.MaxExpiration, "service-account-max-token-expiration", 0, "longest life of a token; 0 is without a bound")
	fs.BoolVar(&o.Extend, "service-account-extend-token-expiration", true, "let tokens that are mounted into pods live for a year, for clients that do not read them again")
}

func (o *NetworkOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.ServiceCIDRs, "service-cluster-ip-range", []string{"10.96.0.0/16"}, "range of cluster IPs, one per IP family")
	fs.StringVar(&o.NodePortRange, "service-node-port-range", "30000-32767", "range of node ports")
	fs.BoolVar(&o.DNSService, "cluster-dns-service", true, "keep a Service kube-system/kube-dns at the tenth address of the first range, for the DNS that node proxies answer")
	fs.BoolVar(&o.AllowPriv, "allow-privileged", true, "allow privileged containers; this server cannot refuse them")
}

func (o *KubeletOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.CertFile, "kubelet-client-certificate", "", "client certificate (PEM) to node agents")
	fs.StringVar(&o.KeyFile, "kubelet-client-key", "", "key of --kubelet-client-certificate")
	fs.StringVar(&o.CAFile, "kubelet-certificate-authority", "", "authorities (PEM) of node agents' serving certificates; without it they are not checked")
	fs.StringSliceVar(&o.AddressTypes, "kubelet-preferred-address-types", nil, "node addresses to use, in order (Hostname, InternalDNS, InternalIP, ExternalDNS, ExternalIP)")
}

func (o *BusOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.ListenAddress, "nats-listen-address", "", "address of the embedded message bus (host:port); empty is a free loopback port, \"none\" switches it off")
	fs.StringVar(&o.URL, "nats-url", "", "external NATS server to publish watch events to, instead of the embedded one")
	fs.StringVar(&o.CAFile, "nats-ca-file", "", "authorities (PEM) of the external NATS server's certificate; empty is the system's")
	fs.StringVar(&o.UserSeedFile, "nats-user-seed-file", "", "seed of the key (SU…) to connect to the external NATS server with; empty uses the user of --nats-url")
	fs.StringVar(&o.IssuerSeedFile, "nats-issuer-seed-file", "", "seed of the key (SA…) that signs who may listen on the external NATS server, its auth_callout's issuer; empty leaves that to the server")
	fs.StringVar(&o.Account, "nats-account", "$G", "account of the external NATS server that this server and the listeners are in")
}

func (o *AdmissionOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.Enable, "enable-admission-plugins", nil, "admission plugins to switch on besides the default ones")
	fs.StringSliceVar(&o.Disable, "disable-admission-plugins", nil, "admission plugins to switch off")
	fs.StringVar(&o.ConfigFile, "admission-control-config-file", "", "file (AdmissionConfiguration) that configures admission plugins")
	fs.Int64Var(&o.NotReadySeconds, "default-not-ready-toleration-seconds", 300, "seconds for which pods tolerate a node that is not ready")
	fs.Int64Var(&o.UnreachableSeconds, "default-unreachable-toleration-seconds", 300, "seconds for which pods tolerate an unreachable node")
}
