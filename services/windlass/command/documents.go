package command

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
)

// files are the flag -f and the flags that modify it.
type files struct {
	names     []string
	recursive bool
}

func (f *files) flags(fs *pflag.FlagSet, what string) {
	fs.StringSliceVarP(&f.names, "filename", "f", nil, "file, directory or - with "+what)
	fs.BoolVarP(&f.recursive, "recursive", "R", false, "process the directory given with -f recursively")
}

// document is one object of a file.
type document struct {
	manifest.Document
	kind   client.Kind
	object object.Object
}

// read returns the valid objects of all files, and an error that lists every invalid document.
func (f files) read(in io.Reader) ([]document, error) {
	if len(f.names) == 0 {
		return nil, errors.New("must specify a file, a directory or - with -f")
	}
	var out []document
	var failed failures
	for _, name := range f.names {
		paths, err := f.expand(name)
		if err != nil {
			failed.add(err)
			continue
		}
		for _, p := range paths {
			documents, err := readFile(p, in)
			failed.add(err)
			out = append(out, documents...)
		}
	}
	return out, failed.err()
}

// expand returns the files that a value of -f names.
func (f files) expand(name string) ([]string, error) {
	if name == "-" {
		return []string{name}, nil
	}
	info, err := os.Stat(name)
	if err != nil {
		var wrong *fs.PathError
		if errors.As(err, &wrong) {
			return nil, fmt.Errorf("cannot read %q: %w", name, wrong.Err)
		}
		return nil, err
	}
	if !info.IsDir() {
		return []string{name}, nil
	}
	var out []string
	dir := filepath.Clean(name) + string(filepath.Separator) // so that a link to a directory is followed
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != dir && !f.recursive:
			return fs.SkipDir
		case !d.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)):
			out = append(out, path)
		}
		return nil
	})
	if err == nil && len(out) == 0 {
		err = fmt.Errorf("no *.yaml, *.yml or *.json files in %q", name)
	}
	return out, err
}

func readFile(path string, in io.Reader) ([]document, error) {
	shown := path
	if path == "-" {
		shown = "stdin"
	} else {
		opened, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer opened.Close()
		in = opened
	}
	parts, err := manifest.Split(in, shown)
	var failed failures
	failed.add(err)
	if err == nil && len(parts) == 0 {
		failed.add(fmt.Errorf("%s: no objects", shown))
	}
	var out []document
	for _, part := range parts {
		documents, err := decode(part)
		failed.add(err)
		out = append(out, documents...)
	}
	return out, failed.err()
}

// decode returns the object of a document.
func decode(d manifest.Document) ([]document, error) {
	k, err := client.KindOf(d.APIVersion, d.Kind)
	if err != nil {
		return nil, fmt.Errorf("%s:%d: %w", d.File, d.Line, err)
	}
	obj := k.New()
	if err := manifest.Decode(d.JSON, obj); err != nil {
		return nil, d.Locate(err)
	}
	return []document{{d, k, obj}}, nil
}

// place sets the namespace of a document's object from -n; it fails if the document names another one.
func (e *env) place(d document) error {
	m := d.object.GetMetadata()
	if m == nil || e.namespace == "" || !d.kind.GetNamespaced() {
		return nil
	}
	if m.Namespace != "" && m.Namespace != e.namespace {
		return fmt.Errorf(
			"%s:%d: the namespace of the object %q does not match the namespace %q; use --namespace=%s",
			d.File, d.LineOf("metadata.namespace"), m.Namespace, e.namespace, m.Namespace)
	}
	m.Namespace = e.namespace
	return nil
}

// placed adds file and line to the server's error about a document: one line for each invalid field.
func (d document) placed(err error) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		return fmt.Errorf("%s:%d: %w", d.File, d.Line, err)
	}
	var lines []string
	for _, detail := range st.Details() {
		bad, ok := detail.(*errdetails.BadRequest)
		if !ok {
			continue
		}
		for _, v := range bad.GetFieldViolations() {
			line := fmt.Sprintf("%s:%d: %s", d.File, d.LineOf(v.GetField()),
				strings.TrimPrefix(v.GetField()+": "+v.GetDescription(), ": "))
			if !slices.Contains(lines, line) {
				lines = append(lines, line)
			}
		}
	}
	if len(lines) == 0 {
		return errors.New(fmt.Sprintf("%s:%d: ", d.File, d.Line) + describe(err))
	}
	return fmt.Errorf("from server (%s): the %s at %s:%d is invalid:\n%s", reasonWord(st.Code()), d.kind.GetKind(), d.File,
		d.Line, strings.Join(lines, "\n"))
}

// dryRun is the flag --dry-run.
type dryRun string

func (d *dryRun) flag(fs *pflag.FlagSet) {
	fs.StringVar((*string)(d), "dry-run", "none",
		"none, client (do not send the request) or server (validate the request without storing the result)")
	fs.Lookup("dry-run").NoOptDefVal = "client"
}

func (d dryRun) check() error {
	if !slices.Contains([]dryRun{"none", "client", "server"}, d) {
		return fmt.Errorf("--dry-run=%s: must be none, client or server", string(d))
	}
	return nil
}

func (d dryRun) client() bool { return d == "client" }
func (d dryRun) server() bool { return d == "server" }

// suffix is printed after the verb; "" without a dry run.
func (d dryRun) suffix() string {
	switch {
	case d.client():
		return " (dry run)"
	case d.server():
		return " (server dry run)"
	}
	return ""
}
