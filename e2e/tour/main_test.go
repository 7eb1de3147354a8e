package main

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
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

// TestThePageHasASectionForEachStep keeps docs/tour.md and the program together.
func TestThePageHasASectionForEachStep(t *testing.T) {
	raw, err := os.ReadFile("../../docs/tour.md")
	if err != nil {
		t.Fatal(err)
	}
	var got, want, needy []string
	for _, m := range regexp.MustCompile(`(?m)^## (\d+)\. `).FindAllStringSubmatch(string(raw), -1) {
		got = append(got, m[1])
	}
	for i, step := range (&tour{}).all() {
		want = append(want, fmt.Sprint(i+1))
		if step.needs != "" {
			needy = append(needy, fmt.Sprint(i+1))
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sections (-steps +sections):\n%s", diff)
	}
	last := len(needy) - 1
	sentence := "Steps " + strings.Join(needy[:last], ", ") + " and " + needy[last]
	if !strings.Contains(strings.Join(strings.Fields(string(raw)), " "), sentence) {
		t.Errorf("the page does not say which steps need the host of the cluster: %q", sentence)
	}
}

func TestAStepThatCannotRunIsLeftOutWithTheReason(t *testing.T) {
	elsewhere := &tour{shell: shell{target: []string{"WINDLASS_SERVER=h:1"}}}
	for _, tt := range []struct {
		tour *tour
		step step
		want string
	}{
		{&tour{}, step{}, ""},
		{&tour{}, step{needs: "it kills a process"}, ""},
		{elsewhere, step{needs: "it kills a process"}, "it kills a process, and this one runs elsewhere"},
		{&tour{}, step{uses: "sh"}, ""},
		{&tour{}, step{uses: "no-such-program"}, "it runs no-such-program, which is not installed"},
	} {
		if got := tt.tour.lacks(tt.step); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.step, got, tt.want)
		}
	}
	var out bytes.Buffer
	s := &story{out: &out}
	s.skip(3, "Scale", "it is late")
	s.end()
	if n := strings.Count(out.String(), "left out: it is late"); n != 2 {
		t.Errorf("the reason is given %d times, want 2, also in the table:\n%s", n, out.String())
	}
}
