package plan

import (
	"fmt"
	"slices"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// ConditionPinned is True while a pool is held at a former configuration, and absent otherwise.
const ConditionPinned = "Pinned"

// Pinning returns a pin as it is stored: by whom and since when is written here. The latter stays while it names the
// same configuration, the former while it also gives the same reason.
func Pinning(old, pin *configv1.MachineConfigPoolPin, by string, now time.Time) *configv1.MachineConfigPoolPin {
	if pin == nil {
		return nil
	}
	next := proto.CloneOf(pin)
	if next.By, next.Since = by, timestamppb.New(now.UTC().Truncate(time.Second)); old.GetConfiguration() ==
		next.GetConfiguration() {
		if next.Since = old.GetSince(); old.GetReason() == next.GetReason() {
			next.By = old.GetBy()
		}
	}
	return next
}

// PinFault returns why a pool cannot be pinned to a configuration, of which cfg is what is stored; empty if it can.
func PinFault(pool *configv1.MachineConfigPool, cfg *configv1.MachineConfig) string {
	name := pool.GetMetadata().GetName()
	if cfg == nil || !OfPool(cfg, name) || object.Deleting(cfg) {
		return fmt.Sprintf("%q is no rendered configuration of the pool that is stored; see windlass rollout history "+
			"machineconfigpool/%s", pool.GetSpec().GetPin().GetConfiguration(), name)
	}
	return ""
}

// PinText says that a pool is pinned, by whom, and why, and how that ends.
func PinText(pool *configv1.MachineConfigPool) string {
	pin, why := pool.GetSpec().GetPin(), ""
	if pin.GetReason() != "" {
		why = ": " + pin.GetReason()
	}
	name := pool.GetMetadata().GetName()
	is := "is held"
	if pool.GetSpec().GetConfiguration().GetName() != pin.GetConfiguration() {
		is = "is to be held"
	}
	return fmt.Sprintf("pool %s %s at %s by %s since %s%s; changes of machine configs have no effect on it until "+
		"windlass rollout resume machineconfigpool/%s", name, is, pin.GetConfiguration(), pin.GetBy(),
		pin.GetSince().AsTime().UTC().Format(time.RFC3339), why, name)
}

// Held says why the nodes of a pool do not get what its machine configurations make at now; empty if they do.
func Held(pool *configv1.MachineConfigPool, rendered string, now time.Time) string {
	pin, pause := pool.GetSpec().GetPin().GetConfiguration(), Paused(pool, now)
	switch {
	case pin != "" && pin != rendered:
		return PinText(pool)
	case pause != nil:
		return PauseText(pool, pause)
	}
	return ""
}

// TargetOf returns the configuration that the nodes of a pool are to have: the one that it is pinned to, or what its
// machine configurations make together. For present see Render.
func TargetOf(pool *configv1.MachineConfigPool, configs, present []*configv1.MachineConfig) (Rendered, error) {
	pin := pool.GetSpec().GetPin().GetConfiguration()
	if pin == "" {
		return Render(pool, configs, present)
	}
	i := slices.IndexFunc(configs, func(c *configv1.MachineConfig) bool {
		return c.GetMetadata().GetName() == pin && !object.Deleting(c)
	})
	if i < 0 {
		return Rendered{}, fmt.Errorf("the configuration %s, at which the pool is held, is not stored any more", pin)
	}
	r := Rendered{Config: configs[i]}
	for _, known := range []*configv1.MachineConfigPoolConfiguration{
		pool.GetSpec().GetConfiguration(), pool.GetStatus().GetConfiguration(),
	} {
		if known.GetName() == pin && len(r.Sources) == 0 {
			for _, s := range known.GetSource() {
				r.Sources = append(r.Sources, s.GetName())
			}
		}
	}
	if why := obstacles(r.Config, nil, present); len(why) > 0 {
		return Rendered{}, fmt.Errorf("cannot be put in force: %s", some(why, "; "))
	}
	return r, nil
}
