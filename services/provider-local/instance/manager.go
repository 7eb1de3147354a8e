// Package instance runs the instances of the local provider: each is a directory and the process of its node-agent.
// What is on disk is the truth; after a restart every instance resumes its state without a request.
package instance

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/durable"
	"github.com/windlass-dev/windlass/kit/ledger"
	"github.com/windlass-dev/windlass/kit/loopback"
	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/services/provider-local/address"
)

// States of an instance.
const (
	creating = "Creating"
	running  = "Running"
	deleting = "Deleting"
	failed   = "Failed" // its record cannot be read
)

// Errors that callers distinguish.
var (
	ErrNotFound = errors.New("no such instance")
	ErrTaken    = errors.New("an instance of that name exists")
	ErrUsed     = errors.New("the request token's instance was deleted")
	ErrOther    = errors.New("provider id and request token are of different instances")
	ErrUnsure   = errors.New("the record cannot be read")
	ErrFull     = errors.New("no address is free")
	ErrQuota    = errors.New("the quota is used up")
	ErrBusy     = errors.New("the provider could not do it this time")
)

// Instance is what is written down of one instance.
type Instance struct {
	ProviderID   string    `json:"providerID"`
	RequestToken string    `json:"requestToken"`
	MachineName  string    `json:"machineName"`
	MachineUID   string    `json:"machineUID"`
	Address      string    `json:"address"`
	State        string    `json:"state"`
	Created      time.Time `json:"created"`
	Deleted      time.Time `json:"deleted"`         // when its deletion was asked for
	Fence        int64     `json:"fence,omitempty"` // of the call that created it, or of the one that deletes it
	Spec         Spec      `json:"spec"`

	Problem string `json:"-"` // why its record cannot be read; of such an instance only names are known
}

// Request is a request to create an instance.
type Request struct {
	Token   string // that makes the call idempotent
	Machine string // name of the machine
	UID     string // of the machine
	Fence   int64  // of the caller; 0 if it has none
	Spec    Spec
	// Bootstrap is what the agent joins with; Create completes it.
	Bootstrap Bootstrap
}

// Bootstrap is what the instance's agent finds in its directory: where to join, and what the agent cannot find out by
// itself.
type Bootstrap struct {
	Endpoints    []string          `json:"endpoints"`
	Token        string            `json:"token"`
	Role         string            `json:"role"`
	Address      string            `json:"address"`
	NodeName     string            `json:"nodeName"`
	ProviderID   string            `json:"providerID"`
	InstanceType string            `json:"instanceType,omitempty"`
	Region       string            `json:"region,omitempty"`
	Zone         string            `json:"zone,omitempty"`
	Capacity     map[string]string `json:"capacity,omitempty"`
}

const (
	instanceFile  = "instance.json"
	bootstrapFile = "bootstrap.json"
	workers       = 16 // instances that are started or erased at a time
	firstHost     = 10 // addresses below belong to the control plane, where Config.First says nothing else
	lastHost      = 250
)

// Config says where instances live and how they are started.
type Config struct {
	Dir     string     // of the provider
	Cluster string     // name of the cluster, part of the provider ids
	Subnet  netip.Addr // first address of the /24 that instances get addresses from
	First   int        // last number of the lowest address that instances get; 0 means 10
	Network address.Interface
	// PodRange is where each pod gets an address of its own; the zero prefix: pods have their machine's.
	PodRange netip.Prefix
	// ClusterDNS is where one of the agents answers the names of services; the zero address: none does.
	ClusterDNS netip.Addr
	Windlass   string // executable that holds the node-agent
	// PodsDir holds the pods of each machine, by its name; empty: they are in the machine's own directory.
	PodsDir string
	// Runtime is what machines run containers with that do not say it, as the flag --runtime of node-agent has it; empty:
	// processes.
	Runtime string
	// PodUsers are those that pods run as; UsersPerMachine for each last number of an address. None: pods run as this
	// process's user.
	PodUsers process.Users
	Log      *slog.Logger
}

// UsersPerMachine is how many pods with users of their own a machine can have: far above the pods that a machine takes.
const UsersPerMachine = 1024

// Manager owns the instances. Its methods may be called concurrently.
type Manager struct {
	cfg        Config
	supervisor *process.Supervisor
	loop       *controller.Loop // of provider ids; one step of one instance at a time

	mu        sync.Mutex
	instances map[string]*Instance // by provider id; the values are never modified, only replaced
	unsure    map[string]*Instance // by name of the machine: those whose record cannot be read
	ledger    *ledger.Ledger
	failed    map[string]bool // request tokens whose first call failed as asked
	last      int             // last part of the address given out last
	changed   chan struct{}   // closed and replaced at each change
}

