package plan

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/maintenance"
	"github.com/windlass-dev/windlass/kit/object"
)

// windowsAgain is how soon it is decided again while maintenance windows are not known: update-orchestrator restarts
// within seconds.
const windowsAgain = time.Second

// Windows are the maintenance windows of the cluster.
type Windows struct {
	List    []*updatev1.MaintenanceWindow
	Unknown string // why they are not known yet; empty if they are
}

// For returns whether nodes of a pool may begin to change to a configuration at now. While the windows are not known,
// none begins.
func (w Windows) For(pool *configv1.MachineConfigPool, config string, now time.Time) maintenance.State {
	switch {
	case pool == nil, config != "" && pool.GetSpec().GetWindowWaiver().GetConfiguration() == config:
		return maintenance.State{}
	case w.Unknown != "":
		return maintenance.State{
			Waits: "waits until the maintenance windows are known: " + w.Unknown, Wake: now.Add(windowsAgain),
		}
	}
	return maintenance.ForPool(w.List, pool.GetMetadata(), now)
}

// WindowFaults returns what is wrong with the windows of a request.
func WindowFaults(list *updatev1.MaintenanceWindowList) []object.Fault {
	const most = 50 // each is computed for each plan, and takes some 10 ms to check
	if len(list.GetItems()) > most {
		return []object.Fault{object.Faultf("maintenanceWindows.items", "must have at most %d windows", most)}
	}
	var out []object.Fault
	for i, w := range list.GetItems() {
		for _, f := range maintenance.Faults(w) {
			f.Path = fmt.Sprintf("maintenanceWindows.items[%d].%s", i, f.Path)
			out = append(out, f)
		}
	}
	return out
}

// Waiving returns a waiver as it is stored: by whom and since when is written here, and stays if nothing else changes.
func Waiving(old, next *configv1.MachineConfigPoolWindowWaiver, user string, now time.Time,
) *configv1.MachineConfigPoolWindowWaiver {
	if next == nil {
		return nil
	}
	out := proto.CloneOf(next)
	out.By, out.Since = old.GetBy(), old.GetSince()
	if !proto.Equal(out, old) {
		out.By, out.Since = user, timestamppb.New(now.UTC().Truncate(time.Second))
	}
	return out
}

// window returns whether nodes of the pool may begin now.
func (v View) window() maintenance.State {
	if v.gate != nil {
		return *v.gate
	}
	return v.Windows.For(v.Pool, v.Pool.GetSpec().GetConfiguration().GetName(), v.Now)
}

// downFor reports whether a node is down, or is being emptied, for its configuration.
func (v View) downFor(n *nodev1.Node) bool {
	return v.Drains[n.GetMetadata().GetName()] != nil || restartsFor(n)
}

// undisturbed reports whether a node that has its target is not taken down for it yet.
func (v View) undisturbed(n *nodev1.Node) bool { return v.changing(n) && !v.downFor(n) }
