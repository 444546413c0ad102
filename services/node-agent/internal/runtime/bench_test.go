package runtime_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// BenchmarkPodStart reports the median time of each step of a pod's start and end, in
// microseconds.
func BenchmarkPodStart(b *testing.B) {
	n := newNode(b)
	steps := newStepTimes("sandbox", "create", "start", "stop", "remove")
	before := cpuTime(b)
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
	b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/float64(b.N), "cpu-µs")
}

// cpuTime is that of this process and of all that it has started and that has ended.
func cpuTime(b *testing.B) time.Duration {
	var total time.Duration
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var usage unix.Rusage
		if err := unix.Getrusage(who, &usage); err != nil {
			b.Fatal(err)
		}
		total += time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	}
	return total
}

// BenchmarkPodBurst starts pods side by side, as a node does after a scale-up, and
// reports how long one takes on average.
func BenchmarkPodBurst(b *testing.B) {
	n := newNode(b)
	var group errgroup.Group
	const width = 10
	group.SetLimit(width)
	for i := 0; b.Loop(); i++ {
		group.Go(func() error {
			n.runPod(fmt.Sprintf("burst-%d", i)).run([]string{"forever"})
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
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
