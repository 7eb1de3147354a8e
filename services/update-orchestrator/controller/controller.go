// Package controller keeps a cluster at its desired release. It fetches the graph of updates, accepts a desired update
// once its release is found, verified and suitable, and applies its manifests in the order that package plan gives,
// waiting for what each one starts.
//
// Nothing of an application is kept beside the status: after a kill the release in status.desired is applied again from
// its beginning. Every manifest that is applied already changes nothing, and every operator that is ready already holds
// nothing up, so the order is kept and the place of the kill is reached again at once; the history, which was written
// before the first manifest, goes on as it was.
package controller

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/release"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/update-orchestrator/apply"
	"github.com/windlass-dev/windlass/services/update-orchestrator/custom"
	"github.com/windlass-dev/windlass/services/update-orchestrator/kinds"
	"github.com/windlass-dev/windlass/services/update-orchestrator/members"
	"github.com/windlass-dev/windlass/services/update-orchestrator/payloads"
	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
	"github.com/windlass-dev/windlass/services/update-orchestrator/snapshots"
	"github.com/windlass-dev/windlass/services/update-orchestrator/upstream"
)

// Config is what a controller needs. All fields must be set but those that say otherwise.
type Config struct {
	Tables   *kinds.Tables
	Custom   *custom.Kinds
	Applier  *apply.Applier
	Graphs   *upstream.Source
	Images   release.Places     // where release images are looked for
	Payloads *payloads.Payloads // release images that are kept
	Keys     []string           // directories of key rings; may be empty
	Stores   []string           // file:// or https:// addresses of signatures; may be empty
	Initial  string             // image that the cluster begins with; may be empty
	Program  string             // version of this program, which a cluster without an image has
	Arch     string             // processor architecture, as in Go

	Queries Queries
	// Trials evaluates queries that are no rules yet. It shares no samples with Queries, so that none of them can use up
	// what the rules need.
	Trials Queries

	// Snapshots takes snapshots of etcd before updates; nil: none are taken.
	Snapshots *snapshots.Taker

	// Members waits for the members of etcd at the end of updates; nil: they are not waited for.
	Members *members.Follower

	// Capabilities is the spec.capabilities.baselineCapabilitySet of a new cluster; it may be empty.
	Capabilities string

	// Services are the connections to all services by name, this one among them; they are asked how they are. Self is its
	// name.
	Services map[string]grpc.ClientConnInterface
	Self     string
	// Supervised means that a supervisor restarts the programs of the cluster from the executables of releases.
	Supervised bool
	// Hosts returns the hosts of the control plane, and whether they are known now; nil where it is on none.
	Hosts func() ([]plan.ProgramHost, bool)

	Poll      time.Duration // how often the graph is asked for
	Reconcile time.Duration // how often everything is applied again
	Events    events.Sink
	Log       *slog.Logger
}

// Queries evaluates queries of risks.
type Queries interface {
	// Evaluate returns whether the risk applies.
	Evaluate(ctx context.Context, query string) (bool, error)
}

// Controller looks after the version of the cluster while this process leads.
type Controller struct {
	Config
	loops  *controller.Loops
	work   *controller.Loop
	passes *controller.Loop
	graph  *controller.Loop

	term  term
	shown shown
}

// term is what a controller knows while it leads. Only its loops touch it, each its own part.
type term struct {
	background sync.WaitGroup // of attempts

	asked    question
	askAgain time.Time
	lastGood time.Time

	release   *loaded
	held      string               // what held the update back when a pass over it began last
	pass      atomic.Pointer[pass] // nil between two; set by the loop of looks, read by that of passes
	rhythm    plan.Rhythm
	failures  map[string]plan.Failure       // of the last pass, by manifest
	sightings plan.Sightings                // the pass has them while there is one
	drift     *drift                        // of the release
	overrides []*updatev1.ComponentOverride // of the last pass over all manifests
	attempt   *attempt                      // for the desired release; nil while there is none
	refused   refusal
	unread    string // why the present release could not be read last; each reason is logged once
	silences  silences
}

// key is the only key of all loops.
const key = kinds.Version

// New returns a controller that does nothing before Lead.
func New(cfg Config) *Controller {
	c := &Controller{Config: cfg, loops: controller.New(cfg.Log)}
	c.work = c.loops.Loop("version", 1, c.look)
	c.passes = c.loops.Loop("pass", 1, c.advance)
	c.graph = c.loops.Loop("graph", 1, c.retrieve)
	loops := []*controller.Loop{c.work, c.graph, c.loops.Loop("services", 1, c.contact)}
	if cfg.Hosts != nil {
		programs := c.loops.Loop("programs", 1, c.turns)
		controller.Watches(programs, cfg.Tables.Programs, only)
		loops = append(loops, programs)
	}
	for _, l := range loops {
		l.Begin(func() []string { return []string{key} })
	}
	controller.Watches(c.work, cfg.Tables.Versions, only)
	controller.Watches(c.graph, cfg.Tables.Versions, only)
	controller.Watches(c.work, cfg.Tables.Operators, only)
	controller.Watches(c.work, cfg.Tables.Windows, only)
	controller.For(c.loops.Loop("windows", 1, c.window), cfg.Tables.Windows)
	controller.Watches(c.work, cfg.Tables.Manifests, only)
	controller.Watches(c.passes, cfg.Tables.Operators, only)
	controller.Watches(c.passes, cfg.Tables.Versions, only)
	c.followDefinitions()
	return c
}

