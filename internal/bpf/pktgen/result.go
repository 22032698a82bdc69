package pktgen

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/netns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// keepUp is the share of its rate that a paced run has to reach.
	keepUp = 0.99
	// hiccup is the tolerated lag at the end at any rate.
	hiccup = 10 * time.Millisecond
)

// statistics enables the kernel's measurement of programs if the run has it.
func (r *run) statistics() (off func(), err error) {
	if !r.cfg.Statistics {
		return func() {}, nil
	}
	s, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		return nil, fmt.Errorf("measure the programs' time (Linux 5.8): %w", netns.Denied(err, netns.SysAdmin))
	}
	return func() { s.Close() }, nil
}

// counts are what was sent and received until now.
type counts struct {
	sent, octets int64
	arrived      pktgenSinkCounters
}

func (r *run) counts() (c counts, err error) {
	if c.sent, c.octets, err = r.sent(); err != nil {
		return c, err
	}
	c.arrived, err = r.received()
	return c, err
}

// result sums up; before is what was counted when the clock started.
func (r *run) result(seconds float64, before counts) (*packets.Result, error) {
	now, err := r.counts()
	if err != nil {
		return nil, err
	}
	c := now.arrived
	result := &packets.Result{
		Config: r.cfg, From: r.from.String(), Seconds: seconds,
		Delivery: packets.Delivery{
			Sent: now.sent, Received: int64(c.Received), Reordered: int64(c.Reordered), Duplicated: int64(c.Duplicated),
			Late: int64(c.Late), Misdelivered: int64(c.Misdelivered),
		},
		SentBytes:     now.octets + now.sent*frame.FCSLen,
		ReceivedBytes: int64(c.Octets) + int64(c.Received)*frame.FCSLen,
		Corrupted: packets.Corrupted{
			IPChecksum: int64(c.BadIpChecksum), Checksum: int64(c.BadChecksum), Partial: int64(c.PartialChecksum),
		},
		OtherPackets:  int64(c.Other),
		SentPerSecond: float64(now.sent-before.sent) / seconds,
		Notes:         r.notes, Course: r.course,
	}
	if r.sink != nil {
		result.To = r.sink.port.String()
		// Late ones may be duplicates.
		result.Lost = max(0, result.Sent-(result.Received-result.Duplicated))
		result.ReceivedPerSecond = float64(c.Received-before.arrived.Received) / seconds
		if result.MisdeliveredAs, err = readStrays(r.sink.objects.Strays, r.cfg.Spec.IPv6); err != nil {
			return nil, err
		}
	}
	for _, w := range r.workers {
		s, err := w.state()
		if err != nil {
			return nil, err
		}
		result.LateSeconds, result.BehindSeconds = max(result.LateSeconds, float64(s.Late)/1e9), max(result.BehindSeconds, float64(s.Behind)/1e9)
	}
	r.complete(result)
	return result, r.programTimes(result)
}

// complete adds what follows from the configuration.
func (r *run) complete(result *packets.Result) {
	if r.cfg.Bare { // all frames are alike
		length := int64(r.cfg.Spec.MaxSize())
		result.SentBytes, result.ReceivedBytes = result.Sent*length, result.Received*length
	}
	result.GeneratorLimit = r.limit(result)
}

// limit returns how far a paced run was behind its schedule, if it was.
func (r *run) limit(result *packets.Result) string {
	seconds := result.Seconds
	if d := r.cfg.Duration.Seconds(); d > 0 {
		seconds = min(seconds, d)
	}
	due := r.cfg.Rate * seconds
	if behind := due - float64(result.Sent); behind <= (1-keepUp)*due || behind <= r.cfg.Rate*hiccup.Seconds() {
		return ""
	}
	return fmt.Sprintf("it sent %.0f packets/s instead of %.0f: try another number of --workers (on a veth with one receive queue one is fastest), or another machine",
		result.SentPerSecond, r.cfg.Rate)
}

