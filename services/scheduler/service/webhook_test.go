package service

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "github.com/windlass-dev/windlass/gen/windlass/admissionregistration/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/servetest"
	"github.com/windlass-dev/windlass/kit/webhook/reach"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"
)

const examples = "../../../deploy/examples/admission"

// hostAddress returns an address of this host that a webhook may have.
func hostAddress(t *testing.T) netip.Addr {
	t.Helper()
	list, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil && reach.Allowed(p.Addr()) == nil {
			return p.Addr()
		}
	}
	t.Skip("this host has no address but loopback and link-local ones, where no webhook may be")
	return netip.Addr{}
}

// certificate writes a certificate of its own for an address, and its key.
func certificate(t *testing.T, at netip.Addr) (certFile, keyFile string, cert []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{at.AsSlice()},
		IsCA: true, BasicConstraintsValid: true,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	rawKey, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
	certFile, keyFile = filepath.Join(t.TempDir(), "tls.crt"), filepath.Join(t.TempDir(), "tls.key")
	for name, content := range map[string][]byte{
		certFile: cert, keyFile: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: rawKey}),
	} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile, cert
}

// runExample runs the example in Python until the test ends or stop is called, and returns its host and port.
func runExample(t *testing.T, at netip.Addr, certFile, keyFile string) (address string, stop func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "python3", filepath.Join(examples, "admission.py"),
		"--listen", netip.AddrPortFrom(at, 0).String(), "--certificate", certFile, "--key", keyFile, "--group", "groupName")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop = func() {
		_ = cmd.Process.Kill()
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait() // it was killed
	}
	t.Cleanup(stop)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(strings.TrimSpace(line), "listening at "), stop
}

// configurations returns those of the example, for a webhook at an address.
func configurations(t *testing.T, address string, cert []byte) (
	*admissionregistrationv1.MutatingWebhookConfiguration, *admissionregistrationv1.ValidatingWebhookConfiguration,
) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(examples, "webhooks.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("192.0.2.7:8443", address,
		"Q0VSVElGSUNBVEU=", base64.StdEncoding.EncodeToString(cert)).Replace(string(raw))
	m, v := &admissionregistrationv1.MutatingWebhookConfiguration{},
		&admissionregistrationv1.ValidatingWebhookConfiguration{}
	for i, document := range strings.SplitN(text, "\n---\n", 2) {
		json, err := yaml.YAMLToJSON([]byte(document))
		if err != nil {
			t.Fatal(err)
		}
		if err := manifest.Decode(json, []proto.Message{m, v}[i]); err != nil {
			t.Fatal(err)
		}
	}
	return m, v
}