// Lead works until ctx ends.
func (c *Controller) Lead(ctx context.Context) error {
	for _, synced := range []func(context.Context) error{
		c.Tables.Versions.WaitSynced, c.Tables.Operators.WaitSynced, c.Tables.Releases.WaitSynced,
		c.Tables.Manifests.WaitSynced, c.Tables.Definitions.WaitSynced, c.Tables.Programs.WaitSynced,
		c.Tables.Windows.WaitSynced,
	} {
		if synced(ctx) != nil {
			return nil // ctx ended
		}
	}
	if err := c.ensure(ctx); err != nil {
		return err
	}
	c.term = term{
		lastGood: c.retrieved(), sightings: plan.Sightings{},
		silences: silences{contacts: map[string]plan.Contact{}, reported: map[string]bool{}},
	}
	defer c.term.background.Wait()
	defer c.stopPass()
	c.shown.lead(true)
	defer c.shown.lead(false)
	return c.loops.Lead(ctx)
}

// only returns the only key, whatever changed.
func only[T object.Object](resource.Change[T]) []string { return []string{key} }

// now is the present time as conditions have it.
func now() time.Time { return time.Now().UTC().Truncate(time.Second) }

// retrieved returns when updates were last retrieved, as far as that is known: a new leader shows them no longer than
// the former one would have.
func (c *Controller) retrieved() time.Time {
	cv, _ := c.Tables.Cluster()
	if failed := plan.Find(cv.GetStatus().GetConditions(), plan.RetrievedUpdates); failed.GetStatus() == plan.False {
		return failed.GetLastTransitionTime().AsTime()
	}
	return now()
}

// ensure makes the ClusterVersion of a new cluster, with an identity of its own.
func (c *Controller) ensure(ctx context.Context) error {
	id := uuid.NewString()
	spec := &updatev1.ClusterVersionSpec{ClusterId: id}
	if c.Capabilities != "" {
		spec.Capabilities = &updatev1.Capabilities{BaselineCapabilitySet: c.Capabilities}
	}
	_, err := c.Tables.Versions.Create(ctx, &updatev1.ClusterVersion{
		Metadata: &metav1.ObjectMeta{Name: kinds.Version}, Spec: spec,
	})
	if rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS {
		return err
	}
	_, err = c.Tables.Versions.Modify(ctx, object.Key{Name: kinds.Version}, func(v *updatev1.ClusterVersion) error {
		if v.GetSpec() == nil {
			v.Spec = &updatev1.ClusterVersionSpec{}
		}
		v.Spec.ClusterId = cmp.Or(v.Spec.ClusterId, id)
		return nil
	})
	return err
}

// write changes the status of the ClusterVersion by f, and with it what follows from the spec and from the operators.
// Nothing is written if nothing changes.
func (c *Controller) write(ctx context.Context, f func(cv *updatev1.ClusterVersion, now time.Time)) error {
	_, err := c.Tables.Versions.Modify(ctx, object.Key{Name: kinds.Version}, func(cv *updatev1.ClusterVersion) error {
		if cv.GetStatus() == nil {
			cv.Status = &updatev1.ClusterVersionStatus{}
		}
		now := now()
		f(cv, now)
		c.settle(cv, now)
		return nil
	})
	return err
}

// keepInStep writes what follows from the spec and from the operators, where the status does not say it yet. It reads
// from the caches: a change that is not seen yet triggers it again.
func (c *Controller) keepInStep(ctx context.Context, cv *updatev1.ClusterVersion) error {
	next := proto.CloneOf(cv)
	if next.GetStatus() == nil {
		next.Status = &updatev1.ClusterVersionStatus{}
	}
	c.settle(next, now())
	if proto.Equal(next, cv) {
		return nil
	}
	return c.write(ctx, func(*updatev1.ClusterVersion, time.Time) {})
}

// settle updates the conditions that do not depend on an application.
func (c *Controller) settle(cv *updatev1.ClusterVersion, now time.Time) {
	st := cv.GetStatus()
	st.ObservedGeneration = proto.Int32(cv.GetMetadata().GetGeneration())
	set(st, plan.Upgradeable, plan.UpgradeableCondition(cv, c.Tables.Operators.All()), now)
	set(st, plan.ImplicitlyEnabled, plan.ImplicitCondition(cv.GetSpec().GetCapabilities(), st.GetCapabilities()), now)
	set(st, plan.Invalid, plan.InvalidCondition(plan.ValidateSpec(cv)), now)
}

// set puts a condition in its place in a status; nil takes it away.
func set(st *updatev1.ClusterVersionStatus, typ string, c *metav1.Condition, now time.Time) {
	i := slices.IndexFunc(st.Conditions, func(c *metav1.Condition) bool { return c.GetType() == typ })
	switch {
	case c == nil && i >= 0:
		st.Conditions = slices.Delete(st.Conditions, i, i+1)
	case c == nil:
	case i < 0:
		st.Conditions = append(st.Conditions, plan.Stamp(proto.CloneOf(c), nil, now))
	default:
		st.Conditions[i] = plan.Stamp(proto.CloneOf(c), st.Conditions[i], now)
	}
}
