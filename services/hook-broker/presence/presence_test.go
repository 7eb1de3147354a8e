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
		t.Fatal("somebody may join a process that does not lead")
	}
	tr.Heard("a")
	var news []string
	end := tr.Lead(func(owner string) { news = append(news, owner) })
	if connected, heard := tr.Of("a"); connected || !heard.IsZero() {
		t.Errorf("a new term knows of a: %v, %v", connected, heard)
	}
	one, _ := tr.Join([]string{"a", "b", "a"})
	two, _ := tr.Join([]string{"a"})
	now = now.Add(time.Minute)
	one.Leave()
	if connected, heard := tr.Of("b"); connected || !heard.Equal(now) {
		t.Errorf("b left: connected %v, heard %v, want false, %v", connected, heard, now)
	}
	if connected, _ := tr.Of("a"); !connected {
		t.Error("the second stream of a does not count")
	}
	tr.Heard("c")
	if connected, heard := tr.Of("c"); connected || !heard.Equal(now) {
		t.Errorf("c spoke: connected %v, heard %v", connected, heard)
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
