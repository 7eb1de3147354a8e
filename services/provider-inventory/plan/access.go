package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
)

// Files of a control-plane host that have its policy and its bearer tokens, as reports name them.
const (
	policyFile = "policy.yaml"
	tokensFile = "tokens"
)

// States of a control-plane host.
const (
	accessInForce = "InForce"
	accessPending = "Pending"
	accessDiffers = "Differs"
	accessAway    = "Away"
)

// accessPatience is how long a host may have other files than those that are recorded before the inventory is Degraded:
// a host replaces them within seconds.
const accessPatience = time.Minute

// AccessView is what decisions about the policy and the bearer tokens of the control-plane hosts depend on.
type AccessView struct {
	Now    time.Time
	Access *hostv1.ClusterAccess // nil: nothing is recorded yet
	Leader string                // host of this process; empty where services do not find each other in etcd
}

// AccessStep is what is done after the report of a host.
type AccessStep struct {
	Status *hostv1.HostAccess // of the host
	Record bool               // the first content is made from the texts of the report
	Wanted bool               // the host is asked for the texts of its files
	Give   bool               // the host gets the texts that its files do not have
	// Reason and Message are of an event of the host, which is recorded before the host gets the texts; empty without one.
	Reason, Message string
	Normal          bool // the event is no warning
}

// SyncAccess decides what to do after the report of a control-plane host. The first content is made from the files of
// the host where the inventory leads. From then on the record is in force: files that differ are replaced. Only those
// of a host that never had the content are kept while it was not confirmed by a user: which of both is right is not
// known.
func SyncAccess(v AccessView, h *hostv1.Host, r *hostv1.SyncAccessRequest) AccessStep {
	before, is := h.GetStatus().GetAccess(), proto.CloneOf(r.GetAccess())
	is.SinceTime, is.State = nil, nil // what a host says of them does not count
	var step AccessStep
	switch {
	case v.Access == nil:
		first := v.Leader != "" && h.GetMetadata().GetName() == v.Leader
		step.Record = first && r.Policy != nil && r.Tokens != nil
		step.Wanted = first && !step.Record
	case len(differing(v.Access, is)) == 0:
		is.State = proto.String("Same")
	case kept(v.Access, is):
		is.State = proto.String("Kept")
		step.Reason, step.Message = "AccessFilesDiffer", keptText(v.Access, is)
	default:
		is.State, step.Give = proto.String("Replacing"), true
		step.Reason, step.Message = replaced(v.Access, is)
		step.Normal = step.Reason == filesReplaced
	}
	step.Status, is.SinceTime = is, timestamppb.New(v.Now.UTC())
	if sameFiles(before, is) { // and was said before
		is.SinceTime, step.Reason, step.Message, step.Normal = before.GetSinceTime(), "", "", false
	}
	return step
}

// sameFiles reports whether a host has reported the same files before, in the same state. What they wait for may
// differ.
func sameFiles(before, is *hostv1.HostAccess) bool {
	if before == nil {
		return false
	}
	before = proto.CloneOf(before)
	before.SinceTime, before.Pending = is.GetSinceTime(), is.Pending
	return proto.Equal(before, is)
}

// differing returns the files of a host that have another content than the record.
func differing(record *hostv1.ClusterAccess, h *hostv1.HostAccess) []string {
	var out []string
	if h.GetPolicyHash() != record.GetPolicyHash() {
		out = append(out, policyFile)
	}
	if h.GetTokensHash() != record.GetTokensHash() {
		out = append(out, tokensFile)
	}
	return out
}

// kept reports whether files that differ are not replaced.
func kept(record *hostv1.ClusterAccess, h *hostv1.HostAccess) bool {
	return record.GetHost() != "" && h.GetGeneration() == 0
}

func keptText(record *hostv1.ClusterAccess, h *hostv1.HostAccess) string {
	return fmt.Sprintf("%s: not the same as on host %s, whose files are recorded, and not replaced: compare them, then "+
		"decide with `windlass auth policy apply -f policy.yaml`", strings.Join(differing(record, h), " and "),
		record.GetHost())
}

// filesReplaced is the reason of an event of a host that had other files when it came, as one that joined by a token
// from before a change.
const filesReplaced = "AccessFilesReplaced"

