package fairness

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The resources that configure the levels.
var (
	schemasResource = schema.GroupResource{Group: flowcontrolv1.GroupName, Resource: "flowschemas"}
	levelsResource  = schema.GroupResource{Group: flowcontrolv1.GroupName, Resource: "prioritylevelconfigurations"}
)

// Objects are where the configuration is stored.
type Objects interface {
	Subscribe(ctx context.Context, resource schema.GroupResource, handle func(old, new runtime.Object)) error
	Update(ctx context.Context, resource schema.GroupResource, subresource, namespace, name string, dryRun bool, change func(obj runtime.Object) error) (runtime.Object, error)
}

// follower is the configuration as it is stored.
type follower struct {
	dispatcher *Dispatcher
	mu         sync.Mutex
	schemas    map[string]*flowcontrolv1.FlowSchema
	levels     map[string]*flowcontrolv1.PriorityLevelConfiguration
	changed    chan struct{}
}

// Follow configures the dispatcher from the stored objects, and writes into the
// status of each FlowSchema whether its level is missing, until ctx ends.
func Follow(ctx context.Context, dispatcher *Dispatcher, objects Objects, log *slog.Logger) error {
	f := &follower{
		dispatcher: dispatcher, changed: make(chan struct{}, 1),
		schemas: map[string]*flowcontrolv1.FlowSchema{}, levels: map[string]*flowcontrolv1.PriorityLevelConfiguration{},
	}
	for resource, handle := range map[schema.GroupResource]func(old, new runtime.Object){schemasResource: f.schemaChanged, levelsResource: f.levelChanged} {
		if err := objects.Subscribe(ctx, resource, handle); err != nil {
			return fmt.Errorf("following %s: %w", resource, err)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.changed:
		}
		for _, schema := range f.misjudged() {
			if _, err := objects.Update(ctx, schemasResource, "status", "", schema, false, f.judge); err != nil && ctx.Err() == nil {
				log.WarnContext(ctx, "Writing the status of a FlowSchema", "name", schema, "err", err)
			}
		}
	}
}

func (f *follower) schemaChanged(old, new runtime.Object) { take(f, f.schemas, old, new) }
func (f *follower) levelChanged(old, new runtime.Object)  { take(f, f.levels, old, new) }

// take keeps the newest version of an object and configures the dispatcher.
func take[T metav1.Object](f *follower, known map[string]T, old, new runtime.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if object, ok := new.(T); ok && new != nil {
		known[object.GetName()] = object
	} else if object, ok := old.(T); ok && old != nil {
		delete(known, object.GetName())
	}
	f.dispatcher.Configure(sorted(f.schemas, mandatorySchemas()), sorted(f.levels, mandatoryLevels()))
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// sorted are the objects by name, with those that must be there.
func sorted[T metav1.Object](known map[string]T, mandatory []T) []T {
	all := slices.Collect(maps.Values(known))
	for _, object := range mandatory {
		if _, has := known[object.GetName()]; !has {
			all = append(all, object)
		}
	}
	slices.SortFunc(all, func(a, b T) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return all
}

// misjudged are the schemas whose condition is not what it should be.
func (f *follower) misjudged() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var names []string
	for name, schema := range f.schemas {
		want := f.condition(schema)
		if have := conditionOf(schema); have == nil || have.Status != want.Status || have.Message != want.Message {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func conditionOf(schema *flowcontrolv1.FlowSchema) *flowcontrolv1.FlowSchemaCondition {
	for i := range schema.Status.Conditions {
		if schema.Status.Conditions[i].Type == flowcontrolv1.FlowSchemaConditionDangling {
			return &schema.Status.Conditions[i]
		}
	}
	return nil
}

// condition is Dangling as it should be. Caller must hold mu.
func (f *follower) condition(schema *flowcontrolv1.FlowSchema) flowcontrolv1.FlowSchemaCondition {
	level := schema.Spec.PriorityLevelConfiguration.Name
	if f.levels[level] == nil {
		return flowcontrolv1.FlowSchemaCondition{
			Type: flowcontrolv1.FlowSchemaConditionDangling, Status: flowcontrolv1.ConditionTrue, Reason: "NotFound",
			Message: fmt.Sprintf("This FlowSchema references the PriorityLevelConfiguration object named %q but there is no such object", level),
		}
	}
	return flowcontrolv1.FlowSchemaCondition{
		Type: flowcontrolv1.FlowSchemaConditionDangling, Status: flowcontrolv1.ConditionFalse, Reason: "Found",
		Message: fmt.Sprintf("This FlowSchema references the PriorityLevelConfiguration object named %q and it exists", level),
	}
}

// judge sets the condition of a schema.
func (f *follower) judge(obj runtime.Object) error {
	stored, ok := obj.(*flowcontrolv1.FlowSchema)
	if !ok {
		return fmt.Errorf("%T is no FlowSchema", obj)
	}
	f.mu.Lock()
	want := f.condition(stored)
	f.mu.Unlock()
	have := conditionOf(stored)
	if have == nil {
		stored.Status.Conditions = append(stored.Status.Conditions, flowcontrolv1.FlowSchemaCondition{})
		have = &stored.Status.Conditions[len(stored.Status.Conditions)-1]
	}
	want.LastTransitionTime = have.LastTransitionTime
	if have.Status != want.Status {
		want.LastTransitionTime = metav1.Now()
	}
	*have = want
	return nil
}
