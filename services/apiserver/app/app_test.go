package app_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/apiserver/app"
	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
	"github.com/sampan-io/sampan/services/internal/component"
)

func parse(t *testing.T, args ...string) (*app.Options, error) {
	t.Helper()
	o := app.New()
	fs := pflag.NewFlagSet("apiserver", pflag.ContinueOnError)
	fs.SetOutput(io.Discard)
	o.AddFlags(fs)
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	return o, o.Complete()
}

func TestFlagsThatMustNotBeIgnoredAreRefused(t *testing.T) {
	for _, c := range []struct{ flag, want string }{
		{"--token-auth-file=x", "not supported by this server, and not safe to ignore: --token-auth-file"},
		{"--audit-policy-file=x", "events would go nowhere"},
		{"--audit-log-path=-", "need --audit-policy-file"},
		{"--audit-log-mode=sometimes", "is none of batch, blocking, blocking-strict"},
		{"--audit-webhook-version=audit.k8s.io/v1beta1", "is not audit.k8s.io/v1"},
		{"--audit-webhook-batch-throttle-qps=0", "must be positive"},
		{"--encryption-provider-config-automatic-reload", "needs --encryption-provider-config"},
		{"--etcd-servers=127.0.0.1:2379", "is not of the form"},
		{"--etcd-servers=http://127.0.0.1:2379 --etcd-certfile=x", "must be given together"},
		{"--etcd-servers-overrides=/events#http://127.0.0.1:2379", "--etcd-servers-overrides"},
		{"--storage-backend=etcd3", "needs --etcd-servers"},
		{"--storage-backend=etcd2", "is not etcd3"},
		{"--runtime-config=apps/v1=false", "apps/v1 cannot be switched off"},
		{"--max-connection-bytes-per-sec=1000", "cannot be throttled"},
		{"--admission-control=AlwaysDeny", "--admission-control"},
		{"--service-account-signing-endpoint=/run/signer", "--service-account-signing-endpoint"},
		{"--tls-cipher-suites=TLS_NONE", "--tls-cipher-suites"},
		{"--strict-transport-security-directives=always", "--strict-transport-security-directives"},
		{"--insecure-port=0", "unknown flag: --insecure-port"},
		{"--oidc-issuer-url=x", "--oidc-issuer-url"},
		{"--nonsense", "unknown flag: --nonsense"},
		{"--allow-privileged=false", "cannot refuse privileged containers"},
		{"--bind-address=nowhere", "is not an IP address"},
		{"--tls-cert-file=x", "must be given together"},
		{"--service-cluster-ip-range=10.0.0.0", "--service-cluster-ip-range"},
		{"--service-node-port-range=x", "--service-node-port-range"},
		{"--nats-listen-address=x", "--nats-listen-address"},
		{"--tls-min-version=VersionTLS10", "--tls-min-version"},
	} {
		if _, err := parse(t, strings.Fields(c.flag)...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", c.flag, err, c.want)
		}
	}
	if _, err := parse(t, "--token-auth-file", "/x"); err == nil || !strings.Contains(err.Error(), "not safe to ignore: --token-auth-file") {
		t.Errorf("a value after a space: %v", err)
	}
	if _, err := parse(t, "--feature-gates=AllAlpha=true", "--enable-priority-and-fairness", "--storage-media-type=x", "--token-auth-file=",
		"--runtime-config=api/all=true,api/beta=false", "--etcd-servers=https://127.0.0.1:2379", "--storage-backend=etcd3"); err != nil {
		t.Errorf("harmless flags: %v", err)
	}
}

