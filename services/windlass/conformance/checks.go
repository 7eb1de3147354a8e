package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/rpcerr"
)

const atOnce = 8 // calls with one token at the same time

// states are those that an instance may have.
var states = []string{"Creating", "Running", "Stopped", "Deleting", "Failed"}

const cleanName = "clean" // the check that deletes what the others made

// checks are all rules in the order in which they are checked; later ones use the instance that "create" made.
var checks = []check{
	{
		"info", "GetProviderInfo names the provider and the kinds of provider spec that it supports, the given one too",
		info,
	},
	{"spec-accepted", "ValidateProviderSpec accepts the given provider spec", accepts},
	{"spec-refused", "an unknown field is refused with INVALID_ARGUMENT and its path", refuses},
	{"fence", "a call with a lower fence than the highest one is refused with FAILED_PRECONDITION", fence},
	{"watch-begins", "WatchInstances sends what there is, and then one message with synced", watchBegins},
	{"create", "CreateInstance makes an instance with a provider id, for the machine of the request", create},
	{"create-again", "a repeated call with the same token returns the same instance", createAgain},
	{"create-at-once", "calls with one token at the same time make one instance", createAtOnce},
	{"get", "GetInstance finds an instance by provider id, by token, and by both", get},
	{"get-mismatch", "GetInstance finds nothing if id and token belong to different instances", getMismatch},
	{"list", "ListInstances returns every instance once, ordered by provider id", list},
	{"runs", "an instance becomes Running", runs},
	{"watch-changes", "WatchInstances sends each instance that was made", watchChanges},
	{
		"delete-mismatch", "DeleteInstance refuses an id and a token of different instances with FAILED_PRECONDITION",
		deleteMismatch,
	},
	{"delete", "DeleteInstance deletes an instance, until GetInstance answers NOT_FOUND", deleteOne},
	{"delete-again", "a repeated DeleteInstance succeeds", deleteAgain},
	{"watch-deletes", "WatchInstances sends that an instance is gone", watchDeletes},
	{"token-used", "a token whose instance was deleted is refused with FAILED_PRECONDITION", tokenUsed},
	{
		"delete-first", "a token that was deleted before its instance was made is refused with FAILED_PRECONDITION",
		deleteFirst,
	},
	{"id-new", "a later instance of the same machine name has another provider id", idNew},
	{cleanName, "nothing is left of the check", clean},
}

func info(ctx context.Context, s *suite) error {
	i, err := call(ctx, s.client.GetProviderInfo, &providerv1.GetProviderInfoRequest{})
	if err != nil {
		return err
	}
	kind := s.Spec.GetFields()["kind"].GetStringValue()
	switch {
	case i.GetName() == "":
		return errors.New("name is empty")
	case i.GetPlatform() == "":
		return errors.New("platform is empty")
	case i.GetTokenRetention().AsDuration() <= 0:
		return errors.New("tokenRetention is not set")
	case !slices.Contains(i.GetProviderSpecKinds(), kind):
		return fmt.Errorf("providerSpecKinds %q does not contain %q, the kind of the given provider spec",
			i.GetProviderSpecKinds(), kind)
	}
	return nil
}

func accepts(ctx context.Context, s *suite) error {
	_, err := call(ctx, s.client.ValidateProviderSpec, &providerv1.ValidateProviderSpecRequest{ProviderSpec: s.Spec})
	return err
}

func refuses(ctx context.Context, s *suite) error {
	const field = "windlassVerifyUnknownField"
	bad := proto.CloneOf(s.Spec)
	bad.Fields[field] = structpb.NewStringValue("x")
	_, err := call(ctx, s.client.ValidateProviderSpec, &providerv1.ValidateProviderSpecRequest{ProviderSpec: bad})
	faults, named := rpcerr.Fields(err)
	switch {
	case err == nil:
		return fmt.Errorf("a provider spec with the field %s was accepted", field)
	case status.Code(err) != codes.InvalidArgument:
		return fmt.Errorf("the code is %s, want INVALID_ARGUMENT", status.Code(err))
	case !named:
		return errors.New("the error has no BadRequest that names the field")
	}
	for _, f := range faults {
		if f.Path == field {
			return nil
		}
	}
	return fmt.Errorf("the error names %v, want %s", faults, field)
}

// errFenced says that no fence was found which the provider accepts.
var errFenced = errors.New("the fence is lower than one that the provider has seen: give the highest one")

