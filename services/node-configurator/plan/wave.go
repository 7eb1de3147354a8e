package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/labels"
)

// States of waves.
const (
	waveDone     = "Done"
	waveSoaking  = "Soaking"
	waveUpdating = "Updating"
	waveWaiting  = "Waiting"
)

// WaveFaults returns what is wrong with the waves of a pool.
func WaveFaults(list []*configv1.MachineConfigPoolWave) []object.Fault {
	var out []object.Fault
	names := map[string]bool{}
	for i, w := range list {
		path := fmt.Sprintf("spec.waves[%d]", i)
		if names[w.GetName()] {
			out = append(out, object.Faultf(path+".name", "%q is the name of another wave", w.GetName()))
		}
		names[w.GetName()] = true
		if (w.GetNodeSelector() == nil) == (w.GetNodes() == nil) {
			out = append(out, object.Fault{Path: path, Description: "must have exactly one of nodeSelector and nodes"})
		}
		if w.GetNodeSelector() != nil {
			_, bad := object.LabelSelector(w.GetNodeSelector(), path+".nodeSelector")
			out = append(out, bad...)
		}
		if text := MaxUnavailableFault(w.GetNodes()); text != "" {
			out = append(out, object.Fault{Path: path + ".nodes", Description: text})
		}
		if soak, err := soakOf(w); err != nil || soak < 0 {
			out = append(out, object.Faultf(path+".soak", "%q is not a duration of 0 or more, such as 30m", w.GetSoak()))
		}
	}
	return out
}

func soakOf(w *configv1.MachineConfigPoolWave) (time.Duration, error) {
	if w.GetSoak() == "" {
		return 0, nil
	}
	return time.ParseDuration(w.GetSoak())
}

// wave is a wave of a pool, or the nodes that are in none, which come last.
type wave struct {
	title   string // for people
	soak    time.Duration
	nodes   int
	updated int      // nodes that have the configuration and are ready
	failed  []string // nodes that are degraded
	status  *configv1.MachineConfigPoolWaveStatus
	blocks  string // why no later wave begins; empty if it may
	since   time.Time
	ends    time.Time // of the soak, while it lasts
}

// waves are the waves of a pool, in order.
type waves struct {
	list []*wave
	of   map[string]int // position by node
}

// share returns how many of so many nodes a wave has: a number, or a percentage rounded up.
func share(v *structpb.Value, nodes int) int {
	if p, ok := v.GetKind().(*structpb.Value_StringValue); ok {
		percent, _ := strconv.Atoi(strings.TrimSuffix(p.StringValue, "%"))
		return (nodes*min(percent, 100) + 99) / 100
	}
	return int(v.GetNumberValue())
}

// wavesOf assigns the nodes of a pool to its waves, and says how far each is; nil if the pool has no waves. A node is
// in the first wave that selects it. A wave of a number of nodes has those that begin first of all that are in no wave
// before it.
func wavesOf(v View) *waves {
	spec := v.Pool.GetSpec().GetWaves()
	if len(spec) == 0 {
		return nil
	}
	out := &waves{of: map[string]int{}}
	// A node that is being deleted gets no configuration, and its wave does not wait for it.
	order := slices.DeleteFunc(inOrder(v.Members.Nodes), func(n *nodev1.Node) bool {
		return n.GetMetadata().GetDeletionTimestamp() != nil
	})
	take := func(w *wave, n *nodev1.Node) {
		out.of[n.GetMetadata().GetName()] = len(out.list)
		if failed(n) {
			w.failed = append(w.failed, n.GetMetadata().GetName())
		}
		if w.nodes++; done(n) && mark(n, DesiredConfig) == v.Pool.GetSpec().GetConfiguration().GetName() && ready(n) {
			w.updated++
		}
	}
	for _, s := range spec {
		w := &wave{title: "wave " + s.GetName(), status: &configv1.MachineConfigPoolWaveStatus{Name: s.GetName()}}
		w.soak, _ = soakOf(s) // validated when it was stored; a plan for a pool of a request takes it for none
		sel, bad := labels.Nothing(), []object.Fault(nil)
		if s.GetNodeSelector() != nil {
			sel, bad = object.LabelSelector(s.GetNodeSelector(), "")
		}
		most := share(s.GetNodes(), len(order))
		for _, n := range order {
			_, taken := out.of[n.GetMetadata().GetName()]
			selected := len(bad) == 0 && sel.Matches(labels.Set(n.GetMetadata().GetLabels()))
			if !taken && (selected || w.nodes < most) {
				take(w, n)
			}
		}
		out.list = append(out.list, w)
	}
	rest := &wave{title: "the wave of all other nodes", status: &configv1.MachineConfigPoolWaveStatus{}}
	for _, n := range order {
		if _, taken := out.of[n.GetMetadata().GetName()]; !taken {
			take(rest, n)
		}
	}
	out.list = append(out.list, rest)
	out.judge(v)
	return out
}

