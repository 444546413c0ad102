package conformance

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
)

var endpointSlices = map[string]func(*testing.T){
	"should have Endpoints and EndpointSlices pointing to API Server":                               slicesOfAPIServer,
	"should create and delete Endpoints and EndpointSlices for a Service with a selector specified": slicesOfSelector,
	"should support creating EndpointSlice API operations":                                          sliceOperations,
}

var services = map[string]func(*testing.T){
	"should provide secure master service": func(t *testing.T) {
		service := got(client.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{}))(t)
		if len(service.Spec.Ports) != 1 || service.Spec.Ports[0].Port != 443 || service.Spec.Ports[0].Name != "https" {
			t.Errorf("its ports are %+v", service.Spec.Ports)
		}
	},
	"should find a service from listing all namespaces": func(t *testing.T) {
		list := got(client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{}))(t)
		for _, service := range list.Items {
			if service.Name == "kubernetes" && service.Namespace == "default" {
				return
			}
		}
		t.Error("the kubernetes service is not in the list")
	},
	"should test the lifecycle of an Endpoint":   endpointsLifecycle,
	"should complete a service status lifecycle": serviceStatus,
	"should delete a collection of services":     serviceCollection,
}

func slicesOfAPIServer(t *testing.T) {
	got(client.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{}))(t)
	endpoints := got(client.CoreV1().Endpoints("default").Get(t.Context(), "kubernetes", metav1.GetOptions{}))(t) //nolint:staticcheck // deprecated, and what the behaviour is about
	if len(endpoints.Subsets) != 1 {
		t.Errorf("its endpoints are %+v", endpoints.Subsets)
	}
	slices := got(client.DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=kubernetes"}))(t)
	if len(slices.Items) == 0 {
		t.Fatal("there is no slice")
	}
	var addresses []string
	for _, slice := range slices.Items {
		for _, endpoint := range slice.Endpoints {
			addresses = append(addresses, endpoint.Addresses...)
		}
	}
	if len(addresses) != len(endpoints.Subsets[0].Addresses) {
		t.Errorf("slices hold %v, endpoints %v", addresses, endpoints.Subsets[0].Addresses)
	}
}

func slicesOfSelector(t *testing.T) {
	namespace := newNamespace(t)
	made := got(client.CoreV1().Services(namespace).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "empty-selector"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"does-not-match-anything": "endpoints"}, Ports: []corev1.ServicePort{{Name: "example", Port: 80, TargetPort: intstr.FromInt32(80)}}},
	}, metav1.CreateOptions{}))(t)
	selector := metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + made.Name}
	list := func(ctx context.Context) ([]discoveryv1.EndpointSlice, error) {
		slices, err := client.DiscoveryV1().EndpointSlices(namespace).List(ctx, selector)
		if err != nil {
			return nil, err
		}
		return slices.Items, nil
	}
	var owned []discoveryv1.EndpointSlice
	eventually(t, "endpoints and a slice", func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().Endpoints(namespace).Get(ctx, made.Name, metav1.GetOptions{}) //nolint:staticcheck // deprecated, and what the behaviour is about
		if gone(err) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		owned, err = list(ctx)
		return len(owned) == 1, err
	})
	if owned[0].Labels[discoveryv1.LabelManagedBy] != "endpointslice-controller.k8s.io" || len(owned[0].OwnerReferences) != 1 || owned[0].OwnerReferences[0].UID != made.UID {
		t.Errorf("the slice is %+v", owned[0].ObjectMeta)
	}
	must(t, client.CoreV1().Services(namespace).Delete(t.Context(), made.Name, metav1.DeleteOptions{}))
	eventually(t, "endpoints and slices to be gone", func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().Endpoints(namespace).Get(ctx, made.Name, metav1.GetOptions{}) //nolint:staticcheck // deprecated, and what the behaviour is about
		if !gone(err) {
			return false, nil
		}
		left, err := list(ctx)
		return len(left) == 0, err
	})
}

