package structure

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// words are those that plain technical English does not need, each with what to write instead. A space in a pattern
// also matches a line break. "whole" is refused only as a state, as in "the cluster is whole".
var words = []struct{ pattern, instead string }{
	{`whoever`, `"the caller", "the user", or no subject`},
	{`nobody`, `"no client", "no controller", "none", or the passive voice`},
	{`somebody|anybody`, `"a user", "a client", "another process", or the passive voice`},
	{`those who`, `"callers that", "users that"`},
	{`shall`, `"must", "will" or the present tense`},
	{`anew`, `"again", "recreate"`},
	{`meanwhile`, `"in the meantime", "since then", "concurrently"`},
	{`for ever`, `"permanently", "indefinitely"`},
	{`(is|are|was|were|be|been|being) whole|whole again`, `"complete", "healthy", "has all its members"`},
	{`wish(es|ed|ing)?`, `"request", "desired state", or the kind's name`},
	{`stands?|stood`, `"is", "exists", "remains"`},
	{`becom(e|es|ing) of|became of`, `"the result of", "what happens to"`},
	{`(look|looks|looked|looking) at`, `"check", "read", "inspect"`},
	{`tells?|told|telling`, `"report", "return", "notify", "tell apart" is "distinguish"`},
	{`mend(s|ed|ing)?`, `"fix", "repair", "correct"`},
	{`ill`, `"unhealthy", "degraded"`},
	{`(take|takes|took|taking) up`, `"start", "resume", "use"`},
	{`in step`, `"in sync", "up to date"`},
	{`lies`, `"is", "is stored"`},
	{`hears?|heard|hearing`, `"receive", "is notified", "answered"`},
	{`by hand`, `"manually"`},
}

func TestTextsUsePlainWords(t *testing.T) {
	patterns := make([]*regexp.Regexp, len(words))
	for i, w := range words {
		patterns[i] = wordPattern(w.pattern)
	}
	for path, text := range texts(t) {
		for i, p := range patterns {
			for _, at := range p.FindAllStringIndex(text, -1) {
				t.Errorf("%s:%d: %q: write %s instead (STYLE.md, section 9)",
					path, strings.Count(text[:at[0]], "\n")+1, text[at[0]:at[1]], words[i].instead)
			}
		}
	}
}

// wordPattern matches a pattern of words as whole words, in any case, also across a line break.
func wordPattern(words string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b(?:` + strings.ReplaceAll(words, " ", `\s+`) + `)\b`)
}

// texts returns, by path, what people read in each of our Go, proto and Markdown files, at its place in the file.
func texts(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if rel == "gen" || rel != "." && strings.HasPrefix(d.Name(), ".") {
				return filepath.SkipDir
			}
			return nil
		}
		ext := filepath.Ext(rel)
		if ext != ".go" && ext != ".proto" && ext != ".md" || rel == "e2e/structure/words_test.go" {
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		switch ext {
		case ".go":
			out[rel] = goTexts(src)
		case ".proto":
			out[rel] = strings.ReplaceAll(string(src), "//", "  ")
		case ".md":
			out[rel] = string(src)
		}
		return nil
	})
	if err != nil || len(out) == 0 {
		t.Fatalf("%d files, %v", len(out), err)
	}
	return out
}

// goTexts returns the source with its comments and strings only: code is replaced by "#", so that a phrase does not
// match across it, and the marks of comments by spaces, so that it matches across the lines of one.
func goTexts(src []byte) string {
	fset := token.NewFileSet()
	file := fset.AddFile("", fset.Base(), len(src))
	var s scanner.Scanner
	s.Init(file, src, nil, scanner.ScanComments)
	out := make([]byte, len(src)) // byte by byte, so that every text stays at its place in the file
	for i, b := range src {
		out[i] = '#'
		if b == ' ' || b == '\t' || b == '\n' {
			out[i] = b
		}
	}
	for {
		pos, tok, text := s.Scan()
		if tok == token.EOF {
			return string(out)
		}
		if tok != token.COMMENT && tok != token.STRING {
			continue
		}
		if tok == token.COMMENT {
			text = "  " + text[2:]
		}
		copy(out[file.Offset(pos):], text)
	}
}

func TestWordsAreFoundInTextsOnly(t *testing.T) {
	src := "package p\n\nvar s = '§' + '…'\n// A looks\n// at B. Standby, still.\nvar stands = `it lies` // ill"
	var got []string
	for _, w := range words {
		got = append(got, wordPattern(w.pattern).FindAllString(goTexts([]byte(src)), -1)...)
	}
	want := []string{"looks\n   at", "ill", "lies"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("words found (-want +got):\n%s", diff)
	}
}
