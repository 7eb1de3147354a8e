package resource

import (
	"context"
	"errors"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
)

// Served is a Table of any kind.
type Served interface {
	Type() *metav1.ResourceType
	Run(ctx context.Context) error
	WaitSynced(ctx context.Context) error
	WaitRevision(ctx context.Context, revision int64) error
	CatchUp(ctx context.Context) error
	register(s grpc.ServiceRegistrar, desc *grpc.ServiceDesc, impl any) error
}

// Group is the tables of one service, which it serves, keeps up to date and waits for. Add all tables before calling
// Run or WaitSynced; these may be called concurrently.
type Group struct {
	server grpc.ServiceRegistrar
	tables []Served
	err    error // of the tables that could not be registered
}

// NewGroup returns an empty group, whose tables s serves.
func NewGroup(s grpc.ServiceRegistrar) *Group { return &Group{server: s} }

// Add serves a table's kind, as Register does, and adds the table to the group.
func (g *Group) Add(t Served, desc *grpc.ServiceDesc, impl any) {
	g.tables = append(g.tables, t)
	g.err = errors.Join(g.err, t.register(g.server, desc, impl))
}

// Run keeps the caches of all tables up to date until ctx ends. It fails immediately if a table could not be
// registered.
func (g *Group) Run(ctx context.Context) error {
	if g.err != nil {
		return g.err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, t := range g.tables {
		group.Go(func() error { return t.Run(ctx) })
	}
	return group.Wait()
}

// WaitSynced waits until the caches of all tables have been filled for the first time. If ctx ends before, the error
// names the kind that it waited for.
func (g *Group) WaitSynced(ctx context.Context) error {
	for _, t := range g.tables {
		if err := t.WaitSynced(ctx); err != nil {
			return err
		}
	}
	return nil
}