// New returns a manager with the instances that are on disk. Nothing runs before Run. A record that cannot be read does
// not prevent the others from being served; it is logged, and List returns it as an instance that has failed.
func New(cfg Config) (*Manager, error) {
	m := &Manager{
		cfg: cfg, supervisor: process.NewSupervisor(filepath.Join(cfg.Dir, "run"), cfg.Log),
		instances: map[string]*Instance{}, unsure: map[string]*Instance{}, failed: map[string]bool{},
		changed: make(chan struct{}),
	}
	m.cfg.First = cmp.Or(cfg.First, firstHost)
	m.last = m.cfg.First - 1
	m.loop = controller.NewLoop("instances", workers, m.settle, cfg.Log)
	m.loop.Begin(m.ids)
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	var problem, err error
	if m.ledger, problem, err = ledger.Open(filepath.Join(cfg.Dir, "ledger.json")); err != nil {
		return nil, err
	}
	if problem != nil {
		cfg.Log.Error("ledger set aside", "error", problem)
	}
	files, err := filepath.Glob(filepath.Join(cfg.Dir, "machines", "*", instanceFile))
	if err != nil {
		return nil, err
	}
	if err := m.sweep(); err != nil {
		return nil, err
	}
	for _, f := range files {
		i := m.load(f)
		if a, err := netip.ParseAddr(i.Address); err == nil && a.Is4() {
			m.last = max(m.last, int(a.As4()[3]))
		}
		if i.Problem != "" {
			cfg.Log.Error("instance cannot be read", "machine", i.MachineName, "error", i.Problem)
			m.unsure[i.MachineName] = i
			continue
		}
		m.instances[i.ProviderID] = i
	}
	return m, nil
}

// sweep removes directories without a record: those of instances that were being erased when an earlier process ended.
// They hold the keys and the data of a machine that is gone.
func (m *Manager) sweep() error {
	dirs, err := filepath.Glob(filepath.Join(m.cfg.Dir, "machines", "*"))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		_, err := os.Lstat(filepath.Join(dir, instanceFile))
		if !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		m.cfg.Log.Info("directory without an instance removed", "dir", dir)
	}
	return nil
}

// load reads the record of an instance. If that cannot be read, it returns what the directory's name and the bootstrap
// file say of the instance, and the problem.
func (m *Manager) load(file string) *Instance {
	dir := filepath.Dir(file)
	i := &Instance{}
	raw, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(raw, i)
	}
	if err == nil && (i.ProviderID == "" || i.MachineName != filepath.Base(dir)) {
		err = fmt.Errorf("it is of machine %q and has provider id %q", i.MachineName, i.ProviderID)
	}
	if err == nil {
		return i
	}
	i = &Instance{
		MachineName: filepath.Base(dir), State: failed, Problem: fmt.Sprintf("%s: %v", file, err),
		ProviderID: fmt.Sprintf("local://%s/%s", m.cfg.Cluster, filepath.Base(dir)),
	}
	var b Bootstrap
	if raw, err := os.ReadFile(filepath.Join(dir, bootstrapFile)); err == nil && json.Unmarshal(raw, &b) == nil {
		i.ProviderID, i.Address = cmp.Or(b.ProviderID, i.ProviderID), b.Address
	}
	return i
}

// Run brings every instance to its desired state until ctx ends. The agents keep running.
func (m *Manager) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return m.supervisor.Run(ctx) })
	select {
	case <-m.supervisor.Active():
		g.Go(func() error { return m.loop.Run(ctx) })
	case <-ctx.Done():
	}
	return g.Wait()
}

// ids returns the provider ids of all instances.
func (m *Manager) ids() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.instances))
}

// settle takes an instance one step on its way from Creating to Running with its agent started, or from Deleting to
// gone, and returns when the next step is due.
func (m *Manager) settle(ctx context.Context, id string) (time.Time, error) {
	i, err := m.Get(id, "")
	if errors.Is(err, ErrNotFound) {
		return time.Time{}, nil
	}
	due := i.due()
	if time.Now().Before(due) {
		return due, nil
	}
	switch i.State {
	case creating:
		next, err := m.advance(id, creating, running)
		if err != nil || next == nil {
			return time.Time{}, err
		}
		if time.Now().Before(next.due()) {
			return next.due(), nil
		}
		return time.Time{}, m.boot(next)
	case running:
		return time.Time{}, m.boot(i)
	case deleting:
		return time.Time{}, m.erase(ctx, i)
	}
	return time.Time{}, nil
}

