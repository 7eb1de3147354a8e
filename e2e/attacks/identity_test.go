package attacks

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/e2e/harness"
)

const (
	machineNamespace = "openshift-machine-api"
	roleLabel        = "machine.openshift.io/cluster-api-machine-role"
)

func merge(text string) *httpbody.HttpBody {
	return &httpbody.HttpBody{ContentType: "application/merge-patch+json", Data: []byte(text)}
}

func editor(c *harness.Cluster) *harness.Caller { return c.As("ed", "windlass:editors") }

// worker returns a worker machine that runs.
func worker(t *testing.T, c *harness.Cluster) *machinev1.Machine {
	t.Helper()
	list, err := machinev1.NewMachineServiceClient(c.Conn()).ListMachines(t.Context(), &machinev1.ListMachinesRequest{
		LabelSelector: roleLabel + "=worker",
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list.GetItems() {
		if m.GetStatus().GetPhase() == "Running" && m.GetMetadata().GetDeletionTimestamp() == nil {
			return m
		}
	}
	t.Fatal("no worker machine runs")
	return nil
}

// spare creates a worker machine of its own and waits until its node is ready.
func spare(t *testing.T, c *harness.Cluster, name string) *machinev1.Machine {
	t.Helper()
	machines := machinev1.NewMachineServiceClient(c.Conn())
	if _, err := machines.CreateMachine(t.Context(), &machinev1.CreateMachineRequest{
		Machine: newWorker(name),
	}); err != nil {
		t.Fatal(err)
	}
	var m *machinev1.Machine
	until(t, "the machine runs", func() bool {
		var err error
		m, err = machines.GetMachine(t.Context(), &machinev1.GetMachineRequest{Namespace: machineNamespace, Name: name})
		return err == nil && m.GetStatus().GetPhase() == "Running" && m.GetStatus().GetNodeRef() != nil
	})
	return m
}

func newWorker(name string) *machinev1.Machine {
	spec, err := structpb.NewStruct(map[string]any{"apiVersion": "windlass.dev/v1", "kind": "LocalMachineProviderSpec"})
	if err != nil {
		panic(err)
	}
	return &machinev1.Machine{
		Metadata: &metav1.ObjectMeta{Namespace: machineNamespace, Name: name, Labels: map[string]string{roleLabel: "worker"}},
		Spec:     &machinev1.MachineSpec{ProviderSpec: &machinev1.ProviderSpec{Value: spec}},
	}
}

// certificateRequest asks for everything that could be of use to an attacker.
func certificateRequest(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject:  pkix.Name{CommonName: "root", Organization: []string{"system:masters"}},
		DNSNames: []string{"localhost", "gateway"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func TestALabelMakesNoWorkerAControlPlaneMachine(t *testing.T) {
	c := shared.Cluster(t)
	m := worker(t, c)
	name := m.GetMetadata().GetName()
	machines := machinev1.NewMachineServiceClient(editor(c).Conn())
	for what, patch := range map[string]string{
		"its role":                  `{"metadata":{"labels":{"` + roleLabel + `":"master"}}}`,
		"its type":                  `{"metadata":{"labels":{"machine.openshift.io/cluster-api-machine-type":"master"}}}`,
		"no role":                   `{"metadata":{"labels":{"` + roleLabel + `":null}}}`,
		"another instance":          `{"spec":{"providerID":"local://x/other"}}`,
		"its node's role of master": `{"spec":{"metadata":{"labels":{"node-role.kubernetes.io/master":""}}}}`,
	} {
		_, err := machines.PatchMachine(t.Context(), &machinev1.PatchMachineRequest{
			Namespace: machineNamespace, Name: name,
			Patch: merge(patch),
		})
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("an editor changes %s: %v", what, err)
		}
	}
	// The node itself asks for more than its machine is.
	node := c.AsNode(name)
	out, err := machinev1.NewJoinServiceClient(node.Conn()).Renew(t.Context(), &machinev1.RenewRequest{
		AgentRequest: certificateRequest(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	if out.GetRole() != "worker" {
		t.Errorf("a worker's node gets role %q", out.GetRole())
	}
	granted, err := etcdv1.NewQuorumServiceClient(node.Conn()).CertifyMember(t.Context(), &etcdv1.CertifyMemberRequest{
		Node: name, ServerRequest: certificateRequest(t), PeerRequest: certificateRequest(t),
	})
	if err == nil {
		t.Errorf("a worker's node gets certificates of etcd for member %s", granted.GetMemberId())
	}
	block, _ := pem.Decode(out.GetAgentCertificate())
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if len(cert.DNSNames)+len(cert.IPAddresses)+len(cert.Subject.Organization) > 0 || cert.Subject.CommonName != name ||
		len(cert.ExtKeyUsage) != 1 || cert.ExtKeyUsage[0] != x509.ExtKeyUsageClientAuth {
		t.Errorf("a node's certificate is for %v %v %v with usages %v", cert.Subject, cert.DNSNames, cert.IPAddresses,
			cert.ExtKeyUsage)
	}
}

// The certificate of a worker's agent is worth nothing at the ports of etcd.
func TestANodesCertificateIsRefusedByEtcd(t *testing.T) {
	c := shared.Cluster(t)
	name := worker(t, c).GetMetadata().GetName()
	settings, err := c.AsNode(name).TLS()
	if err != nil {
		t.Fatal(err)
	}
	settings.InsecureSkipVerify = true // what etcd says of the caller is in question, not who it is
	list, err := machinev1.NewMachineServiceClient(c.Conn()).ListMachines(t.Context(), &machinev1.ListMachinesRequest{
		LabelSelector: roleLabel + "=master",
	})
	if err != nil || len(list.GetItems()) == 0 {
		t.Fatal(list, err)
	}
	for _, port := range []string{"2379", "2380"} {
		host := list.GetItems()[0].GetStatus().GetAddresses()[0].GetAddress()
		conn, err := tls.DialWithDialer(&net.Dialer{Timeout: time.Minute}, "tcp", net.JoinHostPort(host, port),
			settings.Clone())
		if err == nil {
			// In TLS 1.3 the refusal comes with the first answer.
			_ = conn.SetDeadline(time.Now().Add(time.Minute))
			_, _ = fmt.Fprintf(conn, "GET /raft/probing HTTP/1.1\r\nHost: %s\r\n\r\n", host)
			_, err = conn.Read(make([]byte, 1))
			conn.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "certificate") && !strings.Contains(err.Error(), "unknown") &&
			!strings.Contains(err.Error(), "reset") {
			t.Errorf("port %s answers a node's certificate: %v", port, err)
		}
	}
}

func TestNobodyStandsInForTheGateway(t *testing.T) {
	c := shared.Cluster(t)
	pki := c.Dir("services", "provider-local", "machines", worker(t, c).GetMetadata().GetName(), "pki")
	own, err := tls.LoadX509KeyPair(filepath.Join(pki, "agent.crt"), filepath.Join(pki, "agent.key"))
	if err != nil {
		t.Fatal(err)
	}
	// A service's own certificate is of the same authority and for its host: the command line takes only the gateway's.
	service, err := tls.LoadX509KeyPair(c.Dir("services", "scheduler", "tls", "tls.crt"),
		c.Dir("services", "scheduler", "tls", "tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		cert tls.Certificate
		host string
	}{
		"a node's certificate":    {own, "127.0.0.1"},
		"a service's certificate": {service, addressOf(t, service)},
	} {
		listener, err := tls.Listen("tcp", net.JoinHostPort(tt.host, "0"),
			&tls.Config{Certificates: []tls.Certificate{tt.cert}, NextProtos: []string{"h2"}})
		if err != nil {
			t.Fatal(err)
		}
		received := make(chan bool, 100)
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				n, _ := conn.Read(make([]byte, 1))
				received <- n > 0
				conn.Close()
			}
		}()
		r, err := c.As("eve").CLI("", "get", "nodes", "--server", listener.Addr().String())
		listener.Close()
		if err == nil && r.Code == 0 {
			t.Errorf("%s: the command line took it for the gateway: %s", name, r.Stdout)
		}
		select {
		case sent := <-received:
			if sent {
				t.Errorf("%s: the command line sent something", name)
			}
		default:
		}
	}
}

func addressOf(t *testing.T, cert tls.Certificate) string {
	t.Helper()
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil || len(leaf.IPAddresses) == 0 {
		t.Fatal(leaf, err)
	}
	return leaf.IPAddresses[0].String()
}

func TestMachineNamesAreTakenOnceInAllNamespaces(t *testing.T) {
	c := shared.Cluster(t)
	m := worker(t, c)
	machines := machinev1.NewMachineServiceClient(editor(c).Conn())
	twin := newWorker(m.GetMetadata().GetName())
	twin.Metadata.Namespace = "default"
	_, err := machines.CreateMachine(t.Context(), &machinev1.CreateMachineRequest{Machine: twin})
	if status.Code(err) != codes.AlreadyExists || !strings.Contains(status.Convert(err).Message(), machineNamespace+"/"+
		m.GetMetadata().GetName()) {
		t.Errorf("a machine of the same name in another namespace: %v", err)
	}
	for _, name := range []string{"localhost", "127.0.0.1", "a.localhost"} {
		if _, err := machines.CreateMachine(t.Context(), &machinev1.CreateMachineRequest{
			Machine: newWorker(name),
		}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("a machine named %s: %v", name, err)
		}
	}
	// Of twins that are created at the same time, one gets the name.
	var group sync.WaitGroup
	errs := make([]error, 2)
	for i, namespace := range []string{machineNamespace, "default"} {
		group.Go(func() {
			rival := newWorker("rival")
			rival.Metadata.Namespace, rival.Spec.ProviderSpec.Value.Fields["failure"] = namespace, never(t)
			_, errs[i] = machines.CreateMachine(t.Context(), &machinev1.CreateMachineRequest{Machine: rival})
		})
	}
	group.Wait()
	if (errs[0] == nil) == (errs[1] == nil) {
		t.Errorf("twins at the same time: %v", errs)
	}
	for i, namespace := range []string{machineNamespace, "default"} {
		if errs[i] == nil {
			if _, err := machines.DeleteMachine(t.Context(), &machinev1.DeleteMachineRequest{
				Namespace: namespace,
				Name:      "rival",
			}); err != nil {
				t.Error(err)
			}
		}
	}
}

// never is a failure of instances that never boot.
func never(t *testing.T) *structpb.Value {
	t.Helper()
	v, err := structpb.NewValue(map[string]any{"boot": "Never"})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestARemovedMachinesCertificateIsRefusedEverywhere(t *testing.T) {
	c := shared.Cluster(t)
	m := spare(t, c, "attack-removed")
	name := m.GetMetadata().GetName()
	// What an attacker took from the machine's disk before it went.
	from := c.Dir("services", "provider-local", "machines", name, "pki")
	taken := t.TempDir()
	for _, file := range []string{"agent.crt", "agent.key", "ca.crt"} {
		data, err := os.ReadFile(filepath.Join(from, file))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(taken, file), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	thief := c.With(filepath.Join(taken, "agent.crt"), filepath.Join(taken, "agent.key"), filepath.Join(taken, "ca.crt"))
	if _, err := nodev1.NewNodeAgentServiceClient(thief.Conn()).RegisterNode(t.Context(), &nodev1.RegisterNodeRequest{
		Name: name, Machine: &metav1.ObjectReference{Namespace: machineNamespace, Name: name},
	}); err != nil {
		t.Fatalf("while the machine is there: %v", err)
	}
	c.MustCLI("delete", "machine", name)

	calls := map[string]func(context.Context) error{
		"registration": func(ctx context.Context) error {
			_, err := nodev1.NewNodeAgentServiceClient(thief.Conn()).RegisterNode(ctx, &nodev1.RegisterNodeRequest{
				Name: name, Machine: &metav1.ObjectReference{Namespace: machineNamespace, Name: name},
			})
			return err
		},
		"heartbeats": func(ctx context.Context) error {
			s, err := nodev1.NewNodeAgentServiceClient(thief.Conn()).Heartbeat(ctx)
			if err == nil {
				_ = s.Send(&nodev1.HeartbeatRequest{Name: name})
				_, err = s.Recv()
			}
			return err
		},
		"its pods": func(ctx context.Context) error {
			s, err := schedulingv1.NewPodAgentServiceClient(thief.Conn()).WatchOwnPods(ctx, &schedulingv1.WatchOwnPodsRequest{
				NodeName: name,
			})
			if err == nil {
				_, err = s.Recv()
			}
			return err
		},
		"its configuration": func(ctx context.Context) error {
			s, err := configv1.NewConfigAgentServiceClient(thief.Conn()).FollowConfig(ctx, &configv1.FollowConfigRequest{
				NodeName: name,
			})
			if err == nil {
				_, err = s.Recv()
			}
			return err
		},
		"renewal": func(ctx context.Context) error {
			_, err := machinev1.NewJoinServiceClient(thief.Conn()).Renew(ctx, &machinev1.RenewRequest{
				AgentRequest: certificateRequest(t),
			})
			return err
		},
	}
	for what, call := range calls {
		var err error
		until(t, "an answer to "+what, func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err = call(ctx)
			return status.Code(err) != codes.Unavailable // the gateway ended the connection, and the client dials again
		})
		if code := status.Code(err); code != codes.PermissionDenied && code != codes.Unauthenticated {
			t.Errorf("%s by a removed machine's certificate: %v", what, err)
		}
	}
	if _, err := nodev1.NewNodeServiceClient(c.Conn()).GetNode(t.Context(), &nodev1.GetNodeRequest{
		Name: name,
	}); status.Code(err) != codes.NotFound {
		t.Errorf("the node is back: %v", err)
	}
}

func TestFinalizersAreTheirOwners(t *testing.T) {
	c := shared.Cluster(t)
	m := worker(t, c)
	name := m.GetMetadata().GetName()
	for who, caller := range map[string]*harness.Caller{"an editor": editor(c), "an administrator": c.Admin()} {
		machines := machinev1.NewMachineServiceClient(caller.Conn())
		patch := func(text string) error {
			_, err := machines.PatchMachine(t.Context(), &machinev1.PatchMachineRequest{
				Namespace: machineNamespace, Name: name,
				Patch: merge(text),
			})
			return err
		}
		if err := patch(`{"metadata":{"finalizers":null}}`); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s removes machine-api's finalizer: %v", who, err)
		}
		if err := patch(`{"metadata":{"finalizers":["machine.machine.openshift.io","example.com/mine"]}}`); err != nil {
			t.Errorf("%s sets a finalizer of their own: %v", who, err)
		}
		if err := patch(`{"metadata":{"finalizers":["machine.machine.openshift.io"]}}`); err != nil {
			t.Errorf("%s removes a finalizer of their own: %v", who, err)
		}
	}
	_, err := machinev1.NewMachineServiceClient(editor(c).Conn()).ForgetMachine(t.Context(),
		&machinev1.ForgetMachineRequest{Name: name})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("an editor forgets a machine: %v", err)
	}
	if m := worker(t, c); m == nil {
		t.Error("no worker is left")
	}
}

func TestAMachineConfigurationIsShownOnlyToNodesOfItsPool(t *testing.T) {
	c := shared.Cluster(t)
	name := worker(t, c).GetMetadata().GetName()
	nodes := nodev1.NewNodeServiceClient(editor(c).Conn())
	if _, err := nodes.PatchNode(t.Context(), &nodev1.PatchNodeRequest{
		Name: name, Patch: merge(`{"metadata":{"labels":{"node-role.kubernetes.io/master":""}}}`),
	}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("an editor gives a node a role: %v", err)
	}
	list, err := configv1.NewMachineConfigServiceClient(c.Conn()).ListMachineConfigs(t.Context(),
		&configv1.ListMachineConfigsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	masters := ""
	for _, cfg := range list.GetItems() {
		if strings.HasPrefix(cfg.GetMetadata().GetName(), "rendered-master-") {
			masters = cfg.GetMetadata().GetName()
		}
	}
	if masters == "" {
		t.Fatal("no rendered configuration of the pool master")
	}
	desired := merge(`{"metadata":{"annotations":{"machineconfiguration.openshift.io/desiredConfig":"` + masters + `"}}}`)
	if _, err := nodes.PatchNode(t.Context(), &nodev1.PatchNodeRequest{Name: name, Patch: desired}); status.Code(
		err) != codes.PermissionDenied {
		t.Errorf("an editor gives a node a configuration: %v", err)
	}
	// an administrator may, but the agent is not shown what is not of its pool
	nodes = nodev1.NewNodeServiceClient(c.Conn())
	node, err := nodes.PatchNode(t.Context(), &nodev1.PatchNodeRequest{Name: name, Patch: desired})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		before := node.GetMetadata().GetAnnotations()["machineconfiguration.openshift.io/currentConfig"]
		_, _ = nodes.PatchNode(context.WithoutCancel(t.Context()), &nodev1.PatchNodeRequest{
			Name: name, Patch: merge(`{"metadata":{"annotations":{"machineconfiguration.openshift.io/desiredConfig":"` + before +
				`"}}}`),
		})
	}()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	defer time.AfterFunc(5*time.Minute, cancel).Stop()
	s, err := configv1.NewConfigAgentServiceClient(c.AsNode(name).Conn()).FollowConfig(ctx, &configv1.FollowConfigRequest{
		NodeName: name,
	})
	if err != nil {
		t.Fatal(err)
	}
	for orders := 0; ; orders++ {
		if orders == 1 { // what it is shown for some time after the first one is all that it is shown
			defer time.AfterFunc(2*time.Second, cancel).Stop()
		}
		order, err := s.Recv()
		if err != nil {
			if orders == 0 {
				t.Errorf("the agent got no order: %v", err)
			}
			break
		}
		if order.GetMachineConfig().GetMetadata().GetName() == masters {
			t.Fatal("a worker's agent is shown the configuration of control-plane machines")
		}
	}
}
