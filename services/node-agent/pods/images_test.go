package pods

import (
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

// greeter is a program for images: it says what a file of its image has, changes that file, and waits.
var greeter = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "greeter")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	const text = `package main

import ("fmt"; "os"; "time")

func main() {
	data, err := os.ReadFile("greeting")
	fmt.Println(string(data), err)
	fmt.Println("written", os.WriteFile("greeting", []byte("changed"), 0o600))
	if len(os.Args) > 1 { os.Exit(3) }
	time.Sleep(time.Minute)
}
`
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(text), 0o600); err != nil {
		return nil, err
	}
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "program"), filepath.Join(dir, "main.go"))
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return os.ReadFile(filepath.Join(dir, "program"))
})

// greeterImage returns an image with the program and a text of its own.
func greeterImage(t *testing.T, text string) v1.Image {
	t.Helper()
	binary, err := greeter()
	if err != nil {
		t.Fatal(err)
	}
	layer := static.NewLayer(archive(t, file{name: "greeting", content: text},
		file{name: "bin/greet", content: string(binary), mode: 0o755}), types.OCIUncompressedLayer)
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	config.Config.Entrypoint = []string{"/bin/greet"}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	return img
}

// hub is a registry in this process.
type hub struct {
	t    *testing.T
	host string

	user, password string // that it asks for; empty: none
	gets           atomic.Int32
	blobs          atomic.Int32
	hold           chan struct{} // blobs wait until it is closed; nil: they do not
}

