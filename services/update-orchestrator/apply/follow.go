package apply

import (
	"context"
	"errors"

	"github.com/windlass-dev/windlass/kit/object"

	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// ErrGone means that a workload was deleted while it was waited for.
var ErrGone = errors.New("it was deleted while it was waited for")

// Follow calls see with every state of a workload until it is ready, see returns an error, ctx ends, or the watch
// breaks; it is ErrGone if the workload goes.
func (a *Applier) Follow(ctx context.Context, t Task, see func(object.Object, plan.Rollout) error) error {
	return t.kind.follow(ctx, t.object, func(o object.Object) (bool, error) {
		s := plan.RolloutOf(o)
		return s.Ready, see(o, s)
	})
}
