//go:build linux

package record

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf/btf"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/bpf/drops"
	"github.com/natkit/natkit/internal/doctor"
	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/netlink/socket"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ring"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tap"
	"github.com/natkit/natkit/internal/watch"
)

// startTraces begins to record what is between snapshots. What cannot be had is noted, and the rest goes on.
func (r *recorder) startTraces(ctx context.Context) {
	if r.Drops {
		var err error
		if r.drops, err = countDrops(ctx, r.Netns, r.headerRoom(), r.Note); err != nil {
			r.Note(fmt.Errorf("drops are not recorded: %w", err))
		}
	}
	if r.Packets {
		var err error
		if r.packets, err = tapPackets(ctx, r.Netns); err != nil {
			r.Note(fmt.Errorf("headers of packets are not recorded: %w", err))
		}
	}
}

// writeTraces adds what was traced since the snapshot before.
func (r *recorder) writeTraces(at ring.Stamp) error {
	var failed error
	if r.drops != nil {
		d, headers, err := r.drops.since()
		if err != nil {
			r.Note(fmt.Errorf("drops are not recorded any more: %w", err))
			r.drops.close()
			r.drops = nil
		}
		if r.dropped = d; d != nil {
			failed = r.writer.Drops(at, d)
		}
		if headers != nil {
			failed = cmp.Or(failed, r.writer.Dropped(at, headers))
		}
	}
	if r.packets != nil {
		p, err := r.packets.take()
		if err != nil {
			r.Note(fmt.Errorf("headers of packets are not recorded any more: %w", err))
			r.packets.close()
			r.packets = nil
		}
		if len(p.List) > 0 || p.NotKept > 0 || p.Lost > 0 {
			failed = cmp.Or(failed, r.writer.Packets(at, p))
		}
	}
	return failed
}

func (r *recorder) stopTraces() {
	if r.drops != nil {
		r.drops.close()
	}
	if r.packets != nil {
		r.packets.close()
	}
	r.followed()
}

// outcomes has the connections of services followed now and then, as doctor --trace does: whether they are answered, where
// they are lost, and what the kernel drops meanwhile.
type outcomes struct {
	tracer *doctor.Tracer
	// next is when it is time for it again, cost the CPU time that beginning it took, begun that of the process then.
	next        time.Time
	cost, begun time.Duration
}

// follow begins to follow connections, until the next snapshot, where it is time.
func (r *recorder) follow(ctx context.Context) {
	if r.Outcomes == 0 || time.Now().Before(r.next) {
		return
	}
	began := watch.CPUTime()
	r.tracer = doctor.StartTrace(ctx, doctor.TraceOptions{Netns: r.Netns, Drops: true, SYNs: true, Follow: true, FlowSample: doctor.FlowSample})
	r.begun = watch.CPUTime()
	r.cost = r.begun - began
	r.besides += r.cost
}

// followed ends that, and returns what was seen; nil where nothing was followed. All that the process did meanwhile is a cost
// of it: on a busy host that is many packets, and the next snapshot, with which a fault is seen, must not wait for them to be paid.
func (r *recorder) followed() *snapshot.Trace {
	if r.tracer == nil {
		return nil
	}
	seen := r.tracer.Stop()
	r.tracer = nil
	took := watch.CPUTime() - r.begun
	r.besides += took
	r.cost += took
	r.next = time.Now().Add(max(r.Outcomes, time.Duration(float64(r.cost)/traceShare)))
	return &seen
}

// mostSites bounds the places of drops in a frame; their sum is of all.
const mostSites = 200

// droppedRate is how many headers of dropped packets are kept in a second, droppedEach of one place and reason.
const (
	droppedRate = 60
	droppedEach = 4
)

// headerRoom is how many there is room for until the next snapshot, which may come later.
func (r *recorder) headerRoom() int {
	return int(droppedRate * max(6*r.Every, 30*time.Second).Seconds())
}

// dropCounter counts what the kernel drops, by place and reason, and keeps headers of some of it.
type dropCounter struct {
	tracer *drops.Tracer
	own    *netns.Handle // where natkit's own namespace is recorded
	before *snapshot.Drops
	names  linkNames
}

