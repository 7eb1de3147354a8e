// Package kinds says what hosts are beyond the shape of their message: which writes are refused, and what they are
// found by.
package kinds

import (
	"log/slog"
	"slices"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
)

// Indexes of hosts.
const (
	ByToken      = "status.requestToken"
	ByProviderID = "status.providerID"
)

// New returns the table of hosts over a store. Nothing is read before it runs.
func New(st *store.Store, validator protovalidate.Validator, log *slog.Logger) *resource.Table[*hostv1.Host] {
	return resource.NewTable(st, validator, resource.Config[*hostv1.Host]{
		KeepStatus: true, ValidateUpdate: updateFaults, Admit: admit, Claims: claims, Log: log,
		Indexes: map[string]func(*hostv1.Host) []string{
			ByToken:      func(h *hostv1.Host) []string { return []string{h.GetStatus().GetRequestToken()} },
			ByProviderID: func(h *hostv1.Host) []string { return []string{h.GetStatus().GetProviderId()} },
		},
	})
}

// claims are what no two hosts have: one machine has one host.
func claims(h *hostv1.Host) []resource.Claim {
	return []resource.Claim{
		{What: "address", Value: h.GetSpec().GetAddress(), Path: "spec.address"},
		{What: "requestToken", Value: h.GetStatus().GetRequestToken(), Path: "status.requestToken"},
	}
}

func updateFaults(old, h *hostv1.Host) (out []object.Fault) {
	was, is := old.GetSpec(), h.GetSpec()
	if !slices.Equal(was.GetRoles(), is.GetRoles()) {
		out = append(out, object.Fault{Path: "spec.roles", Description: "cannot be changed: register the host again"})
	}
	if old.GetStatus().GetMachineRef() == nil {
		return out
	}
	for path, same := range map[string]bool{
		"spec.address": was.GetAddress() == is.GetAddress(), "spec.zone": was.GetZone() == is.GetZone(),
	} {
		if !same {
			out = append(out, object.Faultf(path, "cannot be changed while machine %q has the host",
				old.GetStatus().GetMachineRef().GetName()))
		}
	}
	slices.SortFunc(out, func(a, b object.Fault) int { return slices.Compare([]string{a.Path}, []string{b.Path}) })
	return out
}

// admit refuses a status that a user writes.
func admit(w *resource.Write[*hostv1.Host]) error {
	if w.Own || w.Deletes() || w.Creates() || proto.Equal(w.Old.GetStatus(), w.New.GetStatus()) {
		return nil
	}
	return rpcerr.Forbidden("the status of a host is written by provider-inventory alone")
}
