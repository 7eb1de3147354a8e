package cri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	rotateEvery = 10 * time.Second // source: kubelet's containerLogMonitorInterval

	// Bounds of a log. Source: kubelet's defaults of containerLogMaxSize and containerLogMaxFiles.
	maxLogSize  = 10 << 20
	maxLogFiles = 5
)

// rotateLogs begins another file for each log that is large enough: log.1 is the newest older one, log.4 the oldest.
// The runtime goes on with the renamed file until it is asked to open the log again, which is repeated until the log
// exists.
func (r *Runtime) rotateLogs(ctx context.Context) {
	for id, path := range r.logs() {
		err := rotate(path)
		if _, statErr := os.Lstat(path); err == nil && errors.Is(statErr, fs.ErrNotExist) {
			_, err = call(ctx, r.cri.ReopenContainerLog, &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
		}
		if err != nil && ctx.Err() == nil {
			r.log.WarnContext(ctx, "log not rotated", "log", path, "error", err)
		}
	}
}

// logs returns the paths of the logs of containers that run, by their ID.
func (r *Runtime) logs() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	paths := map[string]string{}
	for _, k := range r.keepers {
		k.mu.Lock()
		if k.spec != nil && k.status.Running {
			paths[k.status.ID] = filepath.Join(k.spec.Sandbox.LogDir, k.spec.LogPath)
		}
		k.mu.Unlock()
	}
	return paths
}

// rotate renames a log that is large enough.
func rotate(path string) error {
	info, err := os.Lstat(path)
	if err != nil || info.Size() <= maxLogSize {
		return notExist(err)
	}
	free := 1
	for ; free < maxLogFiles-1; free++ {
		if _, err := os.Lstat(olderLog(path, free)); errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	for i := free; i > 0; i-- { // the oldest is replaced if no name is free
		if err := os.Rename(olderLog(path, i-1), olderLog(path, i)); err != nil {
			return err
		}
	}
	return nil
}

// olderLog returns the name of a file of a log; 0 is the newest.
func olderLog(path string, n int) string {
	if n == 0 {
		return path
	}
	return fmt.Sprintf("%s.%d", path, n)
}

// notExist returns err, or nil if it means that a file does not exist.
func notExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
