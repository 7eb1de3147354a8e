package harness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// envArtifacts names a directory to keep the logs of failed tests in.
const envArtifacts = "WINDLASS_ARTIFACTS"

// printState prints what a failed test left: what the cluster says of itself, what runs, and the end of each log. With
// $WINDLASS_ARTIFACTS set, the whole logs are kept there.
func (c *Cluster) printState() {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	for _, args := range [][]string{{"status"}, {"get", "machines", "-o", "wide"}, {"quorum"}} {
		out, err := c.command(ctx, args...).CombinedOutput()
		c.t.Logf("windlass %s (%v):\n%s", strings.Join(args, " "), err, out)
	}
	if list, err := c.Processes(); err == nil {
		c.t.Logf("processes: %v", list)
	}
	keep := os.Getenv(envArtifacts)
	for _, path := range c.logs() {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		rel, _ := filepath.Rel(c.dir, path)
		c.t.Logf("--- the end of %s\n%s", rel, lastLines(string(raw), linesOf(rel)))
		if keep != "" {
			if err := writeBelow(filepath.Join(keep, strings.ReplaceAll(c.t.Name(), "/", "_")), rel, raw); err != nil {
				c.t.Logf("keep %s: %v", rel, err)
			}
		}
	}
}

// logs returns every log and audit log of the cluster.
func (s *site) logs() []string {
	var out []string
	for _, pattern := range []string{
		"logs/*.log", "services/*/audit.log", "services/*/reads.log", "services/*/refusals.log",
		"services/etcd-guardian/bootstrap/*.log",
		"services/provider-local/machines/*/agent.log", "services/provider-local/machines/*/etcd/*.log",
	} {
		found, _ := filepath.Glob(s.Dir(pattern)) // fails for wrong patterns only
		out = append(out, found...)
	}
	return out
}

// linesOf is how much of a log is printed: most of those that decide, little of those that are long.
func linesOf(rel string) int {
	switch {
	case strings.HasSuffix(rel, "audit.log"), strings.Contains(rel, "/etcd/"), strings.Contains(rel, "/bootstrap/"):
		return 5
	case strings.HasPrefix(rel, "logs/"):
		return 30
	}
	return 10
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if len(lines) > n {
		lines = append([]string{fmt.Sprintf("… %d lines before", len(lines)-n)}, lines[len(lines)-n:]...)
	}
	return strings.Join(lines, "\n")
}

func writeBelow(dir, rel string, data []byte) error {
	path := filepath.Join(dir, rel)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}
