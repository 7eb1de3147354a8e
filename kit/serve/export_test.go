package serve

import (
	"context"

	"github.com/windlass-dev/windlass/kit/clusteroperator"
)

// State returns what the process reports of itself while all else is well.
func State(p *Process) clusteroperator.State {
	return p.guarded(func(context.Context) clusteroperator.State { return clusteroperator.State{Available: true} })(
		context.Background())
}

// RestAfter is restAfter for tests.
var RestAfter = restAfter
