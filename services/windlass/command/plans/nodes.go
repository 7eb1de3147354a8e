package plans

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

// columns is how wide the text of a plan of nodes is at most, as that of explain.
const columns = 120

// columned prints rows within that width.
func (p *planText) columned(rows [][]string) {
	if p.err == nil {
		p.err = table.NewWithin(p.out, columns).Print(rows...)
	}
}

// paragraph prints a text within that width, with further lines indented below its first word.
func (p *planText) paragraph(label, text string) {
	indent := strings.Repeat(" ", len(label))
	p.printf("%s%s\n", label, strings.Join(table.Fold(text, columns-len(label)), "\n"+indent))
}

func newEvictions(e *session.Env) *cobra.Command {
	f := &flags{}
	var events, now string
	var span time.Duration
	var silence map[string]string
	cmd := command(e, "evictions [NODE | -f FILE]", "Show which pods are evicted because of taints, and when", f, 1,
		func(ctx context.Context, c *client.Client, args []string) error {
			req := &schedulingv1.PlanEvictionsRequest{NodeName: strings.Join(args, "")}
			if len(f.Names) > 0 && len(args) > 0 {
				return errors.New("specify either a node or -f")
			}
			if len(f.Names) == 0 && (events != "" || now != "" || span != 0 || len(silence) > 0) {
				return errors.New("--events, --span, --silence and --now are for the nodes of -f")
			}
			if len(f.Names) > 0 {
				if err := readEvictions(e, f, events, req); err != nil {
					return err
				}
				at, err := planTime(now)
				if err != nil {
					return err
				}
				agents, err := silent(silence)
				if err != nil {
					return err
				}
				req.Agents = append(req.Agents, agents...)
				if at != nil {
					req.Now = at
				}
				if span != 0 {
					req.Span = durationpb.New(span)
				}
			}
			resp, err := schedulingv1.NewEvictionServiceClient(c.Conn()).PlanEvictions(ctx, req)
			if err != nil {
				return err
			}
			return answer(e, f, resp, func(p *planText) { p.evictions(resp) })
		})
	cmd.Long = cmd.Short + `.

Kinds in a file: Node and Pod, instead of those in the cluster. For these, --span shows what is done over time, while
the events of --events happen. An agent of such a node is as the node's Ready condition says, unless --silence or
--events says otherwise.

The file of --events is an object with the fields events, agents, memory, disrupted, now, bootId, uptime and span of
PlanEvictionsRequest. Each event has the field after ("90s"), and one of taintAdded, taintRemoved, nodeSilent,
nodeHeard, nodeReports, podBound, podGone, nodeCreated, nodeDeleted and clockSet.`
	cmd.Flags().StringVar(&events, "events", "", "file with what happens to the nodes and pods of -f")
	cmd.Flags().DurationVar(&span, "span", 0, "for how long to plan, such as 10m, up to 168h")
	silenceFlag(cmd, &silence)
	cmd.Flags().StringVar(&now, "now", "", "time to plan for, such as 2026-11-21T12:00:00Z")
	cmd.ValidArgsFunction = target.CompleteNames(e, "node")
	cmd.Aliases = []string{"eviction"}
	return cmd
}

func silenceFlag(cmd *cobra.Command, silence *map[string]string) {
	cmd.Flags().StringToStringVar(silence, "silence", nil,
		"time since the last heartbeat of a node of -f, as NODE=50s; may be repeated")
}

// silent returns the agents of the flag --silence.
func silent(silence map[string]string) ([]*nodev1.AgentState, error) {
	var out []*nodev1.AgentState
	for node, text := range silence {
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 {
			return nil, fmt.Errorf("--silence %s=%s: must be a duration such as 50s", node, text)
		}
		out = append(out, &nodev1.AgentState{Node: node, Silence: durationpb.New(d)})
	}
	slices.SortFunc(out, func(a, b *nodev1.AgentState) int { return strings.Compare(a.GetNode(), b.GetNode()) })
	return out, nil
}