// judge says how far each wave is. When all nodes of a wave were updated and ready is known from the status of the
// pool: it counts for one configuration, and begins again when one of the nodes is not.
func (ws *waves) judge(v View) {
	now, target := v.Now.Truncate(time.Second), v.Pool.GetSpec().GetConfiguration().GetName()
	before := map[string]*configv1.MachineConfigPoolWaveStatus{}
	for _, st := range v.Pool.GetStatus().GetWaves() {
		if st.GetConfiguration() == target {
			before[st.GetName()] = st
		}
	}
	left := 0 // waves that are not complete
	for _, w := range ws.list {
		if w.updated < w.nodes {
			left++
		}
	}
	open := true
	for _, w := range ws.list {
		st, old := w.status, before[w.status.GetName()]
		st.Configuration = target
		st.MachineCount, st.UpdatedMachineCount = proto.Int32(int32(w.nodes)), proto.Int32(int32(w.updated))
		complete := w.updated == w.nodes
		if complete && w.nodes > 0 {
			if st.ReadyTime = old.GetReadyTime(); st.ReadyTime == nil {
				st.ReadyTime = timestamppb.New(now.Add(time.Second)) // not earlier than it is
				if now.Equal(v.Now) {
					st.ReadyTime = timestamppb.New(now)
				}
			}
		}
		ends := st.GetReadyTime().AsTime().Add(w.soak)
		switch {
		case !complete && open:
			left--
			st.State = waveUpdating
			w.blocks = fmt.Sprintf("waits for %s: %d of %d nodes are updated and ready", w.title, w.updated, w.nodes)
			if len(w.failed) > 0 {
				w.blocks += ", degraded: " + some(w.failed, ", ")
			}
		case !complete:
			left--
			st.State, w.blocks = waveWaiting, "waits for "+w.title
		case w.nodes > 0 && left > 0 && w.soak > 0 && v.Now.Before(ends):
			st.State, w.ends = waveSoaking, ends
			w.blocks = fmt.Sprintf("waits for %s, which soaks until %s", w.title, ends.UTC().Format(time.RFC3339))
		default:
			st.State = waveDone
		}
		if st.Since = timestamppb.New(now); old.GetState() == st.GetState() {
			st.Since = old.GetSince()
		}
		w.since = st.GetSince().AsTime()
		open = open && w.blocks == ""
	}
}

// before returns the first wave that a node waits for; nil if it waits for none.
func (ws *waves) before(n *nodev1.Node) *wave {
	if ws == nil {
		return nil
	}
	for _, w := range ws.list[:ws.of[n.GetMetadata().GetName()]] {
		if w.blocks != "" {
			return w
		}
	}
	return nil
}

// nameOf returns the name of the wave of a node; empty if it is in none.
func (ws *waves) nameOf(n *nodev1.Node) string {
	if ws == nil {
		return ""
	}
	return ws.list[ws.of[n.GetMetadata().GetName()]].status.GetName()
}

// current returns what the roll-out waits for, in one line; empty if no node waits for a wave.
func (ws *waves) current() string {
	if ws == nil {
		return ""
	}
	waits := false
	for _, w := range ws.list {
		waits = waits || w.status.GetState() == waveWaiting
	}
	for _, w := range ws.list {
		if w.blocks != "" && waits {
			return "later waves " + strings.Replace(w.blocks, "waits", "wait", 1)
		}
	}
	return ""
}

// wakes returns when the first soak ends; zero for none.
func (ws *waves) wakes() time.Time {
	var out time.Time
	if ws == nil {
		return out
	}
	for _, w := range ws.list {
		if !w.ends.IsZero() && (out.IsZero() || w.ends.Before(out)) {
			out = w.ends
		}
	}
	return out
}

// statuses returns the status of each wave; the last is that of the nodes of no wave, if there are any.
func (ws *waves) statuses() []*configv1.MachineConfigPoolWaveStatus {
	if ws == nil {
		return nil
	}
	var out []*configv1.MachineConfigPoolWaveStatus
	for i, w := range ws.list {
		if i < len(ws.list)-1 || w.nodes > 0 {
			out = append(out, w.status)
		}
	}
	return out
}
