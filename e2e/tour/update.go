package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

// channel is that of the tour's graph.
const channel = "tour"

// updated is how long an update may take, its nodes included.
const updated = 5 * time.Minute

// update brings the cluster to a new release, after it has refused two that are not as they should be.
func (t *tour) update(ctx context.Context) (err error) {
	o, err := t.startOperators(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	before, err := t.atOneVersion(ctx, o)
	if err != nil {
		return err
	}
	v, err := versionsAfter(before.GetStatus().GetDesired().GetVersion())
	if err != nil {
		return err
	}
	u := &upgrade{tour: t, versions: v, operators: o, created: time.Now()}
	for _, part := range []func(context.Context, *updatev1.ClusterVersion) error{
		u.offer, u.refuseTampered,
		u.refuseForeign, u.follow, u.look, u.dropAndGoBack, u.renew,
	} {
		if err := part(ctx, before); err != nil {
			return err
		}
	}
	t.paragraph(
		`The graph recommended one update and knew risks of three others. Whatever was not what it said it was, or not signed by a key that is trusted, was refused and changed nothing. `+
			`The update to %s was completed after %.1f s; outside of the work of its operators and nodes it took %.1f s. The nodes, one of a pool after the other, had the `+
			`machine configuration that came with it after %.1f s. A later release dropped something and brought more: what it dropped was removed, and what it brought was removed on the way back. Then a release brought Windlass itself.`, v.next, u.took.Seconds(), u.own.Seconds(),
		u.rolled.Seconds())
	return u.restore(ctx, before)
}

// upgrade is one update while it goes on.
type upgrade struct {
	*tour
	versions
	operators *operators
	created   time.Time     // of the release that is good
	image     string        // of it
	took, own time.Duration // until it was completed, and how much of that was Windlass' own
	rolled    time.Duration // until all nodes had the configuration that came with it
}

// clearUpdate takes back what an update left that was interrupted: a desired release that is refused, and a graph
// that is gone.
func (t *tour) clearUpdate(ctx context.Context) error {
	cv, err := t.cluster.version(ctx)
	if err != nil {
		return err
	}
	ours := func(place string) bool { return strings.Contains(place, "/"+dirPrefix) }
	var undo [][]string
	if ours(cv.GetSpec().GetDesiredUpdate().GetImage()) {
		undo = append(undo, []string{"adm", "upgrade", "--clear"})
	}
	if ours(cv.GetSpec().GetUpstream()) {
		undo = append(undo, []string{"adm", "upgrade", "--upstream", ""}, []string{"adm", "upgrade", "channel"})
	}
	for _, args := range undo {
		if _, err := t.windlass(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// atOneVersion waits until the cluster is at one version, with its nodes, which it may not be after a tour that was
// interrupted.
func (t *tour) atOneVersion(ctx context.Context, o *operators) (*updatev1.ClusterVersion, error) {
	var cv *updatev1.ClusterVersion
	err := within(ctx, updated, "the cluster at one version, with its operators", func(ctx context.Context) (bool, string,
		error,
	) {
		var err error
		if cv, err = t.cluster.version(ctx); err != nil {
			return false, "", err
		}
		wrong, err := t.operatorsNotAt(ctx, cv.GetStatus().GetDesired().GetVersion())
		h := cv.GetStatus().GetHistory()
		return err == nil && len(wrong) == 0 && len(h) > 0 && h[0].GetState() == "Completed",
			fmt.Sprintf("history %v, operators %v\n%s", h, wrong, o.said()), err
	})
	if err != nil {
		return nil, err
	}
	return cv, within(ctx, updated, "all nodes at the version of the cluster", func(ctx context.Context) (bool, string,
		error,
	) {
		wrong, err := t.nodesNotAt(ctx, cv.GetStatus().GetDesired().GetVersion())
		if err != nil || len(wrong) > 0 {
			return false, strings.Join(wrong, "\n"), err
		}
		return t.ready(ctx)
	})
}

// nodesNotAt returns the nodes on which the file that the release brings does not say a version. The first release
// brings no such file.
func (t *tour) nodesNotAt(ctx context.Context, version string) ([]string, error) {
	nodes, err := t.cluster.listNodes(ctx)
	var wrong []string
	for _, name := range names(nodes) {
		raw, err := os.ReadFile(t.file(name, "etc", "windlass-release"))
		if errors.Is(err, fs.ErrNotExist) && version == firstVersion {
			continue
		}
		if strings.TrimSpace(string(raw)) != version {
			wrong = append(wrong, fmt.Sprintf("/etc/windlass-release of %s: %q, %v", name, raw, err))
		}
	}
	return wrong, err
}

// operatorsNotAt returns the operators that do not say that they are at a version, and well.
func (t *tour) operatorsNotAt(ctx context.Context, version string) ([]string, error) {
	var wrong []string
	for _, name := range operatorNames() {
		co, err := t.cluster.reports.GetClusterOperator(ctx, &updatev1.GetClusterOperatorRequest{Name: name}, patient)
		if err != nil {
			return nil, err
		}
		s := co.GetStatus()
		at := slices.ContainsFunc(s.GetVersions(), func(v *updatev1.OperandVersion) bool {
			return v.GetName() == "operator" &&
				v.GetVersion() == version
		})
		if !at || conditionIn(s.GetConditions(), "Available").GetStatus() != "True" ||
			conditionIn(s.GetConditions(), "Degraded").GetStatus() != "False" {
			wrong = append(wrong, fmt.Sprintf("%s: %s", name, s))
		}
	}
	return wrong, nil
}

// conditionIn returns the condition of a type, nil if there is none.
func conditionIn(list []*metav1.Condition, name string) *metav1.Condition {
	for _, c := range list {
		if c.GetType() == name {
			return c
		}
	}
	return nil
}

// offer makes a release and offers it beside others that have risks.
func (u *upgrade) offer(ctx context.Context, before *updatev1.ClusterVersion) error {
	var err error
	u.image, err = u.newRelease(ctx, u.next, u.now, u.releases("images"), u.releases("signing-key.asc"),
		u.releases("signatures"), u.created)
	if err != nil {
		return err
	}
	u.saw("%s", u.image)
	upstream, err := u.graph(u.versions, before.GetStatus().GetDesired().GetImage(), u.image)
	if err != nil {
		return err
	}
	for _, args := range [][]string{{"adm", "upgrade", "--upstream", upstream}, {"adm", "upgrade", "channel", channel}} {
		if _, err := u.windlass(ctx, args...); err != nil {
			return err
		}
	}
	var status *updatev1.ClusterVersionStatus
	err = within(ctx, answers, "update "+u.next+" recommended, three others not, and the queries of their risks evaluated",
		func(ctx context.Context) (bool, string, error) {
			cv, err := u.cluster.version(ctx)
			status = cv.GetStatus()
			evaluated := 0
			for _, c := range status.GetConditionalUpdates() {
				for _, r := range c.GetRisks() {
					for _, o := range r.GetOutcomes() {
						if o.GetAttempted() != nil {
							evaluated++
						}
					}
				}
			}
			return len(status.GetAvailableUpdates()) == 1 && len(status.GetConditionalUpdates()) == 3 && evaluated == 2,
				fmt.Sprint(status), err
		})
	if err != nil {
		return err
	}
	out, err := u.windlass(ctx, "adm", "upgrade", "--include-not-recommended")
	if err != nil {
		return err
	}
	u.saw("%s", strings.TrimSpace(out))
	all, err := u.windlass(ctx, "adm", "upgrade", "recommend")
	if err != nil {
		return err
	}
	u.saw("%s", strings.TrimSpace(all))
	one, err := u.windlass(ctx, "adm", "upgrade", "recommend", "--version", u.next)
	if err != nil {
		return err
	}
	u.saw("%s", strings.TrimSpace(one))
	if _, err := u.windlass(ctx, "adm", "upgrade", "recommend", "--version", u.risky); err == nil {
		return fmt.Errorf("the update to %s is said to have no issues", u.risky)
	}
	recommended := map[string]string{}
	for _, c := range status.GetConditionalUpdates() {
		recommended[c.GetRelease().GetVersion()] = conditionIn(c.GetConditions(), "Recommended").GetStatus()
	}
	available := status.GetAvailableUpdates()[0]
	return u.check(
		expect(available.GetVersion() == u.next && available.GetImage() == u.image, "an available update "+u.next+", "+
			u.image,
			"%s", available),
		expect(recommended[u.risky] == "False", u.risky+" with Recommended=False", "%v", recommended),
		expect(recommended[u.unsure] == "Unknown", u.unsure+" with Recommended=Unknown", "%v", recommended),
		expect(recommended[u.judged] == "False", u.judged+" with Recommended=False, by a metric of the cluster", "%v",
			recommended),
		mentions("windlass adm upgrade --include-not-recommended", out, "Recommended updates:", u.next, u.risky,
			"Recommended: False", "LedgerLosesCents", u.unsure, "Recommended: Unknown", "BeaconTooSlow",
			"returns 0", u.judged, "Archives that version 1 began cannot be opened."),
		mentions("windlass adm upgrade recommend", all, u.next, "no known issues relevant to this cluster", u.risky,
			"LedgerLosesCents", u.unsure, u.judged),
		mentions("windlass adm upgrade recommend --version "+u.next, one, "has no known issues relevant to this cluster",
			"VerifyPayload", "Passed", "Manifests: "))
}

// refuseTampered asks for the same release from a copy in which one byte is another.
func (u *upgrade) refuseTampered(ctx context.Context, before *updatev1.ClusterVersion) error {
	layout := filepath.Join(u.dir, "tampered")
	image, err := u.newRelease(ctx, u.next, u.now, layout, "", "", u.created)
	if err != nil {
		return err
	}
	if err := tamper(layout); err != nil {
		return err
	}
	_, digest, _ := strings.Cut(image, "@")
	u.saw("one byte of it was changed; its name is that of the good one, which is signed")
	return u.refused(ctx, before, "oci:"+layout+"@"+digest, "digest",
		expect(image == u.image, "the same name for the same manifests, "+u.image, "%s", image))
}

// refuseForeign asks for a release that a stranger has signed.
func (u *upgrade) refuseForeign(ctx context.Context, before *updatev1.ClusterVersion) error {
	keys, layout := filepath.Join(u.dir, "foreign-keys"), filepath.Join(u.dir, "foreign")
	if _, err := u.windlass(ctx, "adm", "release", "keygen", "--to", keys); err != nil {
		return err
	}
	image, err := u.newRelease(ctx, u.next, u.now, layout, filepath.Join(keys, "signing-key.asc"),
		u.releases("signatures"), u.created.Add(time.Second))
	if err != nil {
		return err
	}
	_, digest, _ := strings.Cut(image, "@")
	defer os.RemoveAll(u.releases("signatures", strings.Replace(digest, ":", "=", 1)))
	return u.refused(ctx, before, "oci:"+layout+"@"+digest, "cannot be verified")
}

// refused asks for an image, and checks that it is refused for a reason that has some words, and that nothing came of
// it.
func (u *upgrade) refused(ctx context.Context, before *updatev1.ClusterVersion, image, words string,
	more ...fact,
) error {
	if _, err := u.windlass(ctx, "adm", "upgrade", "--to-image", image, "--allow-explicit-upgrade"); err != nil {
		return err
	}
	var c *metav1.Condition
	err := within(ctx, answers, "ReleaseAccepted=False", func(ctx context.Context) (bool, string, error) {
		cv, err := u.cluster.version(ctx)
		c = conditionIn(cv.GetStatus().GetConditions(), "ReleaseAccepted")
		return c.GetStatus() == "False", fmt.Sprint(cv.GetStatus().GetConditions()), err
	})
	if err != nil {
		return err
	}
	u.saw("ReleaseAccepted=False, %s: %s", c.GetReason(), c.GetMessage())
	cv, err := u.cluster.version(ctx)
	if err != nil {
		return err
	}
	was, is := history(before), history(cv)
	if err := u.check(append(more,
		expect(strings.Contains(c.GetMessage(), words), "refused because of: "+words, "%s", c.GetMessage()),
		expect(was == is, "history as before: "+was, "%s", is),
		expect(cv.GetStatus().GetDesired().GetVersion() == u.now, "the cluster at "+u.now, "at %s",
			cv.GetStatus().GetDesired()))...); err != nil {
		return err
	}
	if _, err := u.windlass(ctx, "adm", "upgrade", "--clear"); err != nil {
		return err
	}
	return within(ctx, answers, "ReleaseAccepted=True once the desired update is cleared",
		func(ctx context.Context) (bool, string, error) {
			cv, err := u.cluster.version(ctx)
			c := conditionIn(cv.GetStatus().GetConditions(), "ReleaseAccepted")
			return c.GetStatus() == "True", fmt.Sprint(c), err
		})
}

// history returns what was installed, the newest first.
func history(cv *updatev1.ClusterVersion) string {
	var out []string
	for _, h := range cv.GetStatus().GetHistory() {
		out = append(out, fmt.Sprintf("%s %s %s", h.GetVersion(), h.GetState(), h.GetImage()))
	}
	return strings.Join(out, ", ")
}

// follow updates the cluster and prints what happens until all of it is at the new version, its nodes included.
func (u *upgrade) follow(ctx context.Context, _ *updatev1.ClusterVersion) error {
	limited, cancel := context.WithTimeout(ctx, updated)
	defer cancel()
	pools, err := u.rollouts(ctx)
	if err != nil {
		return err
	}
	g, watching := errgroup.WithContext(limited)
	seen := make(chan observation)
	w := witness{u.cluster, seen}
	if err := w.watch(watching, g); err != nil {
		cancel()
		return errors.Join(err, g.Wait())
	}
	began := time.Now()
	_, err = u.windlass(ctx, "adm", "upgrade", "--to", u.next)
	var done time.Time
	if err == nil {
		done, err = u.listen(watching, seen, pools, began)
	}
	cancel()
	if err := errors.Join(err, g.Wait()); err != nil {
		return err
	}
	busy := u.operators.work(u.next)
	var facts []fact
	for _, role := range sortedKeys(pools) {
		busy = append(busy, pools[role].span())
		facts = append(facts, pools[role].facts()...)
	}
	facts = append(facts, pools["master"].safe())
	u.took, u.own, u.rolled = done.Sub(began), outside(began, done, busy), time.Since(began)
	return u.check(append(facts, u.gates()...)...)
}

// rollouts returns a rollout for each pool.
func (u *upgrade) rollouts(ctx context.Context) (map[string]*rollout, error) {
	out := map[string]*rollout{}
	for _, role := range []string{"worker", "master"} {
		nodes, err := u.nodesOfRole(ctx, role)
		if err != nil {
			return nil, err
		}
		out[role] = newRollout(nodes)
	}
	return out, nil
}

// listen prints what happens until the update is completed and all nodes have been through, and returns when it was
// completed.
func (u *upgrade) listen(ctx context.Context, seen <-chan observation, pools map[string]*rollout,
	began time.Time,
) (done time.Time, err error) {
	const every = 20 * time.Millisecond
	tick := time.NewTicker(every)
	defer tick.Stop()
	waits := map[string]bool{}
	var cv *updatev1.ClusterVersion
	for done.IsZero() || !pools["worker"].over() || !pools["master"].over() {
		select {
		case o := <-seen:
			for _, role := range sortedKeys(pools) {
				if o.quorum != nil && role != "master" {
					continue
				}
				for _, line := range pools[role].add(o) {
					u.moment(time.Since(began), line)
				}
			}
			continue
		case <-tick.C:
		case <-ctx.Done():
			return done,
				mismatch{{
					expected: "an update to " + u.next + " within " + updated.String(),
					seen:     fmt.Sprintf("%s\n%s", cv.GetStatus(), u.operators.said()),
				}}
		}
		if cv, err = u.cluster.version(ctx); err != nil {
			continue // it says so again, or the time is over
		}
		u.progress(cv, waits, time.Since(began))
		if h := cv.GetStatus().GetHistory(); done.IsZero() && len(h) > 0 && h[0].GetVersion() == u.next &&
			h[0].GetState() == "Completed" {
			done = time.Now()
			u.moment(done.Sub(began), "the update is completed")
		}
	}
	return done, nil
}

// progress prints what an update waits for, each only once.
func (u *upgrade) progress(cv *updatev1.ClusterVersion, before map[string]bool, after time.Duration) {
	p := cv.GetStatus().GetProgress()
	for _, w := range p.GetWaits() {
		what := strings.ToLower(w.GetObject().GetKind()) + "/" + w.GetObject().GetName()
		if before[what] {
			continue
		}
		before[what] = true
		u.moment(after, fmt.Sprintf("run level %s, %d of %d done: waits for %s", p.GetRunLevel(), p.GetDone(), p.GetTotal(),
			what))
	}
}

// gates says that each operator worked when the update came to it: the first two side by side, the last one after them.
func (u *upgrade) gates() []fact {
	began, ended := map[string]time.Time{}, map[string]time.Time{}
	for _, s := range u.operators.work(u.next) {
		name, _, _ := strings.Cut(s.what, " ")
		began[name], ended[name] = s.since, s.until
	}
	var facts []fact
	for _, name := range operatorNames() {
		facts = append(facts, expect(!ended[name].IsZero(), name+" at "+u.next, "%s", u.operators.said()))
	}
	return append(facts,
		expect(began["archive"].Before(ended["ledger"]) && began["ledger"].Before(ended["archive"]),
			"archive and ledger, of one run level, side by side", "%s", u.operators.said()),
		expect(!began["beacon"].Before(ended["ledger"]) && !began["beacon"].Before(ended["archive"]),
			"beacon, of a later run level, after both", "%s", u.operators.said()))
}

// look checks that everything is at the new version and says so.
func (u *upgrade) look(ctx context.Context, before *updatev1.ClusterVersion) error {
	cv, err := u.cluster.version(ctx)
	if err != nil {
		return err
	}
	wrong, err := u.operatorsNotAt(ctx, u.next)
	if err != nil {
		return err
	}
	other, err := u.nodesNotAt(ctx, u.next)
	if err != nil {
		return err
	}
	h := cv.GetStatus().GetHistory()[0]
	facts := []fact{
		expect(len(wrong) == 0, "all operators at "+u.next, "%v", wrong),
		expect(len(other) == 0, "/etc/windlass-release of each node says "+u.next, "%s", strings.Join(other, "; ")),
		expect(h.GetState() == "Completed" && h.GetVersion() == u.next && h.GetImage() == u.image && h.GetVerified(),
			"history: "+u.next+" completed and verified", "%s", h),
		expect(strings.HasSuffix(history(cv), history(before)), "what was before in the history", "%s", history(cv)),
	}
	for _, ask := range []struct {
		kind  string
		words []string
	}{
		{"clusterversion", []string{u.next, "Cluster version is " + u.next}},
		{"co", append(operatorNames(), u.next, "AVAILABLE", "PROGRESSING", "DEGRADED")},
	} {
		out, err := u.windlass(ctx, "get", ask.kind)
		if err != nil {
			return err
		}
		u.saw("%s", strings.TrimSpace(narrow(out)))
		facts = append(facts, mentions("windlass get "+ask.kind, out, ask.words...))
	}
	return u.check(facts...)
}

// restore removes the tour's graph and desired update.
func (u *upgrade) restore(ctx context.Context, before *updatev1.ClusterVersion) error {
	for _, args := range [][]string{
		{"--clear"},
		{"--upstream", before.GetSpec().GetUpstream()},
		{"channel", before.GetSpec().GetChannel()},
	} {
		if _, err := u.windlass(ctx, append([]string{"adm", "upgrade"}, args...)...); err != nil {
			return err
		}
	}
	return within(ctx, settled, "all pools and all nodes at rest", u.ready)
}
