package pods

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/kit/registry"
	"github.com/windlass-dev/windlass/services/node-agent/image"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

const (
	// copies is how many containers get their files at a time.
	copies = 2
	// progressEvery is how often the message of a container changes that waits for its image.
	progressEvery = 10 * time.Second
	// reclaimAgain is when the sandbox of an ended pod is removed again that could not be, as by a runtime that restarts.
	reclaimAgain = 5 * time.Second
	// collectEvery is how often unused images are looked for. Source: less than kubelet's 5 min, for it is one statfs.
	collectEvery = time.Minute
)

// errImage means that a container's image could not be had, for which the text has the reason.
type errImage struct{ error }

// Unwrap returns the reason.
func (e errImage) Unwrap() error { return e.error }

// errLeft ends the work for a pod that is to go.
var errLeft = errors.New("the pod is to go")

// job gets a container what it needs of its image, beside the settlers: it may take minutes. The lock of Pods guards
// what changes.
type job struct {
	ref      string
	cancel   context.CancelCauseFunc
	done     chan struct{} // closed when the fields below are set
	progress image.Progress

	image  *image.Cached // nil: the container runs the program that the agent ships
	leased bool          // the library keeps the image for the job
	bytes  int64         // of the disk, of the copy
	err    error
}

func (j *job) ended() bool {
	select {
	case <-j.done:
		return true
	default:
		return false
	}
}

// imageOf returns the image of a container, which is ready for its start. Without an image and without an error the
// container runs a program that the agent ships, or one of the host. It is false while the image is on its
// way.
func (s *Pods) imageOf(p *pod, pod *schedulingv1.Pod, c *container, of *schedulingv1.Container, dir string,
	user *process.User,
) (img *image.Cached, ready bool, err error) {
	if of.GetImage() == "" || s.runtime == nil && s.plays(of) && !s.cfg.Images.Knows(of.GetImage()) {
		return nil, true, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := c.job; j != nil && j.ref != of.GetImage() && j.ended() {
		s.letGo(c)
	}
	switch j := c.job; {
	case j == nil:
		c.job = s.startJob(p, of, s.credentials(pod), dir, user)
	case !j.ended():
	case j.err != nil:
		c.job = nil
		return nil, true, errImage{j.err}
	default:
		return j.image, true, nil
	}
	return nil, false, nil
}

// startJob begins to get an image. The lock is held.
func (s *Pods) startJob(p *pod, of *schedulingv1.Container, creds []registry.Credential, dir string,
	user *process.User,
) *job {
	ctx, cancel := context.WithCancelCause(s.life)
	j := &job{ref: of.GetImage(), cancel: cancel, done: make(chan struct{})}
	r := image.Request{
		Ref: of.GetImage(), Policy: of.GetImagePullPolicy(), Credentials: creds, Near: s.plays(of),
	}
	began := time.Now()
	s.jobs.Go(func() {
		defer cancel(nil)
		img, bytes, err := s.driver().fetch(ctx, r, dir, user, &j.progress)
		s.mu.Lock()
		switch {
		case img == nil:
		case j.progress.String() == "":
			s.event(p, plan.Normal, "Pulled", fmt.Sprintf("Container image %q already present on machine", r.Ref))
		default:
			s.event(p, plan.Normal, "Pulled", fmt.Sprintf("Successfully pulled image %q in %v", r.Ref,
				time.Since(began).Round(time.Millisecond)))
		}
		j.image, j.leased, j.bytes, j.err = img, img != nil, bytes, err
		close(j.done)
		s.mu.Unlock()
		s.settled.Add(p.uid)
	})
	return j
}

// waits notes that a container waits for its image.
func (s *Pods) waits(c *container, of *schedulingv1.Container) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := &plan.Obstacle{
		Reason: plan.ContainerCreating, Message: fmt.Sprintf("Pulling image %q", of.GetImage()),
		Until: time.Now().Add(progressEvery), Tries: 1,
	}
	if far := c.job.progress.String(); far != "" {
		o.Message += ": " + far
	}
	if before := c.obstacle; before != nil { // the back-off goes on if this fails, too
		o.Failed = before.Failed
		if before.Reason == plan.ErrImagePull {
			o.Failed = before.Tries
		}
	}
	c.obstacle = o
}

// awaited has containers whose image is ready, or failed, be started now. The lock is held.
func (c *container) awaited() {
	if c.job != nil && c.job.ended() && c.obstacle != nil && c.obstacle.Reason == plan.ContainerCreating {
		c.obstacle.Until = time.Time{}
	}
}

// letGo ends the use of an image by the job of a container, which has started.
func (s *Pods) letGo(c *container) {
	if c.job == nil {
		return
	}
	if c.job.leased {
		s.cfg.Images.Release(c.job.image)
	}
	c.job = nil
}

