package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/clusteroperator"
	"github.com/windlass-dev/windlass/kit/maintenance"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/kit/topology"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/services/update-orchestrator/apply"
	"github.com/windlass-dev/windlass/services/update-orchestrator/kinds"
	"github.com/windlass-dev/windlass/services/update-orchestrator/payloads"
	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// Steps at which a release is refused: reasons of the condition ReleaseAccepted.
const (
	retrievePayload      = "RetrievePayload"
	verifyPayload        = plan.VerifyPayload
	loadPayload          = "LoadPayload"
	verifyPayloadVersion = "VerifyPayloadVersion"
	preconditionChecks   = "PreconditionChecks"
	payloadLoaded        = "PayloadLoaded"
)

const (
	// retrieveLimit is how long it may take to find, verify and read a release.
	retrieveLimit = 4 * time.Minute
	// A refused release is checked again, since an image or a signature may come late.
	firstRetry = 5 * time.Second
	mostRetry  = 2 * time.Minute
)

// loaded is a release that was found and read.
type loaded struct {
	image    string // by digest
	payload  *release.Payload
	all      []apply.Task            // in load order
	enabled  []string                // capabilities
	tasks    map[string][]apply.Task // by file: those for which no capability is missing
	total    int                     // of the tasks
	verified bool
	waived   string // what speaks against it and was accepted
	unkept   string // why its image is not kept; empty if it is
	file     string // that its image is kept in; empty if it is kept in the store
	snapshot string // of etcd, taken before the update; may be empty
}

func (l *loaded) version() string { return l.payload.Metadata.Version }

// with returns the release with capabilities enabled.
func (l *loaded) with(capabilities []string) *loaded {
	out := *l
	out.enabled, out.tasks, out.total = capabilities, map[string][]apply.Task{}, 0
	for _, t := range l.all {
		if plan.Enabled(t.Capabilities(), capabilities) {
			out.tasks[t.File] = append(out.tasks[t.File], t)
			out.total++
		}
	}
	return &out
}

// enables returns the capabilities of a cluster that uses the release after others, which brought objects.
func (l *loaded) enables(cv *updatev1.ClusterVersion, enabled []string, brought []*metav1.ObjectReference,
) *updatev1.CapabilitiesStatus {
	return plan.Capabilities(cv.GetSpec().GetCapabilities(), l.knows(), enabled, plan.Implied(brought, l.capable()))
}

