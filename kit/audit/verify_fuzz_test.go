package audit

import (
	"bytes"
	"encoding/json"
	"testing"
)

// FuzzVerify changes a log at any place: what Verify then takes for intact must be a beginning of the log that was
// written, or have no record at all.
func FuzzVerify(f *testing.F) {
	var bodies [][]byte
	for _, r := range []Record{
		{Event: EventBegun},
		{User: "a", Verb: "patch"},
		{User: "b", Reason: "x\n\"}"},
		{Event: EventRetired, Hash: "00"},
	} {
		body, err := json.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		bodies = append(bodies, body)
	}
	log, _, _ := link(bodies, 0, "")
	for _, at := range []int{0, 10, len(log) / 2, len(log) - 2} {
		f.Add(at, 1, []byte("x"))
		f.Add(at, 20, []byte(""))
		f.Add(at, 0, []byte("{}\n"))
	}
	f.Fuzz(func(t *testing.T, at, remove int, insert []byte) {
		if at < 0 || at > len(log) || remove < 0 || at+remove > len(log) {
			return
		}
		changed := append(append(append([]byte(nil), log[:at]...), insert...), log[at+remove:]...)
		v := verifier{report: Report{Log: "x", Files: []string{"x"}}, retired: map[string]string{}}
		if err := v.read("x", bytes.NewReader(changed), true); err != nil {
			t.Fatal(err)
		}
		v.end()
		if v.report.Break != nil || v.report.Records == 0 {
			return
		}
		// The last record has no successor that vouches for it.
		intact := lines(log)
		for i, line := range lines(changed)[:v.report.Records-1] {
			if i >= len(intact) || !bytes.Equal(line, intact[i]) {
				t.Errorf("record %d was changed to %q, and Verify finds the chain intact", i+1, line)
			}
		}
	})
}

func lines(text []byte) (out [][]byte) {
	for line := range bytes.Lines(text) {
		out = append(out, line)
	}
	return out
}
