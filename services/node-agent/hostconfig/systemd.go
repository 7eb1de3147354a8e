package hostconfig

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	systemddbus "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

const (
	// unitFiles is where systemd reads the units of administrators. Source: systemd.unit(5).
	unitFiles = "/etc/systemd/system"
	// unitsFile holds which units systemd may run for the configuration, and from which text.
	unitsFile = "config/units.json"
	// askLimit bounds one question to systemd, and what one job takes beside what its unit may.
	askLimit = 10 * time.Second
	// endLimit is how long a unit may take to end before systemd kills it, unless it says otherwise, and once more for
	// what is killed. Source: DefaultTimeoutStopSec of systemd-system.conf(5).
	endLimit = 2 * 90 * time.Second
	// loadLimit bounds the reading of all units. Source: DefaultTimeoutStartSec.
	loadLimit = 90 * time.Second
	// jobLook is how often it is checked that the end of a job can still be received.
	jobLook = time.Second
	// replace has a job replace one of the same unit that is queued. Source: org.freedesktop.systemd1(5).
	replace = "replace"
	// noUnit is the error for a unit that systemd does not know.
	noUnit = "org.freedesktop.systemd1.NoSuchUnit"
)

// systemd has the units of a host run by its systemd, over D-Bus: their files are below /etc/systemd/system, and
// enabled by links there, so a boot starts them before the agent.
type systemd struct {
	dir string // of the machine

	mu   sync.Mutex
	conn *systemddbus.Conn

	restarts map[string]uint64 // by systemd, as idle saw them last
}

func textSum(u unit) string {
	sum := sha256.Sum256([]byte(u.text))
	return hex.EncodeToString(sum[:8])
}

// record returns the text of each unit that systemd may run.
func (s *systemd) record() (map[string]string, error) {
	out := map[string]string{}
	_, err := load(s.dir, unitsFile, &out)
	return out, err
}

func (s *systemd) change(edit func(map[string]string)) error {
	is, err := s.record()
	if err != nil {
		return err
	}
	was := maps.Clone(is)
	if edit(is); maps.Equal(was, is) {
		return nil
	}
	return save(s.dir, unitsFile, is)
}

func (s *systemd) expect(is []unit) error {
	return s.change(func(m map[string]string) {
		for _, u := range is {
			m[u.name] = textSum(u)
		}
	})
}

func (s *systemd) strays(is []unit, _ bool) ([]string, error) {
	list, err := s.record()
	if err != nil {
		return nil, err
	}
	for _, u := range is {
		if list[u.name] == textSum(u) {
			delete(list, u.name)
		}
	}
	return slices.Sorted(maps.Keys(list)), nil
}

func (s *systemd) end(ctx context.Context, stray string) error {
	return s.stop(ctx, unit{name: stray})
}

// bus returns a connection to systemd.
func (s *systemd) bus(ctx context.Context) (*systemddbus.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil && s.conn.Connected() {
		return s.conn, nil
	}
	if s.conn != nil {
		s.conn.Close()
	}
	type answer struct {
		conn *systemddbus.Conn
		err  error
	}
	dialled := make(chan answer, 1)
	go func() {
		conn, err := systemddbus.NewWithContext(context.WithoutCancel(ctx)) // it is used after the call
		dialled <- answer{conn, err}
	}()
	s.conn = nil
	select {
	case a := <-dialled:
		if a.err != nil {
			return nil, fmt.Errorf("systemd cannot be reached: %w", a.err)
		}
		s.conn = a.conn
		return s.conn, nil
	case <-ctx.Done():
	case <-time.After(askLimit):
	}
	go func() { // it may come later
		if a := <-dialled; a.err == nil {
			a.conn.Close()
		}
	}()
	return nil, cmp.Or(ctx.Err(), fmt.Errorf("systemd cannot be reached: no answer within %v", askLimit))
}

// ask has systemd begin a job of a unit, whose result comes later.
type ask func(c *systemddbus.Conn, ctx context.Context, unit, mode string, result chan<- string) (int, error)

