package main

import (
	"archive/tar"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
)

// job is the work that one task asks for. A task can be claimed twice (its first owner may have died), so the work must
// be idempotent.
type job struct {
	settings
	task *hookv1.HookTask
}

// do does the work and returns a message about it.
func (j job) do(ctx context.Context) (string, error) {
	timer := time.NewTimer(j.work)
	defer timer.Stop()
	do := j.backup
	if j.command != "" {
		do = j.shell
	}
	text, err := do(ctx)
	if err != nil {
		return "", err
	}
	select {
	case <-timer.C:
		return text, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// shell runs the command, whose environment describes the machine and the hook.
func (j job) shell(ctx context.Context) (string, error) {
	s := j.task.GetSpec()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", j.command)
	cmd.Env = append(os.Environ(),
		"HOOK_TASK="+j.task.GetMetadata().GetName(), "HOOK_NAME="+s.GetHookName(), "HOOK_POINT="+s.GetPoint(),
		"HOOK_OWNER="+s.GetOwner(),
		"HOOK_MACHINE="+s.GetMachineRef().GetName(), "HOOK_NODE="+s.GetNodeName(), "HOOK_ADDRESSES="+
			strings.Join(s.GetAddresses(), " "))
	// What the command started ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, text)
	}
	if text == "" {
		text = "the command ended well"
	}
	lines := strings.Split(text, "\n")
	return short(lines[len(lines)-1]), nil
}

// backup writes an archive with a note about the machine. It writes a temporary file and renames it, so that an archive
// is complete or does not exist.
func (j job) backup(context.Context) (string, error) {
	if err := os.MkdirAll(j.out, 0o755); err != nil {
		return "", err
	}
	s := j.task.GetSpec()
	path := filepath.Join(j.out, fmt.Sprintf("%s-%s.tar", s.GetMachineRef().GetName(),
		strings.ReplaceAll(s.GetHookName(), "/", "-")))
	file, err := os.CreateTemp(j.out, ".backup-*")
	if err != nil {
		return "", err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	note := fmt.Sprintf("machine %s (uid %s)\nnode %s\naddresses %s\nhook %s of %s\nwritten %s\n",
		s.GetMachineRef().GetName(), s.GetMachineRef().GetUid(),
		s.GetNodeName(), strings.Join(s.GetAddresses(), " "), s.GetHookName(), s.GetOwner(),
		time.Now().UTC().Format(time.RFC3339))
	archive := tar.NewWriter(file)
	if err := archive.WriteHeader(&tar.Header{
		Name: "note.txt", Mode: 0o644, Size: int64(len(note)),
		ModTime: time.Now(),
	}); err != nil {
		return "", err
	}
	if _, err := archive.Write([]byte(note)); err != nil {
		return "", err
	}
	if err := archive.Close(); err != nil {
		return "", err
	}
	if err := file.Sync(); err != nil {
		return "", err
	}
	return "wrote " + path, os.Rename(file.Name(), path)
}
