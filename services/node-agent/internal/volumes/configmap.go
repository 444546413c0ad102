package volumes

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

type configMapKind struct{}

func (configMapKind) name() string               { return "kubernetes.io~configmap" }
func (configMapKind) owns(v *corev1.Volume) bool { return v.ConfigMap != nil }

func (configMapKind) setUp(ctx context.Context, r *request) (result, error) {
	source := r.volume.ConfigMap
	files, err := configMapFiles(ctx, r, source.Name, source.Items, source.Optional, mode(source.DefaultMode))
	if err != nil {
		return result{}, err
	}
	return r.write(files)
}

func mode(m *int32) int32 {
	if m == nil {
		return 0o644
	}
	return *m
}

func configMapFiles(ctx context.Context, r *request, name string, items []corev1.KeyToPath, optional *bool, mode int32) (fileSet, error) {
	optionally := optional != nil && *optional
	object, err := r.cfg.Objects.ConfigMap(ctx, r.pod.Namespace, name)
	if apierrors.IsNotFound(err) && optionally {
		return fileSet{}, nil
	}
	if err != nil {
		return nil, err
	}
	values := make(map[string][]byte, len(object.Data)+len(object.BinaryData))
	for key, value := range object.Data {
		values[key] = []byte(value)
	}
	for key, value := range object.BinaryData {
		values[key] = value
	}
	return project(values, items, optionally, mode, "configmap")
}

// project chooses the keys that items name, or all.
func project(values map[string][]byte, items []corev1.KeyToPath, optional bool, mode int32, kind string) (fileSet, error) {
	files := fileSet{}
	if len(items) == 0 {
		for key, value := range values {
			files[key] = file{data: value, mode: mode}
		}
		return files, nil
	}
	for _, item := range items {
		value, found := values[item.Key]
		if !found {
			if optional {
				continue
			}
			return nil, fmt.Errorf("%s references non-existent key: %s", kind, item.Key)
		}
		itemMode := mode
		if item.Mode != nil {
			itemMode = *item.Mode
		}
		files[item.Path] = file{data: value, mode: itemMode}
	}
	return files, nil
}
