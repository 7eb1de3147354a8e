package service

import (
	"strings"
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// manifestOf returns what a plan says of the manifest of an object.
func manifestOf(r *updatev1.PlanReleaseResponse, kind, name string) *updatev1.ReleaseManifest {
	for _, m := range r.GetManifests() {
		if m.GetObject().GetKind() == kind && m.GetObject().GetName() == name {
			return m
		}
	}
	return nil
}

// The plan of the present release says who serves each manifest, and that nothing would be removed.
func TestThePlanOfALiveReleaseSaysWhoServesItsManifests(t *testing.T) {
	c, _ := installed(t)
	client := updatev1.NewReleaseServiceClient(c.admin)
	list, err := client.ListReleases(t.Context(), &updatev1.ListReleasesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	name := list.GetItems()[0].GetMetadata().GetName()
	r, err := client.PlanRelease(t.Context(), &updatev1.PlanReleaseRequest{Name: name, Removals: true})
	if err != nil {
		t.Fatal(err)
	}
	if r.GetContentsUnknown() != "" || r.GetMode() != "Updating" || r.GetManifestCount() != 10 || r.ExcludedCount == nil ||
		r.GetExcludedCount() != 0 || r.RemovalCount == nil || r.GetRemovalCount() != 0 || len(r.GetUnserved()) != 1 {
		t.Errorf("%v", r)
	}
	for _, want := range []struct{ kind, name, service string }{
		{"Service", "ledger", "scheduler"},
		{"Deployment", "beacon", "scheduler"},
		{"MachineConfig", "50-worker-release", "node-configurator"},
		{"ClusterOperator", "archive", "update-orchestrator"},
		{"LimitRange", "archive", ""},
	} {
		m := manifestOf(r, want.kind, want.name)
		if m == nil || m.GetService() != want.service || m.GetClusterOperator() != (want.kind == "ClusterOperator") {
			t.Errorf("%s %s: %v", want.kind, want.name, m)
		}
	}
	other, err := client.PlanRelease(t.Context(), &updatev1.PlanReleaseRequest{Name: name, Mode: "Reconciling"})
	if err != nil || len(other.GetSteps()) != 1 || other.GetMode() != "Reconciling" || other.RemovalCount != nil {
		t.Errorf("while reconciling, all components are applied at once: %v, %v", other, err)
	}
}

// A release that is not built yet is planned by its files alone: with a job, a deletion, what is excluded and why, and
// what it lacks of the inventory of the request.
func TestThePlanOfFiles(t *testing.T) {
	c, _ := installed(t)
	client := updatev1.NewReleaseServiceClient(c.admin)
	annotated := func(content, annotation string) string {
		return strings.Replace(content, "  annotations:\n", "  annotations:\n    "+annotation+"\n", 1)
	}
	files := map[string]string{
		"0000_10_a_00_service.yaml": service("a"),
		jobFile:                     job(),
		"0000_30_b_00_service.yaml": annotated(service("b"), `release.openshift.io/delete: "true"`),
		"0000_30_c_00_service.yaml": annotated(service("c"), "release.openshift.io/feature-set: TechPreviewNoUpgrade"),
		"0000_30_d_00_service.yaml": annotated(service("d"), "capability.openshift.io/name: Extra"),
	}
	req := &updatev1.PlanReleaseRequest{
		Version: "7.0.0", Removals: true, Capabilities: &updatev1.Capabilities{BaselineCapabilitySet: "None"},
		Inventory: []*metav1.ObjectReference{
			{ApiVersion: "v1", Kind: "Service", Namespace: "a", Name: "a"},
			{ApiVersion: "v1", Kind: "Service", Namespace: "old", Name: "old"},
			{ApiVersion: "v1", Kind: "Namespace", Name: "old"},
		},
		Overrides: []*updatev1.ComponentOverride{{Kind: "Service", Namespace: "a", Name: "a", Unmanaged: new(bool)}},
	}
	*req.Overrides[0].Unmanaged = true
	for name, content := range files {
		req.Files = append(req.Files, &updatev1.PlanReleaseRequest_File{Name: name, Content: []byte(content)})
	}
	r, err := client.PlanRelease(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if r.GetManifestCount() != 3 || r.GetExcludedCount() != 2 || r.GetRemovalCount() != 1 || len(r.GetRemovals()) != 2 ||
		r.GetRemovals()[0].GetObject().GetName() != "old" || r.GetRemovals()[1].GetReason() == "" {
		t.Errorf("%v", r)
	}
	if m := manifestOf(r, "Service", "a"); !m.GetUnmanaged() {
		t.Errorf("a is %v", m)
	}
	if m := manifestOf(r, "Service", "b"); !m.GetDeletion() {
		t.Errorf("b is %v", m)
	}
	if m := manifestOf(r, "Service", "c"); !strings.Contains(m.GetExcluded(), "release.openshift.io/feature-set") {
		t.Errorf("c is %v", m)
	}
	if m := manifestOf(r, "Service", "d"); m.GetExcluded() != "capability Extra is not enabled" {
		t.Errorf("d is %v", m)
	}
	jobs := 0
	for _, s := range r.GetSteps() {
		if s.GetJob() {
			jobs++
		}
	}
	if jobs != 1 {
		t.Errorf("%d steps are jobs: %v", jobs, r.GetSteps())
	}
	for path, wrong := range map[string]*updatev1.PlanReleaseRequest{
		"files: ":        {Files: []*updatev1.PlanReleaseRequest_File{{Name: "a.yaml", Content: []byte("kind: Service")}}},
		"files":          {Name: "x", Files: []*updatev1.PlanReleaseRequest_File{{Name: "a.yaml"}}},
		"inventory":      {Name: "x", Removals: true, Inventory: req.GetInventory()},
		"capabilities: ": {Name: "x", Capabilities: req.GetCapabilities()},
		"overrides":      {Name: "x", Overrides: req.GetOverrides()},
		"removals":       {Manifests: []string{"a.yaml"}, Removals: true},
		"version":        {Name: "x", Version: "1.0.0"},
		"name":           {},
	} {
		if _, err := client.PlanRelease(t.Context(), wrong); status.Code(err) != codes.InvalidArgument ||
			!strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
