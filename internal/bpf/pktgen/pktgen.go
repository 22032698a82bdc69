// Package pktgen sends numbered packets from eBPF, without a socket or an skb, and counts them by
// their tokens in an XDP program where they arrive.
//
// The generator is an XDP program that the kernel runs on frames of its own making
// (BPF_PROG_TEST_RUN with BPF_F_TEST_XDP_LIVE_FRAMES, Linux 5.18; see
// Documentation/bpf/bpf_prog_run.rst) and that redirects each to an interface.
package pktgen

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/permit"
)

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -cflags "-O2 -Wall -Wextra -Wno-unused-parameter -Werror -mcpu=v3" -target bpfel  pktgen pktgen.bpf.c

// Port is an interface in a network namespace; nil is natkit's own.
type Port struct {
	Netns     *netns.Handle
	Interface string
}

func (p Port) String() string {
	if p.Netns == nil || p.Netns.Name() == "" {
		return p.Interface
	}
	return p.Netns.Name() + "/" + p.Interface
}

// Run sends cfg's packets by from and counts them at sink, if there is one, until ctx ends.
// progress, if not nil, is called several times a second. Nothing outlives the process: programs
// are attached by links. It needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON (or CAP_SYS_ADMIN), and
// CAP_SYS_ADMIN to enter namespaces.
func Run(ctx context.Context, cfg packets.Config, from Egress, sink *Port, progress func(packets.Progress)) (result *packets.Result, err error) {
	if err := permit.Change("send packets"); err != nil {
		return nil, err
	}
	t, err := newTables(cfg.Flows)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	return runWith(ctx, t, cfg, from, sink, progress)
}

// runWith is Run with tables of the caller's.
func runWith(ctx context.Context, t *tables, cfg packets.Config, from Egress, sink *Port, progress func(packets.Progress)) (result *packets.Result, err error) {
	r := &run{cfg: cfg, from: from, tables: t, progress: progress}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.open(sink); err != nil {
		return nil, err
	}
	return r.conduct(ctx)
}

// run is one run under way.
type run struct {
	cfg      packets.Config
	from     Egress
	progress func(packets.Progress)
	tables   *tables
	sink     *receiver // nil where nothing is counted
	workers  []*worker
	closers  []func() error
	notes    []string
	passage  *passage
	course   []packets.Second
}

func (r *run) close() error {
	var errs []error
	for i := len(r.closers) - 1; i >= 0; i-- {
		errs = append(errs, r.closers[i]())
	}
	r.closers = nil
	return errors.Join(errs...)
}

// open makes all that is attached and loaded.
func (r *run) open(sink *Port) (err error) {
	if err := errors.Join(r.cfg.Check(), r.from.CheckMTU(r.cfg.Spec)); err != nil {
		return err
	}
	if err := r.ensurePeerTakesFrames(sink); err != nil {
		return err
	}
	if err := r.attachSink(sink); err != nil {
		return err
	}
	return r.makeWorkers()
}

func (r *run) ensurePeerTakesFrames(sink *Port) (err error) {
	fits := func(p *peer) error { return checkMTU(p.port, p.mtu, r.cfg.Spec) }
	if r.passage, err = openPassage(r.from, sink, fits); err != nil {
		return err
	}
	r.closers = append(r.closers, r.passage.close)
	if r.passage.note != "" {
		r.notes = append(r.notes, r.passage.note)
	}
	return nil
}

// attachSink runs after the passing program is attached: the kernel attaches none below a bridge
// that has one.
func (r *run) attachSink(sink *Port) (err error) {
	if sink == nil {
		return nil
	}
	if r.sink, err = attachReceiver(*sink, r.cfg, r.tables); err != nil {
		return err
	}
	r.closers = append(r.closers, r.sink.close)
	r.notes = append(r.notes, r.sink.notes...)
	return nil
}

func (r *run) makeWorkers() error {
	cpus, err := CPUs()
	if err != nil {
		return err
	}
	if r.cfg.Workers > len(cpus) {
		return fmt.Errorf("%d workers: this process may run on %d CPUs, and each worker takes one", r.cfg.Workers, len(cpus))
	}
	if r.cfg.Workers > r.cfg.Flows.Count {
		return fmt.Errorf("%d workers: each needs a flow of its own, and there are %d", r.cfg.Workers, r.cfg.Flows.Count)
	}
	for i := range r.cfg.Workers {
		w, err := newWorker(r, i, cpus[i])
		if err != nil {
			return err
		}
		r.workers = append(r.workers, w)
		r.closers = append(r.closers, w.close)
	}
	return nil
}

// sent adds up what the workers have sent.
func (r *run) sent() (packets, octets int64, err error) {
	for _, w := range r.workers {
		s, err := w.state()
		if err != nil {
			return 0, 0, err
		}
		packets += int64(s.Sent)
		octets += int64(s.Octets)
	}
	return packets, octets, nil
}

// received is the receiver's count; zero where there is none.
func (r *run) received() (pktgenSinkCounters, error) {
	if r.sink == nil {
		return pktgenSinkCounters{}, nil
	}
	return r.sink.counters()
}

// arrived counts the packets of this run that came, in whatever state.
func arrived(c pktgenSinkCounters) int64 {
	return int64(c.Received + c.Misdelivered + c.BadIpChecksum + c.BadChecksum + c.PartialChecksum)
}

// poll calls done every 5 ms until it is true or limit has passed.
func poll(ctx context.Context, limit time.Duration, done func() (bool, error)) (bool, error) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(limit); ; {
		ok, err := done()
		if ok || err != nil || time.Now().After(end) {
			return ok, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false, nil
		}
	}
}

// CheckPrivilege returns an error that names the capabilities a run lacks.
func CheckPrivilege() error {
	return netns.CheckPrivilege(
		netns.Need{Any: netns.SysAdmin, Why: "to load and run eBPF programs and to make and enter network namespaces"},
		netns.Need{Any: netns.NetAdmin, Why: "to attach XDP programs to interfaces"})
}
