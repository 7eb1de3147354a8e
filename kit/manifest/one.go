package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"

	"sigs.k8s.io/yaml"
)

// ReadOne reads a file of one YAML document that is no manifest into a struct with JSON tags. It refuses what Split
// refuses: keys given twice, anchors and aliases; and a second document. Fields that the struct lacks are left out.
func ReadOne(text []byte, to any) error {
	if line, err := checkYAML(text); err != nil {
		return fmt.Errorf("line %d: %w", line, err)
	}
	begun := false
	for i, line := range bytes.Split(text, []byte("\n")) {
		marker := bytes.HasPrefix(line, []byte("---")) || bytes.HasPrefix(line, []byte("..."))
		switch content := bytes.TrimSpace(line); {
		case marker && begun:
			return fmt.Errorf("line %d: a second document begins, only one is read", i+1)
		case len(content) > 0 && content[0] != '#':
			begun = true
		}
	}
	raw, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, to)
}
