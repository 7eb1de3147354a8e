package controller

import (
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
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/services/update-orchestrator/apply"
	"github.com/windlass-dev/windlass/services/update-orchestrator/kinds"
	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// Steps at which a release is refused: reasons of the condition ReleaseAccepted.
const (
	retrievePayload      = "RetrievePayload"
	verifyPayload        = "VerifyPayload"
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
	tasks    map[string][]apply.Task // by file
	total    int
	verified bool
	waived   string // what speaks against it and was accepted
}

func (l *loaded) version() string { return l.payload.Metadata.Version }

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

// inputsOf is all that a refusal depends on and that can be seen from here.
func inputsOf(cv *updatev1.ClusterVersion, target *updatev1.ReleaseReference) string {
	spec := cv.GetSpec()
	stores := make([]string, len(spec.GetSignatureStores()))
	for i, s := range spec.GetSignatureStores() {
		stores[i] = s.GetUrl()
	}
	return fmt.Sprint(target.GetVersion(), target.GetImage(), spec.GetDesiredUpdate().GetForce(), accepted(spec), stores,
		plan.Find(cv.GetStatus().GetConditions(), plan.Upgradeable).GetStatus(), cv.GetStatus().GetDesired().GetImage())
}

// follow brings the cluster to the desired release, if that is another one. It returns when to look again.
func (c *Controller) follow(ctx context.Context, cv *updatev1.ClusterVersion) (time.Time, error) {
	target := plan.Desired(cv)
	if target == nil || sameImage(target.GetImage(), cv.GetStatus().GetDesired().GetImage()) {
		c.abandon()
		c.term.refused = refusal{}
		return time.Time{}, c.withdraw(ctx, cv)
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
	case time.Now().Before(c.term.refused.again):
		return c.term.refused.again, nil
	}
	c.attempt(ctx, cv, target, inputs)
	return time.Time{}, nil
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
	if inputsOf(cv, plan.Desired(cv)) != a.inputs {
		return time.Now(), nil // the desired update was changed, and that is not seen here yet
	}
	return time.Time{}, c.accept(ctx, a.next, target)
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

// consider finds, verifies, reads and checks a desired release; present is the release that the cluster is
// at, or nil. Its error is a *step if the release is refused.
func (c *Controller) consider(ctx context.Context, cv *updatev1.ClusterVersion, target *updatev1.ReleaseReference,
	present *loaded,
) (*loaded, error) {
	image, err := release.Open(ctx, target.GetImage(), c.Images)
	if err != nil {
		return nil, &step{retrievePayload, err}
	}
	force := cv.GetSpec().GetDesiredUpdate().GetForce()
	var waived []string
	unverified := c.verify(ctx, cv, present, image.Digest)
	switch {
	case unverified != nil && !force:
		return nil, &step{verifyPayload, unverified}
	case unverified != nil:
		waived = append(waived,
			fmt.Sprintf("Target release %s cannot be verified, but continuing anyway because the update was forced: %v",
				describe(target), unverified))
	}
	next, err := c.load(image)
	if err != nil {
		return nil, &step{loadPayload, err}
	}
	if v := target.GetVersion(); v != "" && v != next.version() {
		return nil,
			&step{verifyPayloadVersion, fmt.Errorf("release image version %s does not match the expected upstream version %s",
				next.version(), v)}
	}
	cv = proto.CloneOf(cv)
	c.settle(cv, now()) // an operator's objection counts before the status shows it
	blocked, accepted := plan.Preconditions(cv, next.reference(target)).Decide(force)
	if blocked != "" {
		return nil, &step{preconditionChecks, errors.New(blocked)}
	}
	if accepted != "" {
		waived = append(waived, accepted)
	}
	next.verified, next.waived = unverified == nil, strings.Join(waived, "\n")
	return next, nil
}

// load reads an image and checks every manifest of it that counts here.
func (c *Controller) load(image *release.Image) (*loaded, error) {
	payload, err := release.Load(image)
	if err != nil {
		return nil, err
	}
	tasks, err := c.Applier.Prepare(payload)
	if err != nil {
		return nil, err
	}
	l := &loaded{image: image.Reference, payload: payload, tasks: map[string][]apply.Task{}, total: len(tasks)}
	if !strings.Contains(l.image, "@") {
		l.image += "@" + image.Digest
	}
	for _, t := range tasks {
		l.tasks[t.File] = append(l.tasks[t.File], t)
	}
	return l, nil
}

// verify checks the signatures of an image by the keys that this process was given and those that the present release
// brings along.
func (c *Controller) verify(ctx context.Context, cv *updatev1.ClusterVersion, present *loaded, digest string) error {
	rings, err := readRings(c.Keys)
	if err != nil {
		return err
	}
	stores := slices.Clone(c.Stores)
	if present != nil {
		trusted, at, _, err := release.Trust(present.payload)
		if err != nil {
			return fmt.Errorf("the keys of release %s: %w", present.version(), err)
		}
		rings, stores = append(rings, trusted...), append(stores, at...)
	}
	if own := cv.GetSpec().GetSignatureStores(); len(own) > 0 {
		stores = nil
		for _, s := range own {
			stores = append(stores, s.GetUrl())
		}
	}
	if len(rings) == 0 {
		return errors.New("there are no keys to verify releases by")
	}
	return release.Verifier{Rings: rings, Stores: stores}.Verify(ctx, digest)
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

// accept makes a release the one that the cluster is kept at. Its history begins here, before the first manifest.
func (c *Controller) accept(ctx context.Context, next *loaded, from *updatev1.ReleaseReference) error {
	c.stopPass()
	if err := c.keep(ctx, next); err != nil {
		return err
	}
	err := c.write(ctx, func(cv *updatev1.ClusterVersion, now time.Time) {
		st := cv.GetStatus()
		st.Desired = next.reference(from)
		st.VersionHash = next.payload.VersionHash
		st.History = plan.Record(st.GetHistory(), plan.Reached{
			Version: next.version(), Image: next.image, Verified: next.verified, AcceptedRisks: next.waived,
		}, now)
		st.Progress = &updatev1.UpdateProgress{Done: proto.Int32(0), Total: proto.Int32(int32(next.total))}
		set(st, plan.ReleaseAccepted, accepting(plan.True, payloadLoaded, loadedMessage(next)), now)
		c.say(st, plan.Run{Version: next.version(), Mode: c.mode(st, next.image), Total: next.total}, now)
	})
	if err != nil {
		return err
	}
	c.begin(next)
	c.term.sightings = plan.Sightings{}
	if cv, ok := c.Tables.Cluster(); ok {
		c.Events.Event(cv, "Normal", payloadLoaded, loadedMessage(next))
	}
	c.Log.InfoContext(ctx, "release accepted", "update", next.version(), "image", next.image, "verified", next.verified)
	c.sweep(ctx)
	return nil
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
}

// begin makes a release the present one; its first pass is due at once.
func (c *Controller) begin(l *loaded) {
	t := &c.term
	t.release, t.rhythm, t.failures, t.refused = l, plan.Rhythm{}, nil, refusal{}
}

// keep stores what a release holds, for people.
func (c *Controller) keep(ctx context.Context, l *loaded) error {
	r := &updatev1.Release{
		Metadata: &metav1.ObjectMeta{Name: l.name()},
		Spec:     &updatev1.ReleaseSpec{Image: l.image},
		Status: &updatev1.ReleaseStatus{
			Version: l.version(), Previous: l.payload.Metadata.Previous, Url: l.payload.Metadata.Metadata["url"],
			ManifestCount: proto.Int32(int32(len(l.payload.Manifests))), Manifests: l.payload.FileNames(),
			VersionHash: l.payload.VersionHash,
			Conditions:  releaseConditions(l),
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
		have.Spec, have.Status = r.GetSpec(), proto.CloneOf(r.GetStatus())
		have.Status.Conditions = conditions
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
	}}
}

// sameImage reports whether two references are of one image: digests count, names do not.
func sameImage(a, b string) bool {
	_, x, named := strings.Cut(a, "@")
	_, y, alike := strings.Cut(b, "@")
	return a == b || named && alike && x == y
}