// countDrops does without headers where the kernel cannot have them.
func countDrops(ctx context.Context, ns *netns.Handle, room int, note func(error)) (d *dropCounter, err error) {
	d = &dropCounter{}
	if ns == nil {
		if d.own, err = netns.Current(); err != nil {
			return nil, err
		}
		ns = d.own
	}
	d.names = newLinkNames(ns)
	o := drops.Options{Netns: ns, PlacesOnly: true, Types: btf.NewCache(), Headers: drops.HeaderOptions{All: droppedRate, Each: droppedEach, Room: room}}
	var without error
	if d.tracer, without = drops.Start(ctx, o); without == nil {
		return d, nil
	}
	o.Headers = drops.HeaderOptions{}
	if d.tracer, err = drops.Start(ctx, o); err != nil {
		return nil, errors.Join(err, d.own.Close())
	}
	note(fmt.Errorf("headers of dropped packets are not recorded: %w", without))
	return d, nil
}

// since returns the drops since the call before, nil for the first, and the headers of some of them, nil where there are none.
func (d *dropCounter) since() (*snapshot.Drops, *ring.Dropped, error) {
	headers := &ring.Dropped{}
	lost, err := d.tracer.Headers(func(h *drops.Header) {
		if data := h.Data[:ring.HeaderBytes(h.Data)]; ring.IsIP(data) {
			headers.List = append(headers.List, ring.DroppedPacket{Site: h.Site, Packet: ring.Packet{
				At: h.At, Interface: d.names.name(h.Interface), Length: uint32(ring.TotalBytes(h.Data)), Data: slices.Clone(data),
			}})
		}
	})
	if headers.Lost = lost; err != nil {
		return nil, nil, err
	}
	if len(headers.List) == 0 && lost == 0 {
		headers = nil
	}
	now, err := d.tracer.Read()
	before := d.before
	d.before = now
	if err != nil || before == nil {
		return nil, headers, err
	}
	later := now.Since(before)
	later.Sites = later.Sites[:min(len(later.Sites), mostSites)]
	return later, headers, nil
}

func (d *dropCounter) close() {
	_ = d.tracer.Close()
	_ = d.own.Close()
}

// linkNames names interfaces of a namespace.
type linkNames struct {
	ns     *netns.Handle
	names  map[int]string
	listed time.Time
}

func newLinkNames(ns *netns.Handle) linkNames { return linkNames{ns: ns, names: map[int]string{}} }

// name is that of an interface; its index where it is gone, empty for none.
func (l *linkNames) name(index int) string {
	if index == 0 {
		return ""
	}
	if name, known := l.names[index]; known {
		return name
	}
	if time.Since(l.listed) > relist {
		l.listed = time.Now()
		_ = l.ns.Do(func() error {
			links, err := socket.Whole(netlink.LinkList)
			for _, one := range links {
				l.names[one.Attrs().Index] = one.Attrs().Name
			}
			return err
		})
	}
	if name, known := l.names[index]; known {
		return name
	}
	return fmt.Sprintf("if%d", index)
}

const (
	// tapEvery is how often packets are taken: as seldom as the kernel's buffer allows.
	tapEvery = 200 * time.Millisecond
	// packetRate is how many headers of TCP, and of ICMP, are kept in a second, on average from one snapshot to the next;
	// beyond, fewer are sampled.
	packetRate = 100
	mostSample = 1 << 16
	// relist is how often interfaces are listed again at most, where one is new.
	relist = 5 * time.Second
)

// packetTap keeps the headers of SYNs, FINs, RSTs and ICMP.
type packetTap struct {
	source *tap.Source
	feed   *tap.Feed
	stop   func() error

	mu    sync.Mutex // what follows
	list  []ring.Packet
	lost  uint64
	since time.Time
	// samples are of pairs of ports of TCP, and of ICMP; seen counts the packets of both since the last snapshot.
	samples tap.Samples
	seen    [2]uint64
	names   linkNames
	failed  error
}

// Indexes of samples and seen.
const (
	ofTCP = iota
	ofICMP
)

func tapPackets(ctx context.Context, ns *netns.Handle) (*packetTap, error) {
	if err := netns.CheckPrivilege(netns.Need{Any: netns.NetRaw, Why: "for packet sockets, to see headers"}); err != nil {
		return nil, err
	}
	t := &packetTap{source: tap.OpenSource(ns), since: time.Now(), samples: tap.Samples{1, 1}, names: newLinkNames(ns)}
	var err error
	if t.feed, err = t.source.Open(false, t.samples, notable); err != nil {
		t.source.Close()
		return nil, err
	}
	t.stop = t.source.WatchEvery(ctx, t, tapEvery)
	return t, nil
}

// See takes the packets that have come.
func (t *packetTap) See() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.seen
	_, err := t.feed.Receive(t.keep)
	t.lost += t.feed.Lost()
	samples := t.samples
	for i := range samples {
		if now := t.seen[i] - before[i]; float64(now) > packetRate*tapEvery.Seconds() && t.seen[i] > t.most(time.Since(t.since)) {
			samples[i] *= 2
		}
	}
	t.failed = cmp.Or(t.failed, err, t.resample(samples))
	return t.failed
}

