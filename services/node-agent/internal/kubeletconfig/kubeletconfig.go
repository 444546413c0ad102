// Package kubeletconfig reads upstream's KubeletConfiguration files. What this
// agent does not support is named and refused, never ignored.
package kubeletconfig

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"
)

// Load reads a file. The result has only what the file says; defaults are the
// caller's.
func Load(path string) (*kubeletv1beta1.KubeletConfiguration, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading kubelet configuration: %w", err)
	}
	config, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("kubelet configuration %s: %w", path, err)
	}
	return config, nil
}

// Parse reads YAML or JSON, strictly.
func Parse(data []byte) (*kubeletv1beta1.KubeletConfiguration, error) {
	config := &kubeletv1beta1.KubeletConfiguration{}
	if err := yaml.UnmarshalStrict(data, config); err != nil {
		return nil, err
	}
	if config.Kind != "KubeletConfiguration" || config.APIVersion != kubeletv1beta1.SchemeGroupVersion.String() {
		return nil, fmt.Errorf("it is a %s of %s, not a KubeletConfiguration of %s", config.Kind, config.APIVersion, kubeletv1beta1.SchemeGroupVersion)
	}
	var fields map[string]json.RawMessage
	if err := yaml.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	var errs []error
	known := fieldRules()
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		rule, supported := known[name]
		switch {
		case !supported && empty(fields[name]):
			// Files that upstream's tools write have all fields.
		case !supported:
			errs = append(errs, fmt.Errorf("the field %s is not supported", name))
		case rule != nil:
			if err := rule(config); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
			}
		}
	}
	return config, errors.Join(errs...)
}

// empty tells whether a value says nothing: null, "", 0, "0s", false, and lists and
// objects of such.
func empty(data json.RawMessage) bool {
	var value any
	if json.Unmarshal(data, &value) != nil {
		return false
	}
	return emptyValue(value)
}

func emptyValue(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case string:
		return v == "" || v == "0" || v == "0s"
	case float64:
		return v == 0
	case bool:
		return !v
	case []any:
		return len(v) == 0
	case map[string]any:
		for _, inner := range v {
			if !emptyValue(inner) {
				return false
			}
		}
		return true
	}
	return false
}

// only refuses all but some values of a field.
func only(value string, allowed ...string) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	named := slices.DeleteFunc(slices.Clone(allowed), func(value string) bool { return value == "" })
	return fmt.Errorf("only %s is supported", strings.Join(named, " and "))
}
