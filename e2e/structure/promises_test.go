package structure

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// row is one line of a table of promises: the point that it belongs to, and the tests that keep it.
type row struct{ file, point, tests string }

// promises returns the rows of the tables whose first column is "point".
func promises(t *testing.T, file string) []row {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	var out []row
	inside := false
	for line := range strings.Lines(string(raw)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		switch {
		case !strings.HasPrefix(line, "|"):
			inside = false
		case strings.TrimSpace(cells[0]) == "point":
			inside = true
		case inside && !strings.HasPrefix(line, "|---"):
			out = append(out, row{file, strings.TrimSpace(cells[0]), cells[len(cells)-1]})
		}
	}
	return out
}

var (
	word   = regexp.MustCompile("`[^`]+`|\\b(?:Test|Fuzz|Benchmark)[A-Z][A-Za-z0-9_]*")
	inTest = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)[A-Za-z0-9_]*)\(`)
)

// testsOf returns the names of the tests of a package; none if it is no package.
func testsOf(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range inTest.FindAllStringSubmatch(string(raw), -1) {
			out = append(out, m[1])
		}
	}
	return out
}

// TestEveryPromiseNamesTestsThatExist reads the tables of attacks and of promises: the last column names packages in
// backquotes, each followed by its tests; a package alone means all of its tests.
func TestEveryPromiseNamesTestsThatExist(t *testing.T) {
	points := map[string]bool{}
	for _, file := range []string{"docs/security.md", "docs/architecture.md"} {
		rows := promises(t, file)
		if len(rows) == 0 {
			t.Errorf("%s: no table of promises is found", file)
		}
		for _, r := range rows {
			points[r.point] = true
			var have []string
			tests := 0
			for _, w := range word.FindAllString(r.tests, -1) {
				name, isPackage := strings.CutPrefix(w, "`")
				if name = strings.TrimSuffix(name, "`"); !isPackage {
					if tests++; !slices.Contains(have, name) {
						t.Errorf("%s, point %s: there is no %s where the row says it is: %s", file, r.point, name, r.tests)
					}
					continue
				}
				if name == "make figures" {
					name = "e2e/figures"
				}
				have = testsOf(t, name)
				tests += len(have)
			}
			if tests == 0 {
				t.Errorf("%s, point %s names no test: %s", file, r.point, r.tests)
			}
		}
	}
	for section, last := range map[string]int{"A": 8, "B": 10, "C": 4} {
		for i := range last {
			if point := section + strconv.Itoa(i+1); !points[point] {
				t.Errorf("no row is about point %s", point)
			}
		}
	}
}

// TestEveryPromiseOfTheDocumentsNamesTestsThatExist reads the table of what the documents about taints and scheduling
// promise.
func TestEveryPromiseOfTheDocumentsNamesTestsThatExist(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(root, "e2e/seeds/testdata/promises.txt"))
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for line := range strings.Lines(string(raw)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		columns := strings.Split(strings.TrimSpace(line), "\t")
		if len(columns) != 3 {
			t.Fatalf("%d columns, want 3: %s", len(columns), line)
		}
		rows++
		for part := range strings.SplitSeq(columns[2], "; ") {
			words := strings.Fields(part)
			have := testsOf(t, words[0])
			if len(words) < 2 {
				t.Errorf("%s: no test of %s is named", columns[0], words[0])
			}
			for _, name := range words[1:] {
				if !slices.Contains(have, name) {
					t.Errorf("%s: %s has no %s", columns[0], words[0], name)
				}
			}
		}
	}
	if rows == 0 {
		t.Error("no promise is found")
	}
}
