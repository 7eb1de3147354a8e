package monitoring

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

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// exported returns the labels of all metrics of the programs, by their names: those that the source declares, those of
// the Go runtime and of the process that each program registers, and up, which Prometheus makes.
func exported(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{"up": nil}
	for _, folder := range []string{"kit", "services"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err == nil {
				declared(f, out)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		out[f.GetName()] = nil
	}
	return out
}

// declared adds the metrics that a file declares: calls of prometheus.NewDesc, NewGaugeFunc, NewCounterVec and so on.
// A histogram has three series.
func declared(f *ast.File, out map[string][]string) {
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		made, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		if pkg, ok := made.X.(*ast.Ident); !ok || pkg.Name != "prometheus" {
			return true
		}
		name, labels := nameOf(call.Args[0]), []string{}
		if name == "" {
			return true
		}
		switch {
		case made.Sel.Name == "NewDesc":
			labels = texts(call.Args[2])
		case strings.HasSuffix(made.Sel.Name, "Vec"):
			labels = texts(call.Args[1])
		case strings.HasPrefix(made.Sel.Name, "New"):
			labels = constant(call.Args[0])
		}
		if strings.HasPrefix(made.Sel.Name, "NewHistogram") {
			out[name+"_bucket"] = append(slices.Clone(labels), "le")
			out[name+"_sum"], out[name+"_count"] = labels, labels
			return true
		}
		out[name] = labels
		return true
	})
}

// nameOf returns the name of a metric: a string, or the field Name of options.
func nameOf(e ast.Expr) string {
	if lit, ok := e.(*ast.CompositeLit); ok {
		e = field(lit, "Name")
	}
	if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
		text, _ := strconv.Unquote(lit.Value)
		return text
	}
	return ""
}

// constant returns the constant labels of options.
func constant(e ast.Expr) []string {
	var out []string
	if lit, ok := e.(*ast.CompositeLit); ok {
		if labels, ok := field(lit, "ConstLabels").(*ast.CompositeLit); ok {
			for _, e := range labels.Elts {
				if pair, ok := e.(*ast.KeyValueExpr); ok {
					out = append(out, nameOf(pair.Key))
				}
			}
		}
	}
	return out
}

func field(lit *ast.CompositeLit, name string) ast.Expr {
	for _, e := range lit.Elts {
		if pair, ok := e.(*ast.KeyValueExpr); ok {
			if key, ok := pair.Key.(*ast.Ident); ok && key.Name == name {
				return pair.Value
			}
		}
	}
	return nil
}

// texts returns the strings of a literal slice.
func texts(e ast.Expr) []string {
	var out []string
	if lit, ok := e.(*ast.CompositeLit); ok {
		for _, e := range lit.Elts {
			out = append(out, nameOf(e))
		}
	}
	return out
}

func TestDeclarationsOfMetricsAreFound(t *testing.T) {
	src := `package p
var a = prometheus.NewDesc("a", "A.", []string{"x", "y"}, nil)
var b = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "b", Help: "B."}, []string{"z"})
var c = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "c"}, []string{"z"})
var d = prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "d", ConstLabels: prometheus.Labels{"caller": kind}}, f)
var e = other.NewDesc("e", "E.", nil, nil)
var f = prometheus.NewDesc("f", "F.", nil, nil)`
	f, err := parser.ParseFile(token.NewFileSet(), "p.go", src, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	declared(f, got)
	want := map[string][]string{
		"a": {"x", "y"}, "b": {"z"}, "c_bucket": {"z", "le"}, "c_sum": {"z"}, "c_count": {"z"}, "d": {"caller"}, "f": nil,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}
