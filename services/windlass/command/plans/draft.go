package plans

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/proto"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
)

// releaseQuestion is which release a plan is about, and what it is planned for.
type releaseQuestion struct {
	*flags
	names, dir, mode, version string
	jobs                      []string
	removals                  bool

	// Each replaces what the ClusterVersion has, if it is given.
	baseline   string
	additional []string
	overrides  []string // TYPE/NAME
}

// check returns what is wrong with the flags.
func (q *releaseQuestion) check(args []string) error {
	given := 0
	for _, is := range []bool{len(args) == 1, q.names != "", q.dir != ""} {
		if is {
			given++
		}
	}
	if given != 1 {
		return errors.New("specify a release, or its manifests with --from-dir DIR, or their names with --manifests FILE")
	}
	for _, flag := range []struct {
		name  string
		given bool
	}{
		{"-f", len(q.Names) > 0},
		{"--baseline-capability-set", q.baseline != ""},
		{"--additional-enabled-capabilities", len(q.additional) > 0},
		{"--override", len(q.overrides) > 0},
	} {
		if flag.given && q.dir == "" {
			return fmt.Errorf("%s is only allowed together with --from-dir", flag.name)
		}
	}
	switch q.baseline {
	case "", "None", "vCurrent":
		return nil
	}
	return fmt.Errorf("--baseline-capability-set %q: must be None or vCurrent", q.baseline)
}

// request returns the request of a plan. What the cluster has goes along with files, which are compared with nothing
// else.
func (q *releaseQuestion) request(ctx context.Context, e *session.Env, c *client.Client, args []string) (
	*updatev1.PlanReleaseRequest, error,
) {
	req := &updatev1.PlanReleaseRequest{
		Name: strings.Join(args, ""), Mode: q.mode, Version: q.version, Jobs: q.jobs, Removals: q.removals,
	}
	switch {
	case q.names != "":
		text, err := os.ReadFile(q.names)
		req.Manifests = strings.Fields(string(text))
		return req, err
	case q.dir == "":
		return req, nil
	}
	var err error
	if req.Files, err = filesOf(q.dir); err != nil {
		return nil, err
	}
	if len(q.Names) == 0 {
		err = ofCluster(ctx, c, req)
	} else {
		var g given
		if g, err = readGiven(e, q.flags, "ClusterVersion", "Release"); err == nil {
			err = g.release(req)
		}
	}
	if err != nil {
		return nil, err
	}
	return req, q.replace(ctx, e, req)
}

// filesOf returns the manifests in a directory.
func filesOf(dir string) ([]*updatev1.PlanReleaseRequest_File, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []*updatev1.PlanReleaseRequest_File
	for _, entry := range entries {
		switch filepath.Ext(entry.Name()) {
		case ".yaml", ".yml", ".json":
		default:
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, err
		}
		out = append(out, &updatev1.PlanReleaseRequest_File{Name: entry.Name(), Content: content})
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: there are no files that end with .yaml, .yml or .json", dir)
	}
	return out, nil
}

// ofCluster sets what the cluster applies of the files: its capabilities, what it leaves alone, and what its releases
// have brought.
func ofCluster(ctx context.Context, c *client.Client, req *updatev1.PlanReleaseRequest) error {
	cv, err := updatev1.NewClusterVersionServiceClient(c.Conn()).GetClusterVersion(ctx,
		&updatev1.GetClusterVersionRequest{})
	if err != nil {
		return err
	}
	var releases []*updatev1.Release
	if req.GetRemovals() {
		list, err := updatev1.NewReleaseServiceClient(c.Conn()).ListReleases(ctx, &updatev1.ListReleasesRequest{})
		if err != nil {
			return err
		}
		releases = list.GetItems()
	}
	return plannedFor(req, cv, releases, "the cluster has")
}

// release sets what a request is planned for to the objects of a file.
func (g given) release(req *updatev1.PlanReleaseRequest) error {
	versions, releases := all[*updatev1.ClusterVersion](g), all[*updatev1.Release](g)
	if len(versions) > 1 {
		return fmt.Errorf("the file must contain at most one ClusterVersion, not %d", len(versions))
	}
	if len(versions) > 0 || !req.GetRemovals() {
		return plannedFor(req, first[*updatev1.ClusterVersion](g), releases, "the file contains")
	}
	if len(releases) != 1 {
		return fmt.Errorf("with --removals, the file must contain one Release, or a ClusterVersion that says which, not %d",
			len(releases))
	}
	req.Inventory = releases[0].GetStatus().GetInventory()
	return nil
}

// plannedFor sets what a request is planned for. The inventory is that of the release that the ClusterVersion is at or
// on its way to; has says where the releases are from.
func plannedFor(req *updatev1.PlanReleaseRequest, cv *updatev1.ClusterVersion, releases []*updatev1.Release,
	has string,
) error {
	req.Capabilities, req.Overrides = cv.GetSpec().GetCapabilities(), cv.GetSpec().GetOverrides()
	if !req.GetRemovals() {
		return nil
	}
	image := cv.GetStatus().GetDesired().GetImage()
	for _, r := range releases {
		if image != "" && r.GetSpec().GetImage() == image {
			req.Inventory = r.GetStatus().GetInventory()
			return nil
		}
	}
	if image == "" {
		return errors.New("the ClusterVersion is at no release, and so there is no inventory to compare with")
	}
	return fmt.Errorf("%s no Release of the image %s, and so no inventory to compare with", has, image)
}

// replace sets what the flags say instead of the ClusterVersion.
func (q *releaseQuestion) replace(ctx context.Context, e *session.Env, req *updatev1.PlanReleaseRequest) error {
	if q.baseline != "" || len(q.additional) > 0 {
		c := &updatev1.Capabilities{}
		if req.GetCapabilities() != nil {
			c = proto.CloneOf(req.GetCapabilities())
		}
		if q.baseline != "" {
			c.BaselineCapabilitySet = q.baseline
		}
		if len(q.additional) > 0 {
			c.AdditionalEnabledCapabilities = q.additional
		}
		req.Capabilities = c
	}
	if len(q.overrides) == 0 {
		return nil
	}
	req.Overrides = nil
	for _, arg := range q.overrides {
		if !strings.Contains(arg, "/") {
			return fmt.Errorf("--override %q: must be TYPE/NAME, such as deployment/beacon", arg)
		}
		groups, err := target.Parse(ctx, e, []string{arg})
		if err != nil {
			return fmt.Errorf("--override %q: %w", arg, err)
		}
		k := groups[0].Kind
		o := &updatev1.ComponentOverride{
			Kind: k.GetKind(), Group: k.GetGroup(), Name: groups[0].Names[0], Unmanaged: proto.Bool(true),
		}
		if k.GetNamespaced() {
			o.Namespace = e.NamespaceOf(k)
		}
		req.Overrides = append(req.Overrides, o)
	}
	return nil
}
