package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
	"github.com/windlass-dev/windlass/services/windlass/command/probe"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/supervise"
)

// NewStatus returns the command status.
func NewStatus(e *session.Env) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the state of a cluster and of its processes",
		Long: `Show the state of a cluster and of its processes, within two seconds. Each service is checked
directly, so that a stopped, hung or dead service is detected immediately. The exit code is 0 if the
cluster is ready, 3 if not. Parts that you are not allowed to read do not count as not ready: the
state is then "Ready as far as visible", followed by these parts.

With --server, services are checked through the gateway. Processes are shown only for a cluster on
this machine.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if all {
				return clusters(cmd.Context(), e, "")
			}
			return show(cmd.Context(), e)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "list all clusters on this machine, same as windlass clusters")
	return cmd
}

// notReady is the exit code of status for a cluster that is not ready, the same as that of systemctl for an inactive
// unit.
const notReady = 3

// statusPatience is how long status waits for answers, so that the command takes less than two seconds.
const statusPatience = 1500 * time.Millisecond

func show(ctx context.Context, e *session.Env) error {
	t, err := e.Target.Resolve()
	if err != nil {
		return err
	}
	c, err := here(e, t)
	if err != nil {
		return err
	}
	var problems []string
	if c != nil {
		fmt.Fprintf(e.Out, "Cluster:     %s\nAddress:     https://%s\nDirectory:   %s\n", c.Name, c.Gateway(), c.Dir())
		problem, err := printSupervisor(e, c)
		if err != nil {
			return err
		}
		if problem != "" {
			problems = append(problems, problem)
		}
	} else {
		fmt.Fprintf(e.Out, "Address:     https://%s\n", strings.ReplaceAll(t.Server, ",", ", https://"))
	}
	v, err := look(ctx, t, c)
	if err != nil {
		return err
	}
	problems = append(problems, v.problems()...)
	state, unseen := "Ready", v.unseen()
	switch {
	case len(problems) > 0:
		state = "NotReady"
	case len(unseen) > 0:
		state = "Ready as far as visible"
	}
	fmt.Fprintf(e.Out, "State:       %s\n", state)
	for _, p := range append(problems[:len(problems):len(problems)], unseen...) {
		fmt.Fprintf(e.Out, "             * %s\n", p)
	}
	for _, l := range v.lines() {
		fmt.Fprintln(e.Out, l)
	}
	if c != nil {
		expiring, err := c.Expiring(time.Now())
		if err != nil {
			return err
		}
		for _, l := range warnings(c, expiring, time.Now()) {
			fmt.Fprintf(e.Out, "Warning:     %s\n", l)
		}
		if err := printProcesses(e.Out, c); err != nil {
			return err
		}
	}
	if len(problems) > 0 {
		return failure.Exit{Code: notReady}
	}
	return nil
}

// warnings returns a line for each certificate that was not renewed in time. Programs use it until it expires, so the
// cluster may still be ready.
func warnings(c *cluster.Cluster, list []cluster.Certificate, now time.Time) []string {
	const most = 5 // there are dozens if the supervisor was down for a day
	var lines []string
	for i, x := range list {
		if i == most {
			lines = append(lines, fmt.Sprintf("and %d more certificates", len(list)-most))
			break
		}
		lines = append(lines, fmt.Sprintf("certificate %s %s: the supervisor has not renewed it, see %s", x.Path,
			identity.Expiry(x.NotAfter, now), c.Log("supervisor")))
	}
	return lines
}

// here returns the cluster of a target if it is on this machine and the target has its address, else nil.
func here(e *session.Env, t client.Target) (*cluster.Cluster, error) {
	if e.Target.Server != "" {
		return nil, nil
	}
	c, err := cluster.Open(cmp.Or(t.Cluster, cluster.DefaultName))
	switch {
	case errors.Is(err, cluster.ErrNone) && t.Server != "":
		return nil, nil
	case err != nil:
		return nil, err
	case t.Server != c.Gateway():
		return nil, nil // the environment names another cluster
	}
	return c, nil
}

// printSupervisor prints the state of the supervisor and returns its problem, "" if it runs.
func printSupervisor(e *session.Env, c *cluster.Cluster) (problem string, err error) {
	pid, err := supervise.Alive(c)
	switch {
	case err != nil:
		return "", err
	case pid == 0:
		fmt.Fprintf(e.Out, "Supervisor:  not running (`windlass up%s` starts it)\n", session.NameFlag(c))
		return "the supervisor is not running, so programs that exit are not restarted", nil
	}
	fmt.Fprintf(e.Out, "Supervisor:  pid %d\n", pid)
	if process.Stopped(pid) {
		return fmt.Sprintf(
			"the supervisor is stopped by a signal (`kill -CONT %d`), so programs that exit are not restarted", pid), nil
	}
	return "", nil
}

// look checks all parts of a cluster concurrently. If c is nil, the cluster is not on this machine, and services are
// checked through the gateway.
func look(ctx context.Context, t client.Target, c *cluster.Cluster) (view, error) {
	ctx, cancel := context.WithTimeout(ctx, statusPatience)
	defer cancel()
	conn, err := client.Dial(t)
	if err != nil {
		return view{}, err
	}
	defer conn.Close()
	v := view{now: time.Now()}
	o := probe.Cluster{Cluster: c, Client: client.New(conn)}
	ask := throughGateway(conn)
	if c != nil {
		if o.TLS, err = c.AdminFiles().ClientTLS(""); err != nil {
			return view{}, err
		}
		ask = o.Direct
	}
	var all sync.WaitGroup
	all.Go(func() { v.services = askServices(ctx, ask, c == nil) })
	all.Go(func() { v.quorum, v.quorumErr = o.Quorum(ctx) })
	all.Go(func() { v.machines, v.wanted, v.machinesErr = o.Machines(ctx) })
	all.Go(func() {
		list, err := nodev1.NewNodeServiceClient(conn).ListNodes(ctx, &nodev1.ListNodesRequest{})
		v.nodes, v.nodesErr = list.GetItems(), err
	})
	all.Go(func() {
		list, err := updatev1.NewClusterOperatorServiceClient(conn).ListClusterOperators(ctx,
			&updatev1.ListClusterOperatorsRequest{})
		v.operator, v.operatorErr = list.GetItems(), err
	})
	if c == nil {
		all.Go(func() {
			list, err := hostv1.NewHostServiceClient(conn).ListHosts(ctx, &hostv1.ListHostsRequest{})
			v.hosts, v.hostsErr = list.GetItems(), err
		})
	}
	all.Wait()
	v.onHosts = slices.ContainsFunc(v.services, func(s service) bool { return s.name == topology.ProviderInventory })
	if !v.onHosts {
		v.hosts, v.hostsErr = nil, nil
	}
	return v, nil
}

// health checks one program, or one part of it; part "" checks the program itself.
type health func(ctx context.Context, program, part string) (*grpc_health_v1.HealthCheckResponse, error)

func throughGateway(conn grpc.ClientConnInterface) health {
	return func(ctx context.Context, program, part string) (*grpc_health_v1.HealthCheckResponse, error) {
		name := program
		if program == topology.Gateway {
			name = "" // the called server itself
		}
		if part != "" {
			name = program + "/" + part
		}
		return grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: name})
	}
}

// askServices checks all programs concurrently. Programs that the gateway does not know are omitted; if the gateway
// does not answer, the result is the gateway alone.
func askServices(ctx context.Context, ask health, viaGateway bool) []service {
	type answer struct {
		problem, refuses string
		absent           bool
	}
	names := topology.Names()
	if viaGateway {
		names = append(names, topology.ProviderInventory) // absent where the control plane is not on hosts
	}
	answers := make([]answer, len(names))
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() {
			r, err := ask(ctx, name, "")
			answers[i] = answer{problem: healthProblem(r, err), absent: status.Code(err) == codes.NotFound}
			if answers[i].problem != "" {
				return
			}
			_, err = ask(ctx, name, serve.ChangesCheck)
			// other codes mean that the program has no such check
			if code := status.Code(err); code == codes.ResourceExhausted || code == codes.FailedPrecondition {
				answers[i].refuses = status.Convert(err).Message()
			}
		})
	}
	all.Wait()
	var out []service
	for i, name := range names {
		switch {
		case viaGateway && name == topology.Gateway && answers[i].problem != "":
			return []service{{name: name, problem: answers[i].problem}} // the state of the others is unknown
		case !answers[i].absent:
			out = append(out, service{name, answers[i].problem, answers[i].refuses})
		}
	}
	return out
}

func healthProblem(r *grpc_health_v1.HealthCheckResponse, err error) string {
	switch status.Code(err) {
	case codes.OK:
		if r.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			return "is not ready"
		}
		return ""
	case codes.DeadlineExceeded:
		return fmt.Sprintf("did not answer within %v: it is stopped or hung", statusPatience)
	case codes.Unavailable:
		return "is not running: connection failed"
	}
	return "cannot be checked: " + cmp.Or(status.Convert(err).Message(), err.Error())
}

// printProcesses prints every process of the cluster on this machine.
func printProcesses(out io.Writer, c *cluster.Cluster) error {
	dirs, err := supervise.RunDirs(c)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "\nPROCESS\tPID\tAGE\tOF")
	for _, dir := range dirs {
		list, err := process.Running(dir)
		if err != nil && !os.IsNotExist(err) {
			return err
		}
		for _, p := range list {
			rel, _ := filepath.Rel(c.Dir(), filepath.Dir(dir))
			state := ""
			if process.Stopped(p.PID) {
				state = "\t(stopped by a signal)"
			}
			fmt.Fprintf(w, "%s\t%d\t%s\t%s%s\n", p.Name, p.PID, time.Since(p.Since).Truncate(time.Second), rel, state)
		}
	}
	return w.Flush()
}
