package access

import (
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
)

// begin returns the follower of a host whose programs do not run.
func begin(t *testing.T) (*cluster.Cluster, *Follower) {
	t.Helper()
	c, err := cluster.CreateHost(t.TempDir(), cluster.Settings{
		Name: "main", Member: &cluster.Member{Name: "h1", Address: "127.0.0.1"},
	})
	must(t, err)
	_, err = c.EnsureCertificates(time.Now())
	must(t, err)
	must(t, os.MkdirAll(c.Dir("host"), 0o700))
	return c, NewFollower(c, slog.New(slog.DiscardHandler))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	must(t, err)
	return string(raw)
}

func reported(t *testing.T, f *Follower) *hostv1.SyncAccessRequest {
	t.Helper()
	r, err := f.Report(t.Context())
	must(t, err)
	return r
}

// answer is the content of a generation with the texts that a host does not have.
func answer(generation int32, policy, tokens string, has *hostv1.HostAccess) *hostv1.SyncAccessResponse {
	out := &hostv1.SyncAccessResponse{
		Generation: generation, PolicyHash: hashOf([]byte(policy)), TokensHash: hashOf([]byte(tokens)),
	}
	if has.GetPolicyHash() != out.GetPolicyHash() {
		out.Policy = &policy
	}
	if has.GetTokensHash() != out.GetTokensHash() {
		out.Tokens = &tokens
	}
	return out
}

func tokenLine(t *testing.T, user string) string {
	t.Helper()
	_, entry, err := identity.NewToken(user, nil, time.Now().Add(time.Hour))
	must(t, err)
	line, err := identity.AppendToken(nil, entry)
	must(t, err)
	return string(line)
}

func TestTheFilesFollowWhatIsRecorded(t *testing.T) {
	c, f := begin(t)
	policy := read(t, c.Dir("policy.yaml"))
	r := reported(t, f)
	if is := r.GetAccess(); is.GetGeneration() != 0 || is.GetPolicyHash() != hashOf([]byte(policy)) ||
		is.GetTokensHash() != hashOf(nil) || len(is.GetChanged()) > 0 || r.Policy != nil {
		t.Errorf("the first report: %v", r)
	}
	must(t, f.Follow(t.Context(), &hostv1.SyncAccessResponse{Wanted: true}))
	if r = reported(t, f); r.GetPolicy() != policy || r.Tokens == nil {
		t.Error("the texts that were asked for are not in the report")
	}
	must(t, f.Follow(t.Context(), answer(1, policy, "", r.GetAccess())))
	if r = reported(t, f); r.GetAccess().GetGeneration() != 1 || r.Policy != nil {
		t.Errorf("after the first content: %v", r)
	}
	tokens := tokenLine(t, "ann")
	must(t, f.Follow(t.Context(), answer(2, policy+"# 2\n", tokens, r.GetAccess())))
	if read(t, c.Dir("policy.yaml")) != policy+"# 2\n" || read(t, c.TokensFile()) != tokens {
		t.Error("the files do not have the recorded content")
	}
	again := NewFollower(c, f.log) // as after a restart
	if is := reported(t, again).GetAccess(); is.GetGeneration() != 2 || len(is.GetChanged()) > 0 {
		t.Errorf("after a change: %v", is)
	}
	if _, err := os.Stat(c.Dir("policy.yaml.replaced")); err == nil {
		t.Error("what the cluster wrote is kept as if a user had written it")
	}
	must(t, os.WriteFile(c.Dir("policy.yaml"), []byte(policy+"# mine\n"), 0o600))
	must(t, os.Remove(c.TokensFile()))
	is := reported(t, again).GetAccess()
	if strings.Join(is.GetChanged(), " ") != "policy.yaml tokens" {
		t.Errorf("after a change on the host: %v", is)
	}
	must(t, again.Follow(t.Context(), answer(2, policy+"# 2\n", tokens, is)))
	if read(t, c.Dir("policy.yaml")) != policy+"# 2\n" || read(t, c.TokensFile()) != tokens ||
		read(t, c.Dir("policy.yaml.replaced")) != policy+"# mine\n" {
		t.Error("the files are not put back, or the work of a user is lost")
	}
	if is := reported(t, again).GetAccess(); len(is.GetChanged()) > 0 {
		t.Errorf("after they were put back: %v", is)
	}
}

