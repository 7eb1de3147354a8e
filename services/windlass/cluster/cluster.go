// Package cluster knows where everything of a cluster on one machine is: its directory, its addresses, its
// certificates, and the command line of each of its programs. It starts nothing.
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/kit/durable"
	"github.com/windlass-dev/windlass/kit/process"
)

// DefaultName is the cluster that is meant where none is named.
const DefaultName = "main"

// DefaultLifetime of a certificate of a service or a machine. The supervisor and the agents renew theirs long before.
const DefaultLifetime = 24 * time.Hour

// adminLifetime of the administrator's certificate, which may be on another machine; less where certificates live for
// less than a day.
const adminLifetime = 30 * 24 * time.Hour

const settingsFile = "cluster.json"

// Format of what is in a cluster's directory and in its etcd. It is one more whenever this program cannot bring back
// what an earlier one left. Clusters of the time before it was written down have 0.
const Format = 1

// ErrNone means that there is no cluster of that name.
var ErrNone = errors.New("no such cluster")

// Cluster is one cluster of this machine.
type Cluster struct {
	Settings
	dir string
}

// Settings is what is written down of a cluster.
type Settings struct {
	Format int    `json:"format"`
	Name   string `json:"name"`
	Subnet string `json:"subnet"` // the first three numbers of its addresses: "127.A.B"
	// each program is in a container of its own, found by the program's name
	Containers   bool      `json:"containers,omitempty"`
	Created      time.Time `json:"created"`
	Lifetime     Lifetime  `json:"certificateLifetime"`
	Seeded       bool      `json:"seeded"`                 // the documents that the cluster begins with have been created
	ProgramFlags []string  `json:"programFlags,omitempty"` // "program.flag=value", passed on to the programs
	// Network is the cluster's number in package loopback, which gives a range for the addresses of pods; 0 where there is
	// none.
	Network int `json:"network,omitempty"`
	// PodsDir holds the pods where they run under users of their own, named for their block of users; empty where they do
	// not.
	PodsDir string `json:"podsDirectory,omitempty"`
	// AllowedPaths are absolute paths of this host that configurations may change, beside what every host allows.
	AllowedPaths []string `json:"allowedPaths,omitempty"`
	// Member is this host, where the control plane is on several; nil where it is on one machine.
	Member *Member `json:"host,omitempty"`
}

// InContainers returns the cluster whose programs are in containers of one network, each with its part of dir. Nothing
// is read or written.
func InContainers(dir string, s Settings) *Cluster {
	s.Containers = true
	return &Cluster{Settings: s, dir: dir}
}

// Lifetime is a duration that is written as text.
type Lifetime time.Duration

// MarshalText writes a duration as in "720h0m0s".
func (l Lifetime) MarshalText() ([]byte, error) { return []byte(time.Duration(l).String()), nil }

// UnmarshalText reads a duration as in "720h".
func (l *Lifetime) UnmarshalText(b []byte) error {
	d, err := time.ParseDuration(string(b))
	*l = Lifetime(d)
	return err
}

var namePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$`)

// homeFolder returns the directory of all clusters of this user: $WINDLASS_HOME, or windlass below $XDG_STATE_HOME or
// ~/.local/state.
func homeFolder() (string, error) {
	if dir := os.Getenv("WINDLASS_HOME"); dir != "" {
		return filepath.Abs(dir)
	}
	if dir := os.Getenv("XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, "windlass"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("set WINDLASS_HOME: %w", err)
	}
	return filepath.Join(home, ".local", "state", "windlass"), nil
}

func dirOf(name string) (string, error) {
	if !namePattern.MatchString(name) {
		return "", fmt.Errorf("cluster name %q: must be 1 to 32 lower case letters, digits and hyphens", name)
	}
	home, err := homeFolder()
	return filepath.Join(home, "clusters", name), err
}

// Open returns a cluster that exists, ErrNone if it does not.
func Open(name string) (*Cluster, error) {
	dir, err := dirOf(name)
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(filepath.Join(dir, settingsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cluster %q: %w", name, ErrNone)
	}
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir}
	if err := json.Unmarshal(raw, &c.Settings); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, settingsFile), err)
	}
	return c, nil
}

// Lock keeps other processes of this user from opening, making and changing clusters until unlock is called: two starts
// of one cluster at once must not both make it.
func Lock() (unlock func(), err error) {
	home, err := homeFolder()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(home, "clusters")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return lock(dir)
}

// lock locks a directory for this process.
func lock(dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), d.Close())
	}
	return func() { _ = d.Close() }, nil
}

// Create makes the directory of a new cluster and chooses its addresses.
func Create(ctx context.Context, s Settings) (*Cluster, error) {
	dir, err := dirOf(s.Name)
	if err != nil {
		return nil, err
	}
	if s.Subnet, err = freeSubnet(dir); err != nil {
		return nil, err
	}
	if s.Lifetime == 0 {
		s.Lifetime = Lifetime(DefaultLifetime)
	}
	s.Format = Format
	s.Created = time.Now().UTC().Truncate(time.Second)
	c := &Cluster{Settings: s, dir: dir}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := c.EnsurePodUsers(); err != nil {
		return nil, err
	}
	if err := c.EnsureNetwork(ctx); err != nil {
		return nil, err
	}
	return c, c.Save()
}

// CheckFormat returns an error unless this program can bring the cluster back.
func (c *Cluster) CheckFormat() error {
	switch {
	case c.Format < Format:
		return fmt.Errorf(
			"cluster %q was made by an earlier version of windlass (format %d, this one needs %d) and cannot be upgraded: "+
				"use that version, or remove the cluster and its state with `windlass down --purge --name %s`", c.Name, c.Format,
			Format, c.Name)
	case c.Format > Format:
		return fmt.Errorf(
			"cluster %q was made by a later version of windlass (format %d, this one knows %d): use that version", c.Name,
			c.Format, Format)
	}
	return nil
}

// Save writes the settings down.
func (c *Cluster) Save() error {
	raw, err := json.MarshalIndent(c.Settings, "", "  ")
	if err != nil {
		return err
	}
	name := settingsFile
	if c.Member != nil {
		name = hostFile
	}
	return durable.WriteFile(filepath.Join(c.dir, name), append(raw, '\n'), 0o600)
}

// ChangeHost changes the settings of a host on the disk, as they are there now: other processes change them too. It
// returns all of them.
func ChangeHost(dir string, change func(*Settings)) (Settings, error) {
	unlock, err := lock(dir)
	if err != nil {
		return Settings{}, err
	}
	defer unlock()
	now, err := OpenHost(dir)
	if err != nil {
		return Settings{}, err
	}
	change(&now.Settings)
	return now.Settings, now.Save()
}

// List returns the names of all clusters of this user.
func List() ([]string, error) {
	home, err := homeFolder()
	if err != nil {
		return nil, err
	}
	found, err := filepath.Glob(filepath.Join(home, "clusters", "*", settingsFile))
	names := make([]string, 0, len(found))
	for _, f := range found {
		names = append(names, filepath.Base(filepath.Dir(f)))
	}
	sort.Strings(names)
	return names, err
}

// Others says which clusters there are, for an error about one that is not.
func Others() string {
	names, err := List()
	if err != nil || len(names) == 0 {
		return "start one with `windlass up`"
	}
	const most = 5
	text := strings.Join(names[:min(len(names), most)], ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return "those here are " + text + " (windlass clusters); start another one with `windlass up`"
}

// Dir returns the cluster's directory, or what the path elements name in it.
func (c *Cluster) Dir(elem ...string) string {
	return filepath.Join(append([]string{c.dir}, elem...)...)
}

// Service returns the directory of a service, or what the path elements name in it.
func (c *Cluster) Service(name string, elem ...string) string {
	return c.Dir(append([]string{"services", name}, elem...)...)
}

// Log returns the file that a program logs to.
func (c *Cluster) Log(program string) string { return c.Dir("logs", program+".log") }

// Remove deletes the cluster's directory, that of its pods, and everything in them.
func (c *Cluster) Remove() error {
	if c.PodsIsolated() && c.PodsDir != "" { // first: a block is another cluster's once nothing says that it is this one's
		if err := process.RemoveAll(c.PodsDir); err != nil { // volumes in memory are mounted there
			return err
		}
	}
	return os.RemoveAll(c.dir)
}
