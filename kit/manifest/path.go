package manifest

import (
	"fmt"
	"strconv"
	"strings"
)

// step is one part of a path: a name, a position, or the type or name of an element.
type step struct {
	name  string
	index int  // counts if name is empty
	pick  bool // name is that of a list element, as in conditions[Ready]
}

// Path is a parsed path of JSON names, for Lookup. The zero Path is that of the whole message.
type Path struct{ steps []step }

// ParsePath parses a path as Lookup describes it; an error means that it is malformed.
func ParsePath(path string) (Path, error) {
	steps, err := parsePath(path)
	return Path{steps}, err
}

// appendKey appends a field or key to a path: ".name", or "['a/b']" where the name would be misread.
func appendKey(path []byte, key string) []byte {
	if !plainKey(key) {
		path = append(path, "['"...)
		for i := range len(key) {
			if key[i] == '\'' || key[i] == '\\' {
				path = append(path, '\\')
			}
			path = append(path, key[i])
		}
		return append(path, "']"...)
	}
	if len(path) > 0 {
		path = append(path, '.')
	}
	return append(path, key...)
}

func appendIndex(path []byte, i int) []byte {
	path = append(path, '[')
	path = strconv.AppendInt(path, int64(i), 10)
	return append(path, ']')
}

// plainKey reports whether key needs no quotes in a path.
func plainKey(key string) bool {
	for i := range len(key) {
		c := key[i]
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`.[]'"\/{}`, c) >= 0 {
			return false
		}
	}
	return key != ""
}

// parsePath takes a path apart: names behind dots, ['keys'] or ["keys"] in quotes, [0] and [Ready].
func parsePath(path string) ([]step, error) {
	var steps []step
	rest := strings.TrimPrefix(path, ".")
	for first := true; rest != ""; first = false {
		var s step
		var ok bool
		switch {
		case rest[0] == '[':
			s, rest, ok = parseBracket(rest)
		case rest[0] == '.' && !first:
			s, rest, ok = parseName(rest[1:])
		case first:
			s, rest, ok = parseName(rest)
		}
		if !ok {
			return nil, fmt.Errorf("path %q is malformed", path)
		}
		steps = append(steps, s)
	}
	return steps, nil
}

func parseName(s string) (step, string, bool) {
	end := strings.IndexAny(s, ".[")
	if end < 0 {
		end = len(s)
	}
	return step{name: s[:end]}, s[end:], end > 0 && !strings.ContainsAny(s[:end], "]'\"")
}

func parseBracket(s string) (step, string, bool) {
	if len(s) > 1 && (s[1] == '\'' || s[1] == '"') {
		return parseQuoted(s)
	}
	end := strings.IndexByte(s, ']')
	if end < 2 {
		return step{}, "", false
	}
	inner := s[1:end]
	if i, err := strconv.Atoi(inner); err == nil {
		return step{index: i}, s[end+1:], i >= 0
	}
	return step{name: inner, pick: true}, s[end+1:], true
}

func parseQuoted(s string) (step, string, bool) {
	var name []byte
	for i := 2; i < len(s); i++ {
		switch {
		case s[i] == '\\' && i+1 < len(s):
			i++
			name = append(name, s[i])
		case s[i] == s[1]:
			if i+1 == len(s) || s[i+1] != ']' {
				return step{}, "", false
			}
			return step{name: string(name)}, s[i+2:], len(name) > 0
		default:
			name = append(name, s[i])
		}
	}
	return step{}, "", false
}
