package service

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/accounttoken"
	"github.com/windlass-dev/windlass/kit/servetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

func (c *cluster) accounts() schedulingv1.ServiceAccountServiceClient {
	return schedulingv1.NewServiceAccountServiceClient(c.admin())
}

func (c *cluster) account(a *schedulingv1.ServiceAccount) *schedulingv1.ServiceAccount {
	c.t.Helper()
	out, err := c.accounts().CreateServiceAccount(c.t.Context(), &schedulingv1.CreateServiceAccountRequest{
		ServiceAccount: a,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

// verified returns what a token says, verified as a gateway does.
func (c *cluster) verified(text string) accounttoken.Token {
	c.t.Helper()
	got, _, err := accounttoken.NewVerifier(c.ground.Files(servetest.Service("gateway"))).Verify(text,
		accounttoken.Audience, time.Now())
	if err != nil {
		c.t.Fatal(err)
	}
	return got
}

func TestEveryNamespaceHasADefaultServiceAccount(t *testing.T) {
	c := start(t)
	if _, err := schedulingv1.NewNamespaceServiceClient(c.admin()).CreateNamespace(t.Context(),
		&schedulingv1.CreateNamespaceRequest{Namespace: &schedulingv1.Namespace{
			Metadata: &metav1.ObjectMeta{Name: "dev"},
		}}); err != nil {
		t.Fatal(err)
	}
	await := func(not string) (uid string) {
		t.Helper()
		servetest.Await(t, func() string {
			a, err := c.accounts().GetServiceAccount(t.Context(), &schedulingv1.GetServiceAccountRequest{
				Namespace: "dev", Name: "default",
			})
			if uid = a.GetMetadata().GetUid(); err != nil || uid == not {
				return fmt.Sprintf("uid %q, %v", uid, err)
			}
			return ""
		})
		return uid
	}
	first := await("")
	if _, err := c.accounts().DeleteServiceAccount(t.Context(), &schedulingv1.DeleteServiceAccountRequest{
		Namespace: "dev", Name: "default",
	}); err != nil {
		t.Fatal(err)
	}
	await(first)
}

func TestAPodGetsAServiceAccountThatExists(t *testing.T) {
	c := start(t)
	if got := c.create(c.pods(), newPod("plain", "100m")); got.GetSpec().GetServiceAccountName() != "default" {
		t.Errorf("a pod that names none has %q", got.GetSpec().GetServiceAccountName())
	}
	pod := newPod("op", "100m")
	pod.Spec.ServiceAccount = "operator" // the former name of the field
	_, err := c.pods().CreatePod(t.Context(), &schedulingv1.CreatePodRequest{Pod: pod})
	if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(),
		`spec.serviceAccountName: service account "operator" not found in namespace "default"`) {
		t.Errorf("a pod of a missing one: %v", err)
	}
	c.account(&schedulingv1.ServiceAccount{
		Metadata:                     &metav1.ObjectMeta{Namespace: "default", Name: "operator"},
		ImagePullSecrets:             []*schedulingv1.SecretReference{{Name: "pull"}},
		AutomountServiceAccountToken: proto.Bool(false),
	})
	got := c.create(c.pods(), pod)
	pull := got.GetSpec().GetImagePullSecrets()
	if got.GetSpec().GetServiceAccountName() != "operator" || len(pull) != 1 ||
		pull[0].GetFields()["name"].GetStringValue() != "pull" || got.GetSpec().AutomountServiceAccountToken == nil ||
		got.GetSpec().GetAutomountServiceAccountToken() {
		t.Errorf("the pod is %v", got.GetSpec())
	}
	_, err = c.accounts().CreateServiceAccount(t.Context(), &schedulingv1.CreateServiceAccountRequest{
		ServiceAccount: &schedulingv1.ServiceAccount{
			Metadata: &metav1.ObjectMeta{Namespace: "default", Name: "odd"},
			Secrets:  []*schedulingv1.SecretReference{{Name: "../etc"}},
		},
	})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "secrets[0].name") {
		t.Errorf("a secret with an odd name: %v", err)
	}
}

func TestAnAgentGetsTokensForThePodsOfItsNodeAlone(t *testing.T) {
	c := start(t)
	c.addNode("node-1", "4")
	c.addNode("node-2", "4")
	c.settled("node-1")
	c.account(&schedulingv1.ServiceAccount{Metadata: &metav1.ObjectMeta{Namespace: "default", Name: "operator"}})
	pod := newPod("op", "100m")
	pod.Spec.ServiceAccountName = "operator"
	c.create(c.pods(), pod)
	on := c.awaitPod(c.pods(), "op", bound)
	node, other := on.GetSpec().GetNodeName(), "node-1"
	if node == other {
		other = "node-2"
	}
	r := &schedulingv1.CreatePodTokenRequest{
		NodeName: node, Namespace: "default", Name: "op", Uid: on.GetMetadata().GetUid(),
	}
	out, err := c.agent(node).CreatePodToken(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	got := c.verified(out.GetToken())
	if got.Namespace != "default" || got.Name != "operator" || got.Pod != "op" || got.PodUID != r.GetUid() ||
		got.Node != node || !slices.Equal(got.Audiences, []string{accounttoken.Audience}) ||
		!got.Expires.Equal(out.GetExpiryTime().AsTime()) || time.Until(got.Expires) > time.Hour {
		t.Errorf("the token is %+v", got)
	}
	for _, name := range []string{node, other} {
		r := proto.CloneOf(r)
		r.NodeName = name
		if _, err := c.agent(other).CreatePodToken(t.Context(), r); status.Code(err) != codes.PermissionDenied {
			t.Errorf("the agent of another node, as %s: %v", name, err)
		}
	}
	wrong := proto.CloneOf(r)
	wrong.Uid = "of-an-earlier-pod"
	if _, err := c.agent(node).CreatePodToken(t.Context(), wrong); status.Code(err) != codes.Aborted {
		t.Errorf("for another pod of the name: %v", err)
	}
	direct := schedulingv1.NewServiceAccountTokenServiceClient(c.as(servetest.Node(node)))
	if _, err := direct.CreateServiceAccountToken(t.Context(), &schedulingv1.CreateServiceAccountTokenRequest{
		Namespace: "default", Name: "operator",
	}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("an agent chooses a service account: %v", err)
	}

	// The gateway, and no one else, learns whether it is in force.
	review := &schedulingv1.ReviewServiceAccountTokenRequest{
		Namespace: "default", Name: "operator", Uid: got.UID, PodName: "op", PodUid: got.PodUID,
	}
	if _, err := schedulingv1.NewServiceAccountTokenServiceClient(c.admin()).ReviewServiceAccountToken(t.Context(),
		review); status.Code(err) != codes.PermissionDenied {
		t.Errorf("an administrator reviews: %v", err)
	}
	gateway := schedulingv1.NewServiceAccountTokenServiceClient(c.as(servetest.Service("gateway")))
	refusal := func(r *schedulingv1.ReviewServiceAccountTokenRequest) string {
		t.Helper()
		out, err := gateway.ReviewServiceAccountToken(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return out.GetRefusal()
	}
	if why := refusal(review); why != "" {
		t.Errorf("refused: %s", why)
	}
	for what, change := range map[string]func(*schedulingv1.ReviewServiceAccountTokenRequest){
		"another pod of the name":     func(r *schedulingv1.ReviewServiceAccountTokenRequest) { r.PodUid = "x" },
		"a pod that does not exist":   func(r *schedulingv1.ReviewServiceAccountTokenRequest) { r.PodName = "x" },
		"another account of the name": func(r *schedulingv1.ReviewServiceAccountTokenRequest) { r.Uid = "x" },
	} {
		r := proto.CloneOf(review)
		change(r)
		if refusal(r) == "" {
			t.Errorf("%s is in force", what)
		}
	}
	if err := report(t, c.agent(node), on, "Succeeded", "False"); err != nil {
		t.Fatal(err)
	}
	servetest.Await(t, func() string {
		if refusal(review) == "" {
			return "the token of a pod that has ended is in force"
		}
		return ""
	})
	if _, err := c.agent(node).CreatePodToken(t.Context(), r); status.Code(err) != codes.PermissionDenied {
		t.Errorf("for a pod that has ended: %v", err)
	}
}

func TestATokenOfAServiceAccountEndsWithIt(t *testing.T) {
	c := start(t)
	made := c.account(&schedulingv1.ServiceAccount{Metadata: &metav1.ObjectMeta{Namespace: "default", Name: "ci"}})
	tokens := schedulingv1.NewServiceAccountTokenServiceClient(c.admin())
	out, err := tokens.CreateServiceAccountToken(t.Context(), &schedulingv1.CreateServiceAccountTokenRequest{
		Namespace: "default", Name: "ci", ExpirationSeconds: 600,
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.verified(out.GetToken()); got.UID != made.GetMetadata().GetUid() || got.PodUID != "" ||
		time.Until(got.Expires) > 10*time.Minute {
		t.Errorf("the token is %+v", got)
	}
	for what, r := range map[codes.Code]*schedulingv1.CreateServiceAccountTokenRequest{
		codes.NotFound:        {Namespace: "default", Name: "missing"},
		codes.InvalidArgument: {Namespace: "default", Name: "ci", ExpirationSeconds: 1},
	} {
		if _, err := tokens.CreateServiceAccountToken(t.Context(), r); status.Code(err) != what {
			t.Errorf("%v: %v", r, err)
		}
	}
	editor := schedulingv1.NewServiceAccountTokenServiceClient(c.as(servetest.User("ed", "windlass:editors")))
	if _, err := editor.CreateServiceAccountToken(t.Context(), &schedulingv1.CreateServiceAccountTokenRequest{
		Namespace: "default", Name: "ci",
	}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("an editor gets a token: %v", err)
	}
	if _, err := c.accounts().DeleteServiceAccount(t.Context(), &schedulingv1.DeleteServiceAccountRequest{
		Namespace: "default", Name: "ci",
	}); err != nil {
		t.Fatal(err)
	}
	gateway := schedulingv1.NewServiceAccountTokenServiceClient(c.as(servetest.Service("gateway")))
	servetest.Await(t, func() string {
		out, err := gateway.ReviewServiceAccountToken(t.Context(), &schedulingv1.ReviewServiceAccountTokenRequest{
			Namespace: "default", Name: "ci", Uid: made.GetMetadata().GetUid(),
		})
		if err != nil || out.GetRefusal() == "" {
			return fmt.Sprintf("%v, %v", out, err)
		}
		return ""
	})
}
