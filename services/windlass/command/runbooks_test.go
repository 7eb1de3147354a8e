package command_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/windlass-dev/windlass/services/windlass/command"
)

// shown is a command line in a page: an indented line, or code within a sentence.
var shown = regexp.MustCompile("(?m)^    windlass (.*)$|`windlass\\s([^`]+)`")

// Each command line of the runbooks names a command that exists, with flags that it has. None is carried out: --help
// ends it after its flags were read.
func TestRunbooksUseCommandsThatExist(t *testing.T) {
	t.Setenv("WINDLASS_HOME", t.TempDir())
	pages, err := filepath.Glob("../../../docs/runbooks/*.md")
	check(t, err)
	lines := 0
	for _, page := range pages {
		raw, err := os.ReadFile(page)
		check(t, err)
		for _, found := range shown.FindAllStringSubmatch(string(raw), -1) {
			lines++
			line := found[1] + found[2]
			if fault := helpOf(t, strings.Fields(line)); fault != "" {
				t.Errorf("%s: windlass %s: %s", filepath.Base(page), line, fault)
			}
		}
	}
	if lines < len(pages) {
		t.Errorf("%d command lines in %d pages", lines, len(pages))
	}
}

func TestCommandsThatDoNotExistAreFound(t *testing.T) {
	for line, ok := range map[string]bool{
		"quorum": true, "quorum recover --yes": true, "host remove NAME": true, "quorums": false, "quorum heal": false,
		"host remove NAME --reason TEXT": false, "plan zone --all": false, "plan nothing": false,
	} {
		if fault := helpOf(t, strings.Fields(line)); (fault == "") != ok {
			t.Errorf("%s: %q", line, fault)
		}
	}
}

// helpOf returns why there is no such command; empty if there is one.
func helpOf(t *testing.T, args []string) string {
	t.Helper()
	var out, errs bytes.Buffer
	if code := command.Run(t.Context(), append(args, "--help"), strings.NewReader(""), &out, &errs); code != 0 {
		return strings.TrimSpace(errs.String())
	}
	// The help is that of the last command that exists. One that only groups others takes no further words.
	_, usage, _ := strings.Cut(out.String(), "\nUsage:\n")
	usage, _, _ = strings.Cut(usage, "\n\n")
	if words := 1 + len(plain(args)); strings.Contains(usage, " [command]") && !strings.Contains(usage, "...] [flags]") {
		if path := strings.Fields(strings.SplitN(strings.TrimSpace(usage), " [", 2)[0]); len(path) < words {
			return "the command " + strings.Join(path, " ") + " has no such command"
		}
	}
	return ""
}

// plain returns args up to the first flag.
func plain(args []string) []string {
	for i, a := range args {
		if strings.HasPrefix(a, "-") {
			return args[:i]
		}
	}
	return args
}
