package service

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/servetest"

	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

const jobFile = "0000_50_more_03_job.yaml"

var migrate = object.Key{Namespace: "beacon", Name: "migrate"}

// job is the manifest of the job "migrate".
func job() string {
	return manifest("Job", "batch/v1", migrate.Name, "  namespace: "+migrate.Namespace+
		"\nspec:\n  template:\n    spec:\n      restartPolicy: Never\n      containers: [{name: m, image: m}]\n")
}

// completeJob says that the job "migrate" is complete, and returns its UID.
func (c *cluster) completeJob() string {
	c.t.Helper()
	j, err := c.jobs.Modify(c.t.Context(), migrate, func(j *schedulingv1.Job) error {
		j.Status = &schedulingv1.JobStatus{Conditions: []*metav1.Condition{{Type: "Complete", Status: "True"}}}
		return nil
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return j.GetMetadata().GetUid()
}

// release returns the Release of a version.
func (c *cluster) release(version string) *updatev1.Release {
	c.t.Helper()
	list, err := updatev1.NewReleaseServiceClient(c.admin).ListReleases(c.t.Context(), &updatev1.ListReleasesRequest{})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, r := range list.GetItems() {
		if r.GetStatus().GetVersion() == version {
			return r
		}
	}
	c.t.Fatalf("there is no release %s", version)
	return nil
}

// A job that ran is not run again: not when the update goes on after a kill, not when the cluster reconciles, and not
// because its object is gone.
func TestAJobRunsOnceForARelease(t *testing.T) {
	c, _ := installed(t)
	files := example("1.0.2")
	files[jobFile] = job()
	files["0000_60_more_00_clusteroperator.yaml"] = operator("more", "1.0.2")
	next := c.image("1.0.2", files, "1.0.0")
	c.sign(next, c.key)
	c.ready(operators...)
	c.desire("", next)
	c.version(waitsFor("migrate"))
	ran := c.completeJob()
	c.version(waitsFor("more"))
	if jobs := c.release("1.0.2").GetStatus().GetJobs(); len(jobs) != 1 || jobs[0].GetUid() != ran ||
		jobs[0].GetCompletionTime() == nil || jobs[0].GetManifest() != jobFile {
		t.Errorf("noted is %v, want the job %s", jobs, ran)
	}
	c.stop()
	if _, err := c.jobs.Delete(t.Context(), migrate.Namespace, migrate.Name, nil); err != nil {
		t.Fatal(err)
	}
	c.cfg.reconcile = 100 * time.Millisecond
	c.run()
	c.ready(append(slices.Clone(operators), "more")...)
	c.version(completed("1.0.2"))
	// What comes after the job is put back: the cluster reconciled.
	const config = "50-worker-release"
	if _, err := c.configs.Delete(t.Context(), "", config, nil); err != nil {
		t.Fatal(err)
	}
	servetest.Await(t, func() string {
		if _, err := c.configs.Get(t.Context(), "", config); err != nil {
			return err.Error()
		}
		return ""
	})
	if !gone(c.jobs.Get(t.Context(), migrate.Namespace, migrate.Name)) {
		t.Error("the job runs again")
	}
}

// The next release runs its job although it is the same, and a release whose job ran before does not run it again.
func TestTheJobOfAnEarlierReleaseIsReplaced(t *testing.T) {
	c, _ := installed(t)
	images := map[string]string{}
	for version, previous := range map[string]string{"1.0.1": "1.0.0", "1.0.2": "1.0.1"} {
		files := example(version)
		files[jobFile] = job()
		images[version] = c.image(version, files, previous)
		c.sign(images[version], c.key)
	}
	c.ready(operators...)
	c.desire("", images["1.0.1"])
	c.version(waitsFor("migrate"))
	first := c.completeJob()
	c.version(completed("1.0.1"))
	if _, err := c.jobs.Modify(t.Context(), migrate, func(j *schedulingv1.Job) error {
		j.Metadata.Finalizers = []string{"example.com/hold"}
		return nil
	}); err != nil {
		t.Fatal(err)
	}

	pod := &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{
			Namespace: migrate.Namespace, Name: "migrate-1", Labels: map[string]string{
				"batch.kubernetes.io/job-name": migrate.Name,
			},
		},
		Spec: &schedulingv1.PodSpec{Containers: []*schedulingv1.Container{{Name: "m", Image: "m"}}},
	}
	if _, err := c.pods.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}

	c.desire("", images["1.0.2"])
	waitsUntilGone := func(observed string) {
		t.Helper()
		c.version(func(cv *updatev1.ClusterVersion) string {
			w := cv.GetStatus().GetProgress().GetWaits()
			if len(w) != 1 || !strings.Contains(w[0].GetFact(), "must be gone") ||
				!strings.Contains(w[0].GetObserved(), observed) {
				return "it does not wait until the old job is gone, but for " + fmt.Sprint(w)
			}
			return ""
		})
	}
	waitsUntilGone("example.com/hold")
	if _, err := c.jobs.Modify(t.Context(), migrate, func(j *schedulingv1.Job) error {
		j.Metadata.Finalizers = nil
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	waitsUntilGone(`pod "migrate-1" of the job before it has not ended`)
	if _, err := c.pods.Modify(t.Context(), object.KeyOf(pod), func(p *schedulingv1.Pod) error {
		p.Status = &schedulingv1.PodStatus{Phase: proto.String("Failed")}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	servetest.Await(t, func() string {
		if j, err := c.jobs.Get(t.Context(), migrate.Namespace, migrate.Name); err != nil ||
			j.GetMetadata().GetUid() == first {
			return "the job of the next release is not there"
		}
		return ""
	})
	c.completeJob()
	c.version(completed("1.0.2"))

	c.desire("", images["1.0.1"])
	c.version(completed("1.0.1"))
	if jobs := c.release("1.0.1").GetStatus().GetJobs(); len(jobs) != 1 || jobs[0].GetUid() != first {
		t.Errorf("noted is %v, want the first job %s", jobs, first)
	}
}

// A Job that is created only once is waited for by the release that made it, also after a restart.
func TestAJobThatIsCreatedOnlyIsWaitedFor(t *testing.T) {
	c, _ := installed(t)
	files := example("1.0.2")
	files[jobFile] = strings.Replace(job(), "  annotations:\n",
		"  annotations:\n    release.openshift.io/create-only: \"true\"\n", 1)
	next := c.image("1.0.2", files, "1.0.0")
	c.sign(next, c.key)
	c.ready(operators...)
	c.desire("", next)
	c.version(waitsFor("migrate"))
	c.stop()
	c.run()
	c.version(waitsFor("migrate"))
	ran := c.completeJob()
	c.version(completed("1.0.2"))
	if jobs := c.release("1.0.2").GetStatus().GetJobs(); len(jobs) != 1 || jobs[0].GetUid() != ran {
		t.Errorf("noted is %v, want the job %s", jobs, ran)
	}
}

func TestAJobThatNoReleaseMadeIsLeftAlone(t *testing.T) {
	c, _ := installed(t)
	mine, err := c.jobs.Create(t.Context(), &schedulingv1.Job{
		Metadata: &metav1.ObjectMeta{Namespace: migrate.Namespace, Name: migrate.Name},
	})
	if err != nil {
		t.Fatal(err)
	}
	files := example("1.0.2")
	files[jobFile] = job()
	next := c.image("1.0.2", files, "1.0.0")
	c.sign(next, c.key)
	c.ready(operators...)
	c.desire("", next)
	c.version(func(cv *updatev1.ClusterVersion) string {
		f := object.FindCondition(cv.GetStatus().GetConditions(), "Failing")
		if !strings.Contains(f.GetMessage(), "no release made the job of that name") {
			return "it does not say that the job is another one"
		}
		return ""
	})
	if j, err := c.jobs.Get(t.Context(), migrate.Namespace, migrate.Name); err != nil ||
		!proto.Equal(j.GetMetadata(), mine.GetMetadata()) {
		t.Errorf("the job was changed: %v, %v", j, err)
	}
}

func TestADeletionThatAReleaseAsksForIsWaitedFor(t *testing.T) {
	c, _ := installed(t)
	key := object.Key{Namespace: "ledger", Name: "ledger"}
	hold := func(finalizers ...string) {
		if _, err := c.services.Modify(t.Context(), key, func(s *schedulingv1.Service) error {
			s.Metadata.Finalizers = finalizers
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	hold("example.com/hold")
	files := example("1.0.2")
	files["0000_10_ledger_00_service.yaml"] = strings.Replace(service("ledger"), "  annotations:\n",
		"  annotations:\n    release.openshift.io/delete: \"true\"\n", 1)
	next := c.image("1.0.2", files, "1.0.0")
	c.sign(next, c.key)
	c.ready(operators...)
	c.desire("", next)
	c.version(func(cv *updatev1.ClusterVersion) string {
		w := cv.GetStatus().GetProgress().GetWaits()
		if len(w) != 1 || !strings.Contains(w[0].GetObserved(), "example.com/hold") {
			return "it does not wait for the deletion"
		}
		return ""
	})
	hold()
	c.version(completed("1.0.2"))
}

func TestTwoManifestsOfOneObjectAreRefused(t *testing.T) {
	c, _ := installed(t)
	files := example("1.0.2")
	files["0000_60_more_00_service.yaml"] = service("ledger")
	next := c.image("1.0.2", files, "1.0.0")
	c.sign(next, c.key)
	c.desire("", next)
	c.version(has("ReleaseAccepted", "False", "LoadPayload"))
	c.version(func(cv *updatev1.ClusterVersion) string {
		m := object.FindCondition(cv.GetStatus().GetConditions(), "ReleaseAccepted").GetMessage()
		if !strings.Contains(m, "0000_60_more_00_service.yaml") || !strings.Contains(m, "0000_10_ledger_00_service.yaml") {
			return "the files are not said"
		}
		return ""
	})
}

func TestKindsWithoutAServiceAreSaid(t *testing.T) {
	c, _ := installed(t)
	got := c.release("1.0.0").GetStatus().GetUnserved()
	if len(got) != 1 || got[0].GetKind() != "LimitRange" || got[0].GetApiVersion() != "v1" || got[0].GetCount() != 3 {
		t.Errorf("unserved is %v, want 3 of v1 LimitRange", got)
	}
	if m := plan.UnservedMessage("1.0.0", got); !strings.HasPrefix(m, "3 manifests of release 1.0.0 are kept") {
		t.Errorf("message %q", m)
	}
}
