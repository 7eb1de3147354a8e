// Package conformance checks whether a provider plugin keeps the rules of windlass.provider.v1, as docs/provider.md
// states them. It makes real instances and deletes them again.
package conformance

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/backoff"
)

const callLimit = 30 * time.Second // that machine-api gives one call

// Options say how a provider is checked.
type Options struct {
	Spec  *structpb.Struct // provider spec of the instances that are made; required
	Limit time.Duration    // for an instance to be made, and for one to be gone; default 2 minutes
	// Fence is the highest fence that the provider has seen; 0: the highest of its instances, or 1.
	Fence int64
	// Done is called after each check, if it is not nil.
	Done func(Result)
}

// Result is what came of one check.
type Result struct {
	Name    string        // such as "create-again"
	Rule    string        // that the provider has to keep
	Err     error         // how it broke the rule; nil if it kept it
	Skipped string        // why it was not checked; empty if it was
	Took    time.Duration // time the check took
}

// check is one rule and how to find out whether it is kept.
type check struct {
	name, rule string
	run        func(ctx context.Context, s *suite) error
}

// suite is what the checks share.
type suite struct {
	client providerv1.ProviderServiceClient
	Options
	prefix string // of the names of machines and the request tokens
	made   int
	tokens []string // of all instances that were asked for
	first  *providerv1.Instance
	events chan *providerv1.WatchInstancesResponse
}

// Errors of checks that say nothing about the provider.
var (
	errNeeds       = errors.New("no instance was made")
	errInterrupted = errors.New("interrupted")
)

// cleaning is how long an interrupted check may take to delete what it made.
const cleaning = 30 * time.Second

// Names returns the names of all checks, in their order.
func Names() []string {
	var out []string
	for _, c := range checks {
		out = append(out, c.name)
	}
	return out
}

// Run checks the provider behind conn: every rule in order, and that nothing is left at the end. A rule that cannot be
// checked because an earlier one was broken is skipped. When ctx ends, the rest is skipped except for the deletion of
// what was made.
func Run(ctx context.Context, conn grpc.ClientConnInterface, o Options) []Result {
	if o.Limit <= 0 {
		o.Limit = 2 * time.Minute
	}
	s := &suite{
		client: providerv1.NewProviderServiceClient(conn), Options: o,
		prefix: "verify-" + strings.ToLower(rand.Text()[:8]),
	}
	var out []Result
	for _, c := range checks {
		begin := time.Now()
		err := s.check(ctx, c)
		r := Result{Name: c.name, Rule: c.rule, Err: err, Took: time.Since(begin)}
		if errors.Is(err, errNeeds) || errors.Is(err, errInterrupted) {
			r.Err, r.Skipped = nil, err.Error()
		}
		out = append(out, r)
		if o.Done != nil {
			o.Done(r)
		}
	}
	return out
}

// check runs one check. An interrupt is no fault of the provider.
func (s *suite) check(ctx context.Context, c check) error {
	if ctx.Err() == nil {
		if err := c.run(ctx, s); ctx.Err() == nil {
			return err
		}
	}
	if c.name != cleanName {
		return errInterrupted
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleaning)
	defer cancel()
	return c.run(ctx, s)
}

// request returns the request to create an instance with a token of its own.
func (s *suite) request() *providerv1.CreateInstanceRequest {
	s.made++
	name := fmt.Sprintf("%s-%d", s.prefix, s.made)
	return s.requestFor(name, name)
}

// call limits one call as machine-api does.
func call[Q, A any](ctx context.Context, f func(context.Context, Q, ...grpc.CallOption) (A, error), q Q) (A, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return f(ctx, q)
}

// until calls f with growing pauses until it reports true, for at most the limit of the options.
func (s *suite) until(ctx context.Context, what string, f func() (bool, error)) error {
	limited, cancel := context.WithTimeout(ctx, s.Limit)
	defer cancel()
	for again := backoff.New(20*time.Millisecond, time.Second); ; {
		ok, err := f()
		if err != nil || ok {
			return err
		}
		if !again.Wait(limited) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("%s did not come about within %s", what, s.Limit)
		}
	}
}

// gone waits until no instance of a token is there.
func (s *suite) gone(ctx context.Context, token string) error {
	return s.until(ctx, "NOT_FOUND for request token "+token, func() (bool, error) {
		_, err := call(ctx, s.client.GetInstance, &providerv1.GetInstanceRequest{RequestToken: token})
		if err != nil && status.Code(err) != codes.NotFound {
			return false, fmt.Errorf("GetInstance: %w", err)
		}
		return err != nil, nil
	})
}
