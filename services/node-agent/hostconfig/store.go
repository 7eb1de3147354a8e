package hostconfig

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"github.com/windlass-dev/windlass/kit/durable"
	"github.com/windlass-dev/windlass/kit/machineconfig"
	"google.golang.org/protobuf/encoding/protojson"
)

// Files below the machine's directory.
const (
	rootDir     = "root"
	currentFile = "config/current.json"
	journalFile = "config/journal.json"
	owedFile    = "config/owed.json"
	keptDir     = "config/kept"
	unitLogDir  = "log/units"
)

// HostDir is the directory, in that of a machine, of what is known of a host whose own files are the machine's: apart
// from that of a machine with a directory for its files, which an agent of an earlier release takes it for.
const HostDir = "host"

// state is what is known of the machine's configuration: enough to go on without the cluster. One without a name is of
// a machine that has none: never had, or had the first one taken back.
type state struct {
	// Name and Config are the machine's configuration; empty for one that was never configured.
	Name   string          `json:"name"`
	Config json.RawMessage `json:"config,omitempty"`
	// Previous is the configuration before that.
	Previous string `json:"previous,omitempty"`
	// Change is the journal that led here.
	Change string `json:"change,omitempty"`
	// EndingBoot is the boot in which the configuration was taken up, if the machine has to be restarted for it.
	EndingBoot string `json:"endingBoot,omitempty"`
	// Systems says that operating systems are in force: agents of earlier releases accepted configurations with one that
	// they ignored, and what they wrote stays without effect until it changes.
	Systems bool `json:"systems,omitempty"`
	// Deployment is the operating system that belongs to the configuration, as its driver names it; empty: the first one.
	Deployment string `json:"deployment,omitempty"`
	// Oneshots is the boot in which the units that run once have run.
	Oneshots string `json:"oneshots,omitempty"`
	// Originals are the entries at the configuration's paths before any configuration was applied.
	Originals []saved `json:"originals,omitempty"`
	// Made are the directories that were made for files, the outermost first.
	Made []string `json:"made,omitempty"`
	// Observed means that the machine had what the configuration says without any change.
	Observed bool `json:"observed,omitempty"`
	// Trial is set until the cluster has received what the machine has; Rejected is the configuration that it had to take
	// back last.
	Trial    *trial    `json:"trial,omitempty"`
	Rejected *rejected `json:"rejected,omitempty"`
	// Failed are the units that could not be started in this boot, and why.
	Failed map[string]string `json:"failed,omitempty"`
}

func (s state) config() (*configv1.MachineConfig, error) {
	if s.Name == "" {
		return nil, nil
	}
	cfg := &configv1.MachineConfig{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(s.Config, cfg); err != nil {
		return nil, fmt.Errorf("%s: %w", currentFile, err)
	}
	return cfg, nil
}

// system returns what is in force of the operating system of a configuration of the machine; cfg may be nil.
func (s state) system(cfg *configv1.MachineConfig) machineconfig.System {
	if !s.Systems {
		return machineconfig.System{}
	}
	return machineconfig.SystemOf(cfg)
}

func (s state) original(path string) (saved, bool) {
	for _, o := range s.Originals {
		if o.Path == path {
			return o, true
		}
	}
	return saved{}, false
}

// journal is written before the disk is changed: a process that finds it either sees its change in the state, or undoes
// it.
type journal struct {
	Change string   `json:"change"`
	Config string   `json:"config"`
	Undo   []saved  `json:"undo"` // former entry of each path, in the order of the changes
	Made   []string `json:"made"` // directories that were not there
}

// marshal returns a configuration as it is stored; nil for none.
func marshal(cfg *configv1.MachineConfig) (json.RawMessage, error) {
	if cfg == nil {
		return nil, nil
	}
	return protojson.Marshal(cfg)
}

// load reads a file; it leaves out as it is if there is none.
func load(dir, name string, out any) (found bool, err error) {
	data, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(data, out); err != nil {
		return false, fmt.Errorf("%s: %w", name, err)
	}
	return true, nil
}

// save replaces a file in one step.
func save(dir, name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, name), data, 0o600)
}
