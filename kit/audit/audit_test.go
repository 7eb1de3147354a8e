package audit

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.DiscardHandler)

func openTrail(t testing.TB, dir string, sinks ...Sink) *Trail {
	t.Helper()
	a, err := Open(Config{Dir: dir, Service: "test", Sinks: sinks, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return a
}

func readAll(t testing.TB, path string) (records []Record) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var r Record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatalf("line %q: %v", lines.Text(), err)
		}
		records = append(records, r)
	}
	return records
}

// intact fails the test unless all logs below dir verify.
func intact(t testing.TB, dir string) []Report {
	t.Helper()
	reports, err := Verify(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range reports {
		if r.Break != nil {
			t.Errorf("%s: %s", r.Log, r.Break)
		}
	}
	return reports
}

func change(name string) Record {
	return Record{Time: time.Now().UTC(), User: "ed", Verb: "patch", Name: name}
}

func TestAChangeIsOnDiskBeforeItIsMade(t *testing.T) {
	dir := t.TempDir()
	a := openTrail(t, dir)
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			name := fmt.Sprintf("m-%d", i)
			if err := a.Change(t.Context(), change(name), false); err != nil {
				t.Error(err)
			}
			for _, r := range readAll(t, filepath.Join(dir, ChangesFile)) {
				if r.Name == name && r.Stage == Requested && r.Decision == Allow {
					return
				}
			}
			t.Errorf("%s is not in the file after Change", name)
		})
	}
	wg.Wait()
	intact(t, dir)
}

func TestTheChainGoesOnAcrossRestartsAndRotations(t *testing.T) {
	dir := t.TempDir()
	for run := range 3 {
		a, err := Open(Config{Dir: dir, Service: "test", Log: quiet})
		if err != nil {
			t.Fatal(err)
		}
		a.changes.rotateBytes = 2000
		for i := range 40 {
			if err := a.Change(t.Context(), change(fmt.Sprintf("m-%d-%d", run, i)), false); err != nil {
				t.Fatal(err)
			}
			a.Completed(change(fmt.Sprintf("m-%d-%d", run, i)))
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range intact(t, dir) {
		if strings.HasSuffix(r.Log, ChangesFile) && (r.First != 1 || r.Records < 240 || len(r.Files) < 5) {
			t.Errorf("%d records from %d in %d files, want all 240 and more of several files", r.Records, r.First, len(r.Files))
		}
	}
}

// TestTamperingShows holds Verify to its purpose: no record can be changed, removed or inserted.
func TestTamperingShows(t *testing.T) {
	write := func(t *testing.T) (dir string, lines []string) {
		dir = t.TempDir()
		a := openTrail(t, dir)
		for i := range 10 {
			if err := a.Change(t.Context(), change(fmt.Sprint(i)), false); err != nil {
				t.Fatal(err)
			}
		}
		_ = a.Close()
		text, err := os.ReadFile(filepath.Join(dir, ChangesFile))
		if err != nil {
			t.Fatal(err)
		}
		return dir, strings.SplitAfter(strings.TrimSuffix(string(text), "\n"), "\n")
	}
	tests := []struct {
		name   string
		tamper func(lines []string) []string
		record uint64
	}{
		{"a record changed", func(l []string) []string { l[4] = strings.Replace(l[4], `"ed"`, `"al"`, 1); return l }, 6},
		{"a record removed", func(l []string) []string { return append(l[:4:4], l[5:]...) }, 5},
		{"a record inserted", func(l []string) []string { return append(append(l[:4:4], l[3]), l[4:]...) }, 5},
		{"two exchanged", func(l []string) []string { l[4], l[5] = l[5], l[4]; return l }, 5},
		{"the beginning removed", func(l []string) []string { return l[3:] }, 4},
		{"garbage", func(l []string) []string { l[2] = "x\n"; return l }, 3},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir, lines := write(t)
			if err := os.WriteFile(filepath.Join(dir, ChangesFile), []byte(strings.Join(tt.tamper(lines), "")+"\n"),
				0o600); err != nil {
				t.Fatal(err)
			}
			reports, err := Verify(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range reports {
				if strings.HasSuffix(r.Log, ChangesFile) && (r.Break == nil || r.Break.Record != tt.record) {
					t.Errorf("break %v, want at record %d", r.Break, tt.record)
				}
			}
		})
	}
}

func TestAnEmptiedLogShows(t *testing.T) {
	dir := t.TempDir()
	a := openTrail(t, dir)
	if err := a.Change(t.Context(), change("x"), false); err != nil {
		t.Fatal(err)
	}
	_ = a.Close()
	path := filepath.Join(dir, ChangesFile)
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	for _, where := range []string{dir, path} {
		if r, err := Verify(where); err != nil || r[0].Break == nil {
			t.Errorf("%s: %+v, %v: an emptied log is taken for intact", where, r, err)
		}
	}
}

func TestALineThatACrashCutOffIsRemovedAndRecorded(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, ChangesFile)
	a := openTrail(t, dir)
	if err := a.Change(t.Context(), change("a"), false); err != nil {
		t.Fatal(err)
	}
	_ = a.Close()
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString(`{"seq":3,"na`); err != nil {
		t.Fatal(err)
	}
	_ = file.Close()
	if r, err := Verify(path); err != nil || r[0].Break != nil || len(r[0].Notes) != 1 {
		t.Errorf("verify before the repair: %v, %v", r, err)
	}
	b := openTrail(t, dir)
	if err := b.Change(t.Context(), change("b"), false); err != nil {
		t.Fatal(err)
	}
	intact(t, dir)
	records := readAll(t, path)
	if n := len(records); n != 4 || records[2].Event != EventRepaired || records[2].Detail != `{"seq":3,"na` ||
		records[3].Name != "b" {
		t.Errorf("records %+v", records)
	}
}

