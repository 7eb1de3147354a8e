package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"
)

const (
	// maxTokens bounds what the YAML library builds of one document: a token makes at most two nodes of some 200 bytes.
	// The largest documents that people write have a tenth of it.
	maxTokens = 100_000
	// maxKey is how many characters a key without "?" may be away from its colon, by YAML's own rule.
	maxKey = 1024
)

var (
	errAnchor = errors.New("anchors and aliases (& and *) are not allowed: repeat the value")
	errMerge  = errors.New("merge keys (<<) are not allowed: repeat the keys")
)

// checkYAML finds what must not reach the YAML library, in one pass and without memory for what it reads: anchors,
// aliases and merge keys, more than maxTokens tokens and more than maxNesting levels. The line is that of the finding,
// from 1. It follows the rules by which the library finds tokens; where those would end in an error it may stop without
// one, and the library then reports it. A fuzz test compares both.
func checkYAML(text []byte) (line int, err error) {
	if i := bytes.Index(text, []byte("\ufeff")); i >= 0 { // the library skips it in some places
		return 1 + bytes.Count(text[:i], []byte("\n")), errors.New("a byte order mark is inside the document")
	}
	s := scanner{
		s: text, line: 1, indents: make([]int, 1, maxNesting+2), keys: make([]simpleKey, 1, maxNesting+2),
		keyAllowed: true,
	}
	s.indents[0] = -1
	for s.err == nil && s.token() {
		if s.tokens++; s.tokens > maxTokens {
			s.fail(fmt.Errorf("the document has more than %d parts", maxTokens))
		}
	}
	return s.line, s.err
}

// scanner follows YAML's indentation and possible keys as far as they decide where a token begins.
type scanner struct {
	s         []byte
	pos       int
	index     int   // as pos, in characters
	line, col int   // line from 1, column in characters from 0
	indents   []int // of the open blocks; the first is -1
	flow      int   // open brackets and braces
	// keyAllowed says that a key may begin here: at the beginning of a line, or behind an indicator.
	keyAllowed bool
	keys       []simpleKey // one for each open bracket, and one for the blocks
	asked      bool        // a question mark came before, and nothing but a tag since: a key is next
	tokens     int
	err        error
}

// simpleKey is a token that a colon may turn into a key.
type simpleKey struct {
	possible              bool
	pos, index, line, col int
}

func (s *scanner) fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

func (s *scanner) at(i int) byte {
	if s.pos+i < len(s.s) {
		return s.s[s.pos+i]
	}
	return 0
}

// breakAt returns the length of the line break at i bytes from here, 0 if there is none.
func (s *scanner) breakAt(i int) int {
	switch s.at(i) {
	case '\r':
		if s.at(i+1) == '\n' {
			return 2
		}
		return 1
	case '\n':
		return 1
	case 0xC2:
		if s.at(i+1) == 0x85 {
			return 2
		}
	case 0xE2:
		if s.at(i+1) == 0x80 && (s.at(i+2) == 0xA8 || s.at(i+2) == 0xA9) {
			return 3
		}
	}
	return 0
}

func (s *scanner) end() bool           { return s.pos >= len(s.s) }
func (s *scanner) blank(i int) bool    { return s.at(i) == ' ' || s.at(i) == '\t' }
func (s *scanner) blankEnd(i int) bool { return s.pos+i >= len(s.s) || s.blank(i) || s.breakAt(i) > 0 }

// skip moves over n characters that are no line breaks.
func (s *scanner) skip(n int) {
	for ; n > 0 && !s.end(); n-- {
		_, size := utf8.DecodeRune(s.s[s.pos:])
		s.pos += size
		s.index++
		s.col++
	}
}

// newline moves over a line break.
func (s *scanner) newline() {
	n := s.breakAt(0)
	s.index += utf8.RuneCount(s.s[s.pos : s.pos+n])
	s.pos += n
	s.line++
	s.col = 0
}

