package plan

import (
	"slices"
	"strings"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"github.com/windlass-dev/windlass/kit/machineconfig"
	"google.golang.org/protobuf/proto"
)

// driftRepair is the drift policy of a pool whose nodes put back what others change.
const driftRepair = "Repair"

// Repairing reports whether the nodes of a pool put back what others change. While it is paused, nothing is changed on
// them; from is when a pause at now ends by itself, zero if none does.
func Repairing(pool *configv1.MachineConfigPool, now time.Time) (is bool, from time.Time) {
	if pool.GetSpec().GetDriftPolicy() != driftRepair {
		return false, time.Time{}
	}
	pause := Paused(pool, now)
	if pause.GetUntil() != nil {
		from = pause.GetUntil().AsTime()
	}
	return pause == nil, from
}

// Repairs returns what agents of a configuration put back by themselves: each path for whose change the policies
// require neither a drain nor a reboot, with what is done to services then. What is written of units is not read by any
// program: agents run them as the configuration says.
func Repairs(c *configv1.MachineConfig, policy *configv1.NodeDisruptionPolicy) []*configv1.PathRepair {
	is, _ := machineconfig.Read(c, c)
	config, _ := parse(c.GetSpec().GetConfig(), "")
	stored := byPath(config)
	j := judge{policy: policy, before: c, after: c}
	var out []*configv1.PathRepair
	for _, e := range is.Entries {
		path, c := "/"+e.Path, Change{}
		if _, ok := stored[path]; ok {
			j.file(path, &c)
		} else if strings.Contains(path, "/.ssh/") {
			j.user("", &c)
		}
		if c.Action.Drains() {
			continue
		}
		i := slices.IndexFunc(out, func(r *configv1.PathRepair) bool {
			return slices.EqualFunc(r.GetServices(), c.Services, func(a, b *configv1.ServiceAction) bool {
				return proto.Equal(a, b)
			})
		})
		if i < 0 {
			i, out = len(out), append(out, &configv1.PathRepair{Services: c.Services})
		}
		out[i].Paths = append(out[i].Paths, path)
	}
	return out
}
