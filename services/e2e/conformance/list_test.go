package conformance

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
)

// suite is a group of behaviours whose names begin alike.
type suite struct {
	about string
	tests map[string]func(*testing.T)
}

// suites are all behaviours that have a test.
func suites() []suite {
	return []suite{
		{"[sig-api-machinery] AggregatedDiscovery", aggregatedDiscovery},
		{"[sig-api-machinery] Aggregator", aggregator},
		{"[sig-api-machinery] API priority and fairness", fairness},
		{"[sig-api-machinery] CustomResourceDefinition Watch [Privileged:ClusterAdmin]", definitionWatch},
		{"[sig-api-machinery] CustomResourceDefinition resources [Privileged:ClusterAdmin]", definitionResources},
		{"[sig-api-machinery] CustomResourcePublishOpenAPI [Privileged:ClusterAdmin]", definitionSchemas},
		{"[sig-api-machinery] Discovery", plainDiscovery},
		{"[sig-api-machinery] FieldValidation", fieldValidation},
		{"[sig-api-machinery] Garbage collector", garbageCollector},
		{"[sig-api-machinery] Namespaces [Serial]", namespaces},
		{"[sig-api-machinery] ResourceQuota", quotas},
		{"[sig-api-machinery] Servers with support for API chunking", chunking},
		{"[sig-api-machinery] Servers with support for Table transformation", tables},
		{"[sig-api-machinery] ValidatingAdmissionPolicy [Privileged:ClusterAdmin]", validatingPolicies},
		{"[sig-api-machinery] Watchers", watchers},
		{"[sig-api-machinery] server version", serverVersion},
		{"[sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin]", webhooks},
		{"[sig-api-machinery] CustomResourceConversionWebhook [Privileged:ClusterAdmin]", conversionWebhooks},
		{"[sig-apps] CronJob", cronJobs},
		{"[sig-apps] DisruptionController", disruption},
		{"[sig-auth] Certificates API [Privileged:ClusterAdmin]", certificates},
		{"[sig-auth] ServiceAccounts", serviceAccounts},
		{"[sig-auth] ServiceAccounts", podAccounts},
		{"[sig-auth] SubjectReview", subjectReviews},
		{"[sig-cli] Kubectl client", kubectlClient},
		{"[sig-instrumentation] Events API", eventsAPI},
		{"[sig-instrumentation] Events", coreEvents},
		{"[sig-network] EndpointSlice", endpointSlices},
		{"[sig-network] Ingress API", ingresses},
		{"[sig-network] IngressClass API", ingressClasses},
		{"[sig-network] Services", services},
		{"[sig-node] ConfigMap", configMaps},
		{"[sig-node] Lease", leases},
		{"[sig-node] Node Lifecycle", nodes},
		{"[sig-node] PodTemplates", podTemplates},
		{"[sig-node] Pods Extended Pods Set QOS Class", qosClasses},
		{"[sig-node] RuntimeClass", runtimeClasses},
		{"[sig-node] Secrets", secrets},
		{"[sig-node] Sysctls [LinuxOnly] [NodeConformance]", sysctls},
		{"[sig-scheduling] LimitRange", limitRanges},
		{"[sig-storage] CSIInlineVolumes", inlineVolumes},
		{"[sig-storage] CSINodes", csiNodes},
		{"[sig-storage] CSIStorageCapacity", csiCapacities},
		{"[sig-storage] ConfigMap", storedConfigMaps},
		{"[sig-storage] Secrets", storedSecrets},
		{"[sig-storage] PersistentVolumes", persistentVolumes},
		{"[sig-storage] StorageClasses", storageClasses},
		{"[sig-storage] VolumeAttachment Conformance", volumeAttachments},
		{"[sig-node] ConfigMap", configMapEnvironment},
		{"[sig-node] Container Lifecycle Hook", lifecycleHooks},
		{"[sig-node] Container Runtime", runtimeBlackbox},
		{"[sig-node] Containers", containers},
		{"[sig-node] Downward API", downwardEnvironment},
		{"[sig-node] Ephemeral Containers [NodeConformance]", ephemeralContainers},
		{"[sig-node] InitContainer [NodeConformance]", initContainers},
		{"[sig-node] Kubelet", kubelet},
		{"[sig-node] KubeletManagedEtcHosts", managedHosts},
		{"[sig-node] NoExecuteTaintManager", taintManager},
		{"[sig-node] Pods", podLife},
		{"[sig-node] PreStop", preStop},
		{"[sig-node] Probing container", probing},
		{"[sig-node] RuntimeClass", scheduledRuntimeClasses},
		{"[sig-node] Secrets", secretEnvironment},
		{"[sig-node] Security Context", securityContexts},
		{"[sig-node] Sysctls [LinuxOnly] [NodeConformance]", podSysctls},
		{"[sig-node] Variable Expansion", variableExpansion},
		{"[sig-storage] ConfigMap", configMapVolume.ofConfigMaps()},
		{"[sig-storage] ConfigMap", map[string]func(*testing.T){"binary data should be reflected in volume [NodeConformance]": binaryData}},
		{"[sig-storage] Downward API volume", plainDownward.behaviours()},
		{"[sig-storage] EmptyDir volumes", emptyDirs()},
		{"[sig-storage] EmptyDir wrapper volumes", wrapperVolumes},
		{"[sig-storage] Projected combined", map[string]func(*testing.T){"should project all components that make up the projection API [Projection] [NodeConformance]": projectedTogether}},
		{"[sig-storage] Projected configMap", projectedConfigMapVolume.ofConfigMaps()},
		{"[sig-storage] Projected downwardAPI", projectedDownward.behaviours()},
		{"[sig-storage] Projected secret", projectedSecretVolume.ofSecrets()},
		{"[sig-storage] Secrets", secretVolume.ofSecrets()},
		{"[sig-storage] Secrets", map[string]func(*testing.T){
			"should be able to mount in a volume regardless of a different secret existing with same name in different namespace [NodeConformance]": sameNameElsewhere,
		}},
		{"[sig-storage] Subpath Atomic writer volumes", subpaths},
	}
}

