package structure

import (
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// columns is how long a line of Go may be; a tab counts as one column. `make fix` breaks longer ones.
const columns = 120

func TestLinesOfGoFitTheScreen(t *testing.T) {
	for _, s := range sources(t, "kit", "services", "e2e", "deploy", "tools") {
		src, err := os.ReadFile(filepath.Join(root, s.path))
		if err != nil {
			t.Fatal(err)
		}
		exempt := linesOfStrings(src)
		for i, line := range strings.Split(string(src), "\n") {
			if n := utf8.RuneCountInString(line); n > columns && !exempt[i+1] {
				t.Errorf("%s:%d has %d columns, at most %d are allowed: run make fix", s.path, i+1, n, columns)
			}
		}
	}
}

// linesOfStrings are the lines that a string covers which is long itself: a break would change what it says, or make it
// hard to find.
func linesOfStrings(src []byte) map[int]bool {
	const long = 60
	fset := token.NewFileSet()
	file := fset.AddFile("", fset.Base(), len(src))
	var s scanner.Scanner
	s.Init(file, src, nil, 0)
	out := map[int]bool{}
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			return out
		}
		if n := strings.Count(lit, "\n"); tok == token.STRING && (n > 0 || utf8.RuneCountInString(lit) > long) {
			for i := range n + 1 {
				out[file.Line(pos)+i] = true
			}
		}
	}
}
