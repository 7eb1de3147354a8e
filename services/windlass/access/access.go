// Package access keeps the policy and the bearer tokens of a control-plane host as the inventory has recorded them, and
// reports what the files of the host have and whether its programs have loaded it. What is recorded is decided
// elsewhere.
package access

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	"github.com/windlass-dev/windlass/kit/durable"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
)

// maxText is how much the inventory takes of what is pending.
const maxText = 1000

// Names of the files in reports.
const (
	policyName = "policy.yaml"
	tokensName = "tokens"
)

// Follower keeps the files of this host. It is for one goroutine.
type Follower struct {
	cluster *cluster.Cluster
	log     *slog.Logger
	wanted  bool   // the next report has the texts
	probed  string // hashes that all programs were found to have
	failure string // of the last attempt to write
}

// NewFollower returns a Follower for this host.
func NewFollower(c *cluster.Cluster, log *slog.Logger) *Follower {
	return &Follower{cluster: c, log: log}
}

// noted is what this host has written down of the files: another content than that was written by others.
type noted struct {
	Generation int32    `json:"generation"`       // that the files had last; 0 before the first
	Policy     []string `json:"policy,omitempty"` // hashes; two while a file is replaced
	Tokens     []string `json:"tokens,omitempty"`
}

func (f *Follower) notedFile() string { return f.cluster.Dir("host", "access.json") }

func (f *Follower) noted() (noted, error) {
	raw, err := os.ReadFile(f.notedFile())
	if errors.Is(err, fs.ErrNotExist) {
		return noted{}, nil
	}
	if err != nil {
		return noted{}, err
	}
	var n noted
	if err := json.Unmarshal(raw, &n); err != nil {
		return noted{}, fmt.Errorf("%s: %w", f.notedFile(), err)
	}
	return n, nil
}

func (f *Follower) note(n noted) error {
	raw, err := json.Marshal(n)
	if err != nil {
		return err
	}
	return durable.WriteFile(f.notedFile(), append(raw, '\n'), 0o600)
}

// content is what the files have. Without a file of tokens there are none; a missing policy has no hash.
type content struct{ policy, tokens []byte }

func (f *Follower) read() (content, error) {
	var c content
	for path, to := range map[string]*[]byte{f.policyFile(): &c.policy, f.cluster.TokensFile(): &c.tokens} {
		raw, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return content{}, err
		}
		*to = raw
	}
	return c, nil
}

func (f *Follower) policyFile() string { return f.cluster.Dir("policy.yaml") }

func (c content) policyHash() string {
	if len(c.policy) == 0 {
		return ""
	}
	return hashOf(c.policy)
}

func (c content) tokensHash() string { return hashOf(c.tokens) }