// Pause: nothing depends on packets that are not seen.
func (t *packetTap) Pause() {}

func (t *packetTap) keep(p *tap.Packet) {
	kind := ofICMP
	if ring.IsTCP(p.Data) {
		kind = ofTCP
	}
	if t.seen[kind]++; t.seen[kind] > t.most(time.Since(t.since)) {
		return
	}
	at := p.At
	if at.IsZero() {
		at = time.Now()
	}
	data := p.Data[:ring.HeaderBytes(p.Data)]
	t.list = append(t.list, ring.Packet{At: at, Interface: t.names.name(p.Interface), Sent: p.Sent, Length: uint32(ring.TotalBytes(p.Data)), Data: slices.Clone(data)})
}

// most is how many headers of each kind are kept in that time.
func (t *packetTap) most(span time.Duration) uint64 {
	return uint64(packetRate * max(span, time.Second).Seconds())
}

func (t *packetTap) resample(to tap.Samples) error {
	for i := range to {
		to[i] = min(max(to[i], 1), mostSample)
	}
	if to == t.samples {
		return nil
	}
	t.samples = to
	return t.feed.Sample(to)
}

// take returns what was kept since the call before. More are sampled again of which there were few.
func (t *packetTap) take() (*ring.Packets, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := &ring.Packets{Sample: uint64(t.samples[ofTCP]), SampleICMP: uint64(t.samples[ofICMP]),
		NotKept: t.seen[ofTCP] + t.seen[ofICMP] - uint64(len(t.list)), Lost: t.lost, List: t.list}
	samples := t.samples
	for i := range samples {
		if t.seen[i] < t.most(time.Since(t.since))/4 {
			samples[i] /= 2
		}
	}
	t.failed = cmp.Or(t.failed, t.resample(samples))
	t.list, t.seen, t.lost, t.since = nil, [2]uint64{}, 0, time.Now()
	return p, t.failed
}

func (t *packetTap) close() {
	_ = t.stop()
	t.feed.Close()
	t.source.Close()
}

// notable keeps SYNs, FINs and RSTs of one in so many pairs of ports, in both directions, and one in so many packets of ICMP,
// as far as they are from or for this host or pass it.
func notable(samples tap.Samples) ([]bpf.RawInstruction, error) {
	v4, v6 := notableOf(4, unix.IPPROTO_ICMP, samples), notableOf(6, unix.IPPROTO_ICMPV6, samples)
	head := tap.Ends([]bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.PACKET_OUTGOING, SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.PACKET_HOST, SkipTrue: tap.Drop},
		bpf.LoadExtension{Num: bpf.ExtProto},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_IP, SkipTrue: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.ETH_P_IPV6, SkipTrue: tap.Drop},
		bpf.Jump{Skip: uint32(len(v4)) + 2},
	})
	// The two ends of head are passed over; its keeping one is never reached.
	return tap.Assemble(slices.Concat(head, v4, v6))
}

func notableOf(version int, icmp uint32, samples tap.Samples) []bpf.Instruction {
	protocolAt, headerLength := uint32(9), bpf.Instruction(bpf.LoadMemShift{Off: 0})
	if version == 6 {
		protocolAt, headerLength = 6, bpf.LoadConstant{Dst: bpf.RegX, Val: tap.IPv6Header}
	}
	// Which ones is decided by their checksum, which differs from one to the next.
	ofICMP := tap.Ends(slices.Concat([]bpf.Instruction{headerLength, bpf.LoadIndirect{Off: 2, Size: 2}}, tap.Chosen(samples[ofICMP])))
	return slices.Concat([]bpf.Instruction{
		bpf.LoadAbsolute{Off: protocolAt, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: icmp, SkipTrue: uint8(len(ofICMP))},
	}, ofICMP, tap.Ends(slices.Concat(tap.TCP(version), []bpf.Instruction{
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: uint32(frame.SYN | frame.FIN | frame.RST)},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: tap.Drop},
		// The same in both directions.
		bpf.LoadIndirect{Off: 0, Size: 2},
		bpf.StoreScratch{Src: bpf.RegA, N: 0},
		bpf.LoadIndirect{Off: 2, Size: 2},
		bpf.LoadScratch{Dst: bpf.RegX, N: 0},
		bpf.ALUOpX{Op: bpf.ALUOpXor},
	}, tap.Chosen(samples[ofTCP]))))
}
