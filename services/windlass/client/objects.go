package client

import (
	"cmp"
	"context"
	"fmt"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
)

// Client calls the standard methods of any kind. Errors are gRPC status errors.
type Client struct{ conn grpc.ClientConnInterface }

// New returns a client over a connection to a gateway.
func New(conn grpc.ClientConnInterface) *Client { return &Client{conn} }

// Conn returns the connection, for generated clients.
func (c *Client) Conn() grpc.ClientConnInterface { return c.conn }

// Selection says which objects of a kind are meant; empty fields mean all.
type Selection struct {
	Namespace, Labels, Fields string
}

// fields sets fields of a request by their proto names; those that the request does not have are left out.
type fields map[protoreflect.Name]any

func (k Kind) request(m resource.Method, set fields) (proto.Message, protoreflect.MethodDescriptor, error) {
	d, ok := k.Methods[m]
	if !ok {
		return nil, nil, fmt.Errorf("%s: the server does not allow this method on the resource: %s", k.GetPlural(), m)
	}
	req := resource.NewMessage(d.Input())
	k.address().set(req.ProtoReflect())
	for name, v := range set {
		f := d.Input().Fields().ByName(name)
		if f == nil {
			continue
		}
		msg, isMessage := v.(proto.Message)
		if isMessage != (f.Kind() == protoreflect.MessageKind) {
			continue // a Namespace has no namespace: what its request calls so is the object
		}
		if isMessage {
			req.ProtoReflect().Set(f, protoreflect.ValueOfMessage(msg.ProtoReflect()))
			continue
		}
		req.ProtoReflect().Set(f, protoreflect.ValueOf(v))
	}
	return req, d, nil
}

// objectField returns the name of the request field that carries an object of the kind.
func (k Kind) objectField(m resource.Method) protoreflect.Name {
	d, ok := k.Methods[m]
	if !ok {
		return ""
	}
	for i := range d.Input().Fields().Len() {
		if f := d.Input().Fields().Get(i); f.Message() != nil && f.Message().FullName() == k.Message.FullName() {
			return f.Name()
		}
	}
	return ""
}

func (c *Client) invoke(ctx context.Context, k Kind, m resource.Method, set fields) (proto.Message, error) {
	req, d, err := k.request(m, set)
	if err != nil {
		return nil, err
	}
	resp := resource.NewMessage(d.Output())
	err = c.conn.Invoke(ctx, fmt.Sprintf("/%s/%s", d.Parent().FullName(), d.Name()), req, resp)
	return resp, err
}

func (c *Client) object(ctx context.Context, k Kind, m resource.Method, set fields) (object.Object, error) {
	resp, err := c.invoke(ctx, k, m, set)
	if err != nil {
		return nil, err
	}
	return resp.(object.Object), nil
}

func dry(dryRun bool) string {
	if dryRun {
		return "All"
	}
	return ""
}

// Get returns one object.
func (c *Client) Get(ctx context.Context, k Kind, namespace, name string) (object.Object, error) {
	return c.object(ctx, k, resource.Get, fields{"namespace": namespace, "name": name})
}

// List returns all objects that are selected and the revision at which they were read.
func (c *Client) List(ctx context.Context, k Kind, s Selection) ([]object.Object, string, error) {
	var out []object.Object
	set := fields{"namespace": s.Namespace, "label_selector": s.Labels, "field_selector": s.Fields, "limit": int32(500)}
	for {
		page, err := c.invoke(ctx, k, resource.List, set)
		if err != nil {
			return nil, "", err
		}
		p := page.ProtoReflect()
		items := p.Get(p.Descriptor().Fields().ByName("items")).List()
		for i := range items.Len() {
			out = append(out, items.Get(i).Message().Interface().(object.Object))
		}
		meta, _ := p.Get(p.Descriptor().Fields().ByName("metadata")).Message().Interface().(*metav1.ListMeta)
		if meta.GetContinue() == "" {
			return out, meta.GetResourceVersion(), nil
		}
		set["continue"] = meta.GetContinue()
	}
}

// Create stores a new object.
func (c *Client) Create(ctx context.Context, k Kind, o object.Object, dryRun bool) (object.Object, error) {
	if b, ok := o.(*schedulingv1.BindPodRequest); ok {
		return c.bind(ctx, b, dryRun)
	}
	return c.object(ctx, k, resource.Create, fields{
		"namespace": o.GetMetadata().GetNamespace(), k.objectField(resource.Create): proto.Message(cloneAs(o)),
		"dry_run": dry(dryRun),
	})
}