// readEvictions reads the nodes and pods of -f, and the file of events if there is one.
func readEvictions(e *session.Env, f *flags, events string, req *schedulingv1.PlanEvictionsRequest) error {
	g, err := readGiven(e, f, "Node", "Pod")
	if err != nil {
		return err
	}
	if events != "" {
		raw, err := readAll(events, e.In)
		if err != nil {
			return err
		}
		body, err := manifest.JSON(raw)
		if err == nil {
			err = manifest.Decode(body, req)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", events, err)
		}
		if req.GetNodeName() != "" || req.GetNode() != nil || req.GetNodes() != nil || req.GetPods() != nil {
			return fmt.Errorf("%s: nodes and pods are read from the files of -f", events)
		}
	}
	req.Nodes = &nodev1.NodeList{Items: all[*nodev1.Node](g)}
	req.Pods = &schedulingv1.PodList{Items: all[*schedulingv1.Pod](g)}
	return nil
}

func (p *planText) evictions(r *schedulingv1.PlanEvictionsResponse) {
	if len(r.GetSteps()) > 0 {
		rows := [][]string{{"AFTER", "ACTION", "OBJECT", "REASON"}}
		for _, s := range r.GetSteps() {
			rows = append(rows, []string{
				s.GetAfter().AsDuration().Round(time.Millisecond).String(), s.GetAction(), subject(s),
				s.GetReason(),
			})
		}
		p.columned(rows)
		p.printf("\n")
	}
	if r.GetPlannedUntil() != nil {
		p.printf("State at %s:\n\n", r.GetPlannedUntil().AsTime().UTC().Format(time.RFC3339))
	}
	if len(r.GetEvictions()) == 0 {
		p.printf("No pods on nodes with a NoExecute taint.\n")
	} else {
		rows := [][]string{{"POD", "NODE", "VERDICT", "TIME", "REASON"}}
		for _, v := range r.GetEvictions() {
			rows = append(rows, []string{
				v.GetNamespace() + "/" + v.GetName(), v.GetNode(), v.GetVerdict(), clock(v.GetTime()), v.GetReason(),
			})
		}
		p.columned(rows)
	}
	if len(r.GetNodes()) == 0 {
		return
	}
	rows := [][]string{{"NODE", "ZONE", "STATE", "NODES/S", "PLACE", "TAINTED AT", "NEXT AT"}}
	waits := map[string][]string{}
	for _, n := range r.GetNodes() {
		e := n.GetEvictions()
		rate, place := "", ""
		if e.GetZoneState() != "" {
			rate = perSecond(e.GetNodesPerSecond())
		}
		if e.GetQueuePosition() > 0 {
			place = strconv.Itoa(int(e.GetQueuePosition()))
		}
		rows = append(rows, []string{
			n.GetName(), e.GetZone(), e.GetZoneState(), rate, place, clock(e.GetTurnTime()), clock(e.GetNextDeadline()),
		})
		if w := n.GetWaitsFor(); w != "" {
			waits[w] = append(waits[w], n.GetName())
		}
	}
	p.printf("\n")
	p.columned(rows)
	for i, why := range slices.Sorted(maps.Keys(waits)) {
		if i == 0 {
			p.printf("\nNodes that get no NoExecute taint now:\n")
		}
		p.paragraph("  - ", listed(waits[why])+": "+why)
	}
}

