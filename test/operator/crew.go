package main

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// groupVersion of crews.
var groupVersion = schema.GroupVersion{Group: "ships.example.com", Version: "v1"}

// Crew is a number of hands on a ship. Each hand is a ConfigMap.
type Crew struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   CrewSpec   `json:"spec"`
	Status CrewStatus `json:"status,omitzero"`
}

// CrewSpec is what is wanted.
type CrewSpec struct {
	// Size is how many hands there shall be; absent, the webhook makes it 1.
	Size *int32 `json:"size,omitempty"`
	// Ship never changes.
	Ship string `json:"ship"`
}

// CrewStatus is what there is.
type CrewStatus struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Hands              int32              `json:"hands"`
	Selector           string             `json:"selector,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

// CrewList is a list of crews.
type CrewList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Crew `json:"items"`
}

// size is how many hands there shall be.
func (c *Crew) size() int32 {
	if c.Spec.Size == nil {
		return 1
	}
	return *c.Spec.Size
}

// DeepCopyInto copies the crew.
func (c *Crew) DeepCopyInto(out *Crew) {
	*out = *c
	c.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	if c.Spec.Size != nil {
		out.Spec.Size = new(*c.Spec.Size)
	}
	out.Status.Conditions = nil
	for i := range c.Status.Conditions {
		out.Status.Conditions = append(out.Status.Conditions, *c.Status.Conditions[i].DeepCopy())
	}
}

// DeepCopyObject implements runtime.Object.
func (c *Crew) DeepCopyObject() runtime.Object {
	out := &Crew{}
	c.DeepCopyInto(out)
	return out
}

// DeepCopyObject implements runtime.Object.
func (l *CrewList) DeepCopyObject() runtime.Object {
	out := &CrewList{TypeMeta: l.TypeMeta}
	l.ListMeta.DeepCopyInto(&out.ListMeta)
	out.Items = make([]Crew, len(l.Items))
	for i := range l.Items {
		l.Items[i].DeepCopyInto(&out.Items[i])
	}
	return out
}

// addToScheme makes crews known.
func addToScheme(scheme *runtime.Scheme) {
	scheme.AddKnownTypes(groupVersion, &Crew{}, &CrewList{})
	metav1.AddToGroupVersion(scheme, groupVersion)
}
