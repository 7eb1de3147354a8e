package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestEachUpdateIsToANewerVersion(t *testing.T) {
	for now, want := range map[string]versions{
		"1.0.0": {
			now: "1.0.0", next: "1.1.0", later: "1.1.1-tour", broken: "1.1.1-tour.1", self: "1.1.1-tour.2",
			risky: "1.2.0", unsure: "1.3.0", judged: "1.4.0",
		},
		"1.1.0": {
			now: "1.1.0", next: "1.1.1", later: "1.1.2-tour", broken: "1.1.2-tour.1", self: "1.1.2-tour.2",
			risky: "1.2.0", unsure: "1.3.0", judged: "1.4.0",
		},
		"1.1.9": {
			now: "1.1.9", next: "1.1.10", later: "1.1.11-tour", broken: "1.1.11-tour.1", self: "1.1.11-tour.2",
			risky: "1.2.0", unsure: "1.3.0", judged: "1.4.0",
		},
		"2.4.1": {
			now: "2.4.1", next: "2.4.2", later: "2.4.3-tour", broken: "2.4.3-tour.1", self: "2.4.3-tour.2",
			risky: "2.5.0", unsure: "2.6.0", judged: "2.7.0",
		},
	} {
		got, err := versionsAfter(now)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(versions{})); diff != "" {
			t.Errorf("versions after %s (-want +got):\n%s", now, diff)
		}
	}
	if _, err := versionsAfter("devel"); err == nil {
		t.Error("versions after devel: no error")
	}
}

func TestTheWorkOfOperatorsIsReadFromWhatTheySay(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	o := &operators{}
	for i, line := range []string{
		"10:00:00.000  simulating [archive beacon ledger] at 127.0.0.1:6443",
		"10:00:01.000  archive    works on 1.0.0",
		"10:00:02.000  archive    is at 1.0.0",
		"10:00:03.000  archive    works on 1.1.0",
		"10:00:04.000  ledger     works on 1.1.0",
		"10:00:05.000  archive    is at 1.1.0",
	} {
		o.read(line, at(i))
	}
	want := []span{{"archive 1.1.0", at(3), at(5)}, {"ledger 1.1.0", at(4), time.Time{}}}
	if diff := cmp.Diff(want, o.work("1.1.0"), cmp.AllowUnexported(span{})); diff != "" {
		t.Errorf("work (-want +got):\n%s", diff)
	}
}

func TestTimeOutsideOfOthersWorkIsCountedOnce(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	for name, tt := range map[string]struct {
		spans []span
		want  time.Duration
	}{
		"no operator worked":        {nil, 10 * time.Second},
		"two worked side by side":   {[]span{{"b", at(3), at(6)}, {"a", at(2), at(5)}}, 6 * time.Second},
		"one inside of the other":   {[]span{{"a", at(1), at(9)}, {"b", at(2), at(3)}}, 2 * time.Second},
		"one began before the time": {[]span{{"a", at(-5), at(4)}}, 6 * time.Second},
		"one began after the time":  {[]span{{"a", at(11), at(14)}}, 10 * time.Second},
		"one went on after it":      {[]span{{"a", at(8), at(14)}}, 8 * time.Second},
	} {
		if got := outside(at(0), at(10), tt.spans); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

func TestTamperingChangesOneByteOfTheLargestFile(t *testing.T) {
	dir := t.TempDir()
	blobs := filepath.Join(dir, "blobs", "sha256")
	if err := os.MkdirAll(blobs, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"small": "ab", "large": "abcdef"} {
		if err := os.WriteFile(filepath.Join(blobs, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := tamper(dir); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"small": "ab", "large": "abceef"} {
		if got, err := os.ReadFile(filepath.Join(blobs, name)); err != nil || string(got) != want {
			t.Errorf("%s = %q, %v; want %q", name, got, err, want)
		}
	}
}
