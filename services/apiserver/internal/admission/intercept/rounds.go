package intercept

import (
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
)

// Rounds is what a mutating plugin keeps of one write between the two runs of the
// chain: which of its parts, named by K, ran and may run again.
type Rounds[K comparable] struct {
	again  map[K]bool     // ran, and may run again
	due    map[K]bool     // of them those that have not seen the newest object
	output runtime.Object // as the first run left it
}

// RoundsOf is a plugin's memory of a write. In the second run it makes everything due
// when others have changed the object since.
func RoundsOf[K comparable](a *admission.Attributes, plugin string) *Rounds[K] {
	r := a.Memory(plugin, func() any { return &Rounds[K]{again: map[K]bool{}, due: map[K]bool{}} }).(*Rounds[K])
	if a.Second() && r.output != nil && !apiequality.Semantic.DeepEqual(r.output, a.Object) {
		r.changed()
	}
	return r
}

// Runs says whether a part runs: always in the first run, when it is due in the
// second.
func (r *Rounds[K]) Runs(a *admission.Attributes, part K) bool { return !a.Second() || r.due[part] }

// Ran notes a part that ran: whether it changed the object, and whether it may run
// again.
func (r *Rounds[K]) Ran(a *admission.Attributes, part K, changed, reinvocable bool) {
	if changed {
		r.changed()
		a.Again()
	}
	if reinvocable {
		r.again[part] = true
	}
}

// changed makes due what ran before.
func (r *Rounds[K]) changed() {
	for part := range r.again {
		r.due[part] = true
	}
	clear(r.again)
}

// End keeps the object as this run leaves it, where that will matter.
func (r *Rounds[K]) End(a *admission.Attributes) {
	if len(r.again) > 0 && a.Object != nil {
		r.output = a.Object.DeepCopyObject()
	}
}
