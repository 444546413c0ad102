package app

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/proxy/internal/iptables"
	"github.com/sampan-io/sampan/services/proxy/internal/state"
)

// nowhere takes rules and forgets them.
type nowhere struct{}

func (nowhere) Save(context.Context, string) (string, error) { return "", nil }
func (nowhere) Restore(context.Context, string) error        { return nil }

// listed is a list that never changes.
func listed(list func() apiruntime.Object) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc:  func(context.Context, metav1.ListOptions) (apiruntime.Object, error) { return list(), nil },
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return watch.NewFake(), nil },
	}, unstreamed{})
}

// unstreamed says that lists are not streamed over watches.
type unstreamed struct{}

func (unstreamed) IsWatchListSemanticsUnSupported() bool { return true }

func manySources(n int) state.Sources {
	meta := func(i int) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Namespace: fmt.Sprintf("team-%d", i%100), Name: fmt.Sprintf("service-%d", i), UID: "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
			ManagedFields: []metav1.ManagedFieldsEntry{{FieldsV1: &metav1.FieldsV1{}}},
		}
	}
	return state.Sources{
		Services: listed(func() apiruntime.Object {
			list := &corev1.ServiceList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
			for i := range n {
				ip := fmt.Sprintf("10.%d.%d.%d", 96+i>>16, i>>8&255, i&255)
				list.Items = append(list.Items, corev1.Service{ObjectMeta: meta(i), Spec: corev1.ServiceSpec{
					ClusterIP: ip, ClusterIPs: []string{ip}, Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
				}})
			}
			return list
		}),
		EndpointSlices: listed(func() apiruntime.Object {
			list := &discoveryv1.EndpointSliceList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
			for i := range n {
				slice := discoveryv1.EndpointSlice{ObjectMeta: meta(i), AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{
					{Name: ptr.To("http"), Port: ptr.To[int32](8080), Protocol: ptr.To(corev1.ProtocolTCP)},
				}}
				slice.Labels = map[string]string{discoveryv1.LabelServiceName: slice.Name}
				for e := range 4 {
					slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
						Addresses: []string{fmt.Sprintf("10.244.%d.%d", i>>6&255, (i*4+e)&255)}, NodeName: ptr.To(fmt.Sprintf("node-%d", e)),
						Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
						TargetRef:  &corev1.ObjectReference{Kind: "Pod", Name: fmt.Sprintf("pod-%d-%d", i, e)},
					})
				}
				list.Items = append(list.Items, slice)
			}
			return list
		}),
		Nodes: listed(func() apiruntime.Object { return &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}} }),
	}
}

func TestManyServicesTakeLittleMemory(t *testing.T) {
	const services, bound = 10000, 60 << 20
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	known, err := state.New(manySources(services))
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); known.Run(ctx) }()
	defer func() { cancel(); <-done }()
	k := newKeeper(New(), known, iptables.NewSyncer(iptables.Config{}, nowhere{}), newMetrics(), slog.Default())
	if !known.AwaitSync(ctx) {
		t.Fatal("not synced")
	}
	changed := known.Take().Services
	for key, at := range changed {
		k.take(key, at)
	}
	must(t, k.syncer.Sync(ctx))
	runtime.GC()
	runtime.ReadMemStats(&after)
	if len(changed) != services {
		t.Errorf("%d Services", len(changed))
	}
	used := after.HeapAlloc - before.HeapAlloc
	t.Logf("%d Services with four endpoints each take %d MiB", services, used>>20)
	if used > bound {
		t.Errorf("more than %d MiB", bound>>20)
	}
	runtime.KeepAlive(k)
}
