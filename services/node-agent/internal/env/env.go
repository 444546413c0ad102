// Package env makes the environment variables of a container from all the
// sources that a pod can name.
package env

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Var is one environment variable.
type Var struct{ Name, Value string }

// Objects finds what a pod refers to by name. An object that does not exist is
// an apierrors NotFound.
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
}

// Input is what the variables are made from besides the container itself.
type Input struct {
	Pod     *corev1.Pod
	PodIPs  []string // the primary first; empty while the pod has none
	HostIPs []string
	// Allocatable is what limits default to in resource references.
	Allocatable corev1.ResourceList
	Objects     Objects
	Services    []*corev1.Service // all that the pod may be told of
	// MasterNamespace is where the service "kubernetes" lies, which every pod is told of.
	MasterNamespace string
	// Skipped is told of keys that are no names of variables. It may be nil.
	Skipped func(source string, keys []string)
}

// Make lists the container's variables in an order in which each comes after
// those it refers to. Errors name the source that is missing.
func Make(ctx context.Context, in Input, container *corev1.Container) ([]Var, error) {
	service := serviceVars(in)
	list := &vars{index: map[string]int{}}
	if err := addSources(ctx, in, container, list); err != nil {
		return nil, err
	}
	for i := range container.Env {
		if err := addVar(ctx, in, container, &container.Env[i], list, service); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(service)) {
		if _, own := list.index[name]; !own {
			list.set(name, service[name])
		}
	}
	return list.list, nil
}

type vars struct {
	list  []Var
	index map[string]int
}

func (v *vars) set(name, value string) {
	if i, known := v.index[name]; known {
		v.list[i].Value = value
		return
	}
	v.index[name] = len(v.list)
	v.list = append(v.list, Var{name, value})
}

func (v *vars) lookup(service map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		if i, known := v.index[name]; known {
			return v.list[i].Value, true
		}
		value, known := service[name]
		return value, known
	}
}

// addSources adds envFrom.
func addSources(ctx context.Context, in Input, container *corev1.Container, list *vars) error {
	for _, source := range container.EnvFrom {
		var (
			values map[string]string
			origin string
			err    error
		)
		switch {
		case source.ConfigMapRef != nil:
			origin = fmt.Sprintf("configMap %s/%s", in.Pod.Namespace, source.ConfigMapRef.Name)
			values, err = configMapValues(ctx, in, source.ConfigMapRef)
		case source.SecretRef != nil:
			origin = fmt.Sprintf("secret %s/%s", in.Pod.Namespace, source.SecretRef.Name)
			values, err = secretValues(ctx, in, source.SecretRef)
		}
		if err != nil {
			return err
		}
		var invalid []string
		for _, key := range slices.Sorted(maps.Keys(values)) {
			name := source.Prefix + key
			if len(validation.IsRelaxedEnvVarName(name)) > 0 {
				invalid = append(invalid, name)
				continue
			}
			list.set(name, values[key])
		}
		if len(invalid) > 0 && in.Skipped != nil {
			in.Skipped(origin, invalid)
		}
	}
	return nil
}

func configMapValues(ctx context.Context, in Input, ref *corev1.ConfigMapEnvSource) (map[string]string, error) {
	object, err := in.Objects.ConfigMap(ctx, in.Pod.Namespace, ref.Name)
	if missing(err, ref.Optional) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return object.Data, nil
}

func secretValues(ctx context.Context, in Input, ref *corev1.SecretEnvSource) (map[string]string, error) {
	object, err := in.Objects.Secret(ctx, in.Pod.Namespace, ref.Name)
	if missing(err, ref.Optional) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	values := make(map[string]string, len(object.Data))
	for key, value := range object.Data {
		values[key] = string(value)
	}
	return values, nil
}

func missing(err error, optional *bool) bool {
	return apierrors.IsNotFound(err) && optional != nil && *optional
}

func addVar(ctx context.Context, in Input, container *corev1.Container, v *corev1.EnvVar, list *vars, service map[string]string) error {
	if v.ValueFrom == nil {
		list.set(v.Name, Expand(v.Value, list.lookup(service)))
		return nil
	}
	value, found, err := resolve(ctx, in, container, v.ValueFrom)
	if err != nil {
		return err
	}
	if found {
		list.set(v.Name, value)
	}
	return nil
}

// resolve finds the value that a variable takes from elsewhere. Found is false
// for an optional one that is missing.
func resolve(ctx context.Context, in Input, container *corev1.Container, from *corev1.EnvVarSource) (value string, found bool, err error) {
	switch {
	case from.FieldRef != nil:
		value, err = PodField(in.Pod, from.FieldRef.FieldPath, in.PodIPs, in.HostIPs)
		return value, true, err
	case from.ResourceFieldRef != nil:
		target := container
		if name := from.ResourceFieldRef.ContainerName; name != "" && name != container.Name {
			if target = FindContainer(in.Pod, name); target == nil {
				return "", false, fmt.Errorf("container %q not found", name)
			}
		}
		value, err = Resource(from.ResourceFieldRef, target, in.Allocatable)
		return value, true, err
	case from.ConfigMapKeyRef != nil:
		return configMapKey(ctx, in, from.ConfigMapKeyRef)
	case from.SecretKeyRef != nil:
		return secretKey(ctx, in, from.SecretKeyRef)
	}
	return "", false, fmt.Errorf("variables from %s are not supported by this node", strings.TrimSpace(from.String()))
}

func configMapKey(ctx context.Context, in Input, ref *corev1.ConfigMapKeySelector) (string, bool, error) {
	object, err := in.Objects.ConfigMap(ctx, in.Pod.Namespace, ref.Name)
	if missing(err, ref.Optional) {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	if value, ok := object.Data[ref.Key]; ok {
		return value, true, nil
	}
	if ref.Optional != nil && *ref.Optional {
		return "", false, nil
	}
	return "", false, fmt.Errorf("couldn't find key %v in ConfigMap %v/%v", ref.Key, in.Pod.Namespace, ref.Name)
}

func secretKey(ctx context.Context, in Input, ref *corev1.SecretKeySelector) (string, bool, error) {
	object, err := in.Objects.Secret(ctx, in.Pod.Namespace, ref.Name)
	if missing(err, ref.Optional) {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	if value, ok := object.Data[ref.Key]; ok {
		return string(value), true, nil
	}
	if ref.Optional != nil && *ref.Optional {
		return "", false, nil
	}
	return "", false, fmt.Errorf("couldn't find key %v in Secret %v/%v", ref.Key, in.Pod.Namespace, ref.Name)
}

// FindContainer is the container or init container of that name, or nil.
func FindContainer(pod *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		if i := slices.IndexFunc(list, func(c corev1.Container) bool { return c.Name == name }); i >= 0 {
			return &list[i]
		}
	}
	return nil
}

// sortedServices puts services in a fixed order.
func sortedServices(list []*corev1.Service) []*corev1.Service {
	return slices.SortedFunc(slices.Values(list), func(a, b *corev1.Service) int { return cmp.Compare(a.Name, b.Name) })
}
