package robustness

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/anishathalye/porcupine"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	trafficClients = 6
	trafficTimeout = time.Minute // for a part of the traffic
	checkTimeout   = 5 * time.Minute
)

// Check is a history to be made and checked.
type Check struct {
	// Servers share one store; clients take them in turns.
	Servers   []kubernetes.Interface
	Namespace string // empty, and used by nobody else
	// Operations is how many there are before Disturb is called, and as many again
	// afterwards.
	Operations int64
	Disturb    func(ctx context.Context) error
}

// Report is what came of a check.
type Report struct {
	Operations, Lost, Changes int // Lost are those without an answer
	Took                      time.Duration
	draw                      func(path string) error
}

func (r Report) String() string {
	return fmt.Sprintf("%d operations, %d of them without an answer, %d changes, checked in %s", r.Operations, r.Lost, r.Changes, r.Took.Round(time.Millisecond))
}

// Draw writes a picture of the history, in HTML.
func (r Report) Draw(path string) error { return r.draw(path) }

// ErrNotLinearizable says that no single machine could have given the answers of
// a history.
var ErrNotLinearizable = errors.New("the history is not linearizable")

// Run makes the history and checks it.
func (c Check) Run(ctx context.Context) (Report, error) {
	start, err := c.Servers[0].CoreV1().ConfigMaps(c.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return Report{}, err
	}
	clients := startTraffic(ctx, c.Servers, c.Namespace, trafficClients)
	defer clients.stop()
	if err := clients.await(ctx, c.Operations); err != nil {
		return Report{}, err
	}
	if err := c.Disturb(ctx); err != nil {
		return Report{}, err
	}
	if err := clients.await(ctx, c.Operations); err != nil {
		return Report{}, err
	}
	history := clients.stop()
	// A last write, so that the log has an end to be read to.
	end := clients.do(ctx, 0, request{verb: createVerb, name: "end", value: "end"})
	if end.outcome != succeeded {
		return Report{}, fmt.Errorf("the last write: %s", end)
	}
	reading, cancel := context.WithTimeout(ctx, trafficTimeout)
	defer cancel()
	log, err := clients.readLog(reading, mustRevision(start.ResourceVersion), end.revision)
	if err != nil {
		return Report{}, err
	}
	return judge(history, log)
}

func judge(history []operation, log []change) (Report, error) {
	report := Report{Operations: len(history), Changes: len(log)}
	for _, op := range history {
		if op.answer.outcome == unknown {
			report.Lost++
		}
	}
	resolved, err := resolve(history, log)
	if err != nil {
		return report, err
	}
	began := time.Now()
	result, info := porcupine.CheckOperationsVerbose(model(), operations(resolved), checkTimeout)
	report.Took = time.Since(began)
	report.draw = func(path string) error { return porcupine.VisualizePath(model(), info, path) }
	if result != porcupine.Ok {
		return report, fmt.Errorf("%w: %s", ErrNotLinearizable, result)
	}
	return report, nil
}

// await waits until so many more operations have ended.
func (t *traffic) await(ctx context.Context, more int64) error {
	ctx, cancel := context.WithTimeout(ctx, trafficTimeout)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for want := t.done.Load() + more; t.done.Load() < want; {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("%d operations are still to come: %w", want-t.done.Load(), ctx.Err())
		}
	}
	return nil
}
