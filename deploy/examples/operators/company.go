package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	callLimit  = 10 * time.Second       // for one call
	firstPause = 100 * time.Millisecond // between attempts; it doubles
	mostPause  = 3 * time.Second
)

// company is the set of all operators of this program.
type company struct {
	settings
	versions  updatev1.ClusterVersionServiceClient
	operators []*operator

	out   sync.Mutex
	print io.Writer
}

func newCompany(s settings, versions updatev1.ClusterVersionServiceClient,
	reports updatev1.ClusterOperatorServiceClient, stdout io.Writer,
) *company {
	c := &company{settings: s, versions: versions, print: stdout}
	for _, name := range s.names {
		c.operators = append(c.operators, &operator{
			name: name, work: s.work, reports: reports, say: c.say,
			desired: make(chan string, 1),
		})
	}
	return c
}

// say prints a line with the time.
func (c *company) say(format string, args ...any) {
	c.out.Lock()
	defer c.out.Unlock()
	fmt.Fprintf(c.print, "%s  %s\n", time.Now().Format("15:04:05.000"), fmt.Sprintf(format, args...))
}

// run follows the cluster's version until ctx ends, and opens a new watch whenever one breaks.
func (c *company) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	for _, o := range c.operators {
		group.Go(func() { o.run(ctx) })
	}
	c.say("simulating %v at %s", c.names, c.target.server)
	for wait := firstPause; ; wait = min(2*wait, mostPause) {
		received, err := c.follow(ctx)
		if ctx.Err() != nil {
			return nil
		}
		switch status.Code(err) {
		case codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument:
			return fmt.Errorf("watch the version of the cluster: %w", err) // a retry would not help
		}
		if received {
			wait = firstPause
		}
		c.say("watch broke: %s; again in %v", status.Convert(err).Message(), wait)
		pause(ctx, wait)
	}
}

// follow passes the changes of one watch to the operators; received reports whether there were any.
func (c *company) follow(ctx context.Context) (received bool, err error) {
	stream, err := c.versions.WatchClusterVersions(ctx, &updatev1.WatchClusterVersionsRequest{})
	if err != nil {
		return false, err
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return received, err
		}
		received = true
		for _, e := range m.GetEvents() {
			for _, o := range c.operators {
				if version, ok := turn(e.GetObject(), o.name); ok {
					o.request(version)
				}
			}
		}
	}
}

// turn returns the version that an operator must reach once the update has come to it: the update waits for the
// operator, or the release is completely applied. An operator that updates earlier breaks the order of the release.
func turn(cv *updatev1.ClusterVersion, name string) (version string, ok bool) {
	st := cv.GetStatus()
	version = st.GetDesired().GetVersion()
	for _, w := range st.GetProgress().GetWaits() {
		if w.GetObject().GetKind() == "ClusterOperator" && w.GetObject().GetName() == name {
			return version, true
		}
	}
	h := st.GetHistory()
	return version, len(h) > 0 && h[0].GetState() == "Completed" && h[0].GetVersion() == version
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
