package probe

import (
	"context"
	"slices"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/topology"
)

// Operators returns the names of the ClusterOperators of Windlass's own programs: all of them, and those that are not
// Available.
func (o *Cluster) Operators(ctx context.Context) (all, unavailable []string, err error) {
	list, err := updatev1.NewClusterOperatorServiceClient(o.Client.Conn()).ListClusterOperators(ctx,
		&updatev1.ListClusterOperatorsRequest{})
	if err != nil {
		return nil, nil, err
	}
	for _, name := range topology.Names() {
		name = topology.Operator(name)
		all = append(all, name)
		if !slices.ContainsFunc(list.GetItems(), func(o *updatev1.ClusterOperator) bool {
			return o.GetMetadata().GetName() == name &&
				object.FindCondition(o.GetStatus().GetConditions(), "Available").GetStatus() == "True"
		}) {
			unavailable = append(unavailable, name)
		}
	}
	return all, unavailable, nil
}
