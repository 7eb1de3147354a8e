package pods

import (
	"fmt"
	"os"
	"strings"
	"testing"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/kit/process"
)

func TestFollowersLeaveRoomForOthers(t *testing.T) {
	c := newCluster(t)
	newMachine(t, c).run()
	c.add(sh("a", forever))
	c.await("a", "is ready", ready)
	eventually(t, "it is up", func() bool { return c.log("a", &schedulingv1.GetPodLogRequest{}) == "up\n" })
	for range maxFollowers {
		out, _ := c.request(&schedulingv1.AttendResponse{Name: "a", Log: &schedulingv1.GetPodLogRequest{Follow: true}})
		if first := <-out; string(first.GetStdout()) != "up\n" {
			t.Fatalf("first %v", first)
		}
	}
	out, _ := c.request(&schedulingv1.AttendResponse{Name: "a", Log: &schedulingv1.GetPodLogRequest{Follow: true}})
	if _, _, last := whole(t, out); !last.GetExhausted() || !strings.Contains(last.GetError(), "32 logs are followed") {
		t.Errorf("one more follower: %v", last)
	}
	if got := c.log("a", &schedulingv1.GetPodLogRequest{}); got != "up\n" {
		t.Errorf("log %q", got)
	}
	for range maxCommands {
		out, _ := c.request(&schedulingv1.AttendResponse{Name: "a", Exec: &schedulingv1.ExecPodStart{
			Command: []string{"sh", "-c", "echo runs; sleep 1000"},
		}})
		if first := <-out; string(first.GetStdout()) != "runs\n" {
			t.Fatalf("first %v", first)
		}
	}
	out,
		_ = c.request(&schedulingv1.AttendResponse{Name: "a", Exec: &schedulingv1.ExecPodStart{Command: []string{"true"}}})
	if _, _, last := whole(t, out); !last.GetExhausted() || !strings.Contains(last.GetError(), "32 commands run") {
		t.Errorf("one more command: %v", last)
	}
	if got := c.log("a", &schedulingv1.GetPodLogRequest{}); got != "up\n" {
		t.Errorf("log beside commands %q", got)
	}
}

func TestACommandHasATerminal(t *testing.T) {
	c := newCluster(t)
	newMachine(t, c).run()
	c.add(sh("a", forever))
	c.await("a", "is ready", ready)
	out, in := c.request(&schedulingv1.AttendResponse{Name: "a", Exec: &schedulingv1.ExecPodStart{
		Command: []string{"sh", "-c", `test -t 0 && test -t 2 && : >/dev/tty && stty size
			trap "stty size; exit 4" WINCH; echo waits; while :; do sleep 0.02; done`},
		Tty: true, Stdin: true, TerminalSize: &schedulingv1.TerminalSize{Columns: 100, Rows: 30},
	}})
	text := ""
	for r := range out {
		if text += string(r.GetStdout()); strings.HasSuffix(text, "waits\r\n") {
			break
		}
	}
	in <- &schedulingv1.DeliverResponse{TerminalSize: &schedulingv1.TerminalSize{Columns: 120, Rows: 40}}
	rest, stderr, last := whole(t, out)
	if text += rest; text != "30 100\r\nwaits\r\n40 120\r\n" || stderr != "" || last.GetExitCode() != 4 {
		t.Errorf("output %q, %q, last %v", text, stderr, last)
	}
	// The end of the input is one for the command.
	out, in = c.request(&schedulingv1.AttendResponse{Name: "a", Exec: &schedulingv1.ExecPodStart{
		Command: []string{"cat"}, Tty: true, Stdin: true,
	}})
	in <- &schedulingv1.DeliverResponse{Stdin: []byte("hello\n")}
	in <- &schedulingv1.DeliverResponse{StdinClosed: true}
	if text, _, last := whole(t, out); text != "hello\r\nhello\r\n" || last.ExitCode == nil || last.GetExitCode() != 0 {
		t.Errorf("echo %q, last %v", text, last)
	}
	// What a command leaves does not keep the caller.
	out, _ = c.request(&schedulingv1.AttendResponse{Name: "a", Exec: &schedulingv1.ExecPodStart{
		Command: []string{"sh", "-c", `trap "" HUP; sleep 1000 & exit 5`}, Tty: true,
	}})
	if _, _, last := whole(t, out); last.GetExitCode() != 5 {
		t.Errorf("last %v", last)
	}
}

func TestACommandEndsWithItsCaller(t *testing.T) {
	inBothWays(t, func(t *testing.T, c *cluster, m *machine) {
		m.run()
		c.add(sh("a", forever))
		c.await("a", "is ready", ready)
		for i, tty := range []bool{false, true} {
			_, _ = c.request(&schedulingv1.AttendResponse{Name: "a", Exec: &schedulingv1.ExecPodStart{
				Tty: tty, Command: []string{
					"sh", "-c", `trap "" TERM HUP; setsid sh -c 'trap "" HUP; echo $$ >>pids; while :; do sleep 0.05; done' &
						env -i setsid -w sleep 1000 & echo $! >>pids; echo $$ >>pids; while :; do sleep 0.05; done`,
				},
			}})
			pids := m.written("a", 3*(i+1))
			c.hangUp()
			eventually(t, "the command and what it started have ended", func() bool {
				for _, pid := range pids {
					if alive(pid) {
						return false
					}
				}
				return true
			})
		}
		if st := c.status("a"); !ready(st) || st.GetContainerStatuses()[0].GetRestartCount() != 0 {
			t.Errorf("the container: %v", st)
		}
	})
}

// TestALogGoesOnWithoutAgentAndLogger kills the logger while no agent runs, and has the container write on.
func TestALogGoesOnWithoutAgentAndLogger(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	_, stop := m.run()
	c.add(sh("a", `i=0; while i=$((i+1)); do echo $i; if test $i = 100; then while ! test -e go; do sleep 0.02; done; fi
		test $i = 30000 && while :; do sleep 0.05; done; done`))
	c.await("a", "is ready", ready)
	upTo := func(n int) func() bool {
		return func() bool {
			log := c.log("a", &schedulingv1.GetPodLogRequest{})
			i := 0
			for line := range strings.Lines(log) {
				if i++; strings.TrimSpace(line) != fmt.Sprint(i) {
					t.Fatalf("line %d is %q", i, line)
				}
			}
			return i >= n
		}
	}
	eventually(t, "a hundred lines", upTo(100))
	stop()
	list, err := process.Running(m.path("run"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		if f.Name == loggerProcess {
			_ = unix.Kill(f.PID, unix.SIGKILL)
			eventually(t, "no logger runs", func() bool { return !alive(f.PID) })
		}
	}
	if err := os.WriteFile(m.path("pods/uid-a/containers/main/work/go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m.run()
	eventually(t, "more than a pipe holds", upTo(30_000))
}