// behaviours are the tests by listed name.
func behaviours(t *testing.T) map[string]func(*testing.T) {
	t.Helper()
	all := map[string]func(*testing.T){}
	for _, s := range suites() {
		for name, test := range s.tests {
			full := s.about + " " + name + " [Conformance]"
			if all[full] != nil {
				t.Fatalf("%s: has two tests", full)
			}
			all[full] = test
		}
	}
	return all
}

func readNames() ([]string, error) {
	data, err := os.ReadFile("testdata/behaviours.txt")
	return strings.Split(string(bytes.TrimSpace(data)), "\n"), err
}

// readWaiting are the behaviours that cannot be shown yet: the name and, behind
// a tab, what it waits for.
func readWaiting() (map[string]string, error) {
	data, err := os.ReadFile("testdata/waiting.txt")
	if err != nil {
		return nil, err
	}
	waiting := map[string]string{}
	for line := range strings.SplitSeq(string(bytes.TrimSpace(data)), "\n") {
		name, reason, found := strings.Cut(line, "\t")
		if !found || strings.TrimSpace(reason) == "" {
			return nil, fmt.Errorf("waiting.txt: %q names nothing that it waits for", line)
		}
		waiting[name] = reason
	}
	return waiting, nil
}

func TestEveryListedBehaviourIsShownOrWaits(t *testing.T) {
	names, err := readNames()
	if err != nil {
		t.Fatal(err)
	}
	waiting, err := readWaiting()
	if err != nil {
		t.Fatal(err)
	}
	tests := behaviours(t)
	for _, name := range names {
		if (tests[name] != nil) == (waiting[name] != "") {
			t.Errorf("%s: wants either a test or a line in waiting.txt", name)
		}
		delete(tests, name)
		delete(waiting, name)
	}
	for name := range tests {
		t.Errorf("%s: is not a listed name", name)
	}
	for name := range waiting {
		t.Errorf("%s: waits, but is not a listed name", name)
	}
}

func TestConformance(t *testing.T) {
	names, err := readNames()
	if err != nil {
		t.Fatal(err)
	}
	tests := behaviours(t)
	for _, name := range names {
		test := tests[name]
		if test == nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(name, "[Serial]") {
				t.Parallel()
			}
			t.Cleanup(func() {
				if !t.Failed() && !t.Skipped() {
					passed.Add(1)
				}
			})
			test(t)
		})
	}
}
