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
