// Package input reads the objects that files or stdin contain, and reports errors by file and line.
package input

import (
	"context"
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
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

// Files are the flag -f and the flags that modify it.
type Files struct {
	Names     []string
	recursive bool
}

// AddFlags adds -f and -R to the flags of a command; what names the objects in the help.
func (f *Files) AddFlags(fs *pflag.FlagSet, what string) {
	fs.StringSliceVarP(&f.Names, "filename", "f", nil, "file, directory or - with "+what)
	fs.BoolVarP(&f.recursive, "recursive", "R", false, "process the directory given with -f recursively")
}

// Document is one object of a file.
type Document struct {
	manifest.Document
	Kind   client.Kind
	Object object.Object
}

// ReadAny is Read for objects of all kinds, those of CustomResourceDefinitions in the cluster included.
func (f Files) ReadAny(ctx context.Context, e *session.Env) ([]Document, error) {
	return f.read(e.In, func(apiVersion, kind string) (client.Kind, error) { return e.KindOf(ctx, apiVersion, kind) })
}

// Read returns the valid objects of all files, and an error that lists every invalid document.
func (f Files) Read(in io.Reader) ([]Document, error) { return f.read(in, client.KindOf) }

// find returns the kind that a document names.
type find func(apiVersion, kind string) (client.Kind, error)

func (f Files) read(in io.Reader, kind find) ([]Document, error) {
	if len(f.Names) == 0 {
		return nil, errors.New("must specify a file, a directory or - with -f")
	}
	var out []Document
	var failed failure.List
	for _, name := range f.Names {
		paths, err := f.expand(name)
		if err != nil {
			failed.Add(err)
			continue
		}
		for _, p := range paths {
			documents, err := readFile(p, in, kind)
			failed.Add(err)
			out = append(out, documents...)
		}
	}
	return out, failed.Err()
}

// expand returns the files that a value of -f names.
func (f Files) expand(name string) ([]string, error) {
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

func readFile(path string, in io.Reader, kind find) ([]Document, error) {
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
	var failed failure.List
	failed.Add(err)
	if err == nil && len(parts) == 0 {
		failed.Add(fmt.Errorf("%s: no objects", shown))
	}
	var out []Document
	for _, part := range parts {
		documents, err := decode(part, kind)
		failed.Add(err)
		out = append(out, documents...)
	}
	return out, failed.Err()
}

// decode returns the object of a document.
func decode(d manifest.Document, kind find) ([]Document, error) {
	k, err := kind(d.APIVersion, d.Kind)
	if err != nil {
		return nil, fmt.Errorf("%s:%d: %w", d.File, d.Line, err)
	}
	obj := k.New()
	if err := manifest.Decode(d.JSON, obj); err != nil {
		return nil, d.Locate(err)
	}
	return []Document{{d, k, obj}}, nil
}

// Place sets the namespace of a document's object from -n; it fails if the document names another one.
func Place(e *session.Env, d Document) error {
	m := d.Object.GetMetadata()
	if m == nil || e.Namespace == "" || !d.Kind.GetNamespaced() {
		return nil
	}
	if m.Namespace != "" && m.Namespace != e.Namespace {
		return fmt.Errorf(
			"%s:%d: the namespace of the object %q does not match the namespace %q; use --namespace=%s",
			d.File, d.LineOf("metadata.namespace"), m.Namespace, e.Namespace, m.Namespace)
	}
	m.Namespace = e.Namespace
	return nil
}

// Placed adds file and line to the server's error about a document: one line for each invalid field.
func (d Document) Placed(err error) error {
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
		return errors.New(fmt.Sprintf("%s:%d: ", d.File, d.Line) + failure.Describe(err))
	}
	return fmt.Errorf("from server (%s): the %s at %s:%d is invalid:\n%s", failure.Reason(st.Code()), d.Kind.GetKind(),
		d.File,
		d.Line, strings.Join(lines, "\n"))
}
