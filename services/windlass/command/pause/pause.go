// Package pause reads the flags of commands that pause something: why, and until when.
package pause

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// Flags are the flags of a pause.
type Flags struct {
	reason, until string
	length        time.Duration
}

// Add defines the flags; reason describes --reason.
func (f *Flags) Add(fs *pflag.FlagSet, reason string) {
	fs.StringVar(&f.reason, "reason", "", reason)
	fs.DurationVar(&f.length, "for", 0, "how long, such as 48h (default: until it is resumed)")
	fs.StringVar(&f.until, "until", "", "until when, such as 2026-12-01T08:00:00Z")
}

// Given reports whether any of the flags is.
func (f *Flags) Given() bool { return f.reason != "" || f.until != "" || f.length != 0 }

// Patch returns a pause as a merge patch has it, for a command that runs at now. waits names what it holds back.
func (f *Flags) Patch(waits string, now time.Time) (map[string]any, error) {
	pause := map[string]any{"reason": f.reason, "until": nil}
	switch {
	case f.reason == "":
		return nil, fmt.Errorf("--reason is needed: who asks why %s wait is shown it", waits)
	case f.length != 0 && f.until != "":
		return nil, errors.New("only one of --for and --until may be given")
	case f.length < 0:
		return nil, fmt.Errorf("--for %s: must be positive", f.length)
	case f.length > 0:
		pause["until"] = now.Add(f.length).UTC().Truncate(time.Second).Format(time.RFC3339)
	case f.until != "":
		end, err := time.Parse(time.RFC3339, f.until)
		if err != nil {
			return nil, fmt.Errorf("--until %s: must be a time like %s", f.until, now.UTC().Format(time.RFC3339))
		}
		if !end.After(now) {
			return nil, fmt.Errorf("--until %s: must be later than now", f.until)
		}
		pause["until"] = f.until
	}
	return pause, nil
}
