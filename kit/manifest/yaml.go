package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml/goyaml.v2"
)

// YAML returns m as a YAML document, keys sorted as kubectl does it: apiVersion, kind, metadata, spec, status. Text
// that YAML 1.1 would read as something else is quoted, so that Split and Decode give m again.
func YAML(m proto.Message) ([]byte, error) {
	text, err := Encode(m)
	if err != nil {
		return nil, err
	}
	if bytes.Contains(text, []byte(`"<<":`)) {
		return append(text, '\n'), nil // the library would print that key as a merge; JSON is YAML too
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("print as YAML: %w", err)
	}
	out, err := yaml.Marshal(plain(v))
	if err != nil {
		return nil, fmt.Errorf("print as YAML: %w", err)
	}
	return out, nil
}

// plain replaces the numbers in v, which it changes, by ones that the YAML library knows.
func plain(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			v[k] = plain(e)
		}
	case []any:
		for i, e := range v {
			v[i] = plain(e)
		}
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		if f, err := v.Float64(); err == nil {
			return f
		}
		return v.String()
	}
	return v
}

// toJSON writes what the YAML library read as JSON, keys sorted, the way sigs.k8s.io/yaml does. Unlike that it refuses
// keys that become the same text, such as 1 and "1". In case of problems there is no JSON.
func toJSON(v any) ([]byte, []Problem) {
	c := converter{}
	object := c.convert(v)
	if len(c.problems) > 0 {
		slices.SortFunc(c.problems, func(a, b Problem) int { return bytes.Compare([]byte(a.Path), []byte(b.Path)) })
		return nil, c.problems
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(object); err != nil {
		return nil, []Problem{{Message: err.Error()}}
	}
	return bytes.TrimSpace(out.Bytes()), nil
}

type converter struct {
	path     []byte
	problems []Problem
}

func (c *converter) note(message string) {
	if len(c.problems) < maxProblems {
		c.problems = append(c.problems, Problem{Path: string(c.path), Message: message})
	}
}

func (c *converter) convert(v any) any {
	outer := len(c.path)
	switch v := v.(type) {
	case map[any]any:
		object := make(map[string]any, len(v))
		for k, e := range v {
			key, ok := keyText(k)
			if !ok {
				c.note(fmt.Sprintf("a key must be text, not %v", k))
				continue
			}
			c.path = appendKey(c.path, key)
			if _, taken := object[key]; taken {
				c.note("is given twice")
			}
			object[key] = c.convert(e)
			c.path = c.path[:outer]
		}
		return object
	case []any:
		for i, e := range v {
			c.path = appendIndex(c.path, i)
			v[i] = c.convert(e)
			c.path = c.path[:outer]
		}
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			c.note("must be a finite number")
		}
	}
	return v
}

// keyText returns a key as JSON has it.
func keyText(key any) (string, bool) {
	switch key := key.(type) {
	case string:
		return key, true
	case bool:
		return strconv.FormatBool(key), true
	case int, int64, uint64:
		return fmt.Sprint(key), true
	case float64:
		return strconv.FormatFloat(key, 'g', -1, 64), !math.IsNaN(key) && !math.IsInf(key, 0)
	}
	return "", false
}