// replaced returns the event of a host whose files are replaced; empty if that is how it gets a change.
func replaced(record *hostv1.ClusterAccess, h *hostv1.HostAccess) (reason, message string) {
	var changed []string // that already have the recorded content are of no interest
	for _, name := range differing(record, h) {
		if slices.Contains(h.GetChanged(), name) {
			changed = append(changed, name)
		}
	}
	switch {
	case len(changed) > 0:
		return "AccessFilesChanged", fmt.Sprintf("%s changed on the host, and replaced by generation %d: change the policy "+
			"and the tokens of the cluster with `windlass auth`", strings.Join(changed, " and "), record.GetGeneration())
	case h.GetGeneration() == 0:
		return filesReplaced, fmt.Sprintf("%s of the host replaced by generation %d; what they had is kept beside them, as "+
			"policy.yaml.replaced and tokens.replaced", strings.Join(differing(record, h), " and "), record.GetGeneration())
	case h.GetGeneration() > record.GetGeneration():
		return "AccessFilesOutdated", fmt.Sprintf("the host had generation %d of the policy and the tokens, and gets "+
			"generation %d: an older snapshot of etcd was restored; check which tokens and rights that brings back",
			h.GetGeneration(), record.GetGeneration())
	}
	return "", ""
}

// FirstAccess returns the first content, from the files of a host.
func FirstAccess(host, policy, policyHash, tokens, tokensHash string, now time.Time) *hostv1.ClusterAccess {
	return &hostv1.ClusterAccess{
		Generation: 1, Policy: policy, Tokens: tokens, PolicyHash: policyHash, TokensHash: tokensHash,
		PolicyGeneration: 1, TokensGeneration: 1, Host: host, ChangeTime: timestamppb.New(now.UTC()),
	}
}

// AccessRefusal is why a change of the policy or the tokens is refused. Outdated: it was made on an older content.
type AccessRefusal struct {
	Text     string
	Outdated bool
}

func (r *AccessRefusal) Error() string { return r.Text }

// SetAccess returns the content after a change by a user, with the hashes of its texts. It is the present one if that
// is the same: a change whose answer was lost may be repeated. While a host has files of its own, the policy is decided
// on first.
func SetAccess(v AccessView, hosts []*hostv1.Host, r *hostv1.SetClusterAccessRequest, policyHash, tokensHash,
	user string,
) (*hostv1.ClusterAccess, error) {
	is := v.Access
	if is == nil {
		return nil, &AccessRefusal{Text: "the policy and the tokens are not recorded yet: " + notRecorded(v)}
	}
	policyChanges := r.Policy != nil && policyHash != is.GetPolicyHash()
	tokensChange := r.Tokens != nil && tokensHash != is.GetTokensHash()
	for _, part := range []struct {
		name    string
		changed bool
		last    int32
	}{{"policy", policyChanges, is.GetPolicyGeneration()}, {"tokens", tokensChange, is.GetTokensGeneration()}} {
		if part.changed && (r.GetGeneration() < part.last || r.GetGeneration() > is.GetGeneration()) {
			return nil, &AccessRefusal{Outdated: true, Text: fmt.Sprintf(
				"the %s changed in generation %d%s, and this change is based on generation %d: get the present one, make the "+
					"change in it, and apply that", part.name, part.last, lastChange(is), r.GetGeneration())}
		}
	}
	// A change of the policy by a user confirms the first content, also if it is the same. With other tokens no one has
	// decided which policy is right.
	if states, _ := AccessOnHosts(v, hosts); r.Policy == nil {
		for _, h := range states {
			if h.GetState() == accessDiffers {
				return nil, &AccessRefusal{Text: "host " + h.GetName() + " has other files; " + h.GetMessage()}
			}
		}
	}
	if !policyChanges && !tokensChange && (is.GetHost() == "" || r.Policy == nil) {
		return is, nil
	}
	next := proto.CloneOf(is)
	next.Generation++
	if policyChanges {
		next.Policy, next.PolicyHash, next.PolicyGeneration = r.GetPolicy(), policyHash, next.Generation
	}
	if tokensChange {
		next.Tokens, next.TokensHash, next.TokensGeneration = r.GetTokens(), tokensHash, next.Generation
	}
	if r.Policy != nil { // a change of the tokens decides nothing about files that no host has reported yet
		next.Host = ""
	}
	next.ChangedBy, next.ChangeTime = user, timestamppb.New(v.Now.UTC())
	return next, nil
}