// job has systemd do something to a unit, and waits for its end, for a time at most.
func (s *systemd) job(ctx context.Context, u unit, limit time.Duration, begin ask) error {
	conn, err := s.bus(ctx)
	if err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, limit+askLimit)
	defer cancel()
	ended := make(chan string, 1)
	if _, err := begin(conn, within, u.name, replace, ended); err != nil {
		return err
	}
	tick := time.NewTicker(jobLook)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-within.Done():
			return fmt.Errorf("systemd has not ended its job within %v; see systemctl list-jobs", limit+askLimit)
		case <-tick.C:
			if !conn.Connected() {
				return errors.New("the connection to systemd ended before its job did")
			}
		case result := <-ended:
			if result == "done" || result == "skipped" {
				return nil
			}
			why := result
			if st, known := s.look(ctx, u); known && st.failed != "" {
				why += ": " + st.failed
			}
			return fmt.Errorf("%s; see journalctl --unit=%s", why, u.name)
		}
	}
}

func (s *systemd) load(ctx context.Context, fresh []unit) error {
	conn, err := s.bus(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, loadLimit)
	defer cancel()
	if err := conn.ReloadContext(ctx); err != nil {
		return fmt.Errorf("systemd does not read its units: %w", err)
	}
	for _, u := range fresh {
		p, err := conn.GetUnitPropertiesContext(ctx, u.name)
		if err != nil {
			return fmt.Errorf("unit %q: %w", u.name, err)
		}
		state, _ := p["LoadState"].(string)
		from, _ := p["FragmentPath"].(string)
		switch why, _ := p["LoadError"].([]any); {
		case state != "loaded":
			return fmt.Errorf("unit %q: systemd cannot use it: %s %v", u.name, state, why)
		case from != path.Join(unitFiles, u.name):
			return fmt.Errorf("unit %q: systemd reads it from %s", u.name, from)
		}
	}
	return nil
}

func (s *systemd) start(ctx context.Context, u unit, _ *os.Root, _ bool) error {
	if err := s.expect([]unit{u}); err != nil {
		return err
	}
	conn, err := s.bus(ctx)
	if err != nil {
		return err
	}
	_ = conn.ResetFailedUnitContext(ctx, u.name) // it may have been started too often; it need not be known
	limit := u.limit * time.Duration(1+len(u.pre)+len(u.start))
	return s.job(ctx, u, limit, (*systemddbus.Conn).StartUnitContext)
}

// resume starts a unit that has not run in this boot. One that has ended by itself is not started again: systemd does
// that where it is to be.
func (s *systemd) resume(ctx context.Context, u unit, root *os.Root, boot bool) error {
	p, err := s.properties(ctx, u.name)
	if err != nil {
		return err
	}
	list, err := s.record()
	if err != nil {
		return err
	}
	sum, known := list[u.name]
	ended := known && sum != textSum(u) // as a stray: what has run in this boot was something else
	switch ran := p.number("InactiveExitTimestampMonotonic") > 0; {
	case ended:
		return s.start(ctx, u, root, boot)
	case p.active():
		return s.expect([]unit{u})
	case !ran && (u.long() || boot):
		return s.start(ctx, u, root, boot)
	case ran && p.word("Result") != "success":
		return errors.New(cmp.Or(p.failure(u), "it failed: "+p.word("Result")))
	}
	return s.expect([]unit{u})
}

func (s *systemd) stop(ctx context.Context, u unit) error {
	err := s.job(ctx, u, endLimit, (*systemddbus.Conn).StopUnitContext)
	var known dbus.Error
	if err != nil && !(errors.As(err, &known) && known.Name == noUnit) {
		return err
	}
	return s.change(func(m map[string]string) { // until it is started, or the change is recorded, it is a stray
		if _, known := m[u.name]; known {
			m[u.name] = ""
		}
	})
}

func (s *systemd) settled(is []unit) error {
	return s.change(func(m map[string]string) {
		maps.DeleteFunc(m, func(name, _ string) bool {
			return !slices.ContainsFunc(is, func(u unit) bool { return u.name == name })
		})
	})
}

func (s *systemd) reload(ctx context.Context, u unit, _ *os.Root) error {
	return s.job(ctx, u, reloadLimit, (*systemddbus.Conn).ReloadUnitContext)
}

