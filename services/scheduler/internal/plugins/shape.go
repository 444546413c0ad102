package plugins

import (
	"errors"
	"fmt"

	kubeschedulerv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
)

// shape is a function from utilization, in percent, to a score, given by points
// with straight lines between.
type shape []kubeschedulerv1.UtilizationShapePoint

// maxShapeScore is what a point's score goes up to.
const maxShapeScore = 10

func newShape(param *kubeschedulerv1.RequestedToCapacityRatioParam) (shape, error) {
	if param == nil || len(param.Shape) == 0 {
		return nil, errors.New("arguments of NodeResourcesFit: scoringStrategy.requestedToCapacityRatio.shape: at least one point must be specified")
	}
	for i, point := range param.Shape {
		switch {
		case point.Utilization < 0 || point.Utilization > 100:
			return nil, fmt.Errorf("arguments of NodeResourcesFit: shape[%d].utilization: %d is not within 0 and 100", i, point.Utilization)
		case point.Score < 0 || point.Score > maxShapeScore:
			return nil, fmt.Errorf("arguments of NodeResourcesFit: shape[%d].score: %d is not within 0 and %d", i, point.Score, maxShapeScore)
		case i > 0 && point.Utilization <= param.Shape[i-1].Utilization:
			return nil, fmt.Errorf("arguments of NodeResourcesFit: shape[%d].utilization: %d is not above the one before", i, point.Utilization)
		}
	}
	return param.Shape, nil
}

func (s shape) score(requested, allocatable int64) int64 {
	used := int64(100)
	if requested <= allocatable {
		used = requested * 100 / allocatable
	}
	const scale = framework.MaxNodeScore / maxShapeScore
	for i, point := range s {
		if used > int64(point.Utilization) {
			continue
		}
		if i == 0 {
			return int64(point.Score) * scale
		}
		before := s[i-1]
		rise := (int64(point.Score) - int64(before.Score)) * scale
		return int64(before.Score)*scale + rise*(used-int64(before.Utilization))/int64(point.Utilization-before.Utilization)
	}
	return int64(s[len(s)-1].Score) * scale
}
