package build

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/permit"
	"github.com/natkit/natkit/internal/tune/journal"
)

// StateSchema names the JSON form of a State.
const StateSchema = "natkit.lab-state/1"

// State is what is known of a lab that a holder keeps up: enough to enter it and
// to take it down. It lies in DIR/labs/NAME.json.
type State struct {
	Schema   string    `json:"schema"`
	Name     string    `json:"name"`
	Title    string    `json:"title"`
	Stage    string    `json:"stage,omitempty"`
	Server   string    `json:"server"`
	Topology []string  `json:"topology"`
	Started  time.Time `json:"started_at"`
	// Process is the holder.
	journal.Process
	// OwnerLock: the holder keeps the file locked until it ends. Earlier versions did not.
	OwnerLock bool        `json:"owner_lock,omitempty"`
	BootID    string      `json:"boot_id"`
	InitPID   int         `json:"init_pid"`
	Nodes     []NodeState `json:"nodes"`
}

// NodeState is a node and the holder's file descriptor that keeps it.
type NodeState struct {
	Name string `json:"name"`
	Fd   int    `json:"fd"`
}

func stateDir(dir string) string { return filepath.Join(dirOr(dir), "labs") }

func statePath(dir, name string) string { return filepath.Join(stateDir(dir), name+".json") }

// States are the labs that are up, in order of their names. Files of labs that
// ended without removing theirs are removed. With an error for those that cannot
// be read come the others.
func States(dir string) ([]State, error) {
	entries, err := os.ReadDir(stateDir(dir))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list labs: %w", err)
	}
	var up []State
	var damaged []error
	for _, e := range entries {
		name, isState := strings.CutSuffix(e.Name(), ".json")
		if !isState {
			continue
		}
		s, err := ReadState(dir, name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			damaged = append(damaged, err)
			continue
		}
		up = append(up, s)
	}
	slices.SortFunc(up, func(a, b State) int { return strings.Compare(a.Name, b.Name) })
	return up, errors.Join(damaged...)
}

// ReadState is the state of one lab; os.ErrNotExist where it is not up. A file
// whose holder is gone is removed.
func ReadState(dir, name string) (s State, err error) {
	if filepath.Base(name) != name {
		return s, fmt.Errorf("lab %q: %w", name, os.ErrNotExist)
	}
	path := statePath(dir, name)
	f, err := os.Open(path)
	if err == nil {
		defer f.Close()
		err = readRecord(f, StateSchema, &s, &s.Schema)
	}
	if err != nil {
		return State{}, fmt.Errorf("read the state of lab %s: %w", name, err)
	}
	if s.alive(dir) {
		return s, nil
	}
	// Without permission the file is left to the next one.
	err = os.Remove(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission) {
		return State{}, fmt.Errorf("remove the state of lab %s, which has ended: %w", name, err)
	}
	return State{}, fmt.Errorf("lab %s has ended: %w", name, os.ErrNotExist)
}

// alive reports whether the holder has the lock of its file, which it loses with its end
// and which every PID namespace sees; of an earlier version's, which has none, whether its
// process exists.
func (s State) alive(dir string) bool {
	if s.OwnerLock {
		return disk.IsHeld(statePath(dir, s.Name))
	}
	boot, err := journal.ReadBootID("/proc")
	return err == nil && boot == s.BootID && s.Process.Alive("/proc")
}

// here fails where the holder is in another PID namespace: its number is not its own
// here.
func (s State) here() error {
	if here := journal.NamespaceInode("/proc", "pid"); s.Namespace != 0 && s.Namespace != here {
		return fmt.Errorf("it is kept up in another PID namespace (%d, this is %d); run natkit there", s.Namespace, here)
	}
	return nil
}

// write makes the file appear, and fails where one is there already. The lab is up until
// the file is closed.
func (s State) write(dir string) (*os.File, error) {
	f, err := writeRecord(statePath(dir, s.Name), 0o644, s)
	if errors.Is(err, os.ErrExist) {
		err = errAlreadyUp
	}
	return f, err
}

var errAlreadyUp = errors.New("it is up already; `natkit lab down` takes it down")

// Attach opens a lab that a holder keeps up. Close lets go of it.
func Attach(dir string, s State) (*Lab, error) {
	if err := permit.Change("enter a lab"); err != nil {
		return nil, err
	}
	l := &Lab{}
	err := s.here()
	if err != nil {
		return nil, fmt.Errorf("enter lab %s: %w", s.Name, err)
	}
	err = func() error {
		for _, n := range s.Nodes {
			ns, err := netns.At(fmt.Sprintf("/proc/%d/fd/%d", s.PID, n.Fd), n.Name)
			if err != nil {
				return err
			}
			l.nodes = append(l.nodes, &Node{Name: n.Name, Netns: ns})
		}
		var err error
		l.box, err = openSandbox(s.InitPID, filepath.Join(dirOr(dir), "lab"))
		return err
	}()
	// Had the holder ended meanwhile, the files opened could be another's.
	if err == nil && !s.alive(dir) {
		err = os.ErrProcessDone
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("enter lab %s: %w", s.Name, netns.Denied(err, netns.SysAdmin)), l.Close())
	}
	return l, nil
}

// Down ends a lab that a holder keeps up and waits until it is gone.
func Down(dir string, s State) error {
	if err := permit.Change("take down a lab"); err != nil {
		return err
	}
	if err := s.end(dir); err != nil {
		return fmt.Errorf("take down lab %s: %w", s.Name, err)
	}
	_, _ = ReadState(dir, s.Name) // removes what a killed holder has left
	return nil
}

func (s State) end(dir string) error {
	if err := s.here(); err != nil {
		return err
	}
	fd, err := unix.PidfdOpen(s.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// The descriptor is of one process for good; whether it is the holder is checked after.
	if !s.alive(dir) {
		return nil
	}
	for _, signal := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		if err := unix.PidfdSendSignal(fd, signal, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
		if ended(fd, startTimeout) {
			return nil
		}
	}
	return fmt.Errorf("its holder (pid %d) does not end", s.PID)
}

// ended waits for the process behind a pidfd.
func ended(fd int, limit time.Duration) bool {
	deadline := time.Now().Add(limit)
	for left := limit; left > 0; left = time.Until(deadline) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
		if n > 0 && err == nil {
			return true
		}
	}
	return false
}

// writeRecord makes a JSON file of v appear that is locked until it is closed or this
// process ends, however that ends; fs.ErrExist if there is one.
func writeRecord(path string, mode fs.FileMode, v any) (*os.File, error) {
	text, err := json.MarshalIndent(v, "", "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err != nil {
		return nil, err
	}
	return disk.CreateLocked(path, mode, append(text, '\n'))
}

// maxRecord bounds what is read of a record, in bytes.
const maxRecord = 1 << 16

// readRecord reads such a file into v, in which schema points to the name of its form.
func readRecord(f *os.File, want string, v any, schema *string) error {
	if json.NewDecoder(io.LimitReader(f, maxRecord)).Decode(v) != nil || *schema != want {
		return notRecord(f.Name(), want)
	}
	return nil
}

func notRecord(path, schema string) error {
	return fmt.Errorf("%s is not a %s; remove it by hand", path, schema)
}
