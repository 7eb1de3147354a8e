package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestStepsAndClusterAreChosenByFlags(t *testing.T) {
	elsewhere := "--server h:1 --cacert a --cert b --key c"
	got, err := parse(strings.Fields("--steps 1,2,10 " + elsewhere))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int{1, 2, 10}, got.steps); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"WINDLASS_SERVER=h:1", "WINDLASS_CACERT=a", "WINDLASS_CERT=b", "WINDLASS_KEY=c"},
		got.target()); diff != "" {
		t.Errorf("target (-want +got):\n%s", diff)
	}
	if here, err := parse([]string{"--name", "lab"}); err != nil || here.steps != nil || here.target() != nil {
		t.Errorf("settings of a cluster here = %+v, %v; want all steps and no target", here, err)
	}
	for _, args := range []string{
		"--steps 0", fmt.Sprintf("--steps %d", lastStep+1), "--steps x", "--server h:1", "--name lab " + elsewhere,
		"more",
	} {
		if _, err := parse(strings.Fields(args)); err == nil {
			t.Errorf("%s: no error", args)
		}
	}
}
