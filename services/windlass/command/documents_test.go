package command_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/windlass-dev/windlass/services/windlass/command"
)

// run runs the command line in this process.
func (w *world) run(t *testing.T, in string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = command.Run(t.Context(), append(w.flags(), args...), strings.NewReader(in), &out, &errs)
	return code, out.String(), errs.String()
}

func (w *world) flags() []string {
	e := w.env("admin")
	return []string{
		"--server", e["WINDLASS_SERVER"], "--cacert", e["WINDLASS_CACERT"], "--cert", e["WINDLASS_CERT"],
		"--key", e["WINDLASS_KEY"],
	}
}

// placeholder is a refusal of a name that the documentation leaves to its reader, or leaves out.
var placeholder = regexp.MustCompile(
	`^\S+:[0-9]+: (metadata\.name|spec\.lifecycleHooks\.pre(Drain|Terminate)\[[0-9]+\]\.(name|owner)): `)

func TestDocumentsOfTheDocumentationLoadUnchanged(t *testing.T) {
	w := newWorld(t)
	// machines, their sets, nodes
	files, err := filepath.Glob("../../../kit/manifest/testdata/documents/00[0-3]-[0-9][0-9]-*[MN][ao][cd]*.yaml")
	check(t, err)
	files = slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, "-NodeSpec.yaml") })
	if len(files) < 11 {
		t.Fatalf("only %d documents", len(files))
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			check(t, err)
			text := string(raw)
			if !strings.Contains(text, "kind:") { // a fragment goes in as the kind that it is part of
				text = "apiVersion: machine.openshift.io/v1beta1\nkind: MachineSet\nmetadata: {name: fragment}\n" + text
			}
			code, stdout, stderr := w.run(t, text, "create", "-f", "-", "--dry-run=server", "-o", "name")
			if code == 0 {
				if !strings.HasSuffix(strings.TrimSpace(stdout), "/fragment") {
					t.Errorf("accepted without a name: %s", stdout)
				}
				return
			}
			lines := strings.Split(strings.TrimSpace(stderr), "\n")
			for _, line := range lines[1:] {
				if !placeholder.MatchString(line) {
					t.Errorf("refused for more than its names: %s", line)
				}
			}
			if len(lines) < 2 || !strings.Contains(lines[0], "from server (Invalid)") {
				t.Errorf("refused without a field: %s", stderr)
			}
			// With a name in the place of the placeholder it is accepted.
			named := regexp.MustCompile(`(?m)^metadata:\s*$`).ReplaceAllString(text, "metadata:\n  name: given")
			named = regexp.MustCompile(`(?m)^  name: given\n  name: .*$`).ReplaceAllString(named, "  name: given")
			named = regexp.MustCompile(`<hook_name>|<hook_owner>`).ReplaceAllString(named, "given")
			if code, _, stderr := w.run(t, named, "create", "-f", "-", "--dry-run=server"); code != 0 {
				t.Errorf("with names it is refused: %s\n%s", stderr, named)
			}
		})
	}
}

func TestAnInterruptedWatchIsNoError(t *testing.T) {
	w := newWorld(t)
	w.create(t, set("first", 1))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	lines := newLines()
	done := make(chan int, 1)
	go func() {
		done <- command.Run(ctx, append(w.flags(), "get", "machinesets", "--watch", "-o", "name"), nil, lines, os.Stderr)
	}()
	lines.await(t, "machineset.machine.openshift.io/first")
	w.create(t, set("second", 1))
	lines.await(t, "machineset.machine.openshift.io/second")
	if code, _, stderr := w.run(t, "", "scale", "machineset", "first", "--replicas=2"); code != 0 {
		t.Fatal(stderr)
	}
	lines.await(t, "machineset.machine.openshift.io/first")
	if code, _, stderr := w.run(t, "", "delete", "machineset", "second"); code != 0 {
		t.Fatal(stderr)
	}
	lines.await(t, "machineset.machine.openshift.io/second")
	cancel()
	if code := <-done; code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func set(name string, replicas int) string {
	return `{"apiVersion":"machine.openshift.io/v1beta1","kind":"MachineSet","metadata":{"name":"` + name +
		`"},"spec":{"replicas":` + string(rune('0'+replicas)) + `}}`
}

func (w *world) create(t *testing.T, document string) {
	t.Helper()
	if code, _, stderr := w.run(t, document, "create", "-f", "-"); code != 0 {
		t.Fatal(stderr)
	}
}

// lines is a writer whose lines can be waited for.
type lines struct {
	part string
	all  chan string
}

func newLines() *lines { return &lines{all: make(chan string, 100)} }

// Write implements io.Writer.
func (l *lines) Write(p []byte) (int, error) {
	l.part += string(p)
	for {
		line, rest, ok := strings.Cut(l.part, "\n")
		if !ok {
			return len(p), nil
		}
		l.all <- line
		l.part = rest
	}
}

func (l *lines) await(t *testing.T, want string) {
	t.Helper()
	select {
	case got := <-l.all:
		if got != want {
			t.Fatalf("printed %q, want %q", got, want)
		}
	case <-t.Context().Done():
		t.Fatalf("never printed %q", want)
	}
}
