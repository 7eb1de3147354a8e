package server

import (
	"context"
	"fmt"
	"slices"
	"strings"

	programv1 "github.com/windlass-dev/windlass/gen/windlass/program/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/topology"

	"github.com/windlass-dev/windlass/services/update-orchestrator/controller"
	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// Program serves what is asked about programs.
type Program struct {
	programv1.UnimplementedProgramServiceServer
	control *controller.Controller
}

// NewProgram returns a server that asks control.
func NewProgram(control *controller.Controller) *Program { return &Program{control: control} }

// PlanPrograms returns which program may change next, on which host.
func (s *Program) PlanPrograms(_ context.Context, req *programv1.PlanProgramsRequest) (*programv1.PlanProgramsResponse,
	error,
) {
	v, known := s.control.ProgramsView()
	switch {
	case len(req.GetPrograms()) > 0:
		var faults []object.Fault
		if v, faults = given(req); len(faults) > 0 {
			return nil, rpcerr.Invalid(faults...)
		}
	case len(req.GetHosts()) > 0:
		return nil, rpcerr.Invalid(object.Fault{Path: "hosts", Description: "must be given together with programs"})
	case !known:
		return nil,
			rpcerr.Unavailable("the hosts of the control plane are not known: there are none, or etcd does not answer")
	}
	out := &programv1.PlanProgramsResponse{}
	for _, t := range plan.Programs(v) {
		out.Decisions = append(out.Decisions, &programv1.PlanProgramsResponse_Decision{
			Program: t.Program.GetMetadata().GetName(), Turn: t.Turn, TurnHeld: t.Held, Updated: t.Updated, Reason: t.Reason,
			Message: t.Message,
		})
	}
	return out, nil
}

// given returns what a request says of programs and hosts.
func given(req *programv1.PlanProgramsRequest) (plan.ProgramsView, []object.Fault) {
	v := plan.ProgramsView{
		Programs: req.GetPrograms(), Levels: topology.UpdateLevels(),
		Images: topology.UpdateOrchestrator,
	}
	var faults []object.Fault
	names := map[string]bool{}
	for i, p := range v.Programs {
		name, path := p.GetMetadata().GetName(), fmt.Sprintf("programs[%d].metadata.name", i)
		switch {
		case topology.UpdateLevel(name) < 0:
			faults = append(faults, object.Fault{
				Path: path,
				Description: "must be a program of Windlass: " + strings.Join(slices.Sorted(slices.Values(topology.UpdateOrder())),
					", "),
			})
		case names[name]:
			faults = append(faults, object.Fault{Path: path, Description: "is given twice"})
		}
		names[name] = true
	}
	names = map[string]bool{}
	for i, h := range req.GetHosts() {
		if names[h.GetName()] {
			faults = append(faults, object.Fault{Path: fmt.Sprintf("hosts[%d].name", i), Description: "is given twice"})
		}
		names[h.GetName()] = true
		v.Hosts = append(v.Hosts, plan.ProgramHost{
			Name: h.GetName(), Present: len(h.GetServing()) > 0, Serving: h.GetServing(), Leading: h.GetLeading(),
		})
	}
	return v, faults
}
