package auth

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/command/probe"
	"github.com/windlass-dev/windlass/services/windlass/command/progress"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/rotation"
)

// stepsOnHosts are the steps of a rotation over hosts, and what is true after each.
var stepsOnHosts = map[hostv1.Rotation_Step]struct{ name, done string }{
	hostv1.Rotation_STEP_PREPARE:  {"prepare", "every host trusts the next authority"},
	hostv1.Rotation_STEP_ACTIVATE: {"activate", "every host uses certificates of the next authority"},
	hostv1.Rotation_STEP_RETIRE:   {"finish", "the former authority is rejected on every host"},
}

// nameOnCommandLine names an authority as the command line does.
func nameOnCommandLine(authority string) string {
	if authority == topology.APIAuthority {
		return "api"
	}
	return authority
}

// rotateOnHosts runs the steps of a rotation over all hosts of the cluster of this one, up to the one that the flags
// select. The hosts take them by themselves; the command begins the rotation and shows what it waits for.
func rotateOnHosts(ctx context.Context, e *session.Env, c *cluster.Cluster, name string, f rotateFlags) error {
	return e.WithClient(func(cl *client.Client) error {
		hosts := hostv1.NewHostServiceClient(cl.Conn())
		goal := hostv1.Rotation_STEP_ACTIVATE
		switch {
		case f.prepare:
			goal = hostv1.Rotation_STEP_PREPARE
		case f.finish || name != topology.APIAuthority:
			goal = hostv1.Rotation_STEP_RETIRE
		}
		s := progress.New(e.Out)
		var r *hostv1.Rotation
		s.Begin("begin")
		if err := probe.Until(ctx, s, func(ctx context.Context) (bool, string, error) {
			now, err := hosts.PlanRotation(ctx, &hostv1.PlanRotationRequest{})
			if err != nil || now.GetRotation() == nil && f.finish {
				return err == nil, "provider-inventory", err
			}
			request, err := startRequest(ctx, cl, c, name, now.GetRotation())
			if err != nil {
				return false, "the cluster", err
			}
			request.Goal = goal
			r, err = hosts.StartRotation(ctx, request)
			return err == nil, "provider-inventory", err
		}); err != nil {
			return err
		}
		if r == nil {
			_, err := fmt.Fprintln(e.Out, "no rotation to finish: only one authority is trusted")
			return err
		}
		if err := awaitHosts(ctx, s, hosts, r, goal); err != nil {
			return fmt.Errorf("%w; the rotation goes on by itself: see `windlass auth rotate --status`", err)
		}
		if goal == hostv1.Rotation_STEP_ACTIVATE {
			fmt.Fprintln(e.Out,
				"Certificates of users that `windlass auth issue` made, and those of providers, are not known here.")
			fmt.Fprintln(e.Out, "issue new certificates to users, then run: windlass auth rotate api --finish")
		}
		return nil
	})
}

// startRequest returns the request that begins a rotation, or that moves the goal of the present one. The next
// authority is made on this host, and signed by the present one, so that the other hosts accept it.
func startRequest(ctx context.Context, cl *client.Client, c *cluster.Cluster, name string, present *hostv1.Rotation) (
	*hostv1.StartRotationRequest, error,
) {
	request := &hostv1.StartRotationRequest{Authority: name, Host: c.Member.Name}
	if present != nil && (present.GetAuthority() != name || present.GetStep() != hostv1.Rotation_STEP_PREPARE) {
		return request, nil // the inventory says whether its goal may be moved
	}
	if present == nil {
		if err := mayRotateOnHosts(ctx, cl, c, name); err != nil {
			return nil, err
		}
	}
	st, err := c.RotationState(name)
	switch {
	case err != nil:
		return nil, err
	case st.Step == identity.Retired && present == nil: // all hosts have finished it; this one has not noticed yet
		if err := c.EndRotation(name); err != nil {
			return nil, err
		}
	case st.Step == identity.Activated || st.Step == identity.Retired:
		return nil, fmt.Errorf("host %s is in the midst of another rotation of %s (%s): `windlass host run` must run there",
			c.Member.Name, name, st.Step)
	}
	if err := c.PrepareRotation(name); err != nil {
		return nil, err
	}
	if st, err = c.RotationState(name); err != nil {
		return nil, err
	}
	authority, err := identity.LoadAuthority(c.Dir("pki"), name)
	if err != nil {
		return nil, err
	}
	request.Certificate, request.NextCertificate = st.Signing, st.Next
	request.Signature, err = rotation.Sign(authority, name, st.Next)
	return request, err
}

