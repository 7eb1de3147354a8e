package process

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/kit/cgroup"
)

// The environment of a supervised process identifies it, for a supervisor that has no record of it. Its children
// inherit these variables, but do not lead its session; a supervisor sets other values for its own children.
const (
	markerName = "WINDLASS_PROCESS"      // <run directory>/<name>
	digestName = "WINDLASS_PROCESS_SPEC" // digest of its Spec
	idName     = "WINDLASS_PROCESS_ID"   // random ID of this start
	besideName = "WINDLASS_COMMAND_ID"   // random ID of a command beside it
)

const ticksPerSecond = 100 // USER_HZ, the same on every architecture that Go runs on

func markers(dir string, spec Spec, mark string) []string {
	return []string{
		markerName + "=" + filepath.Join(dir, spec.Name), digestName + "=" + spec.digest(),
		idName + "=" + mark,
	}
}

// strays are running processes, by the name in their marker.
type strays map[string]*record

// take returns the stray of name and removes it.
func (s strays) take(name string) *record {
	r := s[name]
	delete(s, name)
	return r
}

// findStrays returns every process with a marker of dir. It includes only session leaders: other processes inherited
// the marker. Of two processes with one name it returns the older.
func findStrays(dir string) (strays, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	found := strays{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		name, r, err := readMarker(dir, pid)
		if err != nil || name == "" {
			continue // it has ended, or belongs to another user: neither is ours
		}
		if old := found[name]; old == nil || r.StartTime < old.StartTime {
			found[name] = &r
		}
	}
	return found, nil
}

// readMarker returns an empty name if the process does not have a marker of dir.
func readMarker(dir string, pid int) (name string, r record, err error) {
	environ, err := environOf(pid)
	if err != nil || !bytes.Contains(environ, []byte(markerName+"="+dir)) {
		return "", record{}, err
	}
	vars := map[string]string{}
	for kv := range strings.SplitSeq(string(environ), "\x00") {
		key, value, _ := strings.Cut(kv, "=")
		vars[key] = value
	}
	st, err := readStat(pid)
	if err != nil || filepath.Dir(vars[markerName]) != dir || st.session != pid {
		return "", record{}, err
	}
	r, err = here()
	r.PID, r.StartTime, r.Digest, r.Mark = pid, st.startTime, vars[digestName], vars[idName]
	if uid := userOf(pid); uid != uint32(os.Geteuid()) {
		r.UID = uid
	}
	if group, ok := cgroup.Of(pid, r.Mark); ok {
		r.Cgroup, r.Controllers = group.Path, group.Controllers
	}
	return filepath.Base(vars[markerName]), r, err
}

// execLimit is how long a process that replaces its program is waited for: that takes microseconds, or as long as a
// busy host keeps it from running.
const execLimit = time.Second

// environOf returns the environment of a process. While a process replaces its program, the kernel shows an empty one:
// this waits until it is over. A process that does so again and again is seen by looking again.
func environOf(pid int) ([]byte, error) {
	for until := time.Now().Add(execLimit); ; time.Sleep(time.Millisecond / 2) {
		environ, err := readEnviron(pid)
		if err != nil || len(environ) > 0 || !hasEnviron(pid) || time.Now().After(until) {
			return environ, err
		}
	}
}

// readEnviron returns the environment of the program that a process has now. It is read at once: a process that
// replaces its program between two reads shows no rest.
func readEnviron(pid int) ([]byte, error) {
	for size := 32 << 10; ; size *= 4 {
		f, err := os.Open(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil {
			return nil, err
		}
		data := make([]byte, size)
		n, err := f.Read(data)
		f.Close()
		switch {
		case errors.Is(err, io.EOF):
			return nil, nil
		case err != nil || n < size:
			return data[:n], err
		}
	}
}

// hasEnviron reports whether a process has an environment, or is about to have one, with another program. Threads of
// the kernel have none, nor have processes that have ended. The end of the code is the last of the fields below that
// the kernel sets for a new program: before it, the environment may have a place already, but no length. Source:
// proc(5), fields 9 (flags), 27 (endcode), 50 (env_start) and 51 (env_end) of stat, and load_elf_binary of Linux.
func hasEnviron(pid int) bool {
	const flags, endCode, envStart, envEnd, kernelThread = 6, 24, 47, 48, 0x00200000
	fields, err := statFields(pid)
	if err != nil || len(fields) <= envEnd || fields[0] == "Z" || fields[0] == "X" {
		return false
	}
	if f, err := strconv.ParseUint(fields[flags], 10, 64); err != nil || f&kernelThread != 0 {
		return false
	}
	return fields[endCode] == "0" || fields[envStart] != fields[envEnd]
}

// here returns a record with the boot and the pid namespace of this process.
func here() (record, error) {
	boot, err := bootID()
	if err != nil {
		return record{}, err
	}
	ns, err := pidNamespace()
	return record{Boot: boot, Namespace: ns}, err
}

func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("boot id: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// stat is the part of /proc/<pid>/stat that is used here.
type stat struct {
	state     string
	parent    int
	session   int
	startTime uint64
}

// readStat returns ErrNoProcess for a pid that is free or belongs to a zombie.
func readStat(pid int) (stat, error) {
	fields, err := statFields(pid)
	if err != nil {
		return stat{}, err
	}
	return parseStat(fields)
}

// statFields returns the fields of a process from its state on. The command before it may contain anything, so they
// follow the last parenthesis.
func statFields(pid int) ([]string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil, ErrNoProcess
	}
	line := string(data)
	return strings.Fields(line[strings.LastIndexByte(line, ')')+1:]), err
}

func parseStat(fields []string) (stat, error) {
	// the field numbers of proc(5), minus 3: they count from 1, and pid and command are skipped
	const state, parent, session, threads, startTime = 0, 1, 3, 17, 19
	if len(fields) <= startTime {
		return stat{}, fmt.Errorf("stat of a process: %d fields", len(fields)+2)
	}
	var (
		st  = stat{state: fields[state]}
		err error
	)
	if st.parent, err = strconv.Atoi(fields[parent]); err != nil {
		return stat{}, fmt.Errorf("stat of a process: parent: %w", err)
	}
	if st.session, err = strconv.Atoi(fields[session]); err != nil {
		return stat{}, fmt.Errorf("stat of a process: session: %w", err)
	}
	if st.startTime, err = strconv.ParseUint(fields[startTime], 10, 64); err != nil {
		return stat{}, fmt.Errorf("stat of a process: start time: %w", err)
	}
	// with more threads, only the first thread has ended
	if s := fields[state]; (s == "Z" || s == "X") && fields[threads] <= "1" {
		return st, ErrNoProcess
	}
	return st, nil
}

// started converts ticks after boot to the wall clock.
func (s stat) started() (time.Time, error) {
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return time.Time{}, fmt.Errorf("time since boot: %w", err)
	}
	age := time.Duration(up.Nano()) - time.Duration(s.startTime)*(time.Second/ticksPerSecond)
	return time.Now().Add(-age), nil
}