// due returns when the next step of an instance may be taken.
func (i *Instance) due() time.Time {
	switch i.State {
	case creating:
		return i.Created.Add(i.Spec.Latency.Create)
	case running:
		return i.Created.Add(i.Spec.Latency.Create + i.Spec.Latency.Boot)
	}
	return i.Deleted.Add(i.Spec.Latency.Delete)
}

// advance moves an instance from one state to the next; nil if it is no longer in that state.
func (m *Manager) advance(id, from, to string) (*Instance, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, ok := m.instances[id]
	if !ok || i.State != from {
		return nil, nil
	}
	next := *i
	next.State = to
	return &next, m.store(&next)
}

// store writes an instance to disk and notifies the watchers. The lock is held.
func (m *Manager) store(i *Instance) error {
	raw, err := json.MarshalIndent(i, "", "  ")
	if err != nil {
		return err
	}
	dir := m.dir(i)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := durable.WriteFile(filepath.Join(dir, instanceFile), append(raw, '\n'), 0o600); err != nil {
		return err
	}
	m.instances[i.ProviderID] = i
	m.notify()
	return nil
}

// notify notifies the watchers. The lock is held.
func (m *Manager) notify() {
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *Manager) dir(i *Instance) string { return filepath.Join(m.cfg.Dir, "machines", i.MachineName) }

// boot has the instance's agent run, unless its spec says that it never does or the instance is being deleted.
func (m *Manager) boot(i *Instance) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now, ok := m.instances[i.ProviderID]; !ok || now.State != running || i.Spec.Failure.Boot == "Never" {
		return nil
	}
	dir := m.dir(i)
	args := []string{
		"serve", "node-agent", "--dir", dir, "--host-dir", m.hostDir(), "--images", filepath.Join(m.cfg.Dir, "images"),
	}
	if i.Spec.Failure.Boot == "Crash" {
		args = []string{"serve", "node-agent", "--dir", filepath.Join(dir, "nothing-here")}
	}
	if m.cfg.PodsDir != "" {
		args = append(args, "--pods-dir", filepath.Join(m.cfg.PodsDir, i.MachineName))
	}
	if m.cfg.PodRange.IsValid() {
		args = append(args, "--pod-range", m.cfg.PodRange.String())
	}
	if m.cfg.ClusterDNS.IsValid() {
		args = append(args, "--cluster-dns", m.cfg.ClusterDNS.String())
	}
	if m.cfg.Runtime != "" && i.Spec.Runtime != ProcessRuntime {
		args = append(args, "--runtime", m.cfg.Runtime)
	}
	users, err := m.users(i)
	if err != nil {
		return err
	}
	if users.Count > 0 {
		args = append(args, "--pod-users", users.String())
	}
	if err := m.cfg.Network.Add(i.Address); err != nil {
		return err
	}
	return m.supervisor.Ensure(process.Spec{
		Name: i.MachineName, Path: m.cfg.Windlass, Args: args, Dir: dir, LogFile: filepath.Join(dir, "agent.log"),
	})
}

// Runtimes returns what a provider spec can say that a machine runs containers with.
func (m *Manager) Runtimes() []string {
	if m.cfg.Runtime == "" {
		return []string{ProcessRuntime}
	}
	return []string{ProcessRuntime, criRuntime}
}

// hostDir returns the directory that all agents of this provider share.
func (m *Manager) hostDir() string { return filepath.Join(m.cfg.Dir, "host") }

// users returns the users that the pods of an instance run as: no other instance has its address, nor its users.
func (m *Manager) users(i *Instance) (process.Users, error) {
	if m.cfg.PodUsers.Count == 0 {
		return process.Users{}, nil
	}
	a, err := netip.ParseAddr(i.Address)
	if err != nil {
		return process.Users{}, err
	}
	return m.cfg.PodUsers.Part(uint32(a.As4()[3]), UsersPerMachine)
}

// erasePods ends what is left of an instance's pods and removes their directory, if it is not in the instance's own.
func (m *Manager) erasePods(ctx context.Context, i *Instance) error {
	users, err := m.users(i)
	if err != nil {
		return err
	}
	if err := users.Kill(); err != nil {
		return err
	}
	dir := filepath.Join(m.dir(i), "pods") // the agent's default
	if m.cfg.PodsDir != "" {
		dir = filepath.Join(m.cfg.PodsDir, i.MachineName)
	}
	if err := m.endContainers(ctx, dir); err != nil || m.cfg.PodsDir == "" {
		return err
	}
	return process.RemoveAll(dir)
}

