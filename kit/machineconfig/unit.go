package machineconfig

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/windlass-dev/windlass/kit/object"
)

// Types of units, and when they are started again.
const (
	TypeSimple  = "simple"
	TypeExec    = "exec"
	TypeOneshot = "oneshot"

	RestartAlways    = "always"
	RestartOnFailure = "on-failure"
	RestartNo        = "no"
)

const (
	// startLimit is how long a oneshot unit may run if it does not say. Source: systemd's DefaultTimeoutStartSec.
	startLimit = 90 * time.Second
	// noLimit means no limit: a configuration that takes longer has other faults.
	noLimit = 24 * time.Hour
)

// Command is one line that a unit runs.
type Command struct {
	Args    []string // the first one is the program, an absolute path
	Lenient bool     // its failure does not count
}

// Unit is an enabled service.
type Unit struct {
	Name    string
	Text    string // what it was made from: another text is another unit
	Type    string
	Pre     []Command
	Start   []Command
	Reload  []Command // have it read its configuration again; ${MAINPID} in their arguments is its process
	Env     []string  // NAME=value
	Dir     string    // working directory
	Restart string
	Limit   time.Duration // of one command that runs to its end
}

// unitFile is a unit as it is read, line by line.
type unitFile struct {
	Unit
	at           string // where the present line is in its object
	section, key string
	wantedBy     []string
	requiredBy   []string
	remains      string // where RemainAfterExit=yes was read
	faults       []object.Fault
}

// early are targets that a machine has reached before its agent runs any unit, so that each unit comes after them.
func early() []string {
	return []string{"basic.target", "local-fs.target", "network-online.target", "network.target", "sysinit.target"}
}

// booted are targets that a machine has reached when all its units run.
func booted() []string {
	return append(early(), "default.target", "graphical.target", "multi-user.target")
}

// parseUnit reads a unit from its files and returns what of it cannot be put in force. Of settings that are given twice
// the last one counts; lists grow, and an empty value clears them. Source: systemd.syntax(7).
func parseUnit(name string, parts []part) (unitFile, []object.Fault) {
	u := unitFile{Unit: Unit{Name: name, Type: TypeSimple, Restart: RestartNo, Limit: startLimit}}
	for i, p := range parts {
		if u.at, u.section = p.at, ""; i > 0 {
			u.Text += "\n"
		}
		u.Text += p.text
		for _, line := range logicalLines(p.text) {
			u.line(line)
		}
	}
	if len(parts) > 0 {
		u.at = parts[0].at
	}
	u.section = "Service"
	u.together()
	return u, u.faults
}

// refuse adds a fault of the present setting.
func (u *unitFile) refuse(format string, args ...any) {
	u.faults = append(u.faults, object.Faultf(u.at, "[%s] %s=: %s", u.section, u.key, fmt.Sprintf(format, args...)))
}

func (u *unitFile) line(line string) {
	if strings.HasPrefix(line, "[") && strings.HasSuffix(line, "]") {
		u.section = line[1 : len(line)-1]
		if !sectioned(u.section) && !ignored(u.section) {
			u.faults = append(u.faults, object.Faultf(u.at, "[%s]: this section is not put in force", u.section))
		}
		return
	}
	key, value, ok := strings.Cut(line, "=")
	if !ok || u.section == "" {
		u.faults = append(u.faults, object.Faultf(u.at, "line %q is no setting of a section", line))
		return
	}
	u.key = strings.TrimSpace(key)
	if err := u.set(strings.TrimSpace(value)); err != nil {
		u.refuse("%v", err)
	}
}

// sectioned reports whether some directives of a section are put in force.
func sectioned(name string) bool {
	return slices.Contains([]string{"Unit", "Service", "Install"}, name)
}

// ignored reports whether systemd itself ignores a section or a directive. Source: systemd.syntax(7).
func ignored(name string) bool { return strings.HasPrefix(name, "X-") }

