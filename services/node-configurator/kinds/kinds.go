// Package kinds says what machine configurations, their settings and pools are beyond the shape of their messages:
// which writes are refused.
package kinds

import (
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"time"

	"buf.build/go/protovalidate"
	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/clusteroperator"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/node-configurator/plan"
)

// Nodes are the nodes of the cluster, as far as they are known.
type Nodes interface {
	Objects() iter.Seq[*nodev1.Node]
	IsSynced() bool
}

// Tables are the records of this service.
type Tables struct {
	Configs  *resource.Table[*configv1.MachineConfig]
	Pools    *resource.Table[*configv1.MachineConfigPool]
	Settings *resource.Table[*configv1.MachineConfiguration]
	nodes    Nodes
}

// New returns the tables over a store. Nothing is read before they run.
func New(st *store.Store, validator protovalidate.Validator, nodes Nodes, log *slog.Logger) *Tables {
	t := &Tables{nodes: nodes}
	t.Configs = resource.NewTable(st, validator, resource.Config[*configv1.MachineConfig]{
		Validate: plan.Faults, ValidateUpdate: unchanged, Admit: t.admitConfig, Whole: true, Log: log,
	})
	t.Pools = resource.NewTable(st, validator, resource.Config[*configv1.MachineConfigPool]{
		Validate: poolFaults, Admit: t.admitPool, Log: log,
	})
	t.Settings = resource.NewTable(st, validator, resource.Config[*configv1.MachineConfiguration]{
		Validate: settingsFaults, Admit: admitSettings, Log: log,
	})
	return t
}

// uses calls f with each machine configuration that a pool or a node uses, and with the kind and the name of that. A
// use may come more than once.
func (t *Tables) uses(f func(config, kind, name string)) {
	for p := range t.Pools.Objects() {
		name := p.GetMetadata().GetName()
		f(p.GetSpec().GetConfiguration().GetName(), "pool", name)
		f(p.GetStatus().GetConfiguration().GetName(), "pool", name)
		f(p.GetSpec().GetPin().GetConfiguration(), "pool", name)
		for _, h := range p.GetStatus().GetHistory()[:min(len(p.GetStatus().GetHistory()), 2)] {
			f(h.GetName(), "pool", name) // where it goes back to
		}
	}
	for n := range t.nodes.Objects() {
		marks := n.GetMetadata().GetAnnotations()
		f(marks[plan.CurrentConfig], "node", n.GetMetadata().GetName())
		f(marks[plan.DesiredConfig], "node", n.GetMetadata().GetName())
	}
}

// usersOf returns the pools and nodes that use a rendered configuration, for people.
func (t *Tables) usersOf(config string) []string {
	var out []string
	t.uses(func(used, kind, name string) {
		if text := fmt.Sprintf("%s %q", kind, name); used == config && !slices.Contains(out, text) {
			out = append(out, text)
		}
	})
	return out
}

// Unused returns the rendered configurations of a pool that no pool and no node uses, in any order. The nodes must be
// synced.
func (t *Tables) Unused(pool string) []*configv1.MachineConfig {
	var out []*configv1.MachineConfig
	used := map[string]bool{}
	t.uses(func(config, _, _ string) { used[config] = true })
	for cfg := range t.Configs.Objects() {
		name := cfg.GetMetadata().GetName()
		if plan.OfPool(cfg, pool) && !used[name] {
			out = append(out, cfg)
		}
	}
	return out
}

func (t *Tables) admitConfig(w *resource.Write[*configv1.MachineConfig]) error {
	switch {
	case w.Deletes():
		return t.admitDeletion(w.Old.GetMetadata().GetName())
	case !w.Own && w.Creates() && plan.IsRendered(w.New.GetMetadata().GetName()):
		return rpcerr.Forbidden(fmt.Sprintf("machine configs whose names begin with %q are made by node-configurator alone",
			plan.RenderedPrefix))
	}
	if now := w.New.GetSpec().GetKernelArguments(); len(now) > 0 && !w.Own &&
		!slices.Equal(now, w.Old.GetSpec().GetKernelArguments()) {
		w.Warn("spec.kernelArguments: machines of the providers local and docker share the kernel of their host: the " +
			"arguments are in their boot entry, and no kernel reads them")
	}
	return nil
}

