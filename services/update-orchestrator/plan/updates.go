package plan

import (
	"cmp"
	"fmt"
	"net/url"
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
	metadataURL          = "url"
	metadataChannels     = "io.openshift.upgrades.graph.release.channels"
	metadataArchitecture = "release.openshift.io/architecture"
)

// notRetrieved is RetrievedUpdates=False.
func notRetrieved(reason, format string, args ...any) *metav1.Condition {
	return condition(RetrievedUpdates, False, reason, fmt.Sprintf(format, args...))
}

// Ask returns the address to ask for the graph, or the RetrievedUpdates condition that says why nothing is asked. A
// file:// address of spec comes back as it is. version is the one that is reconciled, arch the processor architecture
// as in amd64.
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
	Results map[string]string             // True, False or Unknown, by the risk's name: wins over the rules
	Accept  []string                      // names of risks that are accepted; others may be named too
	Before  []*updatev1.ConditionalUpdate // the last outcome, for the times of its conditions
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
		return Updates{Retrieved: notRetrieved(versionNotFound,
			"Unable to retrieve available updates: currently reconciling cluster version %s not found in the %q channel",
			q.Version, q.Channel)}
	}
	current, err := q.Graph.Nodes[at].reference()
	if err != nil {
		return Updates{Retrieved: AskFailed(responseInvalid, err)}
	}
	u := Updates{Current: current, Retrieved: condition(RetrievedUpdates, True, "", "")}
	plain, err := q.plain(at)
	if err != nil {
		u.Retrieved = AskFailed(responseInvalid, err)
		return u
	}
	u.Available = plain
	found, err := q.conditional()
	if err != nil {
		u.Retrieved = AskFailed(responseInvalid, err)
		newestFirst(u.Available)
		return u
	}
	u.Available = slices.DeleteFunc(u.Available, func(r *updatev1.ReleaseReference) bool {
		return len(found[identity(r)]) > 0
	})
	for _, same := range found {
		if len(same) > 1 { // two sets of risks for one image: which one holds is unknown
			continue
		}
		c, ok := q.assess(same[0])
		if !ok {
			continue
		}
		u.Conditional = append(u.Conditional, c)
		if Find(c.Conditions, Recommended).GetStatus() == True {
			u.Available = append(u.Available, proto.CloneOf(c.GetRelease()))
		}
	}
	newestFirst(u.Available)
	slices.SortFunc(u.Conditional, func(a, b *updatev1.ConditionalUpdate) int {
		return compareReleases(b.GetRelease(), a.GetRelease())
	})
	return u
}

// plain returns the targets of the plain edges of a node.
func (q Query) plain(at int) ([]*updatev1.ReleaseReference, error) {
	var out []*updatev1.ReleaseReference
	seen := map[int]bool{}
	for _, e := range q.Graph.Edges {
		if e[0] != at || seen[e[1]] {
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

// conditional returns the targets of the conditional edges of the version, by the identity of releases.
func (q Query) conditional() (map[string][]*updatev1.ConditionalUpdate, error) {
	out := map[string][]*updatev1.ConditionalUpdate{}
	for _, group := range q.Graph.Conditional {
		for _, e := range group.Edges {
			if e.From != q.Version {
				continue
			}
			to := q.Graph.find(e.To)
			if to < 0 {
				return nil, fmt.Errorf("no node for conditional update %s", e.To)
			}
			r, err := q.Graph.Nodes[to].reference()
			if err != nil {
				return nil, err
			}
			out[identity(r)] = append(out[identity(r)], &updatev1.ConditionalUpdate{Release: r, Risks: group.Risks})
		}
	}
	return out, nil
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
	switch arch := n.Metadata[metadataArchitecture]; arch {
	case "":
	case "multi":
		r.Architecture = "Multi"
	default:
		return nil, fmt.Errorf("invalid architecture for %s: %q", n.Version, arch)
	}
	if list := n.Metadata[metadataChannels]; list != "" {
		r.Channels = strings.Split(list, ",")
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
