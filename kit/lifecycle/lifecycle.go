// Package lifecycle reads the fields of a container that say how its health is checked and what is done when it starts
// and ends: livenessProbe, readinessProbe, startupProbe and lifecycle. The scheduler checks them; the agent of the node
// acts on them. It does no I/O. Names, defaults and rules are those of Kubernetes, core/v1.
package lifecycle

import (
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/untyped"
)

// always is the restart policy of a sidecar: an init container that runs beside the others.
const always = "Always"

// Policies of termination messages.
const (
	file           = "File"
	fallbackToLogs = "FallbackToLogsOnError"
)

// Defaults of a probe's numbers.
const (
	defaultPeriod   = 10 * time.Second
	defaultTimeout  = time.Second
	defaultSuccess  = 1
	defaultFailures = 3
)

// Container is what the fields of one container say.
type Container struct {
	Startup, Liveness, Readiness *Probe // nil: none
	PostStart, PreStop           *Action
	Sidecar                      bool
	// LogsOnError: the end of the log takes the place of a termination message that the container did not write.
	LogsOnError bool
}

// Probe checks a container regularly.
type Probe struct {
	Action
	InitialDelay, Period, Timeout time.Duration
	// Success and Failures are how many results of one kind, one after the other, count.
	Success, Failures int
	// Grace is how long a container gets to end that this probe had ended; nil: that of the pod.
	Grace *time.Duration
}

// Action is what a probe or a hook does; one field is set.
type Action struct {
	Exec  []string
	HTTP  *HTTP
	TCP   *TCP
	GRPC  *GRPC
	Sleep *time.Duration
}

// HTTP is a GET request.
type HTTP struct {
	TLS        bool
	Host       string // empty: the pod's address
	Port       int
	Path       string // begins with a slash; may have a query
	HeaderName []string
	HeaderText []string // of the header of the same index
}

// TCP is a connection that is opened.
type TCP struct {
	Host string // empty: the pod's address
	Port int
}

// GRPC is a call of grpc.health.v1.Health.Check.
type GRPC struct {
	Port    int
	Service string
}

// Of returns what the fields of a container say. A container that passed Check has no fault; what is faulty in another
// one is left out, and returned.
func Of(c *schedulingv1.Container, init bool) (Container, []object.Fault) {
	r := &reader{ports: c.GetPorts()}
	return r.container("", c, init, math.MaxInt64), r.Faults
}

// defaultGrace is the terminationGracePeriodSeconds of a pod that has none.
const defaultGrace = 30 * time.Second

// Check returns what is wrong with these fields of the containers of a spec at path.
func Check(path string, spec *schedulingv1.PodSpec) []object.Fault {
	grace := defaultGrace
	if s := spec.TerminationGracePeriodSeconds; s != nil {
		grace = time.Duration(*s) * time.Second
	}
	r := &reader{}
	for _, list := range []struct {
		name string
		of   []*schedulingv1.Container
	}{{"initContainers", spec.GetInitContainers()}, {"containers", spec.GetContainers()}} {
		for i, c := range list.of {
			at := fmt.Sprintf("%s.%s[%d]", path, list.name, i)
			init := list.name == "initContainers"
			r.ports = c.GetPorts()
			r.container(at, c, init, grace)
			switch p := c.GetRestartPolicy(); {
			case p == "":
			case !init:
				r.Fault(at+".restartPolicy", "may not be set for containers that are not init containers")
			case p != always:
				r.Fault(at+".restartPolicy", "supported values: %q", always)
			}
			switch c.GetTerminationMessagePolicy() {
			case "", file, fallbackToLogs:
			default:
				r.Fault(at+".terminationMessagePolicy", "supported values: %q, %q", file, fallbackToLogs)
			}
		}
	}
	return r.Faults
}

func (r *reader) container(at string, c *schedulingv1.Container, init bool, grace time.Duration) Container {
	out := Container{
		Sidecar: init && placement.IsSidecar(c), LogsOnError: c.GetTerminationMessagePolicy() == fallbackToLogs,
	}
	for _, p := range []struct {
		name string
		of   *structpb.Struct
		to   **Probe
	}{
		{"livenessProbe", c.GetLivenessProbe(), &out.Liveness},
		{"readinessProbe", c.GetReadinessProbe(), &out.Readiness},
		{"startupProbe", c.GetStartupProbe(), &out.Startup},
	} {
		if len(p.of.GetFields()) == 0 {
			continue
		}
		at := untyped.Join(at, p.name)
		if init && !out.Sidecar {
			r.Fault(at, "may not be set for init containers without restartPolicy=Always")
			continue
		}
		before := len(r.Faults)
		if probe := r.probe(at, p.of, p.name); len(r.Faults) == before {
			*p.to = &probe
		}
	}
	hooks := c.GetLifecycle()
	if len(hooks.GetFields()) == 0 {
		return out
	}
	at = untyped.Join(at, "lifecycle")
	if init && !out.Sidecar {
		r.Fault(at, "may not be set for init containers without restartPolicy=Always")
		return out
	}
	r.Only(at, hooks, "postStart", "preStop")
	out.PostStart = r.hook(at, hooks, "postStart", grace)
	out.PreStop = r.hook(at, hooks, "preStop", grace)
	return out
}

