package hostcheck

import (
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

// good is a host that passes every check.
func good() Facts {
	return Facts{
		Address: "192.0.2.1", Free: 100 << 30, Syncs: []time.Duration{time.Millisecond}, Synced: true, Memory: 4 << 30,
		Files: 20000, Root: true, Cgroups: true,
	}
}

func TestAHostIsJudged(t *testing.T) {
	if list := Judge(good()); !Usable(list) ||
		slices.ContainsFunc(list, func(r Result) bool { return r.Verdict != pass }) {
		t.Errorf("a good host: %+v", list)
	}
	for _, c := range []struct {
		name    string
		change  func(*Facts)
		check   string
		verdict Verdict
		says    string
	}{
		{
			"a foreign address", func(f *Facts) { f.Local = errors.New("192.0.2.1 is not an address of this host") }, "address",
			fail, "not an address of this host",
		},
		{"a taken port", func(f *Facts) { f.Taken = map[int]string{6443: "in use"} }, "ports", fail, "in use: 6443"},
		{
			"own ports", func(f *Facts) { f.Own, f.Taken = true, map[int]string{6443: "in use"} }, "ports", pass,
			"in a cluster already",
		},
		{"a full disk", func(f *Facts) { f.Free = 900 << 20 }, "disk", fail, "0.9 GiB free, 1 GiB is needed"},
		{"a directory in memory", func(f *Facts) { f.Volatile = true }, "disk", warn, "is lost when the host restarts"},
		{"a small disk", func(f *Facts) { f.Free = 2 << 30 }, "disk", warn, "2.0 GiB free, 8 GiB are advised"},
		{
			"a read-only disk", func(f *Facts) { f.DiskErr, f.Syncs = errors.New("read-only file system"), nil }, "disk", fail,
			"read-only file system",
		},
		{
			"a disk that was not measured", func(f *Facts) { f.DiskErr, f.Syncs = errors.New("read-only file system"), nil },
			"fsync", fail, "not measured",
		},
		{
			"a slow disk", func(f *Facts) { f.Syncs = slow(12 * time.Millisecond) }, "fsync", warn,
			"99 % of 100 synced writes took 12ms or less, more than 10 ms",
		},
		{"a very slow disk", func(f *Facts) { f.Syncs = slow(110 * time.Millisecond) }, "fsync", fail, "more than 100 ms"},
		{
			"one slow write", func(f *Facts) { f.Syncs = append(slow(time.Millisecond), time.Second)[1:] }, "fsync", pass,
			"took 1ms or less",
		},
		{"an unsynchronized clock", func(f *Facts) { f.Synced = false }, "clock", warn, "not synchronized"},
		{"little memory", func(f *Facts) { f.Memory = 1 << 30 }, "memory", warn, "1.0 GiB, 2 GiB are advised"},
		{"no memory", func(f *Facts) { f.Memory = 256 << 20 }, "memory", fail, "0.2 GiB, 0.5 GiB are needed"},
		{"few files", func(f *Facts) { f.Files = 4096 }, "files", warn, "4096"},
		{"not root", func(f *Facts) { f.Root = false }, "user", warn, "not root"},
		{"no control groups", func(f *Facts) { f.Cgroups = false }, "cgroups", warn, "limits of pods are not in force"},
	} {
		f := good()
		c.change(&f)
		list := Judge(f)
		i := slices.IndexFunc(list, func(r Result) bool { return r.Check == c.check })
		if i < 0 || list[i].Verdict != c.verdict || !strings.Contains(list[i].Message, c.says) {
			t.Errorf("%s: %+v, want %s: %q", c.name, list, c.verdict, c.says)
		}
		if Usable(list) == (c.verdict == fail) {
			t.Errorf("%s: usable is %t", c.name, Usable(list))
		}
	}
}

func slow(d time.Duration) []time.Duration { return slices.Repeat([]time.Duration{d}, 100) }

func TestThisHostIsObserved(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().(*net.TCPAddr).Port
	dir := t.TempDir() + "/not/there"
	f := Observe("127.0.0.1", dir, []int{taken}, false)
	if f.Local != nil || f.DiskErr != nil || f.Free == 0 || len(f.Syncs) == 0 || f.Memory == 0 || f.Files == 0 {
		t.Errorf("%+v", f)
	}
	if len(f.Taken) != 1 || f.Taken[taken] == "" {
		t.Errorf("port %d has a listener: %v", taken, f.Taken)
	}
	if f := Observe("192.0.2.1", dir, nil, false); f.Local == nil {
		t.Error("a foreign address is taken for the host's own")
	}
}
