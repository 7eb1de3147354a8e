package manifest

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// reader takes JSON apart, token by token, and remembers where it is. A problem of meaning is noted and the reader goes
// on; a problem of syntax ends it: from then on next returns 0 and every loop over members or elements ends.
//
// A draft over jsontext.Decoder (github.com/go-json-experiment/json v1.27.2) saved 110 of 334 lines of code, but failed
// eight cases of the tests: nesting of more than 10,000 is a syntax error there, the limit is fixed, and the texts and
// positions of syntax errors differ. BenchmarkDecode took 56 instead of 50 µs, with 646 instead of 458 allocations.
type reader struct {
	s        string
	pos      int
	checked  bool // s as a whole is known to be valid UTF-8
	failed   bool
	path     []byte
	depth    int
	problems []Problem
}

func newReader(data []byte) *reader {
	return &reader{s: string(data), checked: utf8.Valid(data), path: make([]byte, 0, 128)}
}

// err returns all that was noted, or nil.
func (r *reader) err() error {
	if len(r.problems) == 0 {
		return nil
	}
	return &Errors{Problems: r.problems}
}

// note records a problem at the current path.
func (r *reader) note(message string) {
	if r.failed {
		return
	}
	if len(r.problems) == maxProblems-1 {
		r.problems = append(r.problems, Problem{Message: "too many problems; the rest is not listed"})
		r.failed, r.pos = true, len(r.s)
		return
	}
	r.problems = append(r.problems, Problem{Path: string(r.path), Message: message})
}

// fail records a syntax error at the current position and ends the reading.
func (r *reader) fail(message string) {
	if r.failed {
		return
	}
	before := r.s[:min(r.pos, len(r.s))]
	line := 1 + strings.Count(before, "\n")
	column := len(before) - strings.LastIndexByte(before, '\n')
	r.note(fmt.Sprintf("not valid JSON: %s at line %d column %d", message, line, column))
	r.failed, r.pos = true, len(r.s)
}

// next skips white space and returns the byte that the next token begins with, 0 at the end.
func (r *reader) next() byte {
	for r.pos < len(r.s) {
		switch c := r.s[r.pos]; c {
		case ' ', '\t', '\n', '\r':
			r.pos++
		default:
			return c
		}
	}
	return 0
}

// enter steps into the object or list that comes next. It returns false if the nesting is too deep; then it was
// skipped.
func (r *reader) enter() bool {
	if r.depth == maxNesting {
		r.note("more than " + strconv.Itoa(maxNesting) + " objects and lists inside each other")
		r.skip()
		return false
	}
	r.depth++
	r.pos++
	return true
}

// member returns the key of the next member of the object that was entered and stops before its value. At the end of
// the object it steps out and returns false.
func (r *reader) member(first bool) (string, bool) {
	if !r.another(first, '}') {
		return "", false
	}
	if r.next() != '"' {
		r.fail("a key in quotes is missing")
		return "", false
	}
	key := r.text()
	if r.next() != ':' {
		r.fail("':' is missing")
		return "", false
	}
	r.pos++
	return key, true
}

// another stops before the next member or element; at the end it steps out and returns false.
func (r *reader) another(first bool, end byte) bool {
	c := r.next()
	switch {
	case c == end:
		r.pos++
		r.depth--
		return false
	case first && !r.failed && c != 0:
		return true
	case c == ',':
		r.pos++
		if r.next() == end {
			r.fail("a value is missing after ','")
		}
		return !r.failed
	}
	r.fail("',' or '" + string(end) + "' is missing")
	return false
}

// text reads a string. What is not valid UTF-8 in it is noted.
func (r *reader) text() string {
	start := r.pos + 1
	for i := start; i < len(r.s); i++ {
		switch c := r.s[i]; {
		case c == '"':
			r.pos = i + 1
			return r.valid(r.s[start:i])
		case c == '\\':
			return r.escaped(start, i)
		case c < ' ':
			r.pos = i
			r.fail("a control character in a string")
			return ""
		}
	}
	r.pos = len(r.s)
	r.fail("a string has no end")
	return ""
}

func (r *reader) valid(s string) string {
	if !r.checked && !utf8.ValidString(s) {
		r.note("is not valid UTF-8")
	}
	return s
}

// escaped reads on in a string that began at start and has its first escape at i.
func (r *reader) escaped(start, i int) string {
	out := append(make([]byte, 0, i-start+32), r.s[start:i]...)
	for i < len(r.s) {
		c := r.s[i]
		switch {
		case c == '"':
			r.pos = i + 1
			return r.valid(string(out))
		case c < ' ':
			r.pos = i
			r.fail("a control character in a string")
			return ""
		case c != '\\':
			out = append(out, c)
			i++
			continue
		}
		var n int
		if out, n = r.escape(out, i); n == 0 {
			r.pos = i
			r.fail("an unknown escape in a string")
			return ""
		}
		i += n
	}
	r.pos = len(r.s)
	r.fail("a string has no end")
	return ""
}

