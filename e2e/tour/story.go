package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// story prints what happens and counts what was checked.
type story struct {
	out      io.Writer
	verbose  bool
	checks   int
	chapters []chapter
}

// chapter is one step of the tour.
type chapter struct {
	number  int
	title   string
	took    time.Duration
	checks  int
	leftOut string // why it was left out; empty if it was not
}

// chapter runs one step, and notes how long it took and how many checks it made.
func (s *story) chapter(n int, title string, step func() error) error {
	began, checks := time.Now(), s.checks
	fmt.Fprintf(s.out, "\n%d. %s\n", n, title)
	err := step()
	c := chapter{number: n, title: title, took: time.Since(began), checks: s.checks - checks}
	if err != nil {
		return fmt.Errorf("step %d, %s, after %.1f s: %w", n, title, c.took.Seconds(), err)
	}
	fmt.Fprintf(s.out, "   (%.1f s, %d checks)\n", c.took.Seconds(), c.checks)
	s.chapters = append(s.chapters, c)
	return nil
}

// skip prints that a step is left out, and why. The table at the end has it as well.
func (s *story) skip(n int, title, why string) {
	fmt.Fprintf(s.out, "\n%d. %s\n   left out: %s\n", n, title, why)
	s.chapters = append(s.chapters, chapter{number: n, title: title, leftOut: why})
}

// command prints what was asked and how long the answer took, unless that is 0.
func (s *story) command(line string, took time.Duration, output string) {
	time := ""
	if took > 0 {
		time = fmt.Sprintf("%6.2f s", took.Seconds())
	}
	fmt.Fprintln(s.out, strings.TrimRight(fmt.Sprintf("   $ %-84s %s", line, time), " "))
	if s.verbose {
		indent(s.out, "       ", output)
	}
}

// saw prints in one line what came of the last command.
func (s *story) saw(format string, args ...any) {
	indent(s.out, "     ", fmt.Sprintf(format, args...))
}

// moment prints what was seen at a time after the beginning of something longer.
func (s *story) moment(after time.Duration, what string) {
	fmt.Fprintf(s.out, "   %6.2f s  %s\n", after.Seconds(), what)
}

// paragraph prints what all of that means.
func (s *story) paragraph(format string, args ...any) {
	const width = 96
	fmt.Fprintln(s.out)
	indent(s.out, "   ", wrap(fmt.Sprintf(format, args...), width))
}

// fact is one thing that must hold for the story to be true.
type fact struct {
	holds    bool
	expected string
	seen     string
}

// expect says that something is as expected if holds; seen is printed if it is not.
func expect(holds bool, expected, seen string, args ...any) fact {
	return fact{holds, expected, fmt.Sprintf(seen, args...)}
}

// check counts facts; those that do not hold are returned as an error.
func (s *story) check(facts ...fact) error {
	var wrong mismatch
	for _, f := range facts {
		s.checks++
		if !f.holds {
			wrong = append(wrong, f)
		}
	}
	if wrong != nil {
		return wrong
	}
	return nil
}

// mismatch is every fact that did not hold.
type mismatch []fact

// Error names what was expected and what was seen.
func (m mismatch) Error() string {
	var b strings.Builder
	b.WriteString("not as expected")
	for _, f := range m {
		fmt.Fprintf(&b, "\n  expected: %s\n  seen:     %s", f.expected, strings.ReplaceAll(f.seen, "\n", "\n            "))
	}
	return b.String()
}

// end prints the table of the steps.
func (s *story) end() {
	fmt.Fprintln(s.out)
	w := tabwriter.NewWriter(s.out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "STEP\tTIME\tCHECKS")
	var all time.Duration
	for _, c := range s.chapters {
		if c.leftOut != "" {
			fmt.Fprintf(w, "%d. %s\tleft out: %s\n", c.number, c.title, c.leftOut)
			continue
		}
		fmt.Fprintf(w, "%d. %s\t%.1f s\t%d\n", c.number, c.title, c.took.Seconds(), c.checks)
		all += c.took
	}
	fmt.Fprintf(w, "in all\t%.1f s\t%d\n", all.Seconds(), s.checks)
	w.Flush()
	fmt.Fprintf(s.out, "\nthe tour is done: %d checks\n", s.checks)
}

func indent(w io.Writer, prefix, text string) {
	for line := range strings.Lines(strings.TrimRight(text, "\n")) {
		fmt.Fprintln(w, prefix+strings.TrimRight(line, "\n"))
	}
}

// wrap breaks text into lines of at most width characters where its words allow it.
func wrap(text string, width int) string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case len([]rune(line))+1+len([]rune(word)) > width:
			lines = append(lines, line)
			line = word
		default:
			line += " " + word
		}
	}
	return strings.Join(append(lines, line), "\n")
}

// lastLines returns at most n lines of the end of a text.
func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