// TestAnUnwritableLogStopsCallersAndNotTheSystem removes, replaces and empties the file of a running program.
func TestAnUnwritableLogStopsCallersAndNotTheSystem(t *testing.T) {
	tests := []struct {
		name   string
		break_ func(path string) error
		heal   func(path string) error
	}{
		{"removed", func(p string) error { return os.Rename(p, p+".away") }, func(p string) error {
			return os.Rename(p+".away", p)
		}},
		{
			"replaced", func(p string) error { return errors.Join(os.Rename(p, p+".away"), os.WriteFile(p, nil, 0o600)) },
			func(p string) error { return os.Rename(p+".away", p) },
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, ChangesFile)
			a := openTrail(t, dir)
			if err := a.Change(t.Context(), change("first"), false); err != nil {
				t.Fatal(err)
			}
			if err := tt.break_(path); err != nil {
				t.Fatal(err)
			}
			if err := a.Change(t.Context(), change("refused"), false); !errors.Is(err, errRemoved) || a.Failed() == nil {
				t.Errorf("Change = %v, Failed = %v; want that the file was removed", err, a.Failed())
			}
			if err := a.Change(t.Context(), change("heartbeat"), true); err != nil {
				t.Errorf("a change of the system's own is stopped: %v", err)
			}
			if err := tt.heal(path); err != nil {
				t.Fatal(err)
			}
			if err := a.Change(t.Context(), change("last"), false); err != nil || a.Failed() != nil {
				t.Errorf("Change = %v, Failed = %v, want that it goes on", err, a.Failed())
			}
			records := readAll(t, path)
			if lost := records[len(records)-2]; lost.Event != EventLost || lost.Count != 2 {
				t.Errorf("the record before the last is %+v, want the number of lost ones", lost)
			}
			intact(t, dir)
		})
	}
	t.Run("emptied", func(t *testing.T) {
		dir := t.TempDir()
		a := openTrail(t, dir)
		if err := a.Change(t.Context(), change("first"), false); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(filepath.Join(dir, ChangesFile), 0); err != nil {
			t.Fatal(err)
		}
		if err := a.Change(t.Context(), change("refused"), false); err == nil {
			t.Error("Change wrote to a file that was emptied")
		}
	})
}

