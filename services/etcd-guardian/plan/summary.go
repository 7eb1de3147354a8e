package plan

import (
	"fmt"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
)

// Strategies by which voters are added and replaced. Source: OpenShift's etcd operator.
const (
	highlyAvailable = "HAScalingStrategy"
	twoNodes        = "TwoNodeScalingStrategy"
	unsafeScaling   = "UnsafeScalingStrategy"
)

// Complete sets what follows from a view and its plan in the quorum that the view was made from: the numbers of voters,
// whether it is safe to scale, the phase, the next action and what it waits for.
func Complete(q *etcdv1.Quorum, v View, p Plan) {
	q.Phase, q.Next, q.WaitsFor = p.Phase, p.First(), p.WaitsFor
	q.DesiredVoters, q.Voters, q.HealthyVoters, q.Majority = int32(v.Desired), 0, 0, 0
	for _, m := range v.Members {
		if !m.Learner {
			q.Voters++
			if m.Healthy {
				q.HealthyVoters++
			}
		}
	}
	if q.Voters > 0 {
		q.Majority = int32(Majority(int(q.Voters)))
	}
	q.FailureTolerance = max(q.HealthyVoters-q.Majority, 0)
	q.Strategy = strategy(v.Desired)
	q.ScaleMessage = unsafeToScale(v, q)
	q.SafeToScale = q.ScaleMessage == ""
}

// Objection says why the cluster should not go to another minor version now; empty if nothing of etcd speaks against
// it.
func Objection(q *etcdv1.Quorum) (reason, message string) {
	if q.GetPhase() == Stable {
		return "", ""
	}
	message = fmt.Sprintf("%d of %d voters of etcd are healthy, and %d are wanted", q.GetHealthyVoters(), q.GetVoters(),
		q.GetDesiredVoters())
	if q.GetWaitsFor() != "" {
		message += ": " + q.GetWaitsFor()
	}
	return "Quorum" + q.GetPhase(), message
}

func strategy(desired int) string {
	switch {
	case desired >= 3:
		return highlyAvailable
	case desired == 2:
		return twoNodes
	}
	return unsafeScaling
}

// unsafeToScale returns why voters may not be added or replaced now; empty if they may.
func unsafeToScale(v View, q *etcdv1.Quorum) string {
	least := map[string]int32{highlyAvailable: 3, twoNodes: 2, unsafeScaling: 1}[q.GetStrategy()]
	switch {
	case !v.Fresh:
		return "no majority of etcd answers"
	case v.RollOut != "":
		return v.RollOut + " is being rolled out"
	case q.GetHealthyVoters() < least:
		return fmt.Sprintf("%d voters are healthy, and %s needs %d", q.GetHealthyVoters(), q.GetStrategy(), least)
	case q.GetStrategy() == highlyAvailable && q.GetFailureTolerance() < 1:
		return fmt.Sprintf("%d of %d voters are healthy, so that none may fail", q.GetHealthyVoters(), q.GetVoters())
	}
	return ""
}

// disruptions returns for each machine of the control plane whether its voter may be disrupted now.
func disruptions(v View) []*etcdv1.Disruption {
	var out []*etcdv1.Disruption
	for _, m := range v.Machines {
		d := Disrupt(v, m)
		out = append(out, &etcdv1.Disruption{
			Machine: m.Reference(), Allowed: d.Why == "", NeedsPermit: !d.Needless, Message: d.Why,
		})
	}
	return out
}
