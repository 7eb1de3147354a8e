// Package explain makes the commands explain and api-resources: the kinds of the API, their fields, and why a pod is
// where it is.
package explain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
)

// New returns the command explain.
func New(e *session.Env) *cobra.Command {
	var recursive bool
	var output string
	var s suppositions
	cmd := &cobra.Command{
		Use:   "explain (TYPE[.FIELD...] | pod NAME | pod -f FILE)",
		Short: "Show the fields of a type, or explain the placement of a pod",
		Example: `  windlass explain machine.spec
  windlass explain machineset.spec.template --recursive
  windlass explain pod hello-pod
  windlass explain pod -f pod.yaml --without-node=worker-a --with-label=worker-b:zone=east`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := target.PodName(args[0])
			pods := slices.Contains([]string{"pod", "pods", "po"}, args[0])
			switch {
			case len(s.files.Names) > 0 && (!pods || len(args) != 1):
				return errors.New("-f gives the pod to explain: use `windlass explain pod -f FILE`, without a name")
			case len(s.files.Names) > 0:
				name = ""
			case len(args) == 2 && pods:
				name = args[1]
			case len(args) == 2:
				return fmt.Errorf("%s: only pods can be explained by name; use `windlass plan` for other kinds", args[0])
			case name == args[0]:
				return explain(cmd.Context(), e, args[0], recursive)
			}
			f, err := printer.Parse(output, printer.JSON, printer.YAML)
			if err != nil {
				return err
			}
			return e.WithClient(func(c *client.Client) error { return explainPod(cmd.Context(), e, c, name, &s, f) })
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			var out []string
			for _, k := range e.Kinds(cmd.Context()) {
				out = append(out, k.GetSingular())
			}
			return out, cobra.ShellCompDirectiveNoFileComp
		},
	}
	cmd.Flags().BoolVar(&recursive, "recursive", false, "also show nested fields")
	s.addFlags(cmd.Flags())
	cmd.Flags().StringVarP(&output, "output", "o", "", "output format of a pod's placement: json or yaml")
	return cmd
}

func explain(ctx context.Context, e *session.Env, path string, recursive bool) error {
	word, rest, _ := strings.Cut(path, ".")
	k, err := e.FindKind(ctx, word)
	if err != nil {
		return err
	}
	w := e.Out
	fmt.Fprintf(w, "GROUP:      %s\nKIND:       %s\nVERSION:    %s\n\n", k.GetGroup(), k.GetKind(), k.GetVersion())
	if k.Custom() {
		return e.WithClient(func(c *client.Client) error {
			s, err := schemaOf(ctx, c, k)
			if err != nil {
				return err
			}
			return explainSchema(w, s, rest, recursive)
		})
	}
	d := k.Message
	if rest != "" {
		var f protoreflect.FieldDescriptor
		if f, d, err = fieldAt(d, rest); err != nil {
			return err
		}
		fmt.Fprintf(w, "FIELD: %s <%s>%s\n\n", f.JSONName(), typeName(f), rules(f))
	}
	if d == nil {
		return nil
	}
	fmt.Fprintln(w, "FIELDS:")
	printFields(w, d, "  ", recursive, map[protoreflect.FullName]bool{})
	return nil
}

// fieldAt returns the field at a path of JSON names, and its message if it has nested fields.
func fieldAt(d protoreflect.MessageDescriptor, path string) (protoreflect.FieldDescriptor,
	protoreflect.MessageDescriptor, error,
) {
	var f protoreflect.FieldDescriptor
	for _, name := range strings.Split(path, ".") {
		if d == nil {
			return nil, nil, fmt.Errorf("field %q does not exist: %s has no nested fields", name, f.JSONName())
		}
		if f = d.Fields().ByJSONName(name); f == nil {
			return nil, nil, fmt.Errorf("field %q does not exist in %s", name, d.Name())
		}
		d = below(f)
	}
	return f, d, nil
}

// below returns the message of a field that has nested fields, else nil.
func below(f protoreflect.FieldDescriptor) protoreflect.MessageDescriptor {
	if f.IsMap() {
		f = f.MapValue()
	}
	if f.Message() == nil || strings.HasPrefix(string(f.Message().FullName()), "google.protobuf.") {
		return nil
	}
	return f.Message()
}

func printFields(w io.Writer, d protoreflect.MessageDescriptor, indent string, recursive bool,
	around map[protoreflect.FullName]bool,
) {
	if around[d.FullName()] {
		return
	}
	around[d.FullName()] = true
	defer delete(around, d.FullName())
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		fmt.Fprintf(w, "%s%s\t<%s>%s\n", indent, f.JSONName(), typeName(f), rules(f))
		if inner := below(f); recursive && inner != nil {
			printFields(w, inner, indent+"  ", true, around)
		}
	}
}

// typeName returns the type of a field as kubectl names it.
func typeName(f protoreflect.FieldDescriptor) string {
	switch {
	case f.IsMap():
		return "map[" + f.MapKey().Kind().String() + "]" + singleType(f.MapValue())
	case f.IsList():
		return "[]" + singleType(f)
	}
	return singleType(f)
}

func singleType(f protoreflect.FieldDescriptor) string {
	switch {
	case f.Message() != nil:
		switch f.Message().FullName() {
		case "google.protobuf.Struct":
			return "free form object"
		case "google.protobuf.Value":
			return "number or string"
		case "google.protobuf.Timestamp":
			return "time"
		}
		return string(f.Message().Name())
	case f.Kind() == protoreflect.BoolKind:
		return "boolean"
	case f.Kind() == protoreflect.StringKind:
		return "string"
	case f.Kind() == protoreflect.DoubleKind || f.Kind() == protoreflect.FloatKind:
		return "number"
	}
	return "integer"
}

// rules returns a short description of a field's validation rules, with a leading space; "" if it has none of those
// that are shown.
func rules(f protoreflect.FieldDescriptor) string {
	r, _ := proto.GetExtension(f.Options(), validate.E_Field).(*validate.FieldRules)
	if r == nil {
		return ""
	}
	var words []string
	if r.GetRequired() {
		words = append(words, "-required-")
	}
	if s := r.GetString(); s != nil {
		if in := s.GetIn(); len(in) > 0 {
			words = append(words, "one of: "+strings.TrimPrefix(strings.Join(in, ", "), ", "))
		}
		if s.HasMinLen() || s.HasMaxLen() {
			words = append(words, fmt.Sprintf("%d to %d characters", s.GetMinLen(), s.GetMaxLen()))
		}
	}
	if n := r.GetInt32(); n != nil {
		for _, v := range n.GetIn() {
			words = append(words, fmt.Sprint(v))
		}
		if n.HasGte() {
			words = append(words, fmt.Sprintf("%d or more", n.GetGte()))
		}
	}
	if len(words) == 0 {
		return ""
	}
	return " " + strings.Join(words, ", ")
}
