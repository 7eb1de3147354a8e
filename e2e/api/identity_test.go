package api

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/audit"

	"github.com/windlass-dev/windlass/e2e/harness"
	"github.com/windlass-dev/windlass/kit/topology"
)

func listMachines(ctx context.Context, c *harness.Caller) error {
	_, err := machinev1.NewMachineServiceClient(c.Conn()).ListMachines(ctx, &machinev1.ListMachinesRequest{})
	return err
}

// audited waits for a record of a refusal, written after the test began.
func audited(t *testing.T, c *harness.Cluster, since time.Time, what string, is func(audit.Record) bool) {
	t.Helper()
	// A refusal that had its like a moment before is counted, and written at the end of the minute.
	c.Wait(65*time.Second, "a record of "+what+" in the audit log", func(context.Context) (bool, string, error) {
		records, err := c.Audit()
		for _, r := range records {
			last := r.Time
			if r.LastTime != nil {
				last = *r.LastTime
			}
			if r.Decision == audit.Deny && !last.Before(since) && is(r) {
				return true, "", nil
			}
		}
		return false, "", err
	})
}

func TestNobodyGetsInWithoutCredentials(t *testing.T) {
	c := shared.Cluster(t)
	began := time.Now().Add(-time.Millisecond)
	if got := ofError(listMachines(t.Context(), c.Anonymous())); got.Code != codes.Unauthenticated {
		t.Errorf("gRPC: %s", got)
	}
	resp, err := c.Anonymous().REST(t.Context(), http.MethodGet, "/v1/machines", "", nil)
	if err != nil || resp.Code != http.StatusUnauthorized || ofResponse(t, resp).Code != codes.Unauthenticated {
		t.Errorf("REST: %d %s %v", resp.Code, resp.Body, err)
	}
	cli, err := c.Anonymous().CLI("", "get", "machines")
	if err != nil || cli.Code != 1 {
		t.Errorf("command line: %d %v\n%s", cli.Code, err, cli.Stderr)
	}
	audited(t, c, began, "a call without credentials", func(r audit.Record) bool {
		return r.Method == "/windlass.machine.v1.MachineService/ListMachines" && r.User == "" &&
			r.Code == codes.Unauthenticated.String()
	})
}

func TestNobodyGetsInWithAWrongToken(t *testing.T) {
	c := shared.Cluster(t)
	began := time.Now().Add(-time.Millisecond)
	const made = "Bearer made-up"
	resp, err := c.Anonymous().REST(t.Context(), http.MethodGet, "/v1/machines", "", nil, "Authorization", made)
	if err != nil || resp.Code != http.StatusUnauthorized || ofResponse(t, resp).Code != codes.Unauthenticated {
		t.Errorf("REST: %d %s %v", resp.Code, resp.Body, err)
	}
	if got := ofError(listMachines(metadata.AppendToOutgoingContext(t.Context(), "authorization", made),
		c.Anonymous())); got.Code != codes.Unauthenticated {
		t.Errorf("gRPC: %s", got)
	}
	audited(t, c, began, "a wrong token", func(r audit.Record) bool {
		return r.Service == "gateway" && r.Code == codes.Unauthenticated.String() && strings.Contains(r.Reason, "token")
	})
}

