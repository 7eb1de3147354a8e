package explain

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	apiextensionsv1 "github.com/windlass-dev/windlass/gen/windlass/apiextensions/v1"
	"github.com/windlass-dev/windlass/services/windlass/client"
)

// schema is a schema of a CustomResourceDefinition, or a part of one. The zero schema has no fields.
type schema map[string]any

// schemaOf reads the schema of a kind from its CustomResourceDefinition.
func schemaOf(ctx context.Context, c *client.Client, k client.Kind) (schema, error) {
	name := k.GetPlural() + "." + k.GetGroup()
	d, err := apiextensionsv1.NewCustomResourceDefinitionServiceClient(c.Conn()).GetCustomResourceDefinition(ctx,
		&apiextensionsv1.GetCustomResourceDefinitionRequest{Name: name})
	if err != nil {
		return nil, fmt.Errorf("schema of %s: %w", name, err)
	}
	for _, v := range d.GetSpec().GetVersions() {
		if v.GetName() == k.GetVersion() {
			return v.GetSchema().GetOpenApiv3Schema().AsMap(), nil
		}
	}
	return nil, fmt.Errorf("schema of %s: it has no version %q", name, k.GetVersion())
}

// explainSchema prints the fields at a path of a schema; all of them if it is empty.
func explainSchema(w io.Writer, s schema, path string, recursive bool) error {
	at := "the schema"
	for name := range strings.SplitSeq(path, ".") {
		if path == "" {
			break
		}
		outer := s.fields()
		inner, ok := outer.properties()[name]
		if !ok {
			return fmt.Errorf("field %q does not exist in %s", name, at)
		}
		s, at = inner, name
		fmt.Fprintf(w, "FIELD: %s <%s>%s\n\n", name, s.typeName(), outer.mark(name))
	}
	if len(s.fields().properties()) > 0 {
		fmt.Fprintln(w, "FIELDS:")
		s.print(w, "  ", recursive)
	}
	return nil
}

// part returns a schema that is a part of this one.
func (s schema) part(name string) schema {
	inner, _ := s[name].(map[string]any)
	return inner
}

// fields returns the schema that has the nested fields: for a list or a map, that of its elements.
func (s schema) fields() schema {
	for _, name := range []string{"items", "additionalProperties"} {
		if inner := s.part(name); inner != nil {
			return inner.fields()
		}
	}
	return s
}

func (s schema) properties() map[string]schema {
	out := map[string]schema{}
	for name := range s.part("properties") {
		out[name] = s.part("properties").part(name)
	}
	return out
}

// mark returns a mark for a field that is required, with a leading space.
func (s schema) mark(field string) string {
	if required, _ := s["required"].([]any); slices.Contains(required, any(field)) {
		return " -required-"
	}
	return ""
}

// typeName returns the type of a field as kubectl names it.
func (s schema) typeName() string {
	typ, _ := s["type"].(string)
	switch {
	case s["x-kubernetes-int-or-string"] == true:
		return "integer or string"
	case typ == "array":
		return "[]" + s.part("items").typeName()
	case s.part("additionalProperties") != nil:
		return "map[string]" + s.part("additionalProperties").typeName()
	case s["x-kubernetes-preserve-unknown-fields"] == true && s.part("properties") == nil:
		return "free form object"
	}
	return typ
}

func (s schema) print(w io.Writer, indent string, recursive bool) {
	s = s.fields()
	fields := s.properties()
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		fmt.Fprintf(w, "%s%s\t<%s>%s\n", indent, name, fields[name].typeName(), s.mark(name))
		if recursive {
			fields[name].print(w, indent+"  ", true)
		}
	}
}