func hashOf(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// Report returns what the files have, and the texts if they were asked for.
func (f *Follower) Report(ctx context.Context) (*hostv1.SyncAccessRequest, error) {
	is, err := f.read()
	if err != nil {
		return nil, err
	}
	known, err := f.noted()
	if err != nil {
		return nil, err
	}
	policy, tokens := is.policyHash(), is.tokensHash()
	out := &hostv1.HostAccess{Generation: &known.Generation, PolicyHash: &policy, TokensHash: &tokens}
	if known.Generation > 0 {
		if !slices.Contains(known.Policy, policy) {
			out.Changed = append(out.Changed, policyName)
		}
		if !slices.Contains(known.Tokens, tokens) {
			out.Changed = append(out.Changed, tokensName)
		}
	}
	pending := f.failure
	if both := policy + tokens; pending == "" && f.probed != both {
		f.probed = ""
		if pending = probePrograms(ctx, f.cluster, policy, tokens); pending == "" {
			f.probed = both
		}
	}
	if pending != "" {
		pending = strings.ToValidUTF8(pending[:min(len(pending), maxText)], "")
		out.Pending = &pending
	}
	request := &hostv1.SyncAccessRequest{Access: out}
	if f.wanted {
		request.Policy, request.Tokens = proto.String(string(is.policy)), proto.String(string(is.tokens))
	}
	return request, nil
}

// Follow writes what an answer of the inventory has for the files. It may be cut off anywhere: the next call completes
// it.
func (f *Follower) Follow(ctx context.Context, answer *hostv1.SyncAccessResponse) error {
	f.wanted = answer.GetWanted()
	err := f.follow(ctx, answer)
	f.failure = ""
	if err != nil {
		f.failure = cause(err)
	}
	return err
}

// cause returns what is wrong without the path of a file: one that is written has another name each time, and each
// report would differ.
func cause(err error) string {
	if path := new(fs.PathError); errors.As(err, &path) {
		return fmt.Sprintf("%s of a file in the host's directory: %v", path.Op, path.Err)
	}
	if link := new(os.LinkError); errors.As(err, &link) {
		return fmt.Sprintf("%s of a file in the host's directory: %v", link.Op, link.Err)
	}
	return err.Error()
}

func (f *Follower) follow(ctx context.Context, answer *hostv1.SyncAccessResponse) error {
	if answer.GetGeneration() == 0 {
		return nil
	}
	if err := check(answer); err != nil {
		return fmt.Errorf("generation %d of the policy and the tokens is refused: %w", answer.GetGeneration(), err)
	}
	is, err := f.read()
	if err != nil {
		return err
	}
	known, err := f.noted()
	if err != nil {
		return err
	}
	if answer.Policy != nil || answer.Tokens != nil {
		// First, so that a cut does not make this look as if others had changed the files.
		next := noted{
			Generation: known.Generation, Policy: with(known.Policy, answer.GetPolicyHash()),
			Tokens: with(known.Tokens, answer.GetTokensHash()),
		}
		if err := f.note(next); err != nil {
			return err
		}
		f.probed = "" // programs may load something in between
		if answer.Tokens != nil {
			if err := f.replace(ctx, f.cluster.TokensFile(), answer.GetTokens(), is.tokens, known,
				f.own(answer, known.Tokens, known)); err != nil {
				return err
			}
		}
		if answer.Policy != nil {
			if err := f.replace(ctx, f.policyFile(), answer.GetPolicy(), is.policy, known,
				f.own(answer, known.Policy, known)); err != nil {
				return err
			}
		}
		if is, err = f.read(); err != nil {
			return err
		}
	}
	if is.policyHash() != answer.GetPolicyHash() || is.tokensHash() != answer.GetTokensHash() {
		return nil // the inventory decides after the next report
	}
	now := noted{
		Generation: answer.GetGeneration(), Policy: []string{answer.GetPolicyHash()},
		Tokens: []string{answer.GetTokensHash()},
	}
	if now.Generation == known.Generation && slices.Equal(now.Policy, known.Policy) &&
		slices.Equal(now.Tokens, known.Tokens) {
		return nil
	}
	if err := f.note(now); err != nil {
		return err
	}
	f.log.InfoContext(ctx, "policy and bearer tokens of the cluster are on this host", "generation", now.Generation)
	return nil
}

// own returns the hashes of what may be replaced without a copy: none if an older content comes back, as after a
// restore of etcd.
func (f *Follower) own(answer *hostv1.SyncAccessResponse, hashes []string, known noted) []string {
	if known.Generation >= answer.GetGeneration() {
		return nil
	}
	return hashes
}

// with returns hashes with one more.
func with(hashes []string, one string) []string {
	if slices.Contains(hashes, one) {
		return hashes
	}
	return append(slices.Clone(hashes), one)
}

// check returns an error unless programs can use what an answer has.
func check(answer *hostv1.SyncAccessResponse) error {
	if answer.Policy != nil {
		if err := identity.CheckPolicy([]byte(answer.GetPolicy())); err != nil {
			return fmt.Errorf("policy: %w", err)
		}
		if hashOf([]byte(answer.GetPolicy())) != answer.GetPolicyHash() {
			return errors.New("policy: is not the recorded one")
		}
	}
	if answer.Tokens != nil {
		if _, err := identity.ParseTokens([]byte(answer.GetTokens())); err != nil {
			return fmt.Errorf("tokens: %w", err)
		}
		if hashOf([]byte(answer.GetTokens())) != answer.GetTokensHash() {
			return errors.New("tokens: are not the recorded ones")
		}
	}
	return nil
}

// replace writes a file. What it had is kept beside it unless the cluster wrote that, by its hashes: it may be work of
// a user.
func (f *Follower) replace(ctx context.Context, path, text string, was []byte, known noted, hashes []string) error {
	if err := durable.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if len(was) > 0 && !slices.Contains(hashes, hashOf(was)) {
		beside := path + ".replaced"
		if err := durable.WriteFile(beside, was, 0o600); err != nil {
			return err
		}
		if known.Generation > 0 {
			f.log.WarnContext(ctx, "a file that was changed on this host is replaced by what the cluster has", "file", path,
				"kept", beside)
		} else {
			f.log.InfoContext(ctx, "a file of this host is replaced by what the cluster has", "file", path, "kept", beside)
		}
	}
	return durable.WriteFile(path, []byte(text), 0o600)
}