// endContainers ends what a container runtime has of the pods of an instance, by the program of its agent.
func (m *Manager) endContainers(ctx context.Context, podsDir string) error {
	// The agent writes the file before the runtime has anything. Source: services/node-agent/service, runtimeFile.
	if _, err := os.Stat(filepath.Join(podsDir, "runtime")); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	end := exec.CommandContext(ctx, m.cfg.Windlass, "serve", "node-agent", "--end-containers", "--pods-dir", podsDir)
	if out, err := end.CombinedOutput(); err != nil {
		return fmt.Errorf("containers of %s: %w: %s", podsDir, err, bytes.TrimSpace(out))
	}
	return nil
}

// erase ends everything of an instance, as if its power were cut, and forgets it.
func (m *Manager) erase(ctx context.Context, i *Instance) error {
	if err := m.useToken(i); err != nil {
		return err
	}
	// Nothing is lost by killing the agent: it runs nothing that outlives its machine. If it does not run, there is
	// nothing to kill.
	_ = m.supervisor.Signal(i.MachineName, unix.SIGKILL)
	if err := m.supervisor.Stop(ctx, i.MachineName); err != nil {
		return err
	}
	if err := process.KillAll(ctx, filepath.Join(m.dir(i), "run")); err != nil {
		return err
	}
	if err := m.erasePods(ctx, i); err != nil {
		return err
	}
	if err := m.cfg.Network.Remove(i.Address); err != nil {
		return err
	}
	addresses := loopback.Addresses{Dir: filepath.Join(m.hostDir(), loopback.PodsDir), Range: m.cfg.PodRange}
	if err := addresses.Sweep(i.MachineName, func(string, string) bool { return false }); err != nil {
		return err
	}
	// The record goes first: a directory without one is rubbish, a record without its directory would be a riddle.
	if err := os.Remove(filepath.Join(m.dir(i), instanceFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.RemoveAll(m.dir(i)); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.instances, i.ProviderID)
	m.notify()
	return nil
}

// useToken uses up the token of an instance whose deletion began before there was a ledger.
func (m *Manager) useToken(i *Instance) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ledger.Use(i.RequestToken, time.Now())
}

// Create makes an instance, or returns the one that was made for the same request token. ErrUsed says that the token's
// instance was deleted, ledger.ErrFenced that the caller no longer leads.
func (m *Manager) Create(r Request) (*Instance, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.ledger.Admit(r.Fence); err != nil {
		return nil, err
	}
	if m.ledger.Used(r.Token) {
		return nil, fmt.Errorf("%w: %s", ErrUsed, r.Token)
	}
	for _, i := range m.instances {
		if i.RequestToken == r.Token {
			if i.State == deleting {
				return nil, fmt.Errorf("%w: %s", ErrUsed, r.Token)
			}
			return i, nil
		}
		if i.MachineName == r.Machine {
			return nil, fmt.Errorf("%w: %s", ErrTaken, r.Machine)
		}
	}
	id := m.idFor(r)
	if u, ok := m.unsure[r.Machine]; ok {
		if u.ProviderID == id {
			return nil, fmt.Errorf("%w: %s", ErrUnsure, u.Problem)
		}
		return nil, fmt.Errorf("%w: %s", ErrTaken, r.Machine)
	}
	if err := m.fail(r.Token, r.Spec.Failure.Create); err != nil {
		return nil, err
	}
	address, err := m.freeAddress()
	if err != nil {
		return nil, err
	}
	i := &Instance{
		ProviderID: id, RequestToken: r.Token, MachineName: r.Machine, MachineUID: r.UID, Fence: r.Fence,
		Address: address, State: creating, Created: time.Now().UTC(), Spec: r.Spec,
	}
	b := r.Bootstrap
	b.Address, b.NodeName, b.ProviderID = address, r.Machine, i.ProviderID
	b.InstanceType, b.Region, b.Zone, b.Capacity = r.Spec.InstanceType, r.Spec.Region, r.Spec.Zone, r.Spec.Capacity
	if err := m.prepare(i, b); err != nil {
		return nil, err
	}
	if err := m.store(i); err != nil {
		return nil, err
	}
	m.loop.Add(i.ProviderID)
	return i, nil
}

// idFor returns the provider id of a request's instance. It depends on the token, so that no later instance of a
// machine with the same name has it.
func (m *Manager) idFor(r Request) string {
	sum := sha256.Sum256([]byte(r.Token))
	return fmt.Sprintf("local://%s/%s/%s", m.cfg.Cluster, r.Machine, hex.EncodeToString(sum[:6]))
}

