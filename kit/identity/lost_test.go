package identity

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRightsThatAPolicyTakesAway(t *testing.T) {
	change := Attributes{Verb: "update", Group: "windlass.dev", Resource: "hosts/access"}
	const bound = `---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: bob}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: bob}
`
	before := string(DefaultPolicy()) + bound
	without := func(text, document string) string {
		t.Helper()
		kept := slices.DeleteFunc(strings.Split(text, "\n---\n"), func(d string) bool {
			return strings.Contains(d, document)
		})
		out := strings.Join(kept, "\n---\n")
		if out == text {
			t.Fatalf("%q is not in the policy", document)
		}
		return out
	}
	bob, ann := Caller{User: "bob"}, Caller{User: "ann", Groups: []string{GroupMasters}}
	for name, test := range map[string]struct {
		before, after string
		caller        Caller
		lost          string // a part of the first right
	}{
		"the same policy": {before, before, bob, ""},
		"the caller's binding": {
			before, string(DefaultPolicy()), bob,
			`user "bob" may not update hosts/access`,
		},
		"another caller's binding":  {before, string(DefaultPolicy()), ann, ""},
		"a caller who had no right": {before, before, Caller{User: "eve"}, ""},
		"a right of the services": {
			before, without(before, "kind: ClusterRoleBinding\nmetadata:\n  name: system:windlass:revocations"), ann,
			`user "system:windlass"`,
		},
		"a binding of users": {
			before, without(before, "kind: ClusterRoleBinding\nmetadata:\n  name: view\n"), ann, "",
		},
		"a former policy that cannot be read": {"kind: Pod", before, bob, ""},
	} {
		lost, err := LostRights([]byte(test.before), []byte(test.after), test.caller, change)
		if err != nil || (len(lost) > 0) != (test.lost != "") || test.lost != "" && !strings.Contains(lost[0], test.lost) {
			t.Errorf("%s: lost %q, %v; want %q", name, lost, err, test.lost)
		}
	}
	if _, err := LostRights([]byte(before), []byte(before[:len(before)-40]), bob, change); err == nil {
		t.Error("a policy that was cut off is compared")
	}
	if got := ListLost([]string{"a", "b", "c", "d", "e"}); got != "a; b; c; and 2 more" {
		t.Errorf("listed: %q", got)
	}
}

func TestTokensAreRemovedFromAText(t *testing.T) {
	text := []byte("# people\n")
	var ids []string
	for _, user := range []string{"ann", "bob"} {
		_, entry, err := NewToken(user, nil, time.Now().Add(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		if text, err = AppendToken(text, entry); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, entry.SHA256)
	}
	text, err := RemoveTokens(text, func(t Token) bool { return t.User == "ann" })
	if err != nil || !strings.HasPrefix(string(text), "# people\n") || strings.Contains(string(text), ids[0]) ||
		!strings.Contains(string(text), ids[1]) {
		t.Errorf("left is %q, %v", text, err)
	}
	if _, err := RemoveTokens([]byte("{}"), func(Token) bool { return true }); err == nil {
		t.Error("a file that gateways refuse is changed")
	}
}
