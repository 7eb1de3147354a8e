package attacks

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/e2e/harness"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

// available returns what the cluster operators say of a condition Available, by name, with the reason.
func available(ctx context.Context, c *harness.Cluster) (map[string]string, error) {
	list, err := updatev1.NewClusterOperatorServiceClient(c.Conn()).ListClusterOperators(ctx,
		&updatev1.ListClusterOperatorsRequest{})
	out := map[string]string{}
	for _, o := range list.GetItems() {
		for _, condition := range o.GetStatus().GetConditions() {
			if condition.GetType() == "Available" {
				out[o.GetMetadata().GetName()] = condition.GetStatus() + " " + condition.GetReason()
			}
		}
	}
	return out, err
}

// TestADeadOrHungServiceIsNoticed stops the scheduler by a signal and kills two services that nothing starts again,
// since the supervisor is stopped as well. Status sees it at once, the cluster operators after a while, and both are as
// before when everything runs again.
func TestADeadOrHungServiceIsNoticed(t *testing.T) {
	c := shared.Cluster(t)
	c.MustCLI("status")
	t.Cleanup(func() {
		for _, name := range []string{harness.Supervisor, "scheduler"} {
			if err := c.Continue(name); err != nil {
				t.Error(err)
			}
		}
		all := func(ctx context.Context) (bool, string, error) {
			is, err := available(ctx, c)
			for _, name := range []string{"scheduler", "machine-api", "etcd"} {
				if !strings.HasPrefix(is[name], "True") {
					return false, fmt.Sprint(is), err
				}
			}
			return err == nil, "", err
		}
		c.Wait(time.Minute, "the services' own reports", all)
		c.Wait(time.Minute, "a status that is ready again", func(context.Context) (bool, string, error) {
			r := c.CLI("status")
			return r.Code == 0, r.Stdout, nil
		})
	})
	for _, name := range []string{harness.Supervisor, "scheduler"} {
		if err := c.Pause(name); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"machine-api", "etcd-guardian"} {
		if err := c.Kill(name); err != nil {
			t.Fatal(err)
		}
	}

	// Status waits for all answers together and says how long: 1.5 s, so that the command takes less than two. On a busy
	// host a process that was killed ends a little later, and one that is well may answer later than that.
	for _, flags := range [][]string{nil, {"--server", c.Gateway()}} {
		c.Wait(time.Minute, fmt.Sprintf("windlass %v status to say what is wrong", flags),
			func(context.Context) (bool, string, error) {
				begin := time.Now()
				r := c.CLI(append(flags, "status")...)
				for _, want := range []string{
					"State:       NotReady", "* scheduler did not answer within 1.5s", "* machine-api is not running",
					"* etcd-guardian is not running",
					"Quorum:      unknown", "Machines:    unknown",
				} {
					if !strings.Contains(r.Stdout, want) {
						return false, fmt.Sprintf("no %q in\n%s", want, r.Stdout), nil
					}
				}
				t.Logf("windlass %v status: %v", flags, time.Since(begin))
				return r.Code == 3, fmt.Sprintf("exit code %d, want 3", r.Code), nil
			})
	}
	if r := c.CLI("get", "machines"); r.Code != 1 || !strings.Contains(r.Stderr, "machine-api cannot be reached") ||
		!strings.Contains(r.Stderr, "windlass status") {
		t.Errorf("get machines: exit code %d\n%s", r.Code, r.Stderr)
	}

	c.Wait(time.Minute, "the operators of silent services to be unknown, and no other",
		func(ctx context.Context) (bool, string, error) {
			is, err := available(ctx, c)
			unknown := 0
			for name, text := range is {
				switch {
				case text == "Unknown ServiceSilent" && (name == "scheduler" || name == "machine-api" || name == "etcd"):
					unknown++
				case text != "True AsExpected":
					return false, fmt.Sprint(is), err
				}
			}
			return unknown == 3, fmt.Sprint(is), err
		})
	if text := c.MustCLI("get", "clusteroperators"); !strings.Contains(text, "scheduler has not answered since ") {
		t.Errorf("get clusteroperators does not say why:\n%s", text)
	}
}