func (s *scanner) restOfLine() {
	for !s.end() && s.breakAt(0) == 0 {
		s.skip(1)
	}
}

func (s *scanner) indent() int { return s.indents[len(s.indents)-1] }

// roll opens a block at a column.
func (s *scanner) roll(col int) {
	if s.flow == 0 && s.indent() < col {
		s.indents = append(s.indents, col)
		s.deep()
	}
}

// unroll closes the blocks to the right of a column.
func (s *scanner) unroll(col int) {
	for s.flow == 0 && s.indent() > col {
		s.indents = s.indents[:len(s.indents)-1]
	}
}

func (s *scanner) deep() {
	if len(s.indents)-1+s.flow > maxNesting {
		s.fail(fmt.Errorf("more than %d objects and lists inside each other", maxNesting))
	}
}

func (s *scanner) key() *simpleKey { return &s.keys[len(s.keys)-1] }

// saveKey notes that what begins here may turn out to be a key.
func (s *scanner) saveKey() {
	if s.keyAllowed {
		*s.key() = simpleKey{possible: true, pos: s.pos, index: s.index, line: s.line, col: s.col}
	}
}

// between skips what is between tokens.
func (s *scanner) between() {
	for !s.end() {
		switch {
		case s.at(0) == ' ' || s.at(0) == '\t' && (s.flow > 0 || !s.keyAllowed):
			s.skip(1)
		case s.at(0) == '#':
			s.restOfLine()
		case s.breakAt(0) > 0:
			s.newline()
			if s.flow == 0 {
				s.keyAllowed = true
			}
		default:
			return
		}
	}
}

// document reports that a marker of a document's beginning or end is here.
func (s *scanner) document() bool {
	c := s.at(0)
	return s.col == 0 && (c == '-' || c == '.') && s.at(1) == c && s.at(2) == c && s.blankEnd(3)
}

// token moves over the next token; false at the end.
func (s *scanner) token() bool {
	s.between()
	if s.end() {
		return false
	}
	s.unroll(s.col)
	c := s.at(0)
	key := s.asked
	s.asked = key && c == '!'
	switch {
	case s.col == 0 && c == '%':
		s.restOfLine()
	case s.document():
		s.unroll(-1)
		s.key().possible, s.keyAllowed = false, false
		s.skip(3)
	case c == '[' || c == '{':
		s.saveKey()
		s.flow++
		s.keys, s.keyAllowed = append(s.keys, simpleKey{}), true
		s.deep()
		s.skip(1)
	case c == ']' || c == '}':
		s.key().possible, s.keyAllowed = false, false
		if s.flow > 0 {
			s.flow--
			s.keys = s.keys[:len(s.keys)-1]
		}
		s.skip(1)
	case c == ',':
		s.key().possible, s.keyAllowed = false, true
		s.skip(1)
	case c == '-' && s.blankEnd(1):
		s.roll(s.col)
		s.key().possible, s.keyAllowed = false, true
		s.skip(1)
	case c == '?' && (s.flow > 0 || s.blankEnd(1)):
		s.roll(s.col)
		s.key().possible, s.keyAllowed, s.asked = false, s.flow == 0, true
		s.skip(1)
	case c == ':' && (s.flow > 0 || s.blankEnd(1)):
		s.value()
	case c == '*' || c == '&':
		s.fail(errAnchor)
	case c == '!':
		s.saveKey()
		s.keyAllowed = false
		for !s.blankEnd(0) {
			s.skip(1)
		}
	case (c == '|' || c == '>') && s.flow == 0:
		s.key().possible, s.keyAllowed = false, true
		s.block()
	case c == '\'' || c == '"':
		s.saveKey()
		s.keyAllowed = false
		s.quoted(c)
	default:
		s.saveKey()
		s.keyAllowed = false
		from, line := s.pos, s.line
		s.plain()
		if key && merges(s.s[from:s.pos]) {
			s.line = line
			s.fail(errMerge)
		}
	}
	return s.err == nil
}

