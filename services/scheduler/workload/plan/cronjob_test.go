package plan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

// cronWorld is a cron job with its jobs, for which plans are carried out.
type cronWorld struct {
	cron    *schedulingv1.CronJob
	jobs    map[string]*schedulingv1.Job
	created []string // names, in order
	events  []string
	last    plan.CronJobPlan
}

// hourly is a cron job that was created at 11:30; a test begins at 12:00.
func hourly(changes ...func(*schedulingv1.CronJobSpec)) *cronWorld {
	c := &schedulingv1.CronJob{
		Metadata: &metav1.ObjectMeta{
			Name: "backup", Namespace: "default", Uid: "c", CreationTimestamp: at(start.Add(-30 * time.Minute)),
		},
		Spec: &schedulingv1.CronJobSpec{Schedule: "0 * * * *", JobTemplate: &schedulingv1.JobTemplateSpec{
			Metadata: &metav1.ObjectMeta{Labels: web}, Spec: job().GetSpec(),
		}},
	}
	for _, f := range changes {
		f(c.Spec)
	}
	return &cronWorld{cron: c, jobs: map[string]*schedulingv1.Job{}}
}

func (w *cronWorld) view(now time.Time) plan.CronJobView {
	v := plan.CronJobView{Now: now, CronJob: w.cron, Named: func(name string) *schedulingv1.Job { return w.jobs[name] }}
	for _, j := range w.jobs {
		v.Jobs = append(v.Jobs, j)
	}
	return v
}

// run decides at a time and carries out what is decided; written is false if the status is lost.
func (w *cronWorld) run(now time.Time, written bool) {
	p := plan.CronJob(w.view(now))
	w.last = p
	for _, j := range p.Delete {
		delete(w.jobs, j.GetMetadata().GetName())
	}
	if p.Create != nil {
		j := object.Clone(p.Create)
		name := j.GetMetadata().GetName()
		j.Metadata.Uid, j.Metadata.CreationTimestamp = name, at(now)
		w.jobs[name] = j
		w.created = append(w.created, name)
	}
	if !written {
		return
	}
	for _, e := range p.Tell {
		w.events = append(w.events, e.Reason)
	}
	w.cron = plan.CronJobAfter(w.cron, p)
}

// end ends all jobs that run.
func (w *cronWorld) end(condition string, now time.Time) {
	for _, j := range w.jobs {
		if plan.JobEnded(j) {
			continue
		}
		j.Status = &schedulingv1.JobStatus{Conditions: []*metav1.Condition{{Type: condition, Status: "True"}}}
		if condition == "Complete" {
			j.Status.CompletionTime = at(now)
		}
	}
}

// nameAt is the name of the job of a time.
func nameAt(t time.Time) string { return fmt.Sprintf("backup-%d", t.Unix()/60) }

func namesAt(hours ...float64) []string {
	var out []string
	for _, h := range hours {
		out = append(out, nameAt(start.Add(time.Duration(h*float64(time.Hour)))))
	}
	return out
}

