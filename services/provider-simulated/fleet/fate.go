package fleet

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"time"
)

// Range is a length of time that is drawn evenly from Min to Max. As a flag it is "2s" or "500ms-3s".
type Range struct{ Min, Max time.Duration }

// String implements pflag.Value.
func (r *Range) String() string {
	if r.Min == r.Max {
		return r.Min.String()
	}
	return r.Min.String() + "-" + r.Max.String()
}

// Set implements pflag.Value.
func (r *Range) Set(text string) error {
	low, high, both := strings.Cut(text, "-")
	if !both {
		high = low
	}
	var err error
	if r.Min, err = time.ParseDuration(low); err == nil {
		r.Max, err = time.ParseDuration(high)
	}
	if err != nil || r.Min < 0 || r.Max < r.Min {
		return fmt.Errorf("%q is no length of time such as 2s, and no range such as 500ms-3s", text)
	}
	return nil
}

// Type implements pflag.Value.
func (r *Range) Type() string { return "range" }

// Faults are the parts of all calls, from 0 to 1, that go wrong.
type Faults struct {
	Fail float64 // fail with UNAVAILABLE; nothing was done
	Lose float64 // are carried out, but the answer is lost: UNAVAILABLE as well
	Hang float64 // are carried out and never answered: the caller waits until its deadline
}

// Fate is what happens to one call.
type Fate struct {
	Fail, Lose, Hang bool
	Delay            time.Duration // until it is carried out
	Span             time.Duration // that the work which it begins takes
}

// fateOf draws the fate of the nth call of a method for a token. It depends on nothing else, so one seed gives every
// call the same fate however calls are ordered.
func fateOf(seed uint64, method, token string, n int, f Faults, delay, span Range) Fate {
	h := fnv.New64a()
	_ = binary.Write(h, binary.LittleEndian, uint64(n)) // a hash takes everything
	h.Write([]byte(method + "\x00" + token))
	r := rand.New(rand.NewPCG(seed, h.Sum64()))
	var out Fate
	switch p := r.Float64(); {
	case p < f.Fail:
		out.Fail = true
	case p < f.Fail+f.Lose:
		out.Lose = true
	case p < f.Fail+f.Lose+f.Hang:
		out.Hang = true
	}
	out.Delay, out.Span = drawn(r, delay), drawn(r, span)
	return out
}

func drawn(r *rand.Rand, d Range) time.Duration {
	return d.Min + time.Duration(r.Float64()*float64(d.Max-d.Min))
}
