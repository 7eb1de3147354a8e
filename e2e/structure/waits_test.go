package structure

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// waiting are the files of controllers that still wait by themselves. What they wait for belongs to their plans, see
// docs/architecture.md, "How to add a plan". The list only shrinks.
var waiting = []string{
	"services/update-orchestrator/controller/pass.go",
}

// TestControllersDoNotWait finds timers and pauses in controllers: when to decide again is part of a plan, and only the
// loop that calls a controller waits for it.
func TestControllersDoNotWait(t *testing.T) {
	waits := []string{"NewTimer", "NewTicker", "AfterFunc", "Sleep", "After", "Tick", "Timer", "Ticker"}
	found := map[string]bool{}
	for _, s := range sources(t, "services") {
		parts := strings.Split(s.path, "/")
		if !slices.Contains(parts, "controller") || strings.HasSuffix(s.path, "_test.go") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			pkg, ok := sel.X.(*ast.Ident)
			if ok && pkg.Name == "time" && slices.Contains(waits, sel.Sel.Name) {
				if found[s.path] = true; !slices.Contains(waiting, s.path) {
					t.Errorf("%s uses time.%s: return when to decide again in the plan", s.path, sel.Sel.Name)
				}
			}
			return true
		})
	}
	for _, path := range waiting {
		if !found[path] {
			t.Errorf("%s does not wait any more: take it off the list", path)
		}
	}
}
