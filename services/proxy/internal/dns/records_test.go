package dns_test

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/proxy/internal/dns"
	"github.com/sampan-io/sampan/services/proxy/internal/state"
)

func newService(name, ip string, change func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.ServiceSpec{
		ClusterIP: ip, ClusterIPs: []string{ip}, Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
	}}
	if change != nil {
		change(s)
	}
	return s
}

func newSlice(service string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	kind := discoveryv1.AddressTypeIPv4
	if len(endpoints) > 0 && strings.Contains(endpoints[0].Addresses[0], ":") {
		kind = discoveryv1.AddressTypeIPv6
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: service + "-" + strings.ToLower(string(kind)), Labels: map[string]string{
			discoveryv1.LabelServiceName: service, corev1.IsHeadlessService: "",
		}},
		AddressType: kind, Endpoints: endpoints,
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080), Protocol: ptr.To(corev1.ProtocolTCP)}},
	}
}

func endpoint(ip, hostname string, ready bool) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{ip}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}
	if hostname != "" {
		e.Hostname = &hostname
	}
	return e
}

// serve runs a server on a free port of loopback and returns its address.
func serve(t *testing.T, resolvConf string) string {
	t.Helper()
	api := fake.NewClientset(
		newService("web", "10.96.0.20", nil),
		newService("dual", "10.96.0.21", func(s *corev1.Service) { s.Spec.ClusterIPs = []string{"10.96.0.21", "fd00::21"} }),
		newService("db", corev1.ClusterIPNone, nil),
		newSlice("db", endpoint("10.244.1.2", "db-0", true), endpoint("10.244.1.3", "", true), endpoint("10.244.1.4", "db-2", false)),
		newSlice("db", endpoint("fd00::1:2", "db-0", true)),
		newService("early", corev1.ClusterIPNone, func(s *corev1.Service) { s.Spec.PublishNotReadyAddresses = true }),
		newSlice("early", endpoint("10.244.1.9", "", false)),
		newService("nobody", corev1.ClusterIPNone, nil),
		newService("many", corev1.ClusterIPNone, nil),
		newSlice("many", manyEndpoints()...),
		newService("docs", "", func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName, s.Spec.ClusterIPs = corev1.ServiceTypeExternalName, "docs.example.com", nil
		}),
		newService("alias", "", func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName, s.Spec.ClusterIPs = corev1.ServiceTypeExternalName, "web.shop.svc.cluster.local", nil
		}),
	)
	known, err := state.New(state.FromAPI(api))
	if err != nil {
		t.Fatal(err)
	}
	return start(t, known, known, resolvConf)
}

func manyEndpoints() (out []discoveryv1.Endpoint) {
	for i := range 100 {
		out = append(out, endpoint(netip.AddrFrom4([4]byte{10, 244, 7, byte(i + 1)}).String(), "", true))
	}
	return out
}