// TestAWriteThatFailsLeavesNothing makes writes fail in the middle, by a limit on the size of files.
func TestAWriteThatFailsLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, ChangesFile)
	a := openTrail(t, dir)
	if err := a.Change(t.Context(), change("first"), false); err != nil {
		t.Fatal(err)
	}
	good := a.changes.file
	readOnly, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	a.changes.file = readOnly // what a file system does that was mounted again for reading
	if err := a.Change(t.Context(), change("second"), false); err == nil {
		t.Error("no error")
	}
	_ = readOnly.Close()
	a.changes.file = good
	if err := a.Change(t.Context(), change("third"), false); err != nil {
		t.Fatal(err)
	}
	intact(t, dir)
	if records := readAll(t, path); records[len(records)-1].Name != "third" || records[len(records)-2].Event != EventLost {
		t.Errorf("records %+v", records)
	}
}

// TestRotationWithoutDescriptorsLosesNothing repeats what happened: with no descriptors left the older files went away.
func TestRotationWithoutDescriptorsLosesNothing(t *testing.T) {
	dir := t.TempDir()
	a := openTrail(t, dir)
	a.changes.rotateBytes = 1
	count := func() (files int) {
		older, err := olderFiles(filepath.Join(dir, ChangesFile))
		if err != nil {
			t.Fatal(err)
		}
		return len(older)
	}
	for range 5 {
		if err := a.Change(t.Context(), change("before"), false); err != nil {
			t.Fatal(err)
		}
	}
	before := count()
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	none := old
	none.Cur = 3 // all those in use are above
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Skip(err)
	}
	var errs []error
	for range 10 {
		errs = append(errs, a.Change(t.Context(), change("without"), false))
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(errs...); err != nil {
		t.Errorf("changes are stopped, although the file that is open can be written: %v", err)
	}
	if now := count(); now != before {
		t.Errorf("%d older files, want the %d there were", now, before)
	}
	if err := a.Change(t.Context(), change("after"), false); err != nil {
		t.Fatal(err)
	}
	for _, r := range intact(t, dir) {
		if strings.HasSuffix(r.Log, ChangesFile) && r.Records < 16 {
			t.Errorf("%d records, want all 16", r.Records)
		}
	}
}

// TestRotationWithOneDescriptorGoesOn has a descriptor for the new file, and none for anything after it.
func TestRotationWithOneDescriptorGoesOn(t *testing.T) {
	dir := t.TempDir()
	a := openTrail(t, dir)
	if err := a.Change(t.Context(), change("before"), false); err != nil {
		t.Fatal(err)
	}
	a.changes.rotateBytes = 1
	lowest, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	free := lowest.Fd()
	_ = lowest.Close()
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	one := old
	one.Cur = uint64(free) + 1
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &one); err != nil {
		t.Skip(err)
	}
	var errs []error
	for range 3 {
		errs = append(errs, a.Change(t.Context(), change("with one"), false))
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	errs = append(errs, a.Change(t.Context(), change("after"), false))
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	intact(t, dir)
}

func TestARotationThatFailsLeavesNoSecondName(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, ChangesFile)
	a := openTrail(t, dir)
	if err := a.Change(t.Context(), change("x"), false); err != nil {
		t.Fatal(err)
	}
	next, err := os.Create(path + ".next")
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	if err := os.Remove(next.Name()); err != nil { // so that it cannot be renamed
		t.Fatal(err)
	}
	if err := a.changes.swap(next, path+".000000000000002"); err == nil {
		t.Error("no error")
	}
	intact(t, dir)
}