// knows returns the capabilities that manifests of the release name.
func (l *loaded) knows() []string {
	var out []string
	for _, t := range l.all {
		out = append(out, t.Capabilities()...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (l *loaded) capable() []plan.Capable {
	var out []plan.Capable
	for _, t := range l.all {
		if names := t.Capabilities(); len(names) > 0 && t.Wants() {
			out = append(out, plan.Capable{Object: t.Object(), Capabilities: names})
		}
	}
	return out
}

// brings returns the objects that the release answers for, in load order: they are removed when a later release lacks
// them. wants returns these and those that it wants to be there only.
func (l *loaded) brings() []*metav1.ObjectReference {
	return l.objects(func(t apply.Task) bool { return t.Wants() && !t.CreateOnly() })
}

func (l *loaded) wants() []*metav1.ObjectReference { return l.objects(apply.Task.Wants) }

func (l *loaded) objects(which func(apply.Task) bool) (out []*metav1.ObjectReference) {
	for _, name := range l.payload.FileNames() {
		for _, t := range l.tasks[name] {
			if which(t) {
				out = append(out, t.Object())
			}
		}
	}
	return out
}

// jobs returns the Jobs of the release, in load order, none of which is known to have run.
func (l *loaded) jobs() (out []*updatev1.ReleaseJob) {
	for _, name := range l.payload.FileNames() {
		for _, t := range l.tasks[name] {
			if t.Job() {
				out = append(out, &updatev1.ReleaseJob{Object: t.Object(), Manifest: t.File, Hash: t.Hash()})
			}
		}
	}
	return out
}

// unserved returns the kinds of manifests that no service owns, in the order of their names.
func (l *loaded) unserved() []*updatev1.ReleaseKind {
	count := map[[2]string]int32{}
	for _, tasks := range l.tasks {
		for _, t := range tasks {
			if t.Unserved() {
				count[[2]string{t.APIVersion, t.Kind}]++
			}
		}
	}
	var out []*updatev1.ReleaseKind
	for k, n := range count {
		out = append(out, &updatev1.ReleaseKind{ApiVersion: k[0], Kind: k[1], Count: n})
	}
	slices.SortFunc(out, func(a, b *updatev1.ReleaseKind) int {
		return cmp.Or(cmp.Compare(a.GetKind(), b.GetKind()), cmp.Compare(a.GetApiVersion(), b.GetApiVersion()))
	})
	return out
}

// nodeTask returns the operator of the nodes' configuration, as the release has it or as any release has it.
func (l *loaded) nodeTask() apply.Task {
	for _, tasks := range l.tasks {
		for _, t := range tasks {
			if t.Operator() && t.Name == plan.NodeOperator && !t.Delete() {
				return t
			}
		}
	}
	return apply.NodeTask(l.version())
}

// bringsHost reports whether the release has a Program of the executable that agents and members are started from.
func (l *loaded) bringsHost() bool {
	for _, tasks := range l.tasks {
		for _, t := range tasks {
			if t.Program() != nil && t.Name == topology.Host && !t.Delete() {
				return true
			}
		}
	}
	return false
}

// nodeVersion is the version that the operator of the nodes' configuration must report.
func (l *loaded) nodeVersion() string {
	for _, o := range l.nodeTask().Operands {
		if o.GetName() == clusteroperator.Operand {
			return o.GetVersion()
		}
	}
	return l.version()
}

func (l *loaded) name() string {
	v := strings.ToLower(strings.ReplaceAll(l.version(), "+", "-"))
	_, digest, _ := strings.Cut(l.payload.Digest, ":")
	return v + "-" + digest[:min(len(digest), 12)]
}

// reference is how a status names the release. from is where it was offered; it may be nil.
func (l *loaded) reference(from *updatev1.ReleaseReference) *updatev1.ReleaseReference {
	ref := &updatev1.ReleaseReference{
		Version: proto.String(l.version()), Image: proto.String(l.image),
		Url: l.payload.Metadata.Metadata["url"],
	}
	if from != nil {
		ref.Architecture, ref.Channels = from.GetArchitecture(), from.GetChannels()
		if ref.Url == "" {
			ref.Url = from.GetUrl()
		}
	}
	if l.payload.Metadata.Metadata[plan.MetadataArchitecture] == "multi" {
		ref.Architecture = plan.Multi
	}
	return ref
}

// step is an error with the step at which a release was refused.
type step struct {
	reason string
	err    error
}

func (s *step) Error() string {
	if s.reason == verifyPayload {
		return "The update cannot be verified: " + s.err.Error()
	}
	return s.err.Error()
}

func (s *step) Unwrap() error { return s.err }

// refusal is a desired update that was refused.
type refusal struct {
	inputs string // fingerprint of the desired update and of what else the answer depends on
	again  time.Time
	tries  int
	// upgradeable was the status of that condition: once it is another one, the answer may be.
	upgradeable string
}

// attempt is a check of the desired release. It may take minutes, so it runs beside the controller's loop.
type attempt struct {
	inputs string
	cancel context.CancelFunc
	ended  chan struct{}
	next   *loaded // read it and err after the end
	err    error
}

func (a *attempt) over() bool {
	select {
	case <-a.ended:
		return true
	default:
		return false
	}
}

// attempt starts the check of a release. Its end triggers the controller.
func (c *Controller) attempt(ctx context.Context, cv *updatev1.ClusterVersion, target *updatev1.ReleaseReference,
	inputs string,
) {
	ctx, cancel := context.WithTimeout(ctx, retrieveLimit)
	a := &attempt{inputs: inputs, cancel: cancel, ended: make(chan struct{})}
	present := c.term.release
	c.term.attempt = a
	c.term.background.Go(func() {
		a.next, a.err = c.consider(ctx, cv, target, present)
		cancel()
		close(a.ended)
		c.work.Add(key)
	})
}

// abandon cancels the check of a release that is no longer desired.
func (c *Controller) abandon() {
	if c.term.attempt != nil {
		c.term.attempt.cancel()
		c.term.attempt = nil
	}
}

// inputsOf is all that an answer depends on, that can be seen from here, and that people decide. Whether operators
// object changes with their state: an attempt goes on then, and its end asks them again.
func inputsOf(cv *updatev1.ClusterVersion, target *updatev1.ReleaseReference) string {
	spec := cv.GetSpec()
	stores := make([]string, len(spec.GetSignatureStores()))
	for i, s := range spec.GetSignatureStores() {
		stores[i] = s.GetUrl()
	}
	return fmt.Sprint(target.GetVersion(), target.GetImage(), plan.WaiversOf(spec.GetDesiredUpdate()), plan.Accepted(cv),
		stores, cv.GetStatus().GetDesired().GetImage())
}

func upgradeable(cv *updatev1.ClusterVersion) string {
	return plan.Find(cv.GetStatus().GetConditions(), plan.Upgradeable).GetStatus()
}

// follow brings the cluster to the desired release, if that is another one. It returns when to look again.
func (c *Controller) follow(ctx context.Context, cv *updatev1.ClusterVersion) (time.Time, error) {
	target := plan.Desired(cv)
	if target == nil || plan.SameImage(target.GetImage(), cv.GetStatus().GetDesired().GetImage()) {
		c.abandon()
		c.term.refused = refusal{}
		return time.Time{}, c.withdraw(ctx, cv)
	}
	if p := plan.Paused(cv, time.Now()); p != nil {
		c.abandon()
		c.term.refused = refusal{}
		return plan.PauseEnds(p), c.accepting(ctx, plan.Unknown, plan.UpdatesPaused,
			fmt.Sprintf("The update to %s waits: updates are %s", describe(target), plan.PauseText(p)))
	}
	if w := c.windows(cv, target, time.Now()); w.Closed() {
		c.abandon()
		c.term.refused = refusal{}
		return w.Wake, c.accepting(ctx, plan.Unknown, plan.MaintenanceWindow, plan.WindowText(describe(target), w))
	}
	inputs := inputsOf(cv, target)
	if c.term.attempt != nil && c.term.attempt.inputs != inputs {
		c.abandon()
	}
	switch a := c.term.attempt; {
	case a != nil && a.over():
		c.term.attempt = nil
		return c.conclude(ctx, cv, target, a)
	case a != nil:
		return time.Time{}, nil // its end leads to the next look
	case c.term.refused.inputs != inputs:
		c.term.refused = refusal{inputs: inputs}
		if err := c.accepting(ctx, plan.Unknown, retrievePayload, fmt.Sprintf("Retrieving and verifying payload %s",
			describe(target))); err != nil {
			return time.Time{}, err
		}
	case time.Now().Before(c.term.refused.again) && c.term.refused.upgradeable == upgradeable(cv):
		return c.term.refused.again, nil
	}
	c.term.refused.upgradeable = upgradeable(cv)
	c.attempt(ctx, cv, target, inputs)
	return time.Time{}, nil
}

// windows returns whether an update may begin at now by the maintenance windows.
func (c *Controller) windows(cv *updatev1.ClusterVersion, target *updatev1.ReleaseReference, now time.Time,
) maintenance.State {
	return plan.Windows(cv, target.GetImage(), c.Tables.Windows.All(), now)
}

// holds reports whether an update to a release that was checked must not begin at now after all.
func (c *Controller) holds(cv *updatev1.ClusterVersion, target *updatev1.ReleaseReference, now time.Time) bool {
	return plan.Paused(cv, now) != nil || c.windows(cv, target, now).Closed()
}

// conclude accepts or refuses a desired update by the outcome of its check.
func (c *Controller) conclude(ctx context.Context, cv *updatev1.ClusterVersion, target *updatev1.ReleaseReference,
	a *attempt,
) (time.Time, error) {
	var refused *step
	switch {
	case errors.As(a.err, &refused):
		return c.refuse(ctx, cv, target, refused)
	case a.err != nil:
		return time.Time{}, a.err
	}
	cv, err := c.Tables.Versions.Get(ctx, "", kinds.Version)
	if err != nil {
		return time.Time{}, err
	}
	if inputsOf(cv, plan.Desired(cv)) != a.inputs || c.holds(cv, target, time.Now()) {
		return time.Now(), nil // the desired update was changed or is held back, and that is not seen here yet
	}
	if upgradeable(cv) != c.term.refused.upgradeable { // an operator may object by now
		blocked, _ := c.preconditions(cv, a.next, target).Decide(plan.WaiversOf(cv.GetSpec().GetDesiredUpdate()))
		if blocked != "" {
			return c.refuse(ctx, cv, target, &step{preconditionChecks, errors.New(blocked)})
		}
	}
	return time.Time{}, c.accept(ctx, a.next, target, a.inputs)
}

// withdraw says that the present release is accepted, where another one was refused and is no longer desired. A
// cluster without an image has accepted none.
func (c *Controller) withdraw(ctx context.Context, cv *updatev1.ClusterVersion) error {
	have := plan.Find(cv.GetStatus().GetConditions(), plan.ReleaseAccepted)
	switch {
	case have != nil && cv.GetStatus().GetDesired().GetImage() == "":
		return c.write(ctx, func(cv *updatev1.ClusterVersion, now time.Time) {
			set(cv.GetStatus(), plan.ReleaseAccepted, nil, now)
		})
	case c.term.release == nil || have.GetStatus() == plan.True:
		return nil
	}
	return c.accepting(ctx, plan.True, payloadLoaded, loadedMessage(c.term.release))
}

func loadedMessage(l *loaded) string {
	return fmt.Sprintf("Payload loaded version=%q image=%q", l.version(), l.image)
}

func describe(r *updatev1.ReleaseReference) string {
	return fmt.Sprintf("version=%q image=%q", r.GetVersion(), r.GetImage())
}

func (c *Controller) accepting(ctx context.Context, status, reason, message string) error {
	return c.write(ctx, func(cv *updatev1.ClusterVersion, now time.Time) {
		set(cv.GetStatus(), plan.ReleaseAccepted, accepting(status, reason, message), now)
	})
}

func accepting(status, reason, message string) *metav1.Condition {
	return &metav1.Condition{
		Type: plan.ReleaseAccepted, Status: status, Reason: proto.String(reason),
		Message: proto.String(message),
	}
}

// refuse reports why a desired update is refused. Nothing else changes.
func (c *Controller) refuse(ctx context.Context, cv *updatev1.ClusterVersion, target *updatev1.ReleaseReference,
	why *step,
) (time.Time, error) {
	r := &c.term.refused
	r.again = time.Now().Add(min(firstRetry<<min(r.tries, 10), mostRetry))
	r.tries++
	if r.tries == 1 {
		c.Events.Event(cv, "Warning", why.reason+"Failed", fmt.Sprintf("%s: %v", describe(target), why))
		c.Log.WarnContext(ctx, "update refused", "update", target.GetVersion(), "step", why.reason, "error", why)
	}
	return r.again, c.accepting(ctx, plan.False, why.reason, refusalMessage(target, why))
}

func refusalMessage(target *updatev1.ReleaseReference, why *step) string {
	does := map[string]string{
		retrievePayload: "Retrieving payload failed", verifyPayload: "Verifying payload failed",
		loadPayload:          "Loading payload failed",
		verifyPayloadVersion: "Verifying payload failed", preconditionChecks: "Preconditions failed for payload",
	}[why.reason]
	return fmt.Sprintf("%s %s failure=%v", does, describe(target), why)
}

// consider finds, verifies, reads and checks a desired release, and keeps it; present is the release that the cluster
// is at, or nil. Its error is a *step if the release is refused.
func (c *Controller) consider(ctx context.Context, cv *updatev1.ClusterVersion, target *updatev1.ReleaseReference,
	present *loaded,
) (*loaded, error) {
	e, err := c.examine(ctx, cv, target, present)
	if err != nil {
		return nil, err
	}
	blocked, accepted := e.verdict.Decide(plan.WaiversOf(cv.GetSpec().GetDesiredUpdate()))
	if blocked != "" {
		return nil, &step{preconditionChecks, errors.New(blocked)}
	}
	begins, err := c.begins(ctx, cv, &e, accepted)
	if err != nil {
		return nil, err
	}
	window := plan.WindowWaived(cv, target.GetImage(), c.Tables.Windows.All(), time.Now())
	waived := slices.DeleteFunc([]string{e.unsigned, begins, window}, func(text string) bool { return text == "" })
	e.release.verified, e.release.waived = e.unsigned == "", strings.Join(waived, "\n")
	if err := c.preserve(ctx, e.release, e.image); err != nil {
		return nil, &step{retrievePayload, fmt.Errorf("the release is not kept: %w", err)}
	}
	return e.release, nil
}

// begins has the last precondition of an update met, a snapshot of etcd, which changes something and so comes after all
// others. accepted is what they accept; it returns what is accepted then. The way back from an update needs no snapshot
// of what is half-way.
func (c *Controller) begins(ctx context.Context, cv *updatev1.ClusterVersion, e *examined, accepted string) (string,
	error,
) {
	waivers := plan.WaiversOf(cv.GetSpec().GetDesiredUpdate())
	if c.Snapshots == nil || plan.Aborts(cv, e.image.Reference) {
		return accepted, nil
	}
	if text, waived := waivers.SnapshotWaived(); waived {
		return strings.TrimPrefix(accepted+"\n"+text, "\n"), nil
	}
	want := plan.NewSnapshot(e.release.name(), e.release.version(), cv.GetMetadata().GetGeneration())
	err := c.Snapshots.Take(ctx, want, func(waitsFor string) {
		if err := c.accepting(ctx, plan.Unknown, preconditionChecks, waitsFor); err != nil && ctx.Err() == nil {
			c.Log.DebugContext(ctx, "wait for a snapshot not reported", "error", err)
		}
	})
	if errors.Is(ctx.Err(), context.Canceled) {
		return "", ctx.Err()
	}
	if err != nil {
		blocked, _ := e.verdict.WithoutSnapshot(err).Decide(waivers)
		return "", &step{preconditionChecks, errors.New(blocked)}
	}
	e.release.snapshot = want.GetMetadata().GetName()
	return accepted, nil
}

// examined is a release that was found and read, with what speaks against it.
type examined struct {
	image    *release.Image
	release  *loaded
	unsigned string // why it is taken although it cannot be verified; empty if it was verified
	verdict  plan.Verdict
}

// examine finds, verifies and reads a desired release, and checks the preconditions. It changes nothing. Its error is a
// *step if the release is refused before that.
func (c *Controller) examine(ctx context.Context, cv *updatev1.ClusterVersion, target *updatev1.ReleaseReference,
	present *loaded,
) (examined, error) {
	var e examined
	var err error
	if e.image, err = c.find(ctx, target.GetImage()); err != nil {
		return e, &step{retrievePayload, err}
	}
	_, unverified := c.verify(ctx, cv, present, e.image.Digest)
	switch {
	case unverified != nil && plan.Aborts(cv, e.image.Reference):
		e.unsigned = fmt.Sprintf(
			"Target release %s cannot be verified, but the cluster was at it before the update that it aborts: %v",
			describe(target), unverified)
	case unverified != nil:
		blocked := ""
		blocked, e.unsigned = plan.WaiversOf(cv.GetSpec().GetDesiredUpdate()).Unverified(describe(target), unverified)
		if blocked != "" {
			return e, &step{verifyPayload, errors.New(blocked)}
		}
	}
	if e.release, err = c.load(e.image); err != nil {
		return e, &step{loadPayload, err}
	}
	if v := target.GetVersion(); v != "" && v != e.release.version() {
		return e,
			&step{verifyPayloadVersion, fmt.Errorf("release image version %s does not match the expected upstream version %s",
				e.release.version(), v)}
	}
	e.verdict = c.preconditions(cv, e.release, target)
	return e, nil
}

// preconditions checks what speaks against an update now.
func (c *Controller) preconditions(cv *updatev1.ClusterVersion, l *loaded,
	target *updatev1.ReleaseReference,
) plan.Verdict {
	cv = proto.CloneOf(cv)
	c.settle(cv, now()) // an operator's objection counts before the status shows it
	return plan.Preconditions(cv, l.reference(target)).WithTrust(release.CheckTrust(l.payload, now()))
}

// find finds a release image: where the present release and the one before are kept, or where releases come from.
func (c *Controller) find(ctx context.Context, ref string) (*release.Image, error) {
	kept, err := c.Payloads.Open(ctx, ref)
	if err == nil {
		return kept, nil
	}
	if !errors.Is(err, store.ErrNotFound) || errors.Is(err, payloads.ErrDamaged) {
		c.Log.WarnContext(ctx, "kept release not read", "image", ref, "error", err)
	}
	return release.Open(ctx, ref, c.Images)
}

// preserve keeps the image of a release, unless it is too large.
func (c *Controller) preserve(ctx context.Context, l *loaded, image *release.Image) error {
	file, err := c.Payloads.Keep(ctx, image)
	if errors.Is(err, payloads.ErrNotKept) {
		l.unkept = err.Error()
		return nil
	}
	l.file = file
	return err
}

// load reads an image and checks every manifest of it that counts here.
func (c *Controller) load(image *release.Image) (*loaded, error) {
	payload, err := release.Load(image)
	if err != nil {
		c.Payloads.Damaged(image.Digest)
		return nil, err
	}
	tasks, err := c.Applier.Prepare(payload)
	if err != nil {
		return nil, err
	}
	l := &loaded{image: image.Reference, payload: payload, all: tasks}
	if !strings.Contains(l.image, "@") {
		l.image += "@" + image.Digest
	}
	return l, nil
}

// verify checks the signatures of an image by the keys that this process was given and those that the present release
// brings along.
func (c *Controller) verify(ctx context.Context, cv *updatev1.ClusterVersion, present *loaded, digest string) (
	[]release.Proof, error,
) {
	rings, err := readRings(c.Keys)
	if err != nil {
		return nil, err
	}
	stores := slices.Clone(c.Stores)
	if present != nil {
		trusted, at, _, err := release.Trust(present.payload)
		if err != nil {
			return nil, fmt.Errorf("the keys of release %s: %w", present.version(), err)
		}
		rings, stores = append(rings, trusted...), append(stores, at...)
	}
	elsewhere := c.Images.Elsewhere
	if own := cv.GetSpec().GetSignatureStores(); len(own) > 0 {
		stores, elsewhere = nil, nil // these instead of all that processes were given
		for _, s := range own {
			stores = append(stores, s.GetUrl())
		}
	}
	if len(rings) == 0 {
		return nil, errors.New("there are no keys to verify releases by")
	}
	return release.Verifier{Rings: rings, Stores: stores, Elsewhere: elsewhere}.Prove(ctx, digest)
}

// readRings reads the key rings of directories: every file is one.
func readRings(dirs []string) ([]release.Ring, error) {
	var rings []release.Ring
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, fmt.Errorf("release keys: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() {
				continue
			}
			raw, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				return nil, fmt.Errorf("release keys: %w", err)
			}
			r, err := release.ReadRing(e.Name(), raw)
			if err != nil {
				return nil, fmt.Errorf("release key %q: %w", e.Name(), err)
			}
			rings = append(rings, r)
		}
	}
	return rings, nil
}