func start(t *testing.T, source dns.Source, known *state.State, resolvConf string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	server := dns.New(dns.Config{
		Address: netip.MustParseAddrPort(address), Domain: "cluster.local", ResolvConf: resolvConf, Source: source,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 2)
	if known != nil {
		go func() { known.Run(ctx); done <- nil }()
		if !known.AwaitSync(ctx) {
			t.Fatal("not synced")
		}
	} else {
		done <- nil
	}
	go func() { done <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				t.Errorf("server ended: %v", err)
			}
		}
	})
	for deadline := time.Now().Add(5 * time.Second); ; {
		c, err := net.Dial("tcp", address)
		if err == nil {
			_ = c.Close()
			return address
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func ask(t *testing.T, network, address, name string, kind uint16, size uint16) *mdns.Msg {
	t.Helper()
	message := new(mdns.Msg)
	message.SetQuestion(name, kind)
	if size > 0 {
		message.SetEdns0(size, false)
	}
	client := mdns.Client{Net: network, Timeout: 10 * time.Second, UDPSize: 4096}
	reply, _, err := client.Exchange(message, address)
	if err != nil {
		t.Fatalf("%s %s: %v", name, mdns.TypeToString[kind], err)
	}
	reply.Compress = true // as it came, for its length
	return reply
}

// text is an answer in short: its code, and its records' data in order.
func text(reply *mdns.Msg) string {
	var data []string
	for _, record := range reply.Answer {
		data = append(data, strings.TrimPrefix(record.String(), record.Header().String()))
	}
	slices.Sort(data)
	return strings.TrimSpace(mdns.RcodeToString[reply.Rcode] + " " + strings.Join(data, " | "))
}

func TestRecordsFollowTheSpecification(t *testing.T) {
	address := serve(t, "/dev/null")
	for _, step := range []struct {
		name string
		kind uint16
		want string
	}{
		{"web.shop.svc.cluster.local.", mdns.TypeA, "NOERROR 10.96.0.20"},
		{"WEB.Shop.svc.Cluster.local.", mdns.TypeA, "NOERROR 10.96.0.20"},
		{"web.shop.svc.cluster.local.", mdns.TypeAAAA, "NOERROR"},
		{"web.shop.svc.cluster.local.", mdns.TypeTXT, "NOERROR"},
		{"dual.shop.svc.cluster.local.", mdns.TypeA, "NOERROR 10.96.0.21"},
		{"dual.shop.svc.cluster.local.", mdns.TypeAAAA, "NOERROR fd00::21"},
		{"_http._tcp.web.shop.svc.cluster.local.", mdns.TypeSRV, "NOERROR 0 100 80 web.shop.svc.cluster.local."},
		{"_http._tcp.web.shop.svc.cluster.local.", mdns.TypeA, "NOERROR"},
		{"_tcp.web.shop.svc.cluster.local.", mdns.TypeA, "NOERROR"},
		{"_http._udp.web.shop.svc.cluster.local.", mdns.TypeSRV, "NXDOMAIN"},
		{"_grpc._tcp.web.shop.svc.cluster.local.", mdns.TypeSRV, "NXDOMAIN"},
		{"a.web.shop.svc.cluster.local.", mdns.TypeA, "NXDOMAIN"},
		{"absent.shop.svc.cluster.local.", mdns.TypeA, "NXDOMAIN"},
		{"web.absent.svc.cluster.local.", mdns.TypeA, "NXDOMAIN"},

		{"db.shop.svc.cluster.local.", mdns.TypeA, "NOERROR 10.244.1.2 | 10.244.1.3"},
		{"db.shop.svc.cluster.local.", mdns.TypeAAAA, "NOERROR fd00::1:2"},
		{"db-0.db.shop.svc.cluster.local.", mdns.TypeA, "NOERROR 10.244.1.2"},
		{"db-0.db.shop.svc.cluster.local.", mdns.TypeAAAA, "NOERROR fd00::1:2"},
		{"10-244-1-3.db.shop.svc.cluster.local.", mdns.TypeA, "NOERROR 10.244.1.3"},
		{"db-2.db.shop.svc.cluster.local.", mdns.TypeA, "NXDOMAIN"},
		{"_http._tcp.db.shop.svc.cluster.local.", mdns.TypeSRV, "NOERROR 0 100 8080 10-244-1-3.db.shop.svc.cluster.local. | 0 100 8080 db-0.db.shop.svc.cluster.local. | 0 100 8080 db-0.db.shop.svc.cluster.local."},
		{"early.shop.svc.cluster.local.", mdns.TypeA, "NOERROR 10.244.1.9"},
		{"nobody.shop.svc.cluster.local.", mdns.TypeA, "NXDOMAIN"},

		{"docs.shop.svc.cluster.local.", mdns.TypeCNAME, "NOERROR docs.example.com."},
		{"alias.shop.svc.cluster.local.", mdns.TypeA, "NOERROR 10.96.0.20 | web.shop.svc.cluster.local."},

		{"20.0.96.10.in-addr.arpa.", mdns.TypePTR, "NOERROR web.shop.svc.cluster.local."},
		{"2.1.244.10.in-addr.arpa.", mdns.TypePTR, "NOERROR db-0.db.shop.svc.cluster.local."},
		{"3.1.244.10.in-addr.arpa.", mdns.TypePTR, "NOERROR 10-244-1-3.db.shop.svc.cluster.local."},
		{"1.2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.", mdns.TypePTR, "NOERROR dual.shop.svc.cluster.local."},

		{"10-244-1-2.shop.pod.cluster.local.", mdns.TypeA, "NOERROR 10.244.1.2"},
		{"10-244-1-2.shop.pod.cluster.local.", mdns.TypeAAAA, "NOERROR"},
		{"fd00--1-2.shop.pod.cluster.local.", mdns.TypeAAAA, "NOERROR fd00::1:2"},
		{"nonsense.shop.pod.cluster.local.", mdns.TypeA, "NXDOMAIN"},
		{"1-2-3-4-5.shop.pod.cluster.local.", mdns.TypeA, "NXDOMAIN"},

		{"shop.svc.cluster.local.", mdns.TypeA, "NOERROR"},
		{"svc.cluster.local.", mdns.TypeA, "NOERROR"},
		{"cluster.local.", mdns.TypeA, "NOERROR"},
		{"cluster.local.", mdns.TypeNS, "NOERROR ns.dns.cluster.local."},
		{"ns.dns.cluster.local.", mdns.TypeA, "NOERROR 127.0.0.1"},
		{"dns-version.cluster.local.", mdns.TypeTXT, `NOERROR "1.1.0"`},
		{"absent.cluster.local.", mdns.TypeA, "NXDOMAIN"},
		{"other.example.", mdns.TypeA, "SERVFAIL"}, // no resolvers
	} {
		reply := ask(t, "udp", address, step.name, step.kind, 0)
		if got := text(reply); got != step.want {
			t.Errorf("%s %s: %s, want %s", step.name, mdns.TypeToString[step.kind], got, step.want)
		}
		denied := len(reply.Answer) == 0 && reply.Rcode != mdns.RcodeServerFailure
		if denied && (len(reply.Ns) != 1 || reply.Ns[0].Header().Rrtype != mdns.TypeSOA) {
			t.Errorf("%s: a denial without SOA: %v", step.name, reply.Ns)
		}
		for _, record := range reply.Answer {
			if record.Header().Ttl > 30 {
				t.Errorf("%s: time to live is %d s", step.name, record.Header().Ttl)
			}
		}
	}
}

func TestLargeAnswersAreTruncatedOverUDPOnly(t *testing.T) {
	address := serve(t, "/dev/null")
	name := "many.shop.svc.cluster.local."
	small := ask(t, "udp", address, name, mdns.TypeA, 0)
	if !small.Truncated || small.Len() > 512 {
		t.Errorf("without EDNS: truncated %v, %d bytes", small.Truncated, small.Len())
	}
	large := ask(t, "udp", address, name, mdns.TypeA, 4096)
	if !large.Truncated || large.Len() > 1232 || len(large.Answer) <= len(small.Answer) {
		t.Errorf("with EDNS: truncated %v, %d bytes, %d records after %d", large.Truncated, large.Len(), len(large.Answer), len(small.Answer))
	}
	if whole := ask(t, "tcp", address, name, mdns.TypeA, 0); whole.Truncated || len(whole.Answer) != 100 {
		t.Errorf("over TCP: truncated %v, %d records", whole.Truncated, len(whole.Answer))
	}
	first := map[string]bool{}
	for range 8 {
		first[ask(t, "tcp", address, name, mdns.TypeA, 0).Answer[0].String()] = true
	}
	if len(first) == 1 {
		t.Error("eight times the same endpoint came first of 100")
	}
}

func TestBadQuestionsAreRefused(t *testing.T) {
	address := serve(t, "/dev/null")
	for _, step := range []struct {
		change func(*mdns.Msg)
		want   int
	}{
		{func(m *mdns.Msg) { m.Question = nil }, mdns.RcodeFormatError},
		{func(m *mdns.Msg) { m.Opcode = mdns.OpcodeUpdate }, mdns.RcodeNotImplemented},
		{func(m *mdns.Msg) { m.Question[0].Qclass = mdns.ClassCHAOS }, mdns.RcodeRefused},
		{func(m *mdns.Msg) { m.Question[0].Qtype = mdns.TypeAXFR }, mdns.RcodeRefused},
		{func(m *mdns.Msg) { m.SetEdns0(1232, false); m.IsEdns0().SetVersion(1) }, mdns.RcodeBadVers},
	} {
		message := new(mdns.Msg)
		message.SetQuestion("web.shop.svc.cluster.local.", mdns.TypeA)
		step.change(message)
		reply, _, err := (&mdns.Client{Timeout: 5 * time.Second}).Exchange(message, address)
		if err != nil || reply.Rcode != step.want {
			t.Errorf("%v: %v, %v; want %s", message, reply, err, mdns.RcodeToString[step.want])
		}
	}
}

// unsynced knows nothing yet.
type unsynced struct{ dns.Source }

func (unsynced) Synced() bool { return false }

func TestNamesAreNotDeniedBeforeAllIsKnown(t *testing.T) {
	address := start(t, unsynced{}, nil, "/dev/null")
	if got := text(ask(t, "udp", address, "web.shop.svc.cluster.local.", mdns.TypeA, 0)); got != "SERVFAIL" {
		t.Errorf("answer is %s", got)
	}
}

// resolver answers on port 53 of a loopback address.
func resolver(t *testing.T, ip string, answer mdns.HandlerFunc) {
	t.Helper()
	packets, err := net.ListenPacket("udp", ip+":53")
	if err != nil {
		t.Skipf("port 53: %v", err)
	}
	ready := make(chan struct{})
	server := &mdns.Server{PacketConn: packets, Handler: answer, NotifyStartedFunc: func() { close(ready) }}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.ActivateAndServe() }()
	<-ready
	t.Cleanup(func() { _ = server.Shutdown(); <-done })
}

func TestNamesOutsideAreForwardedAndKept(t *testing.T) {
	var asked atomic.Int64
	resolver(t, "127.77.0.1", func(w mdns.ResponseWriter, m *mdns.Msg) { // broken
		_ = w.WriteMsg(new(mdns.Msg).SetRcode(m, mdns.RcodeServerFailure))
	})
	resolver(t, "127.77.0.2", func(w mdns.ResponseWriter, m *mdns.Msg) {
		asked.Add(1)
		reply := new(mdns.Msg).SetReply(m)
		if strings.HasPrefix(m.Question[0].Name, "absent") {
			reply.Rcode = mdns.RcodeNameError
		} else if record, err := mdns.NewRR(m.Question[0].Name + " 20 IN A 203.0.113.7"); err == nil {
			reply.Answer = []mdns.RR{record}
		}
		_ = w.WriteMsg(reply)
	})
	path := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(path, []byte("nameserver 127.77.0.1\nnameserver 127.77.0.2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	address := serve(t, path)
	for range 3 {
		if got := text(ask(t, "udp", address, "www.example.com.", mdns.TypeA, 0)); got != "NOERROR 203.0.113.7" {
			t.Errorf("answer is %s", got)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the resolver was asked %d times", n)
	}
	if got := text(ask(t, "udp", address, "absent.example.com.", mdns.TypeA, 0)); got != "NXDOMAIN" {
		t.Errorf("answer is %s", got)
	}
	if got := text(ask(t, "udp", address, "docs.shop.svc.cluster.local.", mdns.TypeA, 0)); got != "NOERROR 203.0.113.7 | docs.example.com." {
		t.Errorf("an alias to the outside: %s", got)
	}
}
