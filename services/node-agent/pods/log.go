package pods

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/services/node-agent/logger"
)

const (
	chunk      = 32 << 10
	followTick = 200 * time.Millisecond
)

// errEnough means that as many bytes were sent as were wanted.
var errEnough = errors.New("enough")

// readLog sends what of a container's log is wanted.
func (s *Pods) readLog(ctx context.Context, uid string, r *schedulingv1.GetPodLogRequest,
	send func([]byte) error,
) error {
	c, name, err := s.find(uid, r.GetContainer())
	if err != nil {
		return err
	}
	log, err := s.openLog(uid, name, c, r)
	if err != nil {
		return err
	}
	defer log.Close()
	left := int64(-1)
	if r.LimitBytes != nil {
		left = int64(r.GetLimitBytes())
	}
	follow := r.GetFollow() && !r.GetPrevious()
	err = copyLog(ctx, log, func(b []byte) error {
		if left >= 0 {
			b = b[:min(int64(len(b)), left)]
			left -= int64(len(b))
		}
		for len(b) > 0 {
			part := b[:min(len(b), chunk)]
			b = b[len(part):]
			if err := send(part); err != nil {
				return err
			}
		}
		if left == 0 {
			return errEnough
		}
		return nil
	}, func() bool { return follow && s.writes(uid, name, c.Starts) })
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// openLog opens the log of the last start of a container, or of the one before.
func (s *Pods) openLog(uid, name string, c container, r *schedulingv1.GetPodLogRequest) (*logger.Reader, error) {
	o := logger.Options{Tail: -1, Times: r.GetTimestamps(), Follow: r.GetFollow() && !r.GetPrevious()}
	if r.TailLines != nil {
		o.Tail = int(r.GetTailLines())
	}
	switch {
	case r.SinceSeconds != nil:
		o.Since = time.Now().Add(-time.Duration(r.GetSinceSeconds()) * time.Second)
	case r.GetSinceTime() != nil:
		o.Since = r.GetSinceTime().AsTime()
	}
	start, missing := c.Starts, fmt.Errorf("container %q has not started yet", name)
	if r.GetPrevious() {
		start, missing = start-1, fmt.Errorf("there is no log of an earlier start of container %q", name)
	}
	dir := s.containerDir(uid, name)
	if start < 1 {
		return nil, missing
	}
	if c.Spec.LogFile != "" && !r.GetPrevious() {
		return nil,
			fmt.Errorf("container %q was started by an earlier version and writes to %s on its node until it restarts",
				name, c.Spec.LogFile)
	}
	log, err := logger.Open(startLogDir(dir, start), o)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, missing
	}
	return log, err
}

// find returns a copy of what is known of a container, by its name or as the only one.
func (s *Pods) find(uid, name string) (container, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pods[uid]
	if p == nil {
		return container{}, "", errors.New("the pod is not on this node any more")
	}
	spec := p.object.GetSpec()
	if name == "" {
		if n := len(spec.GetContainers()); n != 1 {
			return container{}, "", fmt.Errorf("the pod has %d containers: say which one", n)
		}
		name = spec.GetContainers()[0].GetName()
	}
	for _, list := range [][]*schedulingv1.Container{spec.GetContainers(), spec.GetInitContainers()} {
		for _, of := range list {
			if of.GetName() != name {
				continue
			}
			if c := p.record.Containers[name]; c != nil {
				return *c, name, nil
			}
			return container{}, name, nil
		}
	}
	return container{}, "", fmt.Errorf("the pod has no container %q", name)
}

// writes reports whether the start of a container still runs.
func (s *Pods) writes(uid, name string, start int) bool {
	c, _, err := s.find(uid, name)
	return err == nil && c.Starts == start && c.Exit == nil
}

// copyLog sends a log to its end, and what is written to it then as long as more may come. A line that has no end yet
// is sent when nothing follows it for a moment.
func copyLog(ctx context.Context, log *logger.Reader, send func([]byte) error, more func() bool) error {
	tick := time.NewTicker(followTick)
	defer tick.Stop()
	for idle, last := false, false; ; {
		lines, err := log.Next()
		if err != nil {
			return err
		}
		if len(lines) > 0 {
			if err := send(lines); err != nil {
				return err
			}
			idle = false
			continue
		}
		if last {
			return send(log.Rest())
		}
		if last = !more(); last {
			continue // what was written before the end
		}
		if idle {
			if err := send(log.Rest()); err != nil {
				return err
			}
		}
		idle = true
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