func endpointsLifecycle(t *testing.T) {
	namespace, test := newNamespace(t), unique("endpoint")
	api := client.CoreV1().Endpoints(namespace) //nolint:staticcheck // deprecated, and what the behaviour is about
	w := got(api.Watch(t.Context(), labelled(test)))(t)
	defer w.Stop()
	made := &corev1.Endpoints{ //nolint:staticcheck // deprecated, and what the behaviour is about
		ObjectMeta: metav1.ObjectMeta{Name: "testservice", Labels: testLabels(test)},
		Subsets: []corev1.EndpointSubset{{ //nolint:staticcheck // deprecated, and what the behaviour is about
			Addresses: []corev1.EndpointAddress{{IP: "10.0.0.24"}}, Ports: []corev1.EndpointPort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}, //nolint:staticcheck // deprecated, and what the behaviour is about
		}},
	}
	created := got(api.Create(t.Context(), made, metav1.CreateOptions{}))(t)
	awaitEvent(t, w, watch.Added, nil)
	if list := got(client.CoreV1().Endpoints("").List(t.Context(), labelled(test)))(t); len(list.Items) != 1 { //nolint:staticcheck // deprecated, and what the behaviour is about
		t.Errorf("listing all namespaces gives %d", len(list.Items))
	}
	created.Labels["updated"] = "yes"
	got(api.Update(t.Context(), created, metav1.UpdateOptions{}))(t)
	awaitEvent(t, w, watch.Modified, nil)
	patched := got(api.Patch(t.Context(), "testservice", types.StrategicMergePatchType, []byte(`{"subsets":[{"addresses":[{"ip":"10.0.0.25"}],"ports":[{"name":"http-test","port":8080}]}]}`), metav1.PatchOptions{}))(t)
	if patched.Subsets[0].Addresses[0].IP != "10.0.0.25" || patched.Subsets[0].Ports[0].Port != 8080 {
		t.Errorf("after the patch: %+v", patched.Subsets)
	}
	awaitEvent(t, w, watch.Modified, nil)
	must(t, api.DeleteCollection(t.Context(), metav1.DeleteOptions{}, labelled(test)))
	awaitEvent(t, w, watch.Deleted, nil)
	if _, err := api.Get(t.Context(), "testservice", metav1.GetOptions{}); !gone(err) {
		t.Errorf("reading what was deleted gives %v", err)
	}
}

func newService(t *testing.T, namespace, name, test string) *corev1.Service {
	t.Helper()
	return got(client.CoreV1().Services(namespace).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: testLabels(test)},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(80)}}},
	}, metav1.CreateOptions{}))(t)
}

func serviceStatus(t *testing.T) {
	namespace, test := newNamespace(t), unique("service")
	api := client.CoreV1().Services(namespace)
	w := got(api.Watch(t.Context(), labelled(test)))(t)
	defer w.Stop()
	made := newService(t, namespace, "test-service", test)
	awaitEvent(t, w, watch.Added, nil)
	patch := []byte(`{"metadata":{"annotations":{"patchedstatus":"true"}},"status":{"loadBalancer":{"ingress":[{"ip":"203.0.113.1"}]}}}`)
	patched := got(api.Patch(t.Context(), made.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status"))(t)
	if len(patched.Status.LoadBalancer.Ingress) != 1 || patched.Status.LoadBalancer.Ingress[0].IP != "203.0.113.1" {
		t.Errorf("status after the patch is %+v", patched.Status)
	}
	awaitEvent(t, w, watch.Modified, nil)
	patched.Status.Conditions = append(patched.Status.Conditions, metav1.Condition{Type: "StatusUpdate", Status: metav1.ConditionTrue, LastTransitionTime: metav1.Now(), Reason: "E2E", Message: "Set by a test"})
	updated := got(api.UpdateStatus(t.Context(), patched, metav1.UpdateOptions{}))(t)
	if len(updated.Status.Conditions) != 1 {
		t.Errorf("status after the update is %+v", updated.Status)
	}
	awaitEvent(t, w, watch.Modified, nil)
	merged := got(api.Patch(t.Context(), made.Name, types.StrategicMergePatchType, labelPatch("test-service-static", "yes"), metav1.PatchOptions{}))(t)
	if merged.Labels["test-service-static"] != "yes" {
		t.Errorf("labels are %v", merged.Labels)
	}
	awaitEvent(t, w, watch.Modified, nil)
	must(t, api.Delete(t.Context(), made.Name, metav1.DeleteOptions{}))
	awaitEvent(t, w, watch.Deleted, nil)
}

func serviceCollection(t *testing.T) {
	namespace, test := newNamespace(t), unique("service")
	for _, name := range []string{"one", "two"} {
		newService(t, namespace, name, test)
	}
	newService(t, namespace, "other", "other")
	api := client.CoreV1().Services(namespace)
	// The typed client has no such method for services.
	must(t, client.CoreV1().RESTClient().Delete().Namespace(namespace).Resource("services").Param("labelSelector", "test="+test).Do(t.Context()).Error())
	if list := got(api.List(t.Context(), metav1.ListOptions{}))(t); len(list.Items) != 1 || list.Items[0].Name != "other" {
		t.Errorf("%d services are left", len(list.Items))
	}
}

func rejectedWithoutRuntimeClass(t *testing.T) {
	namespace := newNamespace(t)
	assertNoRuntimeClass(t, namespace, unique("missing"))
}

func assertNoRuntimeClass(t *testing.T, namespace, class string) {
	t.Helper()
	made := pod("with-class", "true")
	made.Spec.RuntimeClassName = &class
	_, err := client.CoreV1().Pods(namespace).Create(t.Context(), made, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), class) {
		t.Errorf("creating gives %v", err)
	}
}