func (s *systemd) look(ctx context.Context, u unit) (unitState, bool) {
	p, err := s.properties(ctx, u.name)
	if err != nil || p.word("LoadState") != "loaded" {
		return unitState{}, false
	}
	out := unitState{
		running: p.word("ActiveState") == "active" || p.word("ActiveState") == "reloading",
		pid:     int(p.number("MainPID")), since: p.at("ActiveEnterTimestamp"), failedAt: p.at("ExecMainExitTimestamp"),
	}
	out.final = p.word("ActiveState") == "failed" || p.word("ActiveState") == "inactive" && u.restart != restartAlways &&
		p.number("InactiveExitTimestampMonotonic") > 0
	out.worked = out.final && p.word("Result") == "success"
	if out.failed = p.failure(u); out.failed != "" && out.failedAt.IsZero() {
		out.failedAt = p.at("InactiveEnterTimestamp")
	}
	return out, true
}

func (s *systemd) idle(ctx context.Context, units []unit) string {
	var out []string
	for _, u := range units {
		switch p, err := s.properties(ctx, u.name); {
		case err != nil:
			return fmt.Sprintf("unit %q: %v", u.name, err)
		case p.word("LoadState") != "loaded":
			out = append(out, fmt.Sprintf("unit %q is %s to systemd", u.name, p.word("LoadState")))
		case p.word("FragmentPath") != path.Join(unitFiles, u.name):
			out = append(out, fmt.Sprintf("unit %q: systemd reads it from %s", u.name, p.word("FragmentPath")))
		case p.active():
			n := p.number("NRestarts")
			if was, known := s.restarts[u.name]; known && n > was {
				out = append(out, fmt.Sprintf("unit %q ends again and again: systemd has started it %d times more; see "+
					"journalctl --unit=%s", u.name, n-was, u.name))
			}
			if s.restarts == nil {
				s.restarts = map[string]uint64{}
			}
			s.restarts[u.name] = n
		case u.long() && p.number("InactiveExitTimestampMonotonic") == 0:
			out = append(out, fmt.Sprintf("unit %q has not been started", u.name))
		case p.word("ActiveState") == "failed":
			out = append(out, cmp.Or(p.failure(u), fmt.Sprintf("unit %q failed", u.name)))
		case u.long() && u.restart == restartAlways:
			out = append(out, fmt.Sprintf("unit %q is %s: it was stopped", u.name, p.word("ActiveState")))
		}
	}
	return strings.Join(out, "\n")
}

// properties are what systemd says of a unit.
type properties map[string]any

func (s *systemd) properties(ctx context.Context, name string) (properties, error) {
	conn, err := s.bus(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	return conn.GetAllPropertiesContext(ctx, name)
}

func (p properties) word(name string) string {
	s, _ := p[name].(string)
	return s
}

func (p properties) number(name string) uint64 {
	switch n := p[name].(type) {
	case uint64:
		return n
	case uint32:
		return uint64(n)
	case int32:
		return uint64(max(n, 0))
	}
	return 0
}

// at returns a time; zero if it never came.
func (p properties) at(name string) time.Time {
	if n := p.number(name); n > 0 {
		return time.UnixMicro(int64(n))
	}
	return time.Time{}
}

// active reports whether a unit runs, or begins or ends to.
func (p properties) active() bool {
	return slices.Contains([]string{"active", "activating", "reloading", "deactivating"}, p.word("ActiveState"))
}

// failure says how the process of a unit ended last, if it failed.
func (p properties) failure(u unit) string {
	const exited = 1 // CLD_EXITED
	code, status := p.number("ExecMainCode"), p.number("ExecMainStatus")
	switch {
	case p.word("ActiveState") == "failed" && status == 0:
		return fmt.Sprintf("unit %q failed: %s", u.name, p.word("Result"))
	case code == 0 || status == 0 || p.word("ActiveState") == "active":
		return ""
	case code == exited:
		return fmt.Sprintf("unit %q ended: exit status %d", u.name, status)
	}
	return fmt.Sprintf("unit %q ended: signal %d", u.name, status)
}
