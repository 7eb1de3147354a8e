// Package kinds says what the kinds of this service are beyond the shape of their messages: which writes are refused.
package kinds

import (
	"context"
	"fmt"
	"log/slog"

	"buf.build/go/protovalidate"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
	"google.golang.org/protobuf/proto"
)

// Version is the name of the one ClusterVersion.
const Version = "version"

// Tables are the records of this service.
type Tables struct {
	Versions  *resource.Table[*updatev1.ClusterVersion]
	Operators *resource.Table[*updatev1.ClusterOperator]
	Releases  *resource.Table[*updatev1.Release]
	Manifests *resource.Table[*updatev1.Manifest]
}

// New returns the tables over a store. Nothing is read before they run.
func New(st *store.Store, validator protovalidate.Validator, log *slog.Logger) *Tables {
	return &Tables{
		Versions: resource.NewTable(st, validator, resource.Config[*updatev1.ClusterVersion]{
			Validate: wishFaults, Admit: admitVersion, Log: log,
		}),
		// Who may write an operator's status is the policy's to say: it has a right of its own.
		Operators: resource.NewTable(st, validator, resource.Config[*updatev1.ClusterOperator]{Log: log}),
		Releases: resource.NewTable(st, validator, resource.Config[*updatev1.Release]{
			Admit: ownOnly[*updatev1.Release]("releases are written by update-orchestrator alone"), KeepStatus: true, Log: log,
		}),
		Manifests: resource.NewTable(st, validator, resource.Config[*updatev1.Manifest]{Admit: admitManifest, Log: log}),
	}
}

// Cluster returns the one ClusterVersion; nobody may modify it.
func (t *Tables) Cluster() (*updatev1.ClusterVersion, bool) { return t.Versions.Lookup("", Version) }

type ownKey struct{}

// Own marks the writes under a context as the service's own: only these may touch a status, and write what others only read.
func Own(ctx context.Context) context.Context { return context.WithValue(ctx, ownKey{}, true) }

func isOwn(ctx context.Context) bool { return ctx.Value(ownKey{}) != nil }

func admitVersion(ctx context.Context, old, version *updatev1.ClusterVersion) error {
	switch {
	case isOwn(ctx), old == nil:
		return nil
	case version == nil:
		return rpcerr.Forbidden("the version of a cluster cannot be deleted")
	case !proto.Equal(old.GetStatus(), version.GetStatus()):
		return rpcerr.Forbidden("the status of a ClusterVersion is written by update-orchestrator alone")
	}
	return nil
}

// wishFaults returns what no ClusterVersion may say. What else is wrong with one is said by its condition Invalid.
func wishFaults(v *updatev1.ClusterVersion) []rpcerr.Field {
	u := v.GetSpec().GetDesiredUpdate()
	if u.GetArchitecture() != "" && u.GetImage() != "" {
		return []rpcerr.Field{{Path: "spec.desiredUpdate.architecture", Description: "cannot be given together with an image"}}
	}
	return nil
}

func ownOnly[T resource.Object](refusal string) func(context.Context, T, T) error {
	return func(ctx context.Context, _, _ T) error {
		if isOwn(ctx) {
			return nil
		}
		return rpcerr.Forbidden(refusal)
	}
}

// admitManifest refuses manifests that no release brought. A change or a deletion is let through: it is put back, as in any object of a release.
func admitManifest(ctx context.Context, old, m *updatev1.Manifest) error {
	if isOwn(ctx) || old != nil {
		return nil
	}
	return rpcerr.Forbidden(fmt.Sprintf("manifest %q: manifests come from releases alone", m.GetMetadata().GetName()))
}
