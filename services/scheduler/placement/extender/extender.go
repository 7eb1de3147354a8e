// Package extender asks the servers that a policy names which nodes a pod may be on and how good they are, as
// Kubernetes' scheduler asks its extenders. It bounds the calls of each and the size of its answers, and stops calling
// one that does not answer.
package extender

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/webhook"
	"github.com/windlass-dev/windlass/kit/webhook/reach"

	"github.com/windlass-dev/windlass/services/scheduler/placement/plan"
)

const (
	// perExtender is how many calls of one extender may be under way; others wait within their time-out.
	perExtender = 32
	// mostPeers is how many extenders may have connections. Past it all begin again, so that deleted policies leave
	// nothing behind.
	mostPeers = 256
	// leastAnswer is how many bytes an answer may have at least. One to a question that has whole nodes may have twice as
	// many as the question besides.
	leastAnswer = 1 << 20
)

// Asker asks extenders. Its methods are safe for concurrent use.
type Asker struct {
	Allowed []string // addresses as webhook.Allowed describes them
	Now     func() time.Time
	Log     *slog.Logger

	// reach returns why an address may not be connected to; nil means reach.Allowed.
	reach func(netip.Addr) error

	mu    sync.Mutex
	peers map[string]*peer // by everything that their connections depend on
}

type peer struct {
	gate   *reach.Gate
	client *reach.Client
}

// Ask returns what an extender answers, within the time that its policy gives. The answer is not judged: the plan does.
func (a *Asker) Ask(ctx context.Context, q plan.Question) plan.Answer {
	out := plan.Answer{Question: q}
	if err := a.ask(ctx, q, &out); err != nil {
		out.Err = err.Error()
	}
	return out
}

func (a *Asker) ask(ctx context.Context, q plan.Question, out *plan.Answer) error {
	address := q.Address(q.Verb)
	if !webhook.Allowed(q.URL, a.Allowed) { // since it was stored, an administrator may have changed what is allowed
		return fmt.Errorf("%s is not allowed: see --webhook-allow of scheduler", webhook.Shown(q.URL))
	}
	p, err := a.peer(q.Extender)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, q.Timeout)
	defer cancel()
	leave, err := p.gate.Enter(limited, a.Now())
	if err != nil {
		return err
	}
	err = p.ask(limited, q, address, out)
	if ctx.Err() != nil { // the caller went away, which says nothing about the extender
		leave(false, nil, a.Now())
		return ctx.Err()
	}
	if err != nil && errors.Is(limited.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("%s did not answer within %s", webhook.Shown(address), q.Timeout)
	}
	if leave(true, err, a.Now()) {
		a.Log.WarnContext(ctx, "extender does not answer and is called less often", "url", webhook.Shown(q.URL),
			"error", err)
	}
	return err
}

func (a *Asker) peer(e *plan.Extender) (*peer, error) {
	key := fmt.Sprintf("%s\x00%s\x00%x", e.URL, e.ServerName, sha256.Sum256(e.CAData))
	a.mu.Lock()
	defer a.mu.Unlock()
	if have := a.peers[key]; have != nil {
		return have, nil
	}
	c, err := reach.NewClient(reach.Server{
		CABundle: e.CAData, Name: e.ServerName, Calls: perExtender, Allowed: a.reach,
	}, "windlass-scheduler")
	if err != nil {
		return nil, fmt.Errorf("tlsConfig.caData: %w", err)
	}
	if a.peers == nil || len(a.peers) >= mostPeers {
		for _, p := range a.peers {
			p.client.Close()
		}
		a.peers = map[string]*peer{}
	}
	p := &peer{gate: reach.NewGate(perExtender), client: c}
	a.peers[key] = p
	return p, nil
}

