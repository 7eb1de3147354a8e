// kinds writes the proto files of the services of all kinds from the messages with the option
// (windlass.meta.v1.resource), and from all services the list of REST handlers for the gateway and the list of the API
// in docs/api.md. With -check it writes nothing and fails if a file differs from what it would write.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"
)

func main() {
	root := flag.String("root", ".", "folder of the repository")
	check := flag.Bool("check", false, "write nothing; fail if a file differs from what would be written")
	flag.Parse()
	if err := run(*root, *check); err != nil {
		fmt.Fprintln(os.Stderr, "kinds:", err)
		os.Exit(1)
	}
}

// run brings the files below root up to date, or reports those that are not.
func run(root string, check bool) error {
	want, err := generate(root)
	if err != nil {
		return err
	}
	var stale []string
	for path, text := range want {
		now, err := os.ReadFile(filepath.Join(root, path))
		if err == nil && bytes.Equal(now, text) {
			continue
		}
		stale = append(stale, path)
	}
	slices.Sort(stale)
	var errs []error
	for _, path := range stale {
		if check {
			errs = append(errs, fmt.Errorf("%s is stale: run make generate", path))
			continue
		}
		at := filepath.Join(root, path)
		errs = append(errs, os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, want[path], 0o644))
	}
	return errors.Join(errs...)
}

// generate returns the files to write, by path below root.
func generate(root string) (map[string][]byte, error) {
	t := tree{root: root, written: map[string][]byte{}}
	kinds, err := t.kinds()
	if err != nil {
		return nil, err
	}
	out, unchanged := map[string][]byte{}, map[protoreflect.FullName]bool{}
	for _, k := range kinds {
		text, methods, err := service(root, k)
		if err != nil {
			return nil, err
		}
		t.written[k.ServiceFile()] = text
		out["proto/"+k.ServiceFile()] = text
		for _, m := range methods {
			unchanged[protoreflect.FullName(k.Package+"."+k.Kind+"Service."+m)] = true
		}
	}
	if err := t.orphans(); err != nil {
		return nil, err
	}
	names, err := t.files("windlass")
	if err != nil {
		return nil, err
	}
	files, types, err := t.compile(names)
	if err != nil {
		return nil, err
	}
	if out[restList], err = rest(files, types); err != nil {
		return nil, err
	}
	if out[programList], err = programs(root); err != nil {
		return nil, err
	}
	out[apiPage], err = api(root, kinds, unchanged, files, types)
	return out, err
}

// orphans fails if there is a generated service without a kind, which would never be written again, or a custom file
// without a kind, which would never be read.
func (t tree) orphans() error {
	files, err := t.files("windlass")
	errs := []error{err}
	for _, name := range files {
		if _, ok := t.written[name]; ok {
			continue
		}
		text, err := os.ReadFile(filepath.Join(t.root, "proto", name))
		if bytes.HasPrefix(text, []byte(generated)) {
			errs = append(errs, fmt.Errorf("proto/%s belongs to no kind: delete it", name))
		}
		errs = append(errs, err)
	}
	custom, err := t.files("custom")
	errs = append(errs, err)
	for _, name := range custom {
		if _, ok := t.written["windlass"+name[len("custom"):]]; !ok {
			errs = append(errs, fmt.Errorf("proto/%s belongs to no kind", name))
		}
	}
	return errors.Join(errs...)
}
