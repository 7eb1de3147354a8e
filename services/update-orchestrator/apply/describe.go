package apply

import (
	programv1 "github.com/windlass-dev/windlass/gen/windlass/program/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/clusteroperator"
	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/kit/topology"
)

// Excluded returns why a manifest of a payload is not for this cluster; empty if it is.
func (a *Applier) Excluded(p *release.Payload) func(release.Manifest) string {
	return p.Select(a.cluster).Excluded
}

// Describe returns what Plan RPCs show of a manifest.
func (t Task) Describe() *updatev1.ReleaseManifest {
	m := &updatev1.ReleaseManifest{
		File: t.File, Object: t.Object(), Service: t.service(), Job: t.Job(), Deletion: t.Delete(),
		CreateOnly: t.CreateOnly(), ClusterOperator: t.Operator() && !t.Delete(), Versions: t.Operands,
		Capabilities: t.Capabilities(),
	}
	if p := t.Program(); p != nil && !t.Delete() {
		m.Versions = ProgramVersions(p)
	}
	return m
}

// ProgramVersions are what the operator of a program must report.
func ProgramVersions(p *programv1.Program) []*updatev1.OperandVersion {
	return []*updatev1.OperandVersion{{Name: clusteroperator.Program, Version: p.GetSpec().GetVersion()}}
}

// service returns the service that owns the kind of the manifest; empty if none does.
func (t Task) service() string {
	switch {
	case t.kind != nil:
		return Packages()[t.kind.message.ParentFile().Package()]
	case t.Operator() || !t.Wants() && !t.Delete(): // the ClusterVersion
		return topology.UpdateOrchestrator
	}
	return ""
}

// Services returns the names of the cluster operators that services of Windlass report.
func Services() []string { return operators() }