func TestARotationThatACrashCutOffIsFinished(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, ChangesFile)
	a := openTrail(t, dir)
	if err := a.Change(t.Context(), change("a"), false); err != nil {
		t.Fatal(err)
	}
	_ = a.Close()
	// The file has its second name, and the new one is not in its place yet.
	if err := os.Link(path, path+".000000000000002"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".next", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := openTrail(t, dir)
	b.changes.rotateBytes = 1
	for range 3 {
		if err := b.Change(t.Context(), change("b"), false); err != nil {
			t.Fatal(err)
		}
	}
	intact(t, dir)
}

func TestOnlyTheRetentionPolicyRemovesFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, ChangesFile)
	a := openTrail(t, dir)
	a.changes.rotateBytes, a.changes.retention = 1000, retention{bytes: 3000, age: time.Hour}
	fill := func() {
		for i := range 60 {
			if err := a.Change(t.Context(), change(fmt.Sprint(i)), false); err != nil {
				t.Fatal(err)
			}
		}
	}
	fill()
	files, _ := olderFiles(path)
	if len(files) < 8 {
		t.Errorf("%d older files: files below the age were removed", len(files))
	}
	for _, f := range files {
		old := time.Now().Add(-2 * time.Hour)
		if err := os.Chtimes(f, old, old); err != nil {
			t.Fatal(err)
		}
	}
	fill()
	after, _ := olderFiles(path)
	if len(after) == 0 || after[0] == files[0] {
		t.Errorf("the oldest file %s is still there", files[0])
	}
	reports := intact(t, dir)
	if len(reports[0].Notes) != 1 || !strings.Contains(reports[0].Notes[0], "retention") {
		t.Errorf("notes %v", reports[0].Notes)
	}
	// What the policy did not remove is missed.
	if err := os.Remove(after[0]); err != nil {
		t.Fatal(err)
	}
	if r, err := Verify(dir); err != nil || r[0].Break == nil {
		t.Errorf("a file removed by others is not missed: %v, %v", r, err)
	}
}

func TestAFileThatWasRemovedWhileTheServiceWasDownIsMissed(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, ChangesFile)
	a := openTrail(t, dir)
	a.changes.rotateBytes = 1000
	for range 20 {
		if err := a.Change(t.Context(), change("x"), false); err != nil {
			t.Fatal(err)
		}
	}
	_ = a.Close()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if r, err := Verify(dir); err != nil || r[0].Break == nil {
		t.Errorf("before the start: %v, %v", r, err)
	}
	b := openTrail(t, dir)
	if err := b.Change(t.Context(), change("y"), false); err != nil {
		t.Fatal(err)
	}
	if r, err := Verify(dir); err != nil || r[0].Break == nil || !strings.Contains(r[0].Break.Why, "began again") {
		t.Errorf("after the start: %v, %v", r, err)
	}
}

