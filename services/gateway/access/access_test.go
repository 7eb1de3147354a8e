package access

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/identity"
)

// TestNoAnswerIsGivenBeforeTheStoredRolesAreRead asks for rights that they may grant: "no" may not be so.
func TestNoAnswerIsGivenBeforeTheStoredRolesAreRead(t *testing.T) {
	policy, err := identity.LoadPolicy("")
	if err != nil {
		t.Fatal(err)
	}
	policy.AwaitStored()
	s := New(policy)
	ask := func(groups ...string) (bool, error, error) {
		ctx := identity.WithCaller(t.Context(), identity.Caller{User: "dora", Groups: groups})
		answer, review := s.ReviewAccess(ctx, &metav1.ReviewAccessRequest{Verb: "get", Resource: "pods"})
		_, list := s.ListAccess(ctx, &metav1.ListAccessRequest{})
		return answer.GetAllowed(), review, list
	}
	if _, review, list := ask(); status.Code(review) != codes.Unavailable || status.Code(list) != codes.Unavailable {
		t.Errorf("review: %v, list: %v, want UNAVAILABLE", review, list)
	}
	if allowed, review, _ := ask("windlass:viewers"); !allowed || review != nil {
		t.Errorf("by the policy file: %t, %v", allowed, review)
	}
	if _, _, list := ask(identity.GroupMasters); list != nil {
		t.Errorf("an administrator, who may do everything: %v", list)
	}
	policy.SetStored(identity.Stored{})
	if allowed, review, list := ask(); allowed || review != nil || list != nil {
		t.Errorf("once they are read: %t, %v, %v", allowed, review, list)
	}
}
