package objects

import (
	"slices"
	"testing"
)

func TestChangesOfLabelsAreToldFromObjects(t *testing.T) {
	objects, set, remove, err := splitMarks(labelMarks(), []string{"machine", "a", "team=web", "note=a=b", "tier-"})
	if err != nil || !slices.Equal(objects, []string{"machine", "a"}) || set["team"] != "web" || set["note"] != "a=b" ||
		!slices.Equal(remove, []string{"tier"}) {
		t.Errorf("got %v %v %v %v", objects, set, remove, err)
	}
	for _, args := range [][]string{{"machine", "a", "x=1", "b"}, {"machine", "a", "x=1", "x-"}, {"machine", "a", "=1"}} {
		if _, _, _, err := splitMarks(labelMarks(), args); err == nil {
			t.Errorf("%v is accepted", args)
		}
	}
}
