package object

import (
	"testing"
	"time"
)

func TestTheZeroTimeIsAbsentFromMessages(t *testing.T) {
	if at := Timestamp(time.Time{}); at != nil {
		t.Errorf("the zero time is %v", at)
	}
	if at := time.Unix(1, 2).UTC(); !Timestamp(at).AsTime().Equal(at) {
		t.Errorf("%v is %v", at, Timestamp(at).AsTime())
	}
}

// JSON has no later times: an answer with one could not be written.
func TestTimesAfterTheYear9999AreItsEnd(t *testing.T) {
	for _, at := range []time.Time{lastTime.Add(time.Second), time.Unix(1<<40, 0)} {
		if got := Timestamp(at); !got.IsValid() || !got.AsTime().Equal(lastTime) {
			t.Errorf("%v is %v", at, got)
		}
	}
}
