// Package structure holds the tests that keep the tree as docs/architecture.md says it is.
package structure

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	root   = "../.."
	prefix = "github.com/windlass-dev/windlass/"
)

// source is one Go file of ours.
type source struct {
	path    string // from the root of the repository
	file    *ast.File
	imports []string
}

// sources returns every Go file below the given folders; generated ones are left out.
func sources(t *testing.T, folders ...string) []source {
	t.Helper()
	var out []source
	for _, folder := range folders {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
				return err
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			s := source{path: filepath.ToSlash(rel), file: f}
			for _, i := range f.Imports {
				p, err := strconv.Unquote(i.Path.Value)
				if err != nil {
					return err
				}
				s.imports = append(s.imports, p)
			}
			out = append(out, s)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(out) == 0 {
		t.Fatal("no Go files found: the test looks in the wrong place")
	}
	return out
}

func TestServicesMeetOnlyThroughMessages(t *testing.T) {
	for _, s := range sources(t, "services") {
		own := strings.Split(s.path, "/")[1]
		for _, i := range s.imports {
			rest, ok := strings.CutPrefix(i, prefix+"services/")
			if !ok {
				continue
			}
			other, part, _ := strings.Cut(rest, "/")
			if other == own || (own == "windlass" && part == "service") {
				continue
			}
			t.Errorf("%s imports %s: a service imports no package of another", s.path, i)
		}
	}
}

func TestKitAndGenStandBelowTheServices(t *testing.T) {
	for _, s := range sources(t, "kit", "gen") {
		for _, i := range s.imports {
			if strings.HasPrefix(i, prefix+"services/") || strings.HasPrefix(i, prefix+"e2e/") {
				t.Errorf("%s imports %s", s.path, i)
			}
			if strings.HasPrefix(s.path, "gen/") && strings.HasPrefix(i, prefix+"kit/") {
				t.Errorf("%s imports %s", s.path, i)
			}
		}
	}
}

func TestExamplesImportNothingOfOursButGen(t *testing.T) {
	for _, s := range sources(t, "deploy") {
		for _, i := range s.imports {
			if strings.HasPrefix(i, prefix) && !strings.HasPrefix(i, prefix+"gen/") {
				t.Errorf("%s imports %s", s.path, i)
			}
		}
	}
}

// impure is what a plan may not import: it gets values and gives values.
var impure = []string{
	"context", "log", "log/slog", "os", "net", "net/http", "math/rand", "math/rand/v2", "crypto/rand", "sync", "io", "syscall",
	"google.golang.org/grpc", "go.etcd.io/etcd/client/v3", prefix + "kit/store", prefix + "kit/informer", prefix + "kit/serve", prefix + "kit/reconcile",
}

func TestPlansReadNoClockAndTouchNothing(t *testing.T) {
	found := false
	for _, s := range sources(t, "services") {
		if filepath.Base(filepath.Dir(s.path)) != "plan" || strings.HasSuffix(s.path, "_test.go") {
			continue
		}
		found = true
		for _, i := range s.imports {
			if slices.Contains(impure, i) {
				t.Errorf("%s imports %s", s.path, i)
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			pkg, ok := sel.X.(*ast.Ident)
			if ok && pkg.Name == "time" && slices.Contains([]string{"Now", "Since", "Until", "After", "Sleep", "NewTimer", "NewTicker"}, sel.Sel.Name) {
				t.Errorf("%s calls time.%s", s.path, sel.Sel.Name)
			}
			return true
		})
	}
	if !found {
		t.Error("no plan package was looked at")
	}
}

func TestNoFileHasANameThatSaysNothing(t *testing.T) {
	for _, s := range sources(t, "kit", "services", "e2e", "deploy") {
		for _, part := range strings.Split(strings.TrimSuffix(s.path, ".go"), "/") {
			if slices.Contains([]string{"util", "utils", "common", "helper", "helpers", "misc", "types"}, part) {
				t.Errorf("%s: name the thing by what it does", s.path)
			}
		}
	}
}

func TestNothingIsDoneAtInit(t *testing.T) {
	for _, s := range sources(t, "kit", "services") {
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
				t.Errorf("%s has an init function", s.path)
			}
		}
	}
}