// programTimes adds the programs' own time per packet.
func (r *run) programTimes(result *packets.Result) error {
	if !r.cfg.Statistics {
		return nil
	}
	programs := []*ebpf.Program{}
	for _, w := range r.workers {
		programs = append(programs, w.objects.Program)
	}
	var err error
	if result.GeneratorNanoseconds, err = meanTime(programs...); err != nil || r.sink == nil {
		return err
	}
	result.SinkNanoseconds, err = meanTime(r.sink.objects.Sink)
	return err
}

// meanTime is the mean run time of programs, in nanoseconds.
func meanTime(programs ...*ebpf.Program) (float64, error) {
	var total time.Duration
	var runs uint64
	for _, p := range programs {
		s, err := p.Stats()
		if err != nil {
			return 0, fmt.Errorf("read the programs' time: %w", err)
		}
		total += s.Runtime
		runs += s.RunCount
	}
	if runs == 0 {
		return 0, nil
	}
	return float64(total.Nanoseconds()) / float64(runs), nil
}

// readStrays returns the first misdelivered packet that each CPU has seen.
func readStrays(table *ebpf.Map, ipv6 bool) ([]packets.Stray, error) {
	var cpus []pktgenStray
	if err := table.Lookup(uint32(0), &cpus); err != nil {
		return nil, fmt.Errorf("read the misdelivered packets: %w", err)
	}
	var all []packets.Stray
	for _, s := range cpus {
		if s.Seen != 0 {
			all = append(all, packets.Stray{
				Flow:   s.Flow,
				Source: addrPort(s.Saddr, s.Sport, ipv6), Destination: addrPort(s.Daddr, s.Dport, ipv6),
			})
		}
	}
	return all, nil
}

// addrPort reads an address and a port as they lay in a packet.
func addrPort(words [4]uint32, port uint16, ipv6 bool) netip.AddrPort {
	var b [16]byte
	for i, w := range words {
		binary.NativeEndian.PutUint32(b[4*i:], w)
	}
	var p [2]byte
	binary.NativeEndian.PutUint16(p[:], port)
	addr := netip.AddrFrom16(b)
	if !ipv6 {
		addr = netip.AddrFrom4([4]byte(b[:4]))
	}
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(p[:]))
}

// broken returns what the run depends on and has gone. The programs do not notice: packets count
// as sent, and as lost from then on.
func (r *run) broken() error {
	if err := stillUp(r.from.Port, r.from.Index); err != nil {
		return fmt.Errorf("send by %v: %w while the run was under way: the counts from then on are not valid", r.from.Port, err)
	}
	if r.sink != nil {
		if err := r.sink.broken(); err != nil {
			return fmt.Errorf("receive on %v: %w while the run was under way: later losses are not losses of the path", r.sink.port, err)
		}
	}
	return r.passage.broken()
}

func (r *receiver) broken() error { return stillAttached(r.link, r.port) }

// stillAttached reports a program that is detached, or whose interface is down.
func stillAttached(l link.Link, port Port) error {
	info, err := l.Info()
	if err != nil || info.XDP() == nil {
		return nil // that cannot be asked
	}
	index := int(info.XDP().Ifindex)
	if index == 0 {
		return errors.New("the interface, or the program on it, was removed")
	}
	return stillUp(port, index)
}

// stillUp reports an interface that is down, or gone. What cannot be read is not reported.
func stillUp(port Port, index int) (problem error) {
	_ = links(port.Netns, func(handle *netlink.Handle) error {
		l, err := handle.LinkByIndex(index)
		switch {
		case errors.As(err, &netlink.LinkNotFoundError{}):
			problem = errors.New("the interface was removed")
		case err == nil && l.Attrs().Flags&net.FlagUp == 0:
			problem = errors.New("the interface went down")
		case err == nil && (l.Attrs().OperState == netlink.OperDown || l.Attrs().OperState == netlink.OperLowerLayerDown):
			problem = errors.New("the interface lost its carrier")
		}
		return nil
	})
	return problem
}
