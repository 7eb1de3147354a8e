package attacks

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// pathsPerPod bounds what one pod's specification lists.
const pathsPerPod = 2000

// probe prints what a pod can do, one line each, and "tried" at the end. Its arguments are URLs of the cluster without
// a certificate, the processes of the cluster, and the files of the cluster.
const probe = `
exec 2>/dev/null
for u in $URLS; do curl -sfk --max-time 3 "$u" >/dev/null && echo "CALL $u"; done
for s in $SOCKETS; do curl -sf --max-time 3 --unix-socket "$s" http://member/version >/dev/null && echo "CALL $s"; done
for p in $PIDS; do
	kill -0 $p && echo "KILL $p"
	head -c 1 /proc/$p/environ >/dev/null && echo "READ environment of $p"
	head -c 1 /proc/$p/mem >/dev/null && echo "READ memory of $p"
	ls /proc/$p/fd >/dev/null && echo "READ descriptors of $p"
	ls /proc/$p/root/ >/dev/null && echo "READ root of $p"
done
for f in $FILES; do
	[ -d "$f" ] && { ls "$f" >/dev/null && echo "LIST $f"; touch "$f/x" && echo "WRITE $f"; }
	head -c 1 "$f" >/dev/null && echo "READ $f"
	true >>"$f" && echo "WRITE $f"
done
echo tried
while :; do sleep 1; done`

// TestPodsReachNothingOfTheCluster has an editor create a pod that tries every file, process and socket of the cluster,
// and every address of it without a certificate. Only root can run pods as users of their own; without it an editor may
// create none.
func TestPodsReachNothingOfTheCluster(t *testing.T) {
	c := shared.Cluster(t)
	editor := c.As("pod-editor", "windlass:editors")
	if os.Geteuid() != 0 {
		r, err := editor.CLI(pod(t, "reaches", nil), "create", "-f", "-")
		if err != nil || r.Code == 0 || !strings.Contains(r.Stderr, "Forbidden") {
			t.Errorf("without root an editor created a pod: exit code %d, %s, %v", r.Code, r.Stderr, err)
		}
		return
	}
	var files, sockets []string
	err := filepath.WalkDir(c.Dir(), func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil // gone since
		case e.Type()&fs.ModeSocket != 0:
			sockets = append(sockets, path)
		case e.Type().IsRegular() || e.IsDir():
			files = append(files, path)
		}
		return nil
	})
	if err != nil || len(sockets) == 0 || len(files) < 100 || len(files) > pathsPerPod {
		t.Fatalf("%d files and %d sockets below %s, %v", len(files), len(sockets), c.Dir(), err)
	}
	processes, err := c.Processes()
	if err != nil {
		t.Fatal(err)
	}
	var pids []string
	for _, p := range processes {
		pids = append(pids, fmt.Sprint(p.PID))
	}
	urls := []string{"https://" + c.Gateway() + "/v1/machines", "https://" + c.Gateway() + "/v1/pods"}
	for _, m := range c.MustMachines("master") {
		for _, a := range m.GetStatus().GetAddresses() {
			if a.GetType() == "InternalIP" {
				urls = append(urls, "https://"+a.GetAddress()+":2379/version", "https://"+a.GetAddress()+":2379/health",
					"https://"+a.GetAddress()+":2380/members")
			}
		}
	}
	if len(urls) < 5 {
		t.Fatalf("no members at %v", urls)
	}
	const readable = "/etc/passwd" // shows that the probe finds what there is to find
	spec := pod(t, "reaches", map[string]string{
		"URLS": strings.Join(urls, " "), "SOCKETS": strings.Join(sockets, " "), "PIDS": strings.Join(pids, " "),
		"FILES": strings.Join(append(files, readable), " "),
	})
	r, err := editor.CLI(spec, "create", "-f", "-")
	if err != nil || r.Code != 0 {
		t.Fatalf("create: exit code %d, %s, %v", r.Code, r.Stderr, err)
	}
	t.Cleanup(func() { c.MustCLI("delete", "pod", "reaches", "--now") })
	var found string
	c.Wait(time.Minute, "the pod tried everything", func(context.Context) (bool, string, error) {
		r, err := editor.CLI("", "logs", "reaches")
		found = r.Stdout
		return strings.HasSuffix(found, "tried\n"), found + r.Stderr, err
	})
	if want := "READ " + readable + "\ntried\n"; found != want {
		t.Errorf("the pod could:\n%s\nwant only:\n%s", found, want)
	}
	t.Logf("a pod tried %d files and directories, %d processes, %d sockets, %d addresses", len(files), len(pids),
		len(sockets), len(urls))
	// A command in the pod is the pod's user, too.
	r, err = editor.CLI("", "exec", "reaches", "--", "/bin/sh", "-c", "id -u; cat "+c.Dir("admin", "tls.key"))
	if err != nil || r.Code == 0 || strings.HasPrefix(r.Stdout, "0\n") || strings.Contains(r.Stdout, "KEY") {
		t.Errorf("a command in the pod: exit code %d, %q, %q, %v", r.Code, r.Stdout, r.Stderr, err)
	}
}

// pod returns a pod as JSON that runs the probe.
func pod(t *testing.T, name string, env map[string]string) string {
	t.Helper()
	var list []map[string]string
	for k, v := range env {
		list = append(list, map[string]string{"name": k, "value": v})
	}
	data, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": name, "namespace": "default"},
		"spec": map[string]any{
			"restartPolicy": "Never",
			"containers": []any{map[string]any{
				"name": "probe", "command": []string{"/bin/sh", "-c", probe},
				"env": list,
			}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
