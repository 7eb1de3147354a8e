package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"
)

func TestAnchorsAliasesAndMergeKeysAreFoundWithTheirLine(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		line int // 0: nothing is wrong
		err  error
	}{
		"an anchor":                      {"kind: A\na: &x 1\n", 2, errAnchor},
		"an alias":                       {"a:\n- 1\n- *x\n", 3, errAnchor},
		"in brackets":                    {"a: [1,\n{b: *x}]\n", 2, errAnchor},
		"of a key":                       {"a: 1\n*x : 2\n", 2, errAnchor},
		"behind a tag":                   {"a: !!str &x b\n", 1, errAnchor},
		"behind a question mark":         {"? &x a\n: b\n", 1, errAnchor},
		"behind a marker":                {"--- &x\na: 1\n", 1, errAnchor},
		"after a block of text":          {"a: |\n  *x\n   &x\n\n  *y\nb: *x\n", 6, errAnchor},
		"after text in quotes":           {"a: '*x ''*y'\nb: \"\\\"\n  *x\"\nc: &x 1", 4, errAnchor},
		"a merge key":                    {"a: 1\n<<: {b: 1}\n", 2, errMerge},
		"a merge key behind a mark":      {"? <<\n: {b: 1}\n", 1, errMerge},
		"one behind a mark in braces":    {"a: {? << : {b: 1}}\n", 1, errMerge},
		"one behind a mark and a tag":    {"? !!merge <<\n: {b: 1}\n", 1, errMerge},
		"a merge key with a tag":         {"a: {!!merge << : {b: 1}}\n", 1, errMerge},
		"a key and a value of two words": {"? a <<\n: <<\n!x b <<: !y <<\n? !z\n: <<\n", 0, nil},
		"a merge key in braces":          {"a: {<< : {b: 1}}\n", 1, errMerge},
		"text only": {
			"a: b *c &d\n  *e\nf: [a*b, a&b, \"*c\", '&d']\ng: \">\"\nh: https://a?b=1&c=2\n# *x &y\n", 0, nil,
		},
		"blocks of text":                {"a: |2-\n   *x\n\n  &y\nb:\n- >\n *x\n-  |+ # &c\n\n   *z\n  \nc: 1\n", 0, nil},
		"a sign in front of a number":   {"a: -1\nb: - 1\n", 0, nil},
		"a long key is no key":          {strings.Repeat("k", 2000) + ": a\n *b\n", 2, errAnchor},
		"a key of many bytes is a key":  {strings.Repeat("é", 600) + ": a\n *b\n", 0, nil},
		"words with two angle brackets": {"a: <<\n\"<<\": b\n<<b: c\n", 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			line, err := checkYAML([]byte(c.text))
			if !errors.Is(err, c.err) || err != nil && line != c.line {
				t.Errorf("checkYAML = line %d, %v; want line %d, %v", line, err, c.line, c.err)
			}
		})
	}
}

func TestYAMLIsCountedBeforeItIsBuilt(t *testing.T) {
	for name, text := range map[string]string{
		"too many parts":         "a: [" + strings.Repeat("1,", maxTokens) + "]",
		"too many empty entries": strings.Repeat("-\n", maxTokens+1),
		"too deep in brackets":   "a: " + strings.Repeat("[", maxNesting+1),
		"too deep in blocks":     strings.Repeat("- ", maxNesting+1) + "a\n",
	} {
		if _, err := checkYAML([]byte(text)); err == nil {
			t.Errorf("%s: not refused", name)
		}
	}
}

// aliases returns a document of about size bytes in which each alias is nine of the one before.
func aliases(size int) string {
	var b strings.Builder
	b.WriteString("kind: A\na0: &a0 [x,x,x,x,x,x,x,x,x]\n")
	for i := 1; b.Len() < size; i++ {
		fmt.Fprintf(&b, "a%d: &a%d [%s*a%d]\n", i, i, strings.Repeat(fmt.Sprintf("*a%d,", i-1), 8), i-1)
	}
	return b.String()
}

