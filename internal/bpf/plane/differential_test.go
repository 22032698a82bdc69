package plane

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// place is an interface of the test's host: with addresses, and what is behind it.
type place struct {
	name       string
	mtu        int
	roles      Roles
	addresses  []string
	neighbours []string // that are known
	noEthernet bool
	closed     bool // forwarding is off
	unknown    bool // to the programs
}

var places = []place{
	{name: "wan", mtu: 1500, roles: 1, addresses: []string{"198.51.100.1/24", "2001:db8:1::1/64"},
		neighbours: []string{"198.51.100.254", "198.51.100.9", "198.51.100.2", "2001:db8:1::fe", "2001:db8:1::9", "2001:db8:1::2"}},
	{name: "wan2", mtu: 1400, roles: 2, addresses: []string{"198.18.2.1/24", "2001:db8:2::1/64"}, neighbours: []string{"198.18.2.254", "2001:db8:2::fe"}},
	{name: "lan", mtu: 1500, roles: 4 | Inside, addresses: []string{"10.0.0.1/16", "fd00:0:0:1::1/64"},
		neighbours: append(several("10.0.0.%d", 20), several("fd00:0:0:1::%x", 20)...)},
	{name: "lan2", mtu: 1300, roles: 8 | Inside, addresses: []string{"10.1.0.1/16", "fd00:0:0:2::1/64"},
		neighbours: append(several("10.1.0.%d", 20), several("fd00:0:0:2::%x", 20)...)},
	{name: "tun", mtu: 1400, roles: 4, noEthernet: true, addresses: []string{"10.4.0.1/16", "fd04::1/64"},
		neighbours: append(several("10.4.0.%d", 5), several("fd04::%x", 5)...)},
	{name: "closed", mtu: 1500, roles: 16, closed: true, addresses: []string{"10.3.0.1/16", "fd03::1/64"},
		neighbours: append(several("10.3.0.%d", 5), several("fd03::%x", 5)...)},
	{name: "other", mtu: 1500, unknown: true, addresses: []string{"10.9.0.1/16", "fd09::1/64"},
		neighbours: append(several("10.9.0.%d", 5), several("fd09::%x", 5)...)},
}

// several are the hosts 2 to n.
func several(format string, n int) (out []string) {
	for i := 2; i <= n; i++ {
		out = append(out, fmt.Sprintf(format, i))
	}
	return out
}

// gateways are routes beyond neighbours; of dead ones nothing is known.
var gateways = map[string]string{
	"0.0.0.0/0": "198.51.100.254", "100.64.0.0/16": "198.18.2.254", "100.65.0.0/16": "198.18.2.253", "10.0.128.0/20": "10.0.0.2",
	"::/0": "2001:db8:1::fe", "2001:db8:64::/48": "2001:db8:2::fe", "2001:db8:65::/48": "2001:db8:2::fd", "fd00::/48": "fd00:0:0:1::2",
}

var closedRoutes = map[string]int{
	"10.66.0.0/16": unix.RTN_UNREACHABLE, "10.67.0.0/16": unix.RTN_BLACKHOLE, "10.68.0.0/16": unix.RTN_PROHIBIT,
	"fd66::/32": unix.RTN_UNREACHABLE, "fd67::/32": unix.RTN_BLACKHOLE, "fd68::/32": unix.RTN_PROHIBIT,
}

// buildNetwork makes a host with these interfaces, and what the model knows of it.
func buildNetwork(t testing.TB) (*netns.Handle, *network) {
	host, behind := testutil.Namespace(t, "host"), testutil.Namespace(t, "behind")
	here, there := testutil.Links(t, host), testutil.Links(t, behind)
	for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv6/conf/default/forwarding"} {
		testutil.Sysctl(t, host, name, "1")
	}
	testutil.Sysctl(t, host, "net/ipv6/conf/default/accept_dad", "0")
	n := &network{neighbours: map[netip.Addr][6]byte{}}
	for i, p := range places {
		n.add(t, here, there, i, p)
		if p.closed {
			testutil.Sysctl(t, host, "net/ipv4/conf/"+p.name+"/forwarding", "0")
			testutil.Sysctl(t, host, "net/ipv6/conf/"+p.name+"/forwarding", "0")
		}
	}
	n.addRoutes(t, here)
	return host, n
}

