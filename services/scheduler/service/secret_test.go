package service

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/servetest"
	"github.com/windlass-dev/windlass/kit/store"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

// rotateRecordKeys puts a new key at the head of the scheduler's ring and returns its id.
func (c *cluster) rotateRecordKeys() uint64 {
	c.t.Helper()
	id, err := store.AddKey(filepath.Join(c.tls, serve.RecordKeysFile), time.Now())
	if err != nil {
		c.t.Fatal(err)
	}
	return id
}

const hidden = "correct horse battery staple"

func newSecret(name string) *schedulingv1.Secret {
	return &schedulingv1.Secret{
		Metadata: &metav1.ObjectMeta{Namespace: "default", Name: name}, StringData: map[string]string{"password": hidden},
	}
}

func (c *cluster) secret(name string) *schedulingv1.Secret {
	c.t.Helper()
	s, err := schedulingv1.NewSecretServiceClient(c.admin()).CreateSecret(c.t.Context(),
		&schedulingv1.CreateSecretRequest{Secret: newSecret(name)})
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

// records returns what etcd has of the scheduler.
func records(t *testing.T) map[string][]byte {
	t.Helper()
	r, err := etcdtest.Client(t).Get(t.Context(), "/windlass/scheduler/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for _, kv := range r.Kvs {
		out[string(kv.Key)] = kv.Value
	}
	return out
}

func TestSecretsAreSealedInEtcdAndSealedAgainAfterARotation(t *testing.T) {
	c := start(t)
	made := c.secret("login")
	if string(made.GetData()["password"]) != hidden || len(made.GetStringData()) > 0 || made.GetType() != "Opaque" {
		t.Errorf("created %v", made)
	}
	secrets := schedulingv1.NewSecretServiceClient(c.admin())
	made.Data["user"] = []byte(hidden)
	if _, err := secrets.UpdateSecret(t.Context(), &schedulingv1.UpdateSecretRequest{
		Namespace: "default", Name: "login", Secret: made,
	}); err != nil {
		t.Fatal(err)
	}
	const key = "/windlass/scheduler/secrets/default/login"
	before := records(t)
	if before[key] == nil {
		t.Fatalf("no record %s", key)
	}
	for k, v := range before {
		if bytes.Contains(v, []byte(hidden)) {
			t.Errorf("record %s has the value in plain", k)
		}
	}
	c.rotateRecordKeys()
	servetest.Await(t, func() string {
		if bytes.Equal(records(t)[key], before[key]) {
			return "the record was not sealed again"
		}
		return ""
	})
	got, err := secrets.GetSecret(t.Context(), &schedulingv1.GetSecretRequest{Name: "login"})
	if err != nil || string(got.GetData()["user"]) != hidden {
		t.Errorf("after the rotation: %v, %v", got, err)
	}
}

func TestViewersReadConfigMapsAndNoSecrets(t *testing.T) {
	c := start(t)
	c.secret("login")
	viewer, editor := c.as(servetest.User("vera", "windlass:viewers")), c.as(servetest.User("ed", "windlass:editors"))
	get := &schedulingv1.GetSecretRequest{Name: "login"}
	if _, err := schedulingv1.NewSecretServiceClient(viewer).GetSecret(t.Context(), get); status.Code(err) !=
		codes.PermissionDenied {
		t.Errorf("a viewer reads a secret: %v", err)
	}
	if _, err := schedulingv1.NewConfigMapServiceClient(viewer).ListConfigMaps(t.Context(),
		&schedulingv1.ListConfigMapsRequest{}); err != nil {
		t.Errorf("a viewer lists config maps: %v", err)
	}
	if _, err := schedulingv1.NewSecretServiceClient(editor).GetSecret(t.Context(), get); err != nil {
		t.Errorf("an editor reads a secret: %v", err)
	}
}

func TestAnAgentReadsWhatThePodsOfItsNodeReferToAndNothingElse(t *testing.T) {
	c := start(t)
	c.addNode("node-1", "4")
	c.settled("node-1")
	pod := newPod("web", "100m")
	pod.Spec.Volumes = []*schedulingv1.Volume{{Name: "login", Secret: &structpb.Struct{Fields: map[string]*structpb.Value{
		"secretName": structpb.NewStringValue("login"),
	}}}}
	c.create(c.pods(), pod)
	bound := c.awaitPod(c.pods(), "web", func(p *schedulingv1.Pod) bool {
		return p.GetSpec().GetNodeName() != ""
	})
	r := &schedulingv1.ResolveConfigRequest{
		NodeName: "node-1", Namespace: "default", Name: "web", Uid: bound.GetMetadata().GetUid(),
	}
	agent := c.agent("node-1")
	none, err := agent.ResolveConfig(t.Context(), r)
	if err != nil || len(none.GetSecrets()) > 0 {
		t.Fatalf("before there is a secret: %v, %v", none, err)
	}
	c.secret("login")
	c.secret("other")
	r.KnownVersion = none.GetVersion()
	var got *schedulingv1.ResolveConfigResponse
	servetest.Await(t, func() string {
		if got, err = agent.ResolveConfig(t.Context(), r); err != nil || got.GetUnchanged() {
			return fmt.Sprintf("response is %v, %v", got, err)
		}
		return ""
	})
	if s := got.GetSecrets(); len(s) != 1 || s[0].GetMetadata().GetName() != "login" ||
		string(s[0].GetData()["password"]) != hidden {
		t.Errorf("secrets are %v", s)
	}
	r.KnownVersion = got.GetVersion()
	if again, err := agent.ResolveConfig(t.Context(), r); err != nil || !again.GetUnchanged() ||
		len(again.GetSecrets()) > 0 {
		t.Errorf("once more: %v, %v", again, err)
	}
	r.KnownVersion = ""
	// Another node: in its own name, it does not have the pod; in the other's name it may not speak.
	c.addNode("node-2", "4")
	foreign := c.agent("node-2")
	for _, name := range []string{"node-1", "node-2"} {
		r.NodeName = name
		if _, err := foreign.ResolveConfig(t.Context(), r); status.Code(err) != codes.PermissionDenied {
			t.Errorf("agent of node-2 as %s: %v", name, err)
		}
	}
	if _, err := schedulingv1.NewSecretServiceClient(c.as(servetest.Node("node-1"))).GetSecret(t.Context(),
		&schedulingv1.GetSecretRequest{Name: "login"}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("an agent reads a secret by its name: %v", err)
	}
}
