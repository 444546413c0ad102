package probes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestTrackerWaitsForItsThresholds(t *testing.T) {
	good, bad, broken := Outcome{Success: true}, Outcome{}, Outcome{Err: errors.New("x")}
	for _, c := range []struct {
		name             string
		success, failure int32
		initial          Verdict
		tries            []Outcome
		want             []Verdict
	}{
		{"one success is enough", 1, 3, Unknown, []Outcome{good}, []Verdict{Success}},
		{"failures must be in a row", 1, 3, Success, []Outcome{bad, bad, good, bad, bad, bad}, []Verdict{Success, Success, Success, Success, Success, Failure}},
		{"successes too", 2, 1, Failure, []Outcome{good, bad, good, good}, []Verdict{Failure, Failure, Failure, Success}},
		{"a broken try counts for nothing", 1, 2, Success, []Outcome{bad, broken, bad}, []Verdict{Success, Success, Failure}},
		{"no thresholds are one", 0, 0, Unknown, []Outcome{bad, good}, []Verdict{Failure, Success}},
	} {
		t.Run(c.name, func(t *testing.T) {
			track := newTracker(Readiness, &corev1.Probe{SuccessThreshold: c.success, FailureThreshold: c.failure}, c.initial)
			for i, outcome := range c.tries {
				before := track.verdict
				if changed := track.observe(outcome); changed != (track.verdict != before) {
					t.Errorf("try %d: changed is %v", i, changed)
				}
				if track.verdict != c.want[i] {
					t.Errorf("try %d: verdict %v, want %v", i, track.verdict, c.want[i])
				}
			}
		})
	}
}

// fakeExecutor answers commands with the exit code that is set.
type fakeExecutor struct {
	mu    sync.Mutex
	code  int32
	tries []time.Time
}

func (f *fakeExecutor) set(code int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.code = code
}

func (f *fakeExecutor) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.tries)
}

func (f *fakeExecutor) Exec(context.Context, string, []string, time.Duration) (*runtimeapi.ExecSyncResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tries = append(f.tries, time.Now())
	return &runtimeapi.ExecSyncResponse{ExitCode: f.code, Stdout: []byte("said")}, nil
}

func newSet(executor *fakeExecutor, told *[]string) *Set {
	var mu sync.Mutex
	return New(Config{
		Executor: executor, Changed: func(types.UID) {},
		Unhealthy: func(_ *corev1.Pod, _ *corev1.Container, reason, message string) {
			mu.Lock()
			defer mu.Unlock()
			*told = append(*told, reason+": "+message)
		},
	})
}

func execProbe(period, delay, failures int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}},
		PeriodSeconds: period, InitialDelaySeconds: delay, FailureThreshold: failures, SuccessThreshold: 1, TimeoutSeconds: 1,
	}
}

func target(c *corev1.Container) Target {
	return Target{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}, Container: c, ContainerID: "id", PodIP: "127.0.0.1", StartedAt: time.Now()}
}

func TestReadinessComesSoonAndGoesAfterItsThreshold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		executor, told := &fakeExecutor{code: 1}, []string{}
		set := newSet(executor, &told)
		defer set.Close()
		set.Start(target(&corev1.Container{ReadinessProbe: execProbe(10, 0, 2)}), Known{})
		assertVerdict(t, set, Readiness, Unknown)
		executor.set(0)
		time.Sleep(1500 * time.Millisecond) // far less than a period
		assertVerdict(t, set, Readiness, Success)
		if len(told) != 0 {
			t.Errorf("told %q of tries that count for nothing", told)
		}
		executor.set(1)
		time.Sleep(11 * time.Second)
		assertVerdict(t, set, Readiness, Success)
		time.Sleep(10 * time.Second)
		assertVerdict(t, set, Readiness, Failure)
		if len(told) != 2 || told[0] != "Unhealthy: Readiness probe failed: said" {
			t.Errorf("told %q", told)
		}
	})
}

func assertVerdict(t *testing.T, set *Set, kind Kind, want Verdict) {
	t.Helper()
	synctest.Wait()
	if got := set.Verdict("id", kind); got != want {
		t.Errorf("%s is %v, want %v", kind, got, want)
	}
}

func TestInitialDelayIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		executor := &fakeExecutor{}
		set := newSet(executor, &[]string{})
		defer set.Close()
		set.Start(target(&corev1.Container{ReadinessProbe: execProbe(1, 30, 1)}), Known{})
		time.Sleep(29 * time.Second)
		synctest.Wait()
		if n := executor.count(); n != 0 {
			t.Errorf("%d tries in the initial delay", n)
		}
		time.Sleep(2 * time.Second)
		assertVerdict(t, set, Readiness, Success)
	})
}

func TestStartupHoldsTheOthersBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		executor := &fakeExecutor{code: 1}
		set := newSet(executor, &[]string{})
		defer set.Close()
		set.Start(target(&corev1.Container{StartupProbe: execProbe(5, 0, 3), LivenessProbe: execProbe(1, 0, 1)}), Known{})
		time.Sleep(10 * time.Second)
		assertVerdict(t, set, Startup, Unknown)
		assertVerdict(t, set, Liveness, Unknown)
		executor.set(0)
		time.Sleep(10 * time.Second)
		assertVerdict(t, set, Startup, Success)
		assertVerdict(t, set, Liveness, Success)
		executor.set(1)
		time.Sleep(2 * time.Second)
		assertVerdict(t, set, Liveness, Failure)
	})
}

func TestStartupFailsAfterItsThreshold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := newSet(&fakeExecutor{code: 1}, &[]string{})
		defer set.Close()
		set.Start(target(&corev1.Container{StartupProbe: execProbe(2, 0, 3)}), Known{})
		time.Sleep(20 * time.Second)
		assertVerdict(t, set, Startup, Failure)
	})
}

func TestWhatWasKnownStaysUntilTriesSayOtherwise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		executor := &fakeExecutor{code: 1}
		set := newSet(executor, &[]string{})
		defer set.Close()
		set.Start(target(&corev1.Container{StartupProbe: execProbe(1, 0, 1), ReadinessProbe: execProbe(10, 0, 1)}), Known{Started: true, Ready: true})
		if set.Verdict("id", Startup) != Success || set.Verdict("id", Readiness) != Success {
			t.Error("what was known is forgotten")
		}
		time.Sleep(20 * time.Second)
		assertVerdict(t, set, Readiness, Failure)
		assertVerdict(t, set, Startup, Success)
	})
}

func TestContainersWithoutProbesAreWell(t *testing.T) {
	set := newSet(&fakeExecutor{}, &[]string{})
	defer set.Close()
	set.Start(target(&corev1.Container{}), Known{})
	for _, kind := range []Kind{Startup, Liveness, Readiness} {
		if set.Verdict("id", kind) != Success {
			t.Errorf("%s is %v", kind, set.Verdict("id", kind))
		}
	}
}

func port(t *testing.T, address string) intstr.IntOrString {
	t.Helper()
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return intstr.FromInt32(int32(number))
}

func TestHandlersTellSuccessFromFailure(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/redirect":
			http.Redirect(w, r, "http://elsewhere.test/", http.StatusFound)
		case r.Header.Get("X-Token") == "yes" && r.Host == "other.test" && r.URL.Query().Get("q") == "1":
			_, _ = fmt.Fprint(w, "fine")
		default:
			w.WriteHeader(http.StatusTeapot)
		}
	}))
	defer web.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	service := health.NewServer()
	service.SetServingStatus("sick", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, service)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	webPort, grpcPort, sick := port(t, web.Listener.Addr().String()), port(t, listener.Addr().String()), "sick"
	headers := []corev1.HTTPHeader{{Name: "X-Token", Value: "yes"}, {Name: "Host", Value: "other.test"}}
	for _, c := range []struct {
		name    string
		handler corev1.ProbeHandler
		success bool
		output  string
	}{
		{"http", corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: webPort, Path: "/x?q=1", HTTPHeaders: headers}}, true, "fine"},
		{"http status", corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: webPort}}, false, "HTTP probe failed with statuscode: 418"},
		{"http redirect elsewhere", corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: webPort, Path: "/redirect"}}, true, ""},
		{"tcp", corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: webPort}}, true, ""},
		{"tcp closed", corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(1)}}, false, ""},
		{"grpc", corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: grpcPort.IntVal}}, true, "service healthy"},
		{"grpc sick", corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: grpcPort.IntVal, Service: &sick}}, false, `service unhealthy (responded with "NOT_SERVING")`},
	} {
		t.Run(c.name, func(t *testing.T) {
			outcome := try(t.Context(), probers(&fakeExecutor{}), target(&corev1.Container{Name: "c"}), &corev1.Probe{ProbeHandler: c.handler, TimeoutSeconds: 5})
			if outcome.Err != nil || outcome.Success != c.success || (c.output != "" && outcome.Output != c.output) {
				t.Errorf("outcome %+v, want success %v and %q", outcome, c.success, c.output)
			}
		})
	}
}
