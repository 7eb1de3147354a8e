package presence

import (
	"slices"
	"testing"
	"time"
)

func TestWhoIsThere(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	tr := New(func() time.Time { return now })
	if _, ok := tr.Join([]string{"a"}); ok {
		t.Fatal("a client may join a process that does not lead")
	}
	tr.Seen("a")
	var news []string
	end := tr.Lead(func(owner string) { news = append(news, owner) })
	if connected, seen, _ := tr.Of("a"); connected || !seen.IsZero() {
		t.Errorf("a new term knows of a: %v, %v", connected, seen)
	}
	one, _ := tr.Join([]string{"a", "b", "a"})
	two, _ := tr.Join([]string{"a"})
	now = now.Add(time.Minute)
	one.Leave()
	if connected, seen, _ := tr.Of("b"); connected || !seen.Equal(now) {
		t.Errorf("b left: connected %v, seen %v, want false, %v", connected, seen, now)
	}
	if connected, _, _ := tr.Of("a"); !connected {
		t.Error("the second stream of a does not count")
	}
	tr.Seen("c")
	if connected, seen, _ := tr.Of("c"); connected || !seen.Equal(now) {
		t.Errorf("c called: connected %v, seen %v", connected, seen)
	}
	if want := []string{"a", "b", "a", "a", "b", "c"}; !slices.Equal(news, want) {
		t.Errorf("news of %v, want %v", news, want)
	}
	end()
	select {
	case <-two.Over():
	default:
		t.Error("the visit goes on though the term is over")
	}
	tr.Lead(func(string) { t.Error("a visit of an earlier term makes news in this one") })
	two.Leave()
	if got := tr.Owners(); len(got) != 0 {
		t.Errorf("a new term knows of %v", got)
	}
}
