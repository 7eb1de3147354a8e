package release

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func TestAVerificationIsShown(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for want, r := range map[string]*updatev1.VerifyReleaseResponse{
		"Image:    r@sha256:1\nVerified: true\n\n" +
			"KEY RING   KEY                SIGNED                 EXPIRES                SIGNATURE\n" +
			"a          00000000000000AB   2026-01-02T03:04:05Z   never                  signature-1 of file:///s\n" +
			"b          00000000000000AC   2026-01-02T03:04:05Z   2026-01-02T04:04:05Z   signature-2 of file:///s\n": {
			Image: "r@sha256:1", Verified: true, Proofs: []*updatev1.VerifyReleaseResponse_Proof{
				{
					KeyRing: "a", KeyId: "00000000000000AB", SignedTime: timestamppb.New(at), Signature: "signature-1",
					Store: "file:///s",
				},
				{
					KeyRing: "b", KeyId: "00000000000000AC", SignedTime: timestamppb.New(at),
					ExpirationTime: timestamppb.New(at.Add(time.Hour)), Signature: "signature-2", Store: "file:///s",
				},
			},
		},
		"Image:    r@sha256:1\nVerified: false\n": {Image: "r@sha256:1", Message: "no good signature"},
	} {
		var out bytes.Buffer
		err := showVerification(&out, r)
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if r.GetVerified() != (err == nil) || err != nil && err.Error() != r.GetMessage() {
			t.Errorf("%v", err)
		}
	}
}