func (n *network) add(t testing.TB, here, there *netns.Links, i int, p place) {
	l := &iface{name: p.name, known: !p.unknown, forwards: !p.closed, mtu: p.mtu, mac: [6]byte{2, 0, 0, 0, 1, byte(i)}}
	if err := here.AddVeth(netns.VethEnd{Name: p.name, MAC: l.mac[:]}, there, netns.VethEnd{Name: p.name}); err != nil {
		t.Fatal(err)
	}
	if err := here.SetMTU(p.name, p.mtu); err != nil {
		t.Fatal(err)
	}
	testutil.Carrier(t, here, p.name)
	testutil.Addresses(t, here, p.name, p.addresses...)
	for j, text := range p.neighbours {
		a, mac := netip.MustParseAddr(text), [6]byte{2, 0, 0, 0, byte(16 + i), byte(j)}
		if err := here.AddNeighbour(p.name, a, mac[:]); err != nil {
			t.Fatal(err)
		}
		n.neighbours[a] = mac
	}
	for _, text := range p.addresses {
		a := netip.MustParsePrefix(text)
		n.routes = append(n.routes, route{to: a.Masked(), link: l}, hostRoute(a.Addr()))
		if a.Addr().Is4() || l.forwards {
			n.routes = append(n.routes, hostRoute(last(a)))
		}
	}
	found, err := here.LinkByName(p.name)
	if err != nil {
		t.Fatal(err)
	}
	l.Interface = Interface{Index: found.Attrs().Index, Roles: p.roles, NoEthernet: p.noEthernet, MAC: net.HardwareAddr(l.mac[:]), Redirect: true}
	n.interfaces = append(n.interfaces, l)
}

func hostRoute(a netip.Addr) route {
	return route{to: netip.PrefixFrom(a, a.BitLen()), kind: local}
}

