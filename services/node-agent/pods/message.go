package pods

import (
	"cmp"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/services/node-agent/logger"
)

// Bounds of termination messages. Source: Kubernetes, pkg/kubelet/container/runtime.go.
const (
	maxTermination = 4 << 10
	maxLogMessage  = 2 << 10
	maxLogLines    = 80
)

// defaultMessagePath is where a container writes why it ends, if it does not say. Source: Kubernetes, core/v1.
const defaultMessagePath = "/dev/termination-log"

func messageFile(dir string) string { return filepath.Join(dir, "termination-log") }

// makeMessage makes the empty file that a container writes to why it ends, and returns how it sees that.
func makeMessage(dir string, c *schedulingv1.Container, user *process.User) (process.Mount, error) {
	file := messageFile(dir)
	err := os.WriteFile(file, nil, 0o600)
	if user != nil {
		err = errors.Join(err, os.Chmod(file, 0o660), os.Chown(file, int(user.UID), os.Getegid()))
	}
	return process.Mount{From: file, To: cmp.Or(c.GetTerminationMessagePath(), defaultMessagePath)}, err
}

// terminationMessage returns the termination message of a start that has ended with an exit code: what the container
// wrote to the file, else the end of its log if it failed and asks for that.
func (s *Pods) terminationMessage(p *pod, name string, c *container, code int) string {
	dir := s.containerDir(p.uid, name)
	if text := tail(messageFile(dir)); text != "" {
		return text
	}
	s.mu.Lock()
	logs := p.life[name].LogsOnError
	s.mu.Unlock()
	if code == 0 || !logs {
		return ""
	}
	log, err := logger.Open(startLogDir(dir, c.Starts), logger.Options{Tail: maxLogLines})
	if err != nil {
		return ""
	}
	defer log.Close()
	var text []byte
	for {
		more, err := log.Next()
		if text = append(text, more...); len(text) > maxLogMessage {
			text = text[len(text)-maxLogMessage:]
		}
		if err != nil || len(more) == 0 {
			text = append(text, log.Rest()...)
			return strings.ToValidUTF8(string(text[max(0, len(text)-maxLogMessage):]), "")
		}
	}
}

// tail returns the end of a termination message.
func tail(file string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Size() == 0 {
		return ""
	} else if _, err := f.Seek(max(0, info.Size()-maxTermination), io.SeekStart); err != nil {
		return ""
	}
	text, _ := io.ReadAll(io.LimitReader(f, maxTermination))
	return strings.ToValidUTF8(string(text), "")
}
