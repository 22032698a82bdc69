package behaviour

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/natkit/natkit/internal/gateway"
)

// Maker makes a world for one case.
type Maker func() (World, error)

// Run plays cases, as many at a time as workers says, each in a world of its own, and
// gives a result for each, in their order. All that cases say of time takes times as long
// (1 at least). A case for which the machine was measured to be too late is played again
// with longer times, and fails where that does not help either.
func Run(engine string, cases []Case, world Maker, times, workers int) []Result {
	results := make([]Result, len(cases))
	free := make(chan struct{}, max(workers, 1))
	var all sync.WaitGroup
	for i := range cases {
		free <- struct{}{}
		all.Go(func() {
			results[i] = cases[i].play(engine, world, max(times, 1))
			<-free
		})
	}
	all.Wait()
	return results
}

// play runs the case, unless it or the engine has nothing to run.
func (c *Case) play(engine string, world Maker, times int) Result {
	declared, deviates := c.expectation(engine)
	switch {
	case deviates && declared.Outcome == "":
		return Result{ID: c.ID, Status: NotOffered}
	case c.Untestable != "":
		return Result{ID: c.ID, Status: NotTestable}
	case c.Run == nil:
		return Result{ID: c.ID, Status: Unexpected, Err: fmt.Errorf("%s does not say that it does without, and there is no test", engine)}
	}
	for longer := 1; ; longer *= 2 {
		r, late := c.attempt(engine, world, times*longer)
		if late == nil {
			return r
		}
		if longer >= longest {
			r.Status, r.Err = Unexpected, errors.Join(r.Err, late)
			return r
		}
	}
}

// attempt plays the case once. Late is why the result is inconclusive; nil if it is not.
func (c *Case) attempt(engine string, world Maker, times int) (r Result, late error) {
	measured := &clock{}
	got, err := c.observe(Stretched(measured.on(world), times))
	if err != nil {
		r = Result{ID: c.ID, Outcome: got, Status: Unexpected, Err: fmt.Errorf("%s: %w", engine, err)}
	} else {
		r = c.judge(engine, got)
	}
	return r, measured.late(times, r.Err != nil)
}

func (c *Case) observe(world Maker) (got Outcome, err error) {
	plan, err := c.Plan()
	if err != nil {
		return "", err
	}
	w, err := world()
	if err != nil {
		return "", fmt.Errorf("make a world: %w", err)
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if err := w.Apply(plan); err != nil {
		return "", fmt.Errorf("apply the gateway's file: %w", err)
	}
	p := &Play{World: w, Plan: plan, untranslated: c.Untranslated}
	got, err = c.Run(p)
	return got, errors.Join(append(p.faults, err)...)
}

// Plan is what the case's file compiles to.
func (c *Case) Plan() (*gateway.Plan, error) {
	if c.Gateway == "" {
		return compile(c.ID, DefaultGateway)
	}
	return compile(c.ID, c.Gateway)
}

func compile(name, text string) (*gateway.Plan, error) {
	f, err := gateway.Parse(name+".yaml", []byte("gateway:\n"+indent(text)))
	if err != nil {
		return nil, fmt.Errorf("read the case's gateway file: %w", err)
	}
	return gateway.Compile(&f.Config, Facts())
}

// change applies another file.
func (p *Play) change(text string) error {
	plan, err := compile("changed", text)
	if err != nil {
		return err
	}
	return p.Apply(plan)
}

func indent(text string) string {
	var b strings.Builder
	for l := range strings.Lines(text) {
		b.WriteString("  " + l)
	}
	return b.String()
}

// Stretched has all that a case says of time take some times as long, for machines on
// which a packet takes a good part of the seconds that timers are set to: emulated ones.
func Stretched(world Maker, times int) Maker {
	return func() (World, error) {
		w, err := world()
		if err != nil || times <= 1 {
			return w, err
		}
		return stretched{w, time.Duration(times)}, nil
	}
}

type stretched struct {
	World
	times time.Duration
}

func (s stretched) Pass(d time.Duration) error { return s.World.Pass(d * s.times) }

func (s stretched) Timers(values map[Timer]time.Duration) error {
	longer := make(map[Timer]time.Duration, len(values))
	for timer, d := range values {
		longer[timer] = d * s.times
	}
	return s.World.Timers(longer)
}
