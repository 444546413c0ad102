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
	watcher, err := t.maps.Watch(ctx, metav1.ListOptions{ResourceVersion: fmt.Sprint(from), AllowWatchBookmarks: true})
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
	var out []operation
	for _, op := range history {
		switch op.request.verb {
		case getVerb, listVerb:
			if op.answer.outcome != unknown {
				out = append(out, op)
			}
		case deleteVerb:
			key := fmt.Sprint(op.request.name, "@", op.request.expect)
			revision, ok := deletions[key]
			if op.answer.outcome == succeeded && !ok {
				return nil, fmt.Errorf("an acknowledged deletion is not in the log: %+v", op)
			}
			if op, keep := settled(op, revision, ok); keep {
				if op.answer.outcome == succeeded {
					delete(deletions, key) // only one did it
				}
				out = append(out, op)
			}
		default:
			c, ok := written[op.request.value]
			if op.answer.outcome == succeeded && (!ok || c.now.revision != op.answer.revision) {
				return nil, fmt.Errorf("an acknowledged write is not in the log: %+v", op)
			}
			if op.answer.outcome != succeeded && op.answer.outcome != unknown && ok {
				return nil, fmt.Errorf("a refused write is in the log: %+v", op)
			}
			if op, keep := settled(op, c.now.revision, ok); keep {
				out = append(out, op)
			}
		}
	}
	return out, nil
}

// settled is a write as the log tells of it; one that was lost and never done is
// not kept.
func settled(op operation, revision int64, done bool) (settled operation, keep bool) {
	switch op.answer.outcome {
	case unknown:
		op.answer = answer{outcome: succeeded, revision: revision}
		op.ended = forever
		return op, done
	case succeeded:
		op.answer.revision = revision
	}
	return op, true
}
