package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/yaml/goyaml.v2"
)

// Document is one object of a file, not yet decoded.
type Document struct {
	JSON       []byte // the whole object as JSON
	Line       int    // line of the file where it begins, from 1
	APIVersion string
	Kind       string // never empty
	File       string // as given to Split

	places *places
}

// SyntaxError is a part of a stream that is not a document.
type SyntaxError struct {
	File    string
	Line    int // from 1
	Message string
}

// Error returns the place and what is wrong there, as in "file.yaml:12: the document has no kind".
func (e *SyntaxError) Error() string {
	if e.File == "" {
		return fmt.Sprintf("line %d: %s", e.Line, e.Message)
	}
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Message)
}

// Split reads a stream of YAML documents, JSON objects among them or alone, and returns them in their order. YAML is
// version 1.1, as kubectl reads it: yes and on are booleans unless they are quoted. A key given twice is refused, as
// are anchors, aliases and merge keys, a part without kind, one of more than 8 MiB or 100,000 tokens, and a stream of
// more than 64 MiB. The spellings apiversion and version of apiVersion, which occur in the wild, are put right, and the
// two kinds of OpenShift's master configuration are known by their content. Parts that hold comments only are left out.
// The error joins a *SyntaxError for each wrong part; then no document is returned. file is the name that errors use.
func Split(r io.Reader, file string) ([]Document, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxStream+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	s := splitter{file: file}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	switch {
	case len(data) > maxStream:
		return nil, &SyntaxError{file, 1, fmt.Sprintf("is longer than %d bytes", maxStream)}
	case !utf8.Valid(data):
		return nil, &SyntaxError{file, 1 + bytes.Count(data[:validPrefix(data)], []byte("\n")), "is not valid UTF-8"}
	case s.objects(data, 1):
	default:
		s.parts(data)
	}
	if len(s.errs) > 0 {
		return nil, errors.Join(s.errs...)
	}
	return s.documents, nil
}

// validPrefix returns how many bytes of data are valid UTF-8.
func validPrefix(data []byte) int {
	i := 0
	for i < len(data) {
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n == 1 {
			break
		}
		i += n
	}
	return i
}

// splitter gathers documents and errors.
type splitter struct {
	file      string
	whole     bool // documents are taken as they are
	documents []Document
	errs      []error
}

func (s *splitter) refuse(line int, format string, args ...any) {
	s.errs = append(s.errs, &SyntaxError{s.file, line, fmt.Sprintf(format, args...)})
}

// objects takes data as JSON objects one after another. It is false, and nothing has happened, if data is anything
// else.
func (s *splitter) objects(data []byte, line int) bool {
	r := newReader(data)
	var starts, ends []int
	for r.next() == '{' {
		starts = append(starts, r.pos)
		r.skip()
		ends = append(ends, r.pos)
	}
	if r.failed || len(starts) == 0 || r.pos < len(r.s) {
		return false
	}
	from := 0
	for i, start := range starts {
		line += bytes.Count(data[from:start], []byte("\n"))
		from = start
		s.object(data[start:ends[i]], line)
	}
	return true
}

// object adds one JSON object whose syntax is known to be right.
func (s *splitter) object(data []byte, line int) {
	if len(data) > maxDocument {
		s.refuse(line, "the document is longer than %d bytes", maxDocument)
		return
	}
	if err := checkKeys(data); err != nil {
		places := &places{source: data, line: line}
		for _, p := range err.Problems {
			s.refuse(max(line, places.lineOf(p.Path)), "%s", p.placed())
		}
		return
	}
	s.add(data, line, &places{source: data, line: line})
}

// parts cuts YAML at its document markers. A converter reads the first document only and is silent about the rest, so
// this sees markers wherever YAML does: at the start of a line, whatever ended the line before.
func (s *splitter) parts(data []byte) {
	p := part{line: 1}
	line := 1
	for pos := 0; pos < len(data); {
		end, next := lineEnd(data, pos)
		text := data[pos:end]
		switch marker(text) {
		case "---":
			if p.content || p.marked {
				s.part(data[p.start:pos], p)
				p = part{start: pos, line: line}
			}
			p.marked = true
			p.see(text[3:], line)
		case "...":
			if rest := bytes.TrimSpace(text[3:]); len(rest) > 0 && rest[0] != '#' {
				s.refuse(line, "text follows the end of a document")
			}
			s.part(data[p.start:pos], p)
			p = part{start: next, line: line + 1}
		default:
			p.see(text, line)
		}
		pos = next
		line++
	}
	s.part(data[p.start:], p)
}