func TestAliasDocumentsAreRefusedCheaply(t *testing.T) {
	for _, size := range []int{106 << 10, 1 << 20} {
		for name, text := range map[string]string{
			"aliases at the beginning": aliases(size),
			"aliases at the end":       "kind: A\n" + strings.Repeat("# filling\n", size/10) + "a: &a [x]\nb: *a\n",
			"behind text":              "kind: A\ntext: |\n" + strings.Repeat("  filling\n", size/10) + "a: &a [x]\nb: *a\n",
		} {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			begun := time.Now()
			_, err := Split(strings.NewReader(text), "f")
			took := time.Since(begun)
			runtime.ReadMemStats(&after)
			if err == nil || !strings.Contains(err.Error(), errAnchor.Error()) {
				t.Errorf("%d bytes, %s: %v", size, name, err)
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > 20<<20 || took > 10*time.Second {
				t.Errorf("%d bytes, %s: refused after %v and %d bytes of memory", size, name, took, used)
			}
		}
	}
}

// BenchmarkRefuseAliases is the figure of docs/figures.md.
func BenchmarkRefuseAliases(b *testing.B) {
	for _, size := range []int{106 << 10, 1 << 20} {
		text := "kind: A\ntext: |\n" + strings.Repeat("  filling\n", size/10) + "a: &a [x]\nb: *a\n"
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Split(strings.NewReader(text), "f"); err == nil {
					b.Fatal("not refused")
				}
			}
		})
	}
}

// FuzzScan holds the scan against the library: what the library would take for an anchor or an alias the scan refuses,
// and it counts no less than half of the nodes that the library builds.
func FuzzScan(f *testing.F) {
	for _, seed := range []string{
		"a: &x 1\nb: *x\n", "a: |\n *x\n", "a: b\n *c\n", "- - *x\n", "? |\n *a\n: *b", "[a, {b: *c}]", "a: 'b\n *c'\n",
		"!<a,*b> c", "a: >2\n    *b\n *c",
		"%YAML 1.1\n---\n*a\n...\n", "a:\tb\n\t*c", "\"a\\\n*b\": c", "- a\n  *b\n- *c", "[?*a]", "a: ? *b", "- |\n  a\n *b",
		"é: a\n *b: c", "a #b\n*c",
	} {
		f.Add([]byte(seed))
	}
	for _, pattern := range []string{"testdata/*.yaml", "../../e2e/seeds/testdata/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(text)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 1<<14 || strings.ContainsRune(string(text), '\ufeff') || strings.ContainsRune(string(text), 0) {
			return
		}
		_, found := checkYAML(text)
		if found != nil {
			return
		}
		s := scanner{s: text, line: 1, indents: []int{-1}, keys: make([]simpleKey, 1), keyAllowed: true}
		tokens := 1
		for s.token() {
			tokens++
		}
		documents := yaml.NewDecoder(strings.NewReader(string(text)))
		for {
			var node yaml.Node
			if documents.Decode(&node) != nil {
				return
			}
			nodes := 0
			walk(t, text, &node, &nodes)
			if nodes > 2*tokens+2 {
				t.Fatalf("%q: %d nodes, %d tokens", text, nodes, tokens)
			}
		}
	})
}

// TestScanAgreesWithTheLibrary does on random documents of YAML's own characters what the fuzz target does on those
// that it finds.
func TestScanAgreesWithTheLibrary(t *testing.T) {
	const seed = 1
	random := rand.New(rand.NewPCG(seed, 0))
	parts := []string{
		"a", "b", " ", " ", " ", "\n", "\n", "\n ", "\n  ", ": ", ":", "- ", "-", "? ", "*x", "&x", "[", "]",
		"{", "}", ", ", "|", ">", "|2", "'", "\"", "\\", "#", "\t", "!a ", "<<", "---", "...",
	}
	clean := 0
	for range 60_000 {
		var b strings.Builder
		for range 2 + random.IntN(24) {
			b.WriteString(parts[random.IntN(len(parts))])
		}
		text := []byte(b.String())
		if _, err := checkYAML(text); err != nil {
			continue
		}
		documents := yaml.NewDecoder(bytes.NewReader(text))
		for {
			var node yaml.Node
			if documents.Decode(&node) != nil {
				break
			}
			nodes := 0
			walk(t, text, &node, &nodes)
			clean++
		}
	}
	if clean < 100 {
		t.Errorf("only %d documents without aliases were read", clean)
	}
}

func walk(t *testing.T, text []byte, n *yaml.Node, nodes *int) {
	*nodes++
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		t.Fatalf("%q: an anchor or alias in line %d was not found", text, n.Line)
	}
	for _, c := range n.Content {
		walk(t, text, c, nodes)
	}
}
