package logger

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestLogsOfContainerRuntimesAreRead(t *testing.T) {
	dir := t.TempDir()
	text := "2026-11-27T11:40:28.44549392Z stdout F short\n" +
		"2026-11-27T13:40:29+02:00 stderr P in parts\n" +
		"2026-11-27T13:40:29.5+02:00 stderr F:x , of another zone\n" +
		"2026-11-27T11:40:30.000000001Z stdout F long\n"
	if err := os.WriteFile(filepath.Join(dir, File), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		options Options
		want    string
	}{
		{Options{Tail: -1}, "short\nin parts, of another zone\nlong\n"},
		{
			Options{Tail: -1, Times: true, Since: time.Date(2026, 11, 27, 11, 40, 29, 0, time.UTC)},
			"2026-11-27T11:40:29.000000000Z in parts, of another zone\n2026-11-27T11:40:30.000000001Z long\n",
		},
		{Options{Tail: 1}, "long\n"},
	} {
		r, err := Open(dir, tc.options)
		if err != nil {
			t.Fatal(err)
		}
		got, err := r.Next()
		if string(got) != tc.want || err != nil {
			t.Errorf("%+v: %q, %v, want %q", tc.options, got, err, tc.want)
		}
		r.Close()
	}
}

// TestTheLogOfAContainerRuntimeIsReadWhileItIsRotated reads a log whose newest file the runtime has not opened yet, as
// while it does not answer, and one that was rotated.
func TestTheLogOfAContainerRuntimeIsReadWhileItIsRotated(t *testing.T) {
	dir := t.TempDir()
	put := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, file), []byte("2026-11-27T11:40:28.1Z stdout F "+text+"\n"),
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func(want string) {
		t.Helper()
		begun := time.Now()
		r, err := Open(dir, Options{Tail: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		var got []byte
		for {
			more, err := r.Next()
			if err != nil {
				t.Fatal(err)
			}
			if len(more) == 0 {
				break
			}
			got = append(got, more...)
		}
		if string(got) != want {
			t.Errorf("%q, want %q", got, want)
		}
		if took := time.Since(begun); took > openTries/2*openPause {
			t.Errorf("it took %v", took)
		}
	}
	put("log.2", "one")
	put("log.1", "two")
	read("one\ntwo\n")
	put("log", "three")
	read("one\ntwo\nthree\n")
}