// together finds settings that do not go together. It is called after the last line.
func (u *unitFile) together() {
	u.key = "ExecReload"
	u.variables(u.Reload, mainPID)
	if len(u.Reload) > 0 && u.Type == TypeOneshot {
		u.refuse("a oneshot unit has no process that could reload")
	}
	u.key = "ExecStartPre"
	u.variables(u.Pre)
	u.key = "ExecStart"
	u.variables(u.Start)
	if len(u.Start) == 0 && len(u.faults) == 0 {
		u.refuse("must be given")
	}
	if len(u.Start) > 1 && u.Type != TypeOneshot {
		u.refuse("only a oneshot unit may have several")
	}
	if u.Type != TypeOneshot && slices.ContainsFunc(u.Start, func(c Command) bool { return c.Lenient }) {
		u.refuse("the prefix - is put in force for oneshot units only")
	}
	if u.Type == TypeOneshot && u.Restart != RestartNo {
		u.key = "Restart"
		u.refuse("a oneshot unit is not started again: only no is put in force")
	}
	if u.Type != TypeOneshot && u.remains != "" {
		u.key = "RemainAfterExit"
		u.refuse("is put in force for oneshot units only")
	}
}

// mainPID is the variable with the number of a unit's process.
const mainPID = "MAINPID"

// variables finds uses of variables in arguments that mean something else to systemd than to an agent, which replaces
// only ${NAME}, and only from Environment and what else is set. A number is one word, so $MAINPID means the same.
func (u *unitFile) variables(commands []Command, set ...string) {
	for _, c := range commands {
		for i, arg := range c.Args[1:] {
			switch {
			case strings.Contains(arg, "$$"):
				u.refuse("$$ is not replaced, in %q", arg)
			case arg == "$"+mainPID && slices.Contains(set, mainPID):
				c.Args[i+1] = "${" + mainPID + "}"
			case len(arg) > 1 && arg[0] == '$' && arg[1] != '{':
				u.refuse("%s is not replaced by the words of a variable: write ${NAME} for its value", arg)
			default:
				u.values(arg, set)
			}
		}
	}
}

// values finds variables in an argument that have no value.
func (u *unitFile) values(arg string, set []string) {
	for {
		_, rest, found := strings.Cut(arg, "${")
		name, after, closed := strings.Cut(rest, "}")
		if !found || !closed {
			return
		}
		if name != "WINDLASS_ROOT" && name != "WINDLASS_UNIT" && !slices.Contains(set, name) &&
			!slices.ContainsFunc(u.Env, func(e string) bool { return strings.HasPrefix(e, name+"=") }) {
			u.refuse("the variable ${%s} is not set by Environment=", name)
		}
		arg = after
	}
}

