package plan

import (
	"testing"

	ignition "github.com/coreos/ignition/v2/config/v3_5"
	"github.com/coreos/ignition/v2/config/v3_5/types"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"
)

// TestMergesAreThoseOfIgnition compares mergeAll with Ignition's own function, called for one configuration after the
// other.
func TestMergesAreThoseOfIgnition(t *testing.T) {
	maybe := func(of *rapid.Generator[string]) *rapid.Generator[*string] { return rapid.Ptr(of, true) }
	text, mode := rapid.SampledFrom([]string{"", "data:,1", "data:,2"}), rapid.Ptr(rapid.SampledFrom([]int{420, 511}),
		true)
	part := rapid.Custom(func(t *rapid.T) types.Config {
		c := types.Config{Ignition: types.Ignition{Version: "3.5.0"}}
		if rapid.Bool().Draw(t, "timeouts") {
			c.Ignition.Timeouts.HTTPTotal = rapid.Ptr(rapid.IntRange(1, 3), false).Draw(t, "timeout")
		}
		for _, path := range []string{"/a", "/b", "/c"} {
			n := types.Node{Path: path, Overwrite: rapid.Ptr(rapid.Bool(), true).Draw(t, "overwrite")}
			n.User.Name = maybe(rapid.SampledFrom([]string{"root", "core"})).Draw(t, "owner")
			switch rapid.SampledFrom([]string{"", "", "file", "directory", "link"}).Draw(t, path) {
			case "file":
				f := types.File{Node: n, FileEmbedded1: types.FileEmbedded1{Mode: mode.Draw(t, "mode")}}
				f.Contents.Source, f.Contents.Compression = maybe(text).Draw(t, "source"), maybe(text).Draw(t, "compression")
				if rapid.Bool().Draw(t, "append") {
					f.Append = []types.Resource{{Source: maybe(text).Draw(t, "appended")}}
				}
				c.Storage.Files = append(c.Storage.Files, f)
			case "directory":
				d := types.Directory{Node: n, DirectoryEmbedded1: types.DirectoryEmbedded1{Mode: mode.Draw(t, "mode")}}
				c.Storage.Directories = append(c.Storage.Directories, d)
			case "link":
				l := types.Link{Node: n, LinkEmbedded1: types.LinkEmbedded1{Target: maybe(text).Draw(t, "target")}}
				c.Storage.Links = append(c.Storage.Links, l)
			}
		}
		for _, name := range []string{"a.service", "b.service"} {
			if rapid.Bool().Draw(t, name) {
				u := types.Unit{
					Name: name, Enabled: rapid.Ptr(rapid.Bool(), true).Draw(t, "enabled"),
					Contents: maybe(text).Draw(t, "unit"),
				}
				if rapid.Bool().Draw(t, "dropin") {
					u.Dropins = []types.Dropin{{
						Name:     rapid.SampledFrom([]string{"1.conf", "2.conf"}).Draw(t, "dropin"),
						Contents: maybe(text).Draw(t, "d"),
					}}
				}
				c.Systemd.Units = append(c.Systemd.Units, u)
			}
		}
		if rapid.Bool().Draw(t, "user") {
			c.Passwd.Users = []types.PasswdUser{{Name: "core", SSHAuthorizedKeys: []types.SSHAuthorizedKey{
				types.SSHAuthorizedKey(rapid.SampledFrom([]string{"k1", "k2"}).Draw(t, "key")),
			}}}
		}
		return c
	})
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOfN(part, 1, 5).Draw(t, "parts")
		want := parts[0]
		for _, p := range parts[1:] {
			want = ignition.Merge(want, p)
		}
		if diff := cmp.Diff(want, mergeAll(parts), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("the merges differ (-Ignition +ours):\n%s", diff)
		}
	})
}

// What is parsed is shared between decisions: none may change it for the next one.
func TestARenderingChangesNothingForTheNext(t *testing.T) {
	configs := []*configv1.MachineConfig{
		mc("50-a", "worker", ign(fileDoc("/etc/x", "1"))), mc("60-b", "worker", ign(fileDoc("/etc/x", "2"))),
		mc("70-c", "worker", ign(fileDoc("/etc/y", "3"))),
	}
	first := must(Render(poolOf("worker", "worker"), configs, nil))
	for range 3 {
		again := must(Render(poolOf("worker", "worker"), configs, []*configv1.MachineConfig{first.Config}))
		if diff := cmp.Diff(first, again, protocmp.Transform()); diff != "" {
			t.Fatal(diff)
		}
		Diff(configs[0], first.Config, defaults())
	}
}