// mayRotateOnHosts returns an error if the rotation of an authority cannot begin.
func mayRotateOnHosts(ctx context.Context, cl *client.Client, c *cluster.Cluster, name string) error {
	if name != topology.APIAuthority {
		return mayRotate(ctx, &probe.Cluster{Cluster: c, Client: cl}, name)
	}
	list, err := machinev1.NewMachineServiceClient(cl.Conn()).ListMachines(ctx, &machinev1.ListMachinesRequest{})
	if err != nil {
		return err
	}
	var others []string
	for _, m := range list.GetItems() {
		if id := m.GetSpec().GetProviderId(); id != "" && !strings.HasPrefix(id, "inventory://") {
			others = append(others, m.GetMetadata().GetName())
		}
	}
	if len(others) > 0 {
		return fmt.Errorf("api cannot be rotated while machines are not on hosts of the inventory, since their agents get "+
			"other authorities only when they renew their certificates: delete the machines first: %s",
			strings.Join(others, ", "))
	}
	return nil
}

// awaitHosts shows the steps of a rotation until all hosts have completed that of the goal.
func awaitHosts(ctx context.Context, s *progress.Steps, hosts hostv1.HostServiceClient, r *hostv1.Rotation,
	goal hostv1.Rotation_Step,
) error {
	step := r.GetStep()
	s.Begin(stepsOnHosts[step].name)
	return probe.Until(ctx, s, func(ctx context.Context) (bool, string, error) {
		p, err := hosts.PlanRotation(ctx, &hostv1.PlanRotationRequest{})
		if err != nil {
			return false, "provider-inventory", err
		}
		now := p.GetRotation()
		if now.GetId() != r.GetId() {
			// A rotation ends when all hosts have finished; another one may have begun since. Before its last step it is
			// replaced if no host that reports has its key.
			if now != nil && step != hostv1.Rotation_STEP_RETIRE && goal != hostv1.Rotation_STEP_RETIRE {
				return false, "", errors.New("the rotation was replaced by another one, or finished by another command: see " +
					"`windlass auth rotate --status`")
			}
			now = nil
		}
		for ; step < goal && (now == nil || step < now.GetStep()); step++ {
			s.Done(stepsOnHosts[step].done)
			s.Begin(stepsOnHosts[step+1].name)
		}
		if now != nil && (now.GetStep() < goal || goal == hostv1.Rotation_STEP_RETIRE || p.GetWaitsFor() != "") {
			return false, cmp.Or(p.GetWaitsFor(), "the next step"), nil
		}
		s.Done(stepsOnHosts[step].done)
		return true, "", nil
	})
}

// statusOnHosts shows the rotation over all hosts, and what it waits for.
func statusOnHosts(ctx context.Context, e *session.Env) error {
	return e.WithClient(func(cl *client.Client) error {
		p, err := hostv1.NewHostServiceClient(cl.Conn()).PlanRotation(ctx, &hostv1.PlanRotationRequest{})
		if err != nil {
			return err
		}
		r := p.GetRotation()
		if r == nil {
			fmt.Fprintln(e.Out, "No rotation over the hosts is under way.")
			return nil
		}
		name := nameOnCommandLine(r.GetAuthority())
		fmt.Fprintf(e.Out, "Rotation of %s over the hosts: step %s since %s, completed by %d of %d hosts\n", name,
			stepsOnHosts[r.GetStep()].name, r.GetStepTime().AsTime().UTC().Format(time.RFC3339), p.GetCompletedCount(),
			p.GetHostCount())
		switch {
		case p.GetWaitsFor() != "":
			fmt.Fprintln(e.Out, "Waits for:", p.GetWaitsFor())
		case len(p.GetActions()) == 0:
			fmt.Fprintf(e.Out, "Waits for: a user: windlass auth rotate %s%s\n", name,
				map[bool]string{true: " --finish"}[r.GetStep() == hostv1.Rotation_STEP_ACTIVATE])
		}
		return nil
	})
}