// StoreAddress returns a place of signatures as an address; a directory becomes a file:// address.
func StoreAddress(place string) (string, error) {
	if u, err := url.Parse(place); err == nil && u.Scheme != "" {
		if !slices.Contains([]string{"http", "https", "file"}, u.Scheme) {
			return "", fmt.Errorf("signature store %q: must be a directory, or an https or file address", place)
		}
		return place, nil
	}
	abs, err := filepath.Abs(place)
	if err != nil {
		return "", err
	}
	return (&url.URL{Scheme: "file", Path: abs}).String(), nil
}

// accept makes a release the one that the cluster is kept at. Its history begins here, before the first manifest. It is
// not taken up if it is desired by inputs that are not so any more: its user may have been answered that it was
// cancelled.
func (c *Controller) accept(ctx context.Context, next *loaded, from *updatev1.ReleaseReference, inputs string) error {
	c.stopPass()
	before := c.broughtBefore()
	cv, _ := c.Tables.Cluster()
	enabled := cv.GetStatus().GetCapabilities().GetEnabledCapabilities()
	if c.term.release != nil {
		enabled = c.term.release.enabled // the cache may not show it yet
	}
	capabilities := next.enables(cv, enabled, before)
	next = next.with(capabilities.GetEnabledCapabilities())
	if err := c.keep(ctx, next, before); err != nil {
		return err
	}
	late := false
	err := c.write(ctx, func(cv *updatev1.ClusterVersion, now time.Time) {
		if late = inputs != "" && (inputsOf(cv, plan.Desired(cv)) != inputs || c.holds(cv, from, now)); late {
			return
		}
		st := cv.GetStatus()
		st.Desired = next.reference(from)
		st.VersionHash = next.payload.VersionHash
		st.Capabilities = capabilities
		st.History = plan.Record(st.GetHistory(), plan.Reached{
			Version: next.version(), Image: next.image, Verified: next.verified, AcceptedRisks: next.waived,
			Snapshot: next.snapshot,
		}, now)
		st.Progress = &updatev1.UpdateProgress{Done: proto.Int32(0), Total: proto.Int32(int32(next.total))}
		set(st, plan.ReleaseAccepted, accepting(plan.True, payloadLoaded, loadedMessage(next)), now)
		c.say(st, plan.Run{Version: next.version(), Mode: c.mode(st, next.image), Total: next.total}, now)
	})
	if err != nil || late {
		return err
	}
	c.begin(next)
	c.term.sightings = plan.Sightings{}
	if cv, ok := c.Tables.Cluster(); ok {
		c.Events.Event(cv, "Normal", payloadLoaded, loadedMessage(next))
		if next.unkept != "" {
			c.Events.Event(cv, "Warning", "ReleaseNotKept", fmt.Sprintf("Release %s is not kept: %s",
				next.version(), next.unkept))
		}
		if message := plan.UnservedMessage(next.version(), next.unserved()); message != "" {
			c.Events.Event(cv, "Warning", "UnservedKinds", message)
		}
	}
	c.Log.InfoContext(ctx, "release accepted", "update", next.version(), "image", next.image, "verified", next.verified)
	c.sweep(ctx)
	return nil
}

