package main

import (
	"regexp"
	"strings"
)

const docColumns = 100

var (
	listItem = regexp.MustCompile(`^\s*([-*]|\d+\.) `)
	// A word is what a line is not broken in: code between backquotes stays on one line.
	docWord = regexp.MustCompile("(?:`[^`]*`|[^\\s`]|`)+")
)

// fillMarkdown fills the paragraphs and list items of a Markdown file that have a line of more than 100 columns. Code,
// tables, headings and HTML stay as they are.
func fillMarkdown(src []byte) []byte {
	list := lines(src)
	var out []string
	fence := false
	for i := 0; i < len(list); {
		l := list[i]
		if strings.HasPrefix(strings.TrimSpace(l), "```") {
			fence = !fence
		}
		if fence || !prose(l) {
			out = append(out, l)
			i++
			continue
		}
		j, long := i, false
		for j < len(list) && (j == i || prose(list[j]) && !listItem.MatchString(list[j])) {
			long = long || width(list[j]) > docColumns
			j++
		}
		if !long {
			out = append(out, list[i:j]...)
		} else {
			out = append(out, fill(list[i:j])...)
		}
		i = j
	}
	return []byte(strings.Join(out, "\n"))
}

// prose reports whether a line belongs to a paragraph or a list item.
func prose(l string) bool {
	t := strings.TrimSpace(l)
	if t == "" || strings.HasPrefix(l, "    ") && !listItem.MatchString(l) {
		return false
	}
	return !strings.ContainsAny(t[:1], "|#<>") && !strings.HasPrefix(t, "```") && !strings.HasPrefix(t, "---")
}

// fill breaks a paragraph or an item, whose further lines are indented like its text.
func fill(block []string) []string {
	first := block[0][:len(block[0])-len(strings.TrimLeft(block[0], " "))]
	rest := first
	if m := listItem.FindString(block[0]); m != "" {
		rest = strings.Repeat(" ", len(m))
	}
	var out []string
	line, empty := first, true
	for _, w := range docWord.FindAllString(strings.Join(strings.Fields(strings.Join(block, " ")), " "), -1) {
		switch {
		case empty:
			line += w
		case width(line)+1+width(w) > docColumns && !listItem.MatchString(w+" "):
			out = append(out, line)
			line = rest + w
		default:
			line += " " + w
		}
		empty = false
	}
	return append(out, line)
}
