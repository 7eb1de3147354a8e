package logger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/kit/servetest"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "container-logger" {
		if err := Run(context.Background(), os.Args[2:], os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// start is a start of a container whose pipes this process has open.
type start struct {
	t              *testing.T
	dir            string
	stdout, stderr *os.File
}

func newStart(t *testing.T) *start {
	t.Helper()
	s := &start{t: t, dir: t.TempDir()}
	for name, to := range map[string]**os.File{Stdout: &s.stdout, Stderr: &s.stderr} {
		path := filepath.Join(s.dir, name)
		if err := unix.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
		var err error
		if *to, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { (*to).Close() })
	}
	return s
}

func (s *start) print(to *os.File, text string) {
	s.t.Helper()
	if _, err := io.WriteString(to, text); err != nil {
		s.t.Fatal(err)
	}
}

// process runs a logger of its own in dir, to be killed.
func process(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "container-logger", "--dir", dir)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kill(cmd) })
	return cmd
}

func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// follow has the logger in dir log starts.
func follow(t *testing.T, dir string, starts ...string) {
	t.Helper()
	servetest.Await(t, func() string {
		if err := Follow(t.Context(), dir, starts); err != nil {
			return err.Error()
		}
		return ""
	})
}

// read returns what is in a log now.
func read(t *testing.T, dir string, o Options) string {
	t.Helper()
	r, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var out []byte
	for {
		lines, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if len(lines) == 0 {
			return string(append(out, r.Rest()...))
		}
		out = append(out, lines...)
	}
}

var all = Options{Tail: -1}

