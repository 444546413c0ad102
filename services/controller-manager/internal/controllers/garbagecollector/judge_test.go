package garbagecollector

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

func TestObjectGoesOnlyWhenNoOwnerHoldsIt(t *testing.T) {
	dependents := []*node{{uid: "child"}}
	for name, c := range map[string]struct {
		owners     []standing
		finalizers []string
		dependents []*node
		want       step
	}{
		"no owner":                       {nil, nil, nil, step{}},
		"held":                           {[]standing{solid}, nil, nil, step{}},
		"owner gone":                     {[]standing{absent}, nil, nil, step{remove: true, policy: metav1.DeletePropagationBackground}},
		"one of two gone":                {[]standing{absent, solid}, nil, nil, step{drop: []types.UID{"o0"}}},
		"held, another waits":            {[]standing{solid, waiting}, nil, nil, step{drop: []types.UID{"o1"}}},
		"owner waits":                    {[]standing{waiting}, nil, nil, step{remove: true, policy: metav1.DeletePropagationBackground}},
		"owner waits, it has dependents": {[]standing{waiting}, nil, dependents, step{remove: true, policy: metav1.DeletePropagationForeground}},
		"owners wait in a circle":        {[]standing{waiting}, nil, []*node{{uid: "child", foreground: true}}, step{remove: true, policy: metav1.DeletePropagationForeground, unblock: true}},
		"owner gone, wants orphans":      {[]standing{absent}, []string{metav1.FinalizerOrphanDependents}, dependents, step{remove: true, policy: metav1.DeletePropagationOrphan}},
		"owner gone, wants foreground":   {[]standing{absent}, []string{metav1.FinalizerDeleteDependents}, dependents, step{remove: true, policy: metav1.DeletePropagationForeground}},
		"kind of an owner is not known":  {[]standing{unclear, absent}, nil, nil, step{}},
	} {
		object := &metav1.ObjectMeta{Finalizers: c.finalizers}
		for i := range c.owners {
			object.OwnerReferences = append(object.OwnerReferences, metav1.OwnerReference{UID: types.UID(fmt.Sprint("o", i))})
		}
		if got := judge(object, c.owners, c.dependents); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

var things = schema.GroupVersionResource{Version: "v1", Resource: "things"}

func thing(uid types.UID, owners ...metav1.OwnerReference) *node {
	return &node{resource: things, kind: "Thing", namespace: "default", name: string(uid), uid: uid, owners: owners}
}

func owner(uid types.UID, blocks bool) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Thing", Name: string(uid), UID: uid, BlockOwnerDeletion: &blocks}
}

func TestGraphLooksAtWhatAChangeMayConcern(t *testing.T) {
	g := newGraph()
	expect := func(what string, got []types.UID, want ...types.UID) {
		t.Helper()
		slices.Sort(got)
		got = slices.Compact(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: looks at %v, want %v", what, got, want)
		}
	}
	expect("an object whose owner is not known", g.set(thing("child", owner("parent", true))), "child")
	expect("the owner itself", g.set(thing("parent")))
	expect("an object whose owner is known", g.set(thing("second", owner("parent", false))))
	expect("an owner of another name under that UID", g.set(thing("liar", metav1.OwnerReference{APIVersion: "v1", Kind: "Thing", Name: "other", UID: "parent"})), "liar")
	g.remove("liar")

	waits := *thing("parent")
	waits.deleting, waits.foreground = true, true
	expect("the owner waits for its dependents", g.set(&waits), "child", "parent", "second")
	expect("a dependent blocks no more", g.set(thing("child", owner("parent", false))), "parent")
	expect("a dependent goes", g.remove("child"), "parent")
	expect("the owner goes", g.remove("parent"), "second")
	expect("the last goes", g.remove("second"))
	if len(g.nodes)+len(g.dependents) != 0 {
		t.Errorf("left over: %v %v", g.nodes, g.dependents)
	}
}

func TestOwnerOfAnotherNamespaceIsNotTheOwner(t *testing.T) {
	foreign := thing("parent")
	foreign.namespace = "elsewhere"
	ref := owner("parent", false)
	if foreign.is(&ref, "default") {
		t.Error("an object in another namespace counts as the owner")
	}
	foreign.namespace = ""
	if !foreign.is(&ref, "default") {
		t.Error("a cluster-scoped object does not count as the owner")
	}
}
