package env_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/node-agent/internal/env"
)

func TestExpand(t *testing.T) {
	lookup := func(name string) (string, bool) {
		value, ok := map[string]string{"A": "one", "EMPTY": "", "REF": "$(A)"}[name]
		return value, ok
	}
	for text, want := range map[string]string{
		"plain":           "plain",
		"$(A)":            "one",
		"x$(A)y$(A)":      "xoney" + "one",
		"$(EMPTY)":        "",
		"$(MISSING)":      "$(MISSING)",
		"$$(A)":           "$(A)",
		"$$$(A)":          "$one",
		"$A":              "$A",
		"$":               "$",
		"a$":              "a$",
		"$(A":             "$(A",
		"$()":             "$()",
		"$(REF)":          "$(A)", // what is put in is not looked at again
		"$(A)$(MISSING":   "one$(MISSING",
		"100$ and $(A) $": "100$ and one $",
	} {
		if got := env.Expand(text, lookup); got != want {
			t.Errorf("Expand(%q) = %q, want %q", text, got, want)
		}
	}
}

type fakeObjects struct {
	configMaps map[string]map[string]string
	secrets    map[string]map[string]string
}

func (f fakeObjects) ConfigMap(_ context.Context, _, name string) (*corev1.ConfigMap, error) {
	data, ok := f.configMaps[name]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmap"}, name)
	}
	return &corev1.ConfigMap{Data: data}, nil
}

func (f fakeObjects) Secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	data, ok := f.secrets[name]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secret"}, name)
	}
	secret := &corev1.Secret{Data: map[string][]byte{}}
	for key, value := range data {
		secret.Data[key] = []byte(value)
	}
	return secret, nil
}

func newInput() env.Input {
	return env.Input{
		Pod:     &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns"}},
		PodIPs:  []string{"10.0.0.7", "fd00::7"},
		HostIPs: []string{"192.168.0.1"},
		Objects: fakeObjects{
			configMaps: map[string]map[string]string{"c": {"k": "v", "9bad": "x", "with=sign": "y"}},
			secrets:    map[string]map[string]string{"s": {"key": "hidden"}},
		},
		MasterNamespace: "default",
	}
}

func service(namespace, name, ip string, ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.ServiceSpec{ClusterIP: ip, Ports: ports}}
}

func lines(vars []env.Var) []string {
	var out []string
	for _, v := range vars {
		out = append(out, v.Name+"="+v.Value)
	}
	return out
}

func TestMakeTellsOfServices(t *testing.T) {
	in := newInput()
	in.Services = []*corev1.Service{
		service("default", "kubernetes", "10.96.0.1", corev1.ServicePort{Name: "https", Port: 443}),
		service("ns", "my-db", "10.96.0.9", corev1.ServicePort{Name: "sql", Port: 5432, Protocol: corev1.ProtocolTCP}, corev1.ServicePort{Port: 53, Protocol: corev1.ProtocolUDP}),
		service("other", "hidden", "10.96.0.10", corev1.ServicePort{Port: 80}),
		service("ns", "headless", "None", corev1.ServicePort{Port: 80}),
	}
	vars, err := env.Make(t.Context(), in, &corev1.Container{Env: []corev1.EnvVar{{Name: "URL", Value: "http://$(MY_DB_SERVICE_HOST):$(MY_DB_SERVICE_PORT_SQL)"}}})
	if err != nil {
		t.Fatal(err)
	}
	got := lines(vars)
	for _, want := range []string{
		"KUBERNETES_SERVICE_HOST=10.96.0.1", "KUBERNETES_SERVICE_PORT=443", "KUBERNETES_SERVICE_PORT_HTTPS=443", "KUBERNETES_PORT=tcp://10.96.0.1:443",
		"MY_DB_SERVICE_HOST=10.96.0.9", "MY_DB_PORT_5432_TCP=tcp://10.96.0.9:5432", "MY_DB_PORT_5432_TCP_PROTO=tcp", "MY_DB_PORT_5432_TCP_PORT=5432",
		"MY_DB_PORT_5432_TCP_ADDR=10.96.0.9", "MY_DB_PORT_53_UDP=udp://10.96.0.9:53", "URL=http://10.96.0.9:5432",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("no %s in %q", want, got)
		}
	}
	if text := strings.Join(got, " "); strings.Contains(text, "HIDDEN") || strings.Contains(text, "HEADLESS") {
		t.Errorf("told of other services: %q", got)
	}
	no := false
	in.Pod.Spec.EnableServiceLinks = &no
	vars, err = env.Make(t.Context(), in, &corev1.Container{})
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(lines(vars), " "); strings.Contains(text, "MY_DB") || !strings.Contains(text, "KUBERNETES_SERVICE_HOST") {
		t.Errorf("without service links: %q", text)
	}
}

func TestMakeLaterSourcesWin(t *testing.T) {
	in := newInput()
	var skipped []string
	in.Skipped = func(_ string, keys []string) { skipped = append(skipped, keys...) }
	vars, err := env.Make(t.Context(), in, &corev1.Container{
		EnvFrom: []corev1.EnvFromSource{
			{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "c"}}},
			{Prefix: "S_", SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}},
		},
		Env: []corev1.EnvVar{{Name: "k", Value: "mine"}, {Name: "k2", Value: "$(S_key)"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	got := lines(vars)
	for _, want := range []string{"k=mine", "S_key=hidden", "k2=hidden"} {
		if !slices.Contains(got, want) {
			t.Errorf("no %s in %q", want, got)
		}
	}
	if !slices.Contains(skipped, "with=sign") {
		t.Errorf("skipped %q", skipped)
	}
}

func TestMakeNamesWhatIsMissing(t *testing.T) {
	yes := true
	ref := corev1.LocalObjectReference{Name: "absent"}
	for _, c := range []struct {
		name string
		from corev1.EnvVarSource
		want string
	}{
		{"config map", corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: ref, Key: "k"}}, `configmap "absent" not found`},
		{"secret", corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: ref, Key: "k"}}, `secret "absent" not found`},
		{"key", corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "c"}, Key: "no"}}, "couldn't find key no in ConfigMap ns/c"},
		{"optional", corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: ref, Key: "k", Optional: &yes}}, ""},
		{"field", corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.secret"}}, "unsupported fieldPath: spec.secret"},
		{"resource", corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits"}}, "unsupported container resource : limits"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := env.Make(t.Context(), newInput(), &corev1.Container{Env: []corev1.EnvVar{{Name: "X", ValueFrom: &c.from}}})
			if got := errorText(err); got != c.want {
				t.Errorf("error %q, want %q", got, c.want)
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestResourceRoundsUpAndFallsBackToTheNode(t *testing.T) {
	container := &corev1.Container{Resources: corev1.ResourceRequirements{
		Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1500m")},
		Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("100Mi")},
	}}
	node := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("2Gi")}
	for _, c := range []struct{ name, divisor, want string }{
		{"limits.cpu", "1", "2"}, {"limits.cpu", "1m", "1500"}, {"requests.memory", "1Mi", "100"}, {"requests.memory", "1", "104857600"},
		{"limits.memory", "1Gi", "2"}, {"requests.cpu", "", "0"},
	} {
		ref := &corev1.ResourceFieldSelector{Resource: c.name}
		if c.divisor != "" {
			ref.Divisor = resource.MustParse(c.divisor)
		}
		got, err := env.Resource(ref, container, node)
		if err != nil || got != c.want {
			t.Errorf("%s / %s = %q, %v; want %q", c.name, c.divisor, got, err, c.want)
		}
	}
}
