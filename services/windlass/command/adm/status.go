package adm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	programv1 "github.com/windlass-dev/windlass/gen/windlass/program/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/probe"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

const (
	statusEvery  = time.Second
	refusedLooks = 3
)

// unanswered is the part that says why the state of the others is not known.
const unanswered = "no answer"

func newUpgradeStatus(e *session.Env) *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show how far the update is, and what it waits for",
		Long: "Show how far the update is, and what each operator and each node waits for. With --watch, a line follows for " +
			"each thing that changes, until the cluster and its pools are at the release; it fails if that is not accepted.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return e.WithClient(func(c *client.Client) error {
				if watch {
					return followUpgrade(cmd.Context(), e.Out, func(ctx context.Context) (*upgradeProgress, error) {
						return progressOf(ctx, c)
					})
				}
				p, err := progressOf(cmd.Context(), c)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintln(e.Out, strings.Join(p.tree(time.Now()), "\n"))
				return err
			})
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "go on with a line for each change")
	return cmd
}

// followUpgrade prints the status, and then what changes, until the cluster and its pools are at the release. Its error
// is that this was not accepted.
func followUpgrade(ctx context.Context, out io.Writer, look func(context.Context) (*upgradeProgress, error)) error {
	p, err := look(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, strings.Join(p.tree(time.Now()), "\n"))
	last := p.parts()
	tick := time.NewTicker(statusEvery)
	defer tick.Stop()
	refused := 0 // looks in which it was: one may show what was said of the request before
	for !p.done() {
		why := p.refused()
		if refused++; why == "" {
			refused = 0
		}
		if refused == refusedLooks {
			return errors.New(why)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		now, err := look(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			err = now.lost()
		}
		if err != nil && !probe.Passing(err) {
			return err
		}
		next := last
		if err != nil { // services restart during an update: what is known stays until they answer again
			next = append(slices.DeleteFunc(slices.Clone(last), func(p part) bool { return p.name == unanswered }),
				part{unanswered, oneLine(status.Convert(err).Message())})
		} else {
			p, next = now, now.parts()
		}
		for _, line := range changes(last, next) {
			fmt.Fprintf(out, "%s  %s\n", time.Now().Format(time.TimeOnly), line)
		}
		last = next
	}
	return nil
}

// part is one thing of an update, and how it is.
type part struct{ name, state string }

// changes returns a line for each part that is otherwise than before.
func changes(before, now []part) (lines []string) {
	for _, p := range now {
		if !slices.Contains(before, p) {
			lines = append(lines, p.name+": "+p.state)
		}
	}
	for _, p := range before {
		if !slices.ContainsFunc(now, func(n part) bool { return n.name == p.name }) {
			lines = append(lines, p.name+": no longer")
		}
	}
	return lines
}

// upgradeProgress is what is known of an update.
type upgradeProgress struct {
	version   *updatev1.ClusterVersion
	operators []*updatev1.ClusterOperator
	pools     []poolProgress
	members   []*etcdv1.Member // of etcd
	quorumErr error            // why they are not known
	host      string           // version of `windlass host run` that the release brings; empty if it brings none
	hosts     []*hostv1.Host
	hostsErr  error // why they are not known
}

// poolProgress is a pool of machine configurations, and its nodes.
type poolProgress struct {
	name string
	plan *configv1.PlanMachineConfigPoolResponse
	err  error // why its nodes are not known
}

func progressOf(ctx context.Context, c *client.Client) (*upgradeProgress, error) {
	cv, err := clusterVersion(ctx, c)
	if err != nil {
		return nil, err
	}
	p := &upgradeProgress{version: cv}
	operators, err := updatev1.NewClusterOperatorServiceClient(c.Conn()).ListClusterOperators(ctx,
		&updatev1.ListClusterOperatorsRequest{})
	if err != nil {
		return nil, err
	}
	p.operators = operators.GetItems()
	client := configv1.NewMachineConfigPoolServiceClient(c.Conn())
	pools, err := client.ListMachineConfigPools(ctx, &configv1.ListMachineConfigPoolsRequest{})
	if err != nil {
		return nil, err
	}
	for _, pool := range pools.GetItems() {
		name := pool.GetMetadata().GetName()
		plan, err := client.PlanMachineConfigPool(ctx, &configv1.PlanMachineConfigPoolRequest{Name: name})
		p.pools = append(p.pools, poolProgress{name, plan, err})
	}
	q, err := etcdv1.NewQuorumServiceClient(c.Conn()).GetQuorum(ctx, &etcdv1.GetQuorumRequest{})
	p.members, p.quorumErr = q.GetMembers(), err
	program, err := programv1.NewProgramServiceClient(c.Conn()).GetProgram(ctx,
		&programv1.GetProgramRequest{Name: topology.Host})
	if status.Code(err) == codes.NotFound {
		return p, nil
	}
	if p.host, p.hostsErr = program.GetSpec().GetVersion(), err; err == nil {
		var list *hostv1.HostList
		list, p.hostsErr = hostv1.NewHostServiceClient(c.Conn()).ListHosts(ctx, &hostv1.ListHostsRequest{})
		p.hosts = list.GetItems()
	}
	return p, nil
}

// updating reports whether the manifests of a release are being applied.
func (p *upgradeProgress) updating() bool {
	return object.FindCondition(p.version.GetStatus().GetConditions(), "Progressing").GetStatus() == "True"
}

// lost returns why a pool is not known, if one is not.
func (p *upgradeProgress) lost() error {
	for _, pool := range p.pools {
		if pool.err != nil {
			return pool.err
		}
	}
	return nil
}

// considered reports whether the conditions are of what was requested last.
func (p *upgradeProgress) considered() bool {
	return p.version.GetMetadata().GetGeneration() <= p.version.GetStatus().GetObservedGeneration()
}

// refused says why what was requested last is not accepted; empty if it is, or if that is not known yet.
func (p *upgradeProgress) refused() string {
	if p.requested() == "" || !p.considered() {
		return ""
	}
	conditions := p.version.GetStatus().GetConditions()
	if c := object.FindCondition(conditions, "Invalid"); c.GetStatus() == "True" {
		return "the update is invalid: " + oneLine(c.GetMessage())
	}
	if c := object.FindCondition(conditions, "ReleaseAccepted"); c.GetStatus() == "False" {
		return "the update is not accepted (" + c.GetReason() + "): " + oneLine(c.GetMessage())
	}
	return ""
}

// requested returns the release that is desired and that the cluster is not on its way to; empty if there is none.
func (p *upgradeProgress) requested() string {
	d, st := p.version.GetSpec().GetDesiredUpdate(), p.version.GetStatus().GetDesired()
	if d.GetVersion() == "" && d.GetImage() == "" || desires(p.version, st.GetVersion(), st.GetImage()) {
		return ""
	}
	return strings.TrimSpace(printer.Update(d.GetVersion(), d.GetImage()) + " " + d.GetArchitecture())
}

// desires reports whether the desired update is the one to a release, of the present architecture.
func desires(cv *updatev1.ClusterVersion, version, image string) bool {
	d := cv.GetSpec().GetDesiredUpdate()
	return (d.GetArchitecture() == "" || d.GetArchitecture() == cv.GetStatus().GetDesired().GetArchitecture()) &&
		(d.GetVersion() != "" || d.GetImage() != "") && (d.GetVersion() == "" || d.GetVersion() == version) &&
		(d.GetImage() == "" || resolves(d.GetImage(), image))
}

// changing counts the nodes of all pools, and those that are not updated.
func (p *upgradeProgress) changing() (changing, all int) {
	for _, pool := range p.pools {
		for _, n := range pool.plan.GetNodes() {
			all++
			if notUpdated(n) {
				changing++
			}
		}
	}
	return changing, all
}

// done reports whether the cluster and all nodes of its pools are at the release. What was requested last must have
// been considered, and accepted.
func (p *upgradeProgress) done() bool {
	for _, pool := range p.pools {
		if pool.err != nil || slices.ContainsFunc(pool.plan.GetNodes(), notUpdated) {
			return false
		}
	}
	conditions := p.version.GetStatus().GetConditions()
	return p.considered() && p.requested() == "" &&
		object.FindCondition(conditions, "Progressing").GetStatus() == "False" &&
		object.FindCondition(conditions, "ReleaseAccepted").GetStatus() != "Unknown"
}

// objections are the conditions that speak against the update, as lines.
func (p *upgradeProgress) objections() (lines []string) {
	for _, c := range p.version.GetStatus().GetConditions() {
		switch {
		case c.GetType() == "ReleaseAccepted" && c.GetStatus() != "True":
			lines = append(lines, "Not accepted ("+c.GetReason()+"): "+oneLine(c.GetMessage()))
		case c.GetType() == "Invalid" && c.GetStatus() == "True":
			lines = append(lines, "Invalid: "+oneLine(c.GetMessage()))
		case c.GetType() == "Failing" && c.GetStatus() == "True":
			line := "Failing: " + oneLine(c.GetMessage())
			if begun(p.version) {
				line += " (to go back: windlass adm upgrade --abort)"
			}
			lines = append(lines, line)
		}
	}
	return lines
}

// oneLine keeps a text of others from looking like another line of the output.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

func notUpdated(n *configv1.PlanMachineConfigPoolResponse_NodePlan) bool {
	return n.GetState() != "Updated"
}

// tree returns the lines of the status.
func (p *upgradeProgress) tree(now time.Time) []string {
	lines := p.headline(now)
	if line := pauseLine(p.version, now); line != "" {
		lines = append(lines, line)
	}
	if waits := p.version.GetStatus().GetProgress().GetWaits(); p.updating() && len(waits) > 0 {
		lines = append(lines, "Waits for:")
		var list []string
		for _, w := range waits {
			list = append(list, waitLine(w)+", since "+table.Age(w.GetSince(), now))
		}
		lines = append(lines, branches(list)...)
	}
	lines = append(lines, "Operators:")
	var list []string
	for _, o := range p.operators {
		list = append(list, o.GetMetadata().GetName()+": "+operatorState(o))
	}
	lines = append(lines, branches(list)...)
	list = nil
	for _, m := range p.memberParts() {
		list = append(list, m.name+": "+m.state)
	}
	if len(list) > 0 {
		lines = append(append(lines, "Members of etcd:"), branches(list)...)
	}
	list = nil
	for _, h := range p.hostParts() {
		list = append(list, h.name+": "+h.state)
	}
	if len(list) > 0 {
		lines = append(append(lines, "Hosts of another version:"), branches(list)...)
	}
	lines = append(lines, "Pools:")
	for i, pool := range p.pools {
		trunk, indent := "├─ ", "│  "
		if i == len(p.pools)-1 {
			trunk, indent = "└─ ", "   "
		}
		lines = append(lines, trunk+pool.name+": "+pool.state())
		for _, l := range branches(pool.nodes()) {
			lines = append(lines, indent+l)
		}
	}
	return lines
}

// branches returns items as those of a tree.
func branches(items []string) (lines []string) {
	for i, item := range items {
		trunk := "├─ "
		if i == len(items)-1 {
			trunk = "└─ "
		}
		lines = append(lines, trunk+item)
	}
	return lines
}

// headline says which update it is, and how far.
func (p *upgradeProgress) headline(now time.Time) []string {
	st := p.version.GetStatus()
	here := printer.Update(st.GetDesired().GetVersion(), st.GetDesired().GetImage())
	if !p.updating() {
		line := "Cluster version is " + here + "; "
		changing, all := p.changing()
		switch {
		case !p.considered():
			line += "what was requested last has not been considered yet."
		case p.requested() != "":
			line += "an update to " + p.requested() + " is requested and has not begun."
		case changing > 0:
			line += fmt.Sprintf("%d of %d nodes are not at it yet.", changing, all)
		default:
			line += "no update is in progress."
		}
		return append([]string{line}, p.objections()...)
	}
	what := "Installing " + here
	if before := completed(st.GetHistory()); before != nil && before.GetVersion() == st.GetDesired().GetVersion() {
		what = "Reconciling " + here
	} else if before != nil {
		what = fmt.Sprintf("Updating from %s to %s", printer.Update(before.GetVersion(), before.GetImage()), here)
	}
	var lines []string
	progress := st.GetProgress()
	if history := st.GetHistory(); len(history) > 0 && history[0].GetState() == "Partial" {
		started := history[0].GetStartedTime()
		what += ", started " + table.Age(started, now) + " ago"
		if left := remaining(progress, now.Sub(started.AsTime())); left != "" && pauseLine(p.version, now) == "" {
			lines = append(lines, left)
		}
	}
	if progress.GetTotal() > 0 {
		what += fmt.Sprintf(": %d of %d manifests are applied", progress.GetDone(), progress.GetTotal())
		if level := progress.GetRunLevel(); level != "" {
			what += ", run level " + level
		}
	}
	return append(append([]string{what}, lines...), p.objections()...)
}

// remaining estimates how long an update goes on. It is rough: a manifest may take no time, or wait for a reboot.
func remaining(p *updatev1.UpdateProgress, elapsed time.Duration) string {
	done, total := p.GetDone(), p.GetTotal()
	if done <= 0 || done >= total || elapsed <= 0 {
		return ""
	}
	left := time.Duration(float64(elapsed) / float64(done) * float64(total-done))
	return fmt.Sprintf(
		"Some %s more until all manifests are applied, if each takes as long as those so far; nodes come after that",
		left.Round(time.Second))
}

func waitLine(w *updatev1.UpdateWait) string {
	line := strings.ToLower(w.GetObject().GetKind()) + "/" + w.GetObject().GetName() + ": " + w.GetFact()
	if w.GetObserved() != "" {
		line += " (seen: " + w.GetObserved() + ")"
	}
	return oneLine(line)
}

// operatorState says at which version an operator is, and what is not as it should be.
func operatorState(o *updatev1.ClusterOperator) string {
	version := "version unknown"
	for _, v := range o.GetStatus().GetVersions() {
		if v.GetName() == "operator" {
			version = v.GetVersion()
		}
	}
	var states []string
	for _, want := range []struct{ typ, good string }{
		{"Available", "True"}, {"Degraded", "False"}, {"Progressing", "False"},
	} {
		c := object.FindCondition(o.GetStatus().GetConditions(), want.typ)
		if is := cmp.Or(c.GetStatus(), "Unknown"); is != want.good {
			text := want.typ + "=" + is
			if why := cmp.Or(c.GetMessage(), c.GetReason()); why != "" {
				text += " (" + why + ")"
			}
			states = append(states, text)
		}
	}
	if len(states) == 0 {
		states = []string{"Available"}
	}
	return oneLine(version + ", " + strings.Join(states, ", "))
}

// memberParts returns the members of etcd, each with its version.
func (p *upgradeProgress) memberParts() (out []part) {
	if p.quorumErr != nil {
		return []part{{"not known", oneLine(status.Convert(p.quorumErr).Message())}}
	}
	for _, m := range p.members {
		state := "etcd " + printer.Etcd(m)
		if !m.GetHealthy() {
			state = oneLine("unhealthy: " + m.GetMessage())
		}
		out = append(out, part{cmp.Or(m.GetName(), m.GetId()), state})
	}
	return out
}

// hostParts returns the hosts on which `windlass host run` is of another version than the release brings.
func (p *upgradeProgress) hostParts() (out []part) {
	if p.hostsErr != nil {
		return []part{{"not known", oneLine(status.Convert(p.hostsErr).Message())}}
	}
	for _, h := range p.hosts {
		is := cmp.Or(h.GetStatus().GetAgentVersion(), "unknown")
		if p.host == "" || is == p.host {
			continue
		}
		state := fmt.Sprintf("version %s, and the release has %s", is, p.host)
		if h.GetStatus().GetPhase() == "Lost" {
			state += "; it is away since " + h.GetStatus().GetLastTransitionTime().AsTime().Format(time.RFC3339)
		}
		if !slices.Contains(h.GetSpec().GetRoles(), "control-plane") {
			state += "; releases do not update workers: install the package there"
		}
		out = append(out, part{h.GetMetadata().GetName(), state})
	}
	return out
}

// state says how many nodes of a pool are updated.
func (p poolProgress) state() string {
	if p.err != nil {
		return "not known: " + oneLine(status.Convert(p.err).Message())
	}
	updated := 0
	for _, n := range p.plan.GetNodes() {
		if !notUpdated(n) {
			updated++
		}
	}
	return fmt.Sprintf("%d of %d nodes are updated, %d unavailable of %d allowed", updated, len(p.plan.GetNodes()),
		p.plan.GetUnavailable(), p.plan.GetMaxUnavailable())
}

func (p poolProgress) nodes() (out []string) {
	for _, n := range p.plan.GetNodes() {
		out = append(out, n.GetNode()+": "+nodeState(n))
	}
	return out
}

func nodeState(n *configv1.PlanMachineConfigPoolResponse_NodePlan) string {
	if notUpdated(n) && n.GetReason() != "" {
		return oneLine(n.GetState() + ": " + n.GetReason())
	}
	return n.GetState()
}

// parts returns each thing of the update with its state, without times: what is the same is no change.
func (p *upgradeProgress) parts() (out []part) {
	st := p.version.GetStatus()
	out = append(out, part{"cluster version", object.FindCondition(st.GetConditions(), "Progressing").GetMessage()})
	for _, line := range p.objections() {
		what, why, _ := strings.Cut(line, ": ")
		out = append(out, part{what, why})
	}
	for _, w := range st.GetProgress().GetWaits() {
		name, state, _ := strings.Cut(waitLine(w), ": ")
		out = append(out, part{"waits for " + name, state})
	}
	for _, o := range p.operators {
		out = append(out, part{"operator " + o.GetMetadata().GetName(), operatorState(o)})
	}
	for _, m := range p.memberParts() {
		out = append(out, part{"member " + m.name, m.state})
	}
	for _, h := range p.hostParts() {
		out = append(out, part{"host " + h.name, h.state})
	}
	for _, pool := range p.pools {
		out = append(out, part{"pool " + pool.name, pool.state()})
		for _, n := range pool.plan.GetNodes() {
			out = append(out, part{"node " + n.GetNode(), nodeState(n)})
		}
	}
	return out
}
