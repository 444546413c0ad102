// Package allocation keeps what each pod has been given of CPU and memory: its
// object may ask for another amount later (KEP-1287), which is given when the node
// has it, and then brought to the containers one by one.
//
//	the pod's object ──fits?──► Allocated ──control groups, runtime──► Actuated
package allocation

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// Record is of one pod. It is kept in the pod's directory, and goes with it.
type Record struct {
	Allocated Resources `json:"allocated"`
	// Actuated is what the containers have by now; one that has not been made yet is
	// not in it.
	Actuated Resources `json:"actuated"`
	// Restarting are the containers that have been stopped to be started with other
	// resources.
	Restarting map[string]bool `json:"restarting,omitempty"`
}

// Resources are those of a pod.
type Resources struct {
	Pod        *corev1.ResourceRequirements           `json:"pod,omitempty"`
	Containers map[string]corev1.ResourceRequirements `json:"containers"`
}

// New is the record of a pod that has been given what its object asks for.
func New(pod *corev1.Pod) *Record {
	return &Record{Allocated: Of(pod), Actuated: Resources{Pod: pod.Spec.Resources, Containers: map[string]corev1.ResourceRequirements{}}, Restarting: map[string]bool{}}
}

// Of is what the pod's object asks for.
func Of(pod *corev1.Pod) Resources {
	out := Resources{Pod: pod.Spec.Resources.DeepCopy(), Containers: map[string]corev1.ResourceRequirements{}}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			out.Containers[list[i].Name] = *list[i].Resources.DeepCopy()
		}
	}
	return out
}

// Matches tells whether the pod has been given what its object asks for.
func (r *Record) Matches(pod *corev1.Pod) bool {
	return equality.Semantic.DeepEqual(r.Allocated, Of(pod))
}

// Apply is the pod with the resources that it has been given.
func (r *Record) Apply(pod *corev1.Pod) *corev1.Pod {
	if r.Matches(pod) {
		return pod
	}
	return r.Allocated.in(pod)
}

// in is the pod with these resources.
func (r Resources) in(pod *corev1.Pod) *corev1.Pod {
	out := *pod
	out.Spec.Resources = r.Pod
	out.Spec.InitContainers, out.Spec.Containers = r.with(pod.Spec.InitContainers), r.with(pod.Spec.Containers)
	return &out
}

func (r Resources) with(list []corev1.Container) []corev1.Container {
	out := make([]corev1.Container, len(list))
	copy(out, list)
	for i := range out {
		if given, known := r.Containers[out[i].Name]; known {
			out[i].Resources = given
		}
	}
	return out
}

// Change is a container whose resources are not yet those that it has been given.
type Change struct {
	Name    string
	Restart bool // its resizePolicy wants it to start anew
	From    corev1.ResourceRequirements
}

// Changes compares what containers have with what they have been given. Pod must
// be the result of Apply.
func (r *Record) Changes(pod *corev1.Pod) []Change {
	var out []Change
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			have, known := r.Actuated.Containers[list[i].Name]
			if !known {
				continue
			}
			if changed := changedResources(have, list[i].Resources); len(changed) > 0 {
				out = append(out, Change{Name: list[i].Name, Restart: restarts(&list[i], changed), From: have})
			}
		}
	}
	return out
}

// PodChanged tells that the pod's own resources are not in effect yet.
func (r *Record) PodChanged(pod *corev1.Pod) bool {
	return !equality.Semantic.DeepEqual(r.Actuated.Pod, pod.Spec.Resources)
}

func changedResources(a, b corev1.ResourceRequirements) []corev1.ResourceName {
	var out []corev1.ResourceName
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if !same(a.Requests, b.Requests, name) || !same(a.Limits, b.Limits, name) {
			out = append(out, name)
		}
	}
	return out
}

func same(a, b corev1.ResourceList, name corev1.ResourceName) bool {
	x, y := a[name], b[name]
	return x.Cmp(y) == 0
}

func restarts(spec *corev1.Container, changed []corev1.ResourceName) bool {
	for _, policy := range spec.ResizePolicy {
		for _, name := range changed {
			if policy.ResourceName == name && policy.RestartPolicy == corev1.RestartContainer {
				return true
			}
		}
	}
	return false
}

// Largest is the pod with the larger limits and requests of what its containers
// have and have been given: its control group must hold both while they change.
func (r *Record) Largest(pod *corev1.Pod) *corev1.Pod {
	most := Resources{Pod: pod.Spec.Resources.DeepCopy(), Containers: map[string]corev1.ResourceRequirements{}}
	if most.Pod != nil && r.Actuated.Pod != nil {
		*most.Pod = largest(*most.Pod, *r.Actuated.Pod)
	}
	for name, given := range Of(pod).Containers {
		if have, known := r.Actuated.Containers[name]; known {
			given = largest(given, have)
		}
		most.Containers[name] = given
	}
	return most.in(pod)
}

func largest(a, b corev1.ResourceRequirements) corev1.ResourceRequirements {
	out := *a.DeepCopy()
	grow(&out.Requests, b.Requests)
	grow(&out.Limits, b.Limits)
	return out
}

func grow(list *corev1.ResourceList, other corev1.ResourceList) {
	for name, value := range other {
		if have, known := (*list)[name]; known && have.Cmp(value) < 0 {
			(*list)[name] = value
		}
	}
}

const file = "resources.json"

// Load reads the record in a pod's directory; nil without an error is none.
func Load(dir string) (*Record, error) {
	data, err := os.ReadFile(filepath.Join(dir, file))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the pod's resources: %w", err)
	}
	record := &Record{}
	if err := json.Unmarshal(data, record); err != nil {
		return nil, fmt.Errorf("reading the pod's resources: %w", err)
	}
	if record.Restarting == nil {
		record.Restarting = map[string]bool{}
	}
	if record.Actuated.Containers == nil {
		record.Actuated.Containers = map[string]corev1.ResourceRequirements{}
	}
	return record, nil
}

// Save writes the record, whole or not at all.
func (r *Record) Save(dir string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("writing the pod's resources: %w", err)
	}
	part := filepath.Join(dir, file+".part")
	if err := os.WriteFile(part, data, 0o600); err != nil {
		return fmt.Errorf("writing the pod's resources: %w", err)
	}
	if err := os.Rename(part, filepath.Join(dir, file)); err != nil {
		return fmt.Errorf("writing the pod's resources: %w", err)
	}
	return nil
}
