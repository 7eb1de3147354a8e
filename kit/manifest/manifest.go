// Package manifest turns the documents that people write into messages and back. It is strict: an unknown field, a
// duplicate key or a value of the wrong type is refused with its path, and all such problems of a document are reported
// together. It knows shapes only; limits of values are protovalidate's part.
package manifest

import (
	"fmt"
	"strings"
)

const (
	maxDocument = 8 << 20  // bytes of one document, as much as etcd takes in one request
	maxStream   = 64 << 20 // bytes of one stream of documents, so that a wrong file does not fill the memory
	maxNesting  = 30       // objects and lists inside each other; other readers of protobuf stop soon after
	maxProblems = 100      // reported for one document; further ones are dropped
)

// unknownField is the message of a problem that is a field which the kind does not have.
const unknownField = "unknown field"

// Problem is one thing that is wrong with a document.
type Problem struct {
	Path    string // JSON names, such as "spec.lifecycleHooks.preDrain[0].owner"; empty for the document as a whole
	Message string // what is wrong with it, such as "unknown field"
	Line    int    // line in the file, from 1; 0 if it is not known
}

// String returns the problem in one line, without its place in a file.
func (p Problem) String() string {
	switch {
	case p.Path == "":
		return p.Message
	case p.Message == unknownField:
		return fmt.Sprintf("%s %q", unknownField, p.Path)
	default:
		return p.Path + ": " + p.Message
	}
}

// Errors lists everything that is wrong with one document, in its order. It is never empty.
type Errors struct {
	File     string // the file that the lines of Problems belong to; empty if there is none
	Problems []Problem
}

// Error joins the problems: with a file one to a line, as in "file.yaml:12: spec.x: unknown field", else by commas.
func (e *Errors) Error() string {
	texts := make([]string, len(e.Problems))
	if e.File == "" {
		for i, p := range e.Problems {
			texts[i] = p.String()
		}
		return strings.Join(texts, ", ")
	}
	for i, p := range e.Problems {
		texts[i] = fmt.Sprintf("%s:%d: %s", e.File, p.Line, p.placed())
	}
	return strings.Join(texts, "\n")
}

func (p Problem) placed() string {
	if p.Path == "" {
		return p.Message
	}
	return p.Path + ": " + p.Message
}

// UnknownFields returns the paths of all fields that the kind does not have; none if the problems are others.
func (e *Errors) UnknownFields() []string {
	var paths []string
	for _, p := range e.Problems {
		if p.Message == unknownField {
			paths = append(paths, p.Path)
		}
	}
	return paths
}
