package app

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// knownFlags are flags of kube-apiserver that this server does not act on. Those
// that change nothing a user would miss are accepted with a warning; those that
// would restrict, audit, encrypt or store elsewhere are refused, for pretending
// would be worse than failing.
type knownFlags struct {
	ignored, refused []string // as given
}

func ignoredFlags() []string {
	return []string{
		"aggregator-reject-forwarding-redirect", "allow-metric-labels", "allow-metric-labels-manifest", "apiserver-count", "cloud-config",
		"cloud-provider", "contention-profiling", "coordinated-leadership-lease-duration", "debug-socket-path", "default-watch-cache-size",
		"delete-collection-workers", "disable-http2-serving", "disabled-metrics", "emulated-version", "enable-aggregator-routing",
		"enable-garbage-collector", "enable-priority-and-fairness", "endpoint-reconciler-type", "etcd-cafile", "etcd-certfile",
		"etcd-compaction-interval", "etcd-count-metric-poll-period", "etcd-db-metric-poll-interval", "etcd-healthcheck-timeout", "etcd-keyfile",
		"etcd-prefix", "etcd-readycheck-timeout", "etcd-servers-overrides", "external-hostname", "feature-gates", "goaway-chance",
		"http2-max-streams-per-connection", "identity-lease-duration-seconds", "kubelet-port", "kubelet-read-only-port", "kubelet-timeout",
		"kubernetes-service-node-port", "lease-reuse-duration-seconds", "livez-grace-period", "log-flush-frequency", "logging-json-info-buffer-size",
		"max-connection-bytes-per-sec", "min-compatibility-version", "peer-advertise-ip", "peer-advertise-port", "permit-address-sharing",
		"permit-port-sharing", "proxy-client-cert-file", "proxy-client-key-file", "runtime-config", "service-account-lookup",
		"show-hidden-metrics-for-version", "shutdown-delay-duration", "shutdown-send-retry-after", "shutdown-watch-termination-grace-period",
		"storage-initialization-timeout", "storage-media-type", "strict-transport-security-directives", "tracing-config-file", "vmodule",
		"watch-cache", "watch-cache-sizes",
	}
}

func refusedFlags() []string {
	return []string{
		"audit-log-batch-buffer-size", "audit-log-compress", "audit-log-format", "audit-log-maxage",
		"audit-log-maxbackup", "audit-log-maxsize", "audit-log-mode", "audit-log-path", "audit-policy-file", "audit-webhook-config-file",
		"audit-webhook-mode", "authentication-config", "authentication-token-webhook-cache-ttl", "authentication-token-webhook-config-file",
		"authentication-token-webhook-version", "authorization-config", "authorization-policy-file", "authorization-webhook-cache-authorized-ttl",
		"authorization-webhook-cache-unauthorized-ttl", "authorization-webhook-config-file", "authorization-webhook-version",
		"egress-selector-config-file", "encryption-provider-config", "encryption-provider-config-automatic-reload", "etcd-servers",
		"oidc-ca-file", "oidc-client-id", "oidc-groups-claim", "oidc-groups-prefix", "oidc-issuer-url", "oidc-required-claim",
		"oidc-signing-algs", "oidc-username-claim", "oidc-username-prefix", "peer-ca-file", "storage-backend", "tls-cipher-suites",
		"tls-curve-preferences", "tls-sni-cert-key", "token-auth-file",
	}
}

func booleanFlags() []string {
	return []string{
		"aggregator-reject-forwarding-redirect", "audit-log-compress", "contention-profiling", "disable-http2-serving",
		"enable-aggregator-routing", "enable-garbage-collector", "enable-priority-and-fairness",
		"encryption-provider-config-automatic-reload", "permit-address-sharing", "permit-port-sharing", "service-account-lookup",
		"shutdown-send-retry-after", "watch-cache",
	}
}

func (k *knownFlags) addFlags(fs *pflag.FlagSet) {
	add := func(names []string, given *[]string, about string) {
		for _, name := range names {
			if fs.Lookup(name) != nil {
				continue
			}
			flag := fs.VarPF(&knownFlag{name: name, given: given}, name, "", about)
			if slices.Contains(booleanFlags(), name) {
				flag.NoOptDefVal = "true" // the others take a value, which may follow a space
			}
			flag.Hidden = true
		}
	}
	add(ignoredFlags(), &k.ignored, "accepted and ignored")
	add(refusedFlags(), &k.refused, "refused: not supported")
}

// check refuses what was given and must not be ignored.
func (k *knownFlags) check() error {
	if len(k.refused) == 0 {
		return nil
	}
	return fmt.Errorf("not supported by this server, and not safe to ignore: --%s", strings.Join(k.refused, ", --"))
}

// knownFlag remembers that it was given.
type knownFlag struct {
	name  string
	given *[]string
}

func (f *knownFlag) String() string { return "" }
func (f *knownFlag) Type() string   { return "string" }
func (f *knownFlag) Set(string) error {
	*f.given = append(*f.given, f.name)
	return nil
}
