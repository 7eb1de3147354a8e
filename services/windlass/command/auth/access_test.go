package auth

import (
	"strings"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/kit/identity"
)

func TestAPolicyHasTheGenerationThatItWasPrintedWith(t *testing.T) {
	for text, want := range map[string]struct {
		rest       string
		generation int32
		fails      bool
	}{
		"kind: X\n":                          {"kind: X\n", 0, false},
		generationLine + "12\nkind: X\n":     {"kind: X\n", 12, false},
		"kind: X\n" + generationLine + "1\n": {"kind: X\n" + generationLine + "1\n", 0, false},
		generationLine + "x\nkind: X\n":      {fails: true},
		generationLine + "0\nkind: X\n":      {fails: true},
	} {
		rest, generation, err := cutGeneration(text)
		if rest != want.rest || generation != want.generation || (err != nil) != want.fails {
			t.Errorf("%q: %q, %d, %v", text, rest, generation, err)
		}
	}
}

func TestTokensAreDeletedByTheirIDs(t *testing.T) {
	var text []byte
	var ids []string
	for _, user := range []string{"ann", "bob"} {
		_, entry, err := identity.NewToken(user, nil, time.Now().Add(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		if text, err = identity.AppendToken(text, entry); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, tokenID(entry))
	}
	left, err := withoutTokens(text, []string{strings.ToUpper(ids[0])})
	if err != nil || strings.Contains(string(left), "ann") || !strings.Contains(string(left), "bob") {
		t.Errorf("left is %s, %v", left, err)
	}
	for _, wrong := range [][]string{{"xyz"}, {""}, {ids[0], "xyz"}, {ids[0], ids[0]}} {
		if left, err := withoutTokens(text, wrong); err == nil {
			t.Errorf("%q are deleted, left is %s", wrong, left)
		}
	}
	twice := append(append([]byte{}, text...), strings.Replace(string(text), ids[0][6:], "ffffff", 1)...)
	if _, err := withoutTokens(twice, []string{ids[0][:6]}); err == nil ||
		!strings.Contains(err.Error(), "write more of it") {
		t.Errorf("an ID of two tokens: %v", err)
	}
}

func TestTokensOfAnotherFileAreAddedOnce(t *testing.T) {
	entry := func(user string, expires time.Time) []byte {
		_, entry, err := identity.NewToken(user, nil, expires)
		if err != nil {
			t.Fatal(err)
		}
		text, err := identity.AppendToken(nil, entry)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	now := time.Now()
	ann, bob := entry("ann", now.Add(time.Hour)), entry("bob", now.Add(time.Hour))
	more, err := identity.ParseTokens(append(append(entry("eve", now.Add(-time.Hour)), ann...), bob...))
	if err != nil {
		t.Fatal(err)
	}
	text, err := withTokens(ann, more, now)
	if err != nil || string(text) != string(ann)+string(bob) {
		t.Errorf("%s, %v", text, err)
	}
}
