package volumes

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/env"
)

type downwardAPIKind struct{}

func (downwardAPIKind) name() string               { return "kubernetes.io~downward-api" }
func (downwardAPIKind) owns(v *corev1.Volume) bool { return v.DownwardAPI != nil }

func (downwardAPIKind) setUp(_ context.Context, r *request) (result, error) {
	files, err := downwardAPIFiles(r, r.volume.DownwardAPI.Items, mode(r.volume.DownwardAPI.DefaultMode))
	if err != nil {
		return result{}, err
	}
	return r.write(files)
}

func downwardAPIFiles(r *request, items []corev1.DownwardAPIVolumeFile, mode int32) (fileSet, error) {
	files := fileSet{}
	for _, item := range items {
		value, err := downwardValue(r, &item)
		if err != nil {
			return nil, err
		}
		itemMode := mode
		if item.Mode != nil {
			itemMode = *item.Mode
		}
		files[item.Path] = file{data: []byte(value), mode: itemMode}
	}
	return files, nil
}

func downwardValue(r *request, item *corev1.DownwardAPIVolumeFile) (string, error) {
	if item.FieldRef != nil {
		return env.PodField(r.pod, item.FieldRef.FieldPath, r.podIPs, nil)
	}
	ref := item.ResourceFieldRef
	if ref == nil {
		return "", fmt.Errorf("file %q has no source", item.Path)
	}
	container := env.FindContainer(r.pod, ref.ContainerName)
	if container == nil {
		return "", fmt.Errorf("container %q not found", ref.ContainerName)
	}
	return env.Resource(ref, container, r.cfg.Allocatable())
}
