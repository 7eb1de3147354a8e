// Package target finds the objects that arguments and selectors name, and completes names on the command line.
package target

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

// Group is the objects of one kind that arguments name: those of names, all if names is empty.
type Group struct {
	Kind  client.Kind
	Names []string
}

var (
	errNoType = errors.New("you must specify the type of resource; `windlass api-resources` lists the types")
	errMixed  = errors.New(
		"there is no need to specify a resource type as a separate argument when passing arguments in resource/name form (e.g. 'windlass get resource/<resource_name>' instead of 'windlass get resource resource/<resource_name>'")
)

// Parse reads TYPE[,TYPE…] [NAME…] or TYPE/NAME….
func Parse(ctx context.Context, e *session.Env, args []string) ([]Group, error) {
	if len(args) == 0 {
		return nil, errNoType
	}
	if strings.Contains(args[0], "/") {
		return parsePairs(ctx, e, args)
	}
	var out []Group
	for _, word := range strings.Split(args[0], ",") {
		k, err := e.FindKind(ctx, word)
		if err != nil {
			return nil, err
		}
		out = append(out, Group{k, args[1:]})
	}
	for _, name := range args[1:] {
		if strings.Contains(name, "/") {
			return nil, errMixed
		}
	}
	return out, nil
}

func parsePairs(ctx context.Context, e *session.Env, args []string) ([]Group, error) {
	var out []Group
	for _, arg := range args {
		word, name, ok := strings.Cut(arg, "/")
		if !ok {
			return nil, errMixed
		}
		if name == "" || strings.Contains(name, "/") {
			return nil, fmt.Errorf("arguments in resource/name form must have a single resource and name, not %q", arg)
		}
		k, err := e.FindKind(ctx, word)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(out, func(g Group) bool { return g.Kind.FullName() == k.FullName() })
		if i < 0 {
			out = append(out, Group{Kind: k})
			i = len(out) - 1
		}
		out[i].Names = append(out[i].Names, name)
	}
	return out, nil
}

// Selection are the flags that select objects of a kind.
type Selection struct {
	Labels, fields string
	All            bool // every object
	Everywhere     bool // every namespace
}

// AddFlags adds the selectors and --all-namespaces to the flags of a command.
func (s *Selection) AddFlags(fs *pflag.FlagSet) {
	fs.StringVarP(&s.Labels, "selector", "l", "", "label selector, such as 'role=worker,zone in (a,b)'")
	fs.StringVar(&s.fields, "field-selector", "", "field selector, such as 'status.phase!=Running'")
	fs.BoolVarP(&s.Everywhere, "all-namespaces", "A", false, "show objects of all namespaces")
}

// AddAll adds --all to the flags of a command.
func (s *Selection) AddAll(fs *pflag.FlagSet) {
	fs.BoolVar(&s.All, "all", false, "select all objects of the type in the namespace")
}

// Selects reports whether a flag selects objects, so that no names are needed.
func (s *Selection) Selects() bool { return s.Labels != "" || s.fields != "" || s.All }

// Scope returns the selection for the objects of one kind.
func Scope(e *session.Env, k client.Kind, s Selection) client.Selection {
	out := client.Selection{Namespace: e.NamespaceOf(k), Labels: s.Labels, Fields: s.fields}
	if s.Everywhere {
		out.Namespace = ""
	}
	return out
}

// Item is an object that a verb acts on.
type Item struct {
	Kind   client.Kind
	Object object.Object
}

func (t Item) Namespace() string { return t.Object.GetMetadata().GetNamespace() }

func (t Item) Name() string { return t.Object.GetMetadata().GetName() }

func (t Item) String() string { return table.QualifiedName(t.Kind.ResourceType, t.Name()) }

// Find reads the objects that arguments and selection name. It returns those that could be read, and an error for
// the others.
func Find(ctx context.Context, e *session.Env, c *client.Client, args []string, s Selection) ([]Item, error) {
	groups, err := Parse(ctx, e, args)
	if err != nil {
		return nil, err
	}
	var out []Item
	var failed failure.List
	for _, g := range groups {
		if len(g.Names) > 0 && s.Selects() {
			return nil, errors.New("name cannot be provided when a selector or --all is specified")
		}
		if len(g.Names) == 0 && !s.Selects() {
			return nil, fmt.Errorf("resource(s) were provided, but no name was specified: specify names, a selector or --all")
		}
		found, err := Read(ctx, e, c, g, s)
		failed.Add(err)
		out = append(out, found...)
	}
	return out, failed.Err()
}

// Read reads the objects of a group.
func Read(ctx context.Context, e *session.Env, c *client.Client, g Group, s Selection) ([]Item, error) {
	var out []Item
	if len(g.Names) == 0 {
		list, _, err := c.List(ctx, g.Kind, Scope(e, g.Kind, s))
		for _, o := range list {
			out = append(out, Item{g.Kind, o})
		}
		return out, err
	}
	if s.Everywhere && g.Kind.GetNamespaced() {
		return nil, errors.New("a resource cannot be retrieved by name across all namespaces")
	}
	var failed failure.List
	for _, name := range g.Names {
		o, err := c.Get(ctx, g.Kind, e.NamespaceOf(g.Kind), name)
		if err != nil {
			failed.Add(err)
			continue
		}
		out = append(out, Item{g.Kind, o})
	}
	return out, failed.Err()
}
