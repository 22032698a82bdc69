// Package exporter watches network namespaces in the background, at a bounded cost, and serves what it knows over HTTP:
// to Prometheus, as JSON, and as a page. It changes nothing on the host.
package exporter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/doctor"
	"github.com/natkit/natkit/internal/names/read"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/state"
	"github.com/natkit/natkit/internal/watch"
)

// Options specify what is watched.
type Options struct {
	// Netns are the network namespaces; none is the one that natkit runs in, unless All are to be found. The Collector
	// does not close them.
	Netns []*netns.Handle
	// All watches every network namespace that has a name or a process, up to MostNamespaces.
	All bool
	// Every is the time from one reading of the counters to the next. Examinations come as often where they cost little.
	Every time.Duration
	// Limits bound the lists.
	Limits state.Limits
	// Version is natkit's.
	Version string
	// Note, where set, receives what the operator should know, a line each.
	Note func(string)

	// table is the budget of reading the connection tables, which all namespaces share.
	table watch.Budget
}

const (
	// MostNamespaces bounds how many are watched.
	MostNamespaces = 128
	// findEvery is the time between two searches for network namespaces.
	findEvery = 30 * time.Second
	// share is the part of one CPU that counting may take, and examinations beside reading the tables; credit bounds what
	// those that cost less leave for others.
	share  = 0.01
	credit = 200 * time.Millisecond
	// leastBetween is the time between the first two examinations.
	leastBetween = 5 * time.Second
)

// Collector keeps a State up to date.
type Collector struct {
	o       Options
	started time.Time

	kernel snapshot.Kernel

	mu         sync.Mutex
	namespaces []*namespace
	leftOut    int
	cost       cost
	// between is the time between two examinations, as it is now.
	between time.Duration

	// work is held by what reads a namespace, so that its CPU time is known.
	work sync.Mutex
	// missed is whether it was noted that there may be other namespaces.
	missed bool
	// refused are namespaces that could not be entered, which was noted.
	refused map[uint64]bool

	drops *dropCounter
}

// cost is the CPU time so far of counting, which finding namespaces is a part of, of examining, and of reading tables in that.
type cost struct {
	counting, examining, tables time.Duration
	// readings are those of single namespaces.
	readings map[string]*state.Histogram
}

// New returns a Collector. Run makes it work.
func New(o Options) *Collector {
	if o.table.Share == 0 {
		o.table = doctor.TableBudget
	}
	readings := map[string]*state.Histogram{state.ReadingCounters: {}, state.ReadingExamination: {}}
	return &Collector{o: o, started: time.Now(), cost: cost{readings: readings}}
}

// Start enters the network namespaces and reads the counters once, so that there is a State. Close ends it.
func (c *Collector) Start(ctx context.Context) error {
	if c.o.All {
		if err := c.find(); err != nil {
			return err
		}
	} else if err := c.chosen(); err != nil {
		return errors.Join(err, c.Close())
	}
	c.kernel = collect.ReadLight(ctx, collect.Options{}).Kernel
	c.drops = startDrops(ctx, c.note)
	c.count(ctx)
	return nil
}

// Run reads again and again until ctx ends: the counters at every interval, and what costs more as often as a share of a
// CPU allows; where namespaces are very many, the counters too.
func (c *Collector) Run(ctx context.Context) {
	var both sync.WaitGroup
	defer both.Wait()
	both.Go(func() { c.examineAgain(ctx) })
	pays, found := watch.NewPayer(share, credit, time.Now(), c.spent().counting), time.Now()
	for next := c.o.Every; watch.Wait(ctx, next); {
		if c.o.All && time.Since(found) >= findEvery {
			c.alone(&c.cost.counting, "", func() {
				if err := c.find(); err != nil {
					c.note(err.Error())
				}
			})
			found = time.Now()
		}
		c.count(ctx)
		next = max(c.o.Every, pays.Due(time.Now(), c.spent().counting, 0))
	}
}

// examineAgain examines all network namespaces in turn.
func (c *Collector) examineAgain(ctx context.Context) {
	pays := watch.NewPayer(share, credit, time.Now(), 0)
	for next := time.Duration(0); watch.Wait(ctx, next); {
		first := next == 0 // nothing is compared yet
		c.examine(ctx)
		spent := c.spent()
		next = max(c.o.Every, pays.Due(time.Now(), spent.examining-spent.tables, 0))
		if first {
			next = min(c.o.Every, leastBetween)
		}
		c.mu.Lock()
		c.between = next
		c.mu.Unlock()
	}
}

// Parts older than staleAfter examinations, and than leastStale, stand for no point of the history.
const (
	staleAfter = 3
	leastStale = time.Minute
)

func (c *Collector) stale() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(staleAfter*max(c.between, c.o.Every), leastStale)
}

// Once examines every namespace twice, and returns what is then known.
func (c *Collector) Once(ctx context.Context) (state.State, error) {
	c.examine(ctx)
	if watch.Wait(ctx, min(c.o.Every, leastBetween)) {
		c.examine(ctx)
		c.count(ctx)
	}
	return c.State(), ctx.Err()
}

