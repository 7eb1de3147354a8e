package attacks

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/audit"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// createNamespace makes a namespace as a user, and removes it when the test ends.
func createNamespace(t *testing.T, c *harness.Cluster, by *harness.Caller, name string) error {
	t.Helper()
	_, err := schedulingv1.NewNamespaceServiceClient(by.Conn()).CreateNamespace(t.Context(),
		&schedulingv1.CreateNamespaceRequest{
			Namespace: &schedulingv1.Namespace{Metadata: &metav1.ObjectMeta{Name: name}},
		})
	t.Cleanup(func() {
		_, _ = schedulingv1.NewNamespaceServiceClient(c.Conn()).DeleteNamespace(context.Background(),
			&schedulingv1.DeleteNamespaceRequest{Name: name})
	})
	return err
}

// recorded waits for a record in the audit logs.
func recorded(t *testing.T, c *harness.Cluster, what string, is func(audit.Record) bool) (found audit.Record) {
	t.Helper()
	c.Wait(30*time.Second, what+" in the audit logs", func(context.Context) (bool, string, error) {
		records, err := c.Audit()
		for _, r := range records {
			if is(r) {
				found = r
				return true, "", nil
			}
		}
		return false, "", err
	})
	return found
}

// TestRefusalsDoNotEmptyTheAuditLog is what emptied it: refusals with long names, by a caller whom the cluster does not
// know.
func TestRefusalsDoNotEmptyTheAuditLog(t *testing.T) {
	c := shared.Cluster(t)
	if err := createNamespace(t, c, c.As("ed-before", "windlass:editors"), "audited-before"); err != nil {
		t.Fatal(err)
	}
	calls := 3_000
	if os.Getenv("WINDLASS_FAULTS") == "all" {
		calls = 100_000
	}
	const callers = 16
	var wg sync.WaitGroup
	for range callers {
		anonymous := machinev1.NewMachineServiceClient(c.Anonymous().Conn())
		wg.Go(func() {
			long := metadata.AppendToOutgoingContext(t.Context(), "x-request-id", strings.Repeat("x", 64), "authorization",
				"Bearer "+strings.Repeat("y", 8000))
			for range calls / callers {
				_, err := anonymous.GetMachine(long, &machinev1.GetMachineRequest{
					Namespace: strings.Repeat("n", 4000),
					Name:      strings.Repeat("m", 4000),
				})
				if code := status.Code(err); code != codes.Unauthenticated && code != codes.ResourceExhausted &&
					code != codes.Unavailable {
					t.Errorf("GetMachine without credentials = %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	recorded(t, c, "the editor's change", func(r audit.Record) bool {
		return r.User == "ed-before" && r.Name == "audited-before" && r.Stage == audit.Requested &&
			strings.HasPrefix(r.Source, "127.")
	})
	if out := c.CLI("audit", "verify"); out.Code != 0 || !strings.Contains(out.Stdout, "OK") {
		t.Errorf("audit verify: %d\n%s%s", out.Code, out.Stdout, out.Stderr)
	}
	files, err := filepath.Glob(c.Dir("services", "gateway", audit.RefusalsFile+"*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("files %v, %v", files, err)
	}
	if info, err := os.Stat(files[0]); err != nil || info.Size() > 1<<20 {
		t.Errorf("%d calls made %v bytes of refusals, %v", calls, info.Size(), err)
	}
}

// TestAnAuditLogThatIsRemovedStopsCallersAndNotTheCluster takes the scheduler's log away.
func TestAnAuditLogThatIsRemovedStopsCallersAndNotTheCluster(t *testing.T) {
	c := shared.Cluster(t)
	path := c.Dir("services", "scheduler", audit.ChangesFile)
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	back := sync.OnceValue(func() error { return os.Rename(path+".away", path) })
	t.Cleanup(func() { _ = back() })
	editor := c.As("ed-without-log", "windlass:editors")
	if err := createNamespace(t, c, editor, "never-made"); status.Code(err) != codes.Unavailable {
		t.Errorf("CreateNamespace = %v, want UNAVAILABLE", err)
	}
	namespaces := schedulingv1.NewNamespaceServiceClient(editor.Conn())
	if _, err := namespaces.GetNamespace(t.Context(), &schedulingv1.GetNamespaceRequest{Name: "never-made"}); status.Code(
		err) != codes.NotFound {
		t.Errorf("GetNamespace = %v, want that it was not made", err)
	}
	// The cluster's own programs go on: the scheduler places a pod, its agent starts it and reports that.
	pods, err := c.Pods(t.Context(), "app=hello")
	if err != nil || len(pods) == 0 {
		t.Fatalf("%d pods, %v", len(pods), err)
	}
	agent := schedulingv1.NewPodAgentServiceClient(c.AsNode(pods[0].GetSpec().GetNodeName()).Conn())
	report := &schedulingv1.ReportPodRequest{
		NodeName: pods[0].GetSpec().GetNodeName(), Namespace: pods[0].GetMetadata().GetNamespace(),
		Name: pods[0].GetMetadata().GetName(),
		Uid:  pods[0].GetMetadata().GetUid(), Status: pods[0].GetStatus(),
	}
	if _, err := agent.ReportPod(t.Context(), report); err != nil {
		t.Errorf("an agent's report = %v, want that it goes on", err)
	}
	if err := back(); err != nil {
		t.Fatal(err)
	}
	if err := createNamespace(t, c, editor, "made-again"); err != nil {
		t.Errorf("CreateNamespace = %v after the log is back", err)
	}
	recorded(t, c, "the number of lost records", func(r audit.Record) bool { return r.Event == audit.EventLost })
}

func TestCommandsAndReadsOfLogsAreRecorded(t *testing.T) {
	c := shared.Cluster(t)
	pods, err := c.Pods(t.Context(), "")
	if err != nil || len(pods) == 0 {
		t.Fatalf("%d pods, %v", len(pods), err)
	}
	pod, namespace := pods[0].GetMetadata().GetName(), pods[0].GetMetadata().GetNamespace()
	c.CLI("exec", "-n", namespace, pod, "--", "echo", "seen-by-audit") // whatever it answers: it was asked for
	c.CLI("logs", "-n", namespace, pod)
	recorded(t, c, "the command", func(r audit.Record) bool {
		return r.Resource == "pods/exec" && r.User == "admin" && r.Name == pod &&
			strings.Contains(r.Detail, "seen-by-audit") && r.Via == "system:windlass:gateway" && r.Source != ""
	})
	recorded(t, c, "the read of a log", func(r audit.Record) bool {
		return r.Resource == "pods/log" && r.User == "admin" && r.Name == pod && r.Decision == audit.Allow
	})
	eve := c.As("eve-runs", "windlass:viewers")
	stream, err := schedulingv1.NewPodServiceClient(eve.Conn()).ExecPod(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	start := &schedulingv1.ExecPodStart{Namespace: namespace, Name: pod, Command: []string{"refused-by-policy"}}
	if err := stream.Send(&schedulingv1.ExecPodRequest{Start: start}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("ExecPod of a viewer = %v", err)
	}
	recorded(t, c, "the refused command", func(r audit.Record) bool {
		return r.User == "eve-runs" && r.Decision == audit.Deny && strings.Contains(r.Detail, "refused-by-policy")
	})
}

func TestAuditVerifyNamesTheRecordThatWasChanged(t *testing.T) {
	c := shared.Cluster(t)
	if err := createNamespace(t, c, c.As("ed-verify", "windlass:editors"), "to-verify"); err != nil {
		t.Fatal(err)
	}
	// The last record has no successor that vouches for it, so the outcome must be there too.
	recorded(t, c, "the outcome", func(r audit.Record) bool { return r.User == "ed-verify" && r.Stage == audit.Completed })
	text, err := os.ReadFile(c.Dir("services", "scheduler", audit.ChangesFile))
	if err != nil {
		t.Fatal(err)
	}
	text = text[:strings.LastIndexByte(string(text), '\n')+1]
	copied := filepath.Join(t.TempDir(), audit.ChangesFile)
	for _, tt := range []struct {
		name string
		text string
		code int
		want string
	}{
		{"as it is", string(text), 0, "OK"},
		{"another user", strings.Replace(string(text), `"ed-verify"`, `"ed-vainly"`, 1), 1, "BROKEN at record"},
	} {
		if err := os.WriteFile(copied, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out := c.CLI("audit", "verify", copied); out.Code != tt.code || !strings.Contains(out.Stdout, tt.want) {
			t.Errorf("%s: exit code %d, want %d\n%s%s", tt.name, out.Code, tt.code, out.Stdout, out.Stderr)
		}
	}
	if out := c.CLI("audit", "verify", t.TempDir()); out.Code != 2 {
		t.Errorf("no log: exit code %d, want 2\n%s", out.Code, out.Stderr)
	}
}