// endJobs cancels what is under way for a pod, waits until nothing writes to its directory any more, and ends the use
// of images.
func (s *Pods) endJobs(p *pod) {
	s.mu.Lock()
	var list []*job
	for _, c := range p.record.Containers {
		if c.job != nil {
			list = append(list, c.job)
			c.job.cancel(errLeft)
		}
	}
	s.mu.Unlock()
	for _, j := range list {
		<-j.done
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range p.record.Containers {
		s.letGo(c)
	}
}

// cancelJobs cancels what is under way for a pod that is to go.
func (s *Pods) cancelJobs(p *pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range p.record.Containers {
		if c.job != nil {
			c.job.cancel(errLeft)
		}
	}
}

// credentials returns what the pull secrets of a pod say. One that does not exist, or that cannot be read, is passed
// over, as Kubernetes does.
func (s *Pods) credentials(pod *schedulingv1.Pod) (out []registry.Credential) {
	secrets := s.objectsOf(pod.GetMetadata().GetUid()).Secrets
	for _, r := range pod.GetSpec().GetImagePullSecrets() {
		name := r.GetFields()["name"].GetStringValue()
		secret := secrets[name]
		if secret == nil {
			s.cfg.Log.Warn("pull secret of a pod does not exist", "pod", pod.GetMetadata().GetName(), "secret", name)
			continue
		}
		creds, err := registry.Credentials(secret.GetType(), secret.GetData())
		if err != nil {
			s.cfg.Log.Warn("pull secret of a pod is not valid", "pod", pod.GetMetadata().GetName(), "secret", name,
				"error", err)
		}
		out = append(out, creds...)
	}
	return out
}

// reclaim removes the files of the containers of a pod that has ended, and its volumes in memory; its logs and other
// volumes stay until it is deleted.
func (s *Pods) reclaim(p *pod) {
	if p.reclaimed != nil {
		return
	}
	done := make(chan struct{})
	s.mu.Lock()
	p.reclaimed = done
	var dirs []string
	for name := range p.record.Containers {
		dirs = append(dirs, s.containerDir(p.uid, name))
	}
	s.mu.Unlock()
	s.jobs.Go(func() {
		defer close(done)
		s.endJobs(p)
		if err := process.Unmount(s.dir(p.uid)); err != nil { // no group pays for the memory any more
			s.cfg.Log.Warn("volumes in memory of an ended pod not unmounted", "pod", p.uid, "error", err)
		}
		if s.runtime != nil { // the logs stay
			for _, dir := range dirs {
				name := processName(p.uid, filepath.Base(dir))
				if err := s.runtime.Stop(s.life, name); err != nil && s.life.Err() == nil {
					s.cfg.Log.Warn("ended container not removed", "container", name, "error", err)
				}
			}
			for s.life.Err() == nil {
				err := s.runtime.EndPool(s.life, processPrefix+p.uid)
				if err == nil {
					break
				}
				s.cfg.Log.Warn("sandbox of an ended pod not removed", "pod", p.uid, "error", err)
				select {
				case <-s.life.Done():
				case <-time.After(reclaimAgain):
				}
			}
		}
		for _, dir := range dirs {
			for _, part := range []string{rootOf(dir), partialOf(rootOf(dir))} {
				if err := process.RemoveAll(part); err != nil {
					s.cfg.Log.Warn("files of an ended container not removed", "dir", dir, "error", err)
				}
			}
		}
	})
}

// runs reports whether a container of a pod runs.
func (s *Pods) runs(p *pod) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range p.record.Containers {
		if c.Starts > 0 && c.Exit == nil {
			return true
		}
	}
	return false
}

// collect removes unused images when the disk is full, until ctx ends, and keeps the list of the node's images.
func (s *Pods) collect(ctx context.Context) error {
	tick := time.NewTicker(collectEvery)
	defer tick.Stop()
	for {
		images, changed := s.imageViews()
		s.mu.Lock()
		s.images = plan.NodeImages(images)
		s.mu.Unlock()
		s.removeUnused(ctx, images)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-changed:
		}
	}
}

func (s *Pods) removeUnused(ctx context.Context, images []plan.ImageView) {
	capacity, available, err := s.cfg.Images.Disk()
	if err != nil {
		return // nothing was ever unpacked
	}
	c := plan.Collect(plan.CollectView{Now: time.Now(), Capacity: capacity, Available: available, Images: images})
	for _, i := range c.Remove {
		if err := s.cfg.Images.Remove(i.Digest, i.Used); err != nil {
			s.cfg.Log.WarnContext(ctx, "unused image not removed", "image", i.Digest, "error", err)
			continue
		}
		s.cfg.Log.InfoContext(ctx, "unused image removed", "image", i.Digest)
	}
	if c.Short > 0 {
		s.cfg.Log.DebugContext(ctx, "removing images does not free enough", "bytes", c.Short)
	}
}

// imageViews returns what is known of the machine's images, and a channel that is closed when that changes.
func (s *Pods) imageViews() ([]plan.ImageView, <-chan struct{}) {
	leased := s.cfg.Images.Leased() // before what containers have: a job ends after its container has the image
	s.mu.Lock()
	for _, p := range s.pods {
		for _, c := range p.record.Containers {
			leased[c.ImageID] = true
		}
	}
	s.mu.Unlock()
	images, changed := s.cfg.Images.List()
	var out []plan.ImageView
	for _, i := range images {
		out = append(out, plan.ImageView{
			Digest: i.Digest, Names: slices.Clone(i.Names), Bytes: i.Bytes, Detected: i.Detected, Used: i.Used,
			InUse: leased[i.Digest],
		})
	}
	return out, changed
}

// Images returns the images of the machine, the largest ones. The list is never changed.
func (s *Pods) Images() []*nodev1.ContainerImage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.images
}
