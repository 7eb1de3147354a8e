package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// leadTraffic calls a service over and over while the node of one of its pods is drained.
func (t *tour) leadTraffic(ctx context.Context) error {
	if err := t.apply(ctx, "traffic.yaml"); err != nil {
		return err
	}
	pods, err := t.running(ctx, "tour-traffic", 2)
	if err != nil {
		return err
	}
	if err := t.says(ctx, names(pods), "describe", "service", "tour-traffic"); err != nil {
		return err
	}
	svc, err := t.cluster.services.GetService(ctx, &schedulingv1.GetServiceRequest{
		Namespace: podNamespace, Name: "tour-traffic",
	}, patient)
	if err != nil {
		return err
	}
	calls := newCalls("http://" + net.JoinHostPort(svc.GetSpec().GetClusterIp(), "8088"))
	if err := within(ctx, placed, "an answer of "+calls.url, func(ctx context.Context) (bool, string, error) {
		err := calls.once(ctx)
		return err == nil, fmt.Sprint(err), nil
	}); err != nil {
		return err
	}
	if err := t.callByName(ctx, svc.GetSpec().GetClusterIp()); err != nil {
		return err
	}
	calling, stop := context.WithCancel(ctx)
	calls.begin(calling)
	node := pods[0].GetSpec().GetNodeName()
	err = t.drainAway(ctx, node, pods[0])
	stop()
	if calls.done.Wait(); err != nil {
		return err
	}
	t.saw("%d calls of %s, %d without an answer", calls.made, calls.url, calls.failed)
	if err := t.check(expect(calls.made > 0 && calls.failed == 0, "each call is answered",
		"%d of %d are not, the last: %v",
		calls.failed, calls.made, calls.last)); err != nil {
		return err
	}
	t.paragraph(
		`A service leads to the pods that are ready. The drained pod stopped being one of them before its process ended, so no call failed.`)
	return t.remove(ctx, "traffic.yaml")
}

// callByName has a pod find the address of the service: by its variable, and by its name where the host lets pods
// resolve names by a file of their own.
func (t *tour) callByName(ctx context.Context, address string) error {
	if _, err := t.running(ctx, "tour-caller", 1); err != nil {
		return err
	}
	if err := t.says(ctx, []string{address}, "exec", "tour-caller", "--", "sh", "-c",
		"echo $TOUR_TRAFFIC_SERVICE_HOST"); err != nil {
		return err
	}
	out, err := t.windlass(ctx, "exec", "tour-caller", "--", "cat", "/etc/resolv.conf")
	if err != nil {
		return err
	}
	if !strings.Contains(out, "svc.cluster.local") {
		t.saw("this host does not let pods have a resolv.conf of their own, so they cannot call services by name")
		return nil
	}
	return t.says(ctx, []string{address}, "exec", "tour-caller", "--", "getent", "hosts", "tour-traffic")
}

// drainAway drains a node until the pods of the service are ready on others.
func (t *tour) drainAway(ctx context.Context, node string, gone *schedulingv1.Pod) error {
	_, err := t.windlass(ctx, "adm", "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force",
		"--timeout=2m")
	if err == nil {
		_, err = t.running(ctx, "tour-traffic", 2)
	}
	if err == nil {
		var out string
		out, err = t.windlass(ctx, "describe", "service", "tour-traffic")
		if err == nil {
			err = t.check(expect(!strings.Contains(out, gone.GetMetadata().GetName()), "no "+gone.GetMetadata().GetName()+
				" among the endpoints", "%s", out))
		}
	}
	_, uncordoned := t.windlass(ctx, "adm", "uncordon", node)
	return errors.Join(err, uncordoned)
}

// calls are calls of an address, each over a connection of its own.
type calls struct {
	url    string
	client *http.Client
	done   sync.WaitGroup

	made, failed int // once done
	last         error
}

func newCalls(url string) *calls {
	return &calls{url: url, client: &http.Client{
		Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true},
	}}
}

func (c *calls) once(ctx context.Context) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := c.client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, expected(resp))
}

func expected(r *http.Response) error {
	if r.StatusCode != http.StatusOK {
		return errors.New(r.Status)
	}
	return nil
}

// begin calls until ctx ends.
func (c *calls) begin(ctx context.Context) {
	c.done.Go(func() {
		for ctx.Err() == nil {
			err := c.once(context.WithoutCancel(ctx))
			if c.made++; err != nil {
				c.failed, c.last = c.failed+1, err
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
}