// holdsBack reports whether updates are paused and more would be applied than is now: that is like an update.
func (c *Controller) holdsBack(cv *updatev1.ClusterVersion, l *loaded, enabled []string) bool {
	return plan.Paused(cv, time.Now()) != nil && l.with(enabled).total > l.total
}

// enable follows what the spec says of capabilities. What is enabled is noted before it is applied, and is applied as
// in an update: with its Jobs, and with waits that are shown. It reports whether the status says so already.
func (c *Controller) enable(ctx context.Context, cv *updatev1.ClusterVersion) (bool, error) {
	l, have := c.term.release, cv.GetStatus().GetCapabilities()
	want := plan.Capabilities(cv.GetSpec().GetCapabilities(), l.knows(), have.GetEnabledCapabilities(), l.enabled)
	if proto.Equal(want, have) && slices.Equal(want.GetEnabledCapabilities(), l.enabled) {
		return true, nil
	}
	if c.holdsBack(cv, l, want.GetEnabledCapabilities()) {
		return true, nil
	}
	next := l.with(want.GetEnabledCapabilities())
	if !slices.Equal(next.enabled, l.enabled) {
		c.stopPass()
		if err := c.keep(ctx, next, c.broughtBefore()); err != nil {
			return false, err
		}
	}
	err := c.write(ctx, func(cv *updatev1.ClusterVersion, now time.Time) {
		st := cv.GetStatus()
		st.Capabilities = want
		if next.total > l.total {
			st.Progress = &updatev1.UpdateProgress{Done: proto.Int32(0), Total: proto.Int32(int32(next.total))}
			c.say(st, plan.Run{Version: next.version(), Mode: c.mode(st, next.image), Total: next.total}, now)
		}
	})
	if err == nil && !slices.Equal(next.enabled, l.enabled) {
		c.begin(next)
	}
	return false, err
}

