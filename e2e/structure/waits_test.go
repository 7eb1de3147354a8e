package structure

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// TestControllersDoNotWait finds timers, pauses and back-offs in controllers: when to decide again is part of a plan,
// and only the loop that calls a controller waits for it.
func TestControllersDoNotWait(t *testing.T) {
	waits := map[string][]string{
		"time":    {"NewTimer", "NewTicker", "AfterFunc", "Sleep", "After", "Tick", "Timer", "Ticker"},
		"backoff": {"New", "Spread", "Sleep", "Backoff"},
	}
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
			if ok && slices.Contains(waits[pkg.Name], sel.Sel.Name) {
				t.Errorf("%s uses %s.%s: return when to decide again in the plan", s.path, pkg.Name, sel.Sel.Name)
			}
			return true
		})
	}
}
