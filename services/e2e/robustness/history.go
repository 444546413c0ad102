package robustness

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// change is one entry of the log as a watch shows it.
type change struct {
	deleted bool
	name    string
	now     version // for a deletion, its revision
	before  int64   // revision of what it replaced; 0 for a creation
}

// readLog watches from a revision to another.
func (t *traffic) readLog(ctx context.Context, from, to int64) ([]change, error) {
	watcher, err := t.maps[0].Watch(ctx, metav1.ListOptions{ResourceVersion: fmt.Sprint(from), AllowWatchBookmarks: true})
	if err != nil {
		return nil, fmt.Errorf("reading the log: %w", err)
	}
	defer watcher.Stop()
	var log []change
	current := map[string]int64{}
	for last := from; last < to; {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the log ends at %d, not %d: %w", last, to, ctx.Err())
		case event, ok := <-watcher.ResultChan():
			object, isMap := event.Object.(*corev1.ConfigMap)
			if !ok || !isMap {
				return nil, fmt.Errorf("reading the log after %d: %v", last, event.Object)
			}
			now := versionOf(object)
			if now.revision <= last {
				return nil, fmt.Errorf("the log has %d after %d", now.revision, last)
			}
			last = now.revision
			if event.Type == watch.Bookmark {
				continue
			}
			log = append(log, change{event.Type == watch.Deleted, object.Name, now, current[object.Name]})
			current[object.Name] = now.revision
			if event.Type == watch.Deleted {
				delete(current, object.Name)
			}
		}
	}
	return log, nil
}

// forever is when an operation ended whose answer was lost.
const forever = time.Duration(1 << 60)

// resolve completes a history by the log: deletions get their revision, writes
// whose answers were lost are done, or are dropped when the log has not got them.
// An acknowledged write that the log has not got is an error.
func resolve(history []operation, log []change) ([]operation, error) {
	written := map[string]change{}  // by value
	deletions := map[string]int64{} // of name and the version that it had
	for _, c := range log {
		if c.deleted {
			deletions[fmt.Sprint(c.name, "@", c.before)] = c.now.revision
		} else {
			written[c.now.value] = c
		}
	}
	// Whoever was told so deleted a version, before anybody whose answer was lost.
	for i, op := range history {
		if op.request.verb != deleteVerb || op.answer.outcome != succeeded {
			continue
		}
		revision, ok := deletions[op.deletion()]
		if !ok {
			return nil, fmt.Errorf("an acknowledged deletion is not in the log: %+v", op)
		}
		history[i].answer.revision = revision
		delete(deletions, op.deletion())
	}
	var out []operation
	for _, op := range history {
		resolved, keep, err := op.resolve(written, deletions)
		if err != nil {
			return nil, err
		}
		if keep {
			out = append(out, resolved)
		}
	}
	return out, nil
}

// deletion names what a deletion removes.
func (op operation) deletion() string { return fmt.Sprint(op.request.name, "@", op.request.expect) }

// resolve is the operation as the log tells of it; a write that was lost and
// never done, and a read without an answer, are not kept.
func (op operation) resolve(written map[string]change, deletions map[string]int64) (resolved operation, keep bool, err error) {
	lost := op.answer.outcome == unknown
	switch op.request.verb {
	case getVerb, listVerb:
		return op, !lost, nil
	case deleteVerb:
		if !lost {
			return op, true, nil
		}
		revision, ok := deletions[op.deletion()]
		delete(deletions, op.deletion()) // only one did it
		return op.done(revision), ok, nil
	}
	c, ok := written[op.request.value]
	switch {
	case lost:
		return op.done(c.now.revision), ok, nil
	case op.answer.outcome == succeeded && c.now.revision != op.answer.revision:
		return op, false, fmt.Errorf("an acknowledged write is not in the log: %+v", op)
	case op.answer.outcome != succeeded && ok:
		return op, false, fmt.Errorf("a refused write is in the log: %+v", op)
	}
	return op, true, nil
}

// done is an operation whose answer was lost, and which was done at a revision:
// at any time since it was asked for.
func (op operation) done(revision int64) operation {
	op.answer, op.ended = answer{outcome: succeeded, revision: revision}, forever
	return op
}
