package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// annotationParent of a sandbox names the control group that it and its containers are in: that of its pool.
const annotationParent = "windlass.dev/cgroup-parent"

// errSystemd means that the runtime has systemd make its control groups.
var errSystemd = errors.New("the container runtime uses the systemd cgroup driver")

// inParent has a sandbox, or a container in it, be in a group. An empty path is none.
func inParent(c *runtimeapi.PodSandboxConfig, path string) *runtimeapi.PodSandboxConfig {
	if path != "" {
		c.Annotations = map[string]string{annotationParent: path}
		c.Linux.CgroupParent = path
	}
	return c
}

// CanLimitProcesses returns why PoolLimits.Processes, and the weight of a pool, are not in force; nil if they are. It
// waits for a runtime that does not answer until ctx ends, which is an error, too. A reason that it returned is not
// logged again when a sandbox is made.
func (r *Runtime) CanLimitProcesses(ctx context.Context) error {
	err := r.checkDriver(ctx)
	for pause := (backOff{}); away(err); err = r.checkDriver(ctx) {
		if !sleep(ctx, pause.next()) {
			return ctx.Err()
		}
	}
	if err == nil {
		err = r.parents().CanLimitProcesses()
	}
	if err != nil {
		r.first(err)
	}
	return err
}

// parentFor makes the group of a pool and returns its path; empty, without an error, if there can be none. A runtime
// that does not answer is an error. The caller is in the pool.
func (r *Runtime) parentFor(ctx context.Context, spec Spec) (path string, err error) {
	if err = r.checkDriver(ctx); away(err) {
		return "", err
	}
	if err == nil {
		path, err = r.parents().Make(spec.Pool, spec.PoolLimits)
	}
	if err != nil {
		r.warnOfParent(ctx, err)
	}
	return path, nil
}

// updateParent brings the group of a pool up to date that a sandbox was made in, and returns its path; empty if there
// was none, as with an agent of the version before. The caller is in the pool.
func (r *Runtime) updateParent(ctx context.Context, spec Spec, s *runtimeapi.PodSandbox) string {
	path := s.GetAnnotations()[annotationParent]
	if path == r.parents().Path(spec.Pool) {
		if _, err := r.parents().Make(spec.Pool, spec.PoolLimits); err != nil {
			r.warnOfParent(ctx, err)
		}
	}
	return path
}

// checkUsed logs if the runtime does not put a sandbox into the group that it was given: one that runs elsewhere, or
// sandboxes that are virtual machines.
func (r *Runtime) checkUsed(ctx context.Context, pool, path string) {
	if path != "" && !r.parents().Used(pool) {
		r.warnOfParent(ctx, errors.New("the container runtime does not use the control group that it was given"))
	}
}

func (r *Runtime) warnOfParent(ctx context.Context, err error) {
	if r.first(err) {
		r.log.WarnContext(ctx, "the limit of processes and the weight of a pod are not in force", "error", err)
	}
}

// first reports whether a reason against groups is a new one, whichever pool it is of.
func (r *Runtime) first(reason error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := plain(reason)
	if of := (*fs.PathError)(nil); errors.As(reason, &of) {
		text = of.Err.Error()
	}
	known := r.parentless[text]
	r.parentless[text] = true
	return !known
}

// checkDriver returns why the runtime cannot be given a group that this process makes; nil if it can. It asks each
// time: the configuration of a runtime may change when it is restarted.
func (r *Runtime) checkDriver(ctx context.Context) error {
	out, err := call(ctx, r.cri.RuntimeConfig, &runtimeapi.RuntimeConfigRequest{})
	switch {
	case status.Code(err) == codes.Unimplemented: // containerd 1
		return r.checkConfig(ctx)
	case err != nil:
		return fmt.Errorf("cgroup driver of the container runtime: %w", err)
	case out.GetLinux() == nil:
		return errors.New("the container runtime does not say which cgroup driver it uses")
	case out.GetLinux().GetCgroupDriver() != runtimeapi.CgroupDriver_CGROUPFS:
		return errSystemd
	}
	return nil
}

// runtimeConfig is a part of the configuration that containerd 1 gives.
type runtimeConfig struct {
	SystemdCgroup bool `json:"systemdCgroup"`
	Containerd    *struct {
		DefaultRuntimeName string `json:"defaultRuntimeName"`
		Runtimes           map[string]struct {
			Options struct {
				SystemdCgroup bool
			} `json:"options"`
		} `json:"runtimes"`
	} `json:"containerd"`
}

// checkConfig is checkDriver for a runtime that does not know the call for it. What is not containerd, as an old CRI-O,
// most likely uses systemd.
func (r *Runtime) checkConfig(ctx context.Context) error {
	out, err := call(ctx, r.cri.Status, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return fmt.Errorf("configuration of the container runtime: %w", err)
	}
	var c runtimeConfig
	switch err := json.Unmarshal([]byte(out.GetInfo()["config"]), &c); {
	case err != nil || c.Containerd == nil:
		return errors.New("the container runtime does not say which cgroup driver it uses")
	case c.SystemdCgroup || c.Containerd.Runtimes[c.Containerd.DefaultRuntimeName].Options.SystemdCgroup:
		return errSystemd
	}
	return nil
}
