package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// marks enclose a table in a page.
type marks struct{ begin, end string }

var (
	gridMarks = marks{"<!-- the grid of faults, written by `make test-faults` -->", "<!-- end of the grid -->"}
	slowMarks = marks{
		"<!-- the grid of faults with a slow etcd, written by `make test-faults` -->",
		"<!-- end of the grid with a slow etcd -->",
	}
	lostMarks = marks{
		"<!-- the grid of faults with lost answers, written by `make test-faults` -->",
		"<!-- end of the grid with lost answers -->",
	}
	courseMarks = marks{
		"<!-- the grid of faults during drains, roll-outs and updates, written by `make test-faults` -->",
		"<!-- end of the grid of courses -->",
	}
)

const notRun = "not run"

// table is the results of one grid in a page. Each result is in the page as soon as it is known, and those of earlier
// runs stay until they are replaced, so a run may be interrupted and continued with -run.
type table struct {
	page          string
	marks         marks
	rows, columns []string
	cells         map[cell]string
}

type cell struct{ row, column string }

func figures() string { return filepath.Join(harness.Root(), "docs", "figures.md") }

// newTable returns the table between the marks of a page, without what it has of other rows and columns.
func newTable(page string, m marks, rows, columns []string) *table {
	results := &table{page, m, rows, columns, map[cell]string{}}
	_, old, _, _ := results.read()
	var header []string
	for line := range strings.Lines(old) {
		fields := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range fields {
			fields[i] = strings.TrimSpace(fields[i])
		}
		if header == nil {
			header = fields
		}
		for i, text := range fields[1:] {
			if i+1 < len(header) && slices.Contains(rows, fields[0]) && slices.Contains(columns, header[i+1]) {
				results.cells[cell{fields[0], header[i+1]}] = text
			}
		}
	}
	return results
}

// read returns the page before the table, the table, and the page behind it; ok is false if the page has no such table.
func (r *table) read() (before, old, after string, ok bool) {
	raw, err := os.ReadFile(r.page)
	if err != nil {
		return "", "", "", false
	}
	before, rest, ok := strings.Cut(string(raw), r.marks.begin+"\n")
	if !ok {
		return "", "", "", false
	}
	old, after, ok = strings.Cut(rest, r.marks.end)
	return before, old, after, ok
}

// set writes one result into the page. A page without such a table is left alone.
func (r *table) set(row, column, text string) error {
	r.cells[cell{row, column}] = text
	before, _, after, ok := r.read()
	if !ok {
		return nil
	}
	return os.WriteFile(r.page, []byte(before+r.marks.begin+"\n"+r.markdown()+r.marks.end+after), 0o644)
}

func (r *table) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| kill -9 of, at | %s |\n|---|%s\n", strings.Join(r.columns, " | "),
		strings.Repeat("---:|", len(r.columns)))
	for _, row := range r.rows {
		fmt.Fprintf(&b, "| %s |", row)
		for _, column := range r.columns {
			text, ok := r.cells[cell{row, column}]
			if !ok {
				text = notRun
			}
			fmt.Fprintf(&b, " %s |", text)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// runCell runs one case of a grid as a subtest and writes its result into the table: the seconds that it took, or that
// it failed.
func runCell(t *testing.T, results *table, row, column string, run func(*testing.T) time.Duration) {
	t.Helper()
	text := ""
	if !t.Run(fmt.Sprintf("%s, %s", row, column), func(t *testing.T) { text = fmt.Sprintf("%.1f", run(t).Seconds()) }) {
		text = "failed"
	}
	if text == "" {
		return // not selected by -run
	}
	if err := results.set(row, column, text); err != nil {
		t.Error(err)
	}
}

func TestATableIsContinuedCellByCell(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	m := marks{"<!-- begin -->", "<!-- end -->"}
	if err := os.WriteFile(page, []byte("before\n<!-- begin -->\n<!-- end -->\nafter\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	rows, columns := []string{"agent, old", "gateway"}, []string{"early", "late"}
	if err := newTable(page, m, append(rows, "gone"), columns).set("agent, old", "late", "1.5"); err != nil {
		t.Fatal(err)
	}
	if err := newTable(page, m, rows, columns).set("gateway", "early", "failed"); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want := `before
<!-- begin -->
| kill -9 of, at | early | late |
|---|---:|---:|
| agent, old | not run | 1.5 |
| gateway | failed | not run |
<!-- end -->
after
`
	if string(got) != want {
		t.Errorf("page:\n%s\nwant:\n%s", got, want)
	}
}