// sweep removes releases that the history has forgotten, since no other client may. What cannot be removed now goes
// with the next update.
func (c *Controller) sweep(ctx context.Context) {
	cv, _ := c.Tables.Cluster()
	for _, name := range plan.Forgotten(c.Tables.Releases.All(), cv.GetStatus().GetHistory()) {
		if _, err := c.Tables.Releases.Delete(ctx, "", name, nil); err != nil && ctx.Err() == nil {
			c.Log.WarnContext(ctx, "release not removed", "release", name, "error", err)
		}
	}
	if c.Snapshots != nil {
		if err := c.Snapshots.Sweep(ctx, c.term.release.snapshot); err != nil && ctx.Err() == nil {
			c.Log.WarnContext(ctx, "old snapshots not removed", "error", err)
		}
	}
	digests := plan.Kept(c.term.release.image, cv.GetStatus().GetHistory())
	if err := c.retain(ctx, digests); err != nil && ctx.Err() == nil {
		c.Log.WarnContext(ctx, "kept releases not removed", "error", err)
	}
}

// retain keeps the images with some digests only. The others' releases say so before they go; and so do those of which
// the image is lost.
func (c *Controller) retain(ctx context.Context, digests []string) error {
	for _, r := range c.Tables.Releases.All() {
		is := c.keptNow(ctx, r, digests)
		if is == nil {
			continue
		}
		_, err := c.Tables.Releases.Modify(ctx, object.KeyOf(r), func(r *updatev1.Release) error {
			r.Status.Conditions = object.SetCondition(r.Status.Conditions, is, now())
			return nil
		})
		if err != nil && rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
			return err
		}
	}
	return c.Payloads.Retain(ctx, digests)
}

