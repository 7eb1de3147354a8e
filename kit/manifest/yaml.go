package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml/goyaml.v2"
)

// YAML returns m as a YAML document, keys sorted as kubectl does it: apiVersion, kind, metadata, spec, status. Text that YAML 1.1
// would read as something else is quoted, so that Split and Decode give m again.
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
