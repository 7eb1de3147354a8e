package ignition

import (
	"crypto/sha256"
	"fmt"
	"testing"

	"github.com/coreos/ignition/v2/config/v3_5/types"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/structpb"
)

func document(t *testing.T, text string) *structpb.Struct {
	t.Helper()
	s := &structpb.Struct{}
	if err := s.UnmarshalJSON([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestADocumentIsParsedAlikeEachTime(t *testing.T) {
	good := document(t,
		`{"ignition":{"version":"3.2.0"},"storage":{"files":[{"path":"/etc/x","contents":{"source":"data:,1"}}]}}`)
	bad := document(t, `{"ignition":{"version":"3.2.0"},"storage":{"files":[{"path":"etc/x"}]}}`)
	first, _, err := Parse(good)
	if err != nil || len(first.Storage.Files) != 1 || first.Ignition.Version != "3.5.0" {
		t.Fatal(first, err)
	}
	for range 2 {
		if again, _, err := Parse(good); err != nil || cmp.Diff(first, again) != "" {
			t.Errorf("%v, %v", again, err)
		}
		if _, why, err := Parse(bad); err == nil || len(why.Entries) == 0 {
			t.Errorf("an invalid document: %v, %v", why, err)
		}
	}
}

func TestAMemoIsBoundedAndKeepsWhatIsUsed(t *testing.T) {
	var m memo
	hash := func(n int) [sha256.Size]byte { return sha256.Sum256(fmt.Append(nil, n)) }
	named := func(n int) types.Config { return types.Config{Ignition: types.Ignition{Version: fmt.Sprint(n)}} }
	const each = most / 10
	m.keep(hash(0), each, named(0))
	for n := 1; n < 100; n++ {
		m.keep(hash(n), each, named(n))
		if got, ok := m.find(hash(0), each); !ok || got.Ignition.Version != "0" {
			t.Fatalf("after %d others, the one that is always used is gone", n)
		}
		if kept := len(m.new) + len(m.old); kept > 20 {
			t.Fatalf("%d are kept", kept)
		}
		if got, ok := m.find(hash(n), each); !ok || got.Ignition.Version != fmt.Sprint(n) {
			t.Fatalf("%d is found as %v, %v", n, got, ok)
		}
	}
	if _, ok := m.find(hash(50), each); ok {
		t.Error("one that was not used for long is kept")
	}
}
