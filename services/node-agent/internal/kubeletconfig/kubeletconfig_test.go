package kubeletconfig_test

import (
	"strings"
	"testing"

	"github.com/sampan-io/sampan/services/node-agent/internal/kubeletconfig"
)

const head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

func TestParseTakesWhatIsSupported(t *testing.T) {
	config, err := kubeletconfig.Parse([]byte(head + `
clusterDNS: [10.96.0.10]
maxPods: 42
containerLogMaxSize: 5Mi
authentication: {anonymous: {enabled: false}, x509: {clientCAFile: /ca.crt}}
registerWithTaints: [{key: a, value: b, effect: NoSchedule}]
crashLoopBackOff: {maxContainerRestartPeriod: 30s}
`))
	if err != nil {
		t.Fatal(err)
	}
	if config.MaxPods != 42 || config.ClusterDNS[0] != "10.96.0.10" || config.Authentication.X509.ClientCAFile != "/ca.crt" || len(config.RegisterWithTaints) != 1 {
		t.Errorf("read %+v", config)
	}
}

func TestParseRefusesByName(t *testing.T) {
	for text, want := range map[string]string{
		"shutdownGracePeriod: 30s":                     "the field shutdownGracePeriod is not supported",
		"featureGates: {X: true}":                      "the field featureGates is not supported",
		"cgroupDriver: systemd":                        "cgroupDriver: only cgroupfs is supported",
		"readOnlyPort: 10255":                          "readOnlyPort: only 0 is supported",
		"authentication: {anonymous: {enabled: true}}": "authentication: anonymous access is not supported",
		"authorization: {mode: AlwaysAllow}":           "authorization: only Webhook is supported",
		"serializeImagePulls: true":                    "serializeImagePulls: only false is supported",
		"maxPodz: 1":                                   "unknown field \"maxPodz\"",
		"maxPods: many":                                "cannot unmarshal",
	} {
		if _, err := kubeletconfig.Parse([]byte(head + text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
	if _, err := kubeletconfig.Parse([]byte("apiVersion: v1\nkind: Pod")); err == nil {
		t.Error("a Pod was read")
	}
}
