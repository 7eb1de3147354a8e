package command

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/util/jsonpath"

	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

type waitFlags struct {
	selection
	state   string
	timeout time.Duration
	output  string
}

func newWait(e *env) *cobra.Command {
	var f waitFlags
	cmd := &cobra.Command{
		Use:   "wait (TYPE NAME... | TYPE/NAME... | TYPE --all | TYPE -l SELECTOR) --for=STATE",
		Short: "Wait until objects are in a state",
		Example: `  windlass wait machine/a --for=condition=Drained --timeout=5m
  windlass wait node a --for=condition=Ready=Unknown
  windlass wait machines --all --for=jsonpath='{.status.phase}'=Running
  windlass wait machine/a --for=delete`,
		ValidArgsFunction: e.completeObjects,
		RunE:              func(cmd *cobra.Command, args []string) error { return e.wait(cmd.Context(), args, f) },
	}
	fs := cmd.Flags()
	f.flags(fs)
	f.allFlag(fs)
	fs.StringVar(&f.state, "for", "", "condition=TYPE[=STATUS], jsonpath='{PATH}'[=VALUE], create or delete")
	fs.DurationVar(&f.timeout, "timeout", 30*time.Second, "how long to wait; 0 looks once, less waits a week")
	fs.StringVarP(&f.output, "output", "o", "", "print the objects: json, yaml, name or jsonpath=TEMPLATE")
	return cmd
}

// state is what --for says.
type state struct {
	create, gone bool
	what         string
	met          func(resource.Object) (bool, string, error) // with why not
}

func parseState(s string) (state, error) {
	word, rest, _ := strings.Cut(s, "=")
	switch strings.ToLower(word) {
	case "delete":
		return state{gone: true, what: "deletion"}, nil
	case "create":
		return state{create: true, what: "creation", met: func(resource.Object) (bool, string, error) { return true, "", nil }}, nil
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
	return state{what: "condition", met: func(o resource.Object) (bool, string, error) {
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
				return false, name + " does not speak of the newest generation yet", nil
			}
			return strings.EqualFold(m.GetStatus(), want), strings.TrimSuffix(fmt.Sprintf("%s is %s: %s", name, m.GetStatus(), m.GetMessage()), ": "), nil
		}
		return false, name + " is not there yet", nil
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
	p, err := relaxed(expr)
	if err != nil {
		return state{}, err
	}
	return state{what: "condition", met: func(o resource.Object) (bool, string, error) { return pathMet(p, expr, want, compares, o) }}, nil
}

func pathMet(p *jsonpath.JSONPath, expr, want string, compares bool, o resource.Object) (bool, string, error) {
	v, err := plain(o)
	if err != nil {
		return false, "", err
	}
	have, err := column{path: p}.cell(v)
	if err != nil {
		return false, "", err
	}
	if !compares {
		return have != table.None, expr + " is not there yet", nil
	}
	return have == want, fmt.Sprintf("%s is %s", expr, have), nil
}

func (e *env) wait(ctx context.Context, args []string, f waitFlags) error {
	if f.state == "" {
		return errors.New("--for is needed: condition=TYPE, jsonpath='{PATH}'=VALUE, create or delete")
	}
	s, err := parseState(f.state)
	if err != nil {
		return err
	}
	p := printed{output: f.output}
	if err := p.parse(); err != nil {
		return err
	}
	timeout := f.timeout
	if timeout < 0 {
		timeout = 7 * 24 * time.Hour
	} else if timeout == 0 {
		timeout = time.Second // one look, and the time that it takes
	}
	return e.withClient(func(c *client.Client) error {
		list, err := e.waitTargets(ctx, c, args, f, s)
		ctx, cancel := context.WithTimeout(ctx, timeout) // for the wait alone: what is waited for is always looked up
		defer cancel()
		var failed failures
		failed.add(err)
		if len(list) == 0 && len(failed) == 0 && !s.gone {
			failed.add(errors.New("no matching resources found"))
		}
		for _, t := range list {
			failed.add(e.waitOne(ctx, c, t, s, &p))
		}
		return failed.err()
	})
}

// waitTargets returns the objects that are meant. For their creation they need not be there; for their deletion those that are not are done.
func (e *env) waitTargets(ctx context.Context, c *client.Client, args []string, f waitFlags, s state) ([]target, error) {
	if !s.create {
		list, err := e.targets(ctx, c, args, f.selection)
		if s.gone {
			err = withoutNotFound(err)
		}
		return list, err
	}
	groups, err := parseGroups(args)
	if err != nil {
		return nil, err
	}
	var out []target
	for _, g := range groups {
		for _, name := range g.names {
			o := g.kind.New()
			setName(o, e.namespaceOf(g.kind), name)
			out = append(out, target{g.kind, o})
		}
	}
	if len(out) == 0 {
		return nil, errors.New("--for=create needs names")
	}
	return out, nil
}

// withoutNotFound leaves out what says that an object is not there.
func withoutNotFound(err error) error {
	var all, left failures
	all.add(err)
	for _, err := range all {
		if !isNotFound(err) {
			left.add(err)
		}
	}
	return left.err()
}

func (e *env) waitOne(ctx context.Context, c *client.Client, t target, s state, p *printed) error {
	if s.gone {
		if err := e.await(ctx, c, gone(c, t)); err != nil {
			return err
		}
		return p.print(e.out, t.kind, t.object, "condition met")
	}
	var last resource.Object
	var why string
	err := e.await(ctx, c, goal{
		kind: t.kind, namespace: t.namespace(), name: t.name(), what: s.what,
		met: func(o resource.Object) (bool, error) {
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
		reason: func(_ context.Context, o resource.Object) string {
			if o == nil {
				return "it is not there yet"
			}
			_, why, _ = s.met(o) // the same call told its error before
			return why
		},
	})
	if err != nil {
		return err
	}
	return p.print(e.out, t.kind, last, "condition met")
}