// lastChange says who made the last change and when; empty for the first content.
func lastChange(a *hostv1.ClusterAccess) string {
	if a.GetChangedBy() == "" {
		return ""
	}
	return fmt.Sprintf(" (the last change, of generation %d, is by user %q at %s)", a.GetGeneration(), a.GetChangedBy(),
		a.GetChangeTime().AsTime().UTC().Format(time.RFC3339))
}

// notRecorded says what the first record waits for.
func notRecorded(v AccessView) string {
	if v.Leader == "" {
		return "provider-inventory does not run on a host"
	}
	return fmt.Sprintf(
		"they are made from the files of host %s, where provider-inventory leads; `windlass host run` must "+
			"run there, and be of this version", v.Leader)
}

// AccessOnHosts returns the state of each control-plane host, ordered by name, and what is waited for in one line.
func AccessOnHosts(v AccessView, hosts []*hostv1.Host) (out []*hostv1.ClusterAccessHost, waits string) {
	hosts = slices.Clone(hosts)
	slices.SortFunc(hosts, byName)
	var behind []string
	for _, h := range hosts {
		if !HasAuthorities(h) {
			continue
		}
		is := accessOn(v, h)
		out = append(out, is)
		if is.GetState() != accessInForce {
			behind = append(behind, "host "+is.GetName()+": "+is.GetMessage())
		}
	}
	switch {
	case v.Access == nil:
		waits = notRecorded(v)
	case len(out) == 0:
		waits = "hosts: the inventory has no control-plane host"
	case len(behind) > 0:
		waits = fmt.Sprintf("%d of %d hosts: %s", len(behind), len(out), strings.Join(behind, ". "))
	}
	return out, waits
}

func accessOn(v AccessView, h *hostv1.Host) *hostv1.ClusterAccessHost {
	is, s := h.GetStatus().GetAccess(), h.GetStatus()
	out := &hostv1.ClusterAccessHost{
		Name: h.GetMetadata().GetName(), State: accessPending, Generation: is.GetGeneration(),
		PolicyHash: is.GetPolicyHash(), TokensHash: is.GetTokensHash(), SinceTime: is.GetSinceTime(),
	}
	files := differing(v.Access, is)
	switch {
	case s.GetPhase() == Lost:
		out.State, out.SinceTime = accessAway, s.GetLastTransitionTime()
		out.Message = fmt.Sprintf("it is away since %s, and gets the present content when it is back; until then its "+
			"programs, if they run, use what they had", s.GetLastTransitionTime().AsTime().UTC().Format(time.RFC3339))
	case is == nil:
		out.Message = "it has not reported: `windlass host run` must run there, and be of this version or later"
	case v.Access == nil:
		out.Message = "nothing is recorded yet"
	case len(files) > 0 && kept(v.Access, is):
		out.State, out.Message = accessDiffers, keptText(v.Access, is)
	case len(files) > 0:
		out.Message = strings.Join(files, " and ") + " not replaced yet"
		if is.GetPending() != "" {
			out.Message += ": " + is.GetPending()
		}
	case is.GetPending() != "":
		out.Message = is.GetPending()
	case is.GetGeneration() != v.Access.GetGeneration():
		out.Message = "it has not noted the generation yet"
	default:
		out.State = accessInForce
	}
	return out
}

// AccessFault returns why the inventory is Degraded: control-plane hosts that are not away have other files than those
// that are recorded. Empty if none does.
func AccessFault(v AccessView, hosts []*hostv1.Host) (reason, message string) {
	if v.Access == nil {
		return "", ""
	}
	states, _ := AccessOnHosts(v, hosts)
	var bad []string
	for _, h := range states {
		replacing := v.Now.Sub(later(h.GetSinceTime(), v.Access.GetChangeTime())) <= accessPatience
		files := differing(v.Access, &hostv1.HostAccess{PolicyHash: &h.PolicyHash, TokensHash: &h.TokensHash})
		if h.GetState() == accessDiffers ||
			h.GetState() == accessPending && h.GetSinceTime() != nil && len(files) > 0 && !replacing {
			bad = append(bad, "host "+h.GetName()+": "+h.GetMessage())
		}
	}
	if len(bad) == 0 {
		return "", ""
	}
	return "AccessFilesDiffer", "control-plane hosts have other rights or bearer tokens in force: " +
		strings.Join(bad, ". ")
}

func later(a, b *timestamppb.Timestamp) time.Time {
	if a.AsTime().After(b.AsTime()) {
		return a.AsTime()
	}
	return b.AsTime()
}
