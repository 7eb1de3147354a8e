// Package kinds says what hosts are beyond the shape of their message: which writes are refused, and what they are
// found by.
package kinds

import (
	"log/slog"
	"net/netip"
	"slices"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
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
		KeepStatus: true, Validate: faults, ValidateUpdate: updateFaults, Admit: admit, Claims: claims, Log: log,
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

// faults refuses addresses that another host may have in another form, or that are of no one host.
func faults(h *hostv1.Host) []object.Fault {
	const path = "spec.address"
	a, err := netip.ParseAddr(h.GetSpec().GetAddress())
	if err != nil {
		return nil // the shape was checked
	}
	switch plain := a.Unmap(); {
	case a.Zone() != "", !plain.IsGlobalUnicast() && !plain.IsLoopback():
		return []object.Fault{{Path: path, Description: "must be an address at which other hosts reach this one"}}
	case plain.String() != h.GetSpec().GetAddress():
		return []object.Fault{object.Faultf(path, "must be written as %s", plain)}
	}
	return nil
}

func updateFaults(old, h *hostv1.Host) []object.Fault {
	if slices.Equal(old.GetSpec().GetRoles(), h.GetSpec().GetRoles()) {
		return nil
	}
	return []object.Fault{{Path: "spec.roles", Description: "cannot be changed: register the host again"}}
}

// admit refuses a status that a user writes, and what only registration decides: an editor may label and cordon hosts.
func admit(w *resource.Write[*hostv1.Host]) error {
	if w.Own || w.Deletes() || w.Creates() {
		return nil
	}
	if !proto.Equal(w.Old.GetStatus(), w.New.GetStatus()) {
		return rpcerr.Forbidden("the status of a host is written by provider-inventory alone")
	}
	was, is := w.Old, w.New
	for path, same := range map[string]bool{
		"spec.address":        was.GetSpec().GetAddress() == is.GetSpec().GetAddress(),
		"spec.zone":           was.GetSpec().GetZone() == is.GetSpec().GetZone(),
		"metadata.finalizers": slices.Equal(was.GetMetadata().GetFinalizers(), is.GetMetadata().GetFinalizers()),
		"metadata.ownerReferences": slices.EqualFunc(was.GetMetadata().GetOwnerReferences(),
			is.GetMetadata().GetOwnerReferences(), func(a, b *metav1.OwnerReference) bool { return proto.Equal(a, b) }),
		"metadata.labels[windlass.dev/join-token]": was.GetMetadata().GetLabels()[joinToken] ==
			is.GetMetadata().GetLabels()[joinToken],
	} {
		if !same {
			return rpcerr.Forbidden(path + " of a host is decided when it is registered: remove the host and register it again")
		}
	}
	return nil
}

// joinToken is the label with the id of the token that the host joined with.
const joinToken = "windlass.dev/join-token"
