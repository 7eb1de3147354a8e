package pods

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/windlass-dev/windlass/kit/lifecycle"
	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
	"github.com/windlass-dev/windlass/services/node-agent/shim"
)

const recordFile = "pod.json"

// pod is one pod of the machine. The lock of Pods guards it; its record and status are written by settle alone.
type pod struct {
	uid       string
	object    *schedulingv1.Pod // as the cluster has it, or had it last
	gone      bool              // the cluster does not have it any more
	record    record
	dirty     bool                    // the record is not on the disk
	status    *schedulingv1.PodStatus // as it is; nil before the first check
	reported  *schedulingv1.PodStatus // as the cluster knows it
	overruled int                     // how often another writer set the pod not ready
	over      bool                    // nothing of it runs, and it is to go
	reclaimed chan struct{}           // closed when the files of its containers are gone; nil before it has ended
	evicted   plan.Verdict            // what the node decided as it ran short of something; zero: nothing

	life    map[string]lifecycle.Container // by container, of object
	courses map[part]*course               // of the present starts
	events  []*schedulingv1.PodEvent       // that are not reported yet

	hostPorts    []plan.HostPort // that lead to it
	refusedPorts []string        // why others do not
	closedPorts  map[plan.HostPort]bool
}

// record is what is written down of a pod. It is not synced to the disk: after a crash of the host no process is left
// for it to mean.
type record struct {
	Boot       string                `json:"boot"`
	Started    time.Time             `json:"started"` // when the agent took it up; zero: not yet
	Ending     time.Time             `json:"ending,omitzero"`
	Verdict    plan.Verdict          `json:"verdict,omitzero"`
	Decided    time.Time             `json:"decided,omitzero"`  // when there was a verdict
	User       uint32                `json:"user,omitempty"`    // that it runs as, and its group's number; 0: the agent's
	Address    string                `json:"address,omitempty"` // its IP address; empty: not chosen yet
	Containers map[string]*container `json:"containers"`
	// uids of the volumes of its claims, by their names in the pod
	Volumes map[string]string `json:"volumes,omitempty"`
	Pod     json.RawMessage   `json:"pod"`
}

// container is what is written down of a container.
type container struct {
	Starts  int        `json:"starts"`
	Since   time.Time  `json:"since,omitzero"`
	ID      string     `json:"id,omitempty"`  // of the last start, as the status has it; empty until it runs
	PID     int        `json:"pid,omitempty"` // in the place of ID, written by an earlier version
	Exit    *plan.Exit `json:"exit,omitempty"`
	Last    *plan.Exit `json:"last,omitempty"`
	Crashes int        `json:"crashes,omitempty"`
	Asked   bool       `json:"asked,omitempty"`
	ImageID string     `json:"imageID,omitempty"`
	// CopyBytes is what the copy of the image's files held of the disk as the last start began; 0: it is not known.
	CopyBytes int64 `json:"copyBytes,omitempty"`
	start           // the last one

	// Checks are what the probes of the last start found.
	Checks         plan.Checks `json:"checks,omitzero"`
	PostStarted    bool        `json:"postStarted,omitempty"` // the hook of the last start is done
	PostStartError string      `json:"postStartError,omitempty"`
	PreStopped     bool        `json:"preStopped,omitempty"`
	Stopping       *plan.Cause `json:"stopping,omitempty"` // why the last start is to end

	awaits   string          // what the last start waits for before it runs
	logged   <-chan struct{} // closed when the log of the last start is complete; nil before its end is known
	obstacle *plan.Obstacle
	job      *job // gets what the next start needs of the image; nil: not begun, or not needed any more

	// By this agent's monotonic clock: when the last start began, was taken over (zero if it was not), was asked to end,
	// and ended.
	began, adopted, askedAt, ended time.Time
}

// elapsed returns when something happened that was written down with the time of the wall clock, by the monotonic
// clock. It is not in the future although the clock was set back.
func elapsed(then, now time.Time) time.Time { return now.Add(-max(0, now.Sub(then))) }

func (s *Pods) dir(uid string) string { return filepath.Join(s.cfg.Dir, uid) }

func (s *Pods) containerDir(uid, name string) string {
	return filepath.Join(s.dir(uid), "containers", name)
}

// load reads the record of a pod. What ran when the machine was restarted has ended.
func (s *Pods) load(uid string) (*pod, error) {
	raw, err := os.ReadFile(filepath.Join(s.dir(uid), recordFile))
	if err != nil {
		return nil, err
	}
	p := &pod{uid: uid, object: &schedulingv1.Pod{}}
	if err := json.Unmarshal(raw, &p.record); err != nil {
		return nil, err
	}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(p.record.Pod, p.object); err != nil {
		return nil, err
	}
	if p.object.GetMetadata().GetUid() != uid || p.record.Started.IsZero() || p.record.Containers == nil ||
		!plainNames(p.object) {
		return nil, errors.New("the record is not whole")
	}
	p.record.Pod = nil // it is kept once
	p.life = lives(p.object)
	p.resume(time.Now())
	if p.record.Address == "" && p.hasStarted() {
		p.record.Address, p.dirty = s.cfg.Address, true
	}
	p.status, p.reported = p.object.GetStatus(), ownPart(p.object.GetStatus())
	why := ""
	if p.record.Boot != s.cfg.BootID {
		p.record.Boot, p.dirty = s.cfg.BootID, true
		why = "the machine was restarted"
	}
	for _, c := range p.record.Containers {
		cause := why
		if cause == "" && c.CRI != nil && s.runtime == nil {
			cause = "its container runtime was ended, and the agent has none any more"
		}
		if cause != "" && c.Starts > 0 && c.Exit == nil {
			c.end(plan.Exit{Code: codeKilled, Reason: plan.StatusUnknown, Message: cause, Finished: time.Now()})
			c.Crashes, p.dirty = 0, true
		}
	}
	return p, nil
}