func TestLinesHaveTimesAndStreams(t *testing.T) {
	s, dir := newStart(t), t.TempDir()
	process(t, dir)
	begin := time.Now()
	s.print(s.stdout, "one\ntwo\n"+strings.Repeat("x", longest+10)+"\nlast")
	follow(t, dir, s.dir)
	follow(t, dir) // it is complete then
	raw, err := os.ReadFile(filepath.Join(s.dir, File))
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for line := range bytes.Lines(raw) {
		rec := parse(bytes.TrimSuffix(line, []byte("\n")))
		at, err := time.Parse(timeFormat, rec.time)
		if err != nil || at.Before(begin.Add(-time.Second)) || at.After(time.Now().Add(time.Second)) {
			t.Fatalf("line %.80q", line)
		}
		kinds = append(kinds, fmt.Sprintf("%s %t %d", rec.stream, rec.whole, len(rec.text)))
	}
	want := []string{"stdout true 3", "stdout true 3", "stdout false 16384", "stdout true 10", "stdout false 4"}
	if !slices.Equal(kinds, want) {
		t.Errorf("records %q, want %q", kinds, want)
	}
	whole := "one\ntwo\n" + strings.Repeat("x", longest+10) + "\nlast"
	if got := read(t, s.dir, all); got != whole {
		t.Errorf("log of %d bytes: %.60q, want %d", len(got), got, len(whole))
	}
	if got := read(t, s.dir, Options{Tail: 1}); got != "last" {
		t.Errorf("tail %.60q", got)
	}
	if got := read(t, s.dir, Options{Tail: -1, Since: time.Now().Add(time.Hour)}); got != "" {
		t.Errorf("since later %.60q", got)
	}
	if got := read(t, s.dir, Options{Tail: 4, Times: true}); len(strings.Split(got, " ")) != 5 ||
		!strings.Contains(got, "Z two\n") {
		t.Errorf("with times %.200q", got)
	}
	for _, name := range []string{Stdout + spoolSuffix, Stderr + spoolSuffix} {
		if _, err := os.Stat(filepath.Join(s.dir, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", name, err)
		}
	}
}

// TestNothingIsLostOrRepeatedThoughTheLoggerIsKilled kills loggers while a container writes to both streams.
func TestNothingIsLostOrRepeatedThoughTheLoggerIsKilled(t *testing.T) {
	s, dir := newStart(t), t.TempDir()
	const lines = 300_000
	written := make(chan struct{}, 2)
	for _, to := range []*os.File{s.stdout, s.stderr} {
		go func() {
			defer func() { written <- struct{}{} }()
			var text []byte
			for i := range lines { // in parts that end anywhere
				if text = fmt.Appendf(text, "%d\n", i); len(text) > 777 || i == lines-1 {
					_, _ = to.Write(text)
					text = text[:0]
				}
			}
		}()
	}
	kills := 0
	for left := 2; left > 0; {
		cmd := process(t, dir)
		follow(t, dir, s.dir)
		if kills < 20 {
			size := logged(s.dir)
			servetest.Await(t, func() string { // in the midst of the work
				if logged(s.dir) > size+100_000 || len(written) == 2 {
					return ""
				}
				return "nothing is logged"
			})
			kill(cmd)
			kills++
			continue
		}
		for ; left > 0; left-- {
			<-written
		}
		follow(t, dir)
	}
	sums := map[string]int{}
	for n := maxFiles - 1; n >= 0; n-- {
		raw, err := os.ReadFile(filepath.Join(s.dir, nameOf(n)))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		begun := map[string]string{}
		for line := range bytes.Lines(raw) {
			rec := parse(bytes.TrimSuffix(line, []byte("\n")))
			if begun[rec.stream] += string(rec.text); !rec.whole {
				continue
			}
			if begun[rec.stream] != fmt.Sprint(sums[rec.stream]) {
				t.Fatalf("after %d kills: %s has %q after line %d", kills, rec.stream, begun[rec.stream], sums[rec.stream]-1)
			}
			sums[rec.stream]++
			begun[rec.stream] = ""
		}
	}
	if sums[Stdout] != lines || sums[Stderr] != lines {
		t.Errorf("lines %v, want %d of each", sums, lines)
	}
}

// logged returns the size of a log.
func logged(dir string) (size int64) {
	for n := range maxFiles {
		if info, err := os.Stat(filepath.Join(dir, nameOf(n))); err == nil {
			size += info.Size()
		}
	}
	return size
}

func TestALogIsRotatedAndASlowReaderSeesWhatItMissed(t *testing.T) {
	s, dir := newStart(t), t.TempDir()
	process(t, dir)
	follow(t, dir, s.dir)
	s.print(s.stdout, "first\n")
	servetest.Await(t, func() string {
		if logged(s.dir) > 0 {
			return ""
		}
		return "nothing is logged"
	})
	slow, err := Open(s.dir, Options{Tail: -1, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	line := strings.Repeat("y", 8191) + "\n"
	total := 0
	for ; total < (maxFiles+3)*maxSize; total += len(line) {
		s.print(s.stdout, line)
	}
	s.print(s.stdout, "end\n")
	follow(t, dir)
	files := 0
	for n := range maxFiles + 2 {
		info, err := os.Stat(filepath.Join(s.dir, nameOf(n)))
		if err != nil {
			continue
		}
		if files++; info.Size() > maxSize+overSize+1<<17 {
			t.Errorf("file %d has %d bytes", n, info.Size())
		}
	}
	if files != maxFiles {
		t.Errorf("%d files", files)
	}
	if got := read(t, s.dir, Options{Tail: 2}); got != line+"end\n" {
		t.Errorf("tail %.60q", got)
	}
	var out []byte
	for {
		lines, err := slow.Next()
		if err != nil {
			t.Fatal(err)
		}
		if len(lines) == 0 {
			break
		}
		out = append(out, lines...)
	}
	_, rest, ok := strings.Cut(string(out), "[windlass: ")
	var dropped int64
	if _, err := fmt.Sscanf(rest, "%d bytes were dropped: the reader was too slow]", &dropped); err != nil || !ok {
		t.Fatalf("no note in %d bytes: %v", len(out), err)
	}
	if !strings.HasPrefix(string(out), "first\n") || !strings.HasSuffix(string(out), "end\n") {
		t.Errorf("from %.20q", out)
	}
	// Each line of the log has its time and tags.
	tags := int64(len(timeFormat) + len(" stdout F "))
	missed := int64(total/len(line)-strings.Count(string(out), line)) * (int64(len(line)) + tags)
	if diff := missed - dropped; diff < -1<<17 || diff > 1<<17 { // lines in parts have more tags
		t.Errorf("%d bytes are noted, about %d were missed", dropped, missed)
	}
}

// TestAContainerIsNotHeldUpByAFullDisk has the log on a file system that is full.
func TestAContainerIsNotHeldUpByAFullDisk(t *testing.T) {
	s, dir := newStart(t), t.TempDir()
	full := t.TempDir()
	if err := unix.Mount("tmpfs", full, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("no file system can be mounted here: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(full, unix.MNT_DETACH) })
	for _, name := range []string{Stdout, Stderr} {
		if err := unix.Mkfifo(filepath.Join(full, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := os.OpenFile(filepath.Join(full, Stdout), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	process(t, dir)
	follow(t, dir, full)
	line := strings.Repeat("z", 1023) + "\n"
	const lines = 4000
	for range lines {
		s.print(out, line)
	}
	servetest.Await(t, func() string { // all is read
		n, err := unix.IoctlGetInt(int(out.Fd()), unix.TIOCINQ)
		if err != nil || n > 0 {
			return fmt.Sprint(n, err)
		}
		return ""
	})
	if err := unix.Mount("tmpfs", full, "tmpfs", unix.MS_REMOUNT, "size=64m"); err != nil {
		t.Fatal(err)
	}
	servetest.Await(t, func() string { // though the container is silent
		if strings.Contains(read(t, full, all), "[windlass: ") {
			return ""
		}
		return "no note"
	})
	follow(t, dir)
	have, dropped := 0, 0
	for line := range strings.Lines(read(t, full, all)) {
		var bytes, ends int
		if n, _ := fmt.Sscanf(line, "[windlass: %d bytes with the ends of %d lines were dropped", &bytes, &ends); n > 0 {
			dropped += bytes - ends
		} else {
			have += strings.Count(line, "z")
		}
	}
	if have+dropped != lines*(len(line)-1) || dropped == 0 {
		t.Errorf("%d are in the log and %d are noted, of %d", have, dropped, lines*(len(line)-1))
	}
}

// BenchmarkContainerThatWritesMuch reports how fast a container can write, what of that is lost, and how much memory
// the logger takes.
func BenchmarkContainerThatWritesMuch(b *testing.B) {
	dir, at := b.TempDir(), b.TempDir()
	for _, name := range []string{Stdout, Stderr} {
		if err := unix.Mkfifo(filepath.Join(at, name), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	out, err := os.OpenFile(filepath.Join(at, Stdout), os.O_RDWR, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer out.Close()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(self, "container-logger", "--dir", dir)
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer kill(cmd)
	for Follow(b.Context(), dir, []string{at}) != nil {
		time.Sleep(time.Millisecond)
	}
	line := []byte(strings.Repeat("w", 99) + "\n")
	block := bytes.Repeat(line, 160)
	b.SetBytes(int64(len(block)))
	b.ResetTimer()
	for range b.N {
		if _, err := out.Write(block); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	if err := Follow(b.Context(), dir, nil); err != nil {
		b.Fatal(err)
	}
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	var peak float64
	_, _ = fmt.Sscan(rest, &peak)
	b.ReportMetric(peak/1024, "peak-MiB")
}
