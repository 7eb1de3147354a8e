package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	programv1 "github.com/windlass-dev/windlass/gen/windlass/program/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/topology"
)

// brokenVersion is what the tour's own program says that it is when it is taken for an executable of Windlass. It
// serves nothing: that is how the tour comes by a version that does not come up.
const brokenVersion = "0.0.1-tour"

// asWindlass answers as an executable of Windlass that does not work, if the arguments are those of one.
func asWindlass(args []string) (exit int, is bool) {
	switch {
	case len(args) == 0:
		return 0, false
	case args[0] == "version":
		fmt.Printf("{\"version\": %q}\n", brokenVersion)
		return 0, true
	case args[0] == "serve":
		fmt.Fprintln(os.Stderr, "this version does not work")
		return 1, true
	}
	return 0, false
}

// renew updates the programs of Windlass, first to a version that does not come up, then to one that does, and goes
// back. In containers people restart the programs, so that it is left out there.
func (u *upgrade) renew(ctx context.Context, _ *updatev1.ClusterVersion) error {
	if !u.here() {
		u.saw("the programs are not updated: no supervisor restarts containers")
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	windlass, err := exec.LookPath("windlass")
	if err != nil {
		return err
	}
	if err := u.takeBack(ctx, self); err != nil {
		return err
	}
	image, err := u.withPrograms(ctx, u.self, windlass)
	if err != nil {
		return err
	}
	if err := u.to(ctx, image, u.self); err != nil {
		return err
	}
	out, err := u.windlass(ctx, "get", "programs")
	if err != nil {
		return err
	}
	u.saw("%s", strings.TrimSpace(narrow(out)))
	there, err := u.programs(ctx)
	if err != nil {
		return err
	}
	if err := u.to(ctx, u.image, u.next); err != nil {
		return err
	}
	left, err := u.programs(ctx)
	if err != nil {
		return err
	}
	return u.check(
		expect(len(there) == len(topology.Names()), "all programs from the image of "+u.self, "%v", there),
		expect(len(left) == 0, "no programs of a release at "+u.next, "%v", left),
		mentions("windlass get programs", out, append(topology.Names(), "DESIRED")...))
}

// takeBack asks for a release whose executable does not come up: what was before runs on.
func (u *upgrade) takeBack(ctx context.Context, broken string) error {
	image, err := u.withPrograms(ctx, u.broken, broken)
	if err != nil {
		return err
	}
	if _, err := u.windlass(ctx, "adm", "upgrade", "--to-image", image, "--allow-explicit-upgrade"); err != nil {
		return err
	}
	var why string
	err = within(ctx, updated, "the update to "+u.broken+" Failing", func(ctx context.Context) (bool, string, error) {
		cv, err := u.cluster.version(ctx)
		c := conditionIn(cv.GetStatus().GetConditions(), "Failing")
		why = c.GetMessage()
		return c.GetStatus() == "True" && c.GetReason() == "ProgramNotUpdated", fmt.Sprint(c), err
	})
	if err != nil {
		return err
	}
	u.saw("Failing=True: %s", why)
	left, err := u.programs(ctx)
	if err != nil {
		return err
	}
	if _, err := u.windlass(ctx, "adm", "upgrade", "--abort"); err != nil {
		return err
	}
	err = within(ctx, updated, "back at "+u.next, func(ctx context.Context) (bool, string, error) {
		cv, err := u.cluster.version(ctx)
		h := cv.GetStatus().GetHistory()
		return len(h) > 0 && h[0].GetVersion() == u.next && h[0].GetState() == "Completed", fmt.Sprint(cv.GetStatus()), err
	})
	if err != nil {
		return err
	}
	return u.check(
		expect(strings.Contains(why, "update-orchestrator") && strings.Contains(why, "this version does not work"),
			"what update-orchestrator ended with", "%s", why),
		expect(len(left) == 0, "no program from the image that does not work", "%v", left))
}

// withPrograms makes a release that brings an executable, and returns its image.
func (u *upgrade) withPrograms(ctx context.Context, version, executable string) (string, error) {
	from, err := u.withSameNodes(version)
	if err != nil {
		return "", err
	}
	return u.buildRelease(ctx, from, version, u.next, u.releases("images"), u.releases("signing-key.asc"),
		u.releases("signatures"), u.created, "--executable", executable)
}

// programs returns the images of the programs that run from one, by name.
func (u *upgrade) programs(ctx context.Context) (map[string]string, error) {
	list, err := u.cluster.programs.ListPrograms(ctx, &programv1.ListProgramsRequest{}, patient)
	out := map[string]string{}
	for _, p := range list.GetItems() {
		if image := p.GetStatus().GetImage(); image != "" {
			out[p.GetMetadata().GetName()] = image
		}
	}
	return out, err
}
