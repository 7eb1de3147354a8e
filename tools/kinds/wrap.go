package main

import "strings"

// columns is the greatest length of a line.
const columns = 120

// wrap breaks the long lines of a proto file: comments between words, options and methods between their parts.
func wrap(text string) string {
	var out []string
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		indent := line[:len(line)-len(strings.TrimLeft(line, " "))]
		options, isOption := strings.CutSuffix(line, "};")
		switch {
		case len(line) <= columns:
			out = append(out, line)
		case strings.HasPrefix(line, indent+"//"):
			out = append(out, words(line[len(indent):], indent)...)
		case strings.HasPrefix(line, indent+"rpc "):
			call, returns, _ := strings.Cut(line, " returns ")
			out = append(out, call, indent+"    returns "+returns)
		case strings.HasPrefix(line, indent+"option ") && isOption:
			name, fields, _ := strings.Cut(options, "{")
			out = append(out, name+"{")
			for field := range strings.SplitSeq(fields, ", ") {
				out = append(out, indent+"  "+field)
			}
			out = append(out, indent+"};")
		default:
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n") + "\n"
}

// words breaks a comment between its words.
func words(comment, indent string) []string {
	var out []string
	line := indent + "//"
	for word := range strings.FieldsSeq(strings.TrimPrefix(comment, "//")) {
		if len(line)+1+len(word) > columns {
			out = append(out, line)
			line = indent + "//"
		}
		line += " " + word
	}
	return append(out, line)
}