func (r *reader) probe(at string, s *structpb.Struct, kind string) Probe {
	r.Only(at, s, "exec", "httpGet", "tcpSocket", "grpc", "initialDelaySeconds", "periodSeconds", "timeoutSeconds",
		"successThreshold", "failureThreshold", "terminationGracePeriodSeconds")
	p := Probe{
		Action: r.action(at, s, "exec", "httpGet", "tcpSocket", "grpc"),
		Period: defaultPeriod, Timeout: defaultTimeout, Success: defaultSuccess, Failures: defaultFailures,
	}
	if n, ok := r.Number(at, s, "initialDelaySeconds", 0); ok {
		p.InitialDelay = time.Duration(n) * time.Second
	}
	if n, ok := r.Number(at, s, "periodSeconds", 0); ok && n > 0 { // 0 is the default, as in Kubernetes
		p.Period = time.Duration(n) * time.Second
	}
	if n, ok := r.Number(at, s, "timeoutSeconds", 0); ok && n > 0 {
		p.Timeout = time.Duration(n) * time.Second
	}
	if n, ok := r.Number(at, s, "successThreshold", 0); ok && n > 0 {
		p.Success = n
	}
	if n, ok := r.Number(at, s, "failureThreshold", 0); ok && n > 0 {
		p.Failures = n
	}
	if p.Success != 1 && kind != "readinessProbe" {
		r.Fault(at+".successThreshold", "must be 1")
	}
	if n, ok := r.Number(at, s, "terminationGracePeriodSeconds", 1); ok {
		grace := time.Duration(n) * time.Second
		if p.Grace = &grace; kind == "readinessProbe" {
			r.Fault(at+".terminationGracePeriodSeconds", "must not be set for readinessProbes")
		}
	}
	return p
}

// hook returns a hook, nil if there is none.
func (r *reader) hook(at string, s *structpb.Struct, name string, grace time.Duration) *Action {
	of := r.Object(at, s, name)
	if len(of.GetFields()) == 0 {
		return nil
	}
	at = untyped.Join(at, name)
	r.Only(at, of, "exec", "httpGet", "tcpSocket", "sleep")
	before := len(r.Faults)
	a := r.action(at, of, "exec", "httpGet", "tcpSocket", "sleep")
	if a.Sleep != nil && *a.Sleep > grace {
		r.Fault(at+".sleep.seconds", "must be non-negative and less than terminationGracePeriodSeconds (%d)",
			int(grace/time.Second))
	}
	if len(r.Faults) > before {
		return nil
	}
	return &a
}

// action reads the one of the handlers that is there.
func (r *reader) action(at string, s *structpb.Struct, handlers ...string) (a Action) {
	count := 0
	for _, name := range handlers {
		if _, ok := s.GetFields()[name]; !ok {
			continue
		}
		of := r.Object(at, s, name)
		if count++; count > 1 {
			r.Fault(untyped.Join(at, name), "may not specify more than 1 handler type")
			continue
		}
		at := untyped.Join(at, name)
		switch name {
		case "exec":
			r.Only(at, of, "command")
			if a.Exec = r.Texts(at, of, "command"); len(a.Exec) == 0 {
				r.Fault(at+".command", "is required")
			}
		case "httpGet":
			a.HTTP = r.http(at, of)
		case "tcpSocket":
			r.Only(at, of, "host", "port")
			a.TCP = &TCP{Host: r.Text(at, of, "host"), Port: r.port(at, of, true)}
		case "grpc":
			r.Only(at, of, "port", "service")
			a.GRPC = &GRPC{Port: r.port(at, of, false), Service: r.Text(at, of, "service")}
		case "sleep":
			r.Only(at, of, "seconds")
			n, ok := r.Number(at, of, "seconds", 0)
			if _, given := of.GetFields()["seconds"]; !given {
				r.Fault(at+".seconds", "is required")
			}
			if d := time.Duration(n) * time.Second; ok {
				a.Sleep = &d
			}
		}
	}
	if count == 0 {
		r.Fault(at, "must specify a handler type")
	}
	return a
}
