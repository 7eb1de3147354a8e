package auth

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/command/probe"
	"github.com/windlass-dev/windlass/services/windlass/command/progress"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

// What errors call the two files.
const (
	policyWord = "policy"
	tokensWord = "list of bearer tokens"
)

const (
	// accessTimeout is more than the silence after which a host counts as away.
	accessTimeout = 90 * time.Second
	// accessPoll is how often the state of the hosts is read.
	accessPoll = 200 * time.Millisecond
)

// withAccess calls f with the inventory of a cluster on hosts. For another cluster the error says where file is, which
// is the policy or the tokens, as what names it.
func withAccess(e *session.Env, what string, file func(*cluster.Cluster) string,
	f func(hostv1.HostServiceClient) error,
) error {
	if e.Target.Server == "" && os.Getenv(client.EnvServer) == "" {
		if c, err := e.Cluster(); err == nil {
			return fmt.Errorf("the %s of cluster %q, which is not on hosts, is a file of this machine: edit %s and replace it "+
				"by a rename; the programs load it within a second", what, c.Name, file(c))
		}
	}
	return e.WithClient(func(c *client.Client) error {
		return explained(f(hostv1.NewHostServiceClient(c.Conn())), what)
	})
}

// explained returns an error of the inventory that says where what is, if the cluster is not on hosts.
func explained(err error, what string) error {
	switch {
	case status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), "is not part of this cluster"):
		file := "services/gateway/tokens in the directory of the cluster"
		if what == policyWord {
			file = "policy.yaml in the directory of the cluster, of compose deploy/policy/default.yaml"
		}
		return fmt.Errorf("the %s of this cluster, which is not on hosts, is a file of the machine that it runs on: edit it "+
			"there, %s", what, file)
	case status.Code(err) == codes.Unimplemented:
		return errors.New("provider-inventory of this cluster is of an earlier version: update the cluster first")
	}
	return err
}

// warnOfOthers says which hosts have other files than those that are recorded, which a change of a user replaces.
func warnOfOthers(ctx context.Context, e *session.Env, hosts hostv1.HostServiceClient) error {
	p, err := hosts.PlanClusterAccess(ctx, &hostv1.PlanClusterAccessRequest{})
	if err != nil {
		return err
	}
	for _, h := range p.GetHosts() {
		if h.GetState() == "Differs" {
			fmt.Fprintf(e.Err, "Warning: host %s has files of its own, which this replaces: %s\n", h.GetName(), h.GetMessage())
		}
	}
	return nil
}

// awaitAccess waits until all control-plane hosts have in force what is recorded, at least of a generation. The error
// names the hosts of which that is not known, with the reason.
func awaitAccess(ctx context.Context, s *progress.Steps, hosts hostv1.HostServiceClient, generation int32) (count int,
	err error,
) {
	var behind []string
	seen := map[string]bool{}
	for {
		h, count, err := nextAccess(ctx, s, hosts, generation, seen)
		switch {
		case err != nil:
			return 0, err
		case h == nil && len(behind) > 0:
			return 0, fmt.Errorf("recorded, but not known to be in force on %d of %d control-plane hosts: %s", len(behind),
				count,
				strings.Join(behind, ". "))
		case h == nil:
			return count, nil
		}
		seen[h.GetName()] = true
		if h.GetState() == "InForce" {
			s.Done("in force")
			continue
		}
		s.Done("not in force: " + h.GetMessage())
		behind = append(behind, "host "+h.GetName()+": "+h.GetMessage())
	}
}

// nextAccess waits until one more host has in force what is recorded, is away, or time is over, and returns it; nil
// once there is none. count is how many hosts there are.
func nextAccess(ctx context.Context, s *progress.Steps, hosts hostv1.HostServiceClient, generation int32,
	seen map[string]bool,
) (h *hostv1.ClusterAccessHost, count int, err error) {
	began := ""
	for {
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		p, err := hosts.PlanClusterAccess(call, &hostv1.PlanClusterAccessRequest{})
		cancel()
		over := ctx.Err() != nil
		switch {
		case err != nil && (over || !probe.Passing(err)):
			return nil, 0, fmt.Errorf("recorded, but it is not known which hosts have it: %w", err)
		case err == nil && p.GetAccess().GetGeneration() < generation:
			return nil, 0, fmt.Errorf("generation %d is recorded, not %d any more: an older snapshot of etcd was restored",
				p.GetAccess().GetGeneration(), generation)
		}
		var first *hostv1.ClusterAccessHost
		for _, is := range p.GetHosts() {
			if seen[is.GetName()] {
				continue
			}
			if first == nil {
				first = is
			}
			if over || is.GetState() != "Pending" {
				if began != is.GetName() {
					s.Begin("host " + is.GetName())
				}
				return is, len(p.GetHosts()), nil
			}
		}
		if err == nil && first == nil {
			return nil, len(p.GetHosts()), nil
		}
		if first != nil {
			if began != first.GetName() {
				began = first.GetName()
				s.Begin("host " + began)
			}
			s.Wait(first.GetMessage())
		}
		select {
		case <-ctx.Done():
		case <-time.After(accessPoll):
		}
	}
}
