package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestAStoryCountsItsChecksAndEndsWithATable(t *testing.T) {
	var out bytes.Buffer
	s := &story{out: &out}
	err := s.chapter(1, "Look", func() error {
		s.command("windlass get machines", 30*time.Millisecond, "")
		s.saw("%d machines", 5)
		s.paragraph("That is %s.", strings.Repeat("long ", 40))
		return s.check(expect(true, "one", ""), expect(true, "two", ""))
	})
	if err != nil {
		t.Fatal(err)
	}
	s.end()
	for _, want := range []string{
		"1. Look\n", "$ windlass get machines", "0.03 s\n", "     5 machines\n", "2 checks)",
		"in all", "the tour is done: 2 checks\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	for line := range strings.Lines(out.String()) {
		if len(line) > 110 {
			t.Errorf("a line of %d characters: %s", len(line), line)
		}
	}
}

func TestACheckNamesWhatWasExpectedAndWhatWasSeen(t *testing.T) {
	s := &story{out: &bytes.Buffer{}}
	err := s.chapter(1, "Look", func() error {
		return s.check(expect(true, "one", ""), expect(false, "two machines", "%d", 3), expect(false, "a leader", "none"))
	})
	var wrong mismatch
	if !errors.As(err, &wrong) || len(wrong) != 2 {
		t.Fatalf("error = %v, want two facts", err)
	}
	for _, want := range []string{
		"step 1, Look", "expected: two machines\n  seen:     3",
		"expected: a leader\n  seen:     none",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %q", want, err)
		}
	}
	if len(s.chapters) != 0 {
		t.Errorf("chapters = %v, want none: it did not end", s.chapters)
	}
}

func TestProcessesAreReadFromTheStatus(t *testing.T) {
	const text = `Cluster:     main
Address:     https://127.1.2.1:6443
Supervisor:  pid 17
State:       Ready

PROCESS          PID    AGE   OF
hook-broker      21     8s    .
main-master-a    22     6s    services/provider-local
etcd-member      23     1m5s  services/provider-local/machines/main-master-a
`
	got := parseStatus(text)
	want := map[string]int{
		serviceProcess("hook-broker"): 21, agentProcess("main-master-a"): 22,
		memberProcess("main-master-a"): 23,
	}
	if got.supervisor != 17 {
		t.Errorf("supervisor = %d, want 17", got.supervisor)
	}
	if diff := cmp.Diff(want, got.pids); diff != "" {
		t.Errorf("processes (-want +got):\n%s", diff)
	}
	if none := parseStatus("Supervisor:  not running (`windlass up` starts it)\n"); none.supervisor != 0 ||
		len(none.pids) != 0 {
		t.Errorf("processes of a cluster that is down = %+v, want none", none)
	}
	later := processes{pids: map[string]int{
		serviceProcess("hook-broker"): 31, agentProcess("main-master-a"): 22,
		agentProcess("w"): 40,
	}}
	wantChanged := []string{
		"./hook-broker: 21, then 31",
		"services/provider-local/machines/main-master-a/etcd-member: 23, then 0", "services/provider-local/w: none, then 40",
	}
	if diff := cmp.Diff(wantChanged, got.changed(later)); diff != "" {
		t.Errorf("changed (-want +got):\n%s", diff)
	}
	if got, want := spoken(memberProcess("a")), "etcd-member of a"; got != want {
		t.Errorf("spoken = %q, want %q", got, want)
	}
}

func TestSettingsAreReadAsTheShellReadsThem(t *testing.T) {
	const text = `export WINDLASS_SERVER="127.1.2.1:6443"
export WINDLASS_URL="https://127.1.2.1:6443"
export WINDLASS_CACERT="/a \"b\"/ca.crt"
export WINDLASS_CERT="/a/tls.crt"
export WINDLASS_KEY="/a/tls.key"
export CURL="curl -sS"
`
	env, err := parseEnv(text)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := env["WINDLASS_CACERT"], `/a "b"/ca.crt`; got != want {
		t.Errorf("WINDLASS_CACERT = %q, want %q", got, want)
	}
	if _, err := parseEnv("export WINDLASS_SERVER=\"x\"\n"); err == nil {
		t.Error("settings without an address: no error")
	}
}

func TestCommandsAreTypedAsAUserWould(t *testing.T) {
	s := shell{name: "lab"}
	for want, words := range map[string][]string{
		"windlass get machines -o wide --name lab": {"windlass", "get", "machines", "-o", "wide"},
		`windlass patch machine a -p '{"a":"it'\''s"}' --name lab`: {
			"windlass", "patch", "machine", "a", "-p",
			`{"a":"it's"}`,
		},
		"windlass exec a --name lab -- ls -l": {"windlass", "exec", "a", "--", "ls", "-l"},
		"backup-hook --owner x/y":             {"backup-hook", "--owner", "x/y"},
	} {
		if got := s.line(words[0], words[1:]...); got != want {
			t.Errorf("line = %q, want %q", got, want)
		}
	}
}
