package structure

import (
	"go/ast"
	"go/token"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
)

// TestExportedNamesHaveUsers finds exported names of the kit and the services that no other package uses: they are
// unexported or deleted. A type counts as used where an exported declaration of its package mentions it, a constant
// where one of its group is: a closed set is exported as one.
func TestExportedNamesHaveUsers(t *testing.T) {
	files := sources(t, "kit", "services", "e2e", "deploy")
	used := usedNames(files)
	var idle []string
	names, mentioned := exportedNames(files)
	for _, group := range names {
		if !slices.ContainsFunc(group, func(name string) bool { return used[name] || mentioned[name] }) {
			idle = append(idle, group...)
		}
	}
	sort.Strings(idle)
	for _, name := range idle {
		t.Errorf("%s is exported, but no other package uses it", name)
	}
}

// usedNames returns "folder.Name" of every selector that names another package of ours; a folder's own external tests
// count as another package.
func usedNames(files []source) map[string]bool {
	used := map[string]bool{}
	for _, s := range files {
		folders := map[string]string{} // by the name under which the file imports them
		for _, i := range s.file.Imports {
			path, _ := strconv.Unquote(i.Path.Value)
			folder, ok := strings.CutPrefix(path, prefix)
			if !ok {
				continue
			}
			name := filepath.Base(folder)
			if i.Name != nil {
				name = i.Name.Name
			}
			folders[name] = folder
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := sel.X.(*ast.Ident); ok && folders[x.Name] != "" {
					used[folders[x.Name]+"."+sel.Sel.Name] = true
				}
			}
			return true
		})
	}
	return used
}

// exportedNames returns the exported names of all packages, the constants of one declaration as a group, and which
// names exported declarations mention.
func exportedNames(files []source) (groups [][]string, mentioned map[string]bool) {
	mentioned = map[string]bool{}
	for _, s := range files {
		folder := filepath.ToSlash(filepath.Dir(s.path))
		if strings.HasSuffix(s.path, "_test.go") || strings.HasPrefix(folder, "e2e") || s.file.Name.Name == "main" {
			continue
		}
		mention := func(n ast.Node) {
			ast.Inspect(n, func(n ast.Node) bool {
				if x, ok := n.(*ast.Ident); ok {
					mentioned[folder+"."+x.Name] = true
				}
				return true
			})
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if !d.Name.IsExported() {
					continue
				}
				mention(d.Type)
				if d.Recv == nil {
					groups = append(groups, []string{folder + "." + d.Name.Name})
				}
			case *ast.GenDecl:
				var constants []string
				for _, spec := range d.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						if spec.Name.IsExported() {
							mention(spec.Type)
							groups = append(groups, []string{folder + "." + spec.Name.Name})
						}
					case *ast.ValueSpec:
						for _, id := range spec.Names {
							if !id.IsExported() {
								continue
							}
							if spec.Type != nil {
								mention(spec.Type)
							}
							if d.Tok == token.CONST {
								constants = append(constants, folder+"."+id.Name)
							} else {
								groups = append(groups, []string{folder + "." + id.Name})
							}
						}
					}
				}
				if len(constants) > 0 {
					groups = append(groups, constants)
				}
			}
		}
	}
	return groups, mentioned
}
