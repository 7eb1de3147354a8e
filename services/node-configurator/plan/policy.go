package plan

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"github.com/windlass-dev/windlass/kit/machineconfig"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
)

// Types of actions. Source: NodeDisruptionPolicy of OpenShift.
const (
	actNone         = "None"
	actDrain        = "Drain"
	actReboot       = "Reboot"
	actReload       = "Reload"
	actRestart      = "Restart"
	actDaemonReload = "DaemonReload"
)

// defaults returns the policies that are in force without any of users. Source: MCO, which has the runtime of
// containers and the like read some of these files again. Here none of them has such a reader that outlives its work.
func defaults() *configv1.NodeDisruptionPolicy {
	act := func(typ string) []*configv1.NodeDisruptionPolicyAction {
		return []*configv1.NodeDisruptionPolicyAction{{Type: typ}}
	}
	p := &configv1.NodeDisruptionPolicy{Sshkey: &configv1.NodeDisruptionPolicySSHKey{Actions: act(actNone)}}
	for _, f := range []struct{ path, action string }{
		{"/etc/containers/policy.json", actNone},
		{"/etc/containers/registries.conf", actDrain},
		{"/etc/containers/registries.d", actNone},
		{"/etc/crio/policies", actNone},
		{"/etc/kubernetes/credential-providers", actNone},
		{"/etc/machine-config-daemon/no-reboot/containers-gpg.pub", actNone},
		{"/etc/nmstate/openshift", actNone},
		{"/etc/pki/ca-trust/source/anchors/openshift-config-user-ca-bundle.crt", actNone},
		{"/var/lib/kubelet/config.json", actNone},
	} {
		p.Files = append(p.Files, &configv1.NodeDisruptionPolicyFile{Path: f.path, Actions: act(f.action)})
	}
	return p
}

// Policies returns the policies in force: the defaults, and those of users, which replace defaults of the same path. c
// may be nil.
func Policies(c *configv1.MachineConfiguration) *configv1.NodeDisruptionPolicy {
	out, own := defaults(), c.GetSpec().GetNodeDisruptionPolicy()
	for _, f := range own.GetFiles() {
		same := func(d *configv1.NodeDisruptionPolicyFile) bool { return d.GetPath() == f.GetPath() }
		out.Files = append(slices.DeleteFunc(out.Files, same), f)
	}
	slices.SortFunc(out.Files, func(a, b *configv1.NodeDisruptionPolicyFile) int {
		return strings.Compare(a.GetPath(), b.GetPath())
	})
	out.Units = slices.SortedFunc(slices.Values(own.GetUnits()), func(a, b *configv1.NodeDisruptionPolicyUnit) int {
		return strings.Compare(a.GetName(), b.GetName())
	})
	if own.GetSshkey() != nil {
		out.Sshkey = own.GetSshkey()
	}
	return out
}

// PolicyStatus returns the status of c: what is in force.
func PolicyStatus(c *configv1.MachineConfiguration) *configv1.MachineConfigurationStatus {
	return &configv1.MachineConfigurationStatus{
		ObservedGeneration:         proto.Int32(int32(c.GetMetadata().GetGeneration())),
		NodeDisruptionPolicyStatus: &configv1.NodeDisruptionPolicyStatus{ClusterPolicies: Policies(c)},
	}
}

// judge decides what changes require of a node by its policies.
type judge struct {
	policy        *configv1.NodeDisruptionPolicy
	before, after *configv1.MachineConfig

	was, is map[string]machineconfig.Unit // enabled units by name; nil until one is asked for
}

// file decides by the policy with the longest path that is p or above it.
func (j *judge) file(p string, c *Change) {
	var best *configv1.NodeDisruptionPolicyFile
	for _, f := range j.policy.GetFiles() {
		at := f.GetPath()
		if (p == at || strings.HasPrefix(p, strings.TrimSuffix(at, "/")+"/")) && len(at) >= len(best.GetPath()) {
			best = f
		}
	}
	j.decide(best.GetActions(), c)
}

func (j *judge) unit(name string, c *Change) {
	for _, u := range j.policy.GetUnits() {
		if u.GetName() == name {
			j.decide(u.GetActions(), c)
			return
		}
	}
	c.Action = Reboot
}

// user decides about a user; only SSH keys are ever put in force.
func (j *judge) user(_ string, c *Change) { j.decide(j.policy.GetSshkey().GetActions(), c) }

