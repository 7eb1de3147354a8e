package cri_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/kit/critest"
	"github.com/windlass-dev/windlass/services/node-agent/cri"
)

func TestCommandsRunInContainers(t *testing.T) {
	c := critest.Start(t)
	b := newBench(t, c)
	r := begin(t, c)
	spec := b.spec("pod.a", "main", "wait")
	<-r.Active()
	if _, _, err := r.ExecSync(t.Context(), spec.Name, []string{"/program", "exit", "0"}, 10); !errors.Is(err,
		cri.ErrNoContainer) {
		t.Errorf("command in no container: %v", err)
	}
	ensure(t, r, spec)
	awaitStatus(t, r, spec.Name, runs)

	t.Run("a short command", func(t *testing.T) {
		for _, of := range []struct {
			command []string
			most    int
			output  string
			code    int
		}{
			{[]string{"/program", "print", "some", "text"}, 100, "some text\n", 0},
			{[]string{"/program", "print", "some", "text"}, 4, "some", 0},
			{[]string{"/program", "exit", "7"}, 100, "", 7},
		} {
			out, code, err := r.ExecSync(t.Context(), spec.Name, of.command, of.most)
			if err != nil || string(out) != of.output || code != of.code {
				t.Errorf("%v: %q, %d, %v", of.command, out, code, err)
			}
		}
		if _, _, err := r.ExecSync(t.Context(), spec.Name, []string{"/none"}, 10); err == nil {
			t.Error("a command that does not exist ran")
		}
	})
	t.Run("a command that takes too long is killed", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
		defer cancel()
		begun := time.Now()
		_, _, err := r.ExecSync(ctx, spec.Name, []string{"/program", "ignore", "/notes/sync"}, 10)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) > 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		await(t, "end of the command", func() bool { return processes(t, "ignore\x00/notes/sync") == 0 })
	})
	t.Run("a command with streams", func(t *testing.T) {
		var stdout, stderr bytes.Buffer
		in := strings.Repeat("line\n", 20000)
		code, err := r.Exec(t.Context(), spec.Name, []string{"/program", "cat"}, false, strings.NewReader(in), &stdout,
			&stderr, nil)
		if code != 0 || err != nil || stdout.String() != in || stderr.Len() > 0 {
			t.Errorf("%d, %v: %d bytes, %q", code, err, stdout.Len(), stderr.String())
		}
		code, err = r.Exec(t.Context(), spec.Name, []string{"/program", "exit", "9"}, false, nil, &stdout, &stderr, nil)
		if code != 9 || err != nil {
			t.Errorf("%d, %v", code, err)
		}
	})
	t.Run("a command with a terminal", func(t *testing.T) {
		var stdout bytes.Buffer
		sizes := make(chan cri.Size, 2)
		sizes <- cri.Size{Columns: 80, Rows: 24}
		sizes <- cri.Size{Columns: 123, Rows: 45}
		code, err := r.Exec(t.Context(), spec.Name, []string{"/program", "size", "123"}, true, nil, &stdout, nil, sizes)
		if code != 0 || err != nil || stdout.String() != "123 columns, 45 rows\r\n" {
			t.Errorf("%d, %v: %q", code, err, stdout.String())
		}
	})
	t.Run("a command ends with its context", func(t *testing.T) {
		for _, tty := range []bool{false, true} {
			ctx, cancel := context.WithCancel(t.Context())
			in, feed := io.Pipe()
			ended := make(chan error)
			file := map[bool]string{false: "plain", true: "tty"}[tty]
			go func() {
				_, err := r.Exec(ctx, spec.Name, []string{"/program", "ignore", "/notes/" + file}, tty, in, io.Discard, nil, nil)
				ended <- err
			}()
			await(t, "start of the command", func() bool { return b.starts(file) == 1 })
			cancel()
			select {
			case err := <-ended:
				if !errors.Is(err, context.Canceled) {
					t.Errorf("tty %v: %v", tty, err)
				}
			case <-time.After(patience):
				t.Fatal("the command goes on")
			}
			feed.Close()
			await(t, "end of the command", func() bool { return processes(t, "ignore\x00/notes/"+file) == 0 })
		}
	})
	if err := r.EndPool(t.Context(), "pod.a"); err != nil {
		t.Fatal(err)
	}
}

// processes returns how many processes of this host have a text in their command lines.
func processes(t *testing.T, text string) (n int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if line, _ := os.ReadFile(f); strings.Contains(string(line), text) {
			n++
		}
	}
	return n
}
