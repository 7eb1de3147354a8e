package printer

import (
	"fmt"
	"io"

	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
)

// Changes is the output of modifying verbs: "machine.machine.openshift.io/a created", or the object.
type Changes struct {
	Output string
	format Format
	Dry    string // suffix for a dry run
	count  int
}

// changeFormats are the formats of modifying verbs.
var changeFormats = []string{JSON, YAML, Name, JSONPath}

// Parse parses the value of -o.
func (p *Changes) Parse() (err error) {
	p.format, err = Parse(p.Output, changeFormats...)
	return err
}

// Print prints one changed object.
func (p *Changes) Print(w io.Writer, k client.Kind, o object.Object, verb string) error {
	t := target.Item{Kind: k, Object: o}
	if p.format.Word == Table {
		_, err := fmt.Fprintf(w, "%s %s%s\n", t, verb, p.Dry)
		return err
	}
	if p.count++; p.count > 1 && p.format.Word == YAML {
		fmt.Fprintln(w, "---")
	}
	return p.format.Write(w, []target.Item{t}, true)
}