// value moves over the colon behind a key.
func (s *scanner) value() {
	k := s.key()
	if k.possible && k.line == s.line && k.index+maxKey >= s.index {
		s.roll(k.col)
		s.keyAllowed = false
		if merges(s.s[k.pos:s.pos]) {
			s.fail(errMerge)
		}
	} else {
		s.roll(s.col)
		s.keyAllowed = s.flow == 0
	}
	k.possible = false
	s.skip(1)
}

// merges reports that a key, which may have a tag before it and white space behind, is a merge key.
func merges(key []byte) bool {
	if len(key) > 0 && key[0] == '!' {
		key = key[max(0, bytes.IndexAny(key, " \t")):]
	}
	return string(bytes.Trim(key, " \t\r\n\u0085\u2028\u2029")) == "<<"
}

// quoted moves over a scalar in quotes.
func (s *scanner) quoted(quote byte) {
	s.skip(1)
	for !s.end() {
		switch c := s.at(0); {
		case s.document():
			return // the library refuses this
		case c == '\'' && quote == c && s.at(1) == c:
			s.skip(2)
		case c == quote:
			s.skip(1)
			return
		case c == '\\' && quote == '"':
			s.skip(1)
			if s.breakAt(0) == 0 {
				s.skip(1)
			}
		case s.breakAt(0) > 0:
			s.newline()
		default:
			s.skip(1)
		}
	}
}

// plain moves over a scalar without quotes, which may go on in lines that are further to the right than its block.
func (s *scanner) plain() {
	start, left := s.pos, s.indent()+1
	broken := false // a line break is what was last seen
	for !s.document() && s.at(0) != '#' {
		for !s.blankEnd(0) && !s.plainEnds() {
			s.skip(1)
			broken = false
		}
		if s.pos == start {
			s.skip(1) // a character that begins no token, which the library refuses
		}
		if !s.blank(0) && s.breakAt(0) == 0 {
			break
		}
		for s.blank(0) || s.breakAt(0) > 0 {
			if s.breakAt(0) > 0 {
				s.newline()
				broken = true
			} else {
				s.skip(1)
			}
		}
		if s.flow == 0 && s.col < left {
			break
		}
	}
	if broken {
		s.keyAllowed = true
	}
}

// plainEnds reports that an indicator is here which ends a plain scalar.
func (s *scanner) plainEnds() bool {
	switch s.at(0) {
	case ':':
		return s.blankEnd(1)
	case ',', '?', '[', ']', '{', '}':
		return s.flow > 0
	}
	return false
}

// block moves over a literal or folded scalar: its header, and the lines that are further to the right than its block.
func (s *scanner) block() {
	parent, indent := s.indent(), 0
	for s.skip(1); !s.blankEnd(0); s.skip(1) {
		switch c := s.at(0); {
		case '1' <= c && c <= '9':
			indent = max(parent, 0) + int(c-'0')
		case c != '+' && c != '-':
			return // the library refuses this
		}
	}
	s.restOfLine()
	if s.breakAt(0) > 0 {
		s.newline()
	}
	for indent = s.blankLines(parent, indent); s.col == indent && !s.end(); indent = s.blankLines(parent, indent) {
		s.restOfLine()
		s.newline()
	}
}

// blankLines moves over empty lines and the indentation of the next one in a block scalar, and returns the scalar's
// indentation. With none yet, 0, it is that of the longest of these lines.
func (s *scanner) blankLines(parent, indent int) int {
	longest := 0
	for {
		for (indent == 0 || s.col < indent) && s.at(0) == ' ' {
			s.skip(1)
		}
		longest = max(longest, s.col)
		if s.breakAt(0) == 0 {
			break
		}
		s.newline()
	}
	if indent == 0 {
		indent = max(longest, parent+1, 1)
	}
	return indent
}
