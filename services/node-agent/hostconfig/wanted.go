package hostconfig

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"strings"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"github.com/windlass-dev/windlass/kit/machineconfig"
	"github.com/windlass-dev/windlass/kit/object"
)

// unreconcilableError means that a running machine cannot be brought to a configuration.
type unreconcilableError struct{ faults []object.Fault }

func (e *unreconcilableError) Error() string {
	var lines []string
	for _, f := range e.faults {
		lines = append(lines, f.String())
	}
	return strings.Join(lines, "; ")
}

// Kinds of file system entries.
const (
	absent    = "absent"
	file      = machineconfig.File
	directory = machineconfig.Directory
	link      = machineconfig.Link
)

// defaultDirectoryMode is the mode of directories that are made for what is in them.
const defaultDirectoryMode = 0o755

const (
	typeOneshot      = machineconfig.TypeOneshot
	restartAlways    = machineconfig.RestartAlways
	restartOnFailure = machineconfig.RestartOnFailure
	restartNo        = machineconfig.RestartNo
)

// entry is one thing that a configuration wants on disk.
type entry struct {
	path    string // below the machine's root, without a slash in front
	kind    string
	mode    fs.FileMode // of files and directories, without the type
	content []byte      // of files; dropped once it is on disk
	sum     string      // of the content
	target  string      // of links
	// overwrite says that it may replace what the host has there
	overwrite bool
	traits    traits // of what comes back; what a configuration wants has none of its own
}

// command is one line that a unit runs.
type command struct {
	args    []string // the first one is the program, an absolute path
	lenient bool     // its failure does not count
}

// unit is an enabled service.
type unit struct {
	name    string
	text    string // what it was made from: another text is another unit
	typ     string
	pre     []command
	start   []command
	reload  []command
	env     []string
	dir     string
	restart string
	limit   time.Duration
}

// long reports whether a unit runs until it is stopped.
func (u unit) long() bool { return u.typ != typeOneshot }

// wanted is what a configuration wants of a machine.
type wanted struct {
	entries []entry // directories first, then files, then links, each by path
	units   []unit  // enabled services, by name
}

// read returns what a configuration wants. The error is an unreconcilableError if a running machine cannot have it;
// before is the present configuration of the machine, nil if there is none. What does not change is no error: the
// present configuration is read with itself before it.
func read(before, cfg *configv1.MachineConfig) (wanted, error) {
	is, bad := machineconfig.Read(before, cfg)
	if len(bad) > 0 {
		return wanted{}, &unreconcilableError{bad}
	}
	var w wanted
	for _, e := range is.Entries {
		out := entry{path: e.Path, kind: e.Kind, mode: e.Mode, content: e.Content, target: e.Target, overwrite: e.Overwrite}
		if e.Kind == file {
			out.sum = sumOf(e.Content)
		}
		w.entries = append(w.entries, out)
	}
	for _, u := range is.Units {
		w.units = append(w.units, unit{
			name: u.Name, text: u.Text, typ: u.Type, pre: commands(u.Pre), start: commands(u.Start), reload: commands(u.Reload),
			env: u.Env, dir: u.Dir, restart: u.Restart, limit: u.Limit,
		})
	}
	return w, nil
}

func commands(of []machineconfig.Command) []command {
	var out []command
	for _, c := range of {
		out = append(out, command{args: c.Args, lenient: c.Lenient})
	}
	return out
}

func sumOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}
