package plan

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

// Reasons of the conditions Recommended and Applies.
const (
	notExposedToRisks       = "NotExposedToRisks"
	allExposedRisksAccepted = "AllExposedRisksAccepted"
	exposedToRisks          = "ExposedToRisks" // where the risk's name is no valid reason
	evaluationFailed        = "EvaluationFailed"
	multipleReasons         = "MultipleReasons"
	match                   = "Match"
	notMatch                = "NotMatch"
)

// Types of rules.
const (
	ruleAlways = "Always"
	rulePromQL = "PromQL"
)

// reasonForm is what the reason of a condition may be.
var reasonForm = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`)

// assess says of each risk of an update whether it applies, and whether the update is recommended. It is false if a
// risk has no rule that is understood: then nothing can be said of the update, and it is not offered.
func (q Query) assess(u *updatev1.ConditionalUpdate) (*updatev1.ConditionalUpdate, bool) {
	out := &updatev1.ConditionalUpdate{Release: u.Release}
	var before *updatev1.ConditionalUpdate
	if i := slices.IndexFunc(q.Before, func(b *updatev1.ConditionalUpdate) bool {
		return identity(b.GetRelease()) == identity(u.GetRelease())
	}); i >= 0 {
		before = q.Before[i]
	}
	v := newOpinion()
	for _, risk := range u.GetRisks() {
		risk = proto.CloneOf(risk)
		risk.MatchingRules = slices.DeleteFunc(risk.MatchingRules, unusable)
		risk.Outcomes, risk.Conditions = nil, nil // of the last outcome
		applies, why := q.exposure(risk)
		if applies == "" {
			return nil, false
		}
		v.add(risk, applies, why, slices.Contains(q.Accept, risk.GetName()))
		q.setApplies(risk, applies, why, before)
		out.Risks = append(out.Risks, risk)
	}
	c := condition(Recommended, v.status, v.reason, v.text())
	if !q.Now.IsZero() {
		c = Stamp(c, Find(before.GetConditions(), Recommended), q.Now)
	}
	out.Conditions = append(out.Conditions, c)
	return out, true
}

// unusable reports whether a rule is of an unknown type or contradicts itself.
func unusable(rule *updatev1.ClusterCondition) bool {
	switch rule.GetType() {
	case ruleAlways:
		return rule.GetPromql() != nil
	case rulePromQL:
		return rule.GetPromql().GetPromql() == ""
	}
	return true
}

// exposure says whether a risk applies, and why that is not known. The status is empty if the risk has no rule. It
// notes the outcomes of the rules in the risk: the first rule with a result decides. Source: the Cluster Version
// Operator.
func (q Query) exposure(risk *updatev1.ConditionalUpdateRisk) (status, why string) {
	switch result, known := q.Results[risk.GetName()]; {
	case known && (result == True || result == False):
		return result, ""
	case known:
		return Unknown, "the rule could not be evaluated"
	case len(risk.GetMatchingRules()) == 0:
		return "", ""
	}
	var failures []string
	for _, rule := range risk.GetMatchingRules() {
		o := q.outcome(rule)
		risk.Outcomes = append(risk.Outcomes, o)
		if o.GetStatus() != Unknown {
			return o.GetStatus(), ""
		}
		failures = append(failures, o.GetMessage())
		if o.GetAttempted() == nil {
			break // the next rules count only once this one has failed
		}
	}
	return Unknown, strings.Join(failures, "; ")
}

func (q Query) setApplies(risk *updatev1.ConditionalUpdateRisk, status, why string,
	before *updatev1.ConditionalUpdate,
) {
	reason, message := notMatch, "The risk does not apply to this cluster."
	switch status {
	case True:
		reason, message = match, "The risk applies to this cluster."
	case Unknown:
		reason, message = evaluationFailed, fmt.Sprintf("Could not evaluate whether the risk applies to this cluster: %s.",
			why)
	}
	c := condition(Applies, status, reason, message)
	if !q.Now.IsZero() {
		var last *updatev1.ConditionalUpdateRisk
		for _, r := range before.GetRisks() {
			if r.GetName() == risk.GetName() {
				last = r
			}
		}
		c = Stamp(c, Find(last.GetConditions(), Applies), q.Now)
	}
	risk.Conditions = append(risk.Conditions, c)
}

// opinion is whether an update is recommended, as far as its risks were evaluated.
type opinion struct {
	status, reason string
	messages       []string
	accepted       []string // risks that apply, or of which that is not known
	unjudged       []string // accepted risks of which it is not known whether they apply, and why
}

func newOpinion() opinion { return opinion{status: True, reason: notExposedToRisks} }

// add takes a risk into account.
func (o *opinion) add(risk *updatev1.ConditionalUpdateRisk, applies, why string, accepted bool) {
	switch {
	case applies == False:
	case accepted:
		if o.reason == notExposedToRisks {
			o.reason = allExposedRisksAccepted
		}
		o.accepted = append(o.accepted, risk.GetName())
		if applies != True {
			o.unjudged = append(o.unjudged, fmt.Sprintf("%s (%s)", risk.GetName(), why))
		}
	case applies == True:
		o.status = False
		reason := risk.GetName()
		if !reasonForm.MatchString(reason) {
			reason = exposedToRisks
		}
		o.because(reason)
		o.messages = append(o.messages, strings.TrimSpace(risk.GetMessage()+" "+risk.GetUrl()))
	default:
		if o.status == True {
			o.status = Unknown
		}
		o.because(evaluationFailed)
		n := risk.GetName()
		o.messages = append(o.messages,
			fmt.Sprintf("Could not evaluate exposure to update risk %s (%s)\n  %s description: %s\n  %s URL: %s",
				n, why, n, risk.GetMessage(), n, risk.GetUrl()))
	}
}

func (o *opinion) because(reason string) {
	switch o.reason {
	case notExposedToRisks, allExposedRisksAccepted, reason:
		o.reason = reason
	default:
		o.reason = multipleReasons
	}
}

func (o *opinion) text() string {
	messages := o.messages
	switch o.reason {
	case notExposedToRisks:
		return "The update is recommended, because none of the conditional update risks apply to this cluster."
	case allExposedRisksAccepted:
		messages = []string{"The update is recommended, because each conditional update risk either does not apply to " +
			"this cluster or is accepted.", "Accepted: " + strings.Join(o.accepted, ", ") + "."}
	}
	if len(o.unjudged) > 0 {
		messages = append(messages, "Accepted without an evaluation of whether they apply: "+
			strings.Join(o.unjudged, ", ")+".")
	}
	return strings.Join(messages, "\n\n")
}
