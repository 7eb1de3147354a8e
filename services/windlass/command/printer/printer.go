// Package printer prints objects in the formats of the flag -o, and the parts of objects that several commands show.
package printer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"

	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
	"github.com/windlass-dev/windlass/services/windlass/terminal"
)

// Format is a parsed value of the flag -o: a word, and for some words an argument after "=".
type Format struct {
	Word, argument string
	Headless       bool // omits the headings of custom columns
}

// Words of the flag -o.
const (
	Table    = ""
	Wide     = "wide"
	JSON     = "json"
	YAML     = "yaml"
	Name     = "name"
	JSONPath = "jsonpath"
	Columns  = "custom-columns"
)

// Parse parses a value of -o; allowed are the words that the verb supports.
func Parse(s string, allowed ...string) (Format, error) {
	word, argument, has := strings.Cut(s, "=")
	needs := word == JSONPath || word == Columns
	for _, a := range allowed {
		if a == word && has == needs {
			return Format{Word: word, argument: argument}, nil
		}
		if a == word && needs {
			return Format{}, fmt.Errorf("-o %s requires an argument: -o %s=…", word, word)
		}
	}
	if s == "" {
		return Format{}, nil
	}
	return Format{}, fmt.Errorf("unable to match a printer suitable for the output format %q, allowed formats are: %s", s,
		strings.Join(allowed, ","))
}

// Plain returns the JSON form of an object as maps, lists and scalars.
func Plain(m proto.Message) (any, error) {
	raw, err := manifest.Encode(m)
	if err != nil {
		return nil, err
	}
	var v any
	return v, json.Unmarshal(raw, &v)
}

// WriteJSON prints v as kubectl does: indented by four spaces, keys sorted, without HTML escapes.
func WriteJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(terminal.Raw(w))
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "    ")
	return enc.Encode(v)
}

// Message prints a message as JSON or YAML.
func Message(w io.Writer, f Format, m proto.Message) error {
	if f.Word == YAML {
		text, err := manifest.YAML(m)
		if err != nil {
			return err
		}
		_, err = terminal.Raw(w).Write(text)
		return err
	}
	v, err := Plain(m)
	if err != nil {
		return err
	}
	return WriteJSON(w, v)
}

// Whole is Message with the lists, numbers and booleans of the message itself that are empty, zero and false, so that a
// program need not know that they are left out elsewhere. Those of messages in it are left out, and so is what is
// optional and absent.
func Whole(w io.Writer, f Format, m proto.Message) error {
	v, err := Plain(m)
	if err != nil {
		return err
	}
	if fields, ok := v.(map[string]any); ok {
		list := m.ProtoReflect().Descriptor().Fields()
		for i := range list.Len() {
			name := list.Get(i).JSONName()
			if _, there := fields[name]; !there {
				if empty := emptyOf(list.Get(i)); empty != nil {
					fields[name] = empty
				}
			}
		}
	}
	if f.Word != YAML {
		return WriteJSON(w, v)
	}
	text, err := yaml.Marshal(v)
	if err != nil {
		return err
	}
	_, err = terminal.Raw(w).Write(text)
	return err
}

// emptyOf returns the JSON form of a field that is not set; nil if it has none.
func emptyOf(f protoreflect.FieldDescriptor) any {
	switch {
	case f.IsList():
		return []any{}
	case f.IsMap() || f.HasPresence():
		return nil
	case f.Kind() == protoreflect.BoolKind:
		return false
	case f.Kind() == protoreflect.Int32Kind:
		return 0
	}
	return nil
}

// listOf returns a List object in JSON form.
func listOf(objects []target.Item) (any, error) {
	items := make([]any, len(objects))
	for i, t := range objects {
		v, err := Plain(t.Object)
		if err != nil {
			return nil, err
		}
		items[i] = v
	}
	return map[string]any{
		"apiVersion": "v1", "kind": "List", "metadata": map[string]any{"resourceVersion": ""},
		"items": items,
	}, nil
}

// yamlList prints a list of objects as YAML.
func yamlList(w io.Writer, objects []target.Item) error {
	var b bytes.Buffer
	b.WriteString("apiVersion: v1\nitems:")
	if len(objects) == 0 {
		b.WriteString(" []")
	}
	b.WriteString("\n")
	for _, t := range objects {
		text, err := manifest.YAML(t.Object)
		if err != nil {
			return err
		}
		for i, line := range strings.Split(strings.TrimRight(string(text), "\n"), "\n") {
			switch {
			case i == 0:
				b.WriteString("- " + line + "\n")
			case line == "":
				b.WriteString("\n")
			default:
				b.WriteString("  " + line + "\n")
			}
		}
	}
	b.WriteString("kind: List\nmetadata:\n  resourceVersion: \"\"\n")
	_, err := terminal.Raw(w).Write(b.Bytes())
	return err
}

// Write prints objects in the format; single prints one object itself instead of a List.
func (f Format) Write(w io.Writer, objects []target.Item, single bool) error {
	switch f.Word {
	case Name:
		for _, t := range objects {
			fmt.Fprintln(w, t)
		}
		return nil
	case Columns:
		return f.customColumns(w, objects)
	}
	if single && len(objects) == 1 {
		if f.Word == JSONPath {
			v, err := Plain(objects[0].Object)
			if err != nil {
				return err
			}
			return f.jsonPath(w, v)
		}
		return Message(w, f, objects[0].Object)
	}
	if f.Word == YAML {
		return yamlList(w, objects)
	}
	list, err := listOf(objects)
	if err != nil {
		return err
	}
	if f.Word == JSONPath {
		return f.jsonPath(w, list)
	}
	return WriteJSON(w, list)
}

var barePath = regexp.MustCompile(`^\{?\.?([^{}]+)\}?$`)

// ParsePath parses a path as kubectl does: "metadata.name", ".metadata.name" and "{.metadata.name}" are equivalent.
func ParsePath(path string) (*jsonpath.JSONPath, error) {
	found := barePath.FindStringSubmatch(path)
	if found == nil || strings.HasPrefix(path, "{") != strings.HasSuffix(path, "}") {
		return nil, fmt.Errorf("unexpected path string %q: expected something like 'metadata.name' or '{.metadata.name}'",
			path)
	}
	p := jsonpath.New("path").AllowMissingKeys(true)
	return p, p.Parse("{." + found[1] + "}")
}

func (f Format) jsonPath(w io.Writer, v any) error {
	p := jsonpath.New("out").AllowMissingKeys(true)
	if err := p.Parse(f.argument); err != nil {
		return fmt.Errorf("error parsing jsonpath %s: %w", f.argument, err)
	}
	return p.Execute(terminal.Raw(w), v)
}
