package robustness

import (
	"fmt"
	"maps"

	"github.com/anishathalye/porcupine"
)

// state is what the model holds: the objects, and a revision that all later
// writes are above.
type state struct {
	revision int64
	objects  map[string]version
}

// model is the API of one kind of object in one namespace, as one machine that
// does one thing at a time.
func model() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return state{objects: map[string]version{}} },
		Step: func(s, input, output any) (bool, any) { return s.(state).step(input.(request), output.(answer)) },
		Equal: func(a, b any) bool {
			return a.(state).revision == b.(state).revision && equalVersions(a.(state).objects, b.(state).objects)
		},
		DescribeOperation: func(input, output any) string {
			r := input.(request)
			return fmt.Sprintf("%s %s %s@%d: %s", r.verb, r.name, r.value, r.expect, output.(answer))
		},
	}
}

// step says whether the machine could answer so, and what it holds then.
func (s state) step(r request, a answer) (bool, state) {
	have, there := s.objects[r.name]
	switch r.verb {
	case getVerb:
		if a.outcome == notFound {
			return !there, s
		}
		return there && a.found == have, s
	case listVerb:
		return a.revision >= s.revision && equalVersions(a.all, s.objects), state{a.revision, s.objects}
	case createVerb:
		if a.outcome == exists {
			return there, s
		}
		return !there && a.revision > s.revision, s.with(r, a.revision)
	}
	return s.change(r, a)
}

// change is step for an update, a patch or a deletion.
func (s state) change(r request, a answer) (bool, state) {
	have, there := s.objects[r.name]
	switch a.outcome {
	case notFound:
		return !there, s
	case conflict:
		return there && have.revision != r.expect, s
	}
	if !there || a.revision <= s.revision || (r.verb != patchVerb && have.revision != r.expect) {
		return false, s
	}
	return true, s.with(r, a.revision)
}

// with is the state after a write.
func (s state) with(r request, revision int64) state {
	objects := maps.Clone(s.objects)
	if r.verb == deleteVerb {
		delete(objects, r.name)
	} else {
		objects[r.name] = version{revision, r.value}
	}
	return state{revision, objects}
}

func operations(history []operation) []porcupine.Operation {
	out := make([]porcupine.Operation, len(history))
	for i, op := range history {
		out[i] = porcupine.Operation{ClientId: op.client, Input: op.request, Call: int64(op.call), Output: op.answer, Return: int64(op.ended)}
	}
	return out
}
