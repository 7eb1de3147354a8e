package plan

import (
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func TestNextOfJob(t *testing.T) {
	const by = "applied.windlass.dev/update-orchestrator"
	tests := map[string]struct {
		notes   map[string]string
		none    bool
		want    JobStep
		refused bool
	}{
		"there is none":                 {none: true, want: RunJob},
		"made by the release":           {notes: map[string]string{by: "{}", DigestAnnotation: "sha256:1"}, want: AwaitJob},
		"made by an earlier release":    {notes: map[string]string{by: "{}", DigestAnnotation: "sha256:0"}, want: ReplaceJob},
		"made before Jobs were noted":   {notes: map[string]string{by: "{}"}, want: ReplaceJob},
		"made by a user":                {refused: true},
		"a user says that it is ours":   {notes: map[string]string{DigestAnnotation: "sha256:1"}, refused: true},
		"a user says that it was ours":  {notes: map[string]string{DigestAnnotation: "sha256:0"}, refused: true},
		"applied by a user of the tool": {notes: map[string]string{"applied.windlass.dev/user": "{}"}, refused: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			live := &schedulingv1.Job{Metadata: &metav1.ObjectMeta{Annotations: tt.notes}}
			if tt.none {
				live = nil
			}
			got, err := NextOfJob(live, by, "sha256:1")
			if got != tt.want || (err != nil) != tt.refused {
				t.Errorf("NextOfJob = %v, %v, want %v, refused %v", got, err, tt.want, tt.refused)
			}
		})
	}
}

func TestUnended(t *testing.T) {
	pod := func(name, phase string) *schedulingv1.Pod {
		return &schedulingv1.Pod{
			Metadata: &metav1.ObjectMeta{Name: name}, Status: &schedulingv1.PodStatus{Phase: &phase},
		}
	}
	tests := map[string]struct {
		pods []*schedulingv1.Pod
		want string
	}{
		"none":      {},
		"all ended": {pods: []*schedulingv1.Pod{pod("a", "Succeeded"), pod("b", "Failed")}},
		"one runs": {
			[]*schedulingv1.Pod{pod("a", "Failed"), pod("b", "Running")},
			`pod "b" of the job before it has not ended`,
		},
		"one waits":  {[]*schedulingv1.Pod{pod("a", "")}, `pod "a" of the job before it has not ended`},
		"one is out": {[]*schedulingv1.Pod{pod("a", "Unknown")}, `pod "a" of the job before it has not ended`},
		"several": {
			[]*schedulingv1.Pod{pod("c", "Running"), pod("a", "Pending"), pod("b", "Succeeded")},
			`2 pods of the job before it have not ended, such as "a"`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Unended(tt.pods); got != tt.want {
				t.Errorf("Unended = %q, want %q", got, tt.want)
			}
		})
	}
}

func TestNoteJob(t *testing.T) {
	job := func(name, uid string, at int64) *updatev1.ReleaseJob {
		j := &updatev1.ReleaseJob{
			Object: &metav1.ObjectReference{ApiVersion: "batch/v1", Kind: "Job", Namespace: "n", Name: name}, Hash: "h",
			Uid: uid,
		}
		if at != 0 {
			j.CompletionTime = &timestamppb.Timestamp{Seconds: at}
		}
		return j
	}
	tests := map[string]struct{ before, want []*updatev1.ReleaseJob }{
		"it has not run": {
			[]*updatev1.ReleaseJob{job("a", "", 0), job("b", "", 0)},
			[]*updatev1.ReleaseJob{job("a", "", 0), job("b", "2", 20)},
		},
		"it ran": {[]*updatev1.ReleaseJob{job("b", "1", 10)}, []*updatev1.ReleaseJob{
			job("b", "1", 10),
		}},
		"of a release kept by an older program": {nil, []*updatev1.ReleaseJob{job("b", "2", 20)}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := NoteJob(tt.before, job("b", "2", 20))
			if !proto.Equal(&updatev1.ReleaseStatus{Jobs: got}, &updatev1.ReleaseStatus{Jobs: tt.want}) {
				t.Errorf("NoteJob = %v, want %v", got, tt.want)
			}
			if !Ran(got, job("b", "", 0).GetObject()) || Ran(got, job("a", "", 0).GetObject()) {
				t.Errorf("Ran is wrong of %v", got)
			}
		})
	}
}