func TestCronJob(t *testing.T) {
	policy := func(p string) func(*schedulingv1.CronJobSpec) {
		return func(s *schedulingv1.CronJobSpec) { s.ConcurrencyPolicy = p }
	}
	deadline := func(s *schedulingv1.CronJobSpec) { s.StartingDeadlineSeconds = proto.Int32(60) }
	times := func(text string) func(*schedulingv1.CronJobSpec) {
		return func(s *schedulingv1.CronJobSpec) { s.Schedule = text }
	}
	in := func(h float64) time.Time { return start.Add(time.Duration(h * float64(time.Hour))) }
	for _, c := range []struct {
		name   string
		of     []func(*schedulingv1.CronJobSpec)
		do     func(w *cronWorld)
		want   []string // jobs that were created
		left   []string // those that are there at the end, if they are others
		held   string   // part of the reason
		events []string
		wake   float64 // hours
	}{
		{name: "nothing before its time", do: func(w *cronWorld) { w.run(in(-0.1), true) }, wake: 0},
		{name: "a job at its time", do: func(w *cronWorld) { w.run(in(0), true) }, want: namesAt(0), wake: 1},
		{
			name: "one job for a time", do: func(w *cronWorld) { w.run(in(0), true); w.run(in(0.5), true) }, want: namesAt(0),
			wake: 1,
		},
		{
			name: "the last one of the times that were missed", do: func(w *cronWorld) { w.run(in(5.5), true) },
			want: namesAt(5), wake: 6,
		},
		{
			name: "an event for times that are too many", do: func(w *cronWorld) { w.run(in(102), true) },
			want: namesAt(102), events: []string{"TooManyMissedTimes"}, wake: 103,
		},
		{name: "none for a hundred", do: func(w *cronWorld) { w.run(in(100), true) }, want: namesAt(100), wake: 101},
		{
			name: "a time that is missed is reported once", of: []func(*schedulingv1.CronJobSpec){deadline},
			do:     func(w *cronWorld) { w.run(in(0.5), true); w.run(in(0.6), true) },
			events: []string{"MissSchedule"}, wake: 1,
		},
		{
			name: "a job within its deadline", of: []func(*schedulingv1.CronJobSpec){deadline},
			do: func(w *cronWorld) { w.run(in(0.01), true) }, want: namesAt(0), wake: 1,
		},
		{
			name: "none while it is suspended, and the last missed one afterwards", do: func(w *cronWorld) {
				w.cron.Spec.Suspend = proto.Bool(true)
				w.run(in(2), true)
				w.cron.Spec.Suspend = nil
				w.run(in(2.5), true)
			}, want: namesAt(2), wake: 3,
		},
		{
			name: "it says that it is suspended", do: func(w *cronWorld) {
				w.cron.Spec.Suspend = proto.Bool(true)
				w.run(in(2), true)
			}, held: "suspended", wake: -1,
		},
		{
			name: "Allow has several jobs run", of: []func(*schedulingv1.CronJobSpec){policy("Allow")},
			do: func(w *cronWorld) { w.run(in(0), true); w.run(in(1), true) }, want: namesAt(0, 1), wake: 2,
		},
		{
			name: "Forbid waits for the job that runs", of: []func(*schedulingv1.CronJobSpec){policy("Forbid")},
			do:   func(w *cronWorld) { w.run(in(0), true); w.run(in(1), true); w.run(in(1.1), true) },
			want: namesAt(0), held: nameAt(start) + " runs", events: []string{"JobAlreadyActive"}, wake: 2,
		},
		{
			name: "and then goes on", of: []func(*schedulingv1.CronJobSpec){policy("Forbid")},
			do: func(w *cronWorld) {
				w.run(in(0), true)
				w.run(in(1), true)
				w.end("Complete", in(1.2))
				w.run(in(1.2), true)
			}, want: namesAt(0, 1), events: []string{"JobAlreadyActive", "SawCompletedJob"}, wake: 2,
		},
		{
			name: "Replace deletes the job that runs", of: []func(*schedulingv1.CronJobSpec){policy("Replace")},
			do: func(w *cronWorld) { w.run(in(0), true); w.run(in(1), true) }, want: namesAt(0, 1), left: namesAt(1), wake: 2,
		},
		{
			name: "a job that a user created forbids and replaces nothing",
			of:   []func(*schedulingv1.CronJobSpec){policy("Forbid")}, do: func(w *cronWorld) {
				w.jobs["now"] = &schedulingv1.Job{Metadata: &metav1.ObjectMeta{
					Name: "now", Namespace: "default", Uid: "now", Annotations: map[string]string{plan.ManualJob: "manual"},
					OwnerReferences: []*metav1.OwnerReference{object.OwnedBy(w.cron)},
				}}
				w.run(in(0), true)
			}, want: namesAt(0), left: append(namesAt(0), "now"), wake: 1,
		},
		{
			name: "a job of another owner has the name", do: func(w *cronWorld) {
				w.jobs[nameAt(start)] = &schedulingv1.Job{Metadata: &metav1.ObjectMeta{Name: nameAt(start)}}
				w.run(in(0), true)
				w.run(in(0.1), true)
			}, left: namesAt(0), held: "does not belong", events: []string{"FailedCreate"}, wake: 1,
		},
		{
			name: "the newest of those that ended are kept", do: func(w *cronWorld) {
				for h := range 6 {
					w.run(in(float64(h)), true)
					w.end([]string{"Complete", "Failed"}[h%2], in(float64(h)+0.1))
				}
				w.run(in(5.5), true)
			}, want: namesAt(0, 1, 2, 3, 4, 5), left: namesAt(0, 2, 4, 5), wake: 6,
		},
		{
			name: "a clock that is set back runs no time twice, and those that did not come",
			do: func(w *cronWorld) {
				w.run(in(0), true)
				w.end("Complete", in(0))
				w.run(in(5), true) // the clock was set forward
				clear(w.jobs)      // and users removed the jobs
				for _, h := range []float64{0, 0.1, 1, 1.1, 5, 6} {
					w.run(in(h), true)
				}
			}, want: namesAt(0, 5, 1, 6), left: namesAt(1, 6), wake: 7,
		},
		{
			name: "a clock that is set back to before all that is known waits, and says so",
			do:   func(w *cronWorld) { w.run(in(5), true); w.run(in(-0.2), true) },
			want: namesAt(5), held: "the clock was set back", wake: 6,
		},
		{
			name: "@every counts from the last job", of: []func(*schedulingv1.CronJobSpec){times("@every 90m")},
			do:   func(w *cronWorld) { w.run(in(1), true); w.run(in(1.1), true); w.run(in(2.6), true) },
			want: namesAt(1, 2.5), wake: 4,
		},
		{
			name: "none of a cron job that is being deleted", do: func(w *cronWorld) {
				w.cron.Metadata.DeletionTimestamp = at(start)
				w.run(in(5), true)
			}, wake: -1,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := hourly(c.of...)
			before := proto.CloneOf(w.cron)
			plan.CronJob(w.view(start.Add(10 * time.Hour)))
			if !proto.Equal(before, w.cron) {
				t.Error("the view was modified")
			}
			c.do(w)
			var left []string
			for name := range w.jobs {
				left = append(left, name)
			}
			if c.left == nil {
				c.left = slices.Clone(c.want)
			}
			slices.Sort(left)
			slices.Sort(c.left)
			if diff := cmp.Diff(c.want, w.created); diff != "" {
				t.Errorf("created: %s", diff)
			}
			if diff := cmp.Diff(c.left, left); diff != "" {
				t.Errorf("left: %s", diff)
			}
			if diff := cmp.Diff(c.events, w.events); diff != "" {
				t.Errorf("events: %s", diff)
			}
			var held string
			for _, h := range w.last.Held {
				held += h.GetReason()
				if h.GetUnblock() == "" {
					t.Errorf("what releases %q?", h.GetReason())
				}
			}
			if !strings.Contains(held, c.held) || (held == "") != (c.held == "") {
				t.Errorf("held back since %q, want %q", held, c.held)
			}
			wake := in(c.wake)
			if c.wake < 0 {
				wake = time.Time{}
			}
			if diff := w.last.Wake.Sub(wake); diff < 0 || diff > time.Second {
				t.Errorf("wakes at %v, want %v", w.last.Wake, wake)
			}
		})
	}
}

