package rest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/services/gateway/catalog"
)

// backend keeps the calls that reach it and answers each with nothing.
type backend struct{ calls []called }

type called struct {
	method  string
	request proto.Message
}

func (b *backend) Invoke(_ context.Context, method string, args, _ any, _ ...grpc.CallOption) error {
	b.calls = append(b.calls, called{method, args.(proto.Message)})
	return nil
}

func (b *backend) NewStream(ctx context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (
	grpc.ClientStream, error,
) {
	return &ended{backend: b, ctx: ctx, method: method}, nil
}

// ended is a stream that ends after its request.
type ended struct {
	grpc.ClientStream
	backend *backend
	ctx     context.Context
	method  string
}

func (s *ended) SendMsg(m any) error {
	s.backend.calls = append(s.backend.calls, called{s.method, m.(proto.Message)})
	return nil
}
func (*ended) CloseSend() error             { return nil }
func (*ended) Header() (metadata.MD, error) { return nil, nil }
func (*ended) Trailer() metadata.MD         { return nil }
func (*ended) RecvMsg(any) error            { return io.EOF }
func (s *ended) Context() context.Context   { return s.ctx }

// admitted is a Login and a Room that let every caller in.
type admitted struct{}

func (admitted) Request(*http.Request) (identity.Caller, error) {
	return identity.Caller{User: "alice"}, nil
}
func (admitted) Refused(*http.Request, identity.Caller, *catalog.Method, error) {}
func (admitted) Bound(ctx context.Context, _ *http.Request) (context.Context, func(), error) {
	return ctx, func() {}, nil
}

func (admitted) Call(*http.Request, identity.Caller, *catalog.Method) (func(), error) {
	return func() {}, nil
}

func (admitted) Text(*http.Request, identity.Caller, int) (func(), error) {
	return func() {}, nil
}

func (admitted) Memory(*http.Request, int) (func(), error) { return func() {}, nil }
func (admitted) Large(*http.Request, identity.Caller, int) (LargeRoom, error) {
	return nil, errors.New("no request is large here")
}

// FuzzQuery sends a GET with any path and query. Either no service is called, or one, once, with a request that says
// what the address says: each parameter in its field, each part of the path in its own, and nothing else.
func FuzzQuery(f *testing.F) {
	for _, seed := range [][2]string{
		{"/v1/namespaces/ns/machines/a", ""},
		{"/v1/namespaces/ns/machines/a", "namespace=other&name=b"},
		{
			"/v1/namespaces/ns/machines",
			"labelSelector=role%3Dworker%2Czone+in+(a,b)&fieldSelector=status.phase!%3DRunning&limit=10&continue=eyJyIjo3fQ",
		},
		{"/v1/machines", "readMask=metadata.name,status&resourceVersion=7&watch=false"},
		{"/v1/machines", "watch=true&allowWatchBookmarks=true&resourceVersion=7"},
		{"/v1/machines:watch", "watch=1&limit=1"},
		{"/v1/nodes", "limit=99999999999&limit=1&read_mask=x&label_selector=y&x.y=z"},
		{"/v1/nodes/a%2Fb:cordon", "%zz"},
		{"/v1/nodes/..%2f", "limit=-1;watch=true"},
		{"/v1//nodes/%00?", "readMask=&readMask=a&labelSelector=%ff&=&&"},
	} {
		f.Add(seed[0], seed[1])
	}
	methods, err := catalog.New(protoregistry.GlobalFiles)
	if err != nil {
		f.Fatal(err)
	}
	b := &backend{}
	h, err := New(f.Context(), Config{
		Catalog: methods, Login: admitted{}, Room: admitted{}, GRPC: http.NotFoundHandler(),
		Named: func(string) bool { return true },
		Span:  func(ctx context.Context, _ http.Header, _ string) (context.Context, func()) { return ctx, func() {} },
		Register: func(ctx context.Context, mux *runtime.ServeMux) error {
			if err := machinev1.RegisterMachineServiceHandlerClient(ctx, mux, machinev1.NewMachineServiceClient(b)); err != nil {
				return err
			}
			return nodev1.RegisterNodeServiceHandlerClient(ctx, mux, nodev1.NewNodeServiceClient(b))
		},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, path, query string) {
		address, err := url.ParseRequestURI(path + "?" + query) // as net/http reads a request
		if err != nil || !strings.HasPrefix(address.Path, "/") {
			return
		}
		b.calls = nil
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r.URL, r.RequestURI = address, path+"?"+query
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		switch {
		case len(b.calls) == 0 && w.Code < 300:
			t.Fatalf("%s is answered with %d, and no service was asked", r.RequestURI, w.Code)
		case len(b.calls) == 0:
			return
		case len(b.calls) > 1:
			t.Fatalf("%s became %d calls", r.RequestURI, len(b.calls))
		}
		if problem := says(methods, address, b.calls[0]); problem != "" {
			t.Fatalf("%s became %s %v: %s", r.RequestURI, b.calls[0].method, b.calls[0].request, problem)
		}
	})
}

// says returns in what a call differs from its address, "" if in nothing.
func says(methods *catalog.Catalog, address *url.URL, call called) string {
	values, err := url.ParseQuery(address.RawQuery)
	if err != nil {
		return err.Error()
	}
	path := address.EscapedPath()
	if values.Has("watch") {
		if values.Get("watch") == "true" || values.Get("watch") == "1" {
			path += ":watch"
		}
		values.Del("watch")
	}
	route, _ := methods.Match(http.MethodGet, path)
	if route == nil || route.Method.FullName != call.method {
		return "this is not the method of the address"
	}
	rest := proto.Clone(call.request).ProtoReflect()
	for key, given := range values {
		field := rest.Descriptor().Fields().ByJSONName(key)
		if field == nil {
			return fmt.Sprintf("parameter %q is no field", key)
		}
		if n, err := strconv.ParseInt(given[0], 10, 32); err == nil && field.Kind() == protoreflect.Int32Kind {
			given[0] = strconv.Itoa(int(n)) // "+07" is 7
		}
		if got := texts(rest, field); !slices.Equal(got, given) {
			return fmt.Sprintf("parameter %s is %q", key, got)
		}
		rest.Clear(field)
	}
	parts := strings.Split(path, "/")
	for i, part := range strings.Split(route.Template, "/") {
		part, _, _ = strings.Cut(part, ":")
		if !strings.HasPrefix(part, "{") {
			continue
		}
		field := rest.Descriptor().Fields().ByName(protoreflect.Name(strings.Trim(part, "{}")))
		given := parts[i]
		if _, verb, ok := strings.Cut(route.Template, ":"); ok && i == len(parts)-1 {
			given = strings.TrimSuffix(given, ":"+verb)
		}
		// What is escaped of the characters that an address reserves stays so.
		if got := rest.Get(field).String(); got != given && !strings.Contains(given, "%") || got == "" {
			return fmt.Sprintf("%s is %q, given as %q", field.Name(), got, given)
		}
		rest.Clear(field)
	}
	if left := rest.Interface(); proto.Size(left) > 0 {
		return fmt.Sprintf("the address does not say %v", left)
	}
	return ""
}

// texts returns a field's value as parameters give it.
func texts(m protoreflect.Message, field protoreflect.FieldDescriptor) []string {
	v := m.Get(field)
	switch {
	case field.IsList():
		var out []string
		for i := range v.List().Len() {
			out = append(out, v.List().Get(i).String())
		}
		return out
	case field.Message() != nil && field.Message().FullName() == "google.protobuf.FieldMask":
		paths := v.Message().Get(field.Message().Fields().ByName("paths")).List()
		var out []string
		for i := range paths.Len() {
			out = append(out, paths.Get(i).String())
		}
		return []string{strings.Join(out, ",")}
	}
	return []string{v.String()}
}
