package main

import (
	"context"
	"slices"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// operator simulates one operator.
type operator struct {
	name    string
	work    time.Duration
	reports updatev1.ClusterOperatorServiceClient
	say     func(format string, args ...any)
	desired chan string // the newest version requested
}

// request sets the version that the operator must reach. It does not block.
func (o *operator) request(version string) {
	for {
		select {
		case o.desired <- version:
			return
		case <-o.desired: // an older request is obsolete
		}
	}
}

// run moves the operator to each requested version until ctx ends.
func (o *operator) run(ctx context.Context) {
	for {
		select {
		case version := <-o.desired:
			o.move(ctx, version)
		case <-ctx.Done():
			return
		}
	}
}

// move updates the operator to a version and reports it, and retries until that succeeds.
func (o *operator) move(ctx context.Context, version string) {
	for wait := firstPause; ctx.Err() == nil; wait = min(2*wait, mostPause) {
		have, err := o.read(ctx)
		if err == nil && settled(have, version) {
			return
		}
		if err == nil {
			err = o.renew(ctx, version)
		}
		if err == nil || ctx.Err() != nil {
			return
		}
		o.say("%-10s cannot report: %s", o.name, status.Convert(err).Message())
		pause(ctx, wait)
	}
}

// renew reports that the operator is progressing, does the work, and reports that it is done.
func (o *operator) renew(ctx context.Context, version string) error {
	o.say("%-10s works on %s", o.name, version)
	if err := o.report(ctx, func(st *updatev1.ClusterOperatorStatus) {
		set(st, "Progressing", "True", "Updating", "Working towards "+version)
	}); err != nil {
		return err
	}
	pause(ctx, o.work)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	err := o.report(ctx, func(st *updatev1.ClusterOperatorStatus) {
		set(st, "Available", "True", "AsExpected", "")
		set(st, "Progressing", "False", "AsExpected", "")
		set(st, "Degraded", "False", "AsExpected", "")
		set(st, "Upgradeable", "True", "AsExpected", "")
		st.Versions = []*updatev1.OperandVersion{{Name: "operator", Version: version}}
	})
	if err == nil {
		o.say("%-10s is at %s", o.name, version)
	}
	return err
}

// settled reports whether an operator has reported a version and is available and not degraded.
func settled(have *updatev1.ClusterOperator, version string) bool {
	is := func(typ, word string) bool {
		return slices.ContainsFunc(have.GetStatus().GetConditions(), func(c *metav1.Condition) bool {
			return c.GetType() == typ && c.GetStatus() == word
		})
	}
	at := slices.ContainsFunc(have.GetStatus().GetVersions(), func(v *updatev1.OperandVersion) bool {
		return v.GetName() == "operator" && v.GetVersion() == version
	})
	return at && is("Available", "True") && is("Degraded", "False") && is("Progressing", "False")
}

// read returns the operator's ClusterOperator and creates it if it does not exist.
func (o *operator) read(ctx context.Context) (*updatev1.ClusterOperator, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	have, err := o.reports.GetClusterOperator(ctx, &updatev1.GetClusterOperatorRequest{Name: o.name})
	if status.Code(err) != codes.NotFound {
		return have, err
	}
	return o.reports.CreateClusterOperator(ctx, &updatev1.CreateClusterOperatorRequest{
		ClusterOperator: &updatev1.ClusterOperator{Metadata: &metav1.ObjectMeta{Name: o.name}},
	})
}

// report changes the operator's status.
func (o *operator) report(ctx context.Context, change func(*updatev1.ClusterOperatorStatus)) error {
	have, err := o.read(ctx)
	if err != nil {
		return err
	}
	if have.Status == nil {
		have.Status = &updatev1.ClusterOperatorStatus{}
	}
	change(have.Status)
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	_, err = o.reports.UpdateClusterOperatorStatus(ctx, &updatev1.UpdateClusterOperatorStatusRequest{
		Name: o.name, ClusterOperator: have,
	})
	return err
}

// set writes a condition; its time is that of its last transition.
func set(st *updatev1.ClusterOperatorStatus, typ, is, reason, message string) {
	c := &metav1.Condition{Type: typ, Status: is, Reason: proto.String(reason), LastTransitionTime: &timestamppb.Timestamp{
		Seconds: time.Now().Unix(),
	}}
	if message != "" {
		c.Message = proto.String(message)
	}
	i := slices.IndexFunc(st.Conditions, func(c *metav1.Condition) bool { return c.GetType() == typ })
	if i < 0 {
		st.Conditions = append(st.Conditions, c)
		return
	}
	if st.Conditions[i].GetStatus() == is {
		c.LastTransitionTime = st.Conditions[i].GetLastTransitionTime()
	}
	st.Conditions[i] = c
}
