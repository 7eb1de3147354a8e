package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

// Effect is what a cluster operator that is not ready does to an application.
type Effect int

// Effects of a cluster operator.
const (
	Ready             Effect = iota // nothing is owed
	Report                          // it is said, and the application goes on
	Wait                            // the application waits; that is no failure
	FailAfterInterval               // the application waits; after 40 minutes that is a failure
	Fail                            // the application waits, and that is a failure at once
)

// Reasons why a cluster operator is not ready.
const (
	operatorNoVersions   = "ClusterOperatorNoVersions"
	operatorNotAvailable = "ClusterOperatorNotAvailable"
	operatorDegraded     = "ClusterOperatorDegraded"
	operatorUpdating     = "ClusterOperatorUpdating"
	operatorSlow         = "SlowClusterOperator"
)

// Gate is what a cluster operator owes. The zero Gate is ready.
type Gate struct {
	Effect   Effect
	Operator string
	Reason   string // such as ClusterOperatorDegraded
	Message  string
	Wait     *updatev1.UpdateWait // nil if Ready or Report
}

// Blocks reports whether what comes after the operator has to wait.
func (g Gate) Blocks() bool { return g.Effect > Report }

// gateView is what the gate of a cluster operator depends on.
type gateView struct {
	Operator string
	File     string                     // manifest that it belongs to
	Object   *metav1.ObjectReference    // of the manifest
	Declared []*updatev1.OperandVersion // versions that its manifest in the release says
	Live     *updatev1.ClusterOperator  // nil if there is none
	Mode     Mode
	Since    time.Time // when it was first checked in this application
}

// operatorGate says whether a cluster operator is where the release wants it: available, not degraded, and at the
// declared versions. That it is progressing does not matter. While Initializing, degraded ones are let pass and
// versions are not waited for.
func operatorGate(v gateView) Gate {
	conditions := v.Live.GetStatus().GetConditions()
	if len(v.Declared) == 0 {
		return v.owes(Fail, operatorNoVersions,
			fmt.Sprintf("Cluster operator %s is of unknown version: its manifest declares none", v.Operator),
			"the manifest declares versions", "it declares none")
	}
	if v.Live == nil {
		return v.owes(Fail, operatorNotAvailable, fmt.Sprintf("Cluster operator %s is not available", v.Operator),
			"Available=True", "there is no such cluster operator")
	}
	if c := Find(conditions, Available); c.GetStatus() != True {
		return v.owes(Fail, operatorNotAvailable, because(fmt.Sprintf("Cluster operator %s is not available", v.Operator), c),
			"Available=True", seen(Available, c))
	}
	if c := Find(conditions, Degraded); c.GetStatus() != False {
		effect := FailAfterInterval
		if v.Mode == Initializing {
			effect = Report
		}
		return v.owes(effect, operatorDegraded, because(fmt.Sprintf("Cluster operator %s is degraded", v.Operator), c),
			"Degraded=False", seen(Degraded, c))
	}
	if behind := v.behind(); len(behind) > 0 && v.Mode != Initializing {
		return v.owes(Wait, operatorUpdating, fmt.Sprintf("Cluster operator %s is updating versions", v.Operator),
			"versions "+v.declared(), strings.Join(behind, ", "))
	}
	return Gate{}
}

func (v gateView) owes(effect Effect, reason, message, fact, observed string) Gate {
	g := Gate{Effect: effect, Operator: v.Operator, Reason: reason, Message: message}
	if g.Blocks() {
		g.Wait = &updatev1.UpdateWait{
			Object: v.Object, Manifest: v.File, Fact: operatorFact(v.Operator) + fact + ".", Observed: observed,
			Since: timestamppb.New(v.Since),
		}
	}
	return g
}

// because adds to a text what a condition says.
func because(text string, c *metav1.Condition) string {
	if c.GetReason() == "" && c.GetMessage() == "" {
		return text
	}
	return fmt.Sprintf("%s (%s: %s)", text, c.GetReason(), c.GetMessage())
}

func seen(kind string, c *metav1.Condition) string {
	if c == nil {
		return kind + " is not reported"
	}
	return because(kind+"="+c.GetStatus(), c)
}

func (v gateView) declared() string {
	var out []string
	for _, d := range v.Declared {
		out = append(out, d.GetName()+" "+d.GetVersion())
	}
	return strings.Join(out, ", ")
}

// behind returns the declared versions that are not reached, as they are.
func (v gateView) behind() []string {
	var out []string
	for _, d := range v.Declared {
		versions := v.Live.GetStatus().GetVersions()
		i := slices.IndexFunc(versions, func(o *updatev1.OperandVersion) bool { return o.GetName() == d.GetName() })
		switch {
		case i < 0:
			out = append(out, d.GetName()+" has no version")
		case versions[i].GetVersion() != d.GetVersion():
			out = append(out, d.GetName()+" is at "+versions[i].GetVersion())
		}
	}
	return out
}
