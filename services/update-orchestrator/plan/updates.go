package plan

import (
	"cmp"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"
	"google.golang.org/protobuf/proto"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

// Reasons of RetrievedUpdates=False.
const (
	noUpstream            = "NoUpstream"
	invalidURI            = "InvalidURI"
	invalidID             = "InvalidID"
	noArchitecture        = "NoArchitecture"
	noCurrentVersion      = "NoCurrentVersion"
	noChannel             = "NoChannel"
	invalidCurrentVersion = "InvalidCurrentVersion"
	remoteFailed          = "RemoteFailed"    // no answer
	responseFailed        = "ResponseFailed"  // an answer other than 200, or one that breaks off
	responseInvalid       = "ResponseInvalid" // an answer that makes no sense
	versionNotFound       = "VersionNotFound"
)

// Keys of a node's metadata.
const (
	metadataURL      = "url"
	metadataChannels = "io.openshift.upgrades.graph.release.channels"
	// MetadataArchitecture is "multi" for releases for all processors, also in the metadata of a release.
	MetadataArchitecture = "release.openshift.io/architecture"
)

// notRetrieved is RetrievedUpdates=False.
func notRetrieved(reason, format string, args ...any) *metav1.Condition {
	return condition(RetrievedUpdates, False, reason, fmt.Sprintf(format, args...))
}

// Ask returns the address to ask for the graph, or the RetrievedUpdates condition that says why nothing is asked. A
// file:// address of spec comes back as it is. version is the one that is reconciled, arch the architecture to ask for:
// see Architecture.
func Ask(spec *updatev1.ClusterVersionSpec, version, arch string) (string, *metav1.Condition) {
	upstream := spec.GetUpstream()
	if upstream == "" {
		return "", notRetrieved(noUpstream, "spec.upstream names no update service, so no updates are looked for.")
	}
	address, err := url.Parse(upstream)
	if err != nil || !slices.Contains([]string{"http", "https", "file"}, address.Scheme) {
		return "", notRetrieved(invalidURI, "spec.upstream %q is no http, https or file address.", upstream)
	}
	switch {
	case !uuid4.MatchString(spec.GetClusterId()):
		return "", notRetrieved(invalidID, "spec.clusterID %q is no random (version 4) UUID.", spec.GetClusterId())
	case arch == "":
		return "", notRetrieved(noArchitecture, "The processor architecture of the cluster is not known.")
	case version == "":
		return "", notRetrieved(noCurrentVersion, "The cluster has no version yet from which updates could lead.")
	case spec.GetChannel() == "":
		return "", notRetrieved(noChannel, "The update channel has not been configured.")
	}
	if _, err := semver.StrictNewVersion(version); err != nil {
		return "", notRetrieved(invalidCurrentVersion, "The current version %q is no semantic version.", version)
	}
	if address.Scheme == "file" {
		return upstream, nil
	}
	query := address.Query()
	query.Set("arch", arch)
	query.Set("channel", spec.GetChannel())
	query.Set("id", spec.GetClusterId())
	query.Set("version", version)
	address.RawQuery = query.Encode()
	return address.String(), nil
}

// Multi is the architecture of releases for all processors.
const Multi = "Multi"

// Architecture returns the architecture to ask for the graph of: that of the processors, such as amd64, or "multi" for
// a cluster that has such a release or is to have one.
func Architecture(cv *updatev1.ClusterVersion, processors string) string {
	if cv.GetStatus().GetDesired().GetArchitecture() == Multi || ToMulti(cv) {
		return "multi"
	}
	return processors
}

// ToMulti reports whether a cluster is to move from a release for one kind of processor to one for all.
func ToMulti(cv *updatev1.ClusterVersion) bool {
	return cv.GetSpec().GetDesiredUpdate().GetArchitecture() == Multi &&
		cv.GetStatus().GetDesired().GetArchitecture() != Multi
}

// AskFailed is the RetrievedUpdates condition for a request that failed for a reason: RemoteFailed, ResponseFailed or
// ResponseInvalid.
func AskFailed(reason string, err error) *metav1.Condition {
	return notRetrieved(reason, "Unable to retrieve available updates: %v", err)
}

// keepLists is how long the lists of the last good answer are shown while requests fail.
const keepLists = 24 * time.Hour

// Keep reports whether the lists of the last good answer, which came at a time, may still be shown after a failed
// request. RemoteFailed, ResponseFailed and ResponseInvalid keep them for 24 hours, everything else clears them at
// once.
func Keep(failed *metav1.Condition, at, now time.Time) bool {
	passing := slices.Contains([]string{remoteFailed, responseFailed, responseInvalid}, failed.GetReason())
	return passing && now.Sub(at) < keepLists
}

// Query is what an evaluation of updates depends on.
type Query struct {
	Graph   *Graph
	Version string                        // version to start from
	Channel string                        // for what is said
	ToMulti bool                          // as the function of that name says
	Results map[string]string             // True, False or Unknown, by the risk's name: wins over the rules
	Answers map[string]Answer             // by query: what came of evaluations since the last outcome
	Accept  []string                      // names of risks that are accepted; others may be named too
	Before  []*updatev1.ConditionalUpdate // the last outcome, for the times of its conditions and for results of queries
	Now     time.Time                     // for the times of conditions; zero leaves them out
}

// Updates is the outcome of an evaluation.
type Updates struct {
	Current     *updatev1.ReleaseReference // what the graph says of the version it started from; nil if it is not there
	Available   []*updatev1.ReleaseReference
	Conditional []*updatev1.ConditionalUpdate
	Retrieved   *metav1.Condition // RetrievedUpdates, without time
}

// Evaluate returns the updates that a graph offers to a version, both lists with the newest first. An update that is
// plain and conditional is conditional; a conditional one that is recommended is in both lists.
func Evaluate(q Query) Updates {
	if _, err := semver.StrictNewVersion(q.Version); err != nil {
		return Updates{Retrieved: notRetrieved(invalidCurrentVersion, "The current version %q is no semantic version.",
			q.Version)}
	}
	at := q.Graph.find(q.Version)
	if at < 0 {
		c := notRetrieved(versionNotFound,
			"Unable to retrieve available updates: currently reconciling cluster version %s not found in the %q channel",
			q.Version, q.Channel)
		if q.Graph != nil && q.Graph.Skipped > 0 {
			c.Message = proto.String(fmt.Sprintf("%s; of the graph %d parts make no sense, the first is %v", c.GetMessage(),
				q.Graph.Skipped, q.Graph.FirstSkipped))
		}
		return Updates{Retrieved: c}
	}
	current, err := q.Graph.Nodes[at].reference()
	if err != nil {
		return Updates{Retrieved: AskFailed(responseInvalid, err)}
	}
	u := Updates{Current: current, Retrieved: condition(RetrievedUpdates, True, "", q.notes(at))}
	if q.ToMulti {
		// The graph is the one of releases for all processors: first the cluster gets the same version of these.
		switch {
		case !digested(current.GetImage()):
			u.Retrieved = AskFailed(responseInvalid, fmt.Errorf("no %s release of %s is offered: %s", Multi, q.Version,
				noDigest(q.Graph.Nodes[at])))
		case current.GetArchitecture() != Multi:
			u.Retrieved = AskFailed(responseInvalid, fmt.Errorf("the graph has no %s release of %s", Multi, q.Version))
		default:
			u.Available = []*updatev1.ReleaseReference{current}
		}
		u.Current = nil // what it says is of another release
		return u
	}
	plain, err := q.plain(at)
	if err != nil {
		u.Retrieved = AskFailed(responseInvalid, err)
		return u
	}
	u.Available = plain
	found, err := q.conditional()
	u.Available = slices.DeleteFunc(u.Available, func(r *updatev1.ReleaseReference) bool {
		return len(found[identity(r)]) > 0
	})
	if err != nil {
		u.Retrieved = AskFailed(responseInvalid, err)
		newestFirst(u.Available)
		return u
	}
	var sole []*updatev1.ConditionalUpdate
	for _, same := range found {
		if len(same) == 1 { // with two sets of risks for one image it is not known which one holds
			sole = append(sole, same[0])
		}
	}
	u.Available, u.Conditional = q.judge(u.Available, sole)
	size := 0
	for _, r := range u.Available {
		size += proto.Size(r)
	}
	for _, c := range u.Conditional {
		size += mostOf(c)
	}
	if size > maxListed {
		return Updates{Current: u.Current, Retrieved: AskFailed(responseInvalid, fmt.Errorf(
			"the graph leads from %s to %d updates with %d bytes of text, more than the %d that can be stored", q.Version,
			len(u.Available)+len(u.Conditional), size, maxListed))}
	}
	return u
}

// Judge judges the risks of the last outcome again: by the answers that came since, by what is accepted now, and
// without results that no longer count. available are the updates that were available then. It needs no graph.
func Judge(q Query, available []*updatev1.ReleaseReference) ([]*updatev1.ReleaseReference,
	[]*updatev1.ConditionalUpdate,
) {
	plain := slices.DeleteFunc(slices.Clone(available), func(r *updatev1.ReleaseReference) bool {
		return slices.ContainsFunc(q.Before, func(b *updatev1.ConditionalUpdate) bool {
			return identity(b.GetRelease()) == identity(r)
		})
	})
	return q.judge(plain, q.Before)
}

// judge returns the available updates and the conditional ones, both with the newest first; those that are recommended
// are both. plain are the updates without risks.
func (q Query) judge(plain []*updatev1.ReleaseReference, risky []*updatev1.ConditionalUpdate) (
	available []*updatev1.ReleaseReference, conditional []*updatev1.ConditionalUpdate,
) {
	available = plain
	for _, u := range risky {
		c, ok := q.assess(u)
		if !ok {
			continue
		}
		conditional = append(conditional, c)
		if Find(c.Conditions, Recommended).GetStatus() == True {
			available = append(available, proto.CloneOf(c.GetRelease()))
		}
	}
	newestFirst(available)
	slices.SortFunc(conditional, func(a, b *updatev1.ConditionalUpdate) int {
		return compareReleases(b.GetRelease(), a.GetRelease())
	})
	return available, conditional
}

// mostOf returns how many bytes a conditional update may take at most, whatever comes of its queries: what is listed
// must not depend on that.
func mostOf(u *updatev1.ConditionalUpdate) int {
	const others = 512 // names, types, reasons, times and versions of conditions and outcomes
	size := proto.Size(u.GetRelease()) + others
	for _, r := range u.GetRisks() {
		text := len(r.GetUrl()) + len(r.GetMessage())
		size += 2*text + 4*len(r.GetName()) + others // in the risk, and in the condition of the update
		for _, rule := range r.GetMatchingRules() {
			size += 2*len(rule.GetPromql().GetPromql()) + 3*maxWhy + others
		}
	}
	return size
}

// maxListed is how many bytes the lists of updates may have: they are part of an object.
const maxListed = 512 << 10

// digest ends a payload that names one image permanently.
var digest = regexp.MustCompile(`@sha256:[a-zA-Z0-9=_-]+$`)

func digested(payload string) bool { return digest.MatchString(payload) }

// undigested returns the targets of the version at a node that are not offered since their payloads have no digest:
// what a tag names may change after it was checked.
func (q Query) undigested(at int) []Node {
	var out []Node
	add := func(n Node) {
		if !digested(n.Payload) && !slices.ContainsFunc(out, func(o Node) bool { return o.Version == n.Version }) {
			out = append(out, n)
		}
	}
	for _, e := range q.Graph.Edges {
		if e[0] == at && e[1] != at {
			add(q.Graph.Nodes[e[1]])
		}
	}
	for _, group := range q.Graph.Conditional {
		for _, e := range group.Edges {
			if to := q.Graph.find(e.To); e.From == q.Version && to >= 0 {
				add(q.Graph.Nodes[to])
			}
		}
	}
	return out
}

// noDigest says why a release is not offered.
func noDigest(n Node) string {
	if n.Payload == "" {
		return "the graph names no payload for it"
	}
	return fmt.Sprintf("its payload %s has no digest (@sha256:…)", n.Payload)
}

// maxNoted bounds the releases that a message names.
const maxNoted = 10

// notes returns what of the graph is left out; empty for nothing.
func (q Query) notes(at int) string {
	var out []string
	left := q.undigested(at)
	for _, n := range left[:min(len(left), maxNoted)] {
		out = append(out, fmt.Sprintf("%s is not offered: %s.", n.Version, noDigest(n)))
	}
	if len(left) > maxNoted {
		out = append(out, fmt.Sprintf("So are %d more.", len(left)-maxNoted))
	}
	if n := q.Graph.Skipped; n > 0 {
		out = append(out,
			fmt.Sprintf("Of the graph %d parts make no sense and are left out, since they concern no update of %s; "+
				"the first is %v", n, q.Version, q.Graph.FirstSkipped))
	}
	return strings.Join(out, " ")
}

// plain returns the targets of the plain edges of a node.
func (q Query) plain(at int) ([]*updatev1.ReleaseReference, error) {
	var out []*updatev1.ReleaseReference
	seen := map[int]bool{}
	for _, e := range q.Graph.Edges {
		if e[0] != at || e[1] == at || seen[e[1]] || !digested(q.Graph.Nodes[e[1]].Payload) {
			continue
		}
		seen[e[1]] = true
		r, err := q.Graph.Nodes[e[1]].reference()
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// conditional returns the targets of the conditional edges of the version, by the identity of releases. Its error is
// about the first one that makes no sense; the others are returned all the same.
func (q Query) conditional() (map[string][]*updatev1.ConditionalUpdate, error) {
	out := map[string][]*updatev1.ConditionalUpdate{}
	var wrong error
	for _, group := range q.Graph.Conditional {
		for _, e := range group.Edges {
			if e.From != q.Version {
				continue
			}
			to := q.Graph.find(e.To)
			if to < 0 {
				wrong = firstOf(wrong, fmt.Errorf("no node for conditional update %s", e.To))
				continue
			}
			if !digested(q.Graph.Nodes[to].Payload) {
				continue
			}
			r, err := q.Graph.Nodes[to].reference()
			if err != nil {
				wrong = firstOf(wrong, err)
				continue
			}
			out[identity(r)] = append(out[identity(r)], &updatev1.ConditionalUpdate{Release: r, Risks: group.Risks})
		}
	}
	return out, wrong
}

// identity identifies a release: the image, or the version where a graph names no images.
func identity(r *updatev1.ReleaseReference) string { return cmp.Or(r.GetImage(), r.GetVersion()) }

// reference returns what status says of a node.
func (n Node) reference() (*updatev1.ReleaseReference, error) {
	r := &updatev1.ReleaseReference{Version: proto.String(n.Version), Url: n.Metadata[metadataURL]}
	if n.Payload != "" {
		r.Image = proto.String(n.Payload)
	}
	if _, err := url.ParseRequestURI(r.Url); r.Url != "" && err != nil {
		return nil, fmt.Errorf("invalid URL for %s: %q", n.Version, r.Url)
	}
	switch arch := n.Metadata[MetadataArchitecture]; arch {
	case "":
	case "multi":
		r.Architecture = Multi
	default:
		return nil, fmt.Errorf("invalid architecture for %s: %q", n.Version, arch)
	}
	if list := n.Metadata[metadataChannels]; list != "" {
		for _, channel := range strings.Split(list, ",") {
			if channel = strings.TrimSpace(channel); channel != "" {
				r.Channels = append(r.Channels, channel)
			}
		}
		slices.Sort(r.Channels)
		r.Channels = slices.Compact(r.Channels)
	}
	return r, nil
}

func newestFirst(list []*updatev1.ReleaseReference) {
	slices.SortFunc(list, func(a, b *updatev1.ReleaseReference) int { return compareReleases(b, a) })
}

func compareReleases(a, b *updatev1.ReleaseReference) int {
	return cmp.Or(compareVersions(a.GetVersion(), b.GetVersion()), strings.Compare(identity(a), identity(b)))
}

// compareVersions orders semantic versions; what is none comes first.
func compareVersions(a, b string) int {
	x, errX := semver.StrictNewVersion(a)
	y, errY := semver.StrictNewVersion(b)
	switch {
	case errX != nil && errY != nil:
		return strings.Compare(a, b)
	case errX != nil:
		return -1
	case errY != nil:
		return 1
	}
	return cmp.Or(x.Compare(y), strings.Compare(a, b))
}
