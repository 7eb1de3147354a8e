// Package agent speaks for a machine with its cluster: it registers the node, says once a second that it lives, and, on
// a control-plane machine, offers to run an etcd member. Every stream that breaks is opened again; nothing here ends
// because the cluster is away.
package agent

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/nodeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/node-agent/member"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
	"github.com/windlass-dev/windlass/services/node-agent/stream"
)

// ErrReboot means that the cluster wants the machine to be restarted.
var ErrReboot = errors.New("a reboot was asked for")

const (
	// beatEvery is the pace of heartbeats: far below any grace, and one tiny message.
	beatEvery = time.Second
	// unansweredBeats is how many heartbeats may be without an answer before the stream counts as dead. It counts
	// messages, not time: so an agent that was stopped for a while does not blame its stream.
	unansweredBeats = 5

	// imagesEvery is how late changes of a node's images are in its status. Source: kubelet, nodeStatusUpdateFrequency.
	imagesEvery = 10 * time.Second

	callPatience = 10 * time.Second
)

// Member is the etcd member of a control-plane machine.
type Member interface {
	PeerURL() string
	ClientURL() string
	HasData() bool
	Removed() bool
	EtcdVersion() string
	Other() bool
	Note(ctx context.Context) error
	Resume(ctx context.Context) error
	Follow(ctx context.Context, order plan.Order) error
	NeedsCertificates() bool
	Trusts(hash string) bool
	RenewalDue(now time.Time) bool
	Certify(ctx context.Context, node string, sign member.Certifier) error
}

// Config is what an agent speaks for.
type Config struct {
	Node   string
	BootID string
	// Registration is what the agent knows of its node.
	Registration *nodev1.RegisterNodeRequest
	// Member is nil on a machine that runs none.
	Member Member
	// Conditions returns what the agent observes of its node beside readiness, a list that is never changed; nil if it
	// observes nothing.
	Conditions func() []*nodev1.NodeCondition
	// NotReady returns why the node is not ready, empty if it is; nil if it is while the agent runs.
	NotReady func() string
	// Images returns the images of the node, a list that is never changed; nil if the agent knows of none.
	Images func() []*nodev1.ContainerImage
	// Conn is the connection to the cluster.
	Conn grpc.ClientConnInterface
	Log  *slog.Logger
}

// Agent is the agent of one node.
type Agent struct {
	cfg   Config
	nodes nodev1.NodeAgentServiceClient

	mu   sync.Mutex
	node *nodev1.Node // as the cluster had it at the last registration; nil before that
	// images are those of the last registration
	images []*nodev1.ContainerImage
}

// New returns an agent that says nothing before Beat or Attend.
func New(cfg Config) *Agent {
	return &Agent{cfg: cfg, nodes: nodev1.NewNodeAgentServiceClient(cfg.Conn)}
}

// again calls session over and over until ctx ends, or until it ends with ErrReboot.
func (a *Agent) again(ctx context.Context, what string, session func(context.Context) error) error {
	return stream.Again(ctx, a.cfg.Log, what, ErrReboot, session)
}

// receive reads messages from a stream until it ends; the last is the error. It ends with the stream's context.
func receive[T any](ctx context.Context, recv func() (T, error)) <-chan received[T] {
	out := make(chan received[T])
	go func() {
		for {
			m, err := recv()
			select {
			case out <- received[T]{m, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return out
}

type received[T any] struct {
	message T
	err     error
}

// whyEnded returns why a stream ended on which nothing can be sent any more: a failed Send does not say it.
func whyEnded[T any](ctx context.Context, stream <-chan received[T]) error {
	for {
		select {
		case r := <-stream:
			if r.err != nil {
				return r.err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// register makes the node known, or brings what the agent knows up to date.
func (a *Agent) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	r, images := a.cfg.Registration, []*nodev1.ContainerImage(nil)
	if a.cfg.Images != nil {
		images = a.cfg.Images()
		r = proto.CloneOf(r)
		if r.Status == nil {
			r.Status = &nodev1.NodeStatus{}
		}
		r.Status.Images = images
	}
	node, err := a.nodes.RegisterNode(ctx, r)
	if _, has := r.GetLabels()[nodeid.FilesLabel]; has && status.Code(err) == codes.PermissionDenied {
		r = proto.CloneOf(r) // a service of an earlier release does not know the label
		delete(r.Labels, nodeid.FilesLabel)
		node, err = a.nodes.RegisterNode(ctx, r)
	}
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.node, a.images = node, images
	return nil
}

// ReportImages keeps the images in the node's status up to date until ctx ends: a registration has them, and is made
// again when they have changed.
func (a *Agent) ReportImages(ctx context.Context) error {
	if a.cfg.Images == nil {
		return nil
	}
	tick := time.NewTicker(imagesEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		a.mu.Lock()
		stale := a.node != nil && !sameImages(a.images, a.cfg.Images())
		a.mu.Unlock()
		if !stale {
			continue
		}
		if err := a.register(ctx); err != nil && ctx.Err() == nil {
			a.cfg.Log.DebugContext(ctx, "images not reported", "error", err)
		}
	}
}

func sameImages(a, b []*nodev1.ContainerImage) bool {
	return slices.EqualFunc(a, b, func(a, b *nodev1.ContainerImage) bool { return proto.Equal(a, b) })
}

// Node returns the node as the cluster has it: as it was at the last registration, or, if it must be fresh, as it is
// now.
func (a *Agent) Node(ctx context.Context, fresh bool) (*nodev1.Node, error) {
	a.mu.Lock()
	node := a.node
	a.mu.Unlock()
	if node != nil && !fresh {
		return node, nil
	}
	if err := a.register(ctx); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.node, nil
}

// notAnswered is the end of a stream whose other end is silent.
func notAnswered() error {
	return status.Error(codes.Unavailable, "heartbeats are not answered")
}

// MachineRef returns the reference to the machine that a registration carries.
func MachineRef(namespace, name string) *metav1.ObjectReference {
	return &metav1.ObjectReference{
		ApiVersion: "machine.openshift.io/v1beta1", Kind: "Machine", Namespace: namespace,
		Name: name,
	}
}
