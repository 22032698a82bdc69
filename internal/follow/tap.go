package follow

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/netlink/socket"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/syn"
	"github.com/natkit/natkit/internal/tap"
)

// Tap follows connections from Start to Stop.
type Tap struct {
	ns    *netns.Handle
	began time.Time
	stop  func() error
	// source is where packets come from; own where no other watches it.
	source *tap.Source
	own    bool
	// byways are interfaces that are no way in or out.
	byways []int
	// ports are those of bridges.
	ports []int
	// addressed are interfaces with an address of their own: others may pass frames on to what has one (macvlan, OVS).
	addressed map[int]bool

	mu    sync.Mutex // what follows
	watch *Watch
	feed  *tap.Feed
	rate  *tap.Rate
	// segments is the rate of what follows handshakes.
	segments *tap.Rate
	// datagrams are followed while they are not too many.
	datagrams bool
	lost      uint64
}

// Options specify what to follow.
type Options struct {
	// Netns is the namespace; nil is the one natkit runs in.
	Netns *netns.Handle
	// Source is one of that namespace that others watch, too; nil for one of its own.
	Source *tap.Source
	// Service and Client, where valid, are the destination and the source as clients name them;
	// a port of 0 is any.
	Service, Client netip.AddrPort
}

// ParseEnd reads ADDRESS or ADDRESS:PORT.
func ParseEnd(text string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(a, 0), nil
	}
	end, err := netip.ParseAddrPort(text)
	if err != nil {
		return end, fmt.Errorf("%q is not an address, nor an address with a port, such as 203.0.113.1:443 or [2001:db8::1]:443", text)
	}
	return end, nil
}

// Start begins to follow connections. Needs CAP_NET_RAW in the namespace, or what a tap.Source wants for programs.
func Start(ctx context.Context, o Options) (t *Tap, err error) {
	if err := netns.CheckPrivilege(netns.Need{Any: netns.NetRaw, Why: "for a packet socket, to follow connections"}); err != nil {
		return nil, fmt.Errorf("follow connections: %w", err)
	}
	t = &Tap{ns: o.Netns, source: o.Source, own: o.Source == nil, watch: NewWatch(o.Service, o.Client), rate: tap.NewRate(), segments: tap.NewRate(), datagrams: true}
	if t.own {
		t.source = tap.OpenSource(t.ns)
	}
	if err := t.open(); err != nil {
		t.close()
		return nil, fmt.Errorf("follow connections: %w", err)
	}
	t.stop = t.source.Watch(ctx, t)
	return t, nil
}

func (t *Tap) close() {
	t.feed.Close()
	if t.own {
		t.source.Close()
	}
}

// open begins to see packets.
func (t *Tap) open() (err error) {
	t.began = time.Now()
	var own []netip.Addr
	if err = t.ns.Do(func() error {
		links, _ := socket.Whole(netlink.LinkList)
		t.ports, t.byways = portsAndByways(links)
		t.watch.mtus = map[int]int{}
		for _, l := range links {
			t.watch.mtus[l.Attrs().Index] = l.Attrs().MTU
		}
		own, t.addressed = ownAddresses()
		return nil
	}); err != nil {
		return err
	}
	t.feed, err = t.source.Open(false, t.samples(), func(s tap.Samples) ([]bpf.RawInstruction, error) {
		return kept{s[0], s[1], t.datagrams, t.ports, own}.filter()
	})
	return err
}

// See takes the packets that have come. Where they are too many it gives up datagrams first,
// of which a sample would miss the answers.
func (t *Tap) See() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.receive()
}

// Pause leaves out what waits for a packet that may come in a pause.
func (t *Tap) Pause() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.watch.Pause(time.Since(t.began).Seconds())
}

// bywayKinds are of interfaces that packets pass besides their way: those that tc redirects to a queue and takes
// back (ifb), and copies for who watches.
var bywayKinds = []string{"ifb", "nlmon", "vsockmon"}

// portsAndByways are the ports of the bridges of this namespace, and the interfaces that are no way in or out; none
// where links cannot be listed.
func portsAndByways(links []netlink.Link) (ports, byways []int) {
	bridges := map[int]bool{}
	for _, l := range links {
		bridges[l.Attrs().Index] = l.Type() == "bridge"
	}
	for _, l := range links {
		if bridges[l.Attrs().MasterIndex] {
			ports = append(ports, l.Attrs().Index)
		}
		if slices.Contains(bywayKinds, l.Type()) {
			byways = append(byways, l.Attrs().Index)
		}
	}
	return ports, byways
}

