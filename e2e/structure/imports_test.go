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

// shared are the packages of the command line below its nouns, in the order of their imports: each imports only those
// before it.
var shared = []string{
	"failure", "session", "target", "printer", "input", "change", "event", "hooktask", "waiting", "progress", "probe",
	"pause",
}

func TestNounsOfTheCommandLineDoNotImportEachOther(t *testing.T) {
	const commands = "services/windlass/command/"
	nouns := 0
	for _, s := range sources(t, commands) {
		own, _, inside := strings.Cut(strings.TrimPrefix(s.path, commands), "/")
		if !inside {
			continue // the tree of all commands
		}
		layer := slices.Index(shared, own)
		if layer < 0 {
			nouns++
		}
		for _, i := range s.imports {
			other, ok := strings.CutPrefix(i, prefix+commands)
			if at := slices.Index(shared, other); ok && (at < 0 || layer >= 0 && at >= layer) {
				t.Errorf("%s imports %s: what two nouns need is in a package that both import", s.path, other)
			}
		}
	}
	if nouns == 0 {
		t.Error("no noun was checked")
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

// pure are the packages of the kit that plans may import: values in, values out.
var pure = []string{
	"kit/object", "kit/ownership", "kit/placement", "kit/disruption", "kit/controlplane", "kit/nodeid", "kit/schedule",
	"kit/lifecycle", "kit/machineconfig", "kit/maintenance", "kit/podconfig", "kit/security", "kit/spans",
	"kit/supervision", "kit/topology",
	"kit/untyped",
	"kit/webhook",
}

// remembering are packages that plans may import although they keep something: the results of functions that always
// return the same for the same values.
var remembering = []string{"kit/ignition"}

// isPure reports whether the package in a folder must be pure.
func isPure(folder string) bool {
	return slices.Contains(pure, folder) || strings.HasPrefix(folder, "services/") && filepath.Base(folder) == "plan"
}

// The generated messages import gRPC and libraries of their own; what they import says nothing about a plan.
func TestPlansReachNothingButValues(t *testing.T) {
	impure := []string{
		"context", "log", "log/slog", "os", "net", "net/http", "math/rand", "math/rand/v2", "crypto/rand", "sync", "io",
		"syscall",
	}
	checked := 0
	for _, s := range sources(t, "kit", "services") {
		folder := filepath.ToSlash(filepath.Dir(s.path))
		if !isPure(folder) || strings.HasSuffix(s.path, "_test.go") {
			continue
		}
		checked++
		for _, i := range s.imports {
			own, ours := strings.CutPrefix(i, prefix)
			switch {
			case ours && !strings.HasPrefix(own, "gen/") && !isPure(own) && !slices.Contains(remembering, own),
				slices.Contains(impure, i),
				strings.HasPrefix(i, "google.golang.org/grpc"), strings.HasPrefix(i, "go.etcd.io/"):
				t.Errorf("%s imports %s: plans and what they import get values and return values", s.path, i)
			}
		}
		clock := []string{"Now", "Since", "Until", "After", "Sleep", "NewTimer", "NewTicker"}
		ast.Inspect(s.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			pkg, ok := sel.X.(*ast.Ident)
			if ok && pkg.Name == "time" && slices.Contains(clock, sel.Sel.Name) {
				t.Errorf("%s calls time.%s", s.path, sel.Sel.Name)
			}
			return true
		})
	}
	if checked == 0 {
		t.Error("no plan package was checked")
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
		switch s.path {
		case "services/node-agent/shim/shim.go": // each container would pay for the initialization of all packages, 30 ms
			continue
		case "kit/discovery/balancer.go": // gRPC takes balancers at no other time
			continue
		}
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
				t.Errorf("%s has an init function", s.path)
			}
		}
	}
}
