package gateway

import (
	"strings"
	"testing"
)

func TestAStepOfTheClockIsNoSilenceOfAGateway(t *testing.T) {
	l := &link{}
	l.answered()
	if heard := l.heard.Load().String(); !strings.Contains(heard, " m=") {
		t.Errorf("answered at %s, which has no reading of the monotonic clock", heard)
	}
}
