package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/informer"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"

	"github.com/windlass-dev/windlass/services/node-configurator/plan"
)

const (
	patience = 5 * time.Second // for one call; eviction-controller answers after one write
	// seen bounds the wait until a write shows in the copy of the kind. It is no error if it does not: the next decision
	// compares revisions.
	seen = 2 * time.Second
	// tries bounds how often marks are set on a node that others write at the same time.
	tries = 5
)

// Peer is eviction-controller: copies of the nodes and the drains of the cluster, and how they are changed. A change is
// in the copies when its call returns.
type Peer struct {
	Nodes  *informer.Informer[*nodev1.Node]
	Drains *informer.Informer[*nodev1.Drain]
	nodes  nodev1.NodeServiceClient
	drains nodev1.DrainServiceClient
}

// NewPeer returns the peer behind a connection and the copies of its kinds, which the caller runs.
func NewPeer(conn grpc.ClientConnInterface, nodes *informer.Informer[*nodev1.Node],
	drains *informer.Informer[*nodev1.Drain],
) *Peer {
	return &Peer{
		Nodes: nodes, Drains: drains, nodes: nodev1.NewNodeServiceClient(conn),
		drains: nodev1.NewDrainServiceClient(conn),
	}
}

// Drain returns the drain of a node for its configuration; nil if there is none.
func (p *Peer) Drain(node string) *nodev1.Drain {
	d, _ := p.Drains.Lookup("", plan.DrainName(node))
	return d
}

// Mark sets annotations of a node if it is still as it was read.
func (p *Peer) Mark(ctx context.Context, node *nodev1.Node, marks plan.Marks) (*nodev1.Node, error) {
	patch, err := patchOf(node, marks)
	if err != nil {
		return nil, err
	}
	call, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	out, err := p.nodes.PatchNode(call, &nodev1.PatchNodeRequest{
		Name: node.GetMetadata().GetName(), Patch: &httpbody.HttpBody{
			ContentType: "application/merge-patch+json",
			Data:        patch,
		},
	})
	if err != nil {
		return nil, err
	}
	wait(ctx, p.Nodes.Cache, out)
	return out, nil
}

// Node returns a node as eviction-controller has it now.
func (p *Peer) Node(ctx context.Context, name string) (*nodev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return p.nodes.GetNode(ctx, &nodev1.GetNodeRequest{Name: name})
}

// Emptied returns nil if the drain of a node for its configuration has succeeded and is not being deleted, as
// eviction-controller has it now.
func (p *Peer) Emptied(ctx context.Context, node string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	d, err := p.drains.GetDrain(ctx, &nodev1.GetDrainRequest{Name: plan.DrainName(node)})
	if err == nil && !plan.Emptied(d) {
		err = fmt.Errorf("the drain of node %q does not hold it", node)
	}
	return err
}

// Change reads a node, has f say which marks it gets, and sets them; again if the node was changed in between.
func (p *Peer) Change(ctx context.Context, node string, f func(*nodev1.Node) plan.Marks) error {
	var err error
	for range tries {
		if err = p.changeOnce(ctx, node, f); rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_CONFLICT {
			return err
		}
	}
	return err
}

func (p *Peer) changeOnce(ctx context.Context, name string, f func(*nodev1.Node) plan.Marks) error {
	call, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	node, err := p.nodes.GetNode(call, &nodev1.GetNodeRequest{Name: name})
	if err != nil {
		return err
	}
	marks := f(node)
	if len(marks) == 0 {
		return nil
	}
	_, err = p.Mark(ctx, node, marks)
	return err
}

// CreateDrain creates the drain of a node; without effect if there is one.
func (p *Peer) CreateDrain(ctx context.Context, drain *nodev1.Drain) error {
	call, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	d, err := p.drains.CreateDrain(call, &nodev1.CreateDrainRequest{Drain: drain})
	if rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS {
		return nil
	}
	if err == nil {
		wait(ctx, p.Drains.Cache, d)
	}
	return err
}

// DeleteDrain lets a node be used again.
func (p *Peer) DeleteDrain(ctx context.Context, d *nodev1.Drain) error {
	call, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	m := d.GetMetadata()
	out, err := p.drains.DeleteDrain(call, &nodev1.DeleteDrainRequest{
		Name: m.GetName(), Preconditions: &metav1.Preconditions{Uid: m.GetUid()},
	})
	if err == nil {
		wait(ctx, p.Drains.Cache, out)
	}
	return rpcerr.IgnoreChanged(err)
}

func wait[T object.Object](ctx context.Context, cache *resource.Cache[T], written T) {
	revision, err := resource.ParseRevision(written.GetMetadata().GetResourceVersion())
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, seen)
	defer cancel()
	_ = cache.WaitRevision(ctx, revision)
}

// patchOf returns a merge patch of a node as it was read.
func patchOf(node *nodev1.Node, marks plan.Marks) ([]byte, error) {
	set := map[string]any{}
	for k, v := range marks {
		set[k] = v
		if v == "" {
			set[k] = nil
		}
	}
	m := node.GetMetadata()
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": m.GetUid(), "resourceVersion": m.GetResourceVersion(), "annotations": set},
	})
	if err != nil {
		return nil, fmt.Errorf("patch of node %q: %w", m.GetName(), err)
	}
	return patch, nil
}