// ownAddresses are those of this host, and the interfaces that have any; none where they cannot be listed.
func ownAddresses() (own []netip.Addr, at map[int]bool) {
	at = map[int]bool{}
	all, _ := socket.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, unix.AF_INET) })
	for _, a := range all {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && !ip.Unmap().IsLoopback() {
			own, at[a.LinkIndex] = append(own, ip.Unmap()), true
		}
	}
	return own, at
}

func (t *Tap) samples() tap.Samples { return tap.Samples{t.rate.Sample, t.segments.Sample} }

// receive takes the packets that wait, and bounds how many will.
func (t *Tap) receive() error {
	segments, others, err := t.take()
	sample := t.rate.Sample
	fewer, rarer := t.segments.Add(segments), t.rate.Add(others)
	if err != nil || !fewer && !rarer {
		return err
	}
	t.watch.partial = t.watch.partial || fewer
	if rarer && t.datagrams {
		t.datagrams, t.rate.Sample = false, sample
		err = t.feed.Attach()
	}
	if err = cmp.Or(err, t.feed.Sample(t.samples())); err != nil {
		return err
	}
	if _, _, err = t.take(); err != nil { // what was chosen before
		return err
	}
	// Those whose answers are not kept any more are not to wait for them.
	t.watch.Pause(time.Since(t.began).Seconds())
	return nil
}

// take takes the packets that wait, and returns how many they were.
func (t *Tap) take() (segments, others int, err error) {
	var f frame.Frame
	n, err := t.feed.Receive(func(p *tap.Packet) {
		if slices.Contains(t.byways, p.Interface) || p.Passing && !t.addressed[p.Interface] && !slices.Contains(t.ports, p.Interface) || f.DecodeNetwork(tap.EtherType(p.Version), p.Data) != nil {
			return
		}
		at := time.Since(t.began)
		if !p.At.IsZero() {
			at = p.At.Sub(t.began)
		}
		if isSegment(&f) {
			segments++
		}
		t.watch.See(Packet{At: at.Seconds(), Interface: p.Interface, Sent: p.Sent, Passing: p.Passing, Astray: p.Passing && t.addressed[p.Interface] && !slices.Contains(t.ports, p.Interface), Frame: &f})
	})
	return segments, n - segments, err
}

// Read returns what was seen so far.
func (t *Tap) Read() (*snapshot.Followed, error) {
	links := map[int]string{}
	err := t.ns.Do(func() error {
		all, err := net.Interfaces()
		for _, l := range all {
			links[l.Index] = l.Name
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("follow connections: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	seconds := now.Sub(t.began).Seconds()
	t.lost += t.feed.Lost()
	r := t.watch.Result(seconds, func(index int) string { return links[index] })
	r.Seconds, r.Sample, r.TCPOnly = seconds, t.rate.Sample, !t.datagrams
	r.Lost += t.lost
	r.PausedSeconds = t.source.Paused(now).Seconds()
	return r, nil
}

// Stop ends the watch and returns what was seen, with what this host does to what was lost. It may be
// called once.
func (t *Tap) Stop() (r *snapshot.Followed, err error) {
	defer t.close()
	if err = t.stop(); err != nil {
		return nil, fmt.Errorf("follow connections: %w", err)
	}
	if r, err = t.Read(); err == nil {
		err = t.ns.Do(func() error {
			t.addUnsent(r)
			return addPlaces(r)
		})
	}
	return r, err
}

// addUnsent adds connections of this host's programs that wait for an answer to a SYN that did not leave.
func (t *Tap) addUnsent(r *snapshot.Followed) {
	opening, err := syn.Opening()
	if err != nil || t.rate.Sample > 1 || r.PausedSeconds > 0 {
		return // the kernel cannot say, or not all that left was seen
	}
	t.watch.unsent(r, opening)
}

// Undecided reports whether connections fail that are too few to judge.
func (t *Tap) Undecided() bool {
	r, err := t.Read()
	return err == nil && slices.ContainsFunc(r.Services, func(s snapshot.FollowedService) bool {
		fails, waits := s.Failing(), s.Steps[snapshot.StepWaiting]
		inner := s.Target.IsValid() || s.Given.IsValid() || s.Failed != nil && s.Failed.Client.Addr().IsPrivate()
		return inner && fails+waits > 0 && fails < fewToJudge && fails+waits > s.Steps[snapshot.StepAnswered]/fewToJudge
	})
}

// fewToJudge is how many connections must have failed for a service to be judged.
const fewToJudge = 5
