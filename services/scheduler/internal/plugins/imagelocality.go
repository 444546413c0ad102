package plugins

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
)

const (
	imageLocalityName = "ImageLocality"
	mebibyte          = 1024 * 1024
	// Below minImageBytes an image does not count; maxContainerBytes per container
	// is the most that counts.
	minImageBytes     = 23 * mebibyte
	maxContainerBytes = 1000 * mebibyte
)

// imageLocality prefers nodes that have the pod's images already, the larger ones
// and the wider spread ones above others.
type imageLocality struct{}

func newImageLocality(args []byte, _ framework.Handle) (framework.Plugin, error) {
	return imageLocality{}, none(imageLocalityName, args)
}

func (imageLocality) Name() string { return imageLocalityName }

// wantedImage is an image of the pod and the part of all nodes that have it.
type wantedImage struct {
	name   string
	spread float64
}

type imageState struct {
	images     []wantedImage
	containers int64
}

func (imageLocality) PreScore(_ context.Context, state *framework.CycleState, pod *cluster.Pod, snapshot *cluster.Snapshot, _ []*cluster.Node) *framework.Status {
	total := len(snapshot.Nodes())
	s := &imageState{containers: int64(len(pod.Object.Spec.InitContainers) + len(pod.Object.Spec.Containers))}
	add := func(containers []corev1.Container) {
		for i := range containers {
			name := normalizedImage(containers[i].Image)
			if have := snapshot.ImageNodes(name); have > 0 && total > 0 {
				s.images = append(s.images, wantedImage{name: name, spread: float64(have) / float64(total)})
			}
		}
	}
	add(pod.Object.Spec.InitContainers)
	add(pod.Object.Spec.Containers)
	if len(s.images) == 0 {
		return framework.NewStatus(framework.Skip) // no node has any
	}
	state.Write(imageLocalityName, s)
	return nil
}

// normalizedImage is name with the tag that it stands for when it has none.
func normalizedImage(name string) string {
	if strings.LastIndex(name, ":") <= strings.LastIndex(name, "/") {
		return name + ":latest"
	}
	return name
}

func (imageLocality) Score(_ context.Context, state *framework.CycleState, _ *cluster.Pod, node *cluster.Node) (int64, *framework.Status) {
	s, ok := framework.Read[*imageState](state, imageLocalityName)
	if !ok {
		return 0, nil
	}
	var sum int64
	for _, image := range s.images {
		if size, ok := node.Images[image.name]; ok {
			sum += int64(float64(size) * image.spread)
		}
	}
	most := maxContainerBytes * s.containers
	sum = min(max(sum, minImageBytes), most)
	return framework.MaxNodeScore * (sum - minImageBytes) / (most - minImageBytes), nil
}
