package seeds

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
)

// graph offers one update to whatever the cluster runs, and one with the risk that the document shows.
const graph = `{
  "nodes": [
    {"version": %[1]q, "payload": %[2]q, "metadata": {"io.openshift.upgrades.graph.release.channels": "candidate-4.11,fast-4.11"}},
    {"version": "4.11.41", "payload": "windlass.dev/release@sha256:400267c7f4e61c6bfa0a59571467e8bd85c9188e442cbd820cc8263809be3775", "metadata": {
      "io.openshift.upgrades.graph.release.channels": "candidate-4.11,fast-4.11", "url": "https://access.redhat.com/errata/RHBA-2023:3213"}},
    {"version": "4.11.36", "payload": "windlass.dev/release@sha256:8c04176b771a62abd801fcda3e952633566c8b5ff177b93592e8e8d2d1f8471d", "metadata": {
      "io.openshift.upgrades.graph.release.channels": "candidate-4.11,fast-4.11", "url": "https://access.redhat.com/errata/RHBA-2023:1733"}}
  ],
  "edges": [[0, 1]],
  "conditionalEdges": [{
    "edges": [{"from": %[1]q, "to": "4.11.36"}],
    "risks": [{"name": "PatchesOlderRelease", "url": "https://access.redhat.com/solutions/7007136", "matchingRules": [{"type": "Always"}],
      "message": "The 4.11.36 release only resolves an installation issue, which does not affect already running clusters."}]
  }]
}`

func TestUpdates(t *testing.T) {
	through(t, "001", func(w *walk) {
		w.await("clusterversion version", "condition=Progressing=False")
		w.offerUpdates()
		shown := w.run("001:25")
		w.shows(shown, `^Cluster version is \d+\.\d+\.\d+$`,
			`^Channel: fast-4.11 \(available channels: candidate-4.11, fast-4.11\)$`,
			`^Recommended updates:$`, `^  VERSION IMAGE$`, `^  4.11.41 windlass.dev/release@sha256:400267c7[0-9a-f]{56}$`,
			`^Supported but not recommended updates:$`, `^  Version: 4.11.36$`,
			`^  Image: windlass.dev/release@sha256:8c04176b[0-9a-f]{56}$`,
			`^  Recommended: False$`, `^  Reason: PatchesOlderRelease$`,
			`^  Message: The 4.11.36 release only .* https://access.redhat.com/solutions/7007136$`)
		w.shows(w.run("001:51"), `^  4.11.41 windlass.dev/release@`, `re-run the command with --include-not-recommended`)
		w.availableUpdates(w.run("001:55"))
		w.conditionalUpdates(w.run("001:73"))

		w.names["release"] = w.c.Dir("release", "images")
		const extracted = `^Extracted release payload from digest sha256:[0-9a-f]{64} created at \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$`
		w.shows(w.run("001:113"), extracted)
		w.payload()
		w.shows(w.run("001:115"), extracted)
		w.payload()

		w.shows(w.run("001:240"),
			`^NAME CONFIG UPDATED UPDATING DEGRADED MACHINECOUNT READYMACHINECOUNT UPDATEDMACHINECOUNT DEGRADEDMACHINECOUNT AGE$`,
			`^master rendered-master-[0-9a-f]{32} True False False 3 3 3 0 \d+[smh]`,
			`^worker rendered-worker-[0-9a-f]{32} True False False 2 2 2 0 \d+[smh]`)
	})
}

// offerUpdates gives the cluster a graph of updates, until the test ends.
func (w *walk) offerUpdates() {
	w.Helper()
	version := w.admin("get clusterversion version -o jsonpath={.status.desired.version}")
	image := w.admin("get clusterversion version -o jsonpath={.status.desired.image}")
	path := filepath.Join(w.dir, "graph.json")
	if err := os.WriteFile(path, fmt.Appendf(nil, graph, version, image), 0o644); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		w.admin("adm upgrade channel")
		w.admin("adm upgrade --upstream", "")
	})
	w.admin("adm upgrade channel fast-4.11")
	w.admin("adm upgrade --upstream file://" + path)
	w.await("clusterversion version", "condition=RetrievedUpdates")
}

// availableUpdates holds a list of releases against what the document shows of it.
func (w *walk) availableUpdates(text string) {
	w.Helper()
	var got []struct {
		Channels            []string
		Image, URL, Version string
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		w.Fatal(err)
	}
	if len(got) != 1 || len(got[0].Channels) != 2 || got[0].Version != "4.11.41" ||
		got[0].URL != "https://access.redhat.com/errata/RHBA-2023:3213" || got[0].Image == "" {
		w.Errorf("available updates are %s", text)
	}
}

// conditionalUpdates reads the whole of what is printed: it has no other fields than the document's example, which the
// same message takes.
func (w *walk) conditionalUpdates(text string) {
	w.Helper()
	var v updatev1.ClusterVersion
	if err := manifest.Decode([]byte(`{"status":{"conditionalUpdates":`+text+`}}`), &v); err != nil {
		w.Fatal(err)
	}
	list := v.GetStatus().GetConditionalUpdates()
	if len(list) != 1 || list[0].GetRelease().GetVersion() != "4.11.36" || len(list[0].GetRisks()) != 1 ||
		len(list[0].GetConditions()) != 1 {
		w.Fatalf("conditional updates are %s", text)
	}
	c := list[0].GetConditions()[0]
	if c.GetType() != "Recommended" || c.GetStatus() != "False" || c.GetReason() != "PatchesOlderRelease" ||
		c.GetLastTransitionTime() == nil {
		w.Errorf("condition %v", c)
	}
}

// payload lists the files of a release, as the document's `ls` does, and removes them.
func (w *walk) payload() {
	w.Helper()
	entries, err := os.ReadDir(w.dir)
	if err != nil {
		w.Fatal(err)
	}
	name := regexp.MustCompile(`^0000_\d\d_[a-z-]+_.+\.yaml$`)
	found := map[string]int{}
	for _, e := range entries {
		switch {
		case e.Name() == "graph.json":
			continue
		case e.Name() == "image-references", e.Name() == "release-metadata":
			found[e.Name()]++
		case name.MatchString(e.Name()):
			found["manifests"]++
		default:
			w.Errorf("%s is none of the files that the document shows", e.Name())
		}
		if err := os.Remove(filepath.Join(w.dir, e.Name())); err != nil {
			w.Fatal(err)
		}
	}
	if found["image-references"] != 1 || found["release-metadata"] != 1 || found["manifests"] == 0 {
		w.Errorf("found %v", found)
	}
}

func TestDeletionOfAMachine(t *testing.T) {
	through(t, "002", func(w *walk) {
		w.names["machine"] = w.names["worker"]
		w.Cleanup(func() { w.c.Settle(time.Minute) })
		w.shows(w.run("002:50"), `^machine.machine.openshift.io "`+w.names["machine"]+
			`" deleted from openshift-machine-api namespace$`)
		w.shows(w.admin("get events -A"), `Normal \w+ machine/`+w.names["machine"])
		if r := w.c.CLI("get", "node", w.names["machine"]); r.Code == 0 {
			w.Errorf("the machine is gone, but its node is there:\n%s", r.Stdout)
		}
		w.c.Settle(time.Minute)
		w.admin("rollout status deployment/hello --timeout=25s")
	})
}
