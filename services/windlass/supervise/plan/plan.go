// Package plan decides from which executable a program of a cluster runs: when it changes to that of a release, when
// that counts as up, and when the program goes back to the one that it had before.
package plan

import (
	"fmt"
	"strings"
	"time"

	"github.com/windlass-dev/windlass/kit/supervision"
)

// What is expected of a program that was started from another executable.
const (
	// Settled is how long it must be ready without a break.
	Settled = 3 * time.Second
	// Patience is how long that may take. Time in which no other program is ready either does not count: then etcd or the
	// machine is the cause.
	Patience = time.Minute
	// MostStarts is how often it may be started in that time: a program that keeps exiting does not come up.
	MostStarts = 3
)

// Pauses between two tries to get an executable.
const (
	firstRetry = 2 * time.Second
	mostRetry  = 5 * time.Minute
	ownRetry   = time.Minute // to go back to the executable of the cluster, which did not come up
)

// Executable is what a program runs from. The zero Image is the executable that the cluster was started with.
type Executable struct {
	Image   string `json:"image,omitempty"` // by digest
	Version string `json:"version"`
}

// Record is what is kept on disk of a program. It is written before the program is started from what it says.
type Record struct {
	Running  Executable `json:"running"`
	Previous Executable `json:"previous,omitzero"`
	// OnTrial means that Running was not up yet, so that the program may have to go back to Previous. Generation is that
	// of the Program that wanted Running, 0 if none did.
	OnTrial    bool  `json:"onTrial,omitempty"`
	Generation int32 `json:"generation,omitempty"`
	// Refused is what the program did not come up from.
	Refused *Refusal `json:"refused,omitempty"`
}

// Refusal is why a program does not run from what is wanted. It ends when something else is wanted.
type Refusal struct {
	Executable
	Generation int32     `json:"generation"` // of the Program that wanted it
	Reason     string    `json:"reason"`     // one CamelCase word
	Message    string    `json:"message"`
	At         time.Time `json:"at"`
}

// Wanted is what the cluster wants a program to run from.
type Wanted struct {
	Executable
	Generation int32
}

// Reasons of the condition Progressing, beyond those of kit/supervision.
const (
	RolledBack = "RolledBack" // it did not come up
	CannotRun  = "CannotRun"  // the executable is none for this machine, or of another version
	NotFetched = "NotFetched" // the image cannot be read
	Fetching   = "Fetching"   // the image is read
	Returning  = "Returning"  // the process of what it ran from before is not there yet
	NotStarted = "NotStarted" // it could not be written down that the program changes
)

// View is what is known of a program.
type View struct {
	Record
	Wanted Wanted
	Known  bool // Wanted is what the cluster wants now; else it cannot be asked

	// Staged means that the executable of Wanted is on this machine and can be run. StageErr is why it is not, if that was
	// tried; Unfit that another try makes no sense. Tries is how often it was tried in vain, Tried when last.
	Staged   bool
	StageErr string
	Unfit    bool
	Tries    int
	Tried    time.Time

	// Other is a program that changes, and that this one waits for; empty if none is. Turn is what the program waits for
	// until it is this host's turn; empty if it is, and where the cluster is on one machine.
	Other string
	Turn  string
	Held  bool // Turn is this host's, which must not begin

	// Elsewhere means that the process still runs from something else than the record says.
	Elsewhere bool

	// Trial is how long the trial has lasted, without the time that does not count. ReadyFor is how long the program has
	// been ready as the present process; 0 if it is not. Starts is how often it was started in the trial, Last the end of
	// its log.
	Trial    time.Duration
	ReadyFor time.Duration
	Starts   int
	Last     string

	Now time.Time
}

// Verb is what is to be done.
type Verb string

// What is to be done. Switch, Settle and Return are done by writing Next.Record, and starting the program from what it
// says.
const (
	Nothing Verb = ""
	Stage   Verb = "Stage"  // fetch the executable of Wanted, and look whether it can be run
	Switch  Verb = "Switch" // start the program from Wanted
	Settle  Verb = "Settle" // it is up
	Return  Verb = "Return" // start it from what it ran from before
)

// Next is what to do with a program, and what to say of it.
type Next struct {
	Verb   Verb
	Record Record // as it is to be

	Progressing     bool // it changes to what is wanted
	Reason, Message string
}

