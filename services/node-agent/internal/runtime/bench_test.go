package runtime_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// BenchmarkPodStart reports the median time of each step of a pod's start and end, in
// microseconds.
func BenchmarkPodStart(b *testing.B) {
	n := newNode(b)
	steps := newStepTimes("sandbox", "create", "start", "stop", "remove")
	for i := 0; b.Loop(); i++ {
		steps.begin()
		p := n.runPod(fmt.Sprintf("bench-%d", i))
		steps.done("sandbox")
		c := p.create([]string{"forever"})
		steps.done("create")
		c.start()
		steps.done("start")
		if _, err := n.StopPodSandbox(b.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.id}); err != nil {
			b.Fatal(err)
		}
		steps.done("stop")
		if _, err := n.RemovePodSandbox(b.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.id}); err != nil {
			b.Fatal(err)
		}
		steps.done("remove")
	}
	steps.report(b)
}

// BenchmarkExecSync reports how long a probe by command takes.
func BenchmarkExecSync(b *testing.B) {
	n := newNode(b)
	c := n.runPod("bench").run([]string{"forever"})
	for b.Loop() {
		if _, err := c.exec(10, "/tool", "echo"); err != nil {
			b.Fatal(err)
		}
	}
}

type stepTimes struct {
	order []string
	times map[string][]time.Duration
	last  time.Time
}

func newStepTimes(names ...string) *stepTimes {
	return &stepTimes{order: names, times: map[string][]time.Duration{}}
}

func (s *stepTimes) begin() { s.last = time.Now() }

func (s *stepTimes) done(name string) {
	now := time.Now()
	s.times[name] = append(s.times[name], now.Sub(s.last))
	s.last = now
}

func (s *stepTimes) report(b *testing.B) {
	for _, name := range s.order {
		times := s.times[name]
		slices.Sort(times)
		b.ReportMetric(float64(times[len(times)/2].Microseconds()), name+"-µs")
	}
}
