package plan

import (
	"fmt"
	"maps"
	"slices"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// EvaluateFaults returns what is wrong with a request to evaluate updates, beside its graph.
func EvaluateFaults(r *updatev1.EvaluateClusterVersionRequest) []object.Fault {
	var out []object.Fault
	for _, risk := range slices.Sorted(maps.Keys(r.GetRiskResults())) {
		if result := r.GetRiskResults()[risk]; result != True && result != False && result != Unknown {
			out = append(out, object.Fault{
				Path: "riskResults['" + risk + "']", Description: "must be True, False or Unknown",
			})
		}
	}
	if r.GetArchitecture() != "" && r.GetGraph() != nil {
		out = append(out, object.Fault{
			Path: "architecture", Description: "is not allowed together with a graph: only an upstream is asked for it",
		})
	}
	for i, name := range r.GetAcceptRisks() {
		if slices.Contains(r.GetAcceptRisks()[:i], name) {
			out = append(out, object.Fault{
				Path: fmt.Sprintf("acceptRisks[%d]", i), Description: fmt.Sprintf("%q is a duplicate", name),
			})
		}
	}
	return out
}

// Requested returns the query of a request to evaluate updates, without a graph, and the architecture of the graph to
// ask for. cv is the live cluster version, but with the version and the channel of the request; processors is the
// architecture of the cluster, such as amd64. What the live cluster accepts is accepted for its own version and
// upstream only.
func Requested(r *updatev1.EvaluateClusterVersionRequest, cv *updatev1.ClusterVersion, processors string) (
	q Query, architecture string,
) {
	q = Query{
		Version: cv.GetStatus().GetDesired().GetVersion(), Channel: cv.GetSpec().GetChannel(), ToMulti: ToMulti(cv),
		Results: r.GetRiskResults(), Accept: r.GetAcceptRisks(), Before: cv.GetStatus().GetConditionalUpdates(),
	}
	if len(q.Accept) == 0 && r.GetGraph() == nil && r.GetVersion() == "" {
		q.Accept = Accepted(cv)
	}
	if r.GetArchitecture() == "" {
		return q, Architecture(cv, processors)
	}
	q.ToMulti = false // the graph is not that of the move
	return q, r.GetArchitecture()
}
