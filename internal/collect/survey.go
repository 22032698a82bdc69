//go:build linux

package collect

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/aggregate"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/names/read"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
)

// SurveyOptions specify how the other network namespaces are read.
type SurveyOptions struct {
	// Find lists namespaces until then; nil is netns.Find, which lists all.
	Find func(until time.Time) (found []netns.Found, cut bool, missed error)
	// Refused, where set, is why it is not known whether other namespaces are to be read: none is.
	Refused error
	// Budget is the time for both readings together; 0 means DefaultSurveyBudget.
	Budget time.Duration
}

// DefaultSurveyBudget keeps what a survey adds to the time of a recording below two seconds: what
// is being read when it is used up is read to its end.
const DefaultSurveyBudget = 1800 * time.Millisecond

const (
	// searchPart, firstPart and dumpPart are the shares of the time in percent for the search,
	// by when the first reading ends, and by when dumps begin no more: the rest is for the last
	// dump and for owners.
	searchPart = 10
	firstPart  = 40
	dumpPart   = 90
	// fewestListed entries are worth a dump: fewer are not judged. It costs a walk through the
	// hash of all namespaces (ctnetlink_dump_table).
	fewestListed = 3
	// mostListed bounds the entries that are read of one table.
	mostListed = 16384
)

// classes are those of which outcomes need the timeouts.
var outcomeClasses = []string{
	"tcp/SYN_SENT", "tcp/SYN_RECV", "tcp/ESTABLISHED", "tcp/FIN_WAIT", "tcp/CLOSE_WAIT", "tcp/LAST_ACK", "tcp/TIME_WAIT", "tcp/CLOSE",
	"udp/unreplied", "udp/stream", "icmp", "icmpv6", "",
}

// survey reads the other network namespaces. It enters each for less than a millisecond, or for a
// dump, and makes nothing there: a socket of netlink registers no hook, and a namespace that nothing
// tracks stays so.
type survey struct {
	src    *live
	budget time.Duration
	began  time.Time
	// spent is the time of the first reading.
	spent  time.Duration
	mutex  sync.Mutex // for refuse
	others snapshot.Others
	all    []*surveyed
}

// surveyed is one namespace.
type surveyed struct {
	netns.Found
	first, last *totals
	services    *snapshot.Services
	timeouts    snapshot.Sysctls
	refused     bool
}

// totals is one reading of a namespace.
type totals struct {
	usage dump.Usage
	stat  *snapshot.ConntrackStat
	at    instant
}

// startSurvey takes the first reading; the survey is nil where none is wanted.
func (o RecordOptions) startSurvey(ctx context.Context) *survey {
	if o.Others == nil || ctx.Err() != nil {
		return nil
	}
	o.progress("reading the other network namespaces")
	s := &survey{src: newLive(o.Options), budget: cmp.Or(o.Others.Budget, DefaultSurveyBudget), began: time.Now()}
	find := o.Others.Find
	if find == nil {
		find = netns.Find
	}
	if o.Others.Refused != nil {
		s.others.NotBegun = true
		s.refuse(o.Others.Refused)
		return s
	}
	if _, err := netns.Sysctl(nil, snapshot.ConntrackMax); errors.Is(err, fs.ErrNotExist) {
		s.others.NotLoaded = true // and is not to be loaded by asking
		return s
	}
	own, err := netns.InodeOf(o.Netns)
	found, cut, missed := find(s.until(searchPart))
	s.others.SearchCut = cut
	s.refuse(errors.Join(err, missed))
	for _, f := range found {
		if f.Inode != own {
			s.all = append(s.all, &surveyed{Found: f})
		}
	}
	s.others.Found = int64(len(s.all))
	s.each(s.all, firstPart, func(n *surveyed) (err error) { n.first, err = s.read(true); return err })
	s.spent = time.Since(s.began)
	return s
}

// until returns when a share of the budget is used up.
func (s *survey) until(part int) time.Time {
	return s.began.Add(s.budget * time.Duration(part) / 100)
}

