// Package shim is the first process of each container. It starts the container's main process, receives signals without
// ending, and writes down how that ended, for an agent that was not there.
//
// It runs in the initialization of this package, in whatever executable has it, as `EXECUTABLE container-shim COMMAND`:
// before the packages that are costly to initialize, so that a container takes 5 ms and 1 MB more than without it. The
// executable must be linked statically, since it runs in the root directory of the container.
package shim

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"unsafe"
)

// Command is the first argument of the executable; a container's command follows.
const Command = "container-shim"

// exitFile is the descriptor of the open file that it writes to.
const exitFile = 3

// firstFile and lastFile are the descriptors that the container's main process does not get.
const firstFile, lastFile = exitFile, exitFile + 2

// Exit codes for what did not run. Source: POSIX, "Exit Status for Commands"; Kubernetes for StartFailed.
const (
	signalBase  = 128
	StartFailed = 128
	notKnown    = 255
)

func init() {
	if len(os.Args) > 2 && os.Args[1] == Command {
		os.Exit(run(os.Args[2:]))
	}
}

// run runs a command and returns its exit code, 128 and the number of a signal that ended it, or StartFailed.
func run(command []string) int {
	// Its name is the number of a descriptor otherwise. This is the first thread, whose name ps shows.
	name := append([]byte(Command), 0)
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_NAME, uintptr(unsafe.Pointer(&name[0])), 0)
	caught := make(chan os.Signal, 1) // not ignored: the main process would inherit that
	signal.Notify(caught, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM)
	for fd := firstFile; fd <= lastFile; fd++ {
		syscall.CloseOnExec(fd)
	}
	pid, err := syscall.ForkExec(command[0], command, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	if err != nil {
		writeDown(fmt.Sprintf("%d exec %s: %v", StartFailed, command[0], err))
		return StartFailed
	}
	var ws syscall.WaitStatus
	for again := true; again; again = errors.Is(err, syscall.EINTR) {
		_, err = syscall.Wait4(pid, &ws, 0, nil)
	}
	if err != nil { // how it ended is not known: that it succeeded must not be said
		return notKnown
	}
	code := ws.ExitStatus()
	if ws.Signaled() {
		code = signalBase + int(ws.Signal())
	}
	writeDown(fmt.Sprint(code))
	return code
}

// writeDown writes how the command ended: its exit code, and after a space why it did not start. There is nothing to do
// if that fails; the agent sees the exit code of this process if it is there.
func writeDown(text string) { _, _ = syscall.Write(exitFile, []byte(text+"\n")) }