func TestNobodyGetsInWithACertificateOfAnotherAuthority(t *testing.T) {
	c := shared.Cluster(t)
	began := time.Now().Add(-time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if got := ofError(listMachines(ctx, c.Stranger())); got.Code != codes.Unavailable &&
		got.Code != codes.Unauthenticated {
		t.Errorf("gRPC: %s", got)
	}
	if resp, err := c.Stranger().REST(ctx, http.MethodGet, "/v1/machines", "", nil); err == nil &&
		resp.Code != http.StatusUnauthorized {
		t.Errorf("REST: %d %s", resp.Code, resp.Body)
	}
	audited(t, c, began, "a certificate of another authority", func(r audit.Record) bool {
		return r.Service == "gateway" && r.Code == codes.Unauthenticated.String() && strings.Contains(r.Reason, "authority")
	})
}

func TestForgedIdentitiesAreWorthNothing(t *testing.T) {
	c := shared.Cluster(t)
	forged := metadata.AppendToOutgoingContext(t.Context(), "windlass-user", "admin", "windlass-group", "system:masters")

	t.Run("at the gateway, over gRPC", func(t *testing.T) {
		began := time.Now().Add(-time.Millisecond)
		if got := ofError(listMachines(forged, c.Anonymous())); got.Code != codes.Unauthenticated &&
			got.Code != codes.PermissionDenied {
			t.Errorf("without a certificate: %s", got)
		}
		if got := ofError(listMachines(forged, c.As("eve"))); got.Code != codes.PermissionDenied &&
			got.Code != codes.Unauthenticated {
			t.Errorf("with a certificate that may nothing: %s", got)
		}
		audited(t, c, began, "the forgery", func(r audit.Record) bool { return r.User == "eve" })
	})
	t.Run("at the gateway, over REST", func(t *testing.T) {
		began := time.Now().Add(-time.Millisecond)
		for _, headers := range [][]string{
			{"windlass-user", "admin", "windlass-group", "system:masters"},
			{"Grpc-Metadata-Windlass-User", "admin", "Grpc-Metadata-Windlass-Group", "system:masters"},
		} {
			resp, err := c.As("mallory").REST(t.Context(), http.MethodGet, "/v1/machines", "", nil, headers...)
			if err != nil || resp.Code != http.StatusForbidden && resp.Code != http.StatusUnauthorized {
				t.Errorf("with a certificate that may nothing: %d %s %v", resp.Code, resp.Body, err)
			}
			resp, err = c.Anonymous().REST(t.Context(), http.MethodGet, "/v1/machines", "", nil, headers...)
			if err != nil || resp.Code != http.StatusUnauthorized {
				t.Errorf("without a certificate: %d %s %v", resp.Code, resp.Body, err)
			}
		}
		audited(t, c, began, "the forgery", func(r audit.Record) bool { return r.User == "mallory" })
	})
	t.Run("past the gateway", func(t *testing.T) {
		began := time.Now().Add(-time.Millisecond)
		conn, err := c.As("eve").Direct(topology.Port(topology.MachineAPI))
		if err != nil {
			t.Fatal(err)
		}
		_, err = machinev1.NewMachineServiceClient(conn).ListMachines(forged, &machinev1.ListMachinesRequest{})
		if got := ofError(err); got.Code != codes.PermissionDenied {
			t.Errorf("%s", got)
		}
		audited(t, c, began, "the forgery", func(r audit.Record) bool {
			return r.Service == "machine-api" &&
				r.User == "eve"
		})
	})
}

func TestAUserMayDoWhatThePolicySaysAndNoMore(t *testing.T) {
	c := shared.Cluster(t)
	began := time.Now().Add(-time.Millisecond)
	vera := c.As("vera", "windlass:viewers")
	if err := listMachines(t.Context(), vera); err != nil {
		t.Errorf("a viewer may look: %v", err)
	}
	_, err := machinev1.NewMachineServiceClient(vera.Conn()).DeleteMachine(t.Context(), &machinev1.DeleteMachineRequest{
		Namespace: harness.Namespace, Name: c.MustMachines("worker")[0].GetMetadata().GetName(),
	})
	if got := ofError(err); got.Code != codes.PermissionDenied {
		t.Errorf("a viewer may not delete: %s", got)
	}
	audited(t, c, began, "the refused deletion", func(r audit.Record) bool {
		return r.User == "vera" &&
			r.Verb == "delete"
	})
}

func TestAUsedJoinTokenIsRefused(t *testing.T) {
	c := shared.Cluster(t)
	began := time.Now().Add(-time.Millisecond)
	worker := c.MustMachines("worker")[0].GetMetadata().GetName()
	raw, err := os.ReadFile(c.Dir("services", "provider-local", "machines", worker, "bootstrap.json"))
	if err != nil {
		t.Fatal(err)
	}
	var boot struct{ Token string }
	if err := json.Unmarshal(raw, &boot); err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{boot.Token, "made.up.token", strings.Replace(boot.Token, ".", ".00", 1)} {
		_, err = machinev1.NewJoinServiceClient(c.Anonymous().Conn()).Join(t.Context(), &machinev1.JoinRequest{
			Token: token, AgentRequest: certificateRequest(t),
		})
		if got := ofError(err); got.Code != codes.PermissionDenied && got.Code != codes.Unauthenticated {
			t.Errorf("%s", got)
		}
	}
	audited(t, c, began, "the used token", func(r audit.Record) bool {
		return r.Method == "/windlass.machine.v1.JoinService/Join"
	})
}

func certificateRequest(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func TestAnAgentSpeaksForItsOwnNodeAlone(t *testing.T) {
	c := shared.Cluster(t)
	began := time.Now().Add(-time.Millisecond)
	workers, masters := c.MustMachines("worker"), c.MustMachines("master")
	one, other := workers[0].GetMetadata().GetName(), workers[1].GetMetadata().GetName()
	agent := c.AsNode(one).Conn()
	refused := func(what string, err error) {
		t.Helper()
		if got := ofError(err); got.Code != codes.PermissionDenied {
			t.Errorf("%s: %s", what, got)
		}
	}
	nodes := nodev1.NewNodeAgentServiceClient(agent)
	_, err := nodes.RegisterNode(t.Context(), &nodev1.RegisterNodeRequest{Name: other})
	refused("register another node", err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	beat, err := nodes.Heartbeat(ctx)
	if err == nil {
		if err = beat.Send(&nodev1.HeartbeatRequest{Name: other}); err == nil {
			_, err = beat.Recv()
		}
	}
	refused("speak for another node", err)
	attend, err := etcdv1.NewQuorumServiceClient(agent).AttendMember(ctx, &etcdv1.AttendMemberRequest{
		Node: masters[0].GetMetadata().GetName(), PeerUrl: "https://127.0.0.1:2380", ClientUrl: "https://127.0.0.1:2379",
	})
	if err == nil {
		_, err = attend.Recv()
	}
	refused("attend another node's member", err)
	_, err = nodev1.NewNodeServiceClient(agent).PatchNode(t.Context(), &nodev1.PatchNodeRequest{
		Name: other, Patch: &httpbody.HttpBody{ContentType: mergePatch, Data: []byte(`{"spec":{"unschedulable":true}}`)},
	})
	refused("patch a node", err)
	_, err = machinev1.NewMachineServiceClient(agent).DeleteMachine(t.Context(), &machinev1.DeleteMachineRequest{
		Namespace: harness.Namespace, Name: other,
	})
	refused("delete a machine", err)
	for _, method := range []string{
		"/windlass.node.v1.NodeAgentService/RegisterNode", "/windlass.node.v1.NodeAgentService/Heartbeat",
		"/windlass.etcd.v1.QuorumService/AttendMember", "/windlass.node.v1.NodeService/PatchNode",
	} {
		audited(t, c, began, method, func(r audit.Record) bool { return r.Method == method && r.User == "system:node:"+one })
	}
}

func TestAHookIsCompletedByItsOwnerAlone(t *testing.T) {
	c := shared.Cluster(t)
	began := time.Now().Add(-time.Millisecond)
	held := heldMachine(t, c, "held-for-owner", &machinev1.LifecycleHook{
		Name:  "BackupFileSystem",
		Owner: "my-backup-controller",
	})
	task := taskOf(t, c, held)
	eve, owner := c.As("eve"), c.As("my-backup-controller")
	tasks := hookv1.NewHookTaskServiceClient(eve.Conn())
	refused := func(what string, err error) {
		t.Helper()
		if got := ofError(err); got.Code != codes.PermissionDenied {
			t.Errorf("%s: %s", what, got)
		}
	}
	_, err := tasks.ClaimHookTask(t.Context(), &hookv1.ClaimHookTaskRequest{Name: task})
	refused("claim", err)
	_, err = tasks.CompleteHookTask(t.Context(), &hookv1.CompleteHookTaskRequest{Name: task})
	refused("complete", err)
	_, err = tasks.FailHookTask(t.Context(), &hookv1.FailHookTaskRequest{Name: task, Reason: "because"})
	refused("fail", err)
	patch := &httpbody.HttpBody{ContentType: mergePatch, Data: []byte(`{"spec":{"lifecycleHooks":{"preDrain":null}}}`)}
	_, err = machinev1.NewMachineServiceClient(c.As("ed", "windlass:editors").Conn()).PatchMachine(t.Context(),
		&machinev1.PatchMachineRequest{
			Namespace: harness.Namespace, Name: held, Patch: patch,
		})
	refused("take the hook off as an editor", err)
	audited(t, c, began, "the completion by another", func(r audit.Record) bool {
		return r.Method == "/windlass.hook.v1.HookTaskService/CompleteHookTask" && r.User == "eve"
	})
	audited(t, c, began, "the patch of an editor", func(r audit.Record) bool {
		return r.Method == "/windlass.machine.v1.MachineService/PatchMachine" && r.User == "ed"
	})
	m, err := c.Machine(t.Context(), held)
	if err != nil || len(m.GetSpec().GetLifecycleHooks().GetPreDrain()) != 1 {
		t.Fatalf("the hook is gone: %v", err)
	}
	mine := hookv1.NewHookTaskServiceClient(owner.Conn())
	if _, err := mine.ClaimHookTask(t.Context(), &hookv1.ClaimHookTaskRequest{Name: task}); err != nil {
		t.Errorf("its owner claims: %v", err)
	}
}

// taskOf waits for the task of a machine's hook.
func taskOf(t *testing.T, c *harness.Cluster, machine string) string {
	t.Helper()
	var name string
	c.Wait(30*time.Second, "the task of "+machine, func(ctx context.Context) (bool, string, error) {
		list, err := hookv1.NewHookTaskServiceClient(c.Conn()).ListHookTasks(ctx, &hookv1.ListHookTasksRequest{})
		for _, task := range list.GetItems() {
			if task.GetSpec().GetMachineRef().GetName() == machine {
				name = task.GetMetadata().GetName()
			}
		}
		return name != "", "", err
	})
	return name
}
