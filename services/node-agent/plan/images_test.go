package plan

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestUnusedImagesGoWhenTheDiskIsFull(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	image := func(name string, bytes int64, age time.Duration) ImageView {
		return ImageView{Digest: name, Bytes: bytes, Detected: now.Add(-2 * age), Used: now.Add(-age)}
	}
	used := image("used", 50, time.Hour)
	used.InUse = true
	all := []ImageView{
		image("new", 50, time.Minute), image("old", 4, time.Hour), used, image("older", 3, 2*time.Hour),
		image("middle", 50, 10*time.Minute),
	}
	for _, tc := range []struct {
		name                string
		capacity, available int64
		want                []string
		short               int64
	}{
		{"below the high mark none goes", 100, 16, nil, 0},
		{"an unknown disk is not full", 0, 0, nil, 0},
		{"the longest unused go until the low mark is reached", 100, 15, []string{"older", "old"}, 0},
		{"what is in use or young stays, though that is too little", 1000, 10, []string{"older", "old", "middle"}, 133},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := Collect(CollectView{Now: now, Capacity: tc.capacity, Available: tc.available, Images: all})
			var got []string
			for _, i := range c.Remove {
				got = append(got, i.Digest)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" || c.Short != tc.short {
				t.Errorf("(-want +got):\n%s\nshort %d, want %d", diff, c.Short, tc.short)
			}
		})
	}
}

// TestNoImageInUseIsRemoved tries many disks.
func TestNoImageInUseIsRemoved(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	removed := 0
	for range 2000 {
		v := CollectView{Now: now, Capacity: 1000, Available: r.Int64N(300)}
		for i := range r.IntN(8) {
			age := time.Duration(r.IntN(300)) * time.Second
			v.Images = append(v.Images, ImageView{
				Digest: fmt.Sprint(i), Bytes: r.Int64N(200), InUse: r.IntN(2) == 0, Detected: now.Add(-2 * age),
				Used: now.Add(-age),
			})
		}
		freed := int64(0)
		for _, i := range Collect(v).Remove {
			if i.InUse || now.Sub(i.Used) < minImageAge || v.Capacity-v.Available < 850 {
				t.Fatalf("%v goes of %+v", i, v)
			}
			if v.Available+freed >= 200 {
				t.Fatalf("%v goes though enough is free of %+v", i, v)
			}
			freed += i.Bytes
			removed++
		}
	}
	if removed == 0 {
		t.Error("no case removes anything")
	}
}

func TestANodesStatusHasItsLargestImages(t *testing.T) {
	var list []ImageView
	for i := range 60 {
		list = append(list, ImageView{Digest: fmt.Sprint(i), Names: []string{fmt.Sprint(i)}, Bytes: int64(i)})
	}
	list = append(list, ImageView{Digest: "without a name", Bytes: 1000})
	got := NodeImages(list)
	if len(got) != maxNodeImages || got[0].GetSizeBytes() != 59 || got[0].GetNames()[0] != "59" ||
		got[maxNodeImages-1].GetSizeBytes() != 10 {
		t.Errorf("%d images, from %v to %v", len(got), got[0], got[len(got)-1])
	}
}