func TestALogOfAnEarlierVersionIsSetAside(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, ChangesFile)
	if err := os.WriteFile(path, []byte("{\"method\":\"/x\",\"decision\":\"allow\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := openTrail(t, dir)
	if err := a.Change(t.Context(), change("x"), false); err != nil {
		t.Fatal(err)
	}
	aside, _ := filepath.Glob(path + ".unchained-*")
	if len(aside) != 1 {
		t.Errorf("set aside: %v", aside)
	}
	intact(t, dir)
}

func TestASecondProcessIsRefused(t *testing.T) {
	dir := t.TempDir()
	openTrail(t, dir)
	if _, err := Open(Config{Dir: dir, Log: quiet}); !errors.Is(err, errLocked) {
		t.Errorf("Open = %v, want ErrLocked", err)
	}
}

// TestRefusalsPushNothingOut is the figure: 100,000 refusals, and an editor's record made before them is still there.
func TestRefusalsPushNothingOut(t *testing.T) {
	dir := t.TempDir()
	a := openTrail(t, dir)
	for _, c := range []*chain{a.changes, a.reads, a.refusals} {
		c.rotateBytes = 1 << 20
	}
	if err := a.Change(t.Context(), change("made-before"), false); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 8000)
	for i := range 100_000 {
		a.Refused(Record{
			Time: time.Now().UTC(), Verb: "list", Resource: "machines", Name: fmt.Sprint(i),
			Source: fmt.Sprintf("192.0.2.1:%d", i%60000), Method: long, Code: "Unauthenticated", Reason: long,
		})
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	intact(t, dir)
	changes, refusals := readAll(t, filepath.Join(dir, ChangesFile)), readAll(t, filepath.Join(dir, RefusalsFile))
	if changes[1].Name != "made-before" {
		t.Errorf("changes %+v", changes)
	}
	if len(refusals) != 3 {
		t.Fatalf("%d refusals, want the beginning, the first and the rest", len(refusals))
	}
	rest := refusals[2]
	if rest.Count != 99_999 || rest.LastTime == nil || rest.LastTime.Before(rest.Time) || rest.LastSource == rest.Source ||
		len(rest.Method) != 256 || len(rest.Reason) != 256 {
		t.Errorf("the rest is %+v", rest)
	}
}

func TestRefusalsAreCountedByTheMinute(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		a, err := Open(Config{Dir: dir, Service: "test", Log: quiet})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 { // minutes
			for range 10 {
				for _, user := range []string{"", "eve"} {
					a.Refused(Record{Time: time.Now().UTC(), User: user, Verb: "get", Resource: "nodes", Code: "PermissionDenied"})
				}
			}
			time.Sleep(countFor + time.Second)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	})
	var first, counted uint64
	for _, r := range readAll(t, filepath.Join(dir, RefusalsFile)) {
		switch {
		case r.Event != "":
		case r.Count == 0:
			first++
		default:
			counted += r.Count
		}
	}
	if first != 6 || counted != 54 {
		t.Errorf("%d first records and %d counted, want 6 and 54", first, counted)
	}
}

func TestManyKindsOfRefusalsAreBounded(t *testing.T) {
	dir := t.TempDir()
	a := openTrail(t, dir)
	for i := range 3 * maxKinds {
		a.Refused(Record{Time: time.Now().UTC(), User: fmt.Sprintf("user-%d", i), Verb: "get", Code: "PermissionDenied"})
	}
	_ = a.Close()
	if n := len(readAll(t, filepath.Join(dir, RefusalsFile))); n > maxKinds+5 {
		t.Errorf("%d records, want some %d", n, maxKinds)
	}
}

// hanging is a sink that blocks until it is released.
type hanging struct {
	mu    sync.Mutex
	free  chan struct{}
	lines []Line
}

func (h *hanging) Send(ctx context.Context, lines []Line) error {
	select {
	case <-h.free:
	case <-ctx.Done():
		return ctx.Err()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = append(h.lines, lines...)
	return nil
}
func (h *hanging) Close() error   { return nil }
func (h *hanging) String() string { return "hanging" }

func TestASinkThatHangsHoldsNoCallerUp(t *testing.T) {
	dir := t.TempDir()
	sink := &hanging{free: make(chan struct{})}
	a := openTrail(t, dir, sink)
	big := Record{
		User: "ed", Groups: []string{strings.Repeat("g", 256), strings.Repeat("h", 256)},
		Reason: strings.Repeat("r", 256), Detail: strings.Repeat("d", 256),
	}
	for range 200 {
		for range 100 {
			a.Completed(big)
		}
		if err := a.Change(t.Context(), big, false); err != nil {
			t.Fatal(err)
		}
	}
	_, dropped := a.sinks[0].counts()
	if dropped == 0 {
		t.Error("nothing is dropped, although the sink took nothing")
	}
	close(sink.free)
	_ = a.Close()
	sent, dropped := a.sinks[0].counts()
	total := uint64(len(readAll(t, filepath.Join(dir, ChangesFile)))+1) + 1 // the other logs have their first records
	if sent+dropped != total {
		t.Errorf("%d sent and %d dropped, want %d together", sent, dropped, total)
	}
}

func BenchmarkChange(b *testing.B) {
	for _, writers := range []int{1, 10, 100} {
		b.Run(fmt.Sprintf("%d writers", writers), func(b *testing.B) {
			a := openTrail(b, b.TempDir())
			record := Record{
				User: "system:windlass:machine-api", Groups: []string{"system:windlass"},
				Method: "/windlass.machine.v1.MachineService/PatchMachine",
			}
			var wg sync.WaitGroup
			var left atomic.Int64
			left.Store(int64(b.N))
			for range writers {
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						if err := a.Change(b.Context(), record, false); err != nil {
							b.Error(err)
						}
						a.Completed(record)
					}
				})
			}
			wg.Wait()
		})
	}
}

