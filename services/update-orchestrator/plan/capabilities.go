package plan

import (
	"fmt"
	"slices"
	"strings"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// ImplicitlyEnabled is the condition that says which capabilities are enabled although the spec does not ask for them.
const ImplicitlyEnabled = "ImplicitlyEnabledCapabilities"

// Sets of capabilities in spec.capabilities.baselineCapabilitySet. The sets of versions, such as v4.11, list the
// components of another product, and are refused.
const (
	CapabilitiesNone    = "None"     // no capability but those that are added
	CapabilitiesCurrent = "vCurrent" // all that the release knows; also the default
)

// Capabilities returns which capabilities are enabled in a release that knows some: those that the spec asks for, and
// those that were enabled before or come implicitly, since a capability that is enabled is never disabled. Source: the
// Cluster Version Operator's rules of capabilities.
func Capabilities(spec *updatev1.Capabilities, known, enabled, implied []string) *updatev1.CapabilitiesStatus {
	all := slices.Concat(asked(spec, known), enabled, implied)
	return &updatev1.CapabilitiesStatus{EnabledCapabilities: unique(all), KnownCapabilities: unique(known)}
}

// asked returns the capabilities of a release that the spec asks for.
func asked(spec *updatev1.Capabilities, known []string) []string {
	if spec.GetBaselineCapabilitySet() != CapabilitiesNone {
		return known
	}
	return slices.DeleteFunc(slices.Clone(known), func(name string) bool {
		return !slices.Contains(spec.GetAdditionalEnabledCapabilities(), name)
	})
}

func unique(names []string) []string {
	names = slices.Clone(names)
	slices.Sort(names)
	return slices.Compact(names)
}

// Enabled reports whether no capability is missing that an object needs.
func Enabled(needs, enabled []string) bool {
	return !slices.ContainsFunc(needs, func(name string) bool { return !slices.Contains(enabled, name) })
}

// ImplicitCondition returns the condition ImplicitlyEnabled for the capabilities of a cluster; nil while no release
// says which there are.
func ImplicitCondition(spec *updatev1.Capabilities, c *updatev1.CapabilitiesStatus) *metav1.Condition {
	if c == nil {
		return nil
	}
	kept := slices.DeleteFunc(slices.Clone(c.GetEnabledCapabilities()), func(name string) bool {
		return spec.GetBaselineCapabilitySet() != CapabilitiesNone ||
			slices.Contains(spec.GetAdditionalEnabledCapabilities(), name)
	})
	if len(kept) == 0 {
		return condition(ImplicitlyEnabled, False, "AsExpected", "Capabilities match configured spec")
	}
	return condition(ImplicitlyEnabled, True, "CapabilitiesImplicitlyEnabled",
		"The following capabilities could not be disabled: "+strings.Join(kept, ", "))
}

// Capable is an object of a release, with the capabilities that must be enabled for it.
type Capable struct {
	Object       *metav1.ObjectReference
	Capabilities []string
}

// Implied returns the capabilities that an update to a release enables: those of what releases brought before, which
// would else be left without a manifest.
func Implied(brought []*metav1.ObjectReference, next []Capable) []string {
	there := map[string]bool{}
	for _, o := range brought {
		there[Identity(o)] = true
	}
	var out []string
	for _, n := range next {
		if there[Identity(n.Object)] {
			out = append(out, n.Capabilities...)
		}
	}
	return unique(out)
}

// CapabilityFaults returns what is wrong with the capabilities of a spec, whatever the release.
func CapabilityFaults(spec *updatev1.Capabilities) []object.Fault {
	switch set := spec.GetBaselineCapabilitySet(); set {
	case "", CapabilitiesNone, CapabilitiesCurrent:
		return nil
	default:
		return []object.Fault{{
			Path:        "spec.capabilities.baselineCapabilitySet",
			Description: fmt.Sprintf("%q is not supported: must be %s, %s or empty", set, CapabilitiesNone, CapabilitiesCurrent),
		}}
	}
}

// CapabilityWarnings returns what the capabilities of a spec ask for that is not so at the present release.
func CapabilityWarnings(spec *updatev1.Capabilities, c *updatev1.CapabilitiesStatus) []string {
	var out []string
	if c == nil {
		return nil
	}
	for i, name := range spec.GetAdditionalEnabledCapabilities() {
		if !slices.Contains(c.GetKnownCapabilities(), name) {
			out = append(out, fmt.Sprintf("spec.capabilities.additionalEnabledCapabilities[%d]: the present release has no "+
				"capability %q: it is enabled when a release has it", i, name))
		}
	}
	if implicit := ImplicitCondition(spec, c); implicit.GetStatus() == True {
		out = append(out, "spec.capabilities: "+implicit.GetMessage())
	}
	return out
}
