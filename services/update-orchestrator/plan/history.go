package plan

import (
	"slices"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

// States of a history entry.
const (
	StateCompleted = "Completed"
	statePartial   = "Partial"
)

// maxHistory is how many entries a history has at most.
const maxHistory = 100

// Reached is where an update has come to.
type Reached struct {
	Version, Image string
	Completed      bool
	Verified       bool
	AcceptedRisks  string // what was waived; empty leaves what the entry says
	Snapshot       string // of etcd, taken before; empty leaves what the entry says
}

// Record returns the history, the newest first, with what was reached. An entry of the same release is completed,
// anything else ends the last entry and begins one. It does not modify history, and returns it as it is if nothing
// changes; without an image nothing is recorded.
func Record(history []*updatev1.UpdateHistory, r Reached, now time.Time) []*updatev1.UpdateHistory {
	if r.Image == "" {
		return history
	}
	if len(history) > 0 && same(history[0], r) {
		merged := merge(history[0], r, now)
		if proto.Equal(merged, history[0]) {
			return history
		}
		out := slices.Clone(history)
		out[0] = merged
		return out
	}
	entry := merge(&updatev1.UpdateHistory{
		State: statePartial, StartedTime: timestamppb.New(now),
		Verified: proto.Bool(false),
	}, r, now)
	out := append([]*updatev1.UpdateHistory{entry}, history...)
	if len(history) > 0 && history[0].GetCompletionTime() == nil {
		ended := proto.CloneOf(history[0])
		ended.CompletionTime = timestamppb.New(now)
		out[1] = ended
	}
	return prune(out)
}

// same reports whether an entry is of the release that was reached; a version or image that is unknown on one side is
// not compared.
func same(h *updatev1.UpdateHistory, r Reached) bool {
	agree := func(a, b string) bool { return a == b || a == "" || b == "" }
	return agree(h.GetVersion(), r.Version) && agree(h.GetImage(), r.Image) &&
		(h.GetVersion() == r.Version || h.GetImage() == r.Image)
}

func merge(h *updatev1.UpdateHistory, r Reached, now time.Time) *updatev1.UpdateHistory {
	h = proto.CloneOf(h)
	if h.GetVersion() == "" && r.Version != "" {
		h.Version = proto.String(r.Version)
	}
	if h.GetImage() == "" {
		h.Image = proto.String(r.Image)
	}
	if r.Verified {
		h.Verified = proto.Bool(true)
	}
	if r.AcceptedRisks != "" {
		h.AcceptedRisks = r.AcceptedRisks
	}
	if r.Snapshot != "" {
		h.Snapshot = r.Snapshot
	}
	if r.Completed && h.GetState() != StateCompleted {
		h.State = StateCompleted
		h.CompletionTime = timestamppb.New(now)
	}
	return h
}

// prune takes one entry out of a history that is too long: the one that says least of how the cluster came here.
func prune(history []*updatev1.UpdateHistory) []*updatev1.UpdateHistory {
	if len(history) <= maxHistory {
		return history
	}
	least := 0
	ranks := rank(history)
	for i := range ranks {
		if ranks[i] < ranks[least] {
			least = i
		}
	}
	return slices.Delete(history, least, least+1)
}

// Ranks of history entries: the least goes.
const (
	newest          = 5      // this many are kept
	rankKept        = 1000.0 // the newest, the oldest, the newest completed
	rankEdge        = 30.0   // first or last completed of a minor version
	rankBetween     = 20.0   // partial on the way from one minor version to another
	rankWithin      = -20.0  // partial within a minor version
	rankPerPosition = -1.01  // the older, the less
)

func rank(history []*updatev1.UpdateHistory) []float64 {
	out := make([]float64, len(history))
	lastDone := slices.IndexFunc(history, completed)
	for i, h := range history {
		newer, older := "", ""
		if j := lastIndex(history[:i], completed); j >= 0 {
			newer = minor(history[j])
		}
		if j := slices.IndexFunc(history[i+1:], completed); j >= 0 {
			older = minor(history[i+1+j])
		}
		switch {
		case i < newest || i == len(history)-1 || i == lastDone:
			out[i] = rankKept
		case completed(h) && (newer != minor(h) || older != minor(h)):
			out[i] = rankEdge
		case !completed(h) && newer != "" && older != "" && newer != older:
			out[i] = rankBetween
		case !completed(h) && newer != "" && newer == older:
			out[i] = rankWithin
		}
		out[i] += rankPerPosition * float64(i)
	}
	return out
}

func lastIndex(list []*updatev1.UpdateHistory, is func(*updatev1.UpdateHistory) bool) int {
	for i := len(list) - 1; i >= 0; i-- {
		if is(list[i]) {
			return i
		}
	}
	return -1
}

func completed(h *updatev1.UpdateHistory) bool { return h.GetState() == StateCompleted }

// minor returns the major and minor part of an entry's version, or the whole of it if it is no semantic version.
func minor(h *updatev1.UpdateHistory) string {
	v, err := semver.StrictNewVersion(h.GetVersion())
	if err != nil {
		return h.GetVersion()
	}
	return semver.New(v.Major(), v.Minor(), 0, "", "").String()
}

// lastCompleted returns the version that was completed last; empty if none was.
func lastCompleted(history []*updatev1.UpdateHistory) string {
	if i := slices.IndexFunc(history, completed); i >= 0 {
		return history[i].GetVersion()
	}
	return ""
}

// Forgotten returns the names of the releases that no entry of a history is about, in the order of releases.
func Forgotten(releases []*updatev1.Release, history []*updatev1.UpdateHistory) []string {
	known := map[string]bool{}
	for _, h := range history {
		known[h.GetImage()] = true
	}
	var out []string
	for _, r := range releases {
		if !known[r.GetSpec().GetImage()] {
			out = append(out, r.GetMetadata().GetName())
		}
	}
	return out
}

// Kept returns the digests of the releases whose images are kept: the present one, and the one that was completed
// before it, to which the way back leads.
func Kept(present string, history []*updatev1.UpdateHistory) []string {
	images := []string{present}
	for _, h := range history {
		if completed(h) && !SameImage(h.GetImage(), present) {
			images = append(images, h.GetImage())
			break
		}
	}
	var out []string
	for _, image := range images {
		if _, digest, ok := strings.Cut(image, "@"); ok {
			out = append(out, digest)
		}
	}
	return out
}

// ModeOf returns what the next application of the release with an image is for. A release that was completed is applied
// as in an update while a status shows progress: more of it counts then.
func ModeOf(st *updatev1.ClusterVersionStatus, image string) Mode {
	switch history := st.GetHistory(); {
	case !slices.ContainsFunc(history, completed):
		return Initializing
	case completed(history[0]) && history[0].GetImage() == image && st.GetProgress() == nil:
		return Reconciling
	}
	return Updating
}