// resume has the times of a record count on by the monotonic clock.
func (p *pod) resume(now time.Time) {
	for _, at := range []*time.Time{&p.record.Ending, &p.record.Decided} {
		if !at.IsZero() {
			*at = elapsed(*at, now)
		}
	}
	for _, c := range p.record.Containers {
		renumber(&c.ID, &c.PID)
		for _, e := range []*plan.Exit{c.Exit, c.Last} {
			if e != nil {
				renumber(&e.ID, &e.PID)
			}
		}
		if c.Starts > 0 && c.Exit == nil {
			c.began, c.adopted = elapsed(c.Since, now), now
		}
		if c.Exit != nil {
			c.ended = elapsed(c.Exit.Finished, now)
		}
		if c.Stopping != nil {
			c.Stopping.Since = elapsed(c.Stopping.Since, now)
		}
	}
}

// renumber makes an ID of the pid that an earlier version wrote down in its place.
func renumber(id *string, pid *int) {
	if *id == "" && *pid != 0 {
		*id = processID(*pid)
	}
	*pid = 0
}

// save writes a pod's record if it changed.
func (s *Pods) save(p *pod) error {
	s.mu.Lock()
	dirty, object := p.dirty, p.object
	p.dirty = false
	s.mu.Unlock()
	if !dirty {
		return nil
	}
	err := s.write(p, &schedulingv1.Pod{
		ApiVersion: object.GetApiVersion(), Kind: object.GetKind(), Metadata: object.GetMetadata(), Spec: object.GetSpec(),
		Status: p.status,
	})
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		p.dirty = true
		return fmt.Errorf("pod record: %w", err)
	}
	return nil
}

func (s *Pods) write(p *pod, object *schedulingv1.Pod) error {
	raw, err := protojson.Marshal(object)
	if err != nil {
		return err
	}
	r := p.record
	r.Pod = raw
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	path := filepath.Join(s.dir(p.uid), recordFile)
	if err := s.ensureDir(p); err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// end notes how the last start of a container ended.
func (c *container) end(e plan.Exit) {
	e.Started, e.ID = c.Since, c.ID
	if e.Finished.Before(e.Started) {
		e.Finished = e.Started
	}
	if c.Stopping != nil {
		e.Again = c.Stopping.Again
	}
	ran := time.Since(c.began)
	if c.began.IsZero() || !c.adopted.IsZero() { // it may have ended long ago
		ran = e.Finished.Sub(e.Started)
	}
	c.Exit, c.Asked, c.Stopping, c.ended = &e, false, nil, time.Now()
	c.Crashes = plan.Crashes(c.Crashes, ran)
}

const (
	// codeKilled is what a shell makes of a process that was killed.
	codeKilled = 137
	signalBase = 128
	lastSignal = 31
	maxCode    = 255
	maxExit    = 8 << 10 // bytes of a file that says how a start ended
)

func exitFile(dir string, start int) string { return filepath.Join(dir, fmt.Sprintf("exit.%d", start)) }

// howItEnded returns how a container's process ended: what its shim wrote down, else what the supervisor saw. asked
// says that the agent had it end.
func howItEnded(file string, seen process.Exit, asked bool) plan.Exit {
	e, ok := writtenDown(file)
	if !ok {
		e = howItWasSeen(seen, asked)
	}
	if seen.OutOfMemory && !asked && e.Code != 0 {
		e.Reason, e.Message = plan.OutOfMemory, "a process was killed for lack of memory"
	}
	return e
}

// howItWasSeen returns how a container's process ended that wrote nothing down.
func howItWasSeen(seen process.Exit, asked bool) plan.Exit {
	switch {
	case seen.Known && seen.Signal != 0:
		return plan.Exit{Code: signalBase + int(seen.Signal), Signal: int(seen.Signal), Finished: seen.At}
	case seen.Known:
		return plan.Exit{Code: seen.Code, Finished: seen.At}
	case asked:
		return plan.Exit{Code: codeKilled, Signal: codeKilled - signalBase, Finished: seen.At}
	}
	return plan.Exit{
		Code: codeKilled, Reason: plan.StatusUnknown, Message: "it ended while the agent was not running",
		Finished: seen.At,
	}
}

func writtenDown(file string) (plan.Exit, bool) {
	f, err := os.Open(file)
	if err != nil {
		return plan.Exit{}, false
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxExit))
	line, _, whole := strings.Cut(string(text), "\n")
	number, why, _ := strings.Cut(line, " ")
	code, err2 := strconv.Atoi(number)
	// the pod may have written anything
	if err != nil || err2 != nil || !whole && len(text) < maxExit || code < 0 || code > maxCode {
		return plan.Exit{}, false
	}
	e := plan.Exit{Code: code, Finished: time.Now()}
	switch {
	case code == shim.StartFailed && why != "":
		e.Reason, e.Message = plan.StartError, strings.ToValidUTF8(why, "\uFFFD")
	case code > signalBase && code <= signalBase+lastSignal: // as shells report it
		e.Signal = code - signalBase
	}
	if info, err := os.Stat(file); err == nil {
		e.Finished = info.ModTime()
	}
	return e, true
}

// removeOld removes how earlier starts ended.
func removeOld(dir string, start int) error {
	for _, file := range []string{exitFile(dir, start), messageFile(dir)} {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
