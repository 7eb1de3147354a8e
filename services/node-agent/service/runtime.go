package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/windlass-dev/windlass/kit/durable"
	"github.com/windlass-dev/windlass/services/node-agent/cri"
	"github.com/windlass-dev/windlass/services/node-agent/pods"
)

// runtimeFile says, in the directory of a machine's pods, which container runtime has containers of them.
const runtimeFile = "runtime"

const (
	// runtimePatience is how long the registration of a node waits for the version of its container runtime.
	runtimePatience = 5 * time.Second
	// checkPatience is how long a container runtime has to answer before a host joins.
	checkPatience = 10 * time.Second
	// endPatience bounds each of three waits when all containers of a machine are to end: for the first answer of the
	// container runtime, for the grace periods, and for the rest to be killed and removed.
	endPatience = 30 * time.Second
)

// runtimeEndpoint returns the endpoint of a container runtime as a flag names it; empty if containers are processes.
func runtimeEndpoint(flag string) (string, error) {
	if flag == processRuntime {
		return "", nil
	}
	socket, ok := strings.CutPrefix(flag, "cri=unix://")
	if !ok || !filepath.IsAbs(socket) {
		return "", fmt.Errorf("%q: must be process, or cri=unix:///PATH", flag)
	}
	return "unix://" + socket, nil
}

// CheckRuntime returns an error unless flag names what can run the containers of this host: process, or
// cri=unix:///PATH, the socket of a container runtime that answers and is ready.
func CheckRuntime(ctx context.Context, flag string) error {
	endpoint, err := runtimeEndpoint(flag)
	if err != nil || endpoint == "" {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	r, err := runtimeapi.NewRuntimeServiceClient(conn).Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		return fmt.Errorf("%q: %s", flag, status.Convert(err).Message())
	}
	for _, c := range r.GetStatus().GetConditions() {
		if c.GetType() == runtimeapi.RuntimeReady && !c.GetStatus() {
			return fmt.Errorf("%q: the runtime is not ready: %s %s", flag, c.GetReason(), c.GetMessage())
		}
	}
	return nil
}

// noteRuntime writes down which container runtime is about to have containers, for what ends the machine; an empty
// endpoint is none. It is an error if another one may have containers: they would run beside those that take their
// place. EndContainers ends that.
func noteRuntime(podsDir, endpoint string) error {
	file := filepath.Join(podsDir, runtimeFile)
	known, err := notedRuntime(podsDir)
	switch {
	case err != nil || known == "" && endpoint == "":
		return err
	case known != "" && known != endpoint:
		return fmt.Errorf("container runtime %s may have containers of %s: name it, or end them with --end-containers",
			known, podsDir)
	}
	if err := os.MkdirAll(podsDir, 0o711); err != nil {
		return err
	}
	return durable.WriteFile(file, []byte(endpoint+"\n"), 0o600)
}

// notedRuntime returns the endpoint of the container runtime that may have containers; empty if none has.
func notedRuntime(podsDir string) (string, error) {
	raw, err := os.ReadFile(filepath.Join(podsDir, runtimeFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(raw)), err
}

// EndContainers ends and removes what container runtimes have of the pods of machines, and calls report with the name
// of each container, one call at a time. podsDirs are the directories of the machines' pods: absolute paths, as their
// agents have them, which must have ended. Containers get their grace period, at most endPatience. A runtime that does
// not answer is an error; the containers of other machines are ended all the same.
func EndContainers(ctx context.Context, podsDirs []string, log *slog.Logger, report func(name string)) error {
	var mu sync.Mutex
	locked := func(name string) {
		mu.Lock()
		defer mu.Unlock()
		report(name)
	}
	errs := make([]error, len(podsDirs))
	var group sync.WaitGroup
	for n, dir := range podsDirs {
		group.Go(func() {
			if errs[n] = endContainers(ctx, dir, log, locked); errs[n] != nil {
				errs[n] = fmt.Errorf("containers of %s: %w", dir, errs[n])
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

func endContainers(ctx context.Context, podsDir string, log *slog.Logger, report func(name string)) error {
	endpoint, err := notedRuntime(podsDir)
	if err != nil || endpoint == "" {
		return err
	}
	if _, err := os.Stat(strings.TrimPrefix(endpoint, "unix://")); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the container runtime does not run: %w", err)
	}
	r, err := cri.New(cri.Config{Endpoint: endpoint, Owner: podsDir, Log: log})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	defer func() {
		cancel()
		<-ended
	}()
	timer := time.NewTimer(endPatience)
	defer timer.Stop()
	select {
	case <-r.Active():
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		if err := r.Condition(); err != nil {
			return err
		}
	}
	names, err := r.Recorded(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !strings.HasSuffix(name, ".") { // else it is a sandbox without containers
			report(name)
		}
	}
	ctx, stop := context.WithTimeout(ctx, 2*endPatience)
	defer stop()
	if err := r.EndAll(ctx, names, endPatience); err != nil {
		return err
	}
	if err := pods.ReleaseMounts(podsDir); err != nil {
		return err
	}
	return os.Remove(filepath.Join(podsDir, runtimeFile))
}