// What kubeadm and kind give to kube-apiserver is understood.
func TestFlagsOfKubeadmAreTaken(t *testing.T) {
	if _, err := parse(t, "--advertise-address=10.0.0.1", "--allow-privileged=true", "--authorization-mode=Node,RBAC", "--client-ca-file=/pki/ca.crt",
		"--enable-admission-plugins=NodeRestriction", "--enable-bootstrap-token-auth=true", "--etcd-cafile=/pki/etcd/ca.crt",
		"--etcd-certfile=/pki/c.crt", "--etcd-keyfile=/pki/c.key", "--etcd-servers=https://127.0.0.1:2379",
		"--kubelet-client-certificate=/pki/k.crt", "--kubelet-client-key=/pki/k.key",
		"--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname", "--proxy-client-cert-file=/pki/f.crt",
		"--proxy-client-key-file=/pki/f.key", "--requestheader-allowed-names=front-proxy-client", "--requestheader-client-ca-file=/pki/f-ca.crt",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User", "--runtime-config=", "--secure-port=6443",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local", "--service-account-key-file=/pki/sa.pub",
		"--service-account-signing-key-file=/pki/sa.key", "--service-cluster-ip-range=10.96.0.0/16", "--tls-cert-file=/pki/a.crt",
		"--tls-private-key-file=/pki/a.key"); err != nil {
		t.Error(err)
	}
}

func TestServingIsNarrowed(t *testing.T) {
	s := testserver.Start(t, "--disable-http2-serving", "--strict-transport-security-directives=max-age=60,preload", "--tls-cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256")
	answer, err := s.Anonymous().Get(s.Config.Host + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.ProtoMajor != 1 || answer.Header.Get("Strict-Transport-Security") != "max-age=60; preload" {
		t.Errorf("HTTP %d with %q", answer.ProtoMajor, answer.Header.Get("Strict-Transport-Security"))
	}
	config := &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384}}
	address := strings.TrimPrefix(s.Config.Host, "https://")
	if conn, err := (&tls.Dialer{Config: config}).DialContext(t.Context(), "tcp", address); err == nil {
		_ = conn.Close()
		t.Error("a cipher suite that is not in the list was taken")
	}
}

func TestATakenPortIsTheOperatorsToMend(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	dir := t.TempDir()
	o, err := parse(t, "--data-dir="+dir, "--cert-dir="+dir, "--bind-address=127.0.0.1", "--secure-port="+port)
	if err != nil {
		t.Fatal(err)
	}
	err = o.Run(context.Background(), slog.New(slog.NewTextHandler(io.Discard, nil)))
	var usage *component.UsageError
	if !errors.As(err, &usage) || !strings.Contains(err.Error(), "127.0.0.1:"+port+" is already in use") || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v", err)
	}
}

func TestAStoreInUseIsTheOperatorsToMend(t *testing.T) {
	s := testserver.Start(t)
	o, err := parse(t, "--data-dir="+s.Dir+"/data", "--cert-dir="+t.TempDir(), "--bind-address=127.0.0.1", "--secure-port=0")
	if err != nil {
		t.Fatal(err)
	}
	err = o.Run(context.Background(), slog.New(slog.NewTextHandler(io.Discard, nil)))
	var usage *component.UsageError
	if !errors.As(err, &usage) || !strings.Contains(err.Error(), "is in use by another process") {
		t.Errorf("got %v", err)
	}
}

func TestObjectsSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	s := testserver.StartIn(t, dir)
	created, err := s.Client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	s = testserver.StartIn(t, dir)
	got, err := s.Client.CoreV1().ConfigMaps("default").Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil || got.ResourceVersion != created.ResourceVersion || got.UID != created.UID {
		t.Errorf("got %v, want %v: %v", got, created, err)
	}
	later, err := s.Client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "b"}}, metav1.CreateOptions{})
	if err != nil || later.ResourceVersion <= created.ResourceVersion && len(later.ResourceVersion) == len(created.ResourceVersion) {
		t.Errorf("versions went back: %v, %v", later, err)
	}
}

func TestTheClustersOwnObjectsAreThere(t *testing.T) {
	s := testserver.Start(t)
	for _, name := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
		if _, err := s.Client.CoreV1().Namespaces().Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	}
	service, err := s.Client.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil || service.Spec.ClusterIP != "10.96.0.1" {
		t.Errorf("kubernetes: %v, %v", service, err)
	}
	if _, err := s.Client.RbacV1().ClusterRoles().Get(t.Context(), "cluster-admin", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	version, err := s.Client.Discovery().ServerVersion()
	if err != nil || version.Major != "1" || version.Minor != "37" {
		t.Errorf("version: %v, %v", version, err)
	}
	metrics, err := s.Client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil || !strings.Contains(string(metrics), `apiserver_request_total{`) {
		t.Errorf("metrics: %v", err)
	}
}
