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
		"protectKernelDefaults: true":                  "the field protectKernelDefaults is not supported",
		"staticPodURL: http://x":                       "the field staticPodURL is not supported",
		"qosReserved: {memory: 50%}":                   "the field qosReserved is not supported",
		"topologyManagerPolicy: strict":                "topologyManagerPolicy: only none and best-effort and restricted and single-numa-node is supported",
		"enableServer: false":                          "enableServer: only true is supported",
		"memorySwap: {swapBehavior: UnlimitedSwap}":    "memorySwap: only NoSwap and LimitedSwap is supported",
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

// kubeadm's file has all fields, most of them empty.
func TestParseTakesWhatKubeadmWrites(t *testing.T) {
	config, err := kubeletconfig.Parse([]byte(head + `
authentication:
  anonymous: {enabled: false}
  webhook: {cacheTTL: 0s, enabled: true}
  x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}
authorization: {mode: Webhook, webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}}
cgroupDriver: cgroupfs
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: ""
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {}
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
httpCheckFrequency: 0s
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
logging: {flushFrequency: 0, options: {json: {infoBufferSize: "0"}, text: {infoBufferSize: "0"}}, verbosity: 0}
memorySwap: {}
nodeStatusReportFrequency: 0s
nodeStatusUpdateFrequency: 0s
rotateCertificates: false
runtimeRequestTimeout: 0s
shutdownGracePeriod: 30s
shutdownGracePeriodCriticalPods: 10s
staticPodPath: /etc/kubernetes/manifests
streamingConnectionIdleTimeout: 0s
syncFrequency: 0s
volumeStatsAggPeriod: 0s
`))
	if err != nil {
		t.Fatal(err)
	}
	if config.ShutdownGracePeriod.Seconds() != 30 {
		t.Errorf("read %+v", config)
	}
}
