package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

// group is the objects of one kind that arguments name: those of names, all if names is empty.
type group struct {
	kind  client.Kind
	names []string
}

var (
	errNoType = errors.New("you must specify the type of resource; `windlass api-resources` lists the types")
	errMixed  = errors.New(
		"there is no need to specify a resource type as a separate argument when passing arguments in resource/name form (e.g. 'windlass get resource/<resource_name>' instead of 'windlass get resource resource/<resource_name>'")
)

// parseGroups reads TYPE[,TYPE…] [NAME…] or TYPE/NAME….
func parseGroups(args []string) ([]group, error) {
	if len(args) == 0 {
		return nil, errNoType
	}
	if strings.Contains(args[0], "/") {
		return parsePairs(args)
	}
	var out []group
	for _, word := range strings.Split(args[0], ",") {
		k, err := client.FindKind(word)
		if err != nil {
			return nil, err
		}
		out = append(out, group{k, args[1:]})
	}
	for _, name := range args[1:] {
		if strings.Contains(name, "/") {
			return nil, errMixed
		}
	}
	return out, nil
}

func parsePairs(args []string) ([]group, error) {
	var out []group
	for _, arg := range args {
		word, name, ok := strings.Cut(arg, "/")
		if !ok {
			return nil, errMixed
		}
		if name == "" || strings.Contains(name, "/") {
			return nil, fmt.Errorf("arguments in resource/name form must have a single resource and name, not %q", arg)
		}
		k, err := client.FindKind(word)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(out, func(g group) bool { return g.kind.FullName() == k.FullName() })
		if i < 0 {
			out = append(out, group{kind: k})
			i = len(out) - 1
		}
		out[i].names = append(out[i].names, name)
	}
	return out, nil
}

// selection are the flags that select objects of a kind.
type selection struct {
	labels, fields string
	all            bool // every object
	everywhere     bool // every namespace
}

func (s *selection) flags(fs *pflag.FlagSet) {
	fs.StringVarP(&s.labels, "selector", "l", "", "label selector, such as 'role=worker,zone in (a,b)'")
	fs.StringVar(&s.fields, "field-selector", "", "field selector, such as 'status.phase!=Running'")
	fs.BoolVarP(&s.everywhere, "all-namespaces", "A", false, "show objects of all namespaces")
}

func (s *selection) allFlag(fs *pflag.FlagSet) {
	fs.BoolVar(&s.all, "all", false, "select all objects of the type in the namespace")
}

func (s *selection) selects() bool { return s.labels != "" || s.fields != "" || s.all }

// namespaceOf returns the selected namespace for objects of a kind; "" for kinds without namespaces.
func (e *env) namespaceOf(k client.Kind) string {
	switch {
	case !k.GetNamespaced():
		return ""
	case e.namespace != "":
		return e.namespace
	}
	return k.GetDefaultNamespace()
}

func (e *env) scope(k client.Kind, s selection) client.Selection {
	out := client.Selection{Namespace: e.namespaceOf(k), Labels: s.labels, Fields: s.fields}
	if s.everywhere {
		out.Namespace = ""
	}
	return out
}

// target is an object that a verb acts on.
type target struct {
	kind   client.Kind
	object object.Object
}

func (t target) namespace() string { return t.object.GetMetadata().GetNamespace() }
func (t target) name() string      { return t.object.GetMetadata().GetName() }
func (t target) String() string    { return table.QualifiedName(t.kind.ResourceType, t.name()) }

// targets reads the objects that arguments and selection name. It returns those that could be read, and an error for
// the others.
func (e *env) targets(ctx context.Context, c *client.Client, args []string, s selection) ([]target, error) {
	groups, err := parseGroups(args)
	if err != nil {
		return nil, err
	}
	var out []target
	var failed failures
	for _, g := range groups {
		if len(g.names) > 0 && s.selects() {
			return nil, errors.New("name cannot be provided when a selector or --all is specified")
		}
		if len(g.names) == 0 && !s.selects() {
			return nil, fmt.Errorf("resource(s) were provided, but no name was specified: specify names, a selector or --all")
		}
		found, err := e.read(ctx, c, g, s)
		failed.add(err)
		out = append(out, found...)
	}
	return out, failed.err()
}

// read reads the objects of a group.
func (e *env) read(ctx context.Context, c *client.Client, g group, s selection) ([]target, error) {
	var out []target
	if len(g.names) == 0 {
		list, _, err := c.List(ctx, g.kind, e.scope(g.kind, s))
		for _, o := range list {
			out = append(out, target{g.kind, o})
		}
		return out, err
	}
	if s.everywhere && g.kind.GetNamespaced() {
		return nil, errors.New("a resource cannot be retrieved by name across all namespaces")
	}
	var failed failures
	for _, name := range g.names {
		o, err := c.Get(ctx, g.kind, e.namespaceOf(g.kind), name)
		if err != nil {
			failed.add(err)
			continue
		}
		out = append(out, target{g.kind, o})
	}
	return out, failed.err()
}

// failures collects the errors of a verb that acts on many objects.
type failures []error

func (f *failures) add(err error) {
	var more failures
	switch {
	case errors.As(err, &more):
		*f = append(*f, more...)
	case err != nil:
		*f = append(*f, err)
	}
}

func (f failures) err() error {
	switch len(f) {
	case 0:
		return nil
	case 1:
		return f[0]
	}
	return f
}

// Error implements error.
func (f failures) Error() string {
	texts := make([]string, len(f))
	for i, err := range f {
		texts[i] = describe(err)
	}
	return strings.Join(texts, "\n")
}

func isNotFound(err error) bool { return status.Code(err) == codes.NotFound }

// withClient calls f with a client of the selected cluster.
func (e *env) withClient(f func(*client.Client) error) error {
	c, end, err := e.connect()
	if err != nil {
		return err
	}
	defer end()
	return f(c)
}

// completeObjects completes TYPE NAME… and TYPE/NAME… with types and names from the cluster.
func (e *env) completeObjects(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if word, _, ok := strings.Cut(typed, "/"); ok {
		var out []string
		for _, name := range e.liveNames(cmd.Context(), word) {
			out = append(out, word+"/"+name)
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
	if len(args) > 0 {
		return slices.DeleteFunc(e.liveNames(cmd.Context(), args[0]), func(n string) bool {
			return slices.Contains(args[1:], n)
		}), cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, k := range client.Kinds() {
		out = append(out, k.GetPlural())
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// completeNames completes names of objects of one type.
func (e *env) completeNames(word string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		return slices.DeleteFunc(e.liveNames(cmd.Context(), word), func(n string) bool { return slices.Contains(args, n) }),
			cobra.ShellCompDirectiveNoFileComp
	}
}
