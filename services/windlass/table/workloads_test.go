package table_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

// ago is a time in a document.
func ago(d time.Duration) string { return fmt.Sprintf("%q", now.Add(-d).UTC().Format(time.RFC3339)) }

func TestWorkloadsAndUpdatesAreShownAsKubectlAndOcShowThem(t *testing.T) {
	const container = `"spec":{"nodeName":"one","containers":[{"name":"a"},{"name":"b"}]}`
	for _, tc := range []struct {
		name   string
		wide   bool
		object object.Object
		doc    string // what follows the metadata
		want   string
	}{
		{
			"a pod without a node", true, &schedulingv1.Pod{},
			`"spec":{"containers":[{"name":"a"}]},"status":{"phase":"Pending"}`,
			"NAME,READY,STATUS,RESTARTS,AGE,IP,NODE|x,0/1,Pending,0,90m,<none>,<none>",
		},
		{
			"a pod of two containers, one of which was started again", true, &schedulingv1.Pod{},
			container +
				`,"status":{"phase":"Running","podIP":"10.0.0.1","containerStatuses":[{"name":"a","ready":true,"state":{"running":{}}},{"name":"b","ready":true,"restartCount":3,"state":{"running":{}},"lastState":{"terminated":{"exitCode":1,"finishedAt":` + ago(5*time.Minute) + `}}}]}`,
			"NAME,READY,STATUS,RESTARTS,AGE,IP,NODE|x,2/2,Running,3 (5m ago),90m,10.0.0.1,one",
		},
		{
			"a pod whose container ends again and again", false, &schedulingv1.Pod{},
			container +
				`,"status":{"phase":"Running","containerStatuses":[{"name":"a","ready":true,"state":{"running":{}}},{"name":"b","restartCount":1,"state":{"waiting":{"reason":"CrashLoopBackOff"}}}]}`,
			"NAME,READY,STATUS,RESTARTS,AGE|x,1/2,CrashLoopBackOff,1,90m",
		},
		{
			"a pod whose container was killed", false, &schedulingv1.Pod{},
			container +
				`,"status":{"phase":"Failed","containerStatuses":[{"name":"a","state":{"terminated":{"signal":9,"exitCode":137}}}]}`, "NAME,READY,STATUS,RESTARTS,AGE|x,0/2,Signal:9,0,90m",
		},
		{
			"a pod whose container failed", false, &schedulingv1.Pod{},
			container + `,"status":{"phase":"Failed","containerStatuses":[{"name":"a","state":{"terminated":{"exitCode":2}}}]}`,
			"NAME,READY,STATUS,RESTARTS,AGE|x,0/2,ExitCode:2,0,90m",
		},
		{
			"a pod that its node did not take", false, &schedulingv1.Pod{},
			container + `,"status":{"phase":"Failed","reason":"OutOfcpu"}`,
			"NAME,READY,STATUS,RESTARTS,AGE|x,0/2,OutOfcpu,0,90m",
		},
		{
			"a pod at the second of its init containers", false, &schedulingv1.Pod{},
			`"spec":{"initContainers":[{"name":"i"},{"name":"j"}],"containers":[{"name":"a"}]},"status":{"phase":"Pending","initContainerStatuses":[{"name":"i","state":{"terminated":{"exitCode":0}}},{"name":"j","state":{"running":{}}}]}`,
			"NAME,READY,STATUS,RESTARTS,AGE|x,0/1,Init:1/2,0,90m",
		},
		{
			"a pod with a sidecar that runs", false, &schedulingv1.Pod{},
			`"spec":{"initContainers":[{"name":"i","restartPolicy":"Always"}],"containers":[{"name":"a"}]},"status":{"phase":"Running","initContainerStatuses":[{"name":"i","ready":true,"started":true,"restartCount":2,"state":{"running":{}}}],"containerStatuses":[{"name":"a","ready":true,"state":{"running":{}}}]}`,
			"NAME,READY,STATUS,RESTARTS,AGE|x,2/2,Running,2,90m",
		},
		{
			"a pod that waits for its sidecar", false, &schedulingv1.Pod{},
			`"spec":{"initContainers":[{"name":"i","restartPolicy":"Always"}],"containers":[{"name":"a"}]},"status":{"phase":"Pending","initContainerStatuses":[{"name":"i","state":{"running":{}}}]}`,
			"NAME,READY,STATUS,RESTARTS,AGE|x,0/2,Init:0/1,0,90m",
		},
		{
			"a pod that runs on while its sidecar is started again", false, &schedulingv1.Pod{},
			`"spec":{"initContainers":[{"name":"i","restartPolicy":"Always"}],"containers":[{"name":"a"}]},"status":{"phase":"Running","conditions":[{"type":"Initialized","status":"True"}],"initContainerStatuses":[{"name":"i","restartCount":1,"state":{"waiting":{"reason":"CrashLoopBackOff"}}}],"containerStatuses":[{"name":"a","ready":true,"state":{"running":{}}}]}`,
			"NAME,READY,STATUS,RESTARTS,AGE|x,1/2,Running,1,90m",
		},
		{
			"a deployment that is being renewed", false, &schedulingv1.Deployment{},
			`"spec":{"replicas":3},"status":{"replicas":4,"readyReplicas":2,"updatedReplicas":1,"availableReplicas":2}`,
			"NAME,READY,UP-TO-DATE,AVAILABLE,AGE|x,2/3,1,2,90m",
		},
		{
			"a deployment that says no number", false, &schedulingv1.Deployment{}, `"spec":{}`,
			"NAME,READY,UP-TO-DATE,AVAILABLE,AGE|x,0/1,0,0,90m",
		},
		{
			"a stateful set", false, &schedulingv1.StatefulSet{},
			`"spec":{"replicas":3},"status":{"replicas":3,"readyReplicas":2}`, "NAME,READY,AGE|x,2/3,90m",
		},
		{
			"a daemon set", false, &schedulingv1.DaemonSet{},
			`"spec":{"template":{"spec":{"nodeSelector":{"disk":"ssd"}}}},"status":{"desiredNumberScheduled":3,"currentNumberScheduled":3,"numberReady":2,"updatedNumberScheduled":1,"numberAvailable":2}`,
			"NAME,DESIRED,CURRENT,READY,UP-TO-DATE,AVAILABLE,NODE SELECTOR,AGE|x,3,3,2,1,2,disk=ssd,90m",
		},
		{
			"a daemon set on all nodes", false, &schedulingv1.DaemonSet{}, `"status":{"desiredNumberScheduled":0}`,
			"NAME,DESIRED,CURRENT,READY,UP-TO-DATE,AVAILABLE,NODE SELECTOR,AGE|x,0,,,,,<none>,90m",
		},
		{"a job that runs", false, &schedulingv1.Job{}, `"spec":{"completions":5},"status":{"succeeded":2,"startTime":` +
			ago(80*time.Second) + `}`, "NAME,STATUS,COMPLETIONS,DURATION,AGE|x,Running,2/5,80s,90m"},
		{
			"a job that is done", false, &schedulingv1.Job{},
			`"status":{"succeeded":1,"startTime":` + ago(80*time.Second) + `,"completionTime":` + ago(20*time.Second) +
				`,"conditions":[{"type":"Complete","status":"True"}]}`,
			"NAME,STATUS,COMPLETIONS,DURATION,AGE|x,Complete,1/1,60s,90m",
		},
		{
			"a job whose failure is decided", false, &schedulingv1.Job{},
			`"status":{"conditions":[{"type":"FailureTarget","status":"True"}]}`,
			"NAME,STATUS,COMPLETIONS,DURATION,AGE|x,FailureTarget,0/1,,90m",
		},
		{
			"a job that failed", false, &schedulingv1.Job{},
			`"status":{"conditions":[{"type":"FailureTarget","status":"True"},{"type":"Failed","status":"True"}]}`,
			"NAME,STATUS,COMPLETIONS,DURATION,AGE|x,Failed,0/1,,90m",
		},
		{
			"a job that has not begun", false, &schedulingv1.Job{}, `"spec":{}`,
			"NAME,STATUS,COMPLETIONS,DURATION,AGE|x,Running,0/1,,90m",
		},
		{
			"a cron job that had no job", false, &schedulingv1.CronJob{}, `"spec":{"schedule":"@daily"}`,
			"NAME,SCHEDULE,TIMEZONE,SUSPEND,ACTIVE,LAST SCHEDULE,AGE|x,@daily,<none>,False,0,<none>,90m",
		},
		{
			"a cron job that is suspended while a job runs", false, &schedulingv1.CronJob{},
			`"spec":{"schedule":"0 3 * * *","timeZone":"Europe/Berlin","suspend":true},"status":{"active":[{"name":"x-1"}],` +
				`"lastScheduleTime":` + ago(80*time.Second) + `}`,
			"NAME,SCHEDULE,TIMEZONE,SUSPEND,ACTIVE,LAST SCHEDULE,AGE|x,0 3 * * *,Europe/Berlin,True,1,80s,90m",
		},
		{
			"a service", true, &schedulingv1.Service{},
			`"spec":{"selector":{"app":"x"},"ports":[{"port":80},{"port":53,"protocol":"UDP"}]}`,
			"NAME,TYPE,CLUSTER-IP,EXTERNAL-IP,PORT(S),AGE,SELECTOR|x,ClusterIP,<none>,<none>,80/TCP 53/UDP,90m,app=x",
		},
		{
			"a service without ports", false, &schedulingv1.Service{}, `"spec":{"type":"ExternalName"}`,
			"NAME,TYPE,CLUSTER-IP,EXTERNAL-IP,PORT(S),AGE|x,ExternalName,<none>,<none>,<none>,90m",
		},
		{
			"a budget of what must stay", false, &schedulingv1.PodDisruptionBudget{},
			`"spec":{"minAvailable":2},"status":{"disruptionsAllowed":0}`,
			"NAME,MIN AVAILABLE,MAX UNAVAILABLE,ALLOWED DISRUPTIONS,AGE|x,2,N/A,0,90m",
		},
		{
			"a budget of what may go", false, &schedulingv1.PodDisruptionBudget{},
			`"spec":{"maxUnavailable":"30%"},"status":{"disruptionsAllowed":1}`,
			"NAME,MIN AVAILABLE,MAX UNAVAILABLE,ALLOWED DISRUPTIONS,AGE|x,N/A,30%,1,90m",
		},
		{
			"an operator", false, &updatev1.ClusterOperator{},
			`"status":{"versions":[{"name":"operand","version":"9"},{"name":"operator","version":"1.1.0"}],"conditions":[{"type":"Available","status":"True","lastTransitionTime":` + ago(22*time.Hour) + `},{"type":"Progressing","status":"False"},{"type":"Degraded","status":"True","message":"a pod is lost"}]}`,
			"NAME,VERSION,AVAILABLE,PROGRESSING,DEGRADED,SINCE,MESSAGE|x,1.1.0,True,False,True,22h,a pod is lost",
		},
		{
			"a cluster that is being updated", false, &updatev1.ClusterVersion{},
			`"status":{"history":[{"state":"Partial","version":"1.2.0"},{"state":"Completed","version":"1.1.0"},{"state":"Completed","version":"1.0.0"}],"conditions":[{"type":"Available","status":"True"},{"type":"Progressing","status":"True","lastTransitionTime":` + ago(3*time.Minute) + `,"message":"Working towards 1.2.0"}]}`,
			"NAME,VERSION,AVAILABLE,PROGRESSING,SINCE,STATUS|x,1.1.0,True,True,3m,Working towards 1.2.0",
		},
		{
			"a cluster whose first release is not applied yet", false, &updatev1.ClusterVersion{},
			`"status":{"history":[{"state":"Partial","version":"1.0.0"}]}`,
			"NAME,VERSION,AVAILABLE,PROGRESSING,SINCE,STATUS|x,,,,,",
		},
		{
			"a pool of nodes, as the document shows it", false, &configv1.MachineConfigPool{},
			`"status":{"configuration":{"name":"rendered-worker-1d871ac76e1951d32b2fe92369879826"},"machineCount":2,"readyMachineCount":1,"updatedMachineCount":1,"degradedMachineCount":0,"conditions":[{"type":"Updated","status":"False"},{"type":"Updating","status":"True"},{"type":"Degraded","status":"False"}]}`,
			"NAME,CONFIG,UPDATED,UPDATING,DEGRADED,MACHINECOUNT,READYMACHINECOUNT,UPDATEDMACHINECOUNT,DEGRADEDMACHINECOUNT,AGE|x,rendered-worker-1d871ac76e1951d32b2fe92369879826,False,True,False,2,1,1,0,90m",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			doc := `{"metadata":{"name":"x","creationTimestamp":` + ago(90*time.Minute) + `},` + tc.doc + `}`
			if err := manifest.Decode([]byte(doc), tc.object); err != nil {
				t.Fatal(err)
			}
			o := table.Options{Wide: tc.wide, Now: func() time.Time { return now }}
			typ := object.TypeOf(tc.object.ProtoReflect().Descriptor())
			row := o.Row(typ, tc.object)
			for i := range row {
				row[i] = strings.ReplaceAll(row[i], ",", " ")
			}
			if diff := cmp.Diff(tc.want, strings.Join(o.Header(typ), ",")+"|"+strings.Join(row, ",")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAPodThatIsBeingDeletedIsTerminatingUnlessItsNodeIsLost(t *testing.T) {
	for reason, want := range map[string]string{"": "Terminating", "NodeLost": "Unknown"} {
		p := &schedulingv1.Pod{}
		if err := manifest.Decode([]byte(`{"metadata":{"name":"x","deletionTimestamp":`+ago(0)+
			`},"status":{"phase":"Running","reason":"`+reason+`"}}`), p); err != nil {
			t.Fatal(err)
		}
		if got := table.PodStatus(p); got != want {
			t.Errorf("with reason %q it is %s, want %s", reason, got, want)
		}
	}
}
