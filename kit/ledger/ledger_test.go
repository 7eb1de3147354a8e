package ledger

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestAnUnreadableLedgerIsSetAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.json")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, problem, err := Open(path)
	if err != nil || problem == nil || l.Fence() != 0 {
		t.Errorf("Open = %+v, %v, %v; want an empty ledger and the problem", l, problem, err)
	}
	if _, err := os.Stat(path + ".unreadable"); err != nil {
		t.Error(err)
	}
}

func TestTheLedgerIsBounded(t *testing.T) {
	l, _, err := Open(filepath.Join(t.TempDir(), "ledger.json"))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range mostTokens {
		l.kept.Tokens[fmt.Sprint(i)] = now.Add(time.Duration(i))
	}
	if err := l.Use("one-more", now.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if len(l.kept.Tokens) != mostTokens || l.Used("0") || !l.Used("1") || !l.Used("one-more") {
		t.Errorf("%d tokens; want the oldest gone and no other", len(l.kept.Tokens))
	}
	if err := l.Use("later", now.Add(Retention+2*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if len(l.kept.Tokens) != 1 {
		t.Errorf("%d tokens after their retention, want 1", len(l.kept.Tokens))
	}
}

func TestTheLedgerIsOnTheDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.json")
	l, _, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.Admit(7), l.Use("uid-1", time.Now()), l.Use("", time.Now())); err != nil {
		t.Fatal(err)
	}
	if l, _, err = Open(path); err != nil {
		t.Fatal(err)
	}
	if err := l.Admit(6); !errors.Is(err, ErrFenced) || l.Fence() != 7 {
		t.Errorf("Admit(6) = %v with fence %d, want ErrFenced and 7", err, l.Fence())
	}
	if !l.Used("uid-1") || l.Used("") || l.Used("uid-2") {
		t.Errorf("the used tokens are %v, want uid-1 alone", l.kept.Tokens)
	}
}