// TestNoTimeHasTwoJobs has the clock go, and be set, in all ways, and the process end before it writes the status.
func TestNoTimeHasTwoJobs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := hourly(func(s *schedulingv1.CronJobSpec) {
			s.Schedule = rapid.SampledFrom([]string{"* * * * *", "*/5 * * * *", "@hourly", "30 2 * * *"}).Draw(t, "schedule")
			s.TimeZone = proto.String(rapid.SampledFrom([]string{"UTC", "Europe/Berlin"}).Draw(t, "zone"))
			s.SuccessfulJobsHistoryLimit = proto.Int32(rapid.Int32Range(0, 2).Draw(t, "keep"))
		})
		now := start
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(-200, 400).Draw(t, "minutes")) * time.Minute)
			w.run(now, true)
			if n := len(w.created); n > 0 && slices.Index(w.created, w.created[n-1]) != n-1 {
				t.Fatalf("%s was created twice", w.created[n-1])
			}
			if rapid.Bool().Draw(t, "ends") {
				w.end("Complete", now)
			}
		}
		// A clock that goes on as it should has a job soon, whatever happened to it.
		for range 40 {
			now = w.last.Wake
			before := len(w.created)
			if now.IsZero() {
				t.Fatal("it never wakes")
			}
			if w.run(now, true); len(w.created) > before {
				return
			}
		}
		if last := w.cron.GetStatus().GetLastScheduleTime().AsTime(); !last.After(now) {
			t.Errorf("no job by %v, and the last one was of %v", now, last)
		}
	})
}