// A process that was killed between the files is not taken for a user who changed one.
func TestAWriteThatWasCutOffIsNoChangeByOthers(t *testing.T) {
	c, f := begin(t)
	policy := read(t, c.Dir("policy.yaml"))
	must(t, f.Follow(t.Context(), answer(1, policy, "", reported(t, f).GetAccess())))
	tokens := tokenLine(t, "ann")
	must(t, os.WriteFile(c.Dir("policy.yaml"), []byte(policy+"# mine\n"), 0o600))
	must(t, os.MkdirAll(c.Dir("policy.yaml.replaced", "x"), 0o700)) // the policy cannot be kept, so it is not replaced
	if err := f.Follow(t.Context(), answer(2, policy+"# 2\n", tokens, reported(t, f).GetAccess())); err == nil {
		t.Fatal("a policy was replaced that could not be kept")
	}
	if read(t, c.TokensFile()) != tokens || read(t, c.Dir("policy.yaml")) != policy+"# mine\n" {
		t.Fatal("the write was not cut off between the files")
	}
	again := NewFollower(c, f.log)
	r := reported(t, again)
	if changed := strings.Join(r.GetAccess().GetChanged(), " "); changed != "policy.yaml" {
		t.Errorf("changed by others: %q", changed)
	}
	must(t, os.RemoveAll(c.Dir("policy.yaml.replaced")))
	must(t, again.Follow(t.Context(), answer(2, policy+"# 2\n", tokens, r.GetAccess())))
	if is := reported(t, again).GetAccess(); is.GetGeneration() != 2 || len(is.GetChanged()) > 0 {
		t.Errorf("after the next call: %v", is)
	}
}

func TestWhatProgramsCouldNotUseIsNotWritten(t *testing.T) {
	c, f := begin(t)
	policy := read(t, c.Dir("policy.yaml"))
	is := reported(t, f).GetAccess()
	other := answer(2, policy+"# 2\n", "", is)
	other.PolicyHash = hashOf([]byte(policy + "# 3\n"))
	for name, a := range map[string]*hostv1.SyncAccessResponse{
		"a policy cut off":       answer(2, policy[:len(policy)-30], "", is),
		"an empty policy":        answer(2, "", "", is),
		"tokens cut off":         answer(2, policy, `{"sha256":`, is),
		"not what its hash says": other,
	} {
		if err := f.Follow(t.Context(), a); err == nil {
			t.Errorf("%s is taken", name)
		}
		if pending := reported(t, f).GetAccess().GetPending(); !strings.Contains(pending, "is refused") {
			t.Errorf("%s: reported as %q", name, pending)
		}
	}
	if read(t, c.Dir("policy.yaml")) != policy {
		t.Error("the policy was replaced")
	}
	if _, err := os.Stat(c.TokensFile()); err == nil {
		t.Error("tokens were written")
	}
}

func TestAHostSaysWhichProgramHasNotLoadedItsFiles(t *testing.T) {
	_, f := begin(t)
	if pending := reported(t, f).GetAccess().GetPending(); !strings.Contains(pending, "does not answer") {
		t.Errorf("while no program runs: %q", pending)
	}
	has := func(policy, tokens string) metadata.MD {
		return metadata.Pairs(serve.PolicyHeader, policy, serve.TokensHeader, tokens)
	}
	for name, test := range map[string]struct {
		program string
		has     metadata.MD
		want    string
	}{
		"all of it":             {topology.Gateway, has("p", "t"), ""},
		"a former policy":       {topology.Scheduler, has("x", "t"), "scheduler has not loaded policy.yaml yet"},
		"former tokens":         {topology.Gateway, has("p", "x"), "gateway has not loaded tokens yet"},
		"tokens of no interest": {topology.Scheduler, has("p", "x"), ""},
		"an earlier version": {
			topology.Scheduler, nil,
			"scheduler does not report what it has in force: it is of an earlier version",
		},
	} {
		if got := behind(test.program, test.has, "p", "t"); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
