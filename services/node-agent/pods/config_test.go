package pods

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

// configure replaces the objects that the cluster has.
func (c *cluster) configure(level, password string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.configVersion++
	c.configMaps, c.secrets = nil, nil
	if level != "" {
		c.configMaps = []*schedulingv1.ConfigMap{{
			Metadata: &metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"level": level},
		}}
	}
	if password != "" {
		c.secrets = []*schedulingv1.Secret{{
			Metadata: &metav1.ObjectMeta{Name: "login"}, Data: map[string][]byte{"password": []byte(password)},
		}}
	}
}

func TestAContainerGetsConfigMapsAndSecrets(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	m.run()
	c.configure("debug", "")
	pod := sh("a", `echo "env $level $PASSWORD"; cat $WINDLASS_VOLUME_V/level
		until grep -q trace $WINDLASS_VOLUME_V/level; do sleep 0.1; done
		echo "now $(cat $WINDLASS_VOLUME_V/level) $(cat $WINDLASS_VOLUME_W)"; exec sleep 1000`)
	spec := &schedulingv1.PodSpec{}
	if err := manifest.Decode([]byte(`{"containers": [{"name": "x", "envFrom": [{"configMapRef": {"name": "settings"}}],
		"env": [{"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "login", "key": "password"}}}],
		"volumeMounts": [{"name": "v", "mountPath": "/v"}, {"name": "w", "mountPath": "/w", "subPath": "level"}]}],
		"volumes": [{"name": "v", "projected": {"sources": [{"configMap": {"name": "settings"}}]}},
			{"name": "w", "configMap": {"name": "settings"}}]}`), spec); err != nil {
		t.Fatal(err)
	}
	of := pod.Spec.Containers[0]
	of.EnvFrom, of.Env, of.VolumeMounts = spec.Containers[0].EnvFrom, spec.Containers[0].Env,
		spec.Containers[0].VolumeMounts
	pod.Spec.Volumes = spec.Volumes
	c.add(pod)
	st := c.await("a", "waits for the secret", func(st *schedulingv1.PodStatus) bool {
		cs := st.GetContainerStatuses()
		return len(cs) == 1 && cs[0].GetState().GetWaiting().GetReason() == "CreateContainerConfigError"
	})
	if w := st.GetContainerStatuses()[0].GetState().GetWaiting(); !strings.Contains(w.GetMessage(),
		`secret "login" not found`) {
		t.Errorf("it waits with %q", w.GetMessage())
	}
	c.configure("debug", "hunter2")
	c.await("a", "starts once the secret exists", ready)
	c.configure("trace", "")
	var log string
	eventually(t, "the volume to change, and the mount with subPath not", func() bool {
		log = c.log("a", &schedulingv1.GetPodLogRequest{})
		return strings.Contains(log, "now trace debug")
	})
	if !strings.HasPrefix(log, "env debug hunter2\ndebug") {
		t.Errorf("log is %q", log)
	}
}

func TestFilesOfAVolumeChangeTogether(t *testing.T) {
	dir := t.TempDir()
	file := func(text string) plan.File { return plan.File{Data: []byte(text), Mode: 0o440} }
	write := func(files map[string]plan.File) {
		t.Helper()
		if err := writeConfig(dir, files, nil); err != nil {
			t.Fatal(err)
		}
	}
	write(map[string]plan.File{"a": file("1"), "d/e/f": file("1"), "d/g": file("1")})
	first, err := os.Readlink(filepath.Join(dir, currentDir))
	if err != nil {
		t.Fatal(err)
	}
	open, err := os.Open(filepath.Join(dir, "a"))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	write(map[string]plan.File{"a": file("1"), "d/e/f": file("1"), "d/g": file("1")})
	if again, err := os.Readlink(filepath.Join(dir, currentDir)); again != first || err != nil {
		t.Errorf("files that did not change were written: %s, then %s, %v", first, again, err)
	}
	write(map[string]plan.File{"a": file("2"), "b": file("2")})
	for name, want := range map[string]string{"a": "2", "b": "2"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); string(got) != want || err != nil {
			t.Errorf("%s is %q, %v", name, got, err)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "a")); err != nil || info.Mode().Perm() != 0o440 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 4 { // a, b, ..data and its state
		t.Errorf("entries %v, %v", entries, err)
	}
	old := make([]byte, 2)
	if n, _ := open.Read(old); string(old[:n]) != "1" {
		t.Errorf("an open file became %q", old[:n])
	}
}