// fail returns the error that a spec asks for.
func (m *Manager) fail(token, how string) error {
	switch how {
	case "Quota":
		return ErrQuota
	case "Transient":
		if !m.failed[token] {
			m.failed[token] = true
			return ErrBusy
		}
	}
	return nil
}

// prepare writes what the agent needs before the instance is written down, so that no instance is ever without it.
func (m *Manager) prepare(i *Instance, b Bootstrap) error {
	dir := m.dir(i)
	if err := os.RemoveAll(dir); err != nil { // rubbish of an earlier one
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(b, "", "  ")
	if err != nil {
		return err
	}
	return renameio.WriteFile(filepath.Join(dir, bootstrapFile), append(raw, '\n'), 0o600)
}

// freeAddress goes round, so that an address is not used again right after its instance went: others may still know it.
// The lock is held.
func (m *Manager) freeAddress() (string, error) {
	taken := map[string]bool{}
	for _, known := range []map[string]*Instance{m.instances, m.unsure} {
		for _, i := range known {
			taken[i.Address] = true
		}
	}
	base := m.cfg.Subnet.As4()
	for range lastHost - m.cfg.First + 1 {
		m.last++
		if m.last > lastHost {
			m.last = m.cfg.First
		}
		base[3] = byte(m.last)
		if a := netip.AddrFrom4(base).String(); !taken[a] {
			return a, nil
		}
	}
	return "", ErrFull
}

// Get returns an instance by its provider id, its request token, or both, which must then match. ErrNotFound says that
// there is none, ErrUnsure that it may be one whose record cannot be read.
func (m *Manager) Get(providerID, token string) (*Instance, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, err := m.find(providerID, token)
	if errors.Is(err, ErrOther) {
		return nil, fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	return i, err
}

func (m *Manager) find(providerID, token string) (*Instance, error) {
	if i, ok := m.instances[providerID]; ok {
		if token != "" && i.RequestToken != token {
			return nil, fmt.Errorf("%w: %s has another request token than %s", ErrOther, providerID, token)
		}
		return i, nil
	}
	for _, i := range m.instances {
		if token == "" || i.RequestToken != token {
			continue
		}
		if providerID != "" {
			return nil, fmt.Errorf("%w: request token %s is of %s, not of %s", ErrOther, token, i.ProviderID, providerID)
		}
		return i, nil
	}
	for _, u := range m.unsure {
		if u.isPerhaps(providerID, token) {
			return nil, fmt.Errorf("%w: %s", ErrUnsure, u.Problem)
		}
	}
	return nil, fmt.Errorf("%w: provider id %q, request token %q", ErrNotFound, providerID, token)
}

// isPerhaps reports whether an instance whose record cannot be read may be the one with an id and a token. An id from
// its bootstrap file shows which token it was made for; one of an older version does not.
func (i *Instance) isPerhaps(providerID, token string) bool {
	if providerID != "" {
		return providerID == i.ProviderID
	}
	sum := sha256.Sum256([]byte(token))
	base := path.Base(i.ProviderID)
	return base == i.MachineName || base == hex.EncodeToString(sum[:6])
}

// Delete begins to delete an instance, and uses its request token up. It succeeds if the instance does not exist or is
// being deleted. ErrOther says that id and token are of different instances, ledger.ErrFenced that the caller no longer
// leads.
func (m *Manager) Delete(providerID, token string, fence int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.ledger.Admit(fence); err != nil {
		return err
	}
	i, err := m.find(providerID, token)
	if errors.Is(err, ErrNotFound) {
		return m.ledger.Use(token, time.Now())
	}
	if err != nil {
		return err
	}
	if err := m.ledger.Use(i.RequestToken, time.Now()); err != nil || i.State == deleting {
		return err
	}
	next := *i
	next.State, next.Deleted, next.Fence = deleting, time.Now().UTC(), fence
	if err := m.store(&next); err != nil {
		return err
	}
	m.loop.Add(i.ProviderID)
	return nil
}

// Fence returns the highest fence of all calls.
func (m *Manager) Fence() int64 { return m.ledger.Fence() }

// List returns all instances by provider id, and a channel that is closed when they change.
func (m *Manager) List() ([]*Instance, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := slices.Concat(slices.Collect(maps.Values(m.instances)), slices.Collect(maps.Values(m.unsure)))
	slices.SortFunc(out, func(a, b *Instance) int { return cmp.Compare(a.ProviderID, b.ProviderID) })
	return out, m.changed
}
