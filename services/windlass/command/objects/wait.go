package objects

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/reflect/protoreflect"
	"k8s.io/client-go/util/jsonpath"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
	"github.com/windlass-dev/windlass/services/windlass/command/waiting"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

// setName gives an empty object a namespace and a name.
func setName(o object.Object, namespace, name string) {
	m := &metav1.ObjectMeta{Namespace: namespace, Name: name}
	r := o.ProtoReflect()
	r.Set(r.Descriptor().Fields().ByName("metadata"), protoreflect.ValueOfMessage(m.ProtoReflect()))
}

type waitFlags struct {
	target.Selection
	state   string
	timeout time.Duration
	output  string
}

// NewWait returns the command wait.
func NewWait(e *session.Env) *cobra.Command {
	var f waitFlags
	cmd := &cobra.Command{
		Use:   "wait (TYPE NAME... | TYPE/NAME... | TYPE --all | TYPE -l SELECTOR) --for=STATE",
		Short: "Wait until objects are in a state",
		Example: `  windlass wait machine/a --for=condition=Drained --timeout=5m
  windlass wait node a --for=condition=Ready=Unknown
  windlass wait machines --all --for=jsonpath='{.status.phase}'=Running
  windlass wait machine/a --for=delete`,
		ValidArgsFunction: target.CompleteObjects(e),
		RunE:              func(cmd *cobra.Command, args []string) error { return wait(cmd.Context(), e, args, f) },
	}
	fs := cmd.Flags()
	f.AddFlags(fs)
	f.AddAll(fs)
	fs.StringVar(&f.state, "for", "", "condition=TYPE[=STATUS], jsonpath='{PATH}'[=VALUE], create or delete")
	fs.DurationVar(&f.timeout, "timeout", 30*time.Second, "how long to wait; 0 checks once, a negative value waits a week")
	fs.StringVarP(&f.output, "output", "o", "", "output format: json, yaml, name or jsonpath=TEMPLATE")
	return cmd
}

// state is a parsed value of --for.
type state struct {
	create, gone bool
	what         string
	met          func(object.Object) (bool, string, error) // with the reason if it is not met
}

func parseState(s string) (state, error) {
	word, rest, _ := strings.Cut(s, "=")
	switch strings.ToLower(word) {
	case "delete":
		return state{gone: true, what: "deletion"}, nil
	case "create":
		return state{create: true, what: "creation", met: func(object.Object) (bool, string, error) {
			return true, "", nil
		}}, nil
	case "condition":
		name, want, ok := strings.Cut(rest, "=")
		if !ok {
			want = "True"
		}
		if name == "" {
			return state{}, errors.New("--for=condition=TYPE: the type is missing")
		}
		return conditionState(name, want), nil
	case "jsonpath":
		return pathState(rest)
	}
	return state{}, fmt.Errorf("unrecognized condition: %q", s)
}

func conditionState(name, want string) state {
	return state{what: "condition", met: func(o object.Object) (bool, string, error) {
		v, _ := manifest.Lookup(o, "status.conditions")
		list, _ := v.([]any)
		for _, c := range list {
			m, ok := c.(interface {
				GetType() string
				GetStatus() string
				GetMessage() string
			})
			if !ok || !strings.EqualFold(m.GetType(), name) {
				continue
			}
			if observed, ok := c.(interface{ GetObservedGeneration() int32 }); ok && observed.GetObservedGeneration() != 0 &&
				observed.GetObservedGeneration() < o.GetMetadata().GetGeneration() {
				return false, name + " is not up to date with the latest generation", nil
			}
			return strings.EqualFold(m.GetStatus(), want),
				strings.TrimSuffix(fmt.Sprintf("%s is %s: %s", name, m.GetStatus(), m.GetMessage()), ": "), nil
		}
		return false, name + " does not exist yet", nil
	}}
}

func pathState(rest string) (state, error) {
	expr, want, compares := rest, "", false
	if end := strings.LastIndex(rest, "}"); end >= 0 {
		// A path in braces may hold "=" itself.
		tail := strings.TrimPrefix(rest[end+1:], "'")
		expr = strings.TrimPrefix(rest[:end+1], "'")
		if want, compares = strings.CutPrefix(tail, "="); tail != "" && !compares {
			return state{}, fmt.Errorf("jsonpath wait format must be --for=jsonpath='{.status.readyReplicas}'=3, not %q", rest)
		}
	} else {
		expr, want, compares = strings.Cut(rest, "=")
	}
	want = strings.Trim(want, `'"`)
	p, err := printer.ParsePath(expr)
	if err != nil {
		return state{}, err
	}
	return state{what: "condition", met: func(o object.Object) (bool, string, error) {
		return pathMet(p, expr, want, compares, o)
	}}, nil
}