// payloadLost is why an image that was kept is not found.
const payloadLost = "PayloadLost"

// keptNow returns what is to be said of whether the image of a release is kept, where images with some digests are; nil
// if that is said already.
func (c *Controller) keptNow(ctx context.Context, r *updatev1.Release, digests []string) *metav1.Condition {
	was := plan.Find(r.GetStatus().GetConditions(), keptType)
	kept := was.GetStatus() == plan.True
	_, digest, _ := strings.Cut(r.GetSpec().GetImage(), "@")
	if !slices.Contains(digests, digest) {
		if !kept {
			return nil
		}
		return keptAs(plan.False, "Superseded",
			"The images of the present release and of the one completed before it are kept alone.")
	}
	if !kept && was.GetReason() != payloadLost {
		return nil
	}
	switch _, err := c.Payloads.Open(ctx, r.GetSpec().GetImage()); {
	case errors.Is(err, store.ErrNotFound) && kept:
		return keptAs(plan.False, payloadLost, fmt.Sprintf("It was kept, and is not found on this machine, %s: %v",
			hostname(), err))
	case err == nil && !kept:
		return keptAs(plan.True, payloadKept, "It was not found, and is found again on this machine, "+hostname()+".")
	}
	return nil
}

func keptAs(status, reason, message string) *metav1.Condition {
	c := &metav1.Condition{Type: keptType, Status: status, Reason: proto.String(reason)}
	if message != "" {
		c.Message = proto.String(message)
	}
	return c
}

