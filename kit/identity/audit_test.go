package identity

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

func readAudit(t testing.TB, path string) (records []Record) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var r Record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatalf("line %q: %v", lines.Text(), err)
		}
		records = append(records, r)
	}
	return records
}

func openAudit(t testing.TB) (*Audit, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "audit.log")
	a, err := OpenAudit(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return a, path
}

func TestEveryRecordIsOnDiskWhenWriteReturns(t *testing.T) {
	a, path := openAudit(t)
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			name := fmt.Sprintf("m-%d", i)
			if err := a.Write(t.Context(), Record{Name: name}); err != nil {
				t.Error(err)
			}
			for _, r := range readAudit(t, path) {
				if r.Name == name {
					return
				}
			}
			t.Errorf("%s is not in the file after Write", name)
		})
	}
	wg.Wait()
	if n := len(readAudit(t, path)); n != 64 {
		t.Errorf("%d records, want 64", n)
	}
}

func TestALineThatACrashCutOffSpoilsNoOther(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(path, []byte("{\"name\":\"a\"}\n{\"na"), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := OpenAudit(path)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if err := a.Write(t.Context(), Record{Name: "b"}); err != nil {
		t.Fatal(err)
	}
	content, _ := os.ReadFile(path)
	var last Record
	lines := splitLines(content)
	if err := json.Unmarshal(lines[len(lines)-1], &last); err != nil || last.Name != "b" || len(lines) != 3 {
		t.Errorf("file is %q", content)
	}
}

func splitLines(content []byte) (lines [][]byte) {
	for line := range bytes.Lines(content) {
		lines = append(lines, line)
	}
	return lines
}

func TestTheLogRotatesAndKeepsFour(t *testing.T) {
	a, path := openAudit(t)
	a.rotateBytes = 1000
	for i := range 60 {
		if err := a.Write(t.Context(), Record{Name: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	kept := 0
	for i := range 10 {
		info, err := os.Stat(a.older(i))
		if err != nil {
			continue
		}
		kept++
		if info.Size() > 1000 {
			t.Errorf("%s has %d bytes", a.older(i), info.Size())
		}
	}
	if kept != 5 {
		t.Errorf("%d files, want 5", kept)
	}
	newest := readAudit(t, path)
	if newest[len(newest)-1].Name != "59" {
		t.Errorf("the newest record is %q", newest[len(newest)-1].Name)
	}
}

func TestAFailedWriteIsKnownAndHeals(t *testing.T) {
	a, path := openAudit(t)
	good := a.file
	readOnly, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	a.file = readOnly
	if err := a.Write(t.Context(), Record{}); err == nil || !a.Failed() {
		t.Errorf("Write = %v, Failed = %v", err, a.Failed())
	}
	_ = readOnly.Close()
	a.file = good
	if err := a.Write(t.Context(), Record{Name: "b"}); err != nil || a.Failed() {
		t.Errorf("Write = %v, Failed = %v", err, a.Failed())
	}
	if r := readAudit(t, path); len(r) != 1 || r[0].Name != "b" {
		t.Errorf("records %v", r)
	}
}

func BenchmarkAudit(b *testing.B) {
	for _, writers := range []int{1, 10, 100} {
		b.Run(fmt.Sprintf("%d writers", writers), func(b *testing.B) {
			a, _ := openAudit(b)
			record := Record{User: "system:windlass:machine-api", Groups: []string{"system:windlass"}, Method: "/windlass.machine.v1.MachineService/PatchMachine"}
			var wg sync.WaitGroup
			var left atomic.Int64
			left.Store(int64(b.N))
			for range writers {
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						if err := a.Write(b.Context(), record); err != nil {
							b.Error(err)
						}
					}
				})
			}
			wg.Wait()
		})
	}
}
