package admission

import (
	"fmt"
	"reflect"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
)

// rounds is what mutators remember of one write between the first run of the
// chain and the second.
type rounds struct {
	second, wanted bool
	memory         map[string]any // by plugin
}

// Second says that the chain runs for the second time.
func (a *Attributes) Second() bool { return a.rounds.second }

// Again asks for a second run of the chain, because a plugin whose changes others
// should see has changed the object.
func (a *Attributes) Again() { a.rounds.wanted = true }

// Memory is what a plugin keeps between the runs; fresh makes it.
func (a *Attributes) Memory(plugin string, fresh func() any) any {
	if a.rounds.memory == nil {
		a.rounds.memory = map[string]any{}
	}
	if a.rounds.memory[plugin] == nil {
		a.rounds.memory[plugin] = fresh()
	}
	return a.rounds.memory[plugin]
}

// Replace puts obj, which is taken over, in the place of Object: settled, and with
// the managedFields that Object has where its own cannot be read. It says whether
// that changed anything. It fails when there is no Object, or one of another type.
func (a *Attributes) Replace(obj runtime.Object) (changed bool, warning string, err error) {
	if a.Object == nil || reflect.TypeOf(obj) != reflect.TypeOf(a.Object) {
		return false, "", fmt.Errorf("a %T cannot take the place of a %T", obj, a.Object)
	}
	if a.Settle != nil {
		if err := a.Settle(obj); err != nil {
			return false, "", err
		}
	}
	warning = keepManagers(obj, a.Object)
	if apiequality.Semantic.DeepEqual(a.Object, obj) {
		return false, warning, nil
	}
	reflect.ValueOf(a.Object).Elem().Set(reflect.ValueOf(obj).Elem())
	return true, warning, nil
}

// keepManagers takes over old's managedFields where obj's cannot be read, and
// returns the warning about it.
func keepManagers(obj, old runtime.Object) string {
	now, ok := obj.(metav1.Object)
	if !ok {
		return ""
	}
	before := old.(metav1.Object)
	if apiequality.Semantic.DeepEqual(now.GetManagedFields(), before.GetManagedFields()) {
		return ""
	}
	if err := managedfields.ValidateManagedFields(now.GetManagedFields()); err != nil {
		now.SetManagedFields(before.GetManagedFields())
		return fmt.Sprintf(".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating admission controller; please fix your requests: %v", err)
	}
	return ""
}
