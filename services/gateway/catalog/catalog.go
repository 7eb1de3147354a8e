// Package catalog knows which methods there are, which program serves each, under which REST addresses, and what their
// options say of them. It reads descriptors once and does no I/O.
package catalog

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/discovery"
	"github.com/windlass-dev/windlass/kit/topology"
)

// Method is one gRPC method.
type Method struct {
	FullName string // as in a request: "/windlass.machine.v1.MachineService/GetMachine"
	Program  string // who serves it
	Access   *metav1.Access
	// Leader is true for a stream of an agent or a hook owner, which goes to the program's leader, and for a call that the
	// leader answers alone or better, which goes there while it is connected. Watches go anywhere.
	Leader    bool
	Streaming bool // in any direction
	Desc      protoreflect.MethodDescriptor
}

// Open reports whether anonymous callers may call m; false for nil.
func (m *Method) Open() bool { return m != nil && m.Access.GetUnauthenticated() }

// Catalog is all methods and routes. It does not change, so concurrent calls are safe.
type Catalog struct {
	methods  map[string]*Method
	services []protoreflect.ServiceDescriptor
	routes   []*Route
}

// Files is what New reads; protoregistry.GlobalFiles is one.
type Files interface {
	RangeFiles(func(protoreflect.FileDescriptor) bool)
}

// New reads the services of files that a program of the cluster serves through the gateway. It fails on REST addresses
// of a form that Windlass does not use.
func New(files Files) (*Catalog, error) {
	c := &Catalog{methods: map[string]*Method{}}
	var err error
	files.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			service := f.Services().Get(i)
			name := topology.Server(service.FullName())
			if name == "" {
				continue
			}
			if err = c.add(service, name); err != nil {
				return false
			}
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(c.services, func(a, b protoreflect.ServiceDescriptor) int {
		return strings.Compare(string(a.FullName()), string(b.FullName()))
	})
	slices.SortStableFunc(c.routes, func(a, b *Route) int { return strings.Compare(a.Template, b.Template) })
	return c, nil
}

func (c *Catalog) add(service protoreflect.ServiceDescriptor, program string) error {
	c.services = append(c.services, service)
	for i := range service.Methods().Len() {
		d := service.Methods().Get(i)
		streaming := d.IsStreamingClient() || d.IsStreamingServer()
		m := &Method{
			FullName:  fmt.Sprintf("/%s/%s", service.FullName(), d.Name()),
			Program:   program,
			Access:    access(d),
			Leader:    discovery.ForLeader(d),
			Streaming: streaming,
			Desc:      d,
		}
		c.methods[m.FullName] = m
		if err := c.addRoutes(m); err != nil {
			return fmt.Errorf("%s: %w", d.FullName(), err)
		}
	}
	return nil
}

func access(d protoreflect.MethodDescriptor) *metav1.Access {
	a, _ := proto.GetExtension(d.Options(), metav1.E_Access).(*metav1.Access)
	return a
}

func (c *Catalog) addRoutes(m *Method) error {
	rule, _ := proto.GetExtension(m.Desc.Options(), annotations.E_Http).(*annotations.HttpRule)
	if rule == nil {
		return nil
	}
	for _, r := range append([]*annotations.HttpRule{rule}, rule.GetAdditionalBindings()...) {
		route, err := newRoute(m, r)
		if err != nil {
			return err
		}
		c.routes = append(c.routes, route)
	}
	return nil
}

// Method returns a method by its full name as in a request, or nil.
func (c *Catalog) Method(full string) *Method { return c.methods[full] }

// Services are all services, by name.
func (c *Catalog) Services() []protoreflect.ServiceDescriptor { return c.services }

// Programs are the names of all programs that serve something, without the gateway's, by name.
func (c *Catalog) Programs() []string {
	var names []string
	for _, m := range c.methods {
		if m.Program != topology.Gateway && !slices.Contains(names, m.Program) {
			names = append(names, m.Program)
		}
	}
	slices.Sort(names)
	return names
}

// Routes are all REST addresses, by template.
func (c *Catalog) Routes() []*Route { return c.routes }
