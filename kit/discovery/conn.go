package discovery

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
)

// ForLeader reports whether calls of a method go to the leader of its service: those that only the leader answers, or
// answers better, and the streams of agents and hook owners. Watches go to any process.
func ForLeader(m protoreflect.MethodDescriptor) bool {
	access, _ := proto.GetExtension(m.Options(), metav1.E_Access).(*metav1.Access)
	streaming := m.IsStreamingClient() || m.IsStreamingServer()
	return access.GetLeader() || streaming && !strings.HasPrefix(string(m.Name()), "Watch")
}

// Conn is a connection to a service of the cluster: each call goes to the nearest process, or to the leader if it is
// for that and the leader can be reached.
type Conn struct {
	service   string
	directory *Directory
	nearest   *grpc.ClientConn
	leader    *grpc.ClientConn
	known     sync.Map // method → whether it is for the leader; bounded by the number of methods
}

var _ grpc.ClientConnInterface = (*Conn)(nil)

// Dial returns a connection to a service for a process on host. It connects at the first call. Close must be called.
func (d *Directory) Dial(service, host string, options ...grpc.DialOption) (*Conn, error) {
	options = append(options, d.Resolve(host)...)
	c := &Conn{service: service, directory: d}
	var err error
	if c.nearest, err = grpc.NewClient(Target(service), options...); err != nil {
		return nil, fmt.Errorf("dial %q: %w", service, err)
	}
	// Of one address, whose failure counts until there is a connection again: calls go to the nearest until then.
	options = append(options, grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"pick_first": {}}]}`))
	if c.leader, err = grpc.NewClient(leader+":///"+service, options...); err != nil {
		return nil, errors.Join(fmt.Errorf("dial the leader of %q: %w", service, err), c.nearest.Close())
	}
	return c, nil
}

// Invoke makes a unary call.
func (c *Conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return c.to(method).Invoke(ctx, method, args, reply, opts...)
}

// NewStream opens a stream.
func (c *Conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (
	grpc.ClientStream, error,
) {
	return c.to(method).NewStream(ctx, desc, method, opts...)
}

// Close ends the connection and what runs over it.
func (c *Conn) Close() error {
	var errs []error
	for _, conn := range []*grpc.ClientConn{c.nearest, c.leader} {
		if err := conn.Close(); err != nil && status.Code(err) != codes.Canceled {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (c *Conn) to(method string) *grpc.ClientConn {
	if !c.forLeader(method) || c.directory.View().Leaders[c.service] == "" ||
		c.leader.GetState() == connectivity.TransientFailure {
		return c.nearest
	}
	return c.leader
}

func (c *Conn) forLeader(method string) bool {
	if known, ok := c.known.Load(method); ok {
		return known.(bool)
	}
	name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(method, "/"), "/", "."))
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	if err != nil {
		return false
	}
	m, ok := found.(protoreflect.MethodDescriptor)
	is := ok && ForLeader(m)
	c.known.Store(method, is)
	return is
}
