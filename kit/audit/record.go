// Package audit keeps the audit logs of a program: files of JSON lines in which each record carries the hash of the one
// before, so that a record that was changed, removed or inserted shows (Verify).
//
// A program has three logs, in files and chains of their own, so that none can push out another's records: audit.log
// has changes, each written before it is made; reads.log has reads of what may be confidential; refusals.log has what
// was refused. Reads and refusals are counted per caller, verb, resource and minute. Records can be sent to sinks
// beyond the host, which never hold a caller up.
//
// It leaves to others which calls are recorded (kit/identity), and protection against a user who may write the files:
// such a user can make a new chain, which only a comparison with the copy of a sink shows.
package audit

import (
	"fmt"
	"time"
	"unicode/utf8"
)

const (
	// maxField bounds each text of a record, in bytes: what a caller sends must not fill the disk.
	maxField = 256
	// maxGroups bounds the groups of a record.
	maxGroups = 16
)

// Record is one line of an audit log.
type Record struct {
	// Seq counts the records of a log from 1. Prev is the SHA-256 of the line before, in hex, without its newline; empty
	// in the first. The log sets both.
	Seq  uint64 `json:"seq,omitempty"`
	Prev string `json:"prev,omitempty"`

	Time      time.Time `json:"time"`
	Stage     string    `json:"stage,omitempty"` // of a change: Requested or Completed
	Event     string    `json:"event,omitempty"` // of a record that is about no call: one of the Event constants
	RequestID string    `json:"requestID,omitempty"`
	User      string    `json:"user,omitempty"`
	Groups    []string  `json:"groups,omitempty"`
	Via       string    `json:"via,omitempty"`    // who spoke for the user
	Source    string    `json:"source,omitempty"` // address of the client
	Service   string    `json:"service,omitempty"`
	Method    string    `json:"method,omitempty"`
	Verb      string    `json:"verb,omitempty"`
	Group     string    `json:"group,omitempty"`
	Resource  string    `json:"resource,omitempty"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name,omitempty"`
	Detail    string    `json:"detail,omitempty"` // what else matters: the command of an exec, the file of an event
	// ResourceVersionBefore is the one the caller had read, After the one the change got; empty where not known.
	ResourceVersionBefore string  `json:"resourceVersionBefore,omitempty"`
	ResourceVersionAfter  string  `json:"resourceVersionAfter,omitempty"`
	Decision              string  `json:"decision,omitempty"` // Allow or Deny
	Reason                string  `json:"reason,omitempty"`
	Code                  string  `json:"code,omitempty"` // gRPC code of the answer; empty at the stage Requested
	LatencyMs             float64 `json:"latencyMs,omitempty"`
	// Count, LastTime and LastSource are of reads and refusals that came after the first of their kind in a minute, and
	// Count also of records that were lost.
	Count      uint64     `json:"count,omitempty"`
	LastTime   *time.Time `json:"lastTime,omitempty"`
	LastSource string     `json:"lastSource,omitempty"`
	// Hash is what an event is about: of a file that was removed, its last line's; of a policy, the file's.
	Hash string `json:"hash,omitempty"`
}

// Stages of a change. A change that was requested and has no completion was refused by the service, failed, or was cut
// off: whether it was made, only the object itself shows.
const (
	Requested = "requested"
	Completed = "completed"
)

// Decisions of a Record.
const (
	Allow = "allow"
	Deny  = "deny"
)

// Events of records that are about no call.
const (
	EventBegun    = "begun"    // the first record of a log; with another number than 1, records before it are missing
	EventRotated  = "rotated"  // the first record of a file; Detail is the name of the file before
	EventRepaired = "repaired" // the end of a line that a crash had cut off was removed; Detail has it
	EventLost     = "lost"     // Count records could not be written
	EventRetired  = "retired"  // an older file, Detail, is removed by the retention policy; Hash is that of its last line
	EventPolicy   = "policy"   // another policy is in force; Hash is its file's
	EventTokens   = "tokens"   // other bearer tokens are in force; Hash is their file's
	EventIssue    = "issue"    // a credential was issued; Name has its user, Detail what it is
)

// cut bounds what comes from callers.
func (r Record) cut() Record {
	for _, field := range []*string{
		&r.RequestID, &r.User, &r.Via, &r.Source, &r.Service, &r.Method, &r.Verb, &r.Group, &r.Resource, &r.Namespace,
		&r.Name, &r.Detail,
		&r.ResourceVersionBefore, &r.ResourceVersionAfter, &r.Reason, &r.LastSource,
	} {
		*field = cutText(*field)
	}
	groups := r.Groups
	if len(groups) > maxGroups {
		groups = append(append([]string(nil), groups[:maxGroups]...), fmt.Sprintf("…[%d groups]", len(groups)))
	}
	for i, g := range groups {
		if len(g) > maxField {
			groups = append([]string(nil), groups...)
			groups[i] = cutText(g)
		}
	}
	r.Groups = groups
	return r
}

// cutText returns s if it has at most maxField bytes, else its beginning and its length.
func cutText(s string) string {
	if len(s) <= maxField {
		return s
	}
	note := fmt.Sprintf("…[%d bytes]", len(s))
	keep := maxField - len(note)
	for range utf8.UTFMax {
		if utf8.RuneStart(s[keep]) {
			break
		}
		keep--
	}
	return s[:keep] + note
}