func newHub(t *testing.T, h *hub) *hub {
	t.Helper()
	h.t = t
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		if h.user != "" && (user != h.user || password != h.password) {
			w.Header().Set("WWW-Authenticate", `Basic realm="hub"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/manifests/") {
			h.gets.Add(1)
		}
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			h.blobs.Add(1)
			if h.hold != nil && h.blobs.Load() > 1 { // the first one is the configuration
				select {
				case <-h.hold:
				case <-r.Context().Done():
				}
			}
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	h.host = s.Listener.Addr().String()
	return h
}

func (h *hub) push(ref string, img v1.Image) string {
	h.t.Helper()
	parsed, err := name.ParseReference(h.host + "/" + ref)
	if err != nil {
		h.t.Fatal(err)
	}
	auth := authn.Anonymous
	if h.user != "" {
		auth = &authn.Basic{Username: h.user, Password: h.password}
	}
	if err := remote.Write(parsed, img, remote.WithAuth(auth)); err != nil {
		h.t.Fatal(err)
	}
	d, err := img.Digest()
	if err != nil {
		h.t.Fatal(err)
	}
	return d.String()
}

func of(name, ref string) *schedulingv1.Pod {
	p := sh(name, "")
	p.Spec.Containers[0] = &schedulingv1.Container{Name: "main", Image: ref}
	return p
}

func waitsFor(reason string) func(*schedulingv1.PodStatus) bool {
	return func(st *schedulingv1.PodStatus) bool {
		cs := st.GetContainerStatuses()
		return len(cs) == 1 && cs[0].GetState().GetWaiting().GetReason() == reason
	}
}

func saysWaiting(text string) func(*schedulingv1.PodStatus) bool {
	return func(st *schedulingv1.PodStatus) bool {
		cs := st.GetContainerStatuses()
		return len(cs) == 1 && strings.Contains(cs[0].GetState().GetWaiting().GetMessage(), text)
	}
}

func (c *cluster) logs(name, want string) {
	c.t.Helper()
	eventually(c.t, "the log of "+name+" is as it should be", func() bool {
		return c.log(name, &schedulingv1.GetPodLogRequest{}) == want
	})
}

// settings writes the settings of registries.
func (m *machine) settings(text string) {
	m.t.Helper()
	if err := os.MkdirAll(m.path("images"), 0o700); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(m.path("images/registries.yaml"), []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

func TestAnImageComesFromARegistryOnceForAllPods(t *testing.T) {
	h := newHub(t, &hub{})
	digest := h.push("team/greet:v1", greeterImage(t, "one"))
	c := newCluster(t)
	m := newMachine(t, c)
	s, _ := m.run()
	c.add(of("a", h.host+"/team/greet:v1"))
	st := c.await("a", "is ready", ready)
	if got := st.GetContainerStatuses()[0].GetImageId(); got != digest {
		t.Errorf("imageID %q, want the digest of the manifest %q", got, digest)
	}
	c.logs("a", "one <nil>\nwritten <nil>\n")
	before := h.gets.Load() + h.blobs.Load()
	c.add(of("b", h.host+"/team/greet:v1"))
	c.add(of("c", h.host+"/team/greet@"+digest))
	c.await("b", "is ready", ready)
	c.await("c", "is ready", ready)
	c.logs("b", "one <nil>\nwritten <nil>\n") // though pod a has changed that file in its own root
	if after := h.gets.Load() + h.blobs.Load(); after != before {
		t.Errorf("%d requests for an image that was there", after-before)
	}
	for _, e := range [][3]string{
		{"a", "Pulled", "Successfully pulled image \"" + h.host + "/team/greet:v1\" in "},
		{"b", "Pulled", "already present"},
		{"a", "Started", "Started container main"},
	} {
		eventually(t, "events say it", func() bool { return c.said(e[0], e[1], e[2]) })
	}
	eventually(t, "the image is in the node's status", func() bool {
		list := s.Images()
		return len(list) == 1 && list[0].GetSizeBytes() > 1e6 &&
			strings.Contains(strings.Join(list[0].GetNames(), " "), h.host+"/team/greet:v1")
	})
}

// An image is larger than what its container may write, as most are.
func TestTheFilesOfAnImageAreNotThePods(t *testing.T) {
	h := newHub(t, &hub{})
	h.push("greet:v1", greeterImage(t, "large"))
	c := newCluster(t)
	m := newMachine(t, c)
	_, stop := m.run()
	p := of("a", h.host+"/greet:v1")
	p.Spec.Containers[0].Resources = &schedulingv1.ResourceRequirements{
		Limits: map[string]*structpb.Value{"ephemeral-storage": structpb.NewStringValue("200Ki")},
	}
	c.add(p)
	c.await("a", "is ready", ready)
	c.logs("a", "large <nil>\nwritten <nil>\n")
	stop()
	s, _ := m.run() // which has it from the record
	s.measureDisks(t.Context())
	s.look(t.Context())
	s.mu.Lock()
	use, evicted := s.disks["uid-a"], s.pods["uid-a"].evicted
	s.mu.Unlock()
	if use.Images < 1e6 || use.Total > 200<<10 || evicted.Phase != "" {
		t.Errorf("it holds %+v and is evicted: %v", use, evicted)
	}
	grown := m.path("pods/uid-a/containers/main/root/grown")
	if err := os.WriteFile(grown, make([]byte, 300<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	s.measureDisks(t.Context())
	s.look(t.Context())
	st := c.await("a", "was evicted for what it wrote", phase("Failed"))
	if st.GetReason() != plan.Evicted {
		t.Errorf("status %v", st)
	}
}

// TestEachStartGetsAFreshRoot has a container change a file and end.
func TestEachStartGetsAFreshRoot(t *testing.T) {
	h := newHub(t, &hub{})
	h.push("greet:v1", greeterImage(t, "fresh"))
	c := newCluster(t)
	m := newMachine(t, c)
	m.run()
	p := of("a", h.host+"/greet:v1")
	p.Spec.Containers[0].Args = []string{"end"}
	c.add(p)
	c.await("a", "was started again", func(st *schedulingv1.PodStatus) bool {
		cs := st.GetContainerStatuses()
		return len(cs) == 1 && cs[0].GetRestartCount() == 1
	})
	c.logs("a", "fresh <nil>\nwritten <nil>\n")
	p = of("b", h.host+"/greet:v1")
	p.Spec.Containers[0].Args, p.Spec.RestartPolicy = []string{"end"}, "Never"
	c.add(p)
	c.await("b", "failed", phase("Failed"))
	eventually(t, "the space of an ended pod is given back", func() bool {
		_, err := os.Stat(m.path("pods/uid-b/containers/main/root"))
		return os.IsNotExist(err)
	})
	c.logs("b", "fresh <nil>\nwritten <nil>\n")
}

func TestPullPolicies(t *testing.T) {
	h := newHub(t, &hub{})
	first := h.push("greet:v1", greeterImage(t, "one"))
	h.push("greet:latest", greeterImage(t, "one"))
	c := newCluster(t)
	m := newMachine(t, c)
	m.run()
	with := func(name, ref, policy string) *schedulingv1.Pod {
		p := of(name, h.host+"/"+ref)
		p.Spec.Containers[0].ImagePullPolicy = policy
		c.add(p)
		return p
	}
	with("never", "greet:v1", "Never")
	st := c.await("never", "waits", waitsFor("ErrImageNeverPull"))
	if m := st.GetContainerStatuses()[0].GetState().GetWaiting().GetMessage(); !strings.Contains(m,
		"pull policy of Never") {
		t.Errorf("message %q", m)
	}
	c.remove("never", 0)
	c.awaitGone("never")
	with("a", "greet:v1", "")
	c.await("a", "is ready", ready)
	c.remove("a", 0)
	c.awaitGone("a")
	second := h.push("greet:v1", greeterImage(t, "two"))
	h.push("greet:latest", greeterImage(t, "two"))
	for _, tc := range []struct{ name, ref, policy, digest string }{
		{"default", "greet:v1", "", first},
		{"here", "greet:v1", "Never", first},
		{"present", "greet:v1", "IfNotPresent", first},
		{"always", "greet:v1", "Always", second},
		{"moved", "greet:v1", "", second}, // the tag leads there since
		{"digest", "greet@" + first, "", first},
		{"latest", "greet", "", second},
	} {
		with(tc.name, tc.ref, tc.policy)
		st := c.await(tc.name, "is ready", ready)
		if got := st.GetContainerStatuses()[0].GetImageId(); got != tc.digest {
			t.Errorf("%s: imageID %s, want %s", tc.name, got, tc.digest)
		}
		c.remove(tc.name, 0)
		c.awaitGone(tc.name)
	}
	with("bad", "Upper:v1", "")
	c.await("bad", "has no valid name", waitsFor("InvalidImageName"))
}

func TestPullSecretsAreForTheirRegistryOnly(t *testing.T) {
	h := newHub(t, &hub{user: "alice", password: "correct horse"})
	h.push("team/greet:v1", greeterImage(t, "secret"))
	var seen atomic.Bool
	thief := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			seen.Store(true)
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="thief"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer thief.Close()
	c := newCluster(t)
	m := newMachine(t, c)
	m.settings(fmt.Sprintf("registries: {%q: {mirrors: [%q]}}", h.host, thief.URL))
	m.run()
	auth := base64.StdEncoding.EncodeToString([]byte("alice:correct horse"))
	c.setSecret(&schedulingv1.Secret{
		Metadata: &metav1.ObjectMeta{Name: "pull", Namespace: "default", Uid: "s", ResourceVersion: "1"},
		Type:     "kubernetes.io/dockerconfigjson",
		Data: map[string][]byte{
			".dockerconfigjson": fmt.Appendf(nil, `{"auths":{"https://%s/team":{"auth":%q}}}`, h.host, auth),
		},
	})
	c.add(of("without", h.host+"/team/greet:v1"))
	c.await("without", "is refused", waitsFor("ErrImagePull"))
	p := of("with", h.host+"/team/greet:v1")
	p.Spec.ImagePullSecrets = []*structpb.Struct{
		{Fields: map[string]*structpb.Value{"name": structpb.NewStringValue("missing")}},
		{Fields: map[string]*structpb.Value{"name": structpb.NewStringValue("pull")}},
	}
	c.add(p)
	c.await("with", "is ready", ready)
	if seen.Load() {
		t.Error("a mirror got the credentials of the registry")
	}
}

// TestHelloPodIsWhatAMirrorHas has the program of the agent stay where no mirror has the image.
func TestHelloPodIsWhatAMirrorHas(t *testing.T) {
	h := newHub(t, &hub{})
	c := newCluster(t)
	m := newMachine(t, c)
	m.settings(fmt.Sprintf("registries: {docker.io: {mirrors: [%q]}}", "http://"+h.host+"/hub"))
	m.run()
	c.add(of("a", "docker.io/ocpqe/hello-pod"))
	if st := c.await("a", "is ready", ready); st.GetContainerStatuses()[0].GetImageId() != "" {
		t.Errorf("status %v", st)
	}
	never := of("n", "docker.io/ocpqe/hello-pod") // present is what the agent ships
	never.Spec.Containers[0].ImagePullPolicy = "Never"
	c.add(never)
	c.await("n", "is ready", ready)
	digest := h.push("hub/ocpqe/hello-pod", greeterImage(t, "from the mirror"))
	c.add(of("b", "docker.io/ocpqe/hello-pod"))
	if st := c.await("b", "is ready", ready); st.GetContainerStatuses()[0].GetImageId() != digest {
		t.Errorf("status %v", st)
	}
	c.logs("b", "from the mirror <nil>\nwritten <nil>\n")
}

// TestARegistryThatHangsHoldsUpNobodyElse has more pods wait for one than there are settlers.
func TestARegistryThatHangsHoldsUpNobodyElse(t *testing.T) {
	slow, fast := newHub(t, &hub{hold: make(chan struct{})}), newHub(t, &hub{})
	release := sync.OnceFunc(func() { close(slow.hold) })
	t.Cleanup(release)
	slow.push("greet:v1", greeterImage(t, "slow"))
	fast.push("greet:v1", greeterImage(t, "fast"))
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	c := newCluster(t)
	m := newMachine(t, c)
	m.node.Status.Capacity["pods"] = structpb.NewNumberValue(20)
	m.run()
	for i := range settlers + 1 {
		c.add(of(fmt.Sprintf("hang-%d", i), silent.Addr().String()+"/greet:v1"))
	}
	c.add(of("slow", slow.host+"/greet:v1"))
	st := c.await("slow", "waits", saysWaiting("Pulling image"))
	if got := st.GetContainerStatuses()[0].GetState().GetWaiting().GetReason(); got != "ContainerCreating" {
		t.Errorf("reason %s", got)
	}
	eventually(t, "the layer is asked for", func() bool { return slow.blobs.Load() > 1 })
	c.add(of("fast", fast.host+"/greet:v1"))
	c.await("fast", "is ready", ready)
	c.await("slow", "says how far it is", saysWaiting("0.0 of "))
	for i := range settlers + 1 { // a pull ends with its pod
		name := fmt.Sprintf("hang-%d", i)
		c.remove(name, 30)
		c.awaitGone(name)
	}
	c.remove("slow", 30)
	c.awaitGone("slow")
	eventually(t, "nothing is left of the pull", func() bool {
		left, err := filepath.Glob(m.path("unpacked/.new-*"))
		return err == nil && len(left) == 0
	})
}

func TestASilentRegistryIsGivenUp(t *testing.T) {
	h := newHub(t, &hub{hold: make(chan struct{})})
	t.Cleanup(func() { close(h.hold) })
	h.push("greet:v1", greeterImage(t, "x"))
	c := newCluster(t)
	m := newMachine(t, c)
	m.patience = 200 * time.Millisecond
	m.run()
	c.add(of("a", h.host+"/greet:v1"))
	c.await("a", "says why", func(st *schedulingv1.PodStatus) bool {
		return waitsFor("ErrImagePull")(st) && saysWaiting("does not deliver")(st) || saysWaiting("timeout")(st)
	})
	c.await("a", "backs off", saysWaiting("Back-off pulling image"))
}

// TestAnAgentThatIsKilledLeavesNoPartOfAnImage has an agent begin with what another one left at several moments.
func TestAnAgentThatIsKilledLeavesNoPartOfAnImage(t *testing.T) {
	h := newHub(t, &hub{})
	digest := h.push("greet:v1", greeterImage(t, "whole"))
	c := newCluster(t)
	m := newMachine(t, c)
	_, stop := m.run()
	c.add(of("a", h.host+"/greet:v1"))
	c.await("a", "is ready", ready)
	pid := m.processes()["a.main"]
	stop()
	at := m.path("unpacked/sha256-" + strings.TrimPrefix(digest, "sha256:"))
	for _, dir := range []string{".new-123/root/bin", ".old-456/root/bin", "sha256-abc/root"} { // without image.json
		if err := os.MkdirAll(m.path("unpacked/"+dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	// as a host does that crashed before the image was on its disk
	raw, err := os.ReadFile(filepath.Join(at, "image.json"))
	if err != nil {
		t.Fatal(err)
	}
	raw = []byte(strings.NewReplacer(`"synced":true`, `"synced":false`, `"boot":"`, `"boot":"other-`).Replace(string(raw)))
	if err := os.WriteFile(filepath.Join(at, "image.json"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(at, "root/bin/greet"), nil, 0o700); err != nil {
		t.Fatal(err)
	}
	m.run()
	c.add(of("b", h.host+"/greet:v1"))
	c.await("b", "is ready", ready)
	c.logs("b", "whole <nil>\nwritten <nil>\n")
	if now := m.processes()["a.main"]; now != pid {
		t.Errorf("pod a has process %d, had %d", now, pid)
	}
	eventually(t, "the rests are gone", func() bool {
		left, err := filepath.Glob(m.path("unpacked/.*"))
		return err == nil && len(left) == 0
	})
	if list, err := os.ReadDir(m.path("unpacked")); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
}

func (c *cluster) setSecret(s *schedulingv1.Secret) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.secrets, c.configVersion = append(c.secrets, s), c.configVersion+1
}