// fence finds the fence of the calls that follow, and checks that a lower one is refused. It never sends a higher one
// than the provider has seen, except 1: machine-api would be refused from then on.
func fence(ctx context.Context, s *suite) error {
	l, err := call(ctx, s.client.ListInstances, &providerv1.ListInstancesRequest{})
	if err != nil {
		return fmt.Errorf("ListInstances: %w", err)
	}
	s.Fence = max(s.Fence, 1)
	for _, i := range l.GetInstances() {
		s.Fence = max(s.Fence, i.GetFence())
	}
	ask := func(n int64) (*providerv1.DeleteInstanceResponse, error) {
		return call(ctx, s.client.DeleteInstance, &providerv1.DeleteInstanceRequest{
			RequestToken: s.prefix + "-fence", Fence: n,
		})
	}
	switch r, err := ask(s.Fence); {
	case status.Code(err) == codes.FailedPrecondition:
		return fmt.Errorf("%w (%d was sent)", errFenced, s.Fence)
	case err != nil:
		return err
	case r.GetFence() < s.Fence:
		return fmt.Errorf("the answer says that %d is the highest fence, want at least %d", r.GetFence(), s.Fence)
	default:
		s.Fence = r.GetFence()
	}
	if _, err := ask(s.Fence - 1); status.Code(err) != codes.FailedPrecondition {
		return fmt.Errorf("the code for a lower fence is %s, want FAILED_PRECONDITION", status.Code(err))
	}
	return nil
}

// watchBegins opens the watch that the checks after it read.
func watchBegins(ctx context.Context, s *suite) error {
	stream, err := s.client.WatchInstances(ctx, &providerv1.WatchInstancesRequest{})
	if err != nil {
		return err
	}
	s.events = make(chan *providerv1.WatchInstancesResponse, 1)
	broken := make(chan error, 1)
	go func() {
		defer close(s.events)
		for {
			m, err := stream.Recv()
			if err != nil {
				broken <- err
				return
			}
			select {
			case s.events <- m:
			case <-ctx.Done():
				return
			}
		}
	}()
	_, err = s.event(ctx, "the message with synced", func(m *providerv1.WatchInstancesResponse) bool {
		return m.GetSynced()
	})
	select {
	case cause := <-broken:
		return cause
	default:
		return err
	}
}

// event returns the next message of the watch that ok accepts.
func (s *suite) event(ctx context.Context, what string, ok func(*providerv1.WatchInstancesResponse) bool) (
	*providerv1.WatchInstancesResponse, error,
) {
	if s.events == nil {
		return nil, errNeeds
	}
	ctx, cancel := context.WithTimeout(ctx, s.Limit)
	defer cancel()
	for {
		select {
		case m, open := <-s.events:
			if !open {
				return nil, errors.New("the watch broke off")
			}
			if ok(m) {
				return m, nil
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("%s did not come within %s", what, s.Limit)
		}
	}
}

func (s *suite) requestFor(machine, token string) *providerv1.CreateInstanceRequest {
	s.tokens = append(s.tokens, token)
	return &providerv1.CreateInstanceRequest{
		RequestToken: token, Fence: s.Fence,
		Machine: &metav1.ObjectReference{
			ApiVersion: "machine.openshift.io/v1beta1", Kind: "Machine", Namespace: "openshift-machine-api",
			Name: machine, Uid: token,
		},
		ProviderSpec: s.Spec,
		Bootstrap:    &providerv1.Bootstrap{Endpoints: []string{"192.0.2.1:6443"}, Token: "none", Role: "worker"},
	}
}

// complete returns what an instance that was made for a request lacks.
func complete(i *providerv1.Instance, r *providerv1.CreateInstanceRequest) error {
	switch {
	case i.GetProviderId() == "":
		return errors.New("providerId is empty")
	case i.GetMachineName() != r.GetMachine().GetName():
		return fmt.Errorf("machineName is %q, want %q", i.GetMachineName(), r.GetMachine().GetName())
	case i.GetMachineUid() != r.GetMachine().GetUid():
		return fmt.Errorf("machineUid is %q, want %q", i.GetMachineUid(), r.GetMachine().GetUid())
	case i.GetRequestToken() != r.GetRequestToken():
		return fmt.Errorf("requestToken is %q, want %q", i.GetRequestToken(), r.GetRequestToken())
	case !slices.Contains(states, i.GetState()):
		return fmt.Errorf("state is %q, want one of %q", i.GetState(), states)
	case i.GetCreateTime() == nil:
		return errors.New("createTime is missing")
	}
	return nil
}

func create(ctx context.Context, s *suite) error {
	r := s.request()
	i, err := call(ctx, s.client.CreateInstance, r)
	if err != nil {
		return err
	}
	if err := complete(i, r); err != nil {
		return err
	}
	s.first = i
	return nil
}

// same reports how an answer differs from the instance that it should be.
func same(call string, got *providerv1.Instance, err error, want *providerv1.Instance) error {
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", call, err)
	case got.GetProviderId() != want.GetProviderId():
		return fmt.Errorf("%s: provider id %q, want %q", call, got.GetProviderId(), want.GetProviderId())
	}
	return nil
}