// part is a stretch of a stream between two markers.
type part struct {
	start   int
	line    int  // of start
	first   int  // line of the first content
	content bool // there is more than comments
	marked  bool // a "---" was seen
}

// see looks for content in a line.
func (p *part) see(text []byte, line int) {
	text = bytes.TrimSpace(text)
	if p.content || len(text) == 0 || text[0] == '#' || text[0] == '%' && !p.marked {
		return
	}
	p.content, p.first = true, line
}

// lineEnd returns where the line at pos ends and where the next one begins. YAML 1.1 knows more line ends than most.
func lineEnd(data []byte, pos int) (end, next int) {
	for i := pos; i < len(data); i++ {
		switch c := data[i]; {
		case c == '\n':
			return i, i + 1
		case c == '\r' && i+1 < len(data) && data[i+1] == '\n':
			return i, i + 2
		case c == '\r':
			return i, i + 1
		case c == 0xC2 && bytes.HasPrefix(data[i:], []byte("\u0085")):
			return i, i + 2
		case c == 0xE2 && (bytes.HasPrefix(data[i:], []byte("\u2028")) || bytes.HasPrefix(data[i:], []byte("\u2029"))):
			return i, i + 3
		}
	}
	return len(data), len(data)
}

// marker returns the document marker that a line begins with, else "".
func marker(line []byte) string {
	for _, m := range [...]string{"---", "..."} {
		if rest, ok := bytes.CutPrefix(line, []byte(m)); ok && (len(rest) == 0 || rest[0] == ' ' || rest[0] == '\t') {
			return m
		}
	}
	return ""
}

// part adds the documents of one part.
func (s *splitter) part(text []byte, p part) {
	if !p.content || !p.marked && s.objects(text, p.line) {
		return
	}
	if rest, ok := bytes.CutPrefix(text, []byte("---")); ok && s.objects(rest, p.line) {
		return
	}
	if len(text) > maxDocument {
		s.refuse(p.first, "the document is longer than %d bytes", maxDocument)
		return
	}
	places := &places{source: text, line: p.line}
	if converted := s.convert(text, p, places); converted != nil {
		s.add(converted, p.first, places)
	}
}

// convert returns a part that is YAML as JSON, nil if something is wrong with it.
func (s *splitter) convert(text []byte, p part, places *places) []byte {
	if line, err := checkYAML(text); err != nil {
		s.refuse(p.line+line-1, "%v", err)
		return nil
	}
	var object any
	if err := yaml.UnmarshalStrict(text, &object); err != nil {
		s.refuseYAML(err, p)
		return nil
	}
	converted, wrong := toJSON(object)
	for _, problem := range wrong {
		s.refuse(max(p.first, places.lineOf(problem.Path)), "%s", problem.placed())
	}
	if len(wrong) > 0 {
		return nil
	}
	if len(converted) > maxDocument {
		s.refuse(p.first, "the document is longer than %d bytes as JSON", maxDocument)
		return nil
	}
	return converted
}

// JSON returns text, which is one YAML document or JSON, as JSON; nothing for text without content. It is as strict as
// Split, but the document may be anything and needs no kind. Errors are those of Split, with lines from 1 and without a
// file.
func JSON(text []byte) ([]byte, error) {
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	s := splitter{whole: true}
	switch {
	case len(text) > maxDocument:
		s.refuse(1, "the document is longer than %d bytes", maxDocument)
	case !utf8.Valid(text):
		s.refuse(1+bytes.Count(text[:validPrefix(text)], []byte("\n")), "is not valid UTF-8")
	default:
		s.parts(text)
	}
	if len(s.documents) > 1 {
		s.refuse(s.documents[1].Line, "there is more than one document")
	}
	if len(s.errs) > 0 {
		return nil, errors.Join(s.errs...)
	}
	if len(s.documents) == 0 {
		return nil, nil
	}
	return s.documents[0].JSON, nil
}

// yamlLine finds the line numbers in the YAML library's messages.
var yamlLine = regexp.MustCompile(`^(?:yaml: )?line (\d+): `)

// refuseYAML turns the library's text, which may name several lines, into errors with lines of the file.
func (s *splitter) refuseYAML(err error, p part) {
	text := strings.TrimPrefix(err.Error(), "yaml: unmarshal errors:\n")
	for _, message := range strings.Split(text, "\n") {
		message = strings.TrimSpace(message)
		line := p.first
		if found := yamlLine.FindStringSubmatch(message); found != nil {
			message = message[len(found[0]):]
			if n, err := strconv.Atoi(found[1]); err == nil {
				line = p.line + n - 1
			}
		}
		s.refuse(line, "%s", strings.TrimPrefix(message, "yaml: "))
	}
}

