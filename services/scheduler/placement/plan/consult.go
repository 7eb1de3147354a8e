package plan

import (
	"fmt"
	"slices"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

const (
	// mostInquiries is how many pods the same extenders are asked about at the same time.
	mostInquiries = 16
	// mostWithNodes is the same for extenders that are sent whole nodes: a question of 5,000 nodes has tens of megabytes.
	mostWithNodes = 2
)

// consultation is a pod that extenders are asked about, or that waits for its turn.
type consultation struct {
	pod      *schedulingv1.Pod
	of       line
	inquiry  *Inquiry // nil until its turn
	answered bool     // the inquiry has no further question
}

// line is the pods that wait for the same extenders: others do not wait behind them.
type line struct {
	profile *Profile
	mask    uint32 // which of the profile's extenders
}

// lineOf returns the line of a pod; false if no extender is responsible for it.
func (q *Queue) lineOf(pod *schedulingv1.Pod) (line, bool) {
	l := line{profile: q.Of(pod)}
	for i, e := range l.profile.extenders {
		if e.concerns(pod.GetSpec()) {
			l.mask |= 1 << i
		}
	}
	return l, l.mask != 0
}

// most is how many pods of a line may be asked about at the same time. Where an extender alone counts a resource it is
// one, until its binding is stored: the extender could promise the last unit twice.
func (l line) most() int {
	most := mostInquiries
	for i, e := range l.profile.extenders {
		switch {
		case l.mask&(1<<i) == 0:
		case e.counts():
			return 1
		case !e.NamesOnly:
			most = mostWithNodes
		}
	}
	return most
}

// queueUp returns the pods that no extender is responsible for; the others wait for their turn.
func (q *Queue) queueUp(pods []*schedulingv1.Pod) (plain []*schedulingv1.Pod) {
	if !q.extended() {
		return pods
	}
	for _, pod := range pods {
		l, extended := q.lineOf(pod)
		if !extended {
			plain = append(plain, pod)
			continue
		}
		k := object.KeyOf(pod)
		if q.consulted[k] == nil { // one that is asked about already is decided on by what is known then
			q.consulted[k] = &consultation{pod: pod, of: l}
		}
	}
	return plain
}

// extended reports whether a policy has extenders.
func (p Profiles) extended() bool {
	for _, one := range p {
		if len(one.extenders) > 0 {
			return true
		}
	}
	return false
}

// Answer takes in answers to questions of plans. Those about pods that changed since are dropped.
func (q *Queue) Answer(now time.Time, answers []Answer) {
	for _, a := range answers {
		if fault := a.of.Take(a); fault == "" {
			delete(q.silent, a.URL)
		} else if _, known := q.silent[a.URL]; !known {
			q.silent[a.URL] = now
		}
		if a.of.open == 0 {
			delete(q.abandoned, a.of)
		}
		k := object.KeyOf(a.of.pod)
		if c := q.consulted[k]; c != nil && c.inquiry == a.of && a.of.open == 0 {
			q.replied = append(q.replied, k)
		}
	}
}

// abandon forgets what extenders are asked about a pod. Questions that are under way keep their turn until they have
// their answers: otherwise a user who creates and deletes pods could have any number of calls under way.
func (q *Queue) abandon(k object.Key) {
	if c := q.consulted[k]; c != nil && c.inquiry != nil && c.inquiry.open > 0 {
		q.abandoned[c.inquiry] = c.of
	}
	delete(q.consulted, k)
}

// consult goes on with the inquiries that have their answers: it returns the next questions, and the pods that can be
// decided on.
func (q *Queue) consult() (ask []Question, answered []*schedulingv1.Pod) {
	for _, k := range q.replied {
		c := q.consulted[k]
		if c == nil || c.inquiry == nil || c.answered {
			continue
		}
		more := c.inquiry.Ask()
		ask = append(ask, more...)
		if len(more) == 0 && c.inquiry.open == 0 {
			c.answered = true
			answered = append(answered, c.pod)
		}
	}
	q.replied = nil
	return ask, answered
}

// turns returns the pods whose turn it is to be asked about. New ones do not wait behind those that are tried again,
// and the other way round.
func (q *Queue) turns() (out []*consultation) {
	if len(q.consulted) == 0 {
		return nil
	}
	active := map[line]int{}
	for _, l := range q.abandoned {
		active[l]++
	}
	fresh, again := map[line][]*consultation{}, map[line][]*consultation{}
	for k, c := range q.consulted {
		switch {
		case c.inquiry != nil:
			active[c.of]++
		case q.stuck[k] != nil:
			again[c.of] = append(again[c.of], c)
		default:
			fresh[c.of] = append(fresh[c.of], c)
		}
	}
	for _, waiting := range []map[line][]*consultation{fresh, again} {
		for l := range waiting {
			if active[l] < l.most() {
				out = append(out, q.first(l, l.most()-active[l], fresh[l], again[l])...)
				delete(fresh, l)
				delete(again, l)
			}
		}
	}
	slices.SortFunc(out, func(a, b *consultation) int { return earlier(a.pod, b.pod) })
	return out
}

// first returns the first n of two lists, in turn from each.
func (q *Queue) first(l line, n int, fresh, again []*consultation) (out []*consultation) {
	slices.SortFunc(fresh, func(a, b *consultation) int { return earlier(a.pod, b.pod) })
	slices.SortFunc(again, func(a, b *consultation) int {
		return longerWaiting(q.stuck[object.KeyOf(a.pod)], q.stuck[object.KeyOf(b.pod)])
	})
	for ; n > 0 && len(fresh)+len(again) > 0; n-- {
		from := &fresh
		if len(fresh) == 0 || q.retried[l] && len(again) > 0 {
			from = &again
		}
		q.retried[l] = from == &fresh // the next one is of the other list
		out, *from = append(out, (*from)[0]), (*from)[1:]
	}
	return out
}

// begin asks the first extenders about pods whose turn it is. It returns the decisions about those that no node fits.
func (q *Queue) begin(turns []*consultation) (ask []Question, held []Decision) {
	for _, c := range turns {
		k := object.KeyOf(c.pod)
		if q.consulted[k] != c {
			continue
		}
		b := q.boardFor(c.of.profile)
		b.round++ // the reasons of an earlier decision may not hold any more
		if why := q.refusal(b.profile, c.pod); why != "" {
			delete(q.consulted, k)
			held = append(held, Decision{Pod: c.pod, Message: why, Refused: true})
			continue
		}
		restore := q.withdraw(c.pod)
		class := b.classOf(c.pod)
		fitting := class.fitting(class.catchUp())
		if len(fitting) == 0 {
			delete(q.consulted, k)
			held = append(held, class.unfit(c.pod))
			restore()
			continue
		}
		restore()
		c.inquiry = newInquiry(b.profile.extendersOf(c.pod.GetSpec()), c.pod, fitting)
		more := c.inquiry.Ask()
		if ask = append(ask, more...); len(more) == 0 { // the only node, and only a ranking
			q.replied = append(q.replied, k)
		}
	}
	return ask, held
}

// decide decides on a pod whose extenders have answered; false if they must be asked again.
func (q *Queue) decide(c *consultation) (Decision, bool) {
	k := object.KeyOf(c.pod)
	d, again := q.boardFor(c.of.profile).placeAnswered(c.inquiry, &q.turn)
	switch {
	case again:
		q.consulted[k] = &consultation{pod: c.pod, of: c.of}
		return d, false
	case d.Node == "": // otherwise it keeps its turn until the binding is stored
		delete(q.consulted, k)
	}
	d.Pod = c.pod
	if e := c.inquiry.failedBy; e != nil {
		d.Message = unanswered(e, c.inquiry.failed)
		if since, ok := q.silent[e.URL]; ok {
			d.Message += fmt.Sprintf(" It has not answered since %s, and is asked again at least every %s.",
				since.UTC().Format(time.RFC3339), longestPause)
		}
	}
	return d, true
}
