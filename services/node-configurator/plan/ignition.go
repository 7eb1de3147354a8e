package plan

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/coreos/ignition/v2/config/v3_5/types"
	"github.com/windlass-dev/windlass/kit/ignition"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/types/known/structpb"
)

// versions are the versions of Ignition that a configuration may speak; it is rendered in the last of them.
func versions() []string { return []string{"3.0.0", "3.1.0", "3.2.0", "3.3.0", "3.4.0", "3.5.0"} }

// parse returns an Ignition configuration in version 3.5, or what is wrong with it; path is where it is in its
// object. An absent one is empty.
func parse(config *structpb.Struct, path string) (types.Config, []object.Fault) {
	empty := types.Config{Ignition: types.Ignition{Version: types.MaxVersion.String()}}
	if config == nil {
		return empty, nil
	}
	version := config.GetFields()["ignition"].GetStructValue().GetFields()["version"].GetStringValue()
	if !known(version) {
		return empty, []object.Fault{
			object.Faultf(path+".ignition.version", "is %q, must be one of %s", version, strings.Join(versions(), ", ")),
		}
	}
	out, report, err := ignition.Parse(config)
	if err == nil {
		return out, nil
	}
	var bad []object.Fault
	for _, e := range report.Entries {
		if e.Kind.IsFatal() {
			bad = append(bad, object.Fault{Path: at(path, e.Context.Path), Description: e.Message})
		}
	}
	if len(bad) == 0 {
		bad = []object.Fault{{Path: path, Description: err.Error()}}
	}
	return empty, bad
}

func known(version string) bool {
	for _, v := range versions() {
		if v == version {
			return true
		}
	}
	return false
}

// at writes a place inside an Ignition configuration as a path of JSON names.
func at(path string, steps []any) string {
	for _, s := range steps {
		if i, ok := s.(int); ok {
			path += fmt.Sprintf("[%d]", i)
		} else {
			path += fmt.Sprintf(".%v", s)
		}
	}
	return path
}

// format returns an Ignition configuration as a document has it, without what says nothing.
func format(config types.Config) (*structpb.Struct, error) {
	raw, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	var doc map[string]any
	if err := json.Unmarshal(raw, &doc); err != nil {
		return nil, err
	}
	prune(doc)
	return structpb.NewStruct(doc)
}

// prune takes out every object that holds nothing: Ignition's structs are written even where they are empty.
func prune(doc map[string]any) {
	for k, v := range doc {
		switch v := v.(type) {
		case map[string]any:
			prune(v)
			if len(v) == 0 {
				delete(doc, k)
			}
		case []any:
			for _, item := range v {
				if m, ok := item.(map[string]any); ok {
					prune(m)
				}
			}
		case nil:
			delete(doc, k)
		}
	}
}