// TestAFullDiskIsSeenBeforeAChangeIsMade fills the disk of a log: Check and Change say the same, and both recover by
// themselves.
func TestAFullDiskIsSeenBeforeAChangeIsMade(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("no file system of a known size can be mounted here (%v)", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	a := openTrail(t, dir)
	if err := a.Check(t.Context()); err != nil {
		t.Fatalf("Check = %v with an empty disk", err)
	}
	fill := filepath.Join(dir, "fill")
	if err := os.WriteFile(fill, make([]byte, 2<<20), 0o600); !Full(err) {
		t.Fatalf("the disk is not full: %v", err)
	}
	// What was reserved before lasts for some changes.
	var refused error
	for range 1000 {
		if refused = a.Change(t.Context(), change("last"), false); refused != nil {
			break
		}
		a.Completed(change("last"))
	}
	if !Full(refused) || !Full(a.Check(t.Context())) {
		t.Errorf("Change = %v, Check = %v on a full disk", refused, a.Check(t.Context()))
	}
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	if err := a.Check(t.Context()); err != nil || a.Failed() != nil {
		t.Errorf("Check = %v, Failed = %v once there is space", err, a.Failed())
	}
	if err := a.Change(t.Context(), change("after"), false); err != nil {
		t.Error(err)
	}
	intact(t, dir)
}

// TestAServiceStartsWithoutItsLog opens a trail whose file cannot be written, as on a full or read-only disk.
func TestAServiceStartsWithoutItsLog(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, ChangesFile)
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	a := openTrail(t, dir)
	if a.Failed() == nil {
		t.Error("the log has not failed")
	}
	if err := a.Change(t.Context(), change("x"), true); err != nil {
		t.Errorf("a change of the system's own is stopped: %v", err)
	}
	if err := a.Change(t.Context(), change("x"), false); err == nil {
		t.Error("a caller's change is not stopped")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := a.Change(t.Context(), change("x"), false); err != nil || a.Failed() != nil {
		t.Errorf("Change = %v, Failed = %v after the disk is back", err, a.Failed())
	}
	intact(t, dir)
}

func TestWhatCannotBeReadHidesNothingElse(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "c"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		a := openTrail(t, filepath.Join(dir, name))
		for range 2 {
			if err := a.Change(t.Context(), change("m"), false); err != nil {
				t.Fatal(err)
			}
		}
	}
	unread := filepath.Join(dir, "b", ChangesFile) // opens and cannot be read, by root neither
	if err := errors.Join(os.Mkdir(filepath.Dir(unread), 0o700), os.Symlink(dir, unread)); err != nil {
		t.Fatal(err)
	}
	last := filepath.Join(dir, "c", ChangesFile)
	data, err := os.ReadFile(last)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(last, []byte(strings.Replace(string(data), `"ed"`, `"ad"`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "missing")
	reports, err := Verify(missing, dir)
	for _, path := range []string{missing, unread} {
		if err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("Verify = %v, want %s named", err, path)
		}
	}
	intact, broken := 0, 0
	for _, r := range reports {
		if r.Break == nil {
			intact++
		} else {
			broken++
		}
	}
	if intact == 0 || broken != 1 {
		t.Errorf("%d intact logs and %d broken ones: %+v", intact, broken, reports)
	}
}