// escape appends the character for the escape sequence at i and returns its length, 0 if it is invalid.
func (r *reader) escape(out []byte, i int) ([]byte, int) {
	if i+1 >= len(r.s) {
		return out, 0
	}
	const plain, means = `"\/bfnrt`, "\"\\/\b\f\n\r\t"
	if k := strings.IndexByte(plain, r.s[i+1]); k >= 0 {
		return append(out, means[k]), 2
	}
	first, ok := r.unit(i)
	if !ok {
		return out, 0
	}
	if !utf16.IsSurrogate(first) {
		return utf8.AppendRune(out, first), 6
	}
	if second, ok := r.unit(i + 6); ok {
		if c := utf16.DecodeRune(first, second); c != utf8.RuneError {
			return utf8.AppendRune(out, c), 12
		}
	}
	r.note("is not valid UTF-8: half of a surrogate pair")
	return utf8.AppendRune(out, utf8.RuneError), 6
}

// unit reads the \uXXXX at i.
func (r *reader) unit(i int) (rune, bool) {
	if i+6 > len(r.s) || r.s[i] != '\\' || r.s[i+1] != 'u' {
		return 0, false
	}
	var v rune
	for _, c := range []byte(r.s[i+2 : i+6]) {
		switch {
		case '0' <= c && c <= '9':
			v = v<<4 | rune(c-'0')
		case 'a' <= c && c <= 'f':
			v = v<<4 | rune(c-'a'+10)
		case 'A' <= c && c <= 'F':
			v = v<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	return v, true
}

// number reads a number and returns its text unchanged.
func (r *reader) number() string {
	n := numberLength(r.s[r.pos:])
	if n == 0 {
		r.fail("a number is malformed")
		return "0"
	}
	literal := r.s[r.pos : r.pos+n]
	r.pos += n
	return literal
}

// numberLength returns the length of the JSON number that s begins with, 0 if it begins with none.
func numberLength(s string) int {
	digits := func(i int) int {
		for i < len(s) && '0' <= s[i] && s[i] <= '9' {
			i++
		}
		return i
	}
	i := 0
	if i < len(s) && s[i] == '-' {
		i++
	}
	end := digits(i)
	if end == i {
		return 0
	}
	if s[i] == '0' {
		end = i + 1
	}
	if end < len(s) && s[end] == '.' {
		if frac := digits(end + 1); frac > end+1 {
			end = frac
		} else {
			return 0
		}
	}
	if end == len(s) || s[end] != 'e' && s[end] != 'E' {
		return end
	}
	i = end + 1
	if i < len(s) && (s[i] == '+' || s[i] == '-') {
		i++
	}
	if end = digits(i); end == i {
		return 0
	}
	return end
}

// word reads one of true, false and null.
func (r *reader) word() string {
	for _, w := range [...]string{"true", "false", "null"} {
		if strings.HasPrefix(r.s[r.pos:], w) {
			r.pos += len(w)
			return w
		}
	}
	r.fail("a value is malformed")
	return ""
}

// null reads a null if one comes next.
func (r *reader) null() bool {
	return r.next() == 'n' && r.word() == "null"
}

// skip reads over the next value, of whatever kind and depth, and checks its syntax.
func (r *reader) skip() {
	outer := r.depth
	var ends []byte // the closing brackets that are still to come; the stack of Go is not for others to fill
	first := true
	for {
		if n := len(ends); n > 0 {
			more := false
			if ends[n-1] == '}' {
				_, more = r.member(first)
			} else {
				more = r.another(first, ']')
			}
			if first = false; !more {
				ends = ends[:n-1]
				if len(ends) == 0 || r.failed {
					r.depth = outer
					return
				}
				continue
			}
		}
		switch c := r.next(); c {
		case '{', '[':
			r.pos++
			r.depth++
			ends, first = append(ends, c+2), true
		default:
			r.scalar()
		}
		if len(ends) == 0 || r.failed {
			r.depth = outer
			return
		}
	}
}

// scalar reads over a value that is neither object nor list.
func (r *reader) scalar() {
	switch c := r.next(); {
	case c == '"':
		r.text()
	case c == '-' || '0' <= c && c <= '9':
		r.number()
	case c == 0:
		r.fail("a value is missing")
	default:
		r.word()
	}
}

// end notes anything that follows the value that was read.
func (r *reader) end() {
	if r.next() != 0 || r.pos < len(r.s) {
		r.fail("something follows the end of the document")
	}
}

// mismatch notes that the next value is not what was wanted, and skips it.
func (r *reader) mismatch(want string) {
	switch c := r.next(); c {
	case '{':
		r.note("must be " + want + ", not an object")
		r.skip()
	case '[':
		r.note("must be " + want + ", not a list")
		r.skip()
	default:
		start := r.pos
		r.scalar()
		if !r.failed {
			r.note("must be " + want + ", not " + excerpt(r.s[start:r.pos]))
		}
	}
}

// excerpt shortens what is quoted in an error.
func excerpt(s string) string {
	const most = 60
	if len(s) <= most {
		return strings.ToValidUTF8(s, "\ufffd")
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
