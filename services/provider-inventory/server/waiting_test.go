package server

import (
	"fmt"
	"testing"
	"time"
)

func TestMachinesThatWaitNoLongerDoNotCount(t *testing.T) {
	var w waiting
	now := time.Now()
	var again time.Duration
	for i := range 1000 {
		again = w.add(fmt.Sprint(i), now)
	}
	if again != 50*time.Second {
		t.Errorf("the last of a thousand asks again after %v", again)
	}
	if again = w.add("0", now); again != 50*time.Second {
		t.Errorf("the same machine counts again: %v", again)
	}
	for i := range 600 {
		w.remove(fmt.Sprint(i))
	}
	if again = w.add("999", now); again != 20*time.Second {
		t.Errorf("with 400 that wait: %v", again)
	}
	if again = w.add("999", now.Add(time.Hour)); again != 5*time.Second || len(w.until) != 1 {
		t.Errorf("an hour later: %v, %d wait", again, len(w.until))
	}
}
