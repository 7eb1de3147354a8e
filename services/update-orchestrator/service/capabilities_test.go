package service

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/servetest"
	"github.com/windlass-dev/windlass/kit/store"
	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// needing has a manifest need capabilities.
func needing(capabilities, manifest string) string {
	return strings.Replace(manifest, "  annotations:\n", "  annotations:\n    capability.openshift.io/name: "+capabilities+
		"\n", 1)
}

// capabilities replaces spec.capabilities.
func (c *cluster) capabilities(set string, added ...string) error {
	patch := fmt.Sprintf(
		`{"spec": {"capabilities": {"baselineCapabilitySet": %q, "additionalEnabledCapabilities": [%s]}}}`, set,
		strings.Join(added, ", "))
	_, err := updatev1.NewClusterVersionServiceClient(c.admin).PatchClusterVersion(c.t.Context(),
		&updatev1.PatchClusterVersionRequest{Name: "version", Patch: &httpbody.HttpBody{
			ContentType: "application/merge-patch+json", Data: []byte(patch),
		}})
	return err
}

// enabled waits until the status says which capabilities are enabled, and which of them could not be disabled.
func (c *cluster) enabled(kept string, names ...string) {
	c.t.Helper()
	c.version(func(cv *updatev1.ClusterVersion) string {
		if got := cv.GetStatus().GetCapabilities().GetEnabledCapabilities(); !slices.Equal(got, names) {
			return "enabled are " + strings.Join(got, ", ")
		}
		for _, cond := range cv.GetStatus().GetConditions() {
			if cond.GetType() == plan.ImplicitlyEnabled {
				if _, have, _ := strings.Cut(cond.GetMessage(), ": "); have != kept {
					return "kept are " + have
				}
				return ""
			}
		}
		return "no condition"
	})
}

// What needs a capability is applied once it is enabled, also without an update, and is never left behind.
func TestCapabilities(t *testing.T) {
	c := start(t)
	files := example("1.0.0")
	files["0000_60_console_00_service.yaml"] = needing("Console", service("console"))
	files["0000_60_console_01_job.yaml"] = needing("Console+Build", job())
	files["0000_60_console_02_clusteroperator.yaml"] = needing("Console", operator("console", "1.0.0"))
	c.cfg.initial, c.cfg.baseline = c.image("1.0.0", files), plan.CapabilitiesNone
	c.run()
	defer c.ready(operators...)()
	c.version(completed("1.0.0"))
	c.enabled("")
	get := func(name string) error {
		_, err := c.services.Get(t.Context(), name, name)
		return err
	}
	if err := get("console"); status.Code(err) != codes.NotFound {
		t.Errorf("the service of a capability that is off: %v", err)
	}

	if err := c.capabilities("v4.11"); status.Code(err) != codes.InvalidArgument ||
		!strings.Contains(err.Error(), "spec.capabilities.baselineCapabilitySet") {
		t.Errorf("a set that is not known: %v", err)
	}
	// A pause holds it back like an update. Drift that is put back shows that the cluster is kept, and not updated.
	pause := func(p *updatev1.UpdatePause) { c.edit(func(s *updatev1.ClusterVersionSpec) { s.Pause = p }) }
	pause(&updatev1.UpdatePause{Reason: "trade fair"})
	if err := c.capabilities("None", `"Console"`); err != nil {
		t.Fatal(err)
	}
	if _, err := c.services.Delete(t.Context(), "ledger", "ledger", nil); err != nil {
		t.Fatal(err)
	}
	servetest.Await(t, func() string {
		if err := get("ledger"); err != nil {
			return err.Error()
		}
		return ""
	})
	c.enabled("")
	if cv := c.version(completed("1.0.0")); cv.GetStatus().GetProgress() != nil {
		t.Errorf("progress is %v", cv.GetStatus().GetProgress())
	}
	pause(nil)
	// It is waited for as in an update, also after a restart.
	c.enabled("", "Console")
	servetest.Await(t, func() string {
		if err := get("console"); err != nil {
			return err.Error()
		}
		return ""
	})
	c.version(waitsFor("console"))
	c.stop()
	c.run()
	c.version(has("Progressing", "True", ""))
	c.report("console", "1.0.0", false)
	c.version(has("Progressing", "False", ""))
	if _, err := c.jobs.Get(t.Context(), migrate.Namespace, migrate.Name); status.Code(err) != codes.NotFound {
		t.Errorf("the job that needs another capability too: %v", err)
	}
	// A Job of a capability that is enabled later runs once, without an update.
	if err := c.capabilities("None", `"Build"`); err != nil {
		t.Fatal(err)
	}
	c.enabled("Console", "Build", "Console")
	servetest.Await(t, func() string {
		if _, err := c.jobs.Get(t.Context(), migrate.Namespace, migrate.Name); err != nil {
			return err.Error()
		}
		return ""
	})
	c.version(waitsFor("migrate"))
	ran := c.completeJob()
	c.version(has("Progressing", "False", ""))
	servetest.Await(t, func() string {
		if jobs := c.release("1.0.0").GetStatus().GetJobs(); len(jobs) != 1 || jobs[0].GetUid() != ran {
			return "the job is not noted"
		}
		return ""
	})

	// What a release brought stays when the next one has it need a capability, and after a restart.
	files = example("1.0.1")
	files["0000_10_ledger_00_service.yaml"] = needing("Ledger", service("ledger"))
	files["0000_60_console_00_service.yaml"] = needing("Console+More", service("console"))
	files["0000_70_other_00_service.yaml"] = needing("Other", service("other"))
	next := c.image("1.0.1", files, "1.0.0")
	c.sign(next, c.key)
	c.desire("", next)
	c.version(completed("1.0.1"))
	c.enabled("Console, Ledger, More", "Build", "Console", "Ledger", "More")
	c.stop()
	c.run()
	c.enabled("Console, Ledger, More", "Build", "Console", "Ledger", "More")
	for _, name := range []string{"ledger", "console"} {
		if err := get(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := get("other"); status.Code(err) != codes.NotFound {
		t.Errorf("the service of a capability that is off: %v", err)
	}
}

// A cluster whose program knew no capabilities keeps all that it applied.
func TestCapabilitiesOfAnOlderProgramStayEnabled(t *testing.T) {
	c := start(t)
	files := example("1.0.0")
	files["0000_60_console_00_service.yaml"] = needing("Console", service("console"))
	c.cfg.initial = c.image("1.0.0", files)
	c.run()
	defer c.ready(operators...)()
	c.version(completed("1.0.0"))
	c.stop()
	p := c.ground.Process(serve.Config{Name: "predecessor"})
	versions := resource.NewTable(store.New(etcdtest.Client(t), "/windlass/update-orchestrator/"), p.Validator,
		resource.Config[*updatev1.ClusterVersion]{})
	servetest.Run(t, p, versions.Run)
	if _, err := versions.Modify(t.Context(), object.Key{Name: "version"}, func(cv *updatev1.ClusterVersion) error {
		cv.Status.Capabilities = nil
		cv.Spec.Capabilities = &updatev1.Capabilities{BaselineCapabilitySet: plan.CapabilitiesNone}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	c.run()
	c.enabled("Console", "Console")
	if _, err := c.services.Get(t.Context(), "console", "console"); err != nil {
		t.Error(err)
	}
}
