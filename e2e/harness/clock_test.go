package harness

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// clocks is a program that prints its clocks at each line that it reads.
const clocks = `package main

import (
	"bufio"
	"fmt"
	"os"
	"time"
)

func main() {
	began := time.Now()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println(time.Now().Unix(), int64(time.Since(began)/time.Second))
	}
}
`

func TestTheClockOfARunningProcessIsSet(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("skipped: the clock of a process can be set on amd64 only")
	}
	source, program := filepath.Join(t.TempDir(), "clocks.go"), filepath.Join(t.TempDir(), "clocks")
	if err := os.WriteFile(source, []byte(clocks), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-o", program, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command(program)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the process whose clock was set: %v", err)
		}
	})
	lines := bufio.NewReader(out)
	read := func() (wall, passed int64) {
		fmt.Fprintln(in)
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscan(strings.TrimSpace(line), &wall, &passed); err != nil {
			t.Fatal(err)
		}
		return wall, passed
	}
	read() // it runs
	began := time.Now()
	for _, ahead := range []time.Duration{time.Hour, -24 * time.Hour, 0, 5 * time.Second} {
		if err := setClock(cmd.Process.Pid, ahead); errors.Is(err, os.ErrPermission) {
			t.Skipf("skipped: %v", err)
		} else if err != nil {
			t.Fatal(err)
		}
		least := time.Now().Unix()
		wall, passed := read()
		if off := wall - int64(ahead/time.Second); off < least || off > time.Now().Unix() {
			t.Errorf("set ahead by %v it reads %d, and the right one is %d", ahead, wall, least)
		}
		if most := int64(time.Since(began)/time.Second) + 60; passed > most {
			t.Errorf("set ahead by %v its monotonic clock says that %d s passed, more than %d", ahead, passed, most)
		}
	}
	if err := setClock(cmd.Process.Pid, time.Millisecond); err == nil {
		t.Error("a part of a second: no error")
	}
}
