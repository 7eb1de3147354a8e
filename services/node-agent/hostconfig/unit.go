package hostconfig

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	typeSimple  = "simple"
	typeExec    = "exec"
	typeOneshot = "oneshot"

	restartAlways    = "always"
	restartOnFailure = "on-failure"
	restartNo        = "no"

	// startLimit is how long a oneshot unit may run if it does not say. Source: systemd's DefaultTimeoutStartSec.
	startLimit = 90 * time.Second
	// noLimit means no limit: a configuration that takes longer has other faults.
	noLimit = 24 * time.Hour
)

// command is one line that a unit runs.
type command struct {
	args    []string // the first one is the program, an absolute path
	lenient bool     // its failure does not count
}

// unit is an enabled service as far as it is carried out: Type simple, exec or oneshot, ExecStartPre, ExecStart,
// Environment, WorkingDirectory, Restart, TimeoutStartSec and WantedBy. Other directives are ignored.
type unit struct {
	name     string
	text     string // what it was made from: another text is another unit
	typ      string
	pre      []command
	start    []command
	env      []string
	dir      string
	restart  string
	limit    time.Duration
	wantedBy string
}

// long reports whether a unit runs until it is stopped.
func (u unit) long() bool { return u.typ != typeOneshot }

// parseUnit reads a unit. Of settings that are given twice the last one counts; lists grow, and an empty value clears
// them. Source: systemd.syntax(7).
func parseUnit(name, text string) (unit, error) {
	u := unit{
		name: name, text: text, typ: typeSimple, restart: restartNo, limit: startLimit,
		wantedBy: "multi-user.target",
	}
	section := ""
	for _, line := range logicalLines(text) {
		if strings.HasPrefix(line, "[") && strings.HasSuffix(line, "]") {
			section = line[1 : len(line)-1]
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok {
			return u, fmt.Errorf("line %q is no setting", line)
		}
		if err := u.set(section, strings.TrimSpace(key), strings.TrimSpace(value)); err != nil {
			return u, fmt.Errorf("%s: %w", strings.TrimSpace(key), err)
		}
	}
	if !strings.HasSuffix(name, ".service") {
		u.start = nil
		return u, nil
	}
	if len(u.start) > 1 && u.long() {
		return u, errors.New("ExecStart: only a oneshot unit may have several")
	}
	return u, nil
}

// logicalLines returns the lines of a unit without comments and with continued ones joined.
func logicalLines(text string) []string {
	var out []string
	joined := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" && joined == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, ";") {
			continue
		}
		if head, more := strings.CutSuffix(line, `\`); more {
			joined += head + " "
			continue
		}
		if line = strings.TrimSpace(joined + line); line != "" {
			out = append(out, line)
		}
		joined = ""
	}
	if joined = strings.TrimSpace(joined); joined != "" {
		out = append(out, joined)
	}
	return out
}

func (u *unit) set(section, key, value string) error {
	switch section + "/" + key {
	case "Service/Type":
		if !slices.Contains([]string{typeSimple, typeExec, typeOneshot}, value) {
			return fmt.Errorf("%q is not carried out, only simple, exec and oneshot", value)
		}
		u.typ = value
	case "Service/Restart":
		if !slices.Contains([]string{restartAlways, restartOnFailure, restartNo}, value) {
			return fmt.Errorf("%q is not carried out, only always, on-failure and no", value)
		}
		u.restart = value
	case "Service/ExecStart":
		return u.addCommand(&u.start, value)
	case "Service/ExecStartPre":
		return u.addCommand(&u.pre, value)
	case "Service/Environment":
		if value == "" {
			u.env = nil
			return nil
		}
		words, err := u.words(value)
		u.env = append(u.env, words...)
		for _, w := range words {
			if i := strings.IndexByte(w, '='); i < 1 {
				return fmt.Errorf("%q is not NAME=value", w)
			}
		}
		return err
	case "Service/WorkingDirectory":
		u.dir = strings.TrimPrefix(value, "-")
		if u.dir != "" && !path.IsAbs(u.dir) {
			return fmt.Errorf("%q is no absolute path", u.dir)
		}
	case "Service/TimeoutStartSec":
		d, err := span(value)
		u.limit = d
		return err
	case "Install/WantedBy":
		if fields := strings.Fields(value); len(fields) > 0 {
			if fields[0] != path.Base(fields[0]) {
				return fmt.Errorf("%q is no name of a unit", fields[0])
			}
			u.wantedBy = fields[0]
		}
	}
	return nil
}

// span reads how long a unit may take to start: seconds, or with units such as 1min 30s. Zero and infinity mean no
// limit, an empty value the usual one. Source: systemd.time(7).
func span(s string) (time.Duration, error) {
	switch s {
	case "":
		return startLimit, nil
	case "infinity":
		return noLimit, nil
	}
	text := strings.ReplaceAll(strings.ReplaceAll(s, "min", "m"), " ", "")
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		text += "s"
	}
	d, err := time.ParseDuration(text)
	switch {
	case err != nil || d < 0:
		return 0, fmt.Errorf("%q is no length of time", s)
	case d == 0:
		return noLimit, nil
	}
	return d, nil
}

func (u *unit) addCommand(list *[]command, value string) error {
	if value == "" {
		*list = nil
		return nil
	}
	var c command
	for value != "" && strings.ContainsRune("-@:+!", rune(value[0])) {
		c.lenient = c.lenient || value[0] == '-'
		value = value[1:]
	}
	words, err := u.words(value)
	if err != nil {
		return err
	}
	if len(words) == 0 || !path.IsAbs(words[0]) {
		return fmt.Errorf("%q does not begin with an absolute path", value)
	}
	c.args = words
	*list = append(*list, c)
	return nil
}

// words splits a value at blanks outside quotes and replaces specifiers.
func (u *unit) words(value string) ([]string, error) {
	var out []string
	var word strings.Builder
	inWord, quote := false, byte(0)
	for i := 0; i < len(value); i++ {
		c := value[i]
		switch {
		case quote == 0 && (c == ' ' || c == '\t'):
			if inWord {
				out = append(out, word.String())
				word.Reset()
				inWord = false
			}
			continue
		case quote == 0 && (c == '\'' || c == '"'):
			quote = c
		case quote != 0 && c == quote:
			quote = 0
		case c == '\\' && i+1 < len(value):
			i++
			word.WriteByte(escaped(value[i]))
		case c == '%' && i+1 < len(value):
			i++
			s, err := u.specifier(value[i])
			if err != nil {
				return nil, err
			}
			word.WriteString(s)
		default:
			word.WriteByte(c)
		}
		inWord = true
	}
	if quote != 0 {
		return nil, fmt.Errorf("a quote is not closed in %q", value)
	}
	if inWord {
		out = append(out, word.String())
	}
	return out, nil
}

func escaped(c byte) byte {
	switch c {
	case 'n':
		return '\n'
	case 't':
		return '\t'
	case 's':
		return ' '
	}
	return c
}

// specifier returns the value of a percent sign and a letter. Source: systemd.unit(5).
func (u *unit) specifier(c byte) (string, error) {
	stem := strings.TrimSuffix(u.name, path.Ext(u.name))
	prefix, instance, _ := strings.Cut(stem, "@")
	switch c {
	case '%':
		return "%", nil
	case 'n':
		return u.name, nil
	case 'N':
		return stem, nil
	case 'p':
		return prefix, nil
	case 'i':
		return instance, nil
	}
	return "", fmt.Errorf("specifier %%%c is not known", c)
}