// listed returns the first of some names, and how many there are beside them.
func listed(names []string) string {
	const most = 10
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// subject returns what a step is about.
func subject(s *schedulingv1.PlanEvictionsResponse_Step) string {
	switch {
	case s.GetPod() != nil:
		return "pod " + s.GetPod().GetNamespace() + "/" + s.GetPod().GetName() + " on " + s.GetNode()
	case s.GetAction() == "ChangeZone":
		return s.GetValue()
	case s.GetValue() == "":
		return "all zones"
	}
	return "node " + s.GetNode() + ": " + s.GetValue()
}

func perSecond(rate float64) string { return strconv.FormatFloat(rate, 'g', 3, 64) }

func newZones(e *session.Env) *cobra.Command {
	f := &flags{}
	var now string
	var silence map[string]string
	cmd := command(e, "zones [-f FILE]",
		"Show the state of each zone, and which node's pods have to leave next because it is not ready", f, 0,
		func(ctx context.Context, c *client.Client, _ []string) error {
			req := &nodev1.PlanZonesRequest{}
			if len(f.Names) == 0 && (now != "" || len(silence) > 0) {
				return errors.New("--silence and --now are for the nodes of -f")
			}
			if len(f.Names) > 0 {
				g, err := readGiven(e, f, "Node")
				if err != nil {
					return err
				}
				req.Nodes = &nodev1.NodeList{Items: all[*nodev1.Node](g)}
				if req.Now, err = planTime(now); err != nil {
					return err
				}
				if req.Agents, err = silent(silence); err != nil {
					return err
				}
			}
			resp, err := nodev1.NewNodeServiceClient(c.Conn()).PlanZones(ctx, req)
			if err != nil {
				return err
			}
			return answer(e, f, resp, func(p *planText) { p.zones(resp) })
		})
	silenceFlag(cmd, &silence)
	cmd.Flags().StringVar(&now, "now", "", "time to plan for, such as 2026-11-21T12:00:00Z")
	cmd.Aliases = []string{"zone"}
	return cmd
}

func (p *planText) zones(r *nodev1.PlanZonesResponse) {
	if r.GetDisrupted() {
		p.paragraph("Evictions are stopped in all zones: ", r.GetReason())
		p.printf("\n")
	}
	rows := [][]string{{"ZONE", "STATE", "NODES", "LOST", "NODES/S", "WAITING", "NEXT", "AT"}}
	for _, z := range r.GetZones() {
		rows = append(rows, []string{
			table.OrNone(z.GetZone()), z.GetState(), strconv.Itoa(int(z.GetNodes())), strconv.Itoa(int(z.GetLost())),
			perSecond(z.GetNodesPerSecond()), strconv.Itoa(int(z.GetWaitingCount())), table.OrNone(z.GetNextNode()),
			table.OrNone(clock(z.GetNextTime())),
		})
	}
	p.columned(rows)
	for _, z := range r.GetZones() {
		if z.GetState() != "Normal" || z.GetPreviousState() != z.GetState() {
			p.printf("\n")
			p.paragraph("", "The "+z.GetReason()+".")
		}
		if z.GetNextNode() != "" {
			p.printf("\n")
			p.paragraph("", fmt.Sprintf("Node %s of zone %s gets a NoExecute taint next: %s.", z.GetNextNode(),
				table.OrNone(z.GetZone()), z.GetNextReason()))
		}
	}
}

func newTaints(e *session.Env) *cobra.Command {
	f := &flags{}
	var now string
	var silence time.Duration
	cmd := command(e, "taints (NODE | -f FILE)", "Show which taints of a node are added, removed and kept, and why", f, 1,
		func(ctx context.Context, c *client.Client, args []string) error {
			name, err := f.name(args, "")
			if err != nil {
				return err
			}
			req := &nodev1.PlanTaintsRequest{Name: name}
			if len(f.Names) == 0 && (now != "" || silence != 0) {
				return errors.New("--silence and --now are for the node of -f")
			}
			if len(f.Names) > 0 {
				g, err := readGiven(e, f, "Node")
				if err != nil {
					return err
				}
				if req.Node, err = one[*nodev1.Node](g); err != nil {
					return err
				}
				if req.Now, err = planTime(now); err != nil {
					return err
				}
				if silence != 0 {
					req.Agent = &nodev1.AgentState{Silence: durationpb.New(silence)}
				}
			}
			resp, err := nodev1.NewNodeServiceClient(c.Conn()).PlanTaints(ctx, req)
			if err != nil {
				return err
			}
			return answer(e, f, resp, func(p *planText) { p.taints(resp) })
		})
	cmd.Flags().DurationVar(&silence, "silence", 0, "time since the last heartbeat of the node of -f, such as 50s")
	cmd.Flags().StringVar(&now, "now", "", "time to plan for, such as 2026-11-21T12:00:00Z")
	cmd.ValidArgsFunction = target.CompleteNames(e, "node")
	cmd.Aliases = []string{"taint"}
	return cmd
}

func (p *planText) taints(r *nodev1.PlanTaintsResponse) {
	if len(r.GetChanges()) == 0 {
		p.printf("The node has no taints, and gets none.\n")
		return
	}
	rows := [][]string{{"CHANGE", "TAINT", "BECAUSE"}}
	for _, c := range r.GetChanges() {
		rows = append(rows, []string{
			c.GetChange(), printer.Taints([]*nodev1.Taint{c.GetTaint()}), c.GetReason(),
		})
	}
	p.columned(rows)
}
