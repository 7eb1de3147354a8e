package attacks

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// memory returns the resident memory of one of the cluster's processes and the most that it has been, in bytes.
func memory(t *testing.T, c *harness.Cluster, program string) (now, most int64) {
	t.Helper()
	list, err := c.Processes()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if p.Name == program {
			return statusOf(t, p.PID, "VmRSS:"), statusOf(t, p.PID, "VmHWM:")
		}
	}
	t.Fatalf("%s is not among %v", program, list)
	return 0, 0
}

func statusOf(t *testing.T, pid int, field string) int64 {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), field); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Fatalf("process %d has no %s", pid, field)
	return 0
}

// bounded fails the test if the gateway's memory grows by more than most bytes while attack runs.
func bounded(t *testing.T, c *harness.Cluster, most int64, attack func()) {
	t.Helper()
	_, before := memory(t, c, "gateway")
	attack()
	if _, after := memory(t, c, "gateway"); after-before > most {
		t.Errorf("the gateway took %d MiB more than the most before", (after-before)>>20)
	}
}

// aliases is a YAML document of about size bytes whose aliases are nine of the one before.
func aliases(size int) []byte {
	var b bytes.Buffer
	b.WriteString("token: x\na0: &a0 [x,x,x,x,x,x,x,x,x]\n")
	for i := 1; b.Len() < size; i++ {
		fmt.Fprintf(&b, "a%d: &a%d [%s*a%d]\n", i, i, strings.Repeat(fmt.Sprintf("*a%d,", i-1), 8), i-1)
	}
	return b.Bytes()
}

const joinPath = "/v1/machines:join"

func TestAliasDocumentsAreRefused(t *testing.T) {
	c := shared.Cluster(t)
	for _, size := range []int{106 << 10, 124 << 10, 1 << 20} {
		document := aliases(size)
		for name, call := range map[string]struct {
			caller *harness.Caller
			path   string
			codes  []int
		}{
			// Without credentials YAML is not read at all.
			"anonymous":     {c.Anonymous(), joinPath, []int{http.StatusUnsupportedMediaType, http.StatusRequestEntityTooLarge}},
			"administrator": {c.Admin(), "/v1/nodes", []int{http.StatusBadRequest}},
		} {
			t.Run(fmt.Sprintf("%s, %d KiB", name, size>>10), func(t *testing.T) {
				bounded(t, c, 20<<20, func() {
					for range 5 {
						got, err := call.caller.REST(context.Background(), "POST", call.path, "application/yaml", document)
						if err != nil {
							t.Fatal(err)
						}
						if got.Code != call.codes[0] && got.Code != call.codes[len(call.codes)-1] {
							t.Fatalf("%d %s", got.Code, got.Body)
						}
						if name == "administrator" && !strings.Contains(string(got.Body), "line 2: anchors and aliases") {
							t.Errorf("the refusal does not name the line: %s", got.Body)
						}
					}
				})
			})
		}
	}
	t.Run("command line", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "aliases.yaml")
		if err := os.WriteFile(file, aliases(106<<10), 0o600); err != nil {
			t.Fatal(err)
		}
		r := c.CLI("create", "-f", file)
		if r.Code == 0 || !strings.Contains(r.Stderr, "aliases.yaml:2: anchors and aliases") {
			t.Errorf("exit code %d\n%s", r.Code, r.Stderr)
		}
	})
}
