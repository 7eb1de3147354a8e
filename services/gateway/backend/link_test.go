package backend

import (
	"strings"
	"testing"
)

func TestAStepOfTheClockIsNoLossOfABackend(t *testing.T) {
	l := &link{}
	l.gone()
	if lost := l.lost.Load().String(); !strings.Contains(lost, " m=") {
		t.Errorf("lost at %s, which has no reading of the monotonic clock", lost)
	}
}
