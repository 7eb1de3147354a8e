package events

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	eventv1 "github.com/windlass-dev/windlass/gen/windlass/event/v1"
)

func added(index int, revision string) news {
	return news{index: index, message: &eventv1.WatchEventsResponse{
		Events: []*eventv1.WatchEventsResponse_Event{{Type: "ADDED"}}, ResourceVersion: revision,
	}}
}

func bookmark(index int, revision string) news {
	return news{index: index, message: &eventv1.WatchEventsResponse{ResourceVersion: revision, Bookmark: true}}
}

func away(index int) news { return news{index: index, away: true} }

// received is what the client gets for one message: "event@revision" or "bookmark@revision".
func received(messages []*eventv1.WatchEventsResponse) []string {
	out := []string{}
	for _, m := range messages {
		what := "event@"
		if m.GetBookmark() {
			what = "bookmark@"
		}
		out = append(out, what+m.GetResourceVersion())
	}
	return out
}

func TestMergedRevisions(t *testing.T) {
	for _, c := range []struct {
		name    string
		request *eventv1.WatchEventsRequest
		news    []news
		want    [][]string
	}{
		{
			name: "the first list has no revision until all have listed, and then the lowest",
			news: []news{added(0, "9"), bookmark(0, "9"), added(1, "7"), bookmark(1, "7")},
			want: [][]string{{"event@"}, {}, {"event@"}, {"bookmark@7"}},
		},
		{
			name: "one that is away does not hold the first bookmark back",
			news: []news{bookmark(0, "9"), away(1)},
			want: [][]string{{}, {"bookmark@9"}},
		},
		{
			name: "one that comes back late lists what it has",
			news: []news{bookmark(0, "9"), away(1), added(1, "12"), bookmark(1, "12"), added(0, "13")},
			want: [][]string{{}, {"bookmark@9"}, {"event@9"}, {}, {"event@12"}},
		},
		{
			name: "one that was lost holds the revision where it was",
			news: []news{bookmark(0, "5"), bookmark(1, "5"), away(1), added(0, "8")},
			want: [][]string{{}, {"bookmark@5"}, {}, {"event@5"}},
		},
		{
			name:    "resuming needs no list",
			request: &eventv1.WatchEventsRequest{ResourceVersion: "4"},
			news:    []news{added(0, "6"), added(1, "5")},
			want:    [][]string{{"event@4"}, {"event@5"}},
		},
		{
			name: "bookmarks come only to who wants them",
			news: []news{bookmark(0, "5"), bookmark(1, "5"), bookmark(0, "8"), bookmark(1, "8")},
			want: [][]string{{}, {"bookmark@5"}, {}, {}},
		},
		{
			name:    "and then only when the common revision moves",
			request: &eventv1.WatchEventsRequest{AllowWatchBookmarks: true},
			news:    []news{bookmark(0, "5"), bookmark(1, "5"), bookmark(0, "8"), bookmark(1, "7")},
			want:    [][]string{{}, {"bookmark@5"}, {}, {"bookmark@7"}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newProgress(2, c.request)
			for i, n := range c.news {
				if diff := cmp.Diff(c.want[i], received(p.take(n))); diff != "" {
					t.Errorf("news %d: %s", i, diff)
				}
			}
		})
	}
}

func TestAWatchEndsIfNobodyWasEverReached(t *testing.T) {
	p := newProgress(2, nil)
	p.take(away(0))
	if p.allAway() {
		t.Error("one program is still asked")
	}
	p.take(away(1))
	if !p.allAway() {
		t.Error("no program is left")
	}
}

func TestEventsStayAsTheyAre(t *testing.T) {
	p := newProgress(1, nil)
	sent := added(0, "3")
	got := p.take(sent)[0]
	if diff := cmp.Diff(sent.message.GetEvents(), got.GetEvents(), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}
