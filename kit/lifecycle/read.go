package lifecycle

import (
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
	"google.golang.org/protobuf/types/known/structpb"
	"k8s.io/apimachinery/pkg/util/validation"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/untyped"
)

// reader reads the fields of a container.
type reader struct {
	untyped.Reader
	ports []*schedulingv1.ContainerPort // of the container
}

const maxPort = 65535

// port reads a port: a number, or the name of a port of the container if named.
func (r *reader) port(at string, s *structpb.Struct, named bool) int {
	at = untyped.Join(at, "port")
	v := s.GetFields()["port"]
	if name, ok := v.GetKind().(*structpb.Value_StringValue); ok && named {
		i := slices.IndexFunc(r.ports, func(p *schedulingv1.ContainerPort) bool { return p.GetName() == name.StringValue })
		if i < 0 || name.StringValue == "" {
			r.Fault(at, "must be a number from 1 to %d, or the name of a port of the container", maxPort)
			return 0
		}
		return int(r.ports[i].GetContainerPort())
	}
	n := v.GetNumberValue()
	if _, ok := v.GetKind().(*structpb.Value_NumberValue); !ok || n != math.Trunc(n) || n < 1 || n > maxPort {
		r.Fault(at, "must be between 1 and %d, inclusive", maxPort)
		return 0
	}
	return int(n)
}

func (r *reader) http(at string, s *structpb.Struct) *HTTP {
	r.Only(at, s, "host", "path", "port", "scheme", "httpHeaders")
	out := &HTTP{Host: r.Text(at, s, "host"), Path: r.Text(at, s, "path"), Port: r.port(at, s, true)}
	switch r.Text(at, s, "scheme") {
	case "", "HTTP":
	case "HTTPS":
		out.TLS = true
	default:
		r.Fault(untyped.Join(at, "scheme"), `supported values: "HTTP", "HTTPS"`)
	}
	if !strings.HasPrefix(out.Path, "/") {
		out.Path = "/" + out.Path
	}
	if _, err := url.ParseRequestURI(out.Path); err != nil {
		r.Fault(untyped.Join(at, "path"), "must be a path of a URL: %v", err)
	}
	for i, h := range r.Objects(at, s, "httpHeaders") {
		at := fmt.Sprintf("%s[%d]", untyped.Join(at, "httpHeaders"), i)
		r.Only(at, h, "name", "value")
		name, value := r.Text(at, h, "name"), r.Text(at, h, "value")
		for _, why := range validation.IsHTTPHeaderName(name) {
			r.Fault(at+".name", "%s", why)
		}
		if !httpguts.ValidHeaderFieldValue(value) {
			r.Fault(at+".value", "must be a value of an HTTP header")
		}
		out.HeaderName, out.HeaderText = append(out.HeaderName, name), append(out.HeaderText, value)
	}
	return out
}