// admitDeletion keeps a rendered configuration while it is in use: a node without its own can neither be compared nor
// go back to it.
func (t *Tables) admitDeletion(name string) error {
	if !plan.IsRendered(name) {
		return nil
	}
	if !t.nodes.IsSynced() {
		return rpcerr.Unavailable("which nodes use the configuration is not known yet")
	}
	if users := t.usersOf(name); len(users) > 0 {
		return rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION, "machineconfigs/"+name,
			"is in use by "+strings.Join(users, ", "))
	}
	return nil
}

func unchanged(old, c *configv1.MachineConfig) []object.Fault {
	if plan.IsRendered(c.GetMetadata().GetName()) && !proto.Equal(old.GetSpec(), c.GetSpec()) {
		return []object.Fault{
			{Path: "spec", Description: "cannot be changed: a rendered configuration is named after its content"},
		}
	}
	return nil
}

// admitPool leaves what only this service writes as it was, and has a pin, a pause and a waiver say whose they are.
func (t *Tables) admitPool(w *resource.Write[*configv1.MachineConfigPool]) error {
	if w.Own || w.Deletes() {
		return nil
	}
	old, p := w.Old, w.New
	if old != nil && !proto.Equal(old.GetStatus(), p.GetStatus()) {
		return rpcerr.Forbidden("the status of a machine config pool is written by node-configurator alone")
	}
	if p.GetSpec() != nil {
		p.Spec.Configuration = old.GetSpec().GetConfiguration()
		p.Spec.Pin = plan.Pinning(old.GetSpec().GetPin(), p.GetSpec().GetPin(), w.By.User, time.Now())
		p.Spec.WindowWaiver = plan.Waiving(old.GetSpec().GetWindowWaiver(), p.GetSpec().GetWindowWaiver(), w.By.User,
			time.Now())
		if bad := plan.Pausing(old.GetSpec(), p.Spec, w.By.User, time.Now()); len(bad) > 0 {
			return rpcerr.Invalid(bad...)
		}
	}
	if pin := p.GetSpec().GetPin().GetConfiguration(); pin != "" && pin != old.GetSpec().GetPin().GetConfiguration() {
		cfg, _ := t.Configs.Lookup("", pin)
		if why := plan.PinFault(p, cfg); why != "" {
			return rpcerr.Invalid(object.Fault{Path: "spec.pin.configuration", Description: why})
		}
	}
	was, is := old.GetMetadata().GetAnnotations(), p.GetMetadata().GetAnnotations()
	if was[clusteroperator.ReleaseAnnotation] != is[clusteroperator.ReleaseAnnotation] &&
		w.By.User != identity.ServiceUser("update-orchestrator") {
		return rpcerr.Forbidden("the annotation " + clusteroperator.ReleaseAnnotation +
			" is written by update-orchestrator alone, which has seen that the nodes are at the release")
	}
	return nil
}

func settingsFaults(c *configv1.MachineConfiguration) []object.Fault {
	return plan.PolicyFaults(c.GetSpec().GetNodeDisruptionPolicy(), "spec.nodeDisruptionPolicy")
}

// admitSettings leaves what only this service writes as it was.
func admitSettings(w *resource.Write[*configv1.MachineConfiguration]) error {
	if !w.Own && !w.Deletes() && !w.Creates() && !proto.Equal(w.Old.GetStatus(), w.New.GetStatus()) {
		return rpcerr.Forbidden("the status of the machine configuration is written by node-configurator alone")
	}
	return nil
}

func poolFaults(p *configv1.MachineConfigPool) []object.Fault {
	var bad []object.Fault
	for _, s := range []struct {
		path string
		sel  *metav1.LabelSelector
	}{
		{"spec.machineConfigSelector", p.GetSpec().GetMachineConfigSelector()},
		{"spec.nodeSelector", p.GetSpec().GetNodeSelector()},
	} {
		if len(s.sel.GetMatchLabels()) == 0 && len(s.sel.GetMatchExpressions()) == 0 {
			bad = append(bad, object.Fault{Path: s.path, Description: "must not be empty: it would select everything"})
			continue
		}
		_, faults := object.LabelSelector(s.sel, s.path)
		bad = append(bad, faults...)
	}
	bad = append(bad, plan.WaveFaults(p.GetSpec().GetWaves())...)
	if text := plan.MaxUnavailableFault(p.GetSpec().GetMaxUnavailable()); text != "" {
		bad = append(bad, object.Fault{Path: "spec.maxUnavailable", Description: text})
	}
	return bad
}
