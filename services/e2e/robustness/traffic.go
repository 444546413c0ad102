package robustness

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// verb is what a client asked for.
type verb string

const (
	createVerb verb = "create"
	updateVerb verb = "update" // with the version that the client has read
	patchVerb  verb = "patch"  // whatever is there
	deleteVerb verb = "delete" // with the version that the client has read
	getVerb    verb = "get"
	listVerb   verb = "list"
)

// version is one object's state: the revision of the write that made it, and
// what it wrote, which no other write does.
type version struct {
	revision int64
	value    string
}

// request is one operation's input.
type request struct {
	verb   verb
	name   string
	value  string // written
	expect int64  // version that is updated or deleted
}

// outcome says how an operation ended.
type outcome string

const (
	succeeded outcome = "ok"
	exists    outcome = "exists"
	conflict  outcome = "conflict"
	notFound  outcome = "not found"
	unknown   outcome = "unknown" // the answer was lost: done or not
)

// answer is one operation's output.
type answer struct {
	outcome  outcome
	revision int64 // of the write, or of the list
	found    version
	all      map[string]version // of a list
}

func (a answer) String() string {
	if a.all != nil {
		return fmt.Sprintf("%s at %d: %v", a.outcome, a.revision, a.all)
	}
	return fmt.Sprintf("%s %d %v", a.outcome, a.revision, a.found)
}

// operation is one entry of a history; times are since its beginning.
type operation struct {
	client      int
	request     request
	answer      answer
	call, ended time.Duration
}

// traffic is several clients that work on the same few objects as controllers
// do, and the history of what they did.
type traffic struct {
	maps  []typedcorev1.ConfigMapInterface // the servers', which clients take in turns
	began time.Time
	names []string

	mu      sync.Mutex
	history []operation

	done   atomic.Int64
	writes atomic.Int64 // names the values
	group  sync.WaitGroup
	cancel context.CancelFunc
}

func startTraffic(ctx context.Context, servers []kubernetes.Interface, namespace string, clients int) *traffic {
	ctx, cancel := context.WithCancel(ctx)
	t := &traffic{began: time.Now(), names: []string{"a", "b", "c"}, cancel: cancel}
	for _, server := range servers {
		t.maps = append(t.maps, server.CoreV1().ConfigMaps(namespace))
	}
	for i := range clients {
		t.group.Go(func() { t.run(ctx, i) })
	}
	return t
}

// stop ends the clients and returns the history.
func (t *traffic) stop() []operation {
	t.cancel()
	t.group.Wait()
	return t.history
}

func (t *traffic) run(ctx context.Context, client int) {
	for ctx.Err() == nil {
		name := t.names[rand.IntN(len(t.names))]
		switch n := rand.IntN(10); {
		case n < 2:
			t.do(ctx, client, request{verb: createVerb, name: name, value: t.value()})
		case n < 4:
			t.do(ctx, client, request{verb: listVerb})
		case n < 5:
			t.do(ctx, client, request{verb: patchVerb, name: name, value: t.value()})
		default: // as a controller: read, then act on what was read
			have := t.do(ctx, client, request{verb: getVerb, name: name})
			if have.outcome != succeeded {
				continue
			}
			if n < 9 {
				t.do(ctx, client, request{verb: updateVerb, name: name, value: t.value(), expect: have.found.revision})
			} else {
				t.do(ctx, client, request{verb: deleteVerb, name: name, expect: have.found.revision})
			}
		}
	}
}

func (t *traffic) value() string { return strconv.FormatInt(t.writes.Add(1), 10) }

// do performs one operation and notes it.
func (t *traffic) do(ctx context.Context, client int, r request) answer {
	op := operation{client: client, request: r, call: time.Since(t.began)}
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	op.answer = send(asking, t.maps[client%len(t.maps)], t.names, r)
	op.ended = time.Since(t.began)
	t.mu.Lock()
	t.history = append(t.history, op)
	t.mu.Unlock()
	t.done.Add(1)
	if op.answer.outcome == unknown { // the server may be down: do not spin
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
	return op.answer
}

func send(ctx context.Context, maps typedcorev1.ConfigMapInterface, names []string, r request) answer {
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: r.name}, Data: map[string]string{"value": r.value}}
	var err error
	switch r.verb {
	case createVerb:
		object, err = maps.Create(ctx, object, metav1.CreateOptions{})
	case updateVerb:
		object.ResourceVersion = strconv.FormatInt(r.expect, 10)
		object, err = maps.Update(ctx, object, metav1.UpdateOptions{})
	case patchVerb:
		object, err = maps.Patch(ctx, r.name, types.MergePatchType, []byte(`{"data":{"value":"`+r.value+`"}}`), metav1.PatchOptions{})
	case deleteVerb:
		expect := strconv.FormatInt(r.expect, 10)
		err = maps.Delete(ctx, r.name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &expect}})
		if err == nil {
			return answer{outcome: succeeded} // its revision is in the log only
		}
	case getVerb:
		object, err = maps.Get(ctx, r.name, metav1.GetOptions{})
	case listVerb:
		return list(ctx, maps, names)
	}
	if err != nil {
		return answer{outcome: outcomeOf(err)}
	}
	found := versionOf(object)
	return answer{outcome: succeeded, revision: found.revision, found: found}
}

func list(ctx context.Context, maps typedcorev1.ConfigMapInterface, names []string) answer {
	list, err := maps.List(ctx, metav1.ListOptions{})
	if err != nil {
		return answer{outcome: outcomeOf(err)}
	}
	a := answer{outcome: succeeded, revision: mustRevision(list.ResourceVersion), all: map[string]version{}}
	for i := range list.Items {
		if slices.Contains(names, list.Items[i].Name) {
			a.all[list.Items[i].Name] = versionOf(&list.Items[i])
		}
	}
	return a
}

func outcomeOf(err error) outcome {
	switch {
	case apierrors.IsAlreadyExists(err):
		return exists
	case apierrors.IsConflict(err):
		return conflict
	case apierrors.IsNotFound(err):
		return notFound
	}
	return unknown
}

func versionOf(object *corev1.ConfigMap) version {
	return version{mustRevision(object.ResourceVersion), object.Data["value"]}
}

func mustRevision(text string) int64 {
	revision, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		panic("the server sent a resourceVersion that is no integer: " + text)
	}
	return revision
}

func equalVersions(a, b map[string]version) bool { return maps.Equal(a, b) }
