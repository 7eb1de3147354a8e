// Package clusteroperator reports the state of a service to the cluster, in the status of the service's
// ClusterOperator. Updates wait for these reports.
package clusteroperator

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/kit/version"
)

// Operand is the name under which an operator reports its own version.
const Operand = "operator"

// Program is the name under which a service reports the version of its executable.
const Program = "windlass"

// ReleaseAnnotation of the MachineConfigPool of the control plane is the version of the release at which its nodes are.
// update-orchestrator writes it once it has seen that they are; node-configurator reports it as its version.
const ReleaseAnnotation = "release.windlass.dev/version"

const (
	// lookEvery is how often the state of a service is read; nothing is written while it does not change.
	lookEvery = 2 * time.Second
	// sureEvery is how often the report is read without a change: it may have been deleted, or replaced by "unknown" while
	// the service was unreachable. It is written only if it differs.
	sureEvery = 30 * time.Second
	// standstill is longer than the time between two reads of the state in a running process: after it the process was
	// suspended, and the report is read immediately.
	standstill = 10 * time.Second

	writePatience = 5 * time.Second
)

// State is the state of a service. The zero State is not available.
type State struct {
	Available   bool
	Progressing bool
	Degraded    bool
	Reason      string // one CamelCase word; empty means AsExpected
	Message     string
	Version     string // empty means ProgramVersion
	// ProgramVersion is the lowest version of the executables of the service's processes; empty means that of this one.
	ProgramVersion string
	// VersionUnknown leaves the versions as they were reported last.
	VersionUnknown bool
	// Objection is why the cluster should not go to another minor version; the zero Objection has none, and a service that
	// is not available or is degraded objects by that.
	Objection Objection
	// Further is one more condition, of the service's own; the zero Condition leaves what is there.
	Further Condition
}

// Objection is what makes a service Upgradeable=False.
type Objection struct {
	Reason  string // one CamelCase word
	Message string
}

// Condition is a condition of a service's own.
type Condition struct {
	Type    string // one CamelCase word
	Status  string // True, False or Unknown
	Reason  string // one CamelCase word
	Message string
}

// Reporter keeps one ClusterOperator up to date.
type Reporter struct {
	name      string
	operators updatev1.ClusterOperatorServiceClient
	state     func(context.Context) State
	leads     func() bool
	log       *slog.Logger
}

// New returns a reporter that writes nothing before Run. conn is a connection to update-orchestrator; state must not
// block. The reporter writes only while leads returns true, because several processes of the service may run; nil means
// always.
func New(name string, conn grpc.ClientConnInterface, state func(context.Context) State, leads func() bool,
	log *slog.Logger,
) *Reporter {
	if leads == nil {
		leads = func() bool { return true }
	}
	return &Reporter{
		name: name, operators: updatev1.NewClusterOperatorServiceClient(conn), state: state, leads: leads,
		log: log,
	}
}