// decide has a change require some actions; none at all means that there is no policy.
func (j *judge) decide(actions []*configv1.NodeDisruptionPolicyAction, c *Change) {
	if len(actions) == 0 {
		c.Action = Reboot
	}
	for _, a := range actions {
		switch a.GetType() {
		case actNone, actDaemonReload:
		case actDrain:
			c.Action = max(c.Action, Drain)
		case actReload:
			j.service(a.GetReload().GetServiceName(), true, c)
		case actRestart:
			j.service(a.GetRestart().GetServiceName(), false, c)
		default:
			c.Action = Reboot
		}
	}
	if c.Action == Reboot {
		c.Services = nil
	}
}

// service has a change require that a service is restarted or reloaded. What an agent cannot do so becomes a reboot,
// after which everything has read its configuration.
func (j *judge) service(name string, reload bool, c *Change) {
	if j.is == nil {
		j.was, j.is = enabledUnits(j.before), enabledUnits(j.after)
	}
	u, runs := j.is[name]
	_, ran := j.was[name]
	switch {
	case !runs && ran: // it ends with this change
	case !runs:
		c.Action, c.Why = Reboot, fmt.Sprintf("the node has no enabled unit %q", name)
	case reload && len(u.Reload) == 0:
		c.Action, c.Why = Reboot, fmt.Sprintf("the unit %q has no ExecReload", name)
	default:
		c.Action = max(c.Action, Restart)
		c.Services = append(c.Services, &configv1.ServiceAction{Name: name, Reload: reload})
	}
}

// enabledUnits returns the enabled services of a configuration by name.
func enabledUnits(c *configv1.MachineConfig) map[string]machineconfig.Unit {
	out := map[string]machineconfig.Unit{}
	is, _ := machineconfig.Read(c, c)
	for _, u := range is.Units {
		out[u.Name] = u
	}
	return out
}

// unitName is the name of a unit with its type. Source: systemd.unit(5), and OpenShift's rule for services.
var unitName = regexp.MustCompile(`^[a-zA-Z0-9:._@\\-]{1,240}\.` +
	`(service|socket|device|mount|automount|swap|target|path|timer|slice|scope)$`)

// PolicyFaults returns what is wrong with policies beyond the shape of their messages.
func PolicyFaults(p *configv1.NodeDisruptionPolicy, at string) []object.Fault {
	var bad []object.Fault
	seen := map[string]bool{} // a path begins with a slash, a unit does not
	for i, f := range p.GetFiles() {
		at := fmt.Sprintf("%s.files[%d]", at, i)
		switch name := f.GetPath(); {
		case !path.IsAbs(name) || path.Clean(name) != name:
			bad = append(bad, object.Faultf(at+".path", "is %q, must be an absolute path without . or .. or a slash at its end",
				name))
		case seen[name]:
			bad = append(bad, object.Faultf(at+".path", "%q is there twice", name))
		}
		seen[f.GetPath()] = true
		bad = append(bad, actionFaults(f.GetActions(), at)...)
	}
	for i, u := range p.GetUnits() {
		at := fmt.Sprintf("%s.units[%d]", at, i)
		switch name := u.GetName(); {
		case !unitName.MatchString(name):
			bad = append(bad, object.Faultf(at+".name", "is %q, must be the name of a unit, such as chronyd.service", name))
		case seen[name]:
			bad = append(bad, object.Faultf(at+".name", "%q is there twice", name))
		}
		seen[u.GetName()] = true
		bad = append(bad, actionFaults(u.GetActions(), at)...)
	}
	if p.GetSshkey() != nil {
		bad = append(bad, actionFaults(p.GetSshkey().GetActions(), at+".sshkey")...)
	}
	return bad
}

func actionFaults(actions []*configv1.NodeDisruptionPolicyAction, at string) []object.Fault {
	var bad []object.Fault
	for i, a := range actions {
		at := fmt.Sprintf("%s.actions[%d]", at, i)
		typ := a.GetType()
		if len(actions) > 1 && (typ == actNone || typ == actReboot) {
			bad = append(bad, object.Faultf(at+".type", "%s must be the only action", typ))
		}
		for _, s := range []struct {
			field, typ string
			service    *configv1.NodeDisruptionPolicyService
		}{{"reload", actReload, a.GetReload()}, {"restart", actRestart, a.GetRestart()}} {
			name := s.service.GetServiceName()
			switch {
			case typ != s.typ && s.service != nil:
				bad = append(bad, object.Faultf(at+"."+s.field, "must not be given for the type %s", typ))
			case typ == s.typ && !(unitName.MatchString(name) && strings.HasSuffix(name, ".service")):
				bad = append(bad, object.Faultf(at+"."+s.field+".serviceName",
					"is %q, must be the name of a service, such as chronyd.service", name))
			}
		}
	}
	return bad
}
