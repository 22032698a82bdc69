package apply

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/gateway/host"
	"github.com/natkit/natkit/internal/gateway/look"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/gateway/pcp"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

// home is a gateway at 198.51.100.1 and 192.168.1.1, with a host outside, 198.51.100.9, and inside, 192.168.1.10 and .11.
type home struct {
	*service
	inside, outside *netns.Handle
}

func newHome(t *testing.T) *home {
	testutil.NeedFeature(t, testutil.Hairpin)
	w := newWorld(t)
	h := &home{service: &service{world: w, file: filepath.Join(t.TempDir(), "gateway.yaml"), reload: make(chan os.Signal, 1), ended: make(chan error, 1)},
		inside: testutil.Namespace(t), outside: testutil.Namespace(t)}
	testutil.Veth(t, testutil.End{Netns: w.ns, Name: "out", Addresses: []string{"198.51.100.1/24"}}, testutil.End{Netns: h.outside, Name: "eth0", Addresses: []string{"198.51.100.9/24"}})
	testutil.Veth(t, testutil.End{Netns: w.ns, Name: "in", Addresses: []string{"192.168.1.1/24", "fd00:1::1/64"}}, testutil.End{Netns: h.inside, Name: "eth0", Addresses: []string{"192.168.1.10/24", "192.168.1.11/24", "fd00:1::10/64"}})
	if err := testutil.Links(t, h.inside).AddRoute(netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr("192.168.1.1")); err != nil {
		t.Fatal(err)
	}
	h.echo("192.168.1.10:5000")
	h.echo("192.168.1.11:5000")
	return h
}

const homeText = `gateway:
  interfaces: {wan: out, lan: in}
  pcp: {limit: 3, ports: 40000-40999}
  nat:
    - masquerade: {from: 192.168.1.0/24}
    - dnat: {on: wan, port: udp/40500, to: "192.168.1.11:5000"}
`

// echo answers datagrams inside, with its own address before what they have.
func (h *home) echo(at string) {
	h.t.Helper()
	c := h.socket(h.inside, at, "")
	go func() {
		for buf := make([]byte, 100); ; {
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			c.WriteToUDPAddrPort(append([]byte(at+" "), buf[:n]...), from)
		}
	}()
}

// socket is one of UDP, connected where to is not empty.
func (h *home) socket(ns *netns.Handle, from, to string) *net.UDPConn {
	h.t.Helper()
	var c *net.UDPConn
	err := ns.Do(func() (err error) {
		local := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(from))
		network := map[bool]string{true: "udp4", false: "udp6"}[local.IP.To4() != nil]
		if to == "" {
			c, err = net.ListenUDP(network, local)
		} else {
			c, err = net.DialUDP(network, local, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to)))
		}
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { c.Close() })
	return c
}

// asks sends a datagram until there is an answer, or an error of ICMP.
func (h *home) asks(ns *netns.Handle, from, to string, text []byte) (string, error) {
	h.t.Helper()
	c := h.socket(ns, from, to)
	defer c.Close()
	buf := make([]byte, 2000)
	for deadline := time.Now().Add(testutil.Patience(time.Minute)); ; {
		c.Write(text)
		c.SetReadDeadline(time.Now().Add(time.Second))
		n, err := c.Read(buf)
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) || time.Now().After(deadline) {
			return string(buf[:max(n, 0)]), err
		}
	}
}

// pcpMap is a request of PCP for UDP port 5000.
func pcpMap(client string, nonce byte, suggested uint16, lifetime uint32) []byte {
	b := binary.BigEndian.AppendUint32([]byte{2, 1, 0, 0}, lifetime)
	a, any4 := netip.MustParseAddr(client).As16(), netip.IPv4Unspecified().As16()
	b = append(append(b, a[:]...), nonce, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, unix.IPPROTO_UDP, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, 5000), suggested)
	return append(b, any4[:]...)
}

// mapped is what an answer of PCP says: the result, the lifetime, the epoch and the port outside.
func (h *home) mapped(client string, nonce byte, suggested uint16, lifetime uint32) (result byte, seconds, epoch uint32, external string) {
	h.t.Helper()
	var text string
	var err error
	within(h.t, time.Minute, "somebody answers", func() bool {
		text, err = h.asks(h.inside, client+":0", "192.168.1.1:5351", pcpMap(client, nonce, suggested, lifetime))
		return !errors.Is(err, syscall.ECONNREFUSED)
	})
	if err != nil || len(text) != 60 || text[:2] != "\x02\x81" {
		h.t.Fatalf("%q, %v", text, err)
	}
	b := []byte(text)
	a := netip.AddrFrom16([16]byte(b[44:60])).Unmap()
	return b[3], binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:]), netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[42:])).String()
}