// ask posts a question and reads the answer.
func (p *peer) ask(ctx context.Context, q plan.Question, address string, out *plan.Answer) error {
	body, err := encode(q)
	if err != nil {
		return err
	}
	most := leastAnswer
	if !q.NamesOnly {
		most += 2 * len(body)
	}
	raw, err := p.client.Post(ctx, address, body, most)
	if err != nil {
		return err
	}
	if q.Verb == plan.FilterNodes {
		err = decodeFilter(raw, q, out)
	} else {
		err = decodeRanking(raw, out)
	}
	if err != nil {
		return fmt.Errorf("the answer of %s: %w", webhook.Shown(address), err)
	}
	return nil
}

// args is ExtenderArgs of Kubernetes' scheduler API v1, with its names.
type args struct {
	Pod       json.RawMessage `json:"pod"`
	Nodes     *nodeList       `json:"nodes,omitempty"`
	NodeNames *[]string       `json:"nodenames,omitempty"`
}

type nodeList struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   struct{}          `json:"metadata"`
	Items      []json.RawMessage `json:"items"`
}

// filterResult is ExtenderFilterResult. Its names are read whatever their case, as Kubernetes reads them.
type filterResult struct {
	Nodes *struct {
		Items []struct {
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
		} `json:"items"`
	} `json:"nodes"`
	NodeNames                  *[]string         `json:"nodenames"`
	FailedNodes                map[string]string `json:"failedNodes"`
	FailedAndUnresolvableNodes map[string]string `json:"failedAndUnresolvableNodes"`
	Error                      string            `json:"error"`
}

// hostPriority is an element of HostPriorityList.
type hostPriority struct {
	Host  string   `json:"host"`
	Score *float64 `json:"score"`
}

func encode(q plan.Question) ([]byte, error) {
	var in args
	var err error
	if in.Pod, err = manifest.Encode(q.Pod); err != nil {
		return nil, fmt.Errorf("pod %q: %w", object.KeyOf(q.Pod), err)
	}
	names := make([]string, len(q.Nodes))
	in.Nodes = &nodeList{APIVersion: "v1", Kind: "NodeList", Items: make([]json.RawMessage, len(q.Nodes))}
	for i, n := range q.Nodes {
		names[i] = n.GetMetadata().GetName()
		if q.NamesOnly {
			continue
		}
		if in.Nodes.Items[i], err = manifest.Encode(n); err != nil {
			return nil, fmt.Errorf("node %q: %w", names[i], err)
		}
	}
	if q.NamesOnly {
		in.Nodes, in.NodeNames = nil, &names
	}
	return json.Marshal(in)
}

// decodeFilter reads which nodes are left. An answer that has neither nodes nor names leaves none.
func decodeFilter(raw []byte, q plan.Question, out *plan.Answer) error {
	var r *filterResult
	if err := json.Unmarshal(raw, &r); err != nil {
		return err
	}
	switch {
	case r == nil:
		return errors.New("must be an object")
	case r.Error != "":
		return fmt.Errorf("error: %s", r.Error)
	case q.NamesOnly && r.NodeNames != nil:
		out.Nodes = *r.NodeNames
	case r.Nodes != nil:
		for _, n := range r.Nodes.Items {
			out.Nodes = append(out.Nodes, n.Metadata.Name)
		}
	}
	out.Failed = r.FailedNodes
	for name, reason := range r.FailedAndUnresolvableNodes {
		if out.Failed == nil {
			out.Failed = map[string]string{}
		}
		out.Failed[name] = reason
	}
	return nil
}

func decodeRanking(raw []byte, out *plan.Answer) error {
	if !strings.HasPrefix(string(bytes.TrimSpace(raw)), "[") {
		return errors.New("must be a list of hosts with scores")
	}
	var list []hostPriority
	if err := json.Unmarshal(raw, &list); err != nil {
		return err
	}
	for _, h := range list {
		if h.Score == nil {
			return fmt.Errorf("host %q has no score", h.Host)
		}
		out.Scores = append(out.Scores, plan.NodeScore{Node: h.Host, Score: *h.Score})
	}
	return nil
}
