package supervise

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	programv1 "github.com/windlass-dev/windlass/gen/windlass/program/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/topology"
)

// finalizer keeps a Program until the program runs from the cluster's own executable again.
const finalizer = "windlass.dev/supervisor"

// report writes the status of a program, and lets it go once nothing of it is in force.
func (ps *programs) report(ctx context.Context, p *program, o *programv1.Program) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	conn, err := ps.conn(topology.UpdateOrchestrator)
	if err != nil {
		return err
	}
	client := programv1.NewProgramServiceClient(conn)
	holds := slices.Contains(o.GetMetadata().GetFinalizers(), finalizer)
	gone := object.Deleting(o) && p.record.Running.Image == "" && p.runs.Image == "" && !p.record.OnTrial
	if holds == gone && (holds || !object.Deleting(o)) {
		next := proto.CloneOf(o)
		next.Metadata.Finalizers = slices.DeleteFunc(next.Metadata.Finalizers, func(f string) bool { return f == finalizer })
		if !gone {
			next.Metadata.Finalizers = append(next.Metadata.Finalizers, finalizer)
		}
		if o, err = client.UpdateProgram(ctx, &programv1.UpdateProgramRequest{
			Name: o.GetMetadata().GetName(), Program: next,
		}); err != nil || gone {
			return err
		}
	}
	st := ps.status(p, o)
	if proto.Equal(st, o.GetStatus()) {
		return nil
	}
	next := proto.CloneOf(o)
	next.Status = st
	_, err = client.UpdateProgramStatus(ctx, &programv1.UpdateProgramStatusRequest{
		Name: o.GetMetadata().GetName(), Program: next,
	})
	return err
}

// status is what is known of a program. Whether it is available is in its ClusterOperator.
func (ps *programs) status(p *program, o *programv1.Program) *programv1.ProgramStatus {
	st := &programv1.ProgramStatus{
		ObservedGeneration: proto.Int32(o.GetMetadata().GetGeneration()), Image: p.runs.Image, Version: p.runs.Version,
		Conditions: proto.CloneOf(o.GetStatus()).GetConditions(),
	}
	if p.record.OnTrial {
		st.PreviousImage = p.record.Previous.Image
	}
	if run, ok := ps.supervisor.Lookup(p.name); ok && run.Running {
		st.StartTime = &timestamppb.Timestamp{Seconds: run.Since.Unix()}
	}
	progressing := &metav1.Condition{
		Type: "Progressing", Status: map[bool]string{true: "True", false: "False"}[p.said.Progressing],
		Reason: proto.String(p.said.Reason), Message: proto.String(p.said.Message),
	}
	st.Conditions = object.SetCondition(st.Conditions, progressing, time.Now())
	return st
}