// begin makes a release the present one; its first pass is due at once.
func (c *Controller) begin(l *loaded) {
	t := &c.term
	t.release, t.rhythm, t.failures, t.refused = l, plan.Rhythm{}, nil, refusal{}
	c.shown.begin(nil)
	t.drift.stop()
	t.drift = &drift{unkept: map[string]bool{}}
}

// broughtBefore returns the objects that releases have brought up to now.
func (c *Controller) broughtBefore() []*metav1.ObjectReference {
	cv, _ := c.Tables.Cluster()
	before := c.inventory(cv.GetStatus().GetDesired().GetImage())
	if before == nil && c.term.release != nil {
		return c.term.release.brings() // an earlier version of this program noted nothing
	}
	return before
}

// inventory returns what is noted of the objects that a release and those before it brought; nil if nothing is.
func (c *Controller) inventory(image string) []*metav1.ObjectReference {
	for r := range c.Tables.Releases.Objects() {
		if image != "" && plan.SameImage(r.GetSpec().GetImage(), image) {
			return r.GetStatus().GetInventory()
		}
	}
	return nil
}

// removed notes that what a release lacks is gone, but for what stays.
func (c *Controller) removed(ctx context.Context, p *pass) error {
	_, err := c.Tables.Releases.Modify(ctx, object.Key{Name: p.release.name()}, func(r *updatev1.Release) error {
		r.Status.Inventory, r.Status.Leftovers = p.release.brings(), p.stays
		return nil
	})
	if err != nil {
		return err
	}
	cv, _ := c.Tables.Cluster()
	for _, l := range p.stays {
		c.Log.WarnContext(ctx, "object left behind", "object", l.GetObject(), "reason", l.GetReason())
		c.Events.Event(cv, "Warning", "LeftBehind", fmt.Sprintf("%s %s, which release %s lacks, was not removed: %s",
			l.GetObject().GetKind(), object.Key{Namespace: l.GetObject().GetNamespace(), Name: l.GetObject().GetName()},
			p.release.version(), l.GetReason()))
	}
	return nil
}