func createAgain(ctx context.Context, s *suite) error {
	if s.first == nil {
		return errNeeds
	}
	i, err := call(ctx, s.client.CreateInstance, s.requestFor(s.first.GetMachineName(), s.first.GetMachineUid()))
	return same("CreateInstance", i, err, s.first)
}

func createAtOnce(ctx context.Context, s *suite) error {
	r := s.request()
	answers := make([]*providerv1.Instance, atOnce)
	var g errgroup.Group
	for n := range answers {
		g.Go(func() error {
			return s.until(ctx, "CreateInstance", func() (bool, error) {
				i, err := call(ctx, s.client.CreateInstance, r)
				answers[n] = i
				if code := status.Code(err); code == codes.Aborted || code == codes.Unavailable {
					return false, nil // busy with the same token: to be tried again
				}
				return err == nil, err
			})
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, i := range answers {
		if err := same("CreateInstance", i, nil, answers[0]); err != nil {
			return err
		}
	}
	return nil
}

func get(ctx context.Context, s *suite) error {
	if s.first == nil {
		return errNeeds
	}
	id, token := s.first.GetProviderId(), s.first.GetMachineUid()
	for _, r := range []*providerv1.GetInstanceRequest{
		{ProviderId: id}, {RequestToken: token}, {ProviderId: id, RequestToken: token},
	} {
		i, err := call(ctx, s.client.GetInstance, r)
		if err := same(fmt.Sprintf("GetInstance id=%q token=%q", r.GetProviderId(), r.GetRequestToken()), i, err,
			s.first); err != nil {
			return err
		}
	}
	return nil
}

func getMismatch(ctx context.Context, s *suite) error {
	if s.first == nil {
		return errNeeds
	}
	_, err := call(ctx, s.client.GetInstance, &providerv1.GetInstanceRequest{
		ProviderId: s.first.GetProviderId(), RequestToken: s.prefix + "-other",
	})
	if status.Code(err) != codes.NotFound {
		return fmt.Errorf("the code is %s, want NOT_FOUND", status.Code(err))
	}
	return nil
}

func list(ctx context.Context, s *suite) error {
	if s.first == nil {
		return errNeeds
	}
	l, err := call(ctx, s.client.ListInstances, &providerv1.ListInstancesRequest{})
	if err != nil {
		return err
	}
	found := 0
	for n, i := range l.GetInstances() {
		if n > 0 && l.GetInstances()[n-1].GetProviderId() >= i.GetProviderId() {
			return fmt.Errorf("%q comes after %q", i.GetProviderId(), l.GetInstances()[n-1].GetProviderId())
		}
		if i.GetProviderId() == s.first.GetProviderId() {
			found++
		}
	}
	if found != 1 {
		return fmt.Errorf("%q is listed %d times", s.first.GetProviderId(), found)
	}
	return nil
}

func runs(ctx context.Context, s *suite) error {
	if s.first == nil {
		return errNeeds
	}
	return s.until(ctx, "state Running", func() (bool, error) {
		i, err := call(ctx, s.client.GetInstance, &providerv1.GetInstanceRequest{RequestToken: s.first.GetMachineUid()})
		if err := same("GetInstance", i, err, s.first); err != nil {
			return false, err
		}
		if i.GetState() == "Failed" {
			return false, fmt.Errorf("state is Failed: %s", i.GetMessage())
		}
		return i.GetState() == "Running", nil
	})
}

func watchChanges(ctx context.Context, s *suite) error {
	if s.first == nil {
		return errNeeds
	}
	_, err := s.event(ctx, "the instance "+s.first.GetProviderId(), func(m *providerv1.WatchInstancesResponse) bool {
		return !m.GetDeleted() && m.GetInstance().GetProviderId() == s.first.GetProviderId()
	})
	return err
}

func deleteMismatch(ctx context.Context, s *suite) error {
	if s.first == nil {
		return errNeeds
	}
	_, err := call(ctx, s.client.DeleteInstance, &providerv1.DeleteInstanceRequest{
		ProviderId: s.first.GetProviderId(), RequestToken: s.prefix + "-other", Fence: s.Fence,
	})
	if status.Code(err) != codes.FailedPrecondition {
		return fmt.Errorf("the code is %s, want FAILED_PRECONDITION", status.Code(err))
	}
	i, err := call(ctx, s.client.GetInstance, &providerv1.GetInstanceRequest{RequestToken: s.first.GetMachineUid()})
	if err := same("GetInstance", i, err, s.first); err != nil {
		return err
	}
	if i.GetState() == "Deleting" {
		return errors.New("the instance is being deleted")
	}
	return nil
}

func deleteOne(ctx context.Context, s *suite) error {
	if s.first == nil {
		return errNeeds
	}
	_, err := call(ctx, s.client.DeleteInstance, &providerv1.DeleteInstanceRequest{
		ProviderId: s.first.GetProviderId(), RequestToken: s.first.GetMachineUid(), Fence: s.Fence,
	})
	if err != nil {
		return err
	}
	return s.gone(ctx, s.first.GetMachineUid())
}

func deleteAgain(ctx context.Context, s *suite) error {
	if s.first == nil {
		return errNeeds
	}
	_, err := call(ctx, s.client.DeleteInstance, &providerv1.DeleteInstanceRequest{
		ProviderId: s.first.GetProviderId(), RequestToken: s.first.GetMachineUid(), Fence: s.Fence,
	})
	return err
}

func watchDeletes(ctx context.Context, s *suite) error {
	if s.first == nil {
		return errNeeds
	}
	_, err := s.event(ctx, "that "+s.first.GetProviderId()+" is gone", func(m *providerv1.WatchInstancesResponse) bool {
		return m.GetDeleted() && m.GetInstance().GetProviderId() == s.first.GetProviderId()
	})
	return err
}

// makesNone calls CreateInstance, which has to be refused.
func (s *suite) makesNone(ctx context.Context, r *providerv1.CreateInstanceRequest) error {
	i, err := call(ctx, s.client.CreateInstance, r)
	if err == nil {
		return fmt.Errorf("CreateInstance made %q", i.GetProviderId())
	}
	if status.Code(err) != codes.FailedPrecondition {
		return fmt.Errorf("the code is %s, want FAILED_PRECONDITION", status.Code(err))
	}
	return s.gone(ctx, r.GetRequestToken())
}

func tokenUsed(ctx context.Context, s *suite) error {
	if s.first == nil {
		return errNeeds
	}
	return s.makesNone(ctx, s.requestFor(s.first.GetMachineName(), s.first.GetMachineUid()))
}

func deleteFirst(ctx context.Context, s *suite) error {
	r := s.request()
	_, err := call(ctx, s.client.DeleteInstance, &providerv1.DeleteInstanceRequest{
		RequestToken: r.GetRequestToken(), Fence: s.Fence,
	})
	if err != nil {
		return err
	}
	return s.makesNone(ctx, r)
}

func idNew(ctx context.Context, s *suite) error {
	if s.first == nil {
		return errNeeds
	}
	r := s.requestFor(s.first.GetMachineName(), s.prefix+"-successor")
	i, err := call(ctx, s.client.CreateInstance, r)
	if err != nil {
		return err
	}
	if i.GetProviderId() == s.first.GetProviderId() {
		return fmt.Errorf("provider id %q was given again", i.GetProviderId())
	}
	return complete(i, r)
}

// clean deletes every instance that was asked for and waits until it is gone.
func clean(ctx context.Context, s *suite) error {
	var errs []error
	for _, token := range slices.Compact(slices.Sorted(slices.Values(s.tokens))) {
		_, err := call(ctx, s.client.DeleteInstance, &providerv1.DeleteInstanceRequest{
			RequestToken: token, Fence: s.Fence,
		})
		if err == nil {
			err = s.gone(ctx, token)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("token %s: %w", token, err))
		}
	}
	return errors.Join(errs...)
}
