package build

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/tune/journal"
)

// holdTimeout bounds the building of a held lab; the greatest fill takes half of it.
const holdTimeout = time.Minute

// Hold is a lab to be kept up in the background.
type Hold struct {
	// Name of a scenario that natkit brings along; or File and Text of another.
	Name string `json:"name,omitempty"`
	File string `json:"file,omitempty"`
	Text string `json:"text,omitempty"`

	Bridge bool       `json:"bridge"`
	Server ServerKind `json:"server"`
	// Stage whose NAT rules and fill the lab gets; empty for none.
	Stage string `json:"stage"`
	// Dir is Options.Dir.
	Dir string `json:"dir"`
}

// Scenario is what is to be built.
func (h Hold) Scenario() (*lab.Scenario, error) {
	var s *lab.Scenario
	var err error
	if h.Name != "" {
		s, err = lab.Find(h.Name)
	} else {
		s, err = lab.Parse(h.File, []byte(h.Text))
	}
	if err != nil {
		return nil, err
	}
	if h.Stage != "" {
		stage, ok := s.Stage(h.Stage)
		switch {
		case !ok:
			return nil, fmt.Errorf("scenario %s has no stage %q", s.Name, h.Stage)
		case len(stage.Host) > 0:
			return nil, fmt.Errorf("stage %s of scenario %s changes values of the whole host, which only 'natkit lab run --allow-host' does and puts back", h.Stage, s.Name)
		}
	}
	return s.With(lab.Overrides{Bridge: h.Bridge})
}

// Start builds the lab in a process of its own, the holder, and returns when it
// stands. The holder keeps it until Down, or until it is killed.
func (h Hold) Start(ctx context.Context) (State, error) {
	s, err := h.Scenario()
	if err != nil {
		return State{}, err
	}
	if _, err := ReadState(h.Dir, s.Name); err == nil {
		return State{}, fmt.Errorf("start lab %s: %w", s.Name, errAlreadyUp)
	} else if !errors.Is(err, os.ErrNotExist) {
		return State{}, err
	}
	request, err := json.Marshal(h)
	if err != nil {
		return State{}, err
	}
	readyR, readyW, err := os.Pipe()
	if err != nil {
		return State{}, fmt.Errorf("start lab %s: %w", s.Name, err)
	}
	defer readyR.Close()
	cmd := &exec.Cmd{
		Path: self, Args: []string{holderName, dirOr(h.Dir), s.Name}, Dir: "/",
		Stdin:       bytes.NewReader(request),
		ExtraFiles:  []*os.File{readyW},
		SysProcAttr: &unix.SysProcAttr{Setsid: true},
	}
	err = cmd.Start()
	readyW.Close()
	if err != nil {
		return State{}, fmt.Errorf("start lab %s: %w", s.Name, err)
	}
	if err := awaitReady(ctx, readyR, holdTimeout); err != nil {
		// It may be building still; it takes everything down on SIGTERM.
		_ = cmd.Process.Signal(unix.SIGTERM)
		_ = cmd.Wait()
		return State{}, err
	}
	if err := cmd.Process.Release(); err != nil {
		return State{}, fmt.Errorf("start lab %s: %w", s.Name, err)
	}
	return ReadState(h.Dir, s.Name)
}

// holderMain is the main function of a holder. It reads a Hold, and answers with
// one line, empty once the lab stands.
func holderMain() int {
	_ = os.WriteFile("/proc/self/comm", []byte("natkit-lab-hold"), 0)
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	// The terminal that `lab up` was called from goes away; the lab stays.
	signal.Ignore(unix.SIGHUP, unix.SIGPIPE)
	ready := os.NewFile(holderReadyFd, "ready")
	unix.CloseOnExec(holderReadyFd)
	fail := func(err error) int {
		fmt.Fprintln(ready, strings.ReplaceAll(err.Error(), "\n", "; "))
		return 1
	}
	var h Hold
	if err := json.NewDecoder(io.LimitReader(os.Stdin, 2<<20)).Decode(&h); err != nil {
		return fail(fmt.Errorf("read what to build: %w", err))
	}
	l, state, file, err := h.build(ctx)
	if err != nil {
		return fail(err)
	}
	defer file.Close()
	fmt.Fprintln(ready)
	ready.Close()
	select {
	case <-ctx.Done():
	case <-l.Done():
	}
	state.remove(h.Dir)
	if err := l.Close(); err != nil {
		return 1
	}
	return 0
}

// build returns the lab, and the file that says that it is up.
func (h Hold) build(ctx context.Context) (l *Lab, state State, file *os.File, err error) {
	s, err := h.Scenario()
	if err != nil {
		return nil, State{}, nil, err
	}
	if l, err = Up(ctx, s, Options{Dir: h.Dir}); err != nil {
		return nil, State{}, nil, err
	}
	if state, err = h.furnish(ctx, l); err == nil {
		file, err = state.write(h.Dir)
	}
	if err != nil {
		return nil, State{}, nil, errors.Join(fmt.Errorf("start lab %s: %w", s.Name, err), l.Close())
	}
	return l, state, file, nil
}

// furnish starts the server, sets the stage's rules and fill, and describes it all.
func (h Hold) furnish(ctx context.Context, l *Lab) (State, error) {
	server, err := l.StartServer(ctx, h.Server)
	if err != nil {
		return State{}, err
	}
	if stage, ok := l.scenario.Stage(h.Stage); ok {
		if err := l.SetNAT(ctx, stage.NAT); err != nil {
			return State{}, err
		}
		if err := l.SetGateway(ctx, stage.Gateway); err != nil {
			return State{}, err
		}
		if err := l.SetSysctls(stage.Sysctls); err != nil {
			return State{}, err
		}
		if err := l.setFillOf(ctx, stage); err != nil {
			return State{}, err
		}
	}
	boot, err := journal.ReadBootID("/proc")
	if err != nil {
		return State{}, err
	}
	own, err := journal.ReadProcess("/proc", os.Getpid())
	if err != nil {
		return State{}, err
	}
	state := State{
		Schema: StateSchema, Name: l.scenario.Name, Title: l.scenario.Title,
		Stage: h.Stage, Server: server.Name, Topology: l.scenario.Lines(), Started: time.Now().UTC(),
		Process: own, OwnerLock: true, BootID: boot, InitPID: l.init.pid,
	}
	for _, n := range l.nodes {
		state.Nodes = append(state.Nodes, NodeState{Name: n.Name, Fd: n.Netns.Fd()})
	}
	return state, nil
}

func (l *Lab) setFillOf(ctx context.Context, stage *lab.Stage) error {
	if stage.Fill == nil {
		return nil
	}
	target, err := FillTarget(stage.Fill)
	if err != nil {
		return err
	}
	return l.SetFill(ctx, stage.Fill, target)
}
