package plan

import (
	"strings"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"github.com/windlass-dev/windlass/kit/machineconfig"
)

// driftRepair is the drift policy of a pool whose nodes put back what others change.
const driftRepair = "Repair"

// Repairing reports whether the nodes of a pool put back what others change. While it is paused, nothing is changed on
// them.
func Repairing(pool *configv1.MachineConfigPool) bool {
	return pool.GetSpec().GetDriftPolicy() == driftRepair && !pool.GetSpec().GetPaused()
}

// repairs returns what the agent of a node puts back by itself: each path of its configuration for whose change the
// policies require neither a drain nor a reboot. What is written of units is not read by any program: agents run them
// as the configuration says.
func repairs(v NodeView) []*configv1.PathRepair {
	if !v.Repair || v.Desired == nil || !done(v.Node) && !failed(v.Node) ||
		mark(v.Node, CurrentConfig) != mark(v.Node, DesiredConfig) {
		return nil
	}
	is, _ := machineconfig.Read(v.Desired, v.Desired)
	config, _ := parse(v.Desired.GetSpec().GetConfig(), "")
	stored := byPath(config)
	j := judge{policy: v.Policy, before: v.Desired, after: v.Desired}
	var out []*configv1.PathRepair
	for _, e := range is.Entries {
		path, c := "/"+e.Path, Change{}
		if _, ok := stored[path]; ok {
			j.file(path, &c)
		} else if strings.Contains(path, "/.ssh/") {
			j.user("", &c)
		}
		if !c.Action.Drains() {
			out = append(out, &configv1.PathRepair{Path: path, Services: c.Services})
		}
	}
	return out
}
