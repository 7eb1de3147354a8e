package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strings"

	"google.golang.org/protobuf/proto"
	"k8s.io/client-go/util/jsonpath"

	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

// format is a parsed value of the flag -o: a word, and for some words an argument after "=".
type format struct {
	word, argument string
	headless       bool // omits the headings of custom columns
}

// Words of the flag -o.
const (
	formatTable    = ""
	formatWide     = "wide"
	formatJSON     = "json"
	formatYAML     = "yaml"
	formatName     = "name"
	formatJSONPath = "jsonpath"
	formatColumns  = "custom-columns"
)

// parseFormat parses a value of -o; allowed are the words that the verb supports.
func parseFormat(s string, allowed ...string) (format, error) {
	word, argument, has := strings.Cut(s, "=")
	needs := word == formatJSONPath || word == formatColumns
	for _, a := range allowed {
		if a == word && has == needs {
			return format{word: word, argument: argument}, nil
		}
		if a == word && needs {
			return format{}, fmt.Errorf("-o %s requires an argument: -o %s=…", word, word)
		}
	}
	if s == "" {
		return format{}, nil
	}
	return format{}, fmt.Errorf("unable to match a printer suitable for the output format %q, allowed formats are: %s", s,
		strings.Join(allowed, ","))
}

// plain returns the JSON form of an object as maps, lists and scalars.
func plain(m proto.Message) (any, error) {
	raw, err := manifest.Encode(m)
	if err != nil {
		return nil, err
	}
	var v any
	return v, json.Unmarshal(raw, &v)
}

// writeJSON prints v as kubectl does: indented by four spaces, keys sorted, without HTML escapes.
func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "    ")
	return enc.Encode(v)
}

// messageOut prints a message as JSON or YAML.
func messageOut(w io.Writer, f format, m proto.Message) error {
	if f.word == formatYAML {
		text, err := manifest.YAML(m)
		if err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	}
	v, err := plain(m)
	if err != nil {
		return err
	}
	return writeJSON(w, v)
}

// listOf returns a List object in JSON form.
func listOf(objects []target) (any, error) {
	items := make([]any, len(objects))
	for i, t := range objects {
		v, err := plain(t.object)
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
func yamlList(w io.Writer, objects []target) error {
	var b bytes.Buffer
	b.WriteString("apiVersion: v1\nitems:")
	if len(objects) == 0 {
		b.WriteString(" []")
	}
	b.WriteString("\n")
	for _, t := range objects {
		text, err := manifest.YAML(t.object)
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
	_, err := w.Write(b.Bytes())
	return err
}

// write prints objects in the format; single prints one object itself instead of a List.
func (f format) write(w io.Writer, objects []target, single bool) error {
	switch f.word {
	case formatName:
		for _, t := range objects {
			fmt.Fprintln(w, t)
		}
		return nil
	case formatColumns:
		return f.customColumns(w, objects)
	}
	if single && len(objects) == 1 {
		if f.word == formatJSONPath {
			v, err := plain(objects[0].object)
			if err != nil {
				return err
			}
			return f.jsonPath(w, v)
		}
		return messageOut(w, f, objects[0].object)
	}
	if f.word == formatYAML {
		return yamlList(w, objects)
	}
	list, err := listOf(objects)
	if err != nil {
		return err
	}
	if f.word == formatJSONPath {
		return f.jsonPath(w, list)
	}
	return writeJSON(w, list)
}

var barePath = regexp.MustCompile(`^\{?\.?([^{}]+)\}?$`)

// relaxed parses a path as kubectl does: "metadata.name", ".metadata.name" and "{.metadata.name}" are equivalent.
func relaxed(path string) (*jsonpath.JSONPath, error) {
	found := barePath.FindStringSubmatch(path)
	if found == nil || strings.HasPrefix(path, "{") != strings.HasSuffix(path, "}") {
		return nil, fmt.Errorf("unexpected path string %q: expected something like 'metadata.name' or '{.metadata.name}'",
			path)
	}
	p := jsonpath.New("path").AllowMissingKeys(true)
	return p, p.Parse("{." + found[1] + "}")
}

func (f format) jsonPath(w io.Writer, v any) error {
	p := jsonpath.New("out").AllowMissingKeys(true)
	if err := p.Parse(f.argument); err != nil {
		return fmt.Errorf("error parsing jsonpath %s: %w", f.argument, err)
	}
	return p.Execute(w, v)
}

// column is one column of custom-columns.
type column struct {
	head string
	path *jsonpath.JSONPath
}

func parseColumns(s string) ([]column, error) {
	var out []column
	for _, part := range strings.Split(s, ",") {
		head, path, ok := strings.Cut(part, ":")
		if !ok || head == "" || path == "" {
			return nil, fmt.Errorf("unexpected custom-columns spec: %s, expected <header>:<json-path-expr>", part)
		}
		p, err := relaxed(path)
		if err != nil {
			return nil, err
		}
		out = append(out, column{head, p})
	}
	return out, nil
}

func (f format) customColumns(w io.Writer, objects []target) error {
	rows, err := f.columnRows(objects)
	if err != nil {
		return err
	}
	return table.New(w).Print(rows...)
}

// columnRows returns the rows of custom-columns, with headings.
func (f format) columnRows(objects []target) ([][]string, error) {
	columns, err := parseColumns(f.argument)
	if err != nil {
		return nil, err
	}
	var head []string
	for _, c := range columns {
		head = append(head, c.head)
	}
	var rows [][]string
	if !f.headless {
		rows = append(rows, head)
	}
	for _, t := range objects {
		v, err := plain(t.object)
		if err != nil {
			return nil, err
		}
		var row []string
		for _, c := range columns {
			text, err := c.cell(v)
			if err != nil {
				return nil, err
			}
			row = append(row, text)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func (c column) cell(v any) (string, error) {
	found, err := c.path.FindResults(v)
	if err != nil {
		return "", err
	}
	var texts []string
	for _, list := range found {
		for _, x := range list {
			texts = append(texts, scalar(x))
		}
	}
	if len(texts) == 0 {
		return table.None, nil
	}
	return strings.Join(texts, ","), nil
}

// scalar returns a value found by a path as text.
func scalar(x reflect.Value) string {
	if !x.IsValid() || !x.CanInterface() {
		return table.None
	}
	v := x.Interface()
	switch v.(type) {
	case map[string]any, []any:
		if raw, err := json.Marshal(v); err == nil {
			return string(raw)
		}
	}
	return manifest.Format(v)
}

// printed is the output of modifying verbs: "machine.machine.openshift.io/a created", or the object.
type printed struct {
	output string
	format format
	dry    string // suffix for a dry run
	count  int
}

// changeFormats are the formats of modifying verbs.
var changeFormats = []string{formatJSON, formatYAML, formatName, formatJSONPath}

func (p *printed) parse() (err error) {
	p.format, err = parseFormat(p.output, changeFormats...)
	return err
}

func (p *printed) print(w io.Writer, k client.Kind, o object.Object, verb string) error {
	t := target{k, o}
	if p.format.word == formatTable {
		_, err := fmt.Fprintf(w, "%s %s%s\n", t, verb, p.dry)
		return err
	}
	if p.count++; p.count > 1 && p.format.word == formatYAML {
		fmt.Fprintln(w, "---")
	}
	return p.format.write(w, []target{t}, true)
}
