package tui

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/natkit/natkit/internal/snapshot"
)

// Tape is a recording: samples in the order of time, counted from 0.
type Tape interface {
	Len() int
	Sample(i int) (*snapshot.Sample, error)
}

// ReplayOptions specify what is played, and where.
type ReplayOptions struct {
	Tape Tape
	// Host is where it was recorded, From the number of the first sample that is shown.
	Host  string
	From  int
	Theme Theme
	In    io.Reader
	Out   io.Writer
}

const (
	mostSpeed = 64
	// manySteps is about a minute of a recorder's usual interval.
	manySteps = 12
	// longestGap bounds the time between two samples on the screen: gaps of a recording are not waited for.
	longestGap = 10 * time.Second
)

// Replay plays a recording until the user quits or ctx ends, and restores the terminal.
func Replay(ctx context.Context, o ReplayOptions) error {
	p := &player{opt: o, model: New(o.Theme, 0), speed: 1}
	if err := p.show(o.From); err != nil {
		return err
	}
	program := tea.NewProgram(p, tea.WithInput(o.In), tea.WithOutput(o.Out), tea.WithFPS(drawRate), tea.WithoutSignalHandler())
	defer context.AfterFunc(ctx, program.Quit)()
	if _, err := program.Run(); err != nil {
		return fmt.Errorf("show the screen: %w", err)
	}
	return p.err
}

// player is the model on a terminal, with samples of a tape.
type player struct {
	opt   ReplayOptions
	model Model
	at    int
	speed int
	// round numbers the ticks: one of an older one is not followed.
	round int
	err   error
}

// show shows the sample of a number, or the nearest.
func (p *player) show(i int) error {
	i = within(i, p.opt.Tape.Len())
	s, err := p.opt.Tape.Sample(i)
	if err != nil {
		return err
	}
	p.at = i
	p.model = p.model.Replay(&Sample{Sample: s, Host: p.opt.Host, Filter: p.model.filter}, Place{i + 1, p.opt.Tape.Len(), p.speed})
	return nil
}

func (p *player) Init() tea.Cmd { return p.wait() }

// Update does one message.
func (p *player) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		p.model = p.model.Resize(msg.Width, msg.Height)
	case tea.KeyPressMsg:
		return p.key(msg.String())
	case tea.PasteMsg:
		p.model = p.model.Paste(msg.Content)
	case tick:
		if msg.round == p.round && !p.model.paused {
			return p.step(1)
		}
	}
	return p, nil
}

// View draws the model.
func (p *player) View() tea.View {
	v := tea.NewView(p.model.View())
	v.AltScreen = true
	return v
}

// step goes on by so many samples, and plans the next one.
func (p *player) step(by int) (tea.Model, tea.Cmd) {
	to := within(p.at+by, p.opt.Tape.Len())
	if to == p.at {
		p.model.paused = true // at an end
		return p, nil
	}
	if err := p.show(to); err != nil {
		p.err = err
		return p, tea.Quit
	}
	return p, p.wait()
}

// steps are the keys that go on in a recording, and by how much; they pause it.
var steps = map[string]int{"left": -1, "right": 1, "[": -manySteps, "]": manySteps, "home": -1 << 30, "end": 1 << 30}

func (p *player) key(name string) (tea.Model, tea.Cmd) {
	if by, is := steps[name]; is && p.model.mode == screen {
		p.model.paused = true
		return p.step(by)
	}
	if p.model.mode == screen {
		switch name {
		case "+", "=":
			return p.pace(p.speed * 2)
		case "-", "_":
			return p.pace(p.speed / 2)
		case "n", "w", "S":
			p.model = p.model.say("a recording has one network namespace; 'natkit record export' writes a bundle of it")
			return p, nil
		}
	}
	model, request := p.model.Key(name)
	model.filter.prefix = netip.Prefix{} // its entries are read already
	p.model = model
	switch request.Action {
	case Quit:
		return p, tea.Quit
	case Suspend:
		return p, tea.Suspend
	case Resample: // after a pause, or for another filter
		return p, p.wait()
	}
	return p, nil
}

func (p *player) pace(speed int) (tea.Model, tea.Cmd) {
	p.speed = min(max(speed, 1), mostSpeed)
	p.model.tape.Speed = p.speed
	return p, p.wait()
}

// wait plans the next sample.
func (p *player) wait() tea.Cmd {
	p.round++
	round := p.round
	d := time.Second
	if s := p.model.sample; s != nil && s.Before != nil {
		d = min(time.Duration(s.Seconds()*float64(time.Second)), longestGap)
	}
	return tea.Tick(d/time.Duration(p.speed), func(time.Time) tea.Msg { return tick{round} })
}
