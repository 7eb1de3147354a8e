package controller

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	"github.com/windlass-dev/windlass/services/etcd-guardian/members"
	"github.com/windlass-dev/windlass/services/etcd-guardian/plan"
	"github.com/windlass-dev/windlass/services/etcd-guardian/store"
)

// observation decides from a view and puts everything together as people see it.
func (c *Controller) observation(v plan.View, permit *store.Permit, answers map[uint64]members.Answer) *Observation {
	o := &Observation{View: v, Plan: plan.Next(v), Permit: permit}
	q := &etcdv1.Quorum{
		ObserveTime: timestamppb.New(c.Now()), BootstrapRetired: v.BootstrapRetired, Endpoints: v.Endpoints, Trust: v.Trust,
		BootstrapUrl: c.BootstrapURL,
	}
	if !c.Recovered.IsZero() {
		q.RecoveryTime = timestamppb.New(c.Recovered)
	}
	if id := c.Note.Get().ClusterID; id != 0 {
		q.ClusterId = fmt.Sprintf("%x", id)
	}
	if permit != nil {
		q.Permit = proto.CloneOf(permit.Message)
	}
	raised := alarms(answers)
	for _, m := range v.Members {
		q.Members = append(q.Members, message(v, m, answers[m.ID], raised[m.ID]))
	}
	plan.Complete(q, v, o.Plan)
	o.Quorum = q
	return o
}

func message(v plan.View, m plan.Member, a members.Answer, raised []string) *etcdv1.Member {
	out := &etcdv1.Member{
		Id: fmt.Sprintf("%x", m.ID), Name: m.Name, PeerUrls: m.PeerURLs, ClientUrls: m.ClientURLs, Learner: m.Learner,
		Leader:    m.Leader,
		Bootstrap: m.Bootstrap(), Healthy: m.Healthy, Message: m.Message, Version: a.Status.GetVersion(),
		DbSizeBytes:      a.Status.GetDbSize(),
		DbSizeInUseBytes: a.Status.GetDbSizeInUse(), AppliedIndex: m.Applied, LatencyUs: a.Latency.Microseconds(),
		DbQuotaBytes: a.Status.GetDbSizeQuota(), Alarms: raised, Trust: m.Trust,
		Revision:    a.Status.GetHeader().GetRevision(),
		NextVersion: m.NextVersion, OtherExecutable: m.Other,
	}
	if at, err := time.Parse(time.RFC3339, m.SilentSince); err == nil {
		out.SilentTime = timestamppb.New(at)
	}
	switch {
	case m.Defragments:
		out.Message = "is being defragmented"
	case m.Stopping:
		out.Message = "stopping: it leaves the cluster"
	case m.Restarting:
		out.Message = "restarting with the current authorities, quota or version of etcd"
	}
	if machine, ok := v.MachineOfMember(m); ok {
		out.Machine = machine.Reference()
		if out.Name == "" {
			out.Name = machine.Node
		}
	}
	return out
}