// add makes a document of an object as JSON, which begins at line of the file.
func (s *splitter) add(object []byte, line int, places *places) {
	if s.whole {
		s.documents = append(s.documents, Document{JSON: object, Line: line})
		return
	}
	members, ok := topLevel(object)
	if !ok {
		s.refuse(line, "the document is not an object")
		return
	}
	d := Document{Line: line, File: s.file, places: places}
	fold(members)
	members = name(members)
	for _, m := range members {
		switch m.key {
		case "kind":
			d.Kind, ok = m.text()
		case "apiVersion":
			d.APIVersion, ok = m.text()
		default:
			continue
		}
		if !ok && m.value != "null" {
			s.refuse(d.LineOf(m.key), "%s: must be text, not %s", m.key, excerpt(m.value))
			return
		}
	}
	if d.Kind == "" {
		s.refuse(line, "the document has no kind")
		return
	}
	d.JSON = join(members)
	s.documents = append(s.documents, d)
}

// member is one key of an object with its value unchanged.
type member struct{ key, value string }

func (m member) text() (string, bool) {
	r := newReader([]byte(m.value))
	if r.next() != '"' {
		return "", false
	}
	return r.text(), true
}

// topLevel takes apart an object whose syntax is known to be right; it is false for anything but an object.
func topLevel(object []byte) ([]member, bool) {
	r := newReader(object)
	if r.next() != '{' {
		return nil, false
	}
	r.enter()
	var members []member
	for first := true; ; first = false {
		key, more := r.member(first)
		if !more {
			return members, !r.failed
		}
		r.next()
		start := r.pos
		r.skip()
		members = append(members, member{key, r.s[start:r.pos]})
	}
}

// Fold returns a JSON object with the spellings apiversion and version of apiVersion put right, as Split does. What
// follows the object stays, and anything else is returned as it is.
func Fold(text []byte) []byte {
	members, ok := topLevel(text)
	if !ok || !fold(members) {
		return text
	}
	r := newReader(text)
	r.skip()
	return append(join(members), text[r.pos:]...)
}

// fold puts right the spellings of apiVersion if the object has none; it is false if there was nothing to do.
func fold(members []member) bool {
	wrong := -1
	for i, m := range members {
		switch m.key {
		case "apiVersion":
			return false
		case "apiversion":
			wrong = i
		case "version":
			if wrong < 0 {
				wrong = i
			}
		}
	}
	if wrong >= 0 {
		members[wrong].key = "apiVersion"
	}
	return wrong >= 0
}

// bare are the kinds that documents also show as nothing but their content, by the one key of it.
var bare = map[string]string{"admissionConfig": "AdmissionConfig", "kubernetesMasterConfig": "KubernetesMasterConfig"}

// name adds kind and apiVersion to content that lacks them.
func name(members []member) []member {
	if len(members) != 1 || bare[members[0].key] == "" {
		return members
	}
	return append([]member{{"apiVersion", `"v1"`}, {"kind", `"` + bare[members[0].key] + `"`}}, members[0])
}

func join(members []member) []byte {
	out := []byte{'{'}
	for i, m := range members {
		if i > 0 {
			out = append(out, ',')
		}
		out, _ = appendString(out, strings.ToValidUTF8(m.key, "\ufffd"))
		out = append(append(out, ':'), m.value...)
	}
	return append(out, '}')
}

// checkKeys returns the paths of all keys that an object of data has twice, and of nesting that goes too deep; nil if
// there are none.
func checkKeys(data []byte) *Errors {
	d := decoder{newReader(data)}
	d.keys()
	d.end()
	if len(d.problems) == 0 {
		return nil
	}
	return &Errors{Problems: d.problems}
}

// keys reads one value, whatever it is.
func (d decoder) keys() {
	outer := len(d.path)
	switch d.next() {
	case '{':
		if !d.enter() {
			return
		}
		seen := make(map[string]bool)
		for first := true; ; first = false {
			key, more := d.member(first)
			if !more {
				return
			}
			d.path = appendKey(d.path, key)
			if seen[key] {
				d.note("is given twice")
			}
			seen[key] = true
			d.keys()
			d.path = d.path[:outer]
		}
	case '[':
		if !d.enter() {
			return
		}
		for i := 0; d.another(i == 0, ']'); i++ {
			d.path = appendIndex(d.path, i)
			d.keys()
			d.path = d.path[:outer]
		}
	default:
		d.scalar()
	}
}