// Run reports until ctx ends. A failed write is repeated later.
func (r *Reporter) Run(ctx context.Context) error {
	var written State
	var at time.Time
	logged, looked := "", time.Now()
	for {
		s := r.state(ctx)
		if time.Since(looked) > standstill {
			at = time.Time{}
		}
		looked = time.Now()
		if !r.leads() {
			written, at = State{}, time.Time{} // the leader may have written since
		} else if s != written || time.Since(at) > sureEvery {
			err := r.write(ctx, s)
			if err == nil {
				written, at, logged = s, time.Now(), ""
			} else if text := status.Convert(err).Message(); ctx.Err() == nil && text != logged {
				logged = text
				r.log.DebugContext(ctx, "cluster operator not reported", "error", err)
			}
		}
		timer := time.NewTimer(lookEvery)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

func (r *Reporter) write(ctx context.Context, s State) error {
	ctx, cancel := context.WithTimeout(ctx, writePatience)
	defer cancel()
	have, err := r.operators.GetClusterOperator(ctx, &updatev1.GetClusterOperatorRequest{Name: r.name})
	if status.Code(err) == codes.NotFound {
		have, err = r.operators.CreateClusterOperator(ctx, &updatev1.CreateClusterOperatorRequest{
			ClusterOperator: &updatev1.ClusterOperator{Metadata: &metav1.ObjectMeta{Name: r.name}},
		})
	}
	if err != nil {
		return err
	}
	next := statusOf(have.GetStatus(), s, time.Now())
	if proto.Equal(next, have.GetStatus()) {
		return nil
	}
	have.Status = next
	_, err = r.operators.UpdateClusterOperatorStatus(ctx, &updatev1.UpdateClusterOperatorStatusRequest{
		Name: r.name, ClusterOperator: have,
	})
	return err
}

// statusOf returns a status updated to a state: conditions that do not change keep their times. Reason and message of
// the state belong to the conditions that are not as they are in a healthy service, or to Available if all are. It does
// not modify have, which may be nil.
func statusOf(have *updatev1.ClusterOperatorStatus, s State, now time.Time) *updatev1.ClusterOperatorStatus {
	next := proto.CloneOf(have)
	if next == nil {
		next = &updatev1.ClusterOperatorStatus{}
	}
	healthy := s.Available && !s.Progressing && !s.Degraded
	if s.Objection == (Objection{}) && (!s.Available || s.Degraded) { // first it must be well
		s.Objection = Objection{
			cmp.Or(s.Reason, "NotHealthy"),
			cmp.Or(s.Message, "the service is not available, or degraded"),
		}
	}
	for _, c := range []struct {
		typ       string
		is, cause bool
		why       Objection
	}{
		{"Available", s.Available, healthy || !s.Available, Objection{s.Reason, s.Message}},
		{"Progressing", s.Progressing, s.Progressing, Objection{s.Reason, s.Message}},
		{"Degraded", s.Degraded, s.Degraded, Objection{s.Reason, s.Message}},
		{"Upgradeable", s.Objection == Objection{}, true, s.Objection},
	} {
		word := map[bool]string{true: "True", false: "False"}[c.is]
		cond := Condition{Type: c.typ, Status: word, Reason: "AsExpected"}
		if c.cause {
			cond.Reason, cond.Message = cmp.Or(c.why.Reason, cond.Reason), c.why.Message
		}
		set(next, cond, now)
	}
	if s.Further != (Condition{}) {
		set(next, s.Further, now)
	}
	if program := cmp.Or(s.ProgramVersion, version.Number); !s.VersionUnknown {
		setVersion(next, Operand, cmp.Or(s.Version, program))
		setVersion(next, Program, program)
	}
	return next
}

func setVersion(st *updatev1.ClusterOperatorStatus, operand, number string) {
	i := slices.IndexFunc(st.Versions, func(v *updatev1.OperandVersion) bool { return v.GetName() == operand })
	if i < 0 {
		st.Versions = append(st.Versions, &updatev1.OperandVersion{Name: operand, Version: number})
	} else {
		st.Versions[i].Version = number
	}
}

func set(st *updatev1.ClusterOperatorStatus, is Condition, now time.Time) {
	c := &metav1.Condition{Type: is.Type, Status: is.Status, Reason: proto.String(is.Reason)}
	if is.Message != "" {
		c.Message = proto.String(is.Message)
	}
	i := slices.IndexFunc(st.Conditions, func(c *metav1.Condition) bool { return c.GetType() == is.Type })
	if i < 0 {
		c.LastTransitionTime = &timestamppb.Timestamp{Seconds: now.Unix()}
		st.Conditions = append(st.Conditions, c)
		return
	}
	c.LastTransitionTime = st.Conditions[i].GetLastTransitionTime()
	if st.Conditions[i].GetStatus() != is.Status {
		c.LastTransitionTime = &timestamppb.Timestamp{Seconds: now.Unix()}
	}
	st.Conditions[i] = c
}