// refuse keeps the first reason why something could not be read.
func (s *survey) refuse(err error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err != nil && s.others.Error == "" {
		s.others.Error = err.Error()
	}
}

// threads is how many enter namespaces at a time: a dump is a walk on one CPU, and the host has other
// work to do.
func threads() int { return min(max(1, runtime.NumCPU()/4), 4) }

// each calls fn in every namespace, in their order, while the share of the time lasts; it returns how
// many it has reached.
func (s *survey) each(all []*surveyed, part int, fn func(*surveyed) error) int {
	until := s.until(part)
	var next, reached atomic.Int64
	work := func() error {
		for i := next.Add(1); i <= int64(len(all)) && time.Now().Before(until); i = next.Add(1) {
			reached.Add(1)
			n := all[i-1]
			if n.refused {
				continue
			}
			if err := n.inside(fn); err != nil && !isEnd(err) {
				n.refused = true
				s.refuse(err)
			}
		}
		return nil
	}
	var running sync.WaitGroup
	for range threads() {
		running.Go(func() { _ = netns.OnThread(work) })
	}
	running.Wait()
	return int(reached.Load())
}

// isEnd reports whether an error means that the namespace, or a way to it, has ended.
func isEnd(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// inside calls fn with the calling thread in the namespace, which is kept no longer than that.
func (n *surveyed) inside(fn func(*surveyed) error) error {
	h, err := n.Open()
	if err != nil {
		return err
	}
	defer h.Close()
	if err := h.Enter(); err != nil {
		return err
	}
	return fn(n)
}

// read reads the calling thread's namespace. Without entries there are no counters in the
// first reading.
func (s *survey) read(first bool) (*totals, error) {
	usage, cpus, err := dump.CountAndStats(first)
	if err != nil {
		return nil, err
	}
	t := &totals{usage: usage, at: s.src.clock("")}
	if cpus != nil {
		t.stat = &snapshot.ConntrackStat{Source: "ctnetlink", PerCPU: cpus}
	}
	return t, nil
}

// finish takes the second reading, unless the time between both was cut short, and adds what was
// read to the recording.
func (s *survey) finish(ctx context.Context, rec *snapshot.Recording) {
	if s == nil || ctx.Err() != nil {
		return
	}
	s.began = time.Now().Add(-s.spent)
	reached := s.each(s.all, dumpPart, func(n *surveyed) (err error) { n.last, err = s.read(false); return err })
	s.others.Unreached = int64(len(s.all) - reached)
	s.list(ctx)
	for _, n := range s.all {
		s.add(n, rec)
	}
	s.others.Seconds = time.Since(s.began).Seconds()
	rec.Others = &s.others
}

// list dumps the tables that have entries, the largest first.
func (s *survey) list(ctx context.Context) {
	var with []*surveyed
	for _, n := range s.all {
		if n.last != nil && n.last.usage.Entries >= fewestListed {
			with = append(with, n)
		}
	}
	slices.SortStableFunc(with, func(a, b *surveyed) int { return cmp.Compare(b.last.usage.Entries, a.last.usage.Entries) })
	s.each(with, dumpPart, func(n *surveyed) error { return n.list(ctx, s.src) })
	for _, n := range with {
		if n.services == nil {
			s.others.Unlisted++
		}
	}
}

// list dumps the table of the calling thread's namespace.
func (n *surveyed) list(ctx context.Context, src *live) error {
	n.timeouts = snapshot.Sysctls{}
	for _, class := range outcomeClasses {
		if err := readSysctl(src, n.timeouts, snapshot.TimeoutOf(class)); err != nil {
			return err
		}
	}
	outcomes, seen := aggregate.NewOutcomes(n.timeouts), 0
	r, err := dump.Each(ctx, nil, &conntrack.Filter{}, func(e *conntrack.Entry) error {
		outcomes.Add(e)
		if seen++; seen >= mostListed {
			return dump.ErrStop
		}
		return nil
	})
	if err == nil {
		n.services = outcomes.Services(r.Complete)
	}
	return err
}

// add counts a namespace, and keeps it if there is any sign of a fault: whose it is takes longer to
// find out than all the rest.
func (s *survey) add(n *surveyed, own *snapshot.Recording) {
	switch {
	case n.refused:
		s.others.Refused++
		return
	case n.last == nil: // gone, or not reached
		return
	}
	s.others.Examined++
	if n.last.usage.Entries == 0 && (n.first == nil || n.first.usage.Entries == 0) {
		s.others.Empty++
		return
	}
	if rec := n.recording(own); shows(rec) {
		owner := read.OwnerOf(n.Found)
		for _, one := range rec.Snapshots {
			one.Netns.Name = owner.Name()
		}
		s.others.Suspects = append(s.others.Suspects, snapshot.OtherNetns{Owner: owner, Recording: rec})
	}
}

// shows reports whether there is anything that a rule may find to be a fault.
func shows(rec *snapshot.Recording) bool {
	first, last := rec.First(), rec.Last()
	count, _ := last.Sysctls.Int(snapshot.ConntrackCount)
	limit, _ := last.Sysctls.Int(snapshot.ConntrackMax)
	for _, name := range []string{"drop", "early_drop", "insert_failed", "chaintoolong"} {
		if grown, _ := last.ConntrackStat.Delta(first.ConntrackStat, name); grown > 0 {
			return true
		}
	}
	return limit > 0 && count > limit/2 || len(rec.NewLogLines()) > 0 ||
		rec.Flows != nil && slices.ContainsFunc(rec.Flows.Services.All, func(v snapshot.Service) bool { return v.Failed()+v.Stalled > 0 })
}

// restarted reports whether a counter went back: another namespace got the number of one that
// ended. Where all counters of that one were 0 those of the other count from the same.
func (t *totals) restarted(before *totals) bool {
	if t.stat == nil || before.stat == nil || len(t.stat.PerCPU) != len(before.stat.PerCPU) {
		return true
	}
	for i, cpu := range before.stat.PerCPU {
		for name, n := range cpu {
			if t.stat.PerCPU[i][name] < n {
				return true
			}
		}
	}
	return false
}

// recording is what is known of the namespace in the form in which rules know it. The limit is that
// of the namespace where the kernel reports it, and the log is the machine's.
func (n *surveyed) recording(own *snapshot.Recording) *snapshot.Recording {
	if n.first == nil || n.last.restarted(n.first) {
		n.first = &totals{usage: n.last.usage, at: n.last.at}
	}
	r := &snapshot.Recording{Schema: snapshot.RecordingSchema}
	for i, t := range []*totals{n.first, n.last} {
		of := own.Snapshots[max(0, len(own.Snapshots)-2+i)]
		one := &snapshot.Snapshot{
			Schema: snapshot.Schema, TakenAt: t.at.Wall, UptimeSeconds: t.at.Uptime, Kernel: of.Kernel, Parts: []snapshot.Part{},
			Netns: snapshot.Netns{Inode: n.Inode}, ConntrackStat: t.stat, Sysctls: snapshot.Sysctls{}, KernelLogNext: of.KernelLogNext,
		}
		for _, name := range []string{snapshot.ConntrackMax, snapshot.ConntrackBuckets} {
			one.Sysctls[name] = of.Sysctls[name]
		}
		one.Sysctls[snapshot.ConntrackCount] = strconv.FormatInt(t.usage.Entries, 10)
		if t.usage.Max > 0 {
			one.Sysctls[snapshot.ConntrackMax] = strconv.FormatInt(t.usage.Max, 10)
		}
		one.KernelLog = slices.Collect(logOf(of, n.Inode))
		r.Snapshots = append(r.Snapshots, one)
	}
	if n.services != nil {
		r.Flows = &snapshot.Flows{Seconds: r.Seconds(), Services: n.services}
	}
	return r
}

// logOf yields the lines that name a namespace, as Linux 6.18 does.
func logOf(s *snapshot.Snapshot, inode uint64) func(func(snapshot.LogLine) bool) {
	return func(yield func(snapshot.LogLine) bool) {
		for _, l := range s.KernelLog {
			if l.Netns == inode && !yield(l) {
				return
			}
		}
	}
}
