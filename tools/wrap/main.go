// Command wrap breaks the lines of Markdown files that are longer than 100 columns and those of Go files that are
// longer than 120, as far as that can be done without changing what they mean: comments are filled again, comments
// behind code move above it, and code is broken after a comma, an operator or an opening bracket. gofumpt then indents
// the result. A tab counts as one column, as in golangci's lll. A line with a directive for a linter must be broken
// manually. Usage: wrap FILE...
package main

import (
	"bytes"
	"fmt"
	"go/scanner"
	"go/token"
	"os"
	"strings"
	"unicode/utf8"

	"mvdan.cc/gofumpt/format"
)

const columns = 120

func main() {
	for _, path := range os.Args[1:] {
		if err := wrapFile(path); err != nil {
			fmt.Fprintf(os.Stderr, "wrap: %s: %v\n", path, err)
			os.Exit(1)
		}
	}
}

func wrapFile(path string) error {
	src, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var out []byte
	if strings.HasSuffix(path, ".md") {
		out = fillMarkdown(src)
	} else {
		out, err = wrapGo(src)
	}
	if err != nil || bytes.Equal(src, out) {
		return err
	}
	return os.WriteFile(path, out, 0o644)
}

// wrapGo returns a Go file with its long lines broken.
func wrapGo(src []byte) ([]byte, error) {
	for range 50 { // each round breaks each long line once
		next := breakCode(fillComments(lift(src)))
		next, err := format.Source(next, format.Options{LangVersion: "go1.26"})
		if err != nil {
			return nil, err
		}
		if bytes.Equal(src, next) {
			return src, nil
		}
		src = next
	}
	return src, nil
}

// tok is a token with its place.
type tok struct {
	tok        token.Token
	lit        string
	start, end int
	line       int // of its start, from 1
	depth      int // of brackets around it
}

func tokens(src []byte) []tok {
	fset := token.NewFileSet()
	file := fset.AddFile("", fset.Base(), len(src))
	var s scanner.Scanner
	s.Init(file, src, nil, scanner.ScanComments)
	var out []tok
	depth := 0
	for {
		pos, t, lit := s.Scan()
		if t == token.EOF {
			return out
		}
		if t == token.SEMICOLON && lit == "\n" {
			continue
		}
		if t == token.RPAREN || t == token.RBRACE || t == token.RBRACK {
			depth--
		}
		text := lit
		if text == "" || t.IsOperator() {
			text = t.String()
		}
		at := file.Offset(pos)
		out = append(out, tok{tok: t, lit: lit, start: at, end: at + len(text), line: file.Line(pos), depth: depth})
		if t == token.LPAREN || t == token.LBRACE || t == token.LBRACK {
			depth++
		}
	}
}

func lines(src []byte) []string { return strings.Split(string(src), "\n") }

func width(s string) int { return utf8.RuneCountInString(s) }

// lift moves comments behind code that is too long above it.
func lift(src []byte) []byte {
	list := lines(src)
	moved := map[int]string{}
	toks := tokens(src)
	inRaw := rawLines(toks)
	for i, t := range toks {
		if t.tok != token.COMMENT || !strings.HasPrefix(t.lit, "//") || i == 0 || toks[i-1].line != t.line {
			continue
		}
		if l := list[t.line-1]; width(l) > columns && !inRaw[t.line] && !directive(t) {
			moved[t.line] = t.lit
		}
	}
	var out []string
	for i, l := range list {
		if c, ok := moved[i+1]; ok {
			indent := l[:len(l)-len(strings.TrimLeft(l, "\t"))]
			out = append(out, indent+c)
			l = strings.TrimRight(l[:strings.LastIndex(l, c)], " \t")
		}
		out = append(out, l)
	}
	return []byte(strings.Join(out, "\n"))
}

// directive reports whether a token is a comment to a linter about its line. Such a line stays as it is: what the
// directive is for could be on another line afterwards.
func directive(t tok) bool { return t.tok == token.COMMENT && strings.HasPrefix(t.lit, "//nolint") }

// rawLines are the lines that a raw string or a block comment covers.
func rawLines(toks []tok) map[int]bool {
	out := map[int]bool{}
	for _, t := range toks {
		if n := strings.Count(t.lit, "\n"); n > 0 {
			for i := range n + 1 {
				out[t.line+i] = true
			}
		}
	}
	return out
}

