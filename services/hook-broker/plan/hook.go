// Package plan decides about the tasks of lifecycle hooks: which tasks a machine has, who may claim, renew, complete
// and fail them, when a claim has run out, what is overdue, and what is known of a hook's owner. It does no I/O and
// reads no clock: the same view always gives the same plan. Views and the messages in them are never modified.
package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Points of a machine's deletion at which hooks hold it.
const (
	PreDrain     = "PreDrain"     // before the node is drained
	PreTerminate = "PreTerminate" // before the instance is deleted
)

// drained is the condition of a machine that says that its drain is over.
const drained = "Drained"

// Hook is a lifecycle hook at its point.
type Hook struct{ Point, Name, Owner string }

// Holding returns the hooks that hold a machine now, in the order of its spec: those before the drain
// from the moment that deletion is requested, those before the end of the instance once the drain is over. A nil
// machine has none.
func Holding(m *machinev1.Machine) []Hook {
	if m == nil || !object.Deleting(m) {
		return nil
	}
	if object.IsTrue(m.GetStatus().GetConditions(), drained) {
		return at(PreTerminate, m.GetSpec().GetLifecycleHooks().GetPreTerminate())
	}
	return at(PreDrain, m.GetSpec().GetLifecycleHooks().GetPreDrain())
}

// Hooks returns all hooks of a machine, whether or not they hold it now.
func Hooks(m *machinev1.Machine) []Hook {
	h := m.GetSpec().GetLifecycleHooks()
	return append(at(PreDrain, h.GetPreDrain()), at(PreTerminate, h.GetPreTerminate())...)
}

func at(point string, hooks []*machinev1.LifecycleHook) []Hook {
	out := make([]Hook, 0, len(hooks))
	for _, h := range hooks {
		out = append(out, Hook{Point: point, Name: h.GetName(), Owner: h.GetOwner()})
	}
	return out
}

// uidShown is how much of a machine's uid the name of a task shows: enough for people to distinguish machines.
const uidShown = 8

// taskName returns the name of a hook's task, a DNS name such as "3f2a9c41-predrain-8d0b6a1f2e". It is always the same
// for the same hook of the same machine; machine is the machine's uid.
func taskName(machine string, h Hook) string {
	shown := dashed(machine)
	shown = strings.Trim(shown[:min(len(shown), uidShown)], "-")
	if shown == "" {
		shown = "machine"
	}
	return shown + "-" + strings.ToLower(h.Point) + "-" + hash(10, machine, h.Point, h.Name, h.Owner)
}

const ownerHash = 8

// OwnerName returns the name of the HookOwner of an owner: the owner itself where that is a DNS name
// ("my-backup-controller"), and otherwise what it looks like as one, and a short hash ("clusteroperator.etcd-" and
// eight digits).
func OwnerName(owner string) string {
	if len(validation.IsDNS1123Subdomain(owner)) == 0 && !looksHashed.MatchString(owner) {
		return owner
	}
	const most = validation.DNS1123SubdomainMaxLength - ownerHash - 1
	var parts []string
	for _, p := range strings.Split(strings.ReplaceAll(owner, "/", "."), ".") {
		if p = strings.Trim(dashed(p), "-"); p != "" {
			parts = append(parts, p)
		}
	}
	shown := strings.Join(parts, ".")
	shown = strings.Trim(shown[:min(len(shown), most)], "-.")
	if shown == "" {
		shown = "owner"
	}
	return shown + "-" + hash(ownerHash, owner)
}

// looksHashed matches owners that could be taken for the name of another: these get a hash of their own.
var looksHashed = regexp.MustCompile(`-[0-9a-f]{8}$`)

// dashed returns s in lower case, with a dash for whatever has no place in a DNS label.
func dashed(s string) string {
	return strings.Map(func(r rune) rune {
		if (r >= 'a' && r <= 'z') || (r >= '0' && r <= '9') {
			return r
		}
		return '-'
	}, strings.ToLower(s))
}

// hash returns so many hexadecimal digits of a hash of parts.
func hash(digits int, parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:])[:digits]
}
