package conformance

import (
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func kind(group, version, kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: schema.GroupVersion{Group: group, Version: version}.String(), Kind: kind}
}

func apiOperations(group, version, plural string, namespaced bool, object runtime.Object, status string, statuses ...string) func(*testing.T) {
	return func(t *testing.T) {
		operations{
			resource: schema.GroupVersionResource{Group: group, Version: version, Resource: plural}, namespaced: namespaced, object: object, status: status, statuses: statuses,
		}.run(t)
	}
}

var fairness = map[string]func(*testing.T){
	"should support FlowSchema API operations": apiOperations("flowcontrol.apiserver.k8s.io", "v1", "flowschemas", false, &flowcontrolv1.FlowSchema{
		TypeMeta: kind("flowcontrol.apiserver.k8s.io", "v1", "FlowSchema"),
		Spec: flowcontrolv1.FlowSchemaSpec{
			MatchingPrecedence: 10000, PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "global-default"},
			DistinguisherMethod: &flowcontrolv1.FlowDistinguisherMethod{Type: flowcontrolv1.FlowDistinguisherMethodByUserType},
			Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
				Subjects:         []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindUser, User: &flowcontrolv1.UserSubject{Name: "example-e2e-non-existent-user"}}},
				NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}}},
			}},
		},
	}, conditionStatus("Dangling"), "status"),
	"should support PriorityLevelConfiguration API operations": apiOperations("flowcontrol.apiserver.k8s.io", "v1", "prioritylevelconfigurations", false, &flowcontrolv1.PriorityLevelConfiguration{
		TypeMeta: kind("flowcontrol.apiserver.k8s.io", "v1", "PriorityLevelConfiguration"),
		Spec: flowcontrolv1.PriorityLevelConfigurationSpec{
			Type: flowcontrolv1.PriorityLevelEnablementLimited,
			Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{
				NominalConcurrencyShares: new(int32(2)), LimitResponse: flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject},
			},
		},
	}, conditionStatus("Ready"), "status"),
}

var cronJobs = map[string]func(*testing.T){
	"should support CronJob API operations": apiOperations("batch", "v1", "cronjobs", true, &batchv1.CronJob{
		TypeMeta: kind("batch", "v1", "CronJob"),
		Spec: batchv1.CronJobSpec{Schedule: "0 0 30 2 *", ConcurrencyPolicy: batchv1.AllowConcurrent, JobTemplate: batchv1.JobTemplateSpec{
			Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyOnFailure, Containers: pause()}}},
		}},
	}, `{"lastScheduleTime":"2026-01-02T03:04:05Z"}`, "status"),
}

var ingresses = map[string]func(*testing.T){
	"should support creating Ingress API operations": apiOperations("networking.k8s.io", "v1", "ingresses", true, &networkingv1.Ingress{
		TypeMeta: kind("networking.k8s.io", "v1", "Ingress"),
		Spec: networkingv1.IngressSpec{DefaultBackend: &networkingv1.IngressBackend{
			Service: &networkingv1.IngressServiceBackend{Name: "default-backend", Port: networkingv1.ServiceBackendPort{Name: "default"}},
		}},
	}, `{"loadBalancer":{"ingress":[{"ip":"169.1.1.1"}]}}`, "status"),
}

var ingressClasses = map[string]func(*testing.T){
	"should support creating IngressClass API operations": apiOperations("networking.k8s.io", "v1", "ingressclasses", false, &networkingv1.IngressClass{
		TypeMeta: kind("networking.k8s.io", "v1", "IngressClass"), Spec: networkingv1.IngressClassSpec{Controller: "example.com/controller"},
	}, ""),
}

var runtimeClasses = map[string]func(*testing.T){
	"should support RuntimeClasses API operations": apiOperations("node.k8s.io", "v1", "runtimeclasses", false, &nodev1.RuntimeClass{
		TypeMeta: kind("node.k8s.io", "v1", "RuntimeClass"), Handler: "test-handler",
	}, ""),
	"should reject a Pod requesting a non-existent RuntimeClass [NodeConformance]": rejectedWithoutRuntimeClass,
	"should reject a Pod requesting a deleted RuntimeClass [NodeConformance]":      rejectedWithDeletedRuntimeClass,
}

var csiCapacities = map[string]func(*testing.T){
	"should support CSIStorageCapacities API operations": apiOperations("storage.k8s.io", "v1", "csistoragecapacities", true, &storagev1.CSIStorageCapacity{
		TypeMeta: kind("storage.k8s.io", "v1", "CSIStorageCapacity"), StorageClassName: "some-storage-class", Capacity: new(resource.MustParse("1Gi")),
	}, ""),
}

func signingRequest() *certificatesv1.CertificateSigningRequest {
	return &certificatesv1.CertificateSigningRequest{
		TypeMeta: kind("certificates.k8s.io", "v1", "CertificateSigningRequest"),
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: certificateRequest("e2e.example.com"), SignerName: "example.com/e2e-" + unique("signer"), ExpirationSeconds: new(int32(time.Hour / time.Second)),
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment, certificatesv1.UsageServerAuth},
		},
	}
}

var certificates = map[string]func(*testing.T){
	"should support CSR API operations": func(t *testing.T) {
		condition := `{"conditions":[{"type":"Approved","status":"True","reason":"E2E","message":"Set by a test"}]}`
		apiOperations("certificates.k8s.io", "v1", "certificatesigningrequests", false, signingRequest(), condition, "approval")(t)
		apiOperations("certificates.k8s.io", "v1", "certificatesigningrequests", false, signingRequest(), conditionStatus("Custom"), "status")(t)
	},
}

func policySpec() admissionregistrationv1.ValidatingAdmissionPolicySpec {
	return admissionregistrationv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
			RuleWithOperations: admissionregistrationv1.RuleWithOperations{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{"deployments"}},
			},
		}}},
		Validations: []admissionregistrationv1.Validation{{Expression: "object.spec.replicas <= 100"}},
	}
}

var policyOperations = apiOperations("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", false, &admissionregistrationv1.ValidatingAdmissionPolicy{
	TypeMeta: kind("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy"), Spec: policySpec(),
}, conditionStatus("Custom"), "status")

var bindingOperations = apiOperations("admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings", false, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
	TypeMeta: kind("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicyBinding"),
	Spec:     admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: "no-such-policy", ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}},
}, "")

var sliceOperations = apiOperations("discovery.k8s.io", "v1", "endpointslices", true, &discoveryv1.EndpointSlice{
	TypeMeta: kind("discovery.k8s.io", "v1", "EndpointSlice"), AddressType: discoveryv1.AddressTypeIPv4,
	Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"1.2.3.4", "5.6.7.8"}}},
}, "")
