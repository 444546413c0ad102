package app

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// knownFlags are flags of kube-apiserver that this server does not act on. Those
// that change nothing a user would miss are accepted with a warning; those that
// would restrict, audit, encrypt or store elsewhere are refused, for pretending
// would be worse than failing. A flag that this server acts on is in neither
// list's effect, for its own definition comes first.
type knownFlags struct {
	ignored, refused []string // as given
	problems         []error
}

func ignoredFlags() []string {
	return []string{
		"allow-metric-labels", "allow-metric-labels-manifest", "apiserver-count", "cloud-config",
		"cloud-provider", "contention-profiling", "coordinated-leadership-lease-duration", "coordinated-leadership-renew-deadline",
		"coordinated-leadership-retry-period", "debug-socket-path", "default-watch-cache-size", "delete-collection-workers", "disabled-metrics",
		"emulated-version", "emulation-forward-compatible", "enable-aggregator-routing", "enable-garbage-collector", "enable-logs-handler",
		"endpoint-reconciler-type", "etcd-count-metric-poll-period", "etcd-db-metric-poll-interval",
		"etcd-readycheck-timeout", "external-hostname", "feature-gates", "goaway-chance", "http2-max-streams-per-connection", "kubelet-port",
		"kubelet-read-only-port", "kubelet-timeout", "kubernetes-service-node-port", "livez-grace-period", "log-flush-frequency",
		"log-json-info-buffer-size", "log-json-split-stream", "log-text-info-buffer-size", "log-text-split-stream", "max-connection-bytes-per-sec",
		"min-compatibility-version", "peer-advertise-ip", "peer-advertise-port", "permit-address-sharing", "permit-port-sharing",
		"runtime-config", "runtime-config-emulation-forward-compatible",
		"service-account-lookup", "show-hidden-metrics-for-version", "shutdown-send-retry-after", "shutdown-watch-termination-grace-period",
		"storage-initialization-timeout", "storage-media-type", "tracing-config-file", "vmodule", "watch-cache", "watch-cache-sizes",
	}
}

func refusedFlags() []string {
	return []string{
		"admission-control", "admission-control-config-file", "authentication-config", "authentication-token-webhook-cache-ttl",
		"authentication-token-webhook-config-file", "authentication-token-webhook-version", "authorization-config", "authorization-policy-file",
		"authorization-webhook-cache-authorized-ttl", "authorization-webhook-cache-unauthorized-ttl", "authorization-webhook-config-file",
		"authorization-webhook-version", "egress-selector-config-file", "etcd-servers-overrides", "oidc-ca-file", "oidc-client-id", "oidc-groups-claim",
		"oidc-groups-prefix", "oidc-issuer-url", "oidc-required-claim", "oidc-signing-algs", "oidc-username-claim", "oidc-username-prefix",
		"peer-ca-file", "service-account-signing-endpoint", "tls-sni-cert-key", "token-auth-file",
	}
}

func booleanFlags() []string {
	return []string{
		"aggregator-reject-forwarding-redirect", "contention-profiling", "emulation-forward-compatible",
		"enable-aggregator-routing", "enable-garbage-collector", "enable-logs-handler",
		"log-json-split-stream", "log-text-split-stream", "permit-address-sharing",
		"permit-port-sharing", "runtime-config-emulation-forward-compatible", "service-account-lookup", "shutdown-send-retry-after",
		"watch-cache",
	}
}

// restricting says why a value of an ignored flag must not be ignored.
func restricting(name, value string) error {
	switch name {
	case "runtime-config":
		for _, pair := range strings.Split(value, ",") {
			if key, enabled, ok := strings.Cut(pair, "="); ok && enabled == "false" && key != "api/alpha" && key != "api/beta" {
				return fmt.Errorf("--runtime-config: %s cannot be switched off", key)
			}
		}
	case "max-connection-bytes-per-sec":
		if value != "0" {
			return errors.New("--max-connection-bytes-per-sec: connections cannot be throttled")
		}
	}
	return nil
}

func (k *knownFlags) addFlags(fs *pflag.FlagSet) {
	add := func(names []string, set func(name, value string), about string) {
		for _, name := range names {
			if fs.Lookup(name) != nil {
				continue
			}
			flag := fs.VarPF(&knownFlag{name: name, set: set}, name, "", about)
			if slices.Contains(booleanFlags(), name) {
				flag.NoOptDefVal = "true" // the others take a value, which may follow a space
			}
			flag.Hidden = true
		}
	}
	add(ignoredFlags(), k.ignore, "accepted and ignored")
	add(refusedFlags(), k.refuse, "refused: not supported")
}

func (k *knownFlags) ignore(name, value string) {
	if err := restricting(name, value); err != nil {
		k.problems = append(k.problems, err)
		return
	}
	k.ignored = append(k.ignored, name)
}

// refuse notes a flag that was given; given as nothing it asks for nothing.
func (k *knownFlags) refuse(name, value string) {
	if value != "" {
		k.refused = append(k.refused, name)
	}
}

// check refuses what was given and must not be ignored.
func (k *knownFlags) check() error {
	problems := k.problems
	if len(k.refused) > 0 {
		problems = append(problems, fmt.Errorf("not supported by this server, and not safe to ignore: --%s", strings.Join(k.refused, ", --")))
	}
	return errors.Join(problems...)
}

// knownFlag hands on what it is set to.
type knownFlag struct {
	name string
	set  func(name, value string)
}

func (f *knownFlag) String() string { return "" }
func (f *knownFlag) Type() string   { return "string" }
func (f *knownFlag) Set(value string) error {
	f.set(f.name, value)
	return nil
}
