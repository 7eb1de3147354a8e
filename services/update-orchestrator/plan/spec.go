package plan

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	"google.golang.org/protobuf/proto"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

// uuid4 is a random UUID. Source: RFC 4122, version 4.
var uuid4 = regexp.MustCompile(`(?i)^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// ValidateSpec returns the faults of the spec of a ClusterVersion, which depend on its status too.
func ValidateSpec(cv *updatev1.ClusterVersion) []Problem {
	var out []Problem
	spec := cv.GetSpec()
	if !uuid4.MatchString(spec.GetClusterId()) {
		out = append(out, Problem{"spec.clusterID", fmt.Sprintf("%q must be a random (version 4) UUID", spec.GetClusterId())})
	}
	if u := spec.GetUpstream(); u != "" && !address(u, "http", "https", "file") {
		out = append(out, Problem{"spec.upstream", fmt.Sprintf("%q must be an http, https or file address", u)})
	}
	for i, s := range spec.GetSignatureStores() {
		if !address(s.GetUrl(), "http", "https", "file") {
			out = append(out, Problem{
				fmt.Sprintf("spec.signatureStores[%d].url", i),
				fmt.Sprintf("%q must be an http, https or file address", s.GetUrl()),
			})
		}
	}
	return append(out, desiredProblems(cv)...)
}

func address(s string, schemes ...string) bool {
	u, err := url.Parse(s)
	return err == nil && slices.Contains(schemes, u.Scheme)
}

// desiredProblems returns what is wrong with spec.desiredUpdate.
func desiredProblems(cv *updatev1.ClusterVersion) []Problem {
	const at = "spec.desiredUpdate"
	d := cv.GetSpec().GetDesiredUpdate()
	if d == nil {
		return nil
	}
	if arch := d.GetArchitecture(); arch != "" {
		switch {
		case arch != "Multi":
			return []Problem{{at + ".architecture", fmt.Sprintf(`%q must be "Multi" or absent`, arch)}}
		case d.GetImage() != "":
			return []Problem{{at + ".architecture", "must not be given together with an image"}}
		case d.GetVersion() == "":
			return []Problem{{at + ".version", "must be given with an architecture"}}
		}
	}
	if d.GetVersion() == "" {
		return nil
	}
	if _, err := semver.StrictNewVersion(d.GetVersion()); err != nil {
		return []Problem{{at + ".version", fmt.Sprintf("%q is no semantic version", d.GetVersion())}}
	}
	if d.GetImage() != "" {
		return nil
	}
	switch n := len(payloads(cv, d.GetVersion())); {
	case n > 1:
		return []Problem{{at + ".version", "there are multiple possible payloads for this version, specify the exact image"}}
	case n == 0 && past(cv, d.GetVersion()) == nil:
		return []Problem{{at + ".version", "when image is empty the update must be an available update or in the history"}}
	}
	return nil
}

// payloads returns the available updates of a version that have an image, each image once. Where the desired update
// names an architecture, others than releases of that do not count: the list may be from before the move.
func payloads(cv *updatev1.ClusterVersion, version string) []*updatev1.ReleaseReference {
	var out []*updatev1.ReleaseReference
	multi := cv.GetSpec().GetDesiredUpdate().GetArchitecture() == Multi
	for _, r := range cv.GetStatus().GetAvailableUpdates() {
		same := func(o *updatev1.ReleaseReference) bool { return o.GetImage() == r.GetImage() }
		if multi && r.GetArchitecture() != Multi {
			continue
		}
		if r.GetVersion() == version && r.GetImage() != "" && !slices.ContainsFunc(out, same) {
			out = append(out, r)
		}
	}
	return out
}

// past returns the release of a version at which the cluster has been last, or on its way to it; nil if it never was.
func past(cv *updatev1.ClusterVersion, version string) *updatev1.ReleaseReference {
	for _, h := range cv.GetStatus().GetHistory() {
		if h.GetVersion() == version && h.GetImage() != "" {
			return &updatev1.ReleaseReference{Version: proto.String(version), Image: proto.String(h.GetImage())}
		}
	}
	return nil
}

// SameImage reports whether two references are of one image. Digests count, names do not. A reference without a digest
// is that of the image to which its name was resolved once, name@digest: where the name points later is another matter.
func SameImage(a, b string) bool {
	x, digest, exact := strings.Cut(a, "@")
	y, other, alike := strings.Cut(b, "@")
	if exact && alike {
		return digest == other
	}
	return a != "" && x == y
}

// InvalidCondition returns the condition Invalid for the faults of a spec; nil without faults, and it is not shown
// then.
func InvalidCondition(problems []Problem) *metav1.Condition {
	if len(problems) == 0 {
		return nil
	}
	if len(problems) == 1 {
		return condition(Invalid, True, "InvalidClusterVersion", "The cluster version is invalid: "+problems[0].Error())
	}
	text := "The cluster version is invalid:"
	for _, p := range problems {
		text += "\n* " + p.Error()
	}
	return condition(Invalid, True, "InvalidClusterVersion", text)
}

// Desired returns the release of spec.desiredUpdate, its image filled in from the available updates or else from the
// history; nil means to stay at status.desired. A desired update that is invalid, or names a version that is not on
// offer, is ignored.
func Desired(cv *updatev1.ClusterVersion) *updatev1.ReleaseReference {
	d := cv.GetSpec().GetDesiredUpdate()
	if d.GetVersion() == "" && d.GetImage() == "" || len(desiredProblems(cv)) > 0 {
		return nil
	}
	status := cv.GetStatus()
	if d.GetImage() == "" {
		if found := payloads(cv, d.GetVersion()); len(found) == 1 {
			return proto.CloneOf(found[0])
		}
		return past(cv, d.GetVersion())
	}
	offers := slices.Clone(status.GetAvailableUpdates())
	for _, c := range status.GetConditionalUpdates() {
		offers = append(offers, c.GetRelease())
	}
	for _, r := range offers {
		if r.GetImage() == d.GetImage() && (d.GetVersion() == "" || d.GetVersion() == r.GetVersion()) {
			return proto.CloneOf(r)
		}
	}
	r := &updatev1.ReleaseReference{Image: proto.String(d.GetImage())}
	if d.GetVersion() != "" {
		r.Version = proto.String(d.GetVersion())
	}
	return r
}