// Update replaces metadata and spec of an object; its resourceVersion must be the one that was read.
func (c *Client) Update(ctx context.Context, k Kind, o object.Object, dryRun bool) (object.Object, error) {
	return c.write(ctx, k, resource.Update, o, dryRun)
}

// Apply creates an object or merges its fields into the one that is there.
func (c *Client) Apply(ctx context.Context, k Kind, o object.Object, dryRun bool) (object.Object, error) {
	return c.write(ctx, k, resource.Apply, o, dryRun)
}

func (c *Client) write(ctx context.Context, k Kind, m resource.Method, o object.Object, dryRun bool) (object.Object,
	error,
) {
	return c.object(ctx, k, m, fields{
		"namespace": o.GetMetadata().GetNamespace(), "name": cmp.Or(o.GetMetadata().GetName(),
			object.DefaultName(k.ResourceType)),
		k.objectField(m): proto.Message(cloneAs(o)), "dry_run": dry(dryRun),
	})
}

// Patch changes parts of an object. contentType says of which kind the patch is, see kit/manifest.
func (c *Client) Patch(ctx context.Context, k Kind, namespace, name, contentType string, patch []byte,
	dryRun bool,
) (object.Object, error) {
	return c.PatchPart(ctx, k, namespace, name, "", contentType, patch, dryRun)
}

// PatchPart is Patch for a part of an object that has rights of its own: subresource is "status", or "" for the object.
func (c *Client) PatchPart(ctx context.Context, k Kind, namespace, name, subresource, contentType string, patch []byte,
	dryRun bool,
) (object.Object, error) {
	return c.object(ctx, k, resource.Patch, fields{
		"namespace": namespace, "name": name, "dry_run": dry(dryRun), "subresource": subresource,
		"patch": proto.Message(&httpbody.HttpBody{ContentType: contentType, Data: patch}),
	})
}

// DeleteOptions says more about a deletion.
type DeleteOptions struct {
	Preconditions *metav1.Preconditions
	Propagation   string // "", "Background" or "Orphan"
	GraceSeconds  *int32 // for kinds that end in their own time; nil leaves it to the object
	DryRun        bool
	Reason        string // for machines, which record it; empty for other kinds
}

// Delete asks for the deletion of an object and returns it as it is then.
func (c *Client) Delete(ctx context.Context, k Kind, namespace, name string, o DeleteOptions) (object.Object, error) {
	set := fields{"namespace": namespace, "name": name, "propagation_policy": o.Propagation, "dry_run": dry(o.DryRun)}
	if o.Preconditions != nil {
		set["preconditions"] = proto.Message(o.Preconditions)
	}
	if o.GraceSeconds != nil {
		set["grace_period_seconds"] = *o.GraceSeconds
	}
	if o.Reason != "" {
		set["reason"] = o.Reason
	}
	return c.object(ctx, k, resource.Delete, set)
}

// Event is one message of a watch: changes, or only how far it has come.
type Event struct {
	Events   []resource.Event[object.Object]
	Revision string
	Bookmark bool
}

// Watch calls f with every change after a revision (with everything that is there first, if it is empty) until ctx
// ends, the stream breaks or f returns an error.
func (c *Client) Watch(ctx context.Context, k Kind, s Selection, after string, f func(Event) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, d, err := k.request(resource.Watch, fields{
		"namespace": s.Namespace, "label_selector": s.Labels, "field_selector": s.Fields, "resource_version": after,
	})
	if err != nil {
		return err
	}
	stream, err := c.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true},
		fmt.Sprintf("/%s/%s", d.Parent().FullName(), d.Name()))
	if err != nil {
		return err
	}
	if err := stream.SendMsg(req); err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	frame := resource.NewFrame(d.Output())
	for {
		resp := resource.NewMessage(d.Output())
		if err := stream.RecvMsg(resp); err != nil {
			return err
		}
		events, revision, bookmark, err := resource.ReadFrame[object.Object](frame, resp)
		if err != nil {
			return err
		}
		if err := f(Event{Events: events, Revision: resource.FormatRevision(revision), Bookmark: bookmark}); err != nil {
			return err
		}
	}
}
