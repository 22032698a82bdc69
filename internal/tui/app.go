package tui

import (
	"context"
	"fmt"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"
)

// app is the model on a terminal: it turns bubbletea's messages into the model's, and
// does what the model asks for.
type app struct {
	ctx     context.Context
	opt     Options
	sampler *sampler
	model   Model

	// round numbers the chain of samples: a tick of an older one is not followed.
	round    int
	sampling bool
	again    bool // sample once more as soon as the one under way has come
	list     *listing

	// saving is held while a snapshot is written; files are those that were.
	saving sync.Mutex
	files  []string
}

// Messages, all from commands of app.
type (
	sampled struct {
		sample *Sample
		began  time.Time
	}
	tick   struct{ round int }
	listed struct {
		list *listing
		err  error
	}
	saved struct {
		name string
		err  error
	}
	switched struct{ err error }
)

// Init takes the first sample.
func (a *app) Init() tea.Cmd { return a.sample() }

// Update does one message.
func (a *app) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		a.model = a.model.Resize(msg.Width, msg.Height)
	case tea.KeyPressMsg:
		return a.key(msg.String())
	case tea.PasteMsg:
		a.model = a.model.Paste(msg.Content)
	case tick:
		if msg.round == a.round && !a.model.paused {
			return a, a.sample()
		}
	case sampled:
		return a, a.taken(msg)
	case listed:
		a.offer(msg)
	case switched:
		if msg.err != nil {
			a.model = a.model.fail(msg.err)
		}
		return a, a.sample()
	case saved:
		a.model = a.model.Saved(msg.name, msg.err)
	}
	return a, nil
}

// offer shows the list, unless it is no longer waited for.
func (a *app) offer(msg listed) {
	a.list.close()
	a.list = msg.list
	var offered []Space
	if msg.list != nil {
		offered = msg.list.spaces
	}
	a.model = a.model.Spaces(offered, msg.err)
	if a.model.mode != spaces {
		a.list.close()
	}
}

// View draws the model.
func (a *app) View() tea.View {
	v := tea.NewView(a.model.View())
	v.AltScreen = true
	return v
}

func (a *app) key(name string) (tea.Model, tea.Cmd) {
	model, request := a.model.Key(name)
	a.model = model
	switch request.Action {
	case Quit:
		return a, tea.Quit
	case Suspend:
		return a, tea.Suspend
	case Resample:
		return a, a.sample()
	case SetInterval:
		return a, a.wait(request.Interval)
	case ListSpaces:
		return a, func() tea.Msg {
			l, err := list()
			return listed{l, err}
		}
	case CloseSpaces:
		a.list.close()
	case SwitchSpace:
		return a, a.enter(request.Space)
	case SaveSnapshot:
		return a, a.save()
	}
	return a, nil
}

// sample takes one now, or after the one under way.
func (a *app) sample() tea.Cmd {
	if a.sampling {
		a.again = true
		return nil
	}
	if a.model.paused {
		return nil
	}
	a.sampling = true
	a.round++
	filter, interval := a.model.filter, a.model.interval
	return func() tea.Msg {
		began := time.Now()
		return sampled{a.sampler.take(a.ctx, filter, interval), began}
	}
}

// taken shows a sample and plans the next one, an interval after this one began.
func (a *app) taken(s sampled) tea.Cmd {
	a.sampling = false
	if !a.model.paused {
		a.model = a.model.Take(s.sample)
	}
	if a.again {
		a.again = false
		return a.sample()
	}
	return a.wait(max(a.model.interval-time.Since(s.began), MinInterval/2))
}

// wait plans the next sample, instead of the one that was planned. One that is under
// way plans its own.
func (a *app) wait(d time.Duration) tea.Cmd {
	if a.sampling {
		return nil
	}
	a.round++
	round := a.round
	return tea.Tick(d, func(time.Time) tea.Msg { return tick{round} })
}

// enter looks at another namespace.
func (a *app) enter(to Space) tea.Cmd {
	if a.list == nil {
		return nil
	}
	ns := a.list.take(to.Inode)
	a.list.close()
	if ns == nil {
		return func() tea.Msg { return switched{fmt.Errorf("network namespace %d is no longer in the list", to.Inode)} }
	}
	return func() tea.Msg { return switched{a.sampler.Enter(ns)} }
}

// save writes a snapshot of the namespace that is looked at, beside the samples.
func (a *app) save() tea.Cmd {
	return func() tea.Msg {
		a.saving.Lock()
		defer a.saving.Unlock()
		ns, err := a.sampler.Netns()
		if err != nil {
			return saved{err: err}
		}
		defer ns.Close()
		name, err := a.opt.Save(a.ctx, ns)
		if err == nil {
			a.files = append(a.files, name)
		}
		return saved{name, err}
	}
}

// saved waits for the snapshot that is under way, which the end of ctx hastens, and
// names all.
func (a *app) saved() []string {
	a.saving.Lock()
	defer a.saving.Unlock()
	return a.files
}