// fillComments fills the paragraphs of comments that have a long line.
func fillComments(src []byte) []byte {
	raw := rawLines(tokens(src))
	list := lines(src)
	var out []string
	for i := 0; i < len(list); {
		indent, _, ok := comment(list[i])
		if !ok || raw[i+1] {
			out = append(out, list[i])
			i++
			continue
		}
		var words []string
		long := false
		j := i
		for ; j < len(list) && !raw[j+1]; j++ {
			in, text, ok := comment(list[j])
			if !ok || in != indent || j > i && paragraph(text) {
				break
			}
			long = long || width(list[j]) > columns
			words = append(words, strings.Fields(text)...)
			if strings.TrimSpace(text) == "" {
				j++
				break
			}
		}
		if !long {
			out = append(out, list[i:j]...)
			i = j
			continue
		}
		line := indent + "//"
		for _, w := range words {
			if width(line)+1+width(w) > columns && line != indent+"//" {
				out = append(out, line)
				line = indent + "//"
			}
			line += " " + w
		}
		out = append(out, line)
		if strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(list[j-1]), "//")) == "" && j-1 > i {
			out = append(out, indent+"//")
		}
		i = j
	}
	return []byte(strings.Join(out, "\n"))
}

// comment returns the indentation and the text of a line that is a comment of prose.
func comment(line string) (indent, text string, ok bool) {
	rest := strings.TrimLeft(line, "\t")
	indent = line[:len(line)-len(rest)]
	if rest == "//" {
		return indent, "", true
	}
	if !strings.HasPrefix(rest, "// ") || strings.HasPrefix(rest, "//  ") || strings.HasPrefix(rest, "// |") {
		return "", "", false
	}
	return indent, rest[3:], true
}

// paragraph reports whether a line of a comment begins a paragraph, as items of lists do.
func paragraph(text string) bool {
	t := strings.TrimSpace(text)
	return t == "" || strings.HasPrefix(t, "- ") || strings.HasPrefix(t, "* ") || strings.HasPrefix(t, "#") ||
		len(t) > 2 && t[0] >= '0' && t[0] <= '9' && (t[1] == '.' || t[1] == ')')
}

// breakCode breaks each line that is too long once, where that costs least.
func breakCode(src []byte) []byte {
	toks := tokens(src)
	list := lines(src)
	raw := rawLines(toks)
	starts := make([]int, len(list))
	for i, at := 0, 0; i < len(list); i++ {
		starts[i] = at
		at += len(list[i]) + 1
	}
	var cuts []int
	for i := 0; i < len(toks); {
		j := i
		for j < len(toks) && toks[j].line == toks[i].line {
			j++
		}
		n := toks[i].line
		if l := list[n-1]; width(l) > columns && !raw[n] && !directive(toks[j-1]) {
			if at := cut(src, toks[i:j], starts[n-1]); at > 0 {
				cuts = append(cuts, at)
			}
		}
		i = j
	}
	var out []byte
	last := 0
	for _, at := range cuts {
		out = append(append(out, bytes.TrimRight(src[last:at], " ")...), '\n')
		for last = at; src[last] == ' '; last++ {
		}
	}
	return append(out, src[last:]...)
}

// cut returns the offset at which a line is best broken; 0 if there is none.
func cut(src []byte, line []tok, start int) int {
	if len(line) < 2 || line[0].tok == token.COMMENT || line[0].tok == token.IMPORT {
		return 0
	}
	least := line[0].depth
	for _, t := range line {
		least = min(least, t.depth)
	}
	best, at := 1<<30, 0
	for i, t := range line[:len(line)-1] {
		col := width(string(src[start:t.end]))
		if col > columns || line[i+1].tok == token.COMMENT {
			continue
		}
		cost := columns - col + 40*(t.depth-least)
		switch t.tok {
		case token.COMMA:
		case token.LAND, token.LOR:
			cost += 5
		case token.ADD:
			cost += 15
		case token.LPAREN:
			if line[i+1].tok == token.RPAREN || i > 0 && line[i-1].tok == token.FUNC {
				continue
			}
			cost += 60
		case token.LBRACE:
			if line[i+1].tok == token.RBRACE {
				continue
			}
			cost += 20
		default:
			continue
		}
		if cost < best {
			best, at = cost, t.end
		}
	}
	return at
}