func pathMet(p *jsonpath.JSONPath, expr, want string, compares bool, o object.Object) (bool, string, error) {
	v, err := printer.Plain(o)
	if err != nil {
		return false, "", err
	}
	have, err := printer.Column{Path: p}.Cell(v)
	if err != nil {
		return false, "", err
	}
	if !compares {
		return have != table.None, expr + " does not exist yet", nil
	}
	return have == want, fmt.Sprintf("%s is %s", expr, have), nil
}

func wait(ctx context.Context, e *session.Env, args []string, f waitFlags) error {
	if f.state == "" {
		return errors.New("--for is required: condition=TYPE, jsonpath='{PATH}'=VALUE, create or delete")
	}
	s, err := parseState(f.state)
	if err != nil {
		return err
	}
	p := printer.Changes{Output: f.output}
	if err := p.Parse(); err != nil {
		return err
	}
	timeout := f.timeout
	if timeout < 0 {
		timeout = 7 * 24 * time.Hour
	} else if timeout == 0 {
		timeout = time.Second // for one check
	}
	return e.WithClient(func(c *client.Client) error {
		list, err := waitTargets(ctx, e, c, args, f, s)
		ctx, cancel := context.WithTimeout(ctx, timeout) // for the wait only, not for the lookup of the objects
		defer cancel()
		var failed failure.List
		failed.Add(err)
		if len(list) == 0 && len(failed) == 0 && !s.gone {
			failed.Add(errors.New("no matching resources found"))
		}
		for _, t := range list {
			failed.Add(waitOne(ctx, e, c, t, s, &p))
		}
		return failed.Err()
	})
}

// waitTargets returns the objects to wait for. With --for=create they do not have to exist; with --for=delete those
// that do not exist are omitted.
func waitTargets(ctx context.Context, e *session.Env, c *client.Client, args []string, f waitFlags,
	s state) ([]target.Item,
	error,
) {
	if !s.create {
		list, err := target.Find(ctx, e, c, args, f.Selection)
		if s.gone {
			err = withoutNotFound(err)
		}
		return list, err
	}
	groups, err := target.Parse(ctx, e, args)
	if err != nil {
		return nil, err
	}
	var out []target.Item
	for _, g := range groups {
		for _, name := range g.Names {
			o := g.Kind.New()
			setName(o, e.NamespaceOf(g.Kind), name)
			out = append(out, target.Item{Kind: g.Kind, Object: o})
		}
	}
	if len(out) == 0 {
		return nil, errors.New("--for=create requires names")
	}
	return out, nil
}

// withoutNotFound returns the errors without those for objects that do not exist.
func withoutNotFound(err error) error {
	var all, left failure.List
	all.Add(err)
	for _, err := range all {
		if !failure.IsNotFound(err) {
			left.Add(err)
		}
	}
	return left.Err()
}

func waitOne(ctx context.Context, e *session.Env, c *client.Client, t target.Item, s state, p *printer.Changes) error {
	if s.gone {
		if err := waiting.Await(ctx, e, c, gone(c, t)); err != nil {
			return err
		}
		return p.Print(e.Out, t.Kind, t.Object, "condition met")
	}
	var last object.Object
	var why string
	err := waiting.Await(ctx, e, c, waiting.Goal{
		Kind: t.Kind, Namespace: t.Namespace(), Name: t.Name(), What: s.what,
		Met: func(o object.Object) (bool, error) {
			if o == nil {
				if !s.create {
					return false, fmt.Errorf("%s was deleted", t)
				}
				return false, nil
			}
			last = o
			met, _, err := s.met(o)
			return met, err
		},
		Reason: func(_ context.Context, o object.Object) string {
			if o == nil {
				return "it does not exist yet"
			}
			_, why, _ = s.met(o) // met has already returned this error to the wait
			return why
		},
	})
	if err != nil {
		return err
	}
	return p.Print(e.Out, t.Kind, last, "condition met")
}