// last is an IPv4 prefix's address for all, and an IPv6 one's for any router (RFC 4291, 2.6.1).
func last(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	if p.Addr().Is4() {
		for i := p.Bits(); i < 32; i++ {
			b[i/8] |= 0x80 >> (i % 8)
		}
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func (n *network) addRoutes(t testing.TB, here *netns.Links) {
	for to, via := range gateways {
		r := route{to: netip.MustParsePrefix(to), via: netip.MustParseAddr(via)}
		r.link = n.route(r.via).link
		if err := here.AddRoute(r.to, r.via); err != nil {
			t.Fatal(err)
		}
		n.routes = append(n.routes, r)
	}
	for to, kind := range closedRoutes {
		p := netip.MustParsePrefix(to)
		network := &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
		if err := here.RouteAdd(&netlink.Route{Dst: network, Type: kind}); err != nil {
			t.Fatal(err)
		}
		n.routes = append(n.routes, route{to: p, kind: unreachable})
	}
}

// differential compares the programs with the model, one set of tables at a time.
type differential struct {
	t       *testing.T
	host    *netns.Handle
	network *network
	seed    uint64
	compared, redirected, stacked, completed,
	skipped int
	reasons map[int]int
}

// packetsEnv is how many packets and programs are compared at least, of another seed each time.
const packetsEnv = "NATKIT_PACKETS"

// atOnce is how many packets are drawn for one set of tables. What is remembered of fragments has to fit (FRAGMENTS).
const atOnce = 16384

// TestDifferential compares what the programs do with what the model says: a million packets and programs and more, drawn by
// a seed. NATKIT_SEED=… repeats what a failing test printed.
func TestDifferential(t *testing.T) {
	testutil.NeedRoot(t)
	d := &differential{t: t, seed: 1, reasons: map[int]int{}}
	least := number(t, packetsEnv, uint64(1_000_000/testutil.Patience(1)))
	if os.Getenv(packetsEnv) != "" {
		d.seed = rand.Uint64()
	}
	d.seed = number(t, "NATKIT_SEED", d.seed)
	d.host, d.network = buildNetwork(t)
	if err := d.host.Do(func() error { return d.set(0, 1, false) }); errors.Is(err, errNoIngress) {
		testutil.Impossible(t, err.Error())
	}
	for i := uint64(0); uint64(d.compared) < least && !t.Failed(); i++ {
		testutil.Inside(t, d.host, func() error { return d.set(i, atOnce, false) })
	}
	t.Logf("NATKIT_SEED=%d: %d packets and programs: %d redirected, %d to the stack, %d of these completed, %d too short for the kernel; by reason %v",
		d.seed, d.compared, d.redirected, d.stacked, d.completed, d.skipped, d.reasons)
}

// number is that of the environment, or the usual one.
func number(t *testing.T, name string, usual uint64) uint64 {
	text := os.Getenv(name)
	if text == "" {
		return usual
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// errNoIngress: Linux 5.15 does not. Its LRU maps also forget fragments before they are full.
var errNoIngress = errors.New("the kernel does not take the interface of a packet that was forwarded (ingress_ifindex) from a test")

var drawnMarks = MarksOf(3 << 8)

// set compares packets with one set of tables, and at the end what was counted, or, to find it, after each. It runs in the
// host's namespace.
func (d *differential) set(number uint64, packets int, each bool) error {
	g := &generator{Rand: rand.New(rand.NewPCG(d.seed, number))}
	g.m = d.model(g)
	p, err := Load(Config{Tables: g.m.Tables, Interfaces: g.m.known(), Marks: drawnMarks, Keep: 1e12})
	if err != nil {
		return err
	}
	defer p.Close()
	stay, err := stayOnCPU() // where the program at tc leaves what the one at XDP takes
	if err != nil {
		return err
	}
	defer stay()
	r := &runner{Programs: p, out: make([]byte, 4096)}
	if _, err := r.tc(r.Egress, g.m.interfaces[0], make([]byte, 64), 0, offload{}, false, false); errors.Is(err, unix.EINVAL) {
		return errNoIngress
	}
	for i := range packets {
		err := d.one(g, r)
		if err == nil && each {
			if err = d.counters(g.m, p); err != nil {
				err = fmt.Errorf("%s: %w", hex.EncodeToString(g.last.frame), err)
			}
		}
		if err != nil {
			return fmt.Errorf("NATKIT_SEED=%d, tables %d, packet %d: %w\n%s", d.seed, number, i, err, g.m.describe())
		}
	}
	if err := d.counters(g.m, p); err != nil && !each {
		return errors.Join(err, d.set(number, packets, true))
	}
	return nil
}

// model draws tables, and how the interfaces are set.
func (d *differential) model(g *generator) *model {
	m := &model{marks: drawnMarks, ports: map[fragmentID]seen{}, egress: map[fragmentID]seen{}, rules: map[uint32]planeCount{}, reasons: map[planeReason]planeCount{}}
	m.network = *d.network
	m.interfaces = nil
	for _, l := range d.network.interfaces {
		l.RPFilter = oneOf[RPFilter](g, 0, 0, 0, 0, 1, 2)
		l.Redirect = g.in(85)
		m.interfaces = append(m.interfaces, l)
	}
	m.Tables = g.tables()
	return m
}

func (m *model) known() (out []Interface) {
	for _, l := range m.interfaces {
		if l.known {
			out = append(out, l.Interface)
		}
	}
	return out
}

func (m *model) describe() string {
	var b strings.Builder
	for _, l := range m.interfaces {
		fmt.Fprintf(&b, "%s %+v\n", l.name, l.Interface)
	}
	for name, all := range map[string][]Mapping{"destination": m.Destinations, "source": m.Sources} {
		for i := range all {
			fmt.Fprintf(&b, "%s %+v\n", name, all[i])
		}
	}
	return b.String()
}

// one compares one packet, through XDP and through tc, and what the stack gets through the way out.
func (d *differential) one(g *generator, r *runner) error {
	p := g.next()
	mark := oneOf[uint32](g, 0, 0, 0x80, 0xffffffff)
	want := g.m.ingress(p.in, p.frame, mark, p.gso)
	got, err := r.tc(r.Ingress, p.in, p.frame, mark, p.gso, false, g.in(50))
	g.last = p
	if err := d.compare("ingress", p, want, got, err); err != nil {
		return err
	}
	if p.gso.size == 0 { // the program at tc has decided
		want := g.m.forward(p.in, p.frame)
		got, err := r.xdp(p.in, p.frame)
		if err := d.compare("forward", p, want, got, err); err != nil {
			return err
		}
	}
	if want.verdict != stack || got.refused || p.gso.size != 0 {
		return nil
	}
	if g.in(30) {
		return d.complain(g, r, p, got.frame)
	}
	return d.complete(g, r, want, got)
}

// complete sends what the stack got through the way out, mostly the one that routes lead to.
func (d *differential) complete(g *generator, r *runner, half outcome, sent result) error {
	out := half.d.link
	if out == nil || out.NoEthernet || g.in(10) {
		out = g.link()
	}
	p := drawn{in: out, frame: sent.frame}
	want := g.m.goOut(out, p.frame, sent.mark, false)
	got, err := r.tc(r.Egress, out, p.frame, sent.mark, offload{}, false, g.in(50))
	d.completed++
	return d.compare("egress", p, want, got, err)
}

// complain has the host send an ICMP error about what its stack got.
func (d *differential) complain(g *generator, r *runner, about drawn, half []byte) error {
	h, ok := readHeader(half, 14, half[12] == 0x86, false)
	if !ok {
		return nil
	}
	e := ends{src: g.outside(h.v6), dst: h.src, protocol: icmp4, mac: about.in.mac}
	quoted := half[14:min(h.end, 14+oneOf(g, 28, 48, 96, 500))]
	message := append([]byte{oneOf[byte](g, 3, 11), 0, 0, 0, 0, 0, 0, 0}, quoted...)
	if h.v6 {
		message[0], e.protocol = oneOf[byte](g, 1, 2, 3), icmp6
		g.seal(message, e.src, e.dst, icmp6)
	} else {
		binary.BigEndian.PutUint16(message[2:], complement(ones(message)))
	}
	ip := g.around(&e, message)
	if h.v6 && ip[6] != icmp6 {
		return nil // the host's own have no extension headers
	}
	p := drawn{in: about.in, frame: slices.Concat(e.mac[:], about.in.mac[:], half[12:14], ip)}
	own := g.in(90)
	want := g.m.goOut(p.in, p.frame, 0, own)
	got, err := r.tc(r.Egress, p.in, p.frame, 0, offload{}, own, g.in(50))
	d.completed++
	return d.compare("egress of an error", p, want, got, err)
}

// result is what a program made of a packet.
type result struct {
	code    uint32
	frame   []byte
	mark    uint32
	refused bool // by the kernel, before the program ran
}

// runner runs the programs.
type runner struct {
	*Programs
	out           []byte
	ctx           [192]byte
	lacksComplete bool // the kernel has no such checksums for tests
}

func (r *runner) xdp(in *iface, frame []byte) (result, error) {
	ctx := make([]byte, 24) // struct xdp_md
	binary.NativeEndian.PutUint32(ctx[4:], uint32(len(frame)))
	binary.NativeEndian.PutUint32(ctx[12:], uint32(in.Index))
	return r.run(r.Forward, &ebpf.RunOptions{Data: frame, DataOut: r.out, Context: ctx})
}

// checksumComplete gives a socket buffer the sum of its data, as cards do, and has the kernel compare it afterwards
// (BPF_F_TEST_SKB_CHECKSUM_COMPLETE, Linux 6.10).
const checksumComplete = 1 << 2

func (r *runner) tc(program *ebpf.Program, dev *iface, frame []byte, mark uint32, gso offload, own, complete bool) (result, error) {
	clear(r.ctx[:])
	put := binary.NativeEndian.PutUint32 // struct __sk_buff
	put(r.ctx[8:], mark)
	if !own {
		put(r.ctx[36:], 1)
	}
	put(r.ctx[40:], uint32(dev.Index))
	put(r.ctx[164:], uint32(gso.segments))
	put(r.ctx[176:], uint32(gso.size))
	opts := &ebpf.RunOptions{Data: frame, DataOut: r.out, Context: slices.Clone(r.ctx[:]), ContextOut: r.ctx[:]}
	if complete && !r.lacksComplete {
		opts.Flags = checksumComplete
	}
	out, err := r.run(program, opts)
	if opts.Flags != 0 && (out.refused || errors.Is(err, unix.EINVAL)) {
		opts.Flags = 0
		if out, err = r.run(program, opts); err == nil && !out.refused {
			r.lacksComplete = true
		}
	}
	out.mark = binary.NativeEndian.Uint32(r.ctx[8:])
	return out, err
}

func (r *runner) run(program *ebpf.Program, opts *ebpf.RunOptions) (result, error) {
	code, err := program.Run(opts)
	if len(opts.Data) < 14+40 && errors.Is(err, unix.EINVAL) {
		return result{refused: true}, nil
	}
	return result{code: code, frame: append([]byte(nil), opts.DataOut...)}, err
}

var codes = map[string]map[verdict]uint32{
	"forward": {pass: 2, redirected: 4},
	"ingress": {pass: 0xffffffff, stack: 0xffffffff, redirected: 7},
	"egress":  {pass: 0xffffffff, dropped: 2},
}

// compare asks whether a program did what the model does.
func (d *differential) compare(program string, p drawn, want outcome, got result, err error) error {
	if got.refused {
		d.skipped++
		return nil
	}
	d.compared++
	switch want.verdict {
	case redirected:
		d.redirected++
	case stack:
		d.stacked++
	}
	if err == nil {
		err = want.differs(codes[strings.Fields(program)[0]], p.frame, got, program != "forward")
	}
	if err != nil {
		return fmt.Errorf("%s at %s, GSO %v: %w\n%+v\nin   %s\ngot  %s\nwant %s", program, p.in.name, p.gso, err, want.d,
			hex.EncodeToString(p.frame), hex.EncodeToString(got.frame), hex.EncodeToString(want.frame))
	}
	return nil
}

func (o *outcome) differs(codes map[verdict]uint32, in []byte, got result, marks bool) error {
	switch {
	case codes[o.verdict] != got.code:
		return fmt.Errorf("returns %d, want %d", int32(got.code), int32(codes[o.verdict]))
	case o.verdict == dropped:
		return nil
	case marks && got.mark != o.mark:
		return fmt.Errorf("mark %#x, want %#x", got.mark, o.mark)
	case len(got.frame) != len(o.frame):
		return fmt.Errorf("%d bytes, want %d", len(got.frame), len(o.frame))
	}
	for _, c := range o.checks {
		if was, is := c.sum(in), c.sum(got.frame); was != is {
			return fmt.Errorf("the checksum at %d covers what adds up to %#x, before to %#x", c.at, is, was)
		}
		check := got.frame[c.at : c.at+2]
		if c.nonzero && check[0] == 0 && check[1] == 0 {
			return fmt.Errorf("the checksum at %d became none", c.at)
		}
	}
	for _, c := range o.checks {
		copy(o.frame[c.at:c.at+2], got.frame[c.at:])
	}
	for i := range got.frame {
		if got.frame[i] != o.frame[i] {
			return fmt.Errorf("byte %d is %#02x, want %#02x", i, got.frame[i], o.frame[i])
		}
	}
	return nil
}

// counters compares what the programs counted.
func (d *differential) counters(m *model, p *Programs) error {
	for rule := range m.Tables.Rules + 1 {
		if got, err := counted(p.Rules, rule); err != nil || got != m.rules[rule] {
			return fmt.Errorf("rule %d: %+v, want %+v (%w)", rule, got, m.rules[rule], err)
		}
	}
	for reason := range planeReasonREASONS {
		got, err := counted(p.Reasons, uint32(reason))
		if err != nil || got != m.reasons[reason] {
			return fmt.Errorf("reason %d: %+v, want %+v (%w)", reason, got, m.reasons[reason], err)
		}
		d.reasons[int(reason)] += int(got.Packets)
	}
	return nil
}

// counted is what all CPUs counted together.
func counted(m *ebpf.Map, key uint32) (sum planeCount, err error) {
	var all []planeCount
	err = m.Lookup(key, &all)
	for _, c := range all {
		sum.Packets += c.Packets
		sum.Bytes += c.Bytes
	}
	return sum, err
}
