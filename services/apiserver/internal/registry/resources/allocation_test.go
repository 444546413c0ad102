package resources_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

func newService(name string, change func(*corev1.ServiceSpec)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	if change != nil {
		change(&s.Spec)
	}
	return s
}

func mustCreate(t *testing.T, client kubernetes.Interface, s *corev1.Service) *corev1.Service {
	t.Helper()
	created, err := client.CoreV1().Services("default").Create(t.Context(), s, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return created
}

// parentOf is the Service that an address belongs to, "" when it is free.
func parentOf(t *testing.T, client kubernetes.Interface, ip string) string {
	t.Helper()
	address, err := client.NetworkingV1().IPAddresses().Get(t.Context(), ip, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	return address.Spec.ParentRef.Namespace + "/" + address.Spec.ParentRef.Name
}

func TestServicesTakeAddressesFromServiceCIDRs(t *testing.T) {
	server := testserver.Start(t, "--service-cluster-ip-range=10.96.0.0/28")
	client := server.Client
	cidr, err := client.NetworkingV1().ServiceCIDRs().Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil || !meta.IsStatusConditionTrue(cidr.Status.Conditions, networkingv1.ServiceCIDRConditionReady) {
		t.Fatalf("the default range is %+v (%v)", cidr, err)
	}
	if got := parentOf(t, client, "10.96.0.1"); got != "default/kubernetes" {
		t.Errorf("the first address is of %q", got)
	}
	for i := range 12 { // besides those of kubernetes and kube-dns
		name := fmt.Sprintf("s%d", i)
		s := mustCreate(t, client, newService(name, nil))
		if got := parentOf(t, client, s.Spec.ClusterIP); got != "default/"+name {
			t.Errorf("%s has %s, which is of %q", name, s.Spec.ClusterIP, got)
		}
	}
	_, err = client.CoreV1().Services("default").Create(t.Context(), newService("f", nil), metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "range is full") {
		t.Fatalf("a full range answers %v", err)
	}
	more := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.97.0.0/24"}}}
	if _, err := client.NetworkingV1().ServiceCIDRs().Create(t.Context(), more, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s := mustCreate(t, client, newService("f", nil))
	if !strings.HasPrefix(s.Spec.ClusterIP, "10.97.0.") {
		t.Errorf("the address is %s", s.Spec.ClusterIP)
	}
	if err := client.CoreV1().Services("default").Delete(t.Context(), "f", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := parentOf(t, client, s.Spec.ClusterIP); got != "" {
		t.Errorf("the deleted service's address is of %q", got)
	}
}

func TestAddressesAreRepaired(t *testing.T) {
	server := testserver.Start(t)
	s := mustCreate(t, server.Client, newService("web", func(spec *corev1.ServiceSpec) { spec.Type = corev1.ServiceTypeNodePort }))
	ip, port := s.Spec.ClusterIP, s.Spec.Ports[0].NodePort
	remove := func(client kubernetes.Interface) {
		t.Helper()
		if err := client.NetworkingV1().IPAddresses().Delete(t.Context(), ip, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	remove(server.Client)
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, 20*time.Second, true, func(context.Context) (bool, error) {
		return parentOf(t, server.Client, ip) == "default/web", nil
	})
	if err != nil {
		t.Fatalf("the address is not made again: %v", err)
	}
	err = wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, 20*time.Second, true, func(ctx context.Context) (bool, error) {
		events, err := server.Client.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "reason=ClusterIPNotAllocated"})
		return err == nil && len(events.Items) > 0, err
	})
	if err != nil {
		t.Errorf("no event tells of it: %v", err)
	}
	remove(server.Client)
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	// A server repairs before it serves, and knows the ports of stored services.
	again := testserver.StartIn(t, server.Dir)
	if got := parentOf(t, again.Client, ip); got != "default/web" {
		t.Errorf("after a restart the address is of %q", got)
	}
	_, err = again.Client.CoreV1().Services("default").Create(t.Context(), newService("other", func(spec *corev1.ServiceSpec) {
		spec.Type, spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, port
	}), metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "provided port is already allocated") {
		t.Errorf("a stored service's port answers %v", err)
	}
}

func TestDualStackServices(t *testing.T) {
	server := testserver.Start(t, "--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112")
	client := server.Client
	s := mustCreate(t, client, newService("both", func(spec *corev1.ServiceSpec) { spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyRequireDualStack) }))
	if len(s.Spec.ClusterIPs) != 2 || len(s.Spec.IPFamilies) != 2 {
		t.Fatalf("the service is %+v", s.Spec)
	}
	for _, ip := range s.Spec.ClusterIPs {
		if got := parentOf(t, client, ip); got != "default/both" {
			t.Errorf("%s is of %q", ip, got)
		}
	}
	second := s.Spec.ClusterIPs[1]
	s.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicySingleStack)
	if _, err := client.CoreV1().Services("default").Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := parentOf(t, client, second); got != "" {
		t.Errorf("the address that was given up is of %q", got)
	}
	six := mustCreate(t, client, newService("six", func(spec *corev1.ServiceSpec) { spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} }))
	if !strings.HasPrefix(six.Spec.ClusterIP, "fd00:10:96::") {
		t.Errorf("the address is %s", six.Spec.ClusterIP)
	}
}
