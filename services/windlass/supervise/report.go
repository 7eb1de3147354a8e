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
	"github.com/windlass-dev/windlass/kit/supervision"
)

// addAgain is how often a host is added to a status that does not have it.
const addAgain = 30 * time.Second

// report writes the status of a program, and lets it go once nothing of it is in force. On a host it writes what the
// status says of this host: the rest follows from all hosts.
func (ps *programs) report(ctx context.Context, p *program, o *programv1.Program) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	conn, err := ps.orchestrator()
	if err != nil {
		return err
	}
	client := programv1.NewProgramServiceClient(conn)
	if ps.cluster.Member != nil {
		st, added := ps.withHost(p, o)
		err := writeStatus(ctx, client, o, st)
		if err == nil && added {
			p.added, p.addedTo = time.Now(), o.GetMetadata().GetUid()
		}
		return err
	}
	holds := slices.Contains(o.GetMetadata().GetFinalizers(), supervision.Finalizer)
	gone := object.Deleting(o) && p.record.Running.Image == "" && p.runs.Image == "" && !p.record.OnTrial
	if holds == gone && (holds || !object.Deleting(o)) {
		next := proto.CloneOf(o)
		next.Metadata.Finalizers = slices.DeleteFunc(next.Metadata.Finalizers, func(f string) bool {
			return f == supervision.Finalizer
		})
		if !gone {
			next.Metadata.Finalizers = append(next.Metadata.Finalizers, supervision.Finalizer)
		}
		if o, err = client.UpdateProgram(ctx, &programv1.UpdateProgramRequest{
			Name: o.GetMetadata().GetName(), Program: next,
		}); err != nil || gone {
			return err
		}
	}
	return writeStatus(ctx, client, o, ps.status(p, o))
}

// writeStatus writes a status unless it is the one that the program has.
func writeStatus(ctx context.Context, client programv1.ProgramServiceClient, o *programv1.Program,
	st *programv1.ProgramStatus,
) error {
	if proto.Equal(st, o.GetStatus()) {
		return nil
	}
	next := proto.CloneOf(o)
	next.Status = st
	_, err := client.UpdateProgramStatus(ctx, &programv1.UpdateProgramStatusRequest{
		Name: o.GetMetadata().GetName(), Program: next,
	})
	return err
}

// observed is what is known of a program here.
func (ps *programs) observed(p *program, o *programv1.Program) *programv1.ProgramHost {
	h := &programv1.ProgramHost{
		ObservedGeneration: o.GetMetadata().GetGeneration(), Image: p.runs.Image, Version: p.runs.Version,
		Progressing: p.said.Progressing, Reason: p.said.Reason, Message: p.said.Message,
	}
	if p.record.OnTrial {
		h.PreviousImage = p.record.Previous.Image
	}
	if run, ok := ps.lookup(p); ok && run.Running {
		h.StartTime = &timestamppb.Timestamp{Seconds: run.Since.Unix()}
	}
	return h
}

// status is the status of a program that runs on this machine alone. Whether it is available is in its ClusterOperator.
func (ps *programs) status(p *program, o *programv1.Program) *programv1.ProgramStatus {
	h := ps.observed(p, o)
	return &programv1.ProgramStatus{
		ObservedGeneration: proto.Int32(h.GetObservedGeneration()), Image: h.GetImage(), Version: h.GetVersion(),
		PreviousImage: h.GetPreviousImage(), StartTime: h.GetStartTime(),
		Conditions: object.SetCondition(proto.CloneOf(o).GetStatus().GetConditions(), &metav1.Condition{
			Type: "Progressing", Status: map[bool]string{true: "True", false: "False"}[h.GetProgressing()],
			Reason: proto.String(h.GetReason()), Message: proto.String(h.GetMessage()),
		}, time.Now()),
	}
}

// withHost returns the status of a program with what is known of it on this host, and whether it had nothing of it.
func (ps *programs) withHost(p *program, o *programv1.Program) (st *programv1.ProgramStatus, added bool) {
	h := ps.observed(p, o)
	h.Name = ps.cluster.Member.Name
	st = proto.CloneOf(o).GetStatus()
	if st == nil {
		st = &programv1.ProgramStatus{}
	}
	of := func(r *programv1.ProgramHost) bool { return r.GetName() == h.Name }
	switch i := slices.IndexFunc(st.Hosts, of); {
	case i >= 0:
		st.Hosts[i] = h
	case p.addedTo != o.GetMetadata().GetUid() || time.Since(p.added) > addAgain:
		// A host that was removed from the cluster is taken out each time.
		st.Hosts, added = append(st.Hosts, h), true
	}
	return st, added
}
