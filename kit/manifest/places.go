package manifest

import (
	"errors"
	"slices"
	"strconv"
	"sync"

	"gopkg.in/yaml.v3"
)

// places finds the lines of a document's fields. It reads the source again when it is first asked.
type places struct {
	source []byte
	line   int // of the file, where source begins

	once sync.Once
	root *yaml.Node // nil if the source cannot be read so
}

// LineOf returns the line of the field at path in the file, from 1. For an absent field it is the line of the nearest
// enclosing one. Safe for concurrent calls.
func (d Document) LineOf(path string) int {
	if d.places == nil {
		return d.Line
	}
	if line := d.places.lineOf(path); path != "" && line > 0 {
		return line
	}
	return d.Line
}

// Locate adds the file and the lines to an error of Decode. Other errors are returned as they are.
func (d Document) Locate(err error) error {
	var found *Errors
	if !errors.As(err, &found) {
		return err
	}
	located := &Errors{File: d.File, Problems: slices.Clone(found.Problems)}
	for i, p := range located.Problems {
		located.Problems[i].Line = d.LineOf(p.Path)
	}
	return located
}

// lineOf returns the line of the file, 0 if it is unknown.
func (p *places) lineOf(path string) int {
	p.once.Do(func() {
		var document yaml.Node
		if _, err := checkYAML(p.source); err != nil {
			return // JSON is not bounded as YAML is: better no line than a tree of millions of nodes
		}
		if yaml.Unmarshal(p.source, &document) == nil && len(document.Content) == 1 {
			p.root = document.Content[0]
		}
	})
	steps, err := parsePath(path)
	if p.root == nil || err != nil {
		return 0
	}
	line, node := p.root.Line, p.root
	for _, s := range steps {
		at, child := stepInto(node, s)
		if child == nil {
			break
		}
		line, node = at, child
	}
	return p.line + line - 1
}

// stepInto returns the child of a node that a step leads to, and the line where that begins; nil if there is none.
func stepInto(node *yaml.Node, s step) (int, *yaml.Node) {
	switch {
	case node.Kind == yaml.MappingNode:
		return stepIntoMapping(node, s)
	case node.Kind != yaml.SequenceNode:
	case s.pick:
		for _, element := range node.Content {
			for _, key := range [...]string{"type", "name"} {
				if _, v := stepInto(element, step{name: key}); v != nil && v.Value == s.name {
					return element.Line, element
				}
			}
		}
	case s.name == "" && s.index < len(node.Content):
		return node.Content[s.index].Line, node.Content[s.index]
	}
	return 0, nil
}

func stepIntoMapping(node *yaml.Node, s step) (int, *yaml.Node) {
	name := s.name
	if name == "" { // a map with numbers for keys
		name = strconv.Itoa(s.index)
	}
	line, value := 0, (*yaml.Node)(nil)
	for i := 0; i+1 < len(node.Content); i += 2 { // the last one counts: of a key given twice that is the wrong one
		key := node.Content[i]
		if key.Value == name || name == "apiVersion" && value == nil &&
			(key.Value == "apiversion" || key.Value == "version") {
			line, value = key.Line, node.Content[i+1]
		}
	}
	return line, value
}