func TestAJobWhoseStatusWasLostIsNotCreatedAgain(t *testing.T) {
	w := hourly()
	w.run(start, false)
	w.run(start.Add(time.Second), true)
	if len(w.created) != 1 || !w.cron.GetStatus().GetLastScheduleTime().AsTime().Equal(start) {
		t.Errorf("created %v, the last one of %v", w.created, w.cron.GetStatus().GetLastScheduleTime().AsTime())
	}
}

func TestTheJobOfACronJob(t *testing.T) {
	w := hourly()
	w.run(start, true)
	j := w.jobs[nameAt(start)]
	if got := j.GetMetadata().GetAnnotations()["batch.kubernetes.io/cronjob-scheduled-timestamp"]; got !=
		"2026-03-01T12:00:00Z" {
		t.Errorf("it is of the time %q", got)
	}
	if object.ControllerOf(j).GetUid() != "c" || j.GetMetadata().GetLabels()["app"] != "web" ||
		!proto.Equal(j.GetSpec(), w.cron.GetSpec().GetJobTemplate().GetSpec()) {
		t.Errorf("it is %v", j)
	}
	w.run(start.Add(time.Minute), true)
	if active := w.cron.GetStatus().GetActive(); len(active) != 1 || active[0].GetName() != nameAt(start) {
		t.Errorf("active are %v", active)
	}
	if got := w.last.Actions(); len(got) != 0 {
		t.Errorf("it would %v", got)
	}
}

// TestACronJobOfManyJobs decides on one with 10,000 jobs, and on 10,000 with none, in bounded time and steps.
func TestACronJobOfManyJobs(t *testing.T) {
	w := hourly()
	for n := range 10_000 {
		name := fmt.Sprint("old-", n)
		w.jobs[name] = &schedulingv1.Job{Metadata: &metav1.ObjectMeta{
			Name: name, Uid: name, OwnerReferences: []*metav1.OwnerReference{object.OwnedBy(w.cron)},
		}}
	}
	w.end("Complete", start)
	begin := time.Now()
	for w.run(start, true); len(w.last.Delete) > 0; w.run(start, true) {
		if n := len(w.last.Delete); n > 500 {
			t.Fatalf("%d jobs at once", n)
		}
	}
	if n := len(w.jobs); n != 4 { // three of those that ended, and the new one
		t.Errorf("%d jobs are left", n)
	}
	for range 10_000 {
		plan.CronJob(hourly().view(start.Add(-time.Minute)))
	}
	if took := time.Since(begin); took > 30*time.Second { // many times what it takes
		t.Errorf("took %v", took)
	}
}