// count reads the counters of every namespace, and what was dropped.
func (c *Collector) count(ctx context.Context) {
	dropped, stale := c.drops.read(), c.stale()
	for _, n := range c.watched() {
		c.alone(&c.cost.counting, state.ReadingCounters, func() { n.count(ctx, c.o.Limits, dropped, stale) })
	}
}

// examine examines every namespace.
func (c *Collector) examine(ctx context.Context) {
	for _, n := range c.watched() {
		if ctx.Err() != nil {
			return
		}
		var table time.Duration
		c.alone(&c.cost.examining, state.ReadingExamination, func() { table = n.examine(ctx, c.o) })
		c.mu.Lock()
		c.cost.tables += table
		c.mu.Unlock()
	}
}

// alone does what reads the kernel, nothing else of that kind beside it, and adds its CPU time to a part of the cost, and
// to those of readings of one kind, unless that is empty.
func (c *Collector) alone(to *time.Duration, kind string, read func()) {
	c.work.Lock()
	defer c.work.Unlock()
	began := watch.CPUTime()
	read()
	c.mu.Lock()
	defer c.mu.Unlock()
	took := watch.CPUTime() - began
	*to += took
	if h := c.cost.readings[kind]; h != nil {
		h.Add(took.Seconds())
	}
}

func (c *Collector) spent() cost {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cost
}

func (c *Collector) watched() []*namespace {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.namespaces)
}

// State returns what is known now. Nothing of it changes later.
func (c *Collector) State() state.State {
	now := time.Now()
	c.mu.Lock()
	s := state.State{Schema: state.Schema, At: now, Started: c.started, Version: c.o.Version, Kernel: c.kernel,
		EverySeconds: c.o.Every.Seconds(), Namespaces: []state.Namespace{}, LeftOut: c.leftOut,
		Self: state.Self{CPUSeconds: watch.CPUTime().Seconds(), TableCPUSeconds: c.cost.tables.Seconds(), Readings: map[string]state.Histogram{}}}
	for kind, h := range c.cost.readings {
		s.Self.Readings[kind] = h.Clone()
	}
	c.mu.Unlock()
	for _, n := range c.watched() {
		s.Namespaces = append(s.Namespaces, n.state(now))
	}
	return s
}

// Close leaves the network namespaces. Run has to have returned.
func (c *Collector) Close() error {
	err := c.drops.close()
	for _, n := range c.namespaces {
		err = errors.Join(err, n.close())
	}
	c.namespaces = nil
	return err
}

func (c *Collector) note(text string) {
	if c.o.Note != nil {
		c.o.Note(text)
	}
}

// chosen enters the chosen namespaces, or the one that natkit runs in.
func (c *Collector) chosen() error {
	budget := c.budget(max(1, len(c.o.Netns)))
	if len(c.o.Netns) == 0 {
		inode, err := netns.InodeOf(nil)
		if err != nil {
			return fmt.Errorf("watch this network namespace: %w", err)
		}
		c.namespaces = []*namespace{newNamespace(nil, nil, budget, state.Namespace{Inode: inode})}
		return nil
	}
	for _, ns := range c.o.Netns {
		n, err := enter(ns, budget, state.Namespace{Name: ns.Name(), Inode: ns.Inode()})
		if err != nil {
			return fmt.Errorf("watch network namespace %s: %w", ns.Name(), err)
		}
		c.namespaces = append(c.namespaces, n)
	}
	return nil
}

// budget is that of reading the table of one of several namespaces.
func (c *Collector) budget(namespaces int) watch.Budget {
	b := c.o.table
	b.Share /= float64(namespaces)
	return b
}

// find enters the namespaces that are new, and leaves those that have ended.
func (c *Collector) find() error {
	found, _, missed := netns.Find(time.Time{})
	own, err := netns.InodeOf(nil)
	if err != nil {
		return fmt.Errorf("find network namespaces: %w", err)
	}
	// One that nothing but a descriptor keeps may be kept by natkit alone.
	found = slices.DeleteFunc(found, func(f netns.Found) bool { return f.Inode != own && read.OwnerOf(f).Held })
	if i := slices.IndexFunc(found, func(f netns.Found) bool { return f.Inode == own }); i > 0 {
		found[0], found[i] = found[i], found[0]
	}
	before := c.watched()
	var now []*namespace
	refused, beyond := map[uint64]bool{}, 0
	for _, f := range found {
		if i := slices.IndexFunc(before, func(n *namespace) bool { return n.about.Inode == f.Inode }); i >= 0 {
			now, before = append(now, before[i]), slices.Delete(before, i, i+1)
			continue
		}
		if len(now) >= MostNamespaces {
			beyond++
			continue
		}
		n, err := open(f, own, c.budget(min(len(found), MostNamespaces)))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			refused[f.Inode] = true
			if !c.refused[f.Inode] {
				c.note(fmt.Sprintf("a network namespace is left out: %v", err))
			}
		default:
			now = append(now, n)
		}
	}
	c.mu.Lock()
	c.namespaces, c.refused, c.leftOut = now, refused, beyond+len(refused)
	c.mu.Unlock()
	for _, n := range before {
		err = errors.Join(err, n.close())
	}
	if missed != nil && !c.missed {
		c.missed = true
		c.note(fmt.Sprintf("there may be other network namespaces: %v", missed))
	}
	return err
}
