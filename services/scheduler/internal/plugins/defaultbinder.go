package plugins

import (
	"context"
	"errors"

	"github.com/sampan-io/sampan/services/scheduler/internal/cluster"
	"github.com/sampan-io/sampan/services/scheduler/internal/framework"
)

// defaultBinder binds through the API's pods/binding.
type defaultBinder struct{ binder framework.Binder }

func newDefaultBinder(args []byte, handle framework.Handle) (framework.Plugin, error) {
	return defaultBinder{handle.Binder}, none("DefaultBinder", args)
}

func (defaultBinder) Name() string { return "DefaultBinder" }

func (b defaultBinder) Bind(ctx context.Context, _ *framework.CycleState, pod *cluster.Pod, node string) *framework.Status {
	if b.binder == nil {
		return framework.AsStatus(errors.New("this scheduler only simulates: it binds nothing"))
	}
	return framework.AsStatus(b.binder.Bind(ctx, pod.Object, node))
}
