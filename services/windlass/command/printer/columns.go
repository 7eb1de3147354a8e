package printer

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"

	"k8s.io/client-go/util/jsonpath"

	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

// Column is one column of custom-columns.
type Column struct {
	head string
	Path *jsonpath.JSONPath
}

func parseColumns(s string) ([]Column, error) {
	var out []Column
	for _, part := range strings.Split(s, ",") {
		head, path, ok := strings.Cut(part, ":")
		if !ok || head == "" || path == "" {
			return nil, fmt.Errorf("unexpected custom-columns spec: %s, expected <header>:<json-path-expr>", part)
		}
		p, err := ParsePath(path)
		if err != nil {
			return nil, err
		}
		out = append(out, Column{head, p})
	}
	return out, nil
}

func (f Format) customColumns(w io.Writer, objects []target.Item) error {
	rows, err := f.ColumnRows(objects)
	if err != nil {
		return err
	}
	return table.New(w).Print(rows...)
}

// ColumnRows returns the rows of custom-columns, with headings.
func (f Format) ColumnRows(objects []target.Item) ([][]string, error) {
	columns, err := parseColumns(f.argument)
	if err != nil {
		return nil, err
	}
	var head []string
	for _, c := range columns {
		head = append(head, c.head)
	}
	var rows [][]string
	if !f.Headless {
		rows = append(rows, head)
	}
	for _, t := range objects {
		v, err := Plain(t.Object)
		if err != nil {
			return nil, err
		}
		var row []string
		for _, c := range columns {
			text, err := c.Cell(v)
			if err != nil {
				return nil, err
			}
			row = append(row, text)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// Cell returns what the path of the column finds in an object in JSON form, as text.
func (c Column) Cell(v any) (string, error) {
	found, err := c.Path.FindResults(v)
	if err != nil {
		return "", err
	}
	var texts []string
	for _, list := range found {
		for _, x := range list {
			texts = append(texts, Scalar(x))
		}
	}
	if len(texts) == 0 {
		return table.None, nil
	}
	return strings.Join(texts, ","), nil
}

// Scalar returns a value found by a path as text.
func Scalar(x reflect.Value) string {
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