// keep stores what a release holds, for people, and what the releases before it brought.
func (c *Controller) keep(ctx context.Context, l *loaded, before []*metav1.ObjectReference) error {
	r := &updatev1.Release{
		Metadata: &metav1.ObjectMeta{Name: l.name()},
		Spec:     &updatev1.ReleaseSpec{Image: l.image},
		Status: &updatev1.ReleaseStatus{
			Version: l.version(), Previous: l.payload.Metadata.Previous, Url: l.payload.Metadata.Metadata["url"],
			ManifestCount: proto.Int32(int32(len(l.payload.Manifests))), Manifests: l.payload.FileNames(),
			VersionHash: l.payload.VersionHash, Inventory: plan.Inventory(before, l.brings()),
			Conditions: releaseConditions(l), Jobs: l.jobs(), Unserved: l.unserved(),
		},
	}
	if !l.payload.Created.IsZero() {
		r.Status.Created = timestamppb.New(l.payload.Created)
	}
	for _, i := range l.payload.Images {
		r.Status.Images = append(r.Status.Images, &updatev1.ReleaseImageReference{Name: i.Name, Image: i.Image})
	}
	_, err := c.Tables.Releases.Create(ctx, r)
	if rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS {
		return err
	}
	_, err = c.Tables.Releases.Modify(ctx, object.KeyOf(r), func(have *updatev1.Release) error {
		conditions := have.GetStatus().GetConditions()
		for _, condition := range r.GetStatus().GetConditions() {
			conditions = object.SetCondition(conditions, condition, now())
		}
		ran := have.GetStatus().GetJobs()
		have.Spec, have.Status = r.GetSpec(), proto.CloneOf(r.GetStatus())
		have.Status.Conditions, have.Status.Jobs = conditions, plan.JobsOf(have.Status.Jobs, ran)
		return nil
	})
	return err
}

func releaseConditions(l *loaded) []*metav1.Condition {
	at := timestamppb.New(now())
	verified := &metav1.Condition{
		Type: "Verified", Status: plan.True, Reason: proto.String("SignatureValid"),
		LastTransitionTime: at,
	}
	if !l.verified {
		verified.Status, verified.Reason = plan.False, proto.String("NotVerified")
		verified.Message = proto.String("The release was taken up without a valid signature.")
	}
	return []*metav1.Condition{verified, {
		Type: "Loaded", Status: plan.True, Reason: proto.String(payloadLoaded),
		LastTransitionTime: at,
	}, keptCondition(l)}
}

// keptType is the condition of a Release that says whether its image is kept.
const (
	keptType    = "Kept"
	payloadKept = "PayloadKept"
)

func keptCondition(l *loaded) *metav1.Condition {
	kept := keptAs(plan.True, payloadKept, "")
	switch {
	case l.unkept != "":
		kept = keptAs(plan.False, "PayloadNotKept",
			"After each restart the image is read from where it came from: "+l.unkept)
	case l.file != "":
		kept = keptAs(plan.True, payloadKept, "It is larger than what etcd keeps, and is on the disk of one machine, "+
			hostname()+": "+l.file)
	}
	kept.LastTransitionTime = timestamppb.New(now())
	return kept
}

// hostname names this machine.
func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "of an unknown name"
	}
	return name
}

// noteKept has a release that was accepted before say whether its image is kept.
func (c *Controller) noteKept(ctx context.Context, l *loaded) error {
	_, err := c.Tables.Releases.Modify(ctx, object.Key{Name: l.name()}, func(r *updatev1.Release) error {
		if r.GetStatus() == nil {
			r.Status = &updatev1.ReleaseStatus{}
		}
		r.Status.Conditions = object.SetCondition(r.Status.Conditions, keptCondition(l), now())
		return nil
	})
	if rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
		return nil
	}
	return err
}