// Program says what to do with a program.
func Program(v View) Next {
	n := Next{Record: v.Record}
	switch {
	case v.OnTrial:
		return trial(v, n)
	case !v.Known:
		return n
	case v.Running == v.Wanted.Executable:
		n.Reason, n.Message = supervision.Updated, "It runs version "+v.Running.Version+" from "+place(v.Running)+"."
		if v.Elsewhere {
			n.Progressing, n.Reason = true, Returning
			n.Message = "It is started with version " + v.Running.Version + " from " + place(v.Running) + "."
		}
		if v.Refused != nil { // what is wanted has changed since
			n.Verb, n.Record.Refused = Settle, nil
		}
		return n
	case refuses(v):
		n.Reason, n.Message = v.Refused.Reason, v.Refused.Message
		return n
	case v.Unfit:
		n.Verb, n.Reason = Settle, CannotRun
		n.Message = fmt.Sprintf("It runs version %s from %s, since that of the release cannot be run: %s.",
			v.Running.Version, place(v.Running), v.StageErr)
		n.Record.Refused = &Refusal{v.Wanted.Executable, v.Wanted.Generation, n.Reason, n.Message, v.Now.UTC()}
		return n
	case !v.Staged: // also while it waits, so that nothing is fetched when it is its turn
		return fetch(v, n)
	case v.Other != "":
		n.Progressing, n.Reason = true, supervision.AwaitsPrograms
		n.Message = fmt.Sprintf("It waits for %s, which changes its executable.", v.Other)
		return n
	case v.Turn != "":
		n.Progressing, n.Reason = true, supervision.AwaitsTurn
		if v.Held {
			n.Reason = supervision.TurnHeld
		}
		n.Message = fmt.Sprintf("It has the executable of version %s, and waits: %s.", v.Wanted.Version, v.Turn)
		return n
	}
	n.Verb = Switch
	n.Record = Record{
		Running: v.Wanted.Executable, Previous: v.Running, OnTrial: true, Generation: v.Wanted.Generation,
	}
	n.Progressing, n.Reason, n.Message = true, supervision.Starting, starting(v.Wanted.Executable)
	return n
}

// refuses reports whether what is wanted is what the program did not come up from.
func refuses(v View) bool {
	if v.Refused == nil || v.Refused.Executable != v.Wanted.Executable || v.Refused.Generation != v.Wanted.Generation {
		return false
	}
	// There is no other way back than to the executable of the cluster.
	return v.Wanted.Image != "" || v.Now.Sub(v.Refused.At) < ownRetry
}

func fetch(v View, n Next) Next {
	n.Progressing, n.Reason = true, Fetching
	n.Message = fmt.Sprintf("Its executable is read from %s.", v.Wanted.Image)
	again := v.Tried.Add(min(firstRetry<<min(max(v.Tries-1, 0), 10), mostRetry))
	if v.StageErr != "" {
		n.Reason = NotFetched
		n.Message = fmt.Sprintf("Its executable cannot be read from %s: %s. It is tried again at %s.", v.Wanted.Image,
			v.StageErr, again.UTC().Format(time.RFC3339))
	}
	if v.StageErr == "" || !v.Now.Before(again) {
		n.Verb = Stage
	}
	return n
}

// trial says what to do with a program that was started from another executable.
func trial(v View, n Next) Next {
	n.Progressing, n.Reason, n.Message = true, supervision.Starting, starting(v.Running)
	var why string
	switch {
	case v.ReadyFor >= Settled:
		n.Verb, n.Record.OnTrial = Settle, false
		n.Reason = supervision.Updated
		n.Message = "It runs version " + v.Running.Version + " from " + place(v.Running) + "."
		n.Progressing = v.Known && v.Running != v.Wanted.Executable
		return n
	case v.Starts > MostStarts:
		why = "it exits after each start"
	case v.Trial >= Patience:
		why = fmt.Sprintf("it was not ready for %s within %s", Settled, Patience)
	default:
		return n
	}
	if v.Last != "" {
		why += "; its log ends with: " + strings.TrimSpace(v.Last)
	}
	// What is wanted by now may be something else, which was not tried.
	other := v.Wanted.Executable != v.Running || v.Wanted.Generation != v.Generation
	n.Verb, n.Reason = Return, RolledBack
	n.Progressing = v.Known && other
	n.Message = fmt.Sprintf("It was taken back to version %s from %s, since it did not come up with version %s: %s.",
		v.Previous.Version, place(v.Previous), v.Running.Version, strings.TrimSuffix(why, "."))
	n.Record = Record{
		Running: v.Previous, Refused: &Refusal{v.Running, v.Generation, n.Reason, n.Message, v.Now.UTC()},
	}
	return n
}

func starting(e Executable) string {
	return fmt.Sprintf("It was started with version %s from %s and must be ready for %s.", e.Version, place(e), Settled)
}

func place(e Executable) string {
	if e.Image == "" {
		return "the executable that the cluster was started with"
	}
	return e.Image
}
