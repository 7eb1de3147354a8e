package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// long is a word that fills most of a line.
var long = strings.Repeat("x", 100)

func TestLongLinesAreBroken(t *testing.T) {
	for _, c := range []struct{ name, file, have, want string }{
		{
			"code is broken after a comma, and indented", "a.go",
			"package a\n\nfunc f() { g(" + long + ", " + long + ") }\n",
			"package a\n\nfunc f() {\n\tg(" + long + ",\n\t\t" + long + ")\n}\n",
		},
		{
			"code is broken after an operator", "a.go",
			"package a\n\nvar a = " + long + " && " + long + "\n",
			"package a\n\nvar a = " + long + " &&\n\t" + long + "\n",
		},
		{
			"a comment is filled again, and a list in it stays one", "a.go",
			"package a\n\n// One " + long + " two three four.\n// Five.\n//\n// - six\n// - seven\n",
			"package a\n\n// One " + long + " two three\n// four. Five.\n//\n// - six\n// - seven\n",
		},
		{
			"a comment behind code moves above it", "a.go",
			"package a\n\nvar a = b // " + long + " two three four\n",
			"package a\n\n// " + long + " two three four\nvar a = b\n",
		},
		{
			"a line with a directive stays", "a.go",
			"package a\n\nvar a = f(" + long + ", 1) //nolint:errcheck // why\n",
			"package a\n\nvar a = f(" + long + ", 1) //nolint:errcheck // why\n",
		},
		{
			"a raw string stays", "a.go",
			"package a\n\nvar a = `" + long + ", " + long + "`\n", "package a\n\nvar a = `" + long + ", " + long + "`\n",
		},
		{
			"short lines stay", "a.go",
			"package a\n\n// One.\n// Two.\nvar a = f(1,\n\t2)\n", "package a\n\n// One.\n// Two.\nvar a = f(1,\n\t2)\n",
		},
		{
			"a paragraph is filled again", "a.md", long[:90] + " one two three\nfour.\n\nFive.\nSix.\n",
			long[:90] + " one two\nthree four.\n\nFive.\nSix.\n",
		},
		{
			"an item's further lines are indented like its text", "a.md", "- " + long[:90] + " one two three\n- four\n",
			"- " + long[:90] + " one two\n  three\n- four\n",
		},
		{
			"code, tables and headings stay", "a.md",
			"# " + long + " one\n\n    " + long + " two\n\n| " + long + " | three |\n\n```\n" + long + " four\n```\n",
			"# " + long + " one\n\n    " + long + " two\n\n| " + long + " | three |\n\n```\n" + long + " four\n```\n",
		},
		{
			"code between backquotes stays on one line", "a.md", long[:80] + " `one two three four five`\n",
			long[:80] + "\n`one two three four five`\n",
		},
	} {
		path := filepath.Join(t.TempDir(), c.file)
		if err := os.WriteFile(path, []byte(c.have), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, round := range []string{"", ", again"} { // what was broken is not broken again
			if err := wrapFile(path); err != nil {
				t.Fatalf("%s%s: %v", c.name, round, err)
			}
			if got, err := os.ReadFile(path); err != nil || string(got) != c.want {
				t.Errorf("%s%s: %v\n%s\nwant\n%s", c.name, round, err, got, c.want)
			}
		}
	}
}

func TestWhatIsNotGoIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.go")
	if err := os.WriteFile(path, []byte("package"), 0o600); err != nil {
		t.Fatal(err)
	}
	if wrapFile(path) == nil {
		t.Error("no error")
	}
}