// links returns the directories below that of the units that have a link to this one.
func (u *unitFile) links() []string {
	var out []string
	for _, name := range u.wantedBy {
		out = append(out, name+".wants")
	}
	for _, name := range u.requiredBy {
		out = append(out, name+".requires")
	}
	if len(out) == 0 {
		return []string{"multi-user.target.wants"}
	}
	slices.Sort(out)
	return slices.Compact(out)
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

// set puts one setting in force. A setting that is put in force only in part is, and adds a fault.
func (u *unitFile) set(value string) error {
	switch u.section + "/" + u.key {
	case "Unit/Description", "Unit/Documentation", "Service/SyslogIdentifier": // without effect on what runs
	case "Unit/After", "Unit/Wants", "Unit/Requires":
		return allOf(strings.Fields(value), early())
	case "Service/User", "Service/Group": // a unit runs as the agent's own user, which is root to the machine
		if !slices.Contains([]string{"", "0", "root"}, value) {
			return fmt.Errorf("%q is not put in force: units run as root of their machine", value)
		}
	case "Service/RemainAfterExit": // a oneshot unit that has run is not run again in its boot
		return u.remain(value)
	case "Service/Type":
		return oneOf(&u.Type, value, TypeSimple, TypeExec, TypeOneshot)
	case "Service/Restart":
		return oneOf(&u.Restart, value, RestartAlways, RestartOnFailure, RestartNo)
	case "Service/ExecStart":
		return u.addCommand(&u.Start, value)
	case "Service/ExecStartPre":
		return u.addCommand(&u.Pre, value)
	case "Service/ExecReload":
		return u.addCommand(&u.Reload, value)
	case "Service/Environment":
		return u.environment(value)
	case "Service/WorkingDirectory":
		return u.workingDirectory(value)
	case "Service/TimeoutStartSec":
		d, err := span(value)
		u.Limit = d
		return err
	case "Install/WantedBy":
		return install(&u.wantedBy, value)
	case "Install/RequiredBy":
		return install(&u.requiredBy, value)
	default:
		if sectioned(u.section) && !ignored(u.key) {
			return errors.New("this directive is not put in force")
		}
	}
	return nil
}

// allOf returns an error for the first name that is not among those that have effect.
func allOf(names, known []string) error {
	for _, n := range names {
		if !slices.Contains(known, n) {
			return fmt.Errorf("%q is not put in force, only %s", n, strings.Join(known, ", "))
		}
	}
	return nil
}

func oneOf(setting *string, value string, known ...string) error {
	if !slices.Contains(known, value) {
		return fmt.Errorf("%q is not put in force, only %s", value, strings.Join(known, ", "))
	}
	*setting = value
	return nil
}

// install adds names of units that have this one start with them.
func install(list *[]string, value string) error {
	names := strings.Fields(value)
	if len(names) == 0 {
		*list = nil
		return nil
	}
	for _, n := range names {
		if n != path.Base(n) {
			return fmt.Errorf("%q is no name of a unit", n)
		}
	}
	*list = append(*list, names...)
	return allOf(names, booted())
}

func (u *unitFile) remain(value string) error {
	switch strings.ToLower(value) {
	case "1", "yes", "y", "true", "t", "on":
		u.remains = value
	case "", "0", "no", "n", "false", "f", "off":
		u.remains = ""
	default:
		return fmt.Errorf("%q is no boolean", value)
	}
	return nil
}

func (u *unitFile) environment(value string) error {
	if value == "" {
		u.Env = nil
		return nil
	}
	words, err := u.words(value)
	if err != nil {
		return err
	}
	for _, w := range words {
		if i := strings.IndexByte(w, '='); i < 1 {
			return fmt.Errorf("%q is not NAME=value", w)
		}
	}
	u.Env = append(u.Env, words...)
	return nil
}

func (u *unitFile) workingDirectory(value string) error {
	dir, optional := strings.CutPrefix(value, "-")
	if dir != "" && !path.IsAbs(dir) {
		return fmt.Errorf("%q is no absolute path", dir)
	}
	u.Dir = dir
	switch {
	case optional:
		return errors.New("the prefix - is not put in force: the directory must exist")
	case strings.Contains(dir, "%"):
		return fmt.Errorf("specifiers are not replaced, in %q", dir)
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

func (u *unitFile) addCommand(list *[]Command, value string) error {
	if value == "" {
		*list = nil
		return nil
	}
	var c Command
	for value != "" && strings.ContainsRune("-@:+!|", rune(value[0])) {
		switch value[0] {
		case '-':
			c.Lenient = true
		case '+', '!': // with full privileges, which every command has
		default:
			u.refuse("the prefix %c is not put in force", value[0])
		}
		value = value[1:]
	}
	words, err := u.words(value)
	if err != nil {
		return err
	}
	if len(words) == 0 || !path.IsAbs(words[0]) {
		return fmt.Errorf("%q does not begin with an absolute path", value)
	}
	if slices.Contains(words, ";") {
		u.refuse("several commands in one line are not put in force")
	}
	c.Args = words
	*list = append(*list, c)
	return nil
}

// words splits a value at blanks outside quotes and replaces specifiers.
func (u *unitFile) words(value string) ([]string, error) {
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
			word.WriteByte(u.escaped(value[i]))
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

// escaped returns the character that a backslash and another one mean. Source: systemd.syntax(7).
func (u *unitFile) escaped(c byte) byte {
	switch c {
	case 'n':
		return '\n'
	case 't':
		return '\t'
	case 's':
		return ' '
	case '\\', '"', '\'':
		return c
	}
	u.refuse(`the escape \%c is not put in force`, c)
	return c
}

// specifier returns the value of a percent sign and a letter. Source: systemd.unit(5).
func (u *unitFile) specifier(c byte) (string, error) {
	stem := strings.TrimSuffix(u.Name, path.Ext(u.Name))
	prefix, instance, _ := strings.Cut(stem, "@")
	switch c {
	case '%':
		return "%", nil
	case 'n':
		return u.Name, nil
	case 'N':
		return stem, nil
	case 'p':
		return prefix, nil
	case 'i':
		return instance, nil
	}
	return "", fmt.Errorf("specifier %%%c is not known", c)
}