// reaches wants a host to be reached at an address outside, by a connection that is new.
func (h *home) reaches(ns *netns.Handle, from, to, want string) {
	h.t.Helper()
	text, err := h.asks(ns, from+":0", to, []byte("hi"))
	if err != nil || text != want+" hi" {
		h.t.Errorf("%s to %s reaches %q, %v, and should %s", from, to, text, err, want)
	}
}

// open are the leases in force.
func (h *home) open() string {
	h.t.Helper()
	p, err := h.InForce()
	if err != nil || p == nil {
		h.t.Fatal(p, err)
	}
	all, err := engine.Standard.Leases(h.ns, p)
	if err != nil {
		h.t.Fatal(err)
	}
	var words []string
	for _, l := range all {
		words = append(words, fmt.Sprintf("%d %s %s", l.Protocol, l.External, l.Internal))
	}
	return strings.Join(words, ", ")
}

func (h *home) wantOpen(what, want string) {
	h.t.Helper()
	if got := h.open(); got != want {
		h.t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// TestHostsOpenPorts: by PCP and NAT-PMP, from inside alone; what is opened works from outside and inside, and is closed.
func TestHostsOpenPorts(t *testing.T) {
	h := newHome(t)
	h.write(homeText)
	h.begin(nil)
	generation := h.state().Digest
	if _, err := h.asks(h.outside, "198.51.100.9:0", "198.51.100.1:5351", pcpMap("198.51.100.9", 1, 40001, 600)); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a host outside is answered: %v", err)
	}
	c := h.socket(h.inside, "192.168.1.10:0", "198.51.100.1:5351")
	defer c.Close()
	c.Write(pcpMap("192.168.1.10", 1, 40003, 600)) // for the address outside: opens nothing
	result, seconds, _, external := h.mapped("192.168.1.10", 1, 40001, 600)
	if result != 0 || seconds != 600 || external != "198.51.100.1:40001" {
		t.Fatal(result, seconds, external)
	}
	h.waitSaid("192.168.1.10:5000 has opened udp 198.51.100.1:40001 to itself, for 10m0s")
	h.reaches(h.outside, "198.51.100.9", external, "192.168.1.10:5000")
	h.reaches(h.inside, "192.168.1.11", external, "192.168.1.10:5000")
	// The same host by NAT-PMP, another one whose port is taken, and one of a rule of the file.
	if text, err := h.asks(h.inside, "192.168.1.10:0", "192.168.1.1:5351", []byte{0, 0}); err != nil || !strings.HasSuffix(text, "\xc6\x33\x64\x01") || text[:4] != "\x00\x80\x00\x00" {
		t.Errorf("the address outside: %q, %v", text, err)
	}
	text, err := h.asks(h.inside, "192.168.1.11:0", "192.168.1.1:5351", []byte{0, 1, 0, 0, 5000 >> 8, 5000 & 0xff, 40002 >> 8, 40002 & 0xff, 0, 0, 2, 88})
	if err != nil || len(text) != 16 || text[:4] != "\x00\x81\x00\x00" || text[8:] != "\x13\x88\x9c\x42\x00\x00\x02\x58" {
		t.Errorf("%q, %v", text, err)
	}
	if text, err := h.asks(h.inside, "[fd00:1::10]:0", "[fd00:1::1]:5351", pcpMap("fd00:1::10", 1, 0, 600)); err != nil || len(text) != 60 || text[3] != 4 {
		t.Errorf("over IPv6: %q, %v", text, err)
	}
	h.reaches(h.outside, "198.51.100.9", "198.51.100.1:40002", "192.168.1.11:5000")
	h.reaches(h.outside, "198.51.100.9", "198.51.100.1:40500", "192.168.1.11:5000")
	for _, taken := range []uint16{40001, 40500} {
		if result, _, _, external := h.mapped("192.168.1.11", 2, taken, 600); result != 0 || external != "198.51.100.1:40002" {
			t.Errorf("it is not what NAT-PMP opened: %d %s", result, external)
		}
	}
	h.wantOpen("two", "17 198.51.100.1:40001 192.168.1.10:5000, 17 198.51.100.1:40002 192.168.1.11:5000")
	if s := h.state(); s.Integrity != gateway.RulesIntact || s.Digest != generation {
		t.Errorf("%+v", s)
	}
	h.status(func(s *observe.Status) {
		if len(s.Leases) != 2 || s.Leases[0].Flows == 0 || s.Leases[0].SecondsLeft > 600 || s.Leases[0].SecondsLeft < 1 || len(s.Notes) != 0 {
			t.Errorf("%+v, %q", s.Leases, s.Notes)
		}
	})
	h.explains("udp 198.51.100.9:7 -> 198.51.100.1:40001", "out", "192.168.1.10:5000", "pcp[40001] udp")
	h.explains("udp 192.168.1.11:7 -> 198.51.100.1:40001", "in", "192.168.1.10:5000", "pcp[40001] udp")
	if result, _, _, _ := h.mapped("192.168.1.10", 9, 40001, 0); result != 2 {
		t.Errorf("it is closed without its nonce: %d", result)
	}
	if result, seconds, _, _ := h.mapped("192.168.1.10", 1, 0, 0); result != 0 || seconds != 0 {
		t.Error(result, seconds)
	}
	h.wantOpen("one closed", "17 198.51.100.1:40002 192.168.1.11:5000")
	h.end()
	h.wantOpen("after the service", "17 198.51.100.1:40002 192.168.1.11:5000")
	h.status(func(s *observe.Status) {
		if len(s.Leases) != 1 || !strings.Contains(strings.Join(s.Notes, " "), "no 'natkit gateway run' answers hosts inside") {
			t.Errorf("%+v, %q", s.Leases, s.Notes)
		}
	})
}

// A port that another program has is waited for.
func TestPortOfRequestsTaken(t *testing.T) {
	h := newHome(t)
	other := h.socket(h.ns, "0.0.0.0:5351", "")
	k := newKeeper(&Service{Host: h.Host, File: "gateway.yaml"}, &manager{})
	var lines []string
	k.Log = func(line string) { lines = append(lines, line) }
	if err := k.apply(t.Context(), []byte(homeText), newInputs("gateway.yaml"), "start"); err != nil {
		t.Fatal(err)
	}
	const said = "pcp: answer requests by in: "
	k.usual(t.Context())
	if text := strings.Join(lines, "\n"); strings.Count(text, said) != 1 || !strings.Contains(text, "address already in use") {
		t.Error(text)
	}
	other.Close()
	k.usual(t.Context())
	if k.leases.unheard != "" || len(k.leases.listeners) != 2 {
		t.Errorf("%q %v", k.leases.unheard, k.leases.listeners)
	}
	k.leases.end(k)
}

// A flood from one host keeps another one from its port for a moment at most.
func TestFloodOfRequests(t *testing.T) {
	h := newHome(t)
	h.write(homeText)
	h.begin(nil)
	flood := h.socket(h.inside, "192.168.1.10:0", "192.168.1.1:5351")
	for i := range 3 * readSecond {
		flood.Write(pcpMap("192.168.1.10", byte(i), uint16(40000+i%1000), uint32(i%2)*600)) // where the socket is full it is lost
	}
	if result, _, _, external := h.mapped("192.168.1.11", 1, 40999, 600); result != 0 || external != "198.51.100.1:40999" {
		t.Error(result, external)
	}
	if n := strings.Count(h.open(), "192.168.1.10:5000"); n > 1 {
		t.Errorf("%d leases of one port", n)
	}
	h.end()
}

// TestHostsOfOtherNetworks: who is in one network has no port of a host in another one closed or opened.
func TestHostsOfOtherNetworks(t *testing.T) {
	h := newHome(t)
	other := testutil.Namespace(t)
	testutil.Veth(t, testutil.End{Netns: h.ns, Name: "in2", Addresses: []string{"192.168.2.1/24"}}, testutil.End{Netns: other, Name: "eth0", Addresses: []string{"192.168.2.10/24", "192.168.1.10/32"}})
	for _, name := range []string{"all", "in2"} {
		testutil.Sysctl(t, h.ns, "net/ipv4/conf/"+name+"/rp_filter", "0")
	}
	h.write(strings.Replace(homeText, "lan: in}", "lan: [in, in2]}", 1))
	h.begin(nil)
	const opened = "\x00\x81\x00\x00"
	open := []byte{0, 1, 0, 0, 5000 >> 8, 5000 & 0xff, 40002 >> 8, 40002 & 0xff, 0, 0, 2, 88}
	if text, err := h.asks(h.inside, "192.168.1.10:0", "192.168.1.1:5351", open); err != nil || !strings.HasPrefix(text, opened) {
		t.Fatalf("%q, %v", text, err)
	}
	forged := h.socket(other, "192.168.1.10:0", "192.168.2.1:5351")
	forged.Write([]byte{0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	forged.Write([]byte{0, 1, 0, 0, 5001 >> 8, 5001 & 0xff, 40003 >> 8, 40003 & 0xff, 0, 0, 2, 88})
	// What comes after these by the same interface is answered after them.
	open[4], open[5] = 5002>>8, 5002&0xff
	if text, err := h.asks(other, "192.168.2.10:0", "192.168.2.1:5351", open); err != nil || !strings.HasPrefix(text, opened) {
		t.Fatalf("%q, %v", text, err)
	}
	if got := h.open(); !strings.Contains(got, "198.51.100.1:40002 192.168.1.10:5000") || strings.Contains(got, "192.168.1.10:5001") {
		t.Errorf("%q", got)
	}
	h.end()
}

// TestNoAnswersAfterUndo: port 5351 is another program's while the gateway is undone.
func TestNoAnswersAfterUndo(t *testing.T) {
	h := newHome(t)
	k := newKeeper(&Service{Host: h.Host, File: "gateway.yaml"}, &manager{})
	k.Log = func(string) {}
	apply := func() {
		t.Helper()
		if err := k.apply(t.Context(), []byte(homeText), newInputs("gateway.yaml"), "start"); err != nil {
			t.Fatal(err)
		}
	}
	apply()
	if len(k.leases.listeners) == 0 {
		t.Fatal("nothing listens")
	}
	k.suspended, k.leases.left = true, 1
	k.leases.look(t.Context(), k, time.Now())
	h.socket(h.ns, "0.0.0.0:5351", "").Close()
	if len(k.leases.listeners) != 0 || k.leases.left != 0 {
		t.Error("it is announced")
	}
	if apply(); len(k.leases.listeners) == 0 {
		t.Error("nothing listens again")
	}
	k.leases.end(k)
}

// TestStateThatCannotBeKept: it is logged once, whatever else succeeds, and kept as soon as it can be.
func TestStateThatCannotBeKept(t *testing.T) {
	h := newHome(t)
	k := newKeeper(&Service{Host: h.Host, File: "gateway.yaml"}, &manager{})
	var lines []string
	k.Log = func(line string) { lines = append(lines, line) }
	if err := k.apply(t.Context(), []byte(homeText), newInputs("gateway.yaml"), "start"); err != nil {
		t.Fatal(err)
	}
	id, err := k.Host.id()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(k.Host.store().Dir(), fmt.Sprintf("leases-%d", id.Inode))
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(path, "in the way"), 0o755); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		k.leases.lend(k, time.Now())
		k.leases.save(k, time.Now())
	}
	if text := strings.Join(lines, "\n"); strings.Count(text, "pcp: keep leases: ") != 1 {
		t.Error(text)
	}
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	if k.usual(t.Context()); k.leases.unkept != "" || k.Host.store().PCP(id) == nil {
		t.Error("it is not kept", k.leases.unkept)
	}
	k.leases.end(k)
}

// TestRenewalsAreKept: within a second, and at the end; a lease that begins is kept before its host is answered.
func TestRenewalsAreKept(t *testing.T) {
	h := newHome(t)
	k := newKeeper(&Service{Host: h.Host, File: "gateway.yaml"}, &manager{})
	k.Log = func(string) {}
	if err := k.apply(t.Context(), []byte(homeText), newInputs("gateway.yaml"), "start"); err != nil {
		t.Fatal(err)
	}
	id, err := k.Host.id()
	if err != nil {
		t.Fatal(err)
	}
	l := k.leases
	var via *listener
	for key, one := range l.listeners {
		if key.network == "udp4" {
			via = one
		}
	}
	// asks has a host ask for so many seconds, and returns how many are kept.
	asks := func(seconds uint32) int {
		t.Helper()
		r := asked{via, netip.MustParseAddrPort("192.168.1.10:4000"), netip.MustParseAddr("192.168.1.1"), pcpMap("192.168.1.10", 1, 40001, seconds)}
		l.answer(k, r, time.Now())
		return keptFor(k.Host.store().PCP(id))
	}
	if n := asks(600); n != 600 {
		t.Errorf("begun: %d s are kept", n)
	}
	if n := asks(3600); n != 600 {
		t.Errorf("renewed: %d s are kept at once", n)
	}
	if l.look(t.Context(), k, time.Now()); keptFor(k.Host.store().PCP(id)) < 3000 {
		t.Error("not kept with the next look")
	}
	asks(7200)
	if l.end(k); keptFor(k.Host.store().PCP(id)) < 7000 {
		t.Error("not kept at the end")
	}
}

// keptFor is for how many seconds a lease was to last when a state was written; 0 for none.
func keptFor(s *pcp.State) int {
	if s == nil || len(s.Leases) == 0 {
		return 0
	}
	return int(s.Leases[0].Expires.Sub(s.Saved).Round(time.Second) / time.Second)
}

// status is what 'natkit gateway status' reports.
func (h *home) status(see func(*observe.Status)) {
	h.t.Helper()
	s, err := look.New(look.Options{Netns: h.ns, Store: h.store(), Journal: h.Apply.Journal}).Look(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	see(s)
}

// explains wants a packet to be led to a host inside by a lease.
func (h *home) explains(packet, in, to, rule string) {
	h.t.Helper()
	facts, err := host.Read(h.t.Context(), h.ns, host.Options{})
	if err != nil {
		h.t.Fatal(err)
	}
	plan, err := h.InForce()
	if err == nil {
		plan.Leases, err = engine.Standard.Leases(h.ns, plan)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	routes, err := host.OpenRoutes(h.ns)
	if err != nil {
		h.t.Fatal(err)
	}
	defer routes.Close()
	p, err := observe.ParsePacket([]string{packet})
	if err != nil {
		h.t.Fatal(err)
	}
	p.In = in
	e, err := engine.Standard.Follow(nil, plan, facts, routes.Follow, p)
	if err != nil || e.Fate != observe.Forwarded || e.Destination.String() != to || e.Destination.Rule == nil || e.Destination.Rule.String() != rule || e.Plan != gateway.Digest(plan) {
		h.t.Errorf("%+v, %v", e, err)
		return
	}
	if source := e.Source.String(); in == "in" && !strings.HasPrefix(source, "198.51.100.1") || in == "out" && source != "198.51.100.9:7" {
		h.t.Errorf("the source becomes %s", source)
	}
}

// TestPortsOutliveRestarts: by SIGTERM, by SIGKILL, and where the rules or the map are gone meanwhile; the epoch goes on.
func TestPortsOutliveRestarts(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	h := newHome(t)
	h.write(homeText)
	h.begin(nil)
	if result, _, _, external := h.mapped("192.168.1.10", 1, 40001, 3600); result != 0 || external != "198.51.100.1:40001" {
		t.Fatal(result, external)
	}
	const open = "17 198.51.100.1:40001 192.168.1.10:5000"
	h.end()
	h.wantOpen("ended", open)
	h.ip("nft flush map inet natkit leases4")
	h.wantOpen("flushed", "")
	h.begin(nil)
	h.wantOpen("begun again", open)
	if result, _, _, _ := h.mapped("192.168.1.10", 2, 40001, 3600); result != 2 {
		t.Errorf("another nonce after a restart: %d", result)
	}
	h.end()
	h.ip("nft flush ruleset")
	h.begin(nil)
	h.wantOpen("put in force again", open)
	h.end()
	cmd := h.start(helperBrief{Service: h.file})
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _, first, _ := h.mapped("192.168.1.10", 1, 40001, 3600)
	if result, _, _, external := h.mapped("192.168.1.11", 1, 40003, 3600); result != 0 || external != "198.51.100.1:40003" {
		t.Error(result, external)
	}
	killHard(t, cmd)
	const both = open + ", 17 198.51.100.1:40003 192.168.1.11:5000"
	h.wantOpen("killed", both)
	h.reaches(h.outside, "198.51.100.9", "198.51.100.1:40003", "192.168.1.11:5000")
	h.begin(nil)
	h.wantOpen("after a kill", both)
	_, _, later, _ := h.mapped("192.168.1.10", 1, 40001, 3600)
	if later < first {
		t.Errorf("the epoch went from %d to %d", first, later)
	}
	// Another file that has a port for a rule of its own, and one without pcp.
	h.write(strings.Replace(homeText, "udp/40500", "udp/40000-40001", 1))
	h.waitSaid("file changed: ")
	within(t, time.Minute, "the rule has the port", func() bool { return h.open() == "17 198.51.100.1:40003 192.168.1.11:5000" })
	h.write(strings.Replace(homeText, "  pcp: {limit: 3, ports: 40000-40999}\n", "", 1))
	within(t, time.Minute, "nothing listens", func() bool {
		c := h.socket(h.inside, "192.168.1.10:0", "192.168.1.1:5351")
		defer c.Close()
		c.Write([]byte{0, 0})
		c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		_, err := c.Read(make([]byte, 100))
		return errors.Is(err, syscall.ECONNREFUSED)
	})
	h.write(homeText)
	within(t, time.Minute, "pcp again", func() bool { p, err := h.InForce(); return err == nil && p.PCP != nil })
	h.wantOpen("without a state", "")
	if _, _, epoch, _ := h.mapped("192.168.1.10", 3, 40001, 3600); epoch > later && later > 5 {
		t.Errorf("the epoch is %d, and not a new one", epoch)
	}
	h.end()
}

// A port that a program on the gateway has is not given; another address takes what is open along, and is announced.
func TestPortsOfTheGateway(t *testing.T) {
	h := newHome(t)
	h.write(homeText)
	h.begin(nil)
	h.socket(h.ns, "0.0.0.0:40001", "")
	result, _, _, external := h.mapped("192.168.1.10", 1, 40001, 3600)
	if result != 0 || external == "198.51.100.1:40001" || !strings.HasPrefix(external, "198.51.100.1:40") {
		t.Error(result, external)
	}
	hears := h.socket(h.inside, "0.0.0.0:5350", "")
	h.ip("ip addr del 198.51.100.1/24 dev out")
	h.ip("ip addr add 198.51.100.77/24 dev out")
	moved := strings.Replace(external, "198.51.100.1:", "198.51.100.77:", 1)
	within(t, time.Minute, "moved", func() bool { return h.open() == "17 "+moved+" 192.168.1.10:5000" })
	heard := map[string]bool{}
	for buf := make([]byte, 100); !heard["pcp"] || !heard["nat-pmp"]; {
		hears.SetReadDeadline(time.Now().Add(testutil.Patience(time.Minute)))
		n, from, err := hears.ReadFromUDPAddrPort(buf)
		if err != nil {
			t.Fatal(heard, err)
		}
		switch text := string(buf[:n]); {
		case from.String() != "192.168.1.1:5351":
			t.Errorf("from %s", from)
		case n == 24 && strings.HasPrefix(text, "\x02\x80\x00\x00"):
			heard["pcp"] = true
		case n == 12 && strings.HasSuffix(text, "\xc6\x33\x64\x4d"):
			heard["nat-pmp"] = true
		}
	}
	h.reaches(h.outside, "198.51.100.9", moved, "192.168.1.10:5000")
	h.end()
}

// An apply says that nobody answers without the service, and keeps what is open.
func TestApplyKeepsPorts(t *testing.T) {
	h := newHome(t)
	h.write(homeText)
	h.begin(nil)
	if result, _, _, _ := h.mapped("192.168.1.10", 1, 40001, 3600); result != 0 {
		t.Fatal(result)
	}
	if result, _, _, external := h.mapped("192.168.1.11", 2, 40002, 3600); result != 0 || external != "198.51.100.1:40002" {
		t.Fatal(result, external)
	}
	h.write(homeText + "    - dnat: {on: wan, port: udp/40002, to: 192.168.1.11}\n")
	h.waitSaid("192.168.1.11:5000 has no longer udp 198.51.100.1:40002")
	h.write(homeText)
	within(t, time.Minute, "the file as before", func() bool { return strings.Count(h.said(), "file changed: ") == 2 })
	h.end()
	r := h.prepare(wish(homeText + "    - dnat: {on: wan, port: tcp/80, to: 192.168.1.10}\n"))
	if notes := strings.Join(r.Notes, "; "); !strings.Contains(notes, "pcp: hosts that ask for ports are answered under 'natkit gateway run'") {
		t.Errorf("%q", notes)
	}
	a, err := r.Apply(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	const open = "17 198.51.100.1:40001 192.168.1.10:5000"
	h.wantOpen("applied", open)
	if _, err := h.Undo(a.ID()); err != nil {
		t.Fatal(err)
	}
	h.wantOpen("undone", open)
}

// The capabilities of the unit are enough.
func TestPortsByTheUnit(t *testing.T) {
	h := newHome(t)
	h.write(homeText)
	cmd := h.start(helperBrief{Service: h.file, Capabilities: capabilitiesOf(t)})
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if result, _, _, external := h.mapped("192.168.1.10", 1, 40001, 3600); result != 0 || external != "198.51.100.1:40001" {
		t.Error(result, external)
	}
	h.wantOpen("by the unit", "17 198.51.100.1:40001 192.168.1.10:5000")
	killHard(t, cmd)
}