func TestACustomAdmissionControllerInPythonDedicatesNodes(t *testing.T) {
	at := hostAddress(t)
	certFile, keyFile, cert := certificate(t, at)
	address, stop := runExample(t, at, certFile, keyFile)
	c := start(t)
	c.stop()
	c.webhooks = []string{"https://" + address}
	c.startScheduler()
	ctx := t.Context()
	namespaces := schedulingv1.NewNamespaceServiceClient(c.admin())
	for name, labels := range map[string]map[string]string{"group": {"dedicated": "groupName"}, "others": nil} {
		if _, err := namespaces.CreateNamespace(ctx, &schedulingv1.CreateNamespaceRequest{
			Namespace: &schedulingv1.Namespace{Metadata: &metav1.ObjectMeta{Name: name, Labels: labels}},
		}); err != nil {
			t.Fatal(err)
		}
	}
	m, v := configurations(t, address, cert)
	elsewhere := proto.CloneOf(m)
	elsewhere.Webhooks[0].ClientConfig.Url = proto.String("https://198.51.100.1/mutate")
	mutating := admissionregistrationv1.NewMutatingWebhookConfigurationServiceClient(c.admin())
	if _, err := mutating.CreateMutatingWebhookConfiguration(ctx,
		&admissionregistrationv1.CreateMutatingWebhookConfigurationRequest{MutatingWebhookConfiguration: elsewhere},
	); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "webhooks[0].clientConfig.url") {
		t.Errorf("an address that is not allowed: %v", err)
	}
	if _, err := mutating.CreateMutatingWebhookConfiguration(ctx,
		&admissionregistrationv1.CreateMutatingWebhookConfigurationRequest{MutatingWebhookConfiguration: m}); err != nil {
		t.Fatal(err)
	}
	if _, err := admissionregistrationv1.NewValidatingWebhookConfigurationServiceClient(c.admin()).
		CreateValidatingWebhookConfiguration(ctx,
			&admissionregistrationv1.CreateValidatingWebhookConfigurationRequest{
				ValidatingWebhookConfiguration: v,
			}); err != nil {
		t.Fatal(err)
	}

	// The pods of a controller are given the toleration and the selector.
	if _, err := schedulingv1.NewReplicaSetServiceClient(c.admin()).CreateReplicaSet(ctx,
		&schedulingv1.CreateReplicaSetRequest{ReplicaSet: &schedulingv1.ReplicaSet{
			Metadata: &metav1.ObjectMeta{Namespace: "group", Name: "web"},
			Spec: &schedulingv1.ReplicaSetSpec{
				Replicas: proto.Int32(2), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
				Template: &schedulingv1.PodTemplateSpec{
					Metadata: &metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}, Spec: newPod("", "1m").Spec,
				},
			},
		}}); err != nil {
		t.Fatal(err)
	}
	dedicated := &schedulingv1.Toleration{
		Key: "dedicated", Operator: "Equal", Value: proto.String("groupName"), Effect: placement.NoSchedule,
	}
	pods := c.pods()
	servetest.Await(t, func() string {
		list, err := pods.ListPods(ctx, &schedulingv1.ListPodsRequest{Namespace: "group"})
		if err != nil || len(list.GetItems()) != 2 {
			return fmt.Sprintf("pods %v, %v", list.GetItems(), err)
		}
		for _, p := range list.GetItems() {
			if !slices.ContainsFunc(p.GetSpec().GetTolerations(), func(t *schedulingv1.Toleration) bool {
				return proto.Equal(t, dedicated)
			}) || p.GetSpec().GetNodeSelector()["dedicated"] != "groupName" {
				t.Fatalf("pod %v", p.GetSpec())
			}
		}
		return ""
	})

	// Others may not have the toleration, and are otherwise not affected.
	create := func(name string, tolerations ...*schedulingv1.Toleration) error {
		pod := newPod(name, "1m")
		pod.Metadata.Namespace, pod.Spec.Tolerations = "others", tolerations
		_, err := pods.CreatePod(ctx, &schedulingv1.CreatePodRequest{Namespace: "others", Pod: pod})
		return err
	}
	if err := create("plain"); err != nil {
		t.Errorf("a pod of others: %v", err)
	}
	const refusal = `admission webhook "guard.dedicated.example.com" denied the request: ` +
		"the nodes of groupName are for its own namespaces"
	if err := create("intruder", dedicated); status.Code(err) != codes.PermissionDenied ||
		!strings.Contains(err.Error(), refusal) {
		t.Errorf("a pod of others with the toleration: %v", err)
	}
	intruder := newPod("intruder", "1m")
	intruder.Metadata.Namespace, intruder.Spec.Tolerations = "others", []*schedulingv1.Toleration{dedicated}
	if a, err := pods.AdmitPod(ctx, &schedulingv1.AdmitPodRequest{Pod: intruder}); err != nil || a.GetAllowed() ||
		!strings.Contains(a.GetReason(), refusal) {
		t.Errorf("pods:admit: %v, %v", a, err)
	}

	stop()
	if err := create("late"); status.Code(err) != codes.FailedPrecondition ||
		!strings.Contains(err.Error(), `"guard.dedicated.example.com" failed, and its failurePolicy is Fail`) {
		t.Errorf("while the controller is gone: %v", err)
	}
	if _, err := mutating.DeleteMutatingWebhookConfiguration(ctx,
		&admissionregistrationv1.DeleteMutatingWebhookConfigurationRequest{Name: "dedicated-nodes"}); err != nil {
		t.Errorf("its configuration cannot be deleted: %v", err)
	}
}
