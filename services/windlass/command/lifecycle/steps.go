package lifecycle

import (
	"context"
	"fmt"
	"strings"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/services/windlass/command/probe"
	"github.com/windlass-dev/windlass/services/windlass/command/progress"
)

// podsRun waits until the pods of the cluster's initial objects are ready.
func podsRun(ctx context.Context, o *probe.Cluster, s *progress.Steps) (string, error) {
	var ready, wanted int32
	err := probe.Until(ctx, s, func(ctx context.Context) (bool, string, error) {
		var waits string
		var err error
		ready, wanted, waits, err = o.Pods(ctx)
		text := fmt.Sprintf("%d of %d run", ready, wanted)
		if waits != "" {
			text += "; " + waits
		}
		return err == nil && ready >= wanted, text, err
	})
	if wanted == 0 {
		return "none desired", err
	}
	return fmt.Sprintf("%d run", ready), err
}

// operatorsAvailable waits until `windlass status` finds all programs available: they report that a moment after they
// are ready.
func operatorsAvailable(ctx context.Context, o *probe.Cluster, s *progress.Steps) (string, error) {
	var all []string
	err := probe.Until(ctx, s, func(ctx context.Context) (bool, string, error) {
		var waits []string
		var err error
		all, waits, err = o.Operators(ctx)
		return err == nil && len(waits) == 0, "waits for " + strings.Join(waits, ", "), err
	})
	return fmt.Sprintf("%d available", len(all)), err
}

func etcdAnswers(ctx context.Context, o *probe.Cluster, s *progress.Steps) (string, error) {
	var what string
	err := probe.Until(ctx, s, func(ctx context.Context) (bool, string, error) {
		q, err := o.Quorum(ctx)
		if err != nil {
			return false, "", err
		}
		what = fmt.Sprintf("%d of %d voters respond", q.GetHealthyVoters(), q.GetVoters())
		for _, m := range q.GetMembers() {
			if m.GetBootstrap() && m.GetHealthy() {
				what = "bootstrap member"
			}
		}
		return q.GetHealthyVoters() > 0 && q.GetHealthyVoters() >= q.GetMajority(), q.GetWaitsFor(), nil
	})
	return what, err
}

func servicesReady(ctx context.Context, o *probe.Cluster, s *progress.Steps) (string, error) {
	for _, name := range topology.Names() {
		err := probe.Until(ctx, s, func(ctx context.Context) (bool, string, error) {
			ready, err := o.Serving(ctx, name)
			return ready, name, err
		})
		if err != nil {
			return "", err
		}
	}
	return strings.Join(topology.Names(), ", "), nil
}

func machinesRun(ctx context.Context, o *probe.Cluster, s *progress.Steps) (string, error) {
	var running int
	err := probe.Until(ctx, s, func(ctx context.Context) (bool, string, error) {
		list, wanted, err := o.Machines(ctx)
		if err != nil {
			return false, "", err
		}
		running = 0
		for _, m := range list {
			if m.GetStatus().GetPhase() == "Running" {
				running++
			}
		}
		return running >= wanted, fmt.Sprintf("%d of %d run", running, wanted), nil
	})
	return fmt.Sprintf("%d run", running), err
}

func quorumStands(ctx context.Context, o *probe.Cluster, s *progress.Steps) (string, error) {
	var what string
	err := probe.Until(ctx, s, func(ctx context.Context) (bool, string, error) {
		q, err := o.Quorum(ctx)
		if err != nil {
			return false, "", err
		}
		what = fmt.Sprintf("%d voters on machines", q.GetVoters())
		return q.GetBootstrapRetired() && q.GetVoters() >= q.GetDesiredVoters() && q.GetHealthyVoters() == q.GetVoters(),
			votersText(q), nil
	})
	return what, err
}

// votersText says how far the quorum is, and what it waits for if it waits. There may be one voter more than desired,
// until the bootstrap member leaves.
func votersText(q *etcdv1.Quorum) string {
	text := fmt.Sprintf("%d voters, %d desired", q.GetVoters(), q.GetDesiredVoters())
	if w := q.GetWaitsFor(); w != "" {
		text += "; " + w
	}
	return text
}

func nodesReady(ctx context.Context, o *probe.Cluster, s *progress.Steps) (string, error) {
	var ready int
	err := probe.Until(ctx, s, func(ctx context.Context) (bool, string, error) {
		list, wanted, err := o.Machines(ctx)
		if err != nil {
			return false, "", err
		}
		nodes, err := nodev1.NewNodeServiceClient(o.Client.Conn()).ListNodes(ctx, &nodev1.ListNodesRequest{})
		if err != nil {
			return false, "", err
		}
		ready = 0
		for _, n := range nodes.GetItems() {
			if probe.NodeReady(n) {
				ready++
			}
		}
		return ready >= wanted && ready >= len(list), fmt.Sprintf("%d of %d Ready", ready, max(wanted, len(list))), nil
	})
	return fmt.Sprintf("%d Ready", ready), err
}
