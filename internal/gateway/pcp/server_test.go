package pcp

import (
	"encoding/binary"
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
)

var (
	start    = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	external = netip.MustParseAddr("203.0.113.7")
	hostA    = netip.MustParseAddr("192.168.1.10")
	hostB    = netip.MustParseAddr("192.168.1.11")
	nonceA   = [12]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	nonceB   = [12]byte{12, 11, 10}
)

// server serves 192.168.1.0/24 with three ports for each host, of 40000 to 40009, for 2 minutes to an hour. A program
// has 40005, a rule of the file udp/40006.
func server(t testing.TB, s *State, now time.Time) *Server {
	t.Helper()
	one := New(s, now)
	one.Use(plan(external), serves, busy, now)
	return one
}

func plan(external netip.Addr) *gateway.Plan {
	rule := gateway.Entry{Match: nat.Match{To: []netip.Prefix{nat.Host(external)}, Protocol: protocolUDP, Ports: []nat.Ports{{First: 40006, Last: 40006}}}}
	return &gateway.Plan{Destinations: []gateway.Entry{rule},
		PCP: &gateway.Grants{External: external, Limit: 3, Ports: nat.Ports{First: 40000, Last: 40009}, Min: 2 * time.Minute, Max: time.Hour}}
}

func serves(a netip.Addr) bool { return netip.MustParsePrefix("192.168.1.0/24").Contains(a) }

func busy(_ uint8, port uint16) bool { return port == 40005 }

// mapRequest is one of PCP.
type mapRequest struct {
	client    netip.Addr
	nonce     [12]byte
	protocol  uint8
	internal  uint16
	suggested uint16
	address   netip.Addr
	lifetime  uint32
	options   []byte
}

func (m mapRequest) bytes() []byte {
	b := []byte{versionPCP, opMap, 0, 0}
	b = binary.BigEndian.AppendUint32(b, m.lifetime)
	client := m.client.As16()
	b = append(append(b, client[:]...), m.nonce[:]...)
	b = append(b, m.protocol, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, m.internal)
	b = binary.BigEndian.AppendUint16(b, m.suggested)
	address := netip.IPv4Unspecified().As16()
	if m.address.IsValid() {
		address = m.address.As16()
	}
	return append(append(b, address[:]...), m.options...)
}

// udp is the usual request of a host for its port 5000.
func udp(host netip.Addr, nonce [12]byte) mapRequest {
	return mapRequest{client: host, nonce: nonce, protocol: protocolUDP, internal: 5000, lifetime: 600}
}

// given is what an answer of PCP says.
type given struct {
	code     code
	lifetime uint32
	epoch    uint32
	port     uint16
}

func (s *Server) asked(t testing.TB, now time.Time, m mapRequest) given {
	t.Helper()
	request := m.bytes()
	b, _ := s.Answer(now, m.client, request)
	if len(b) < headerSize+mapSize || b[0] != versionPCP || b[1] != opMap|isAnswer || len(b)%4 != 0 || [12]byte(b[24:36]) != m.nonce {
		t.Fatalf("no answer to it: %x", b)
	}
	g := given{code(b[3]), binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint16(b[42:])}
	if address := netip.AddrFrom16([16]byte(b[44:60])).Unmap(); g.code == success && g.lifetime > 0 && address != s.plan.PCP.External {
		t.Errorf("on %s", address)
	}
	return g
}

func TestMap(t *testing.T) {
	s := server(t, nil, start)
	now := start.Add(10 * time.Second)
	want := func(what string, m mapRequest, g given) {
		t.Helper()
		g.epoch = uint32(now.Sub(start) / time.Second)
		if got := s.asked(t, now, m); got.code != g.code || got.lifetime != g.lifetime || got.epoch != g.epoch || g.code == success && got.port != g.port {
			t.Errorf("%s: %+v, want %+v", what, got, g)
		}
	}
	a := udp(hostA, nonceA)
	a.suggested = 40003
	want("the suggested port", a, given{success, 600, 0, 40003})
	now = now.Add(time.Minute)
	a.suggested = 40009
	want("again: the one that it has", a, given{success, 600, 0, 40003})
	foreign := a
	foreign.nonce = nonceB
	want("another nonce", foreign, given{code: notAuthorized, lifetime: longRefusal})
	foreign.lifetime = 0
	want("deleted by another nonce", foreign, given{code: notAuthorized, lifetime: longRefusal})
	a.options = []byte{optionPreferFailure, 0, 0, 0}
	want("another port or none, of one that it has", a, given{code: cannotProvideExternal, lifetime: shortRefusal})
	b := udp(hostB, nonceB)
	b.suggested, b.options = 40003, a.options
	want("a taken port or none", b, given{code: cannotProvideExternal, lifetime: shortRefusal})
	b.suggested, b.address = 40004, netip.MustParseAddr("203.0.113.9")
	want("another address or none", b, given{code: cannotProvideExternal, lifetime: shortRefusal})
	b.suggested, b.address = 40004, external
	want("a free port or none", b, given{success, 600, 0, 40004})
	b.lifetime, b.options = 1, nil
	want("the shortest time", b, given{success, 120, 0, 40004})
	b.lifetime = 1 << 31
	want("the longest time", b, given{success, 3600, 0, 40004})
	b.protocol, b.suggested, b.lifetime = protocolTCP, 40003, 600
	want("the same port of another protocol", b, given{success, 600, 0, 40003})
	b.internal, b.suggested = 5001, 40005
	if g := s.asked(t, now, b); g.code != success || g.port == 40005 || g.port == 40003 {
		t.Errorf("a program's port: %+v", g)
	}
	b.internal = 5002
	want("one too many", b, given{code: quotaExceeded, lifetime: shortRefusal})
	b.lifetime, b.internal, b.protocol = 0, 0, protocolTCP
	want("all of TCP ended", b, given{code: success})
	if n := len(s.Leases(now)); n != 2 {
		t.Errorf("%d leases", n)
	}
	want("ended again", b, given{code: success})
	a = udp(hostA, nonceA)
	a.lifetime = 0
	want("one ended", a, given{code: success})
	now = now.Add(time.Hour)
	if s.Expire(now) != true || len(s.leases) != 0 || s.Expire(now) {
		t.Errorf("%+v", s.leases)
	}
}

// Ports of rules and of programs are never given, and all others are, until there is none.
func TestAllPorts(t *testing.T) {
	s := server(t, nil, start)
	var refused code
	seen := map[uint16]bool{}
	for i := range 12 {
		m := udp(netip.AddrFrom4([4]byte{192, 168, 1, byte(20 + i)}), nonceA)
		g := s.asked(t, start, m)
		if g.code != success {
			refused = g.code
			continue
		}
		if seen[g.port] || g.port == 40005 || g.port == 40006 {
			t.Errorf("%d is given", g.port)
		}
		seen[g.port] = true
	}
	if len(seen) != 8 || refused != noResources {
		t.Errorf("%v, %d", seen, refused)
	}
}

func TestRefusals(t *testing.T) {
	s := server(t, nil, start)
	base := udp(hostA, nonceA)
	with := func(edit func(*mapRequest)) []byte {
		m := base
		edit(&m)
		return m.bytes()
	}
	set := func(at int, v byte) []byte {
		b := base.bytes()
		b[at] = v
		return b
	}
	for _, tt := range []struct {
		what string
		asks []byte
		code code
	}{
		{"version 1", set(0, 1), unsupportedVersion},
		{"version 3", set(0, 3), unsupportedVersion},
		{"PEER", set(1, opPeer), unsupportedOpcode},
		{"an opcode that is none", set(1, 77), unsupportedOpcode},
		{"another client", with(func(m *mapRequest) { m.client = hostB }), addressMismatch},
		{"short", base.bytes()[:56], malformedRequest},
		{"no header", base.bytes()[:20], malformedRequest},
		{"not of words", append(base.bytes(), 0), malformedRequest},
		{"long", append(base.bytes(), make([]byte, MaxSize)...), malformedRequest},
		{"THIRD_PARTY", with(func(m *mapRequest) { m.options = append([]byte{1, 0, 0, 16}, make([]byte, 16)...) }), unsupportedOption},
		{"FILTER", with(func(m *mapRequest) { m.options = append([]byte{3, 0, 0, 20}, make([]byte, 20)...) }), unsupportedOption},
		{"PREFER_FAILURE twice", with(func(m *mapRequest) { m.options = []byte{2, 0, 0, 0, 2, 0, 0, 0} }), malformedOption},
		{"an option that ends too late", with(func(m *mapRequest) { m.options = []byte{200, 0, 0, 5, 0, 0, 0, 0} }), malformedOption},
		{"SCTP", with(func(m *mapRequest) { m.protocol = 132 }), unsupportedProtocol},
		{"all protocols", with(func(m *mapRequest) { m.protocol, m.internal = 0, 0 }), unsupportedProtocol},
		{"a port of all protocols", with(func(m *mapRequest) { m.protocol = 0 }), malformedRequest},
		{"all ports", with(func(m *mapRequest) { m.internal = 0 }), unsupportedProtocol},
	} {
		b, changed := s.Answer(start, hostA, tt.asks)
		if len(b) < headerSize || b[1] != tt.asks[1]|isAnswer || code(b[3]) != tt.code || changed || len(b)%4 != 0 || len(b) > MaxSize {
			t.Errorf("%s: %x (%v), want %d", tt.what, b, changed, tt.code)
		}
	}
	for what, asks := range map[string][]byte{"nothing": nil, "a byte": {2}, "an answer": {2, isAnswer | opMap}, "an answer of NAT-PMP": {0, isAnswer | opAddress}} {
		if b, _ := s.Answer(start, hostA, asks); b != nil {
			t.Errorf("%s is answered: %x", what, b)
		}
	}
	for _, from := range []string{"8.8.8.8", "10.0.0.1", "203.0.113.7"} {
		m := base
		m.client = netip.MustParseAddr(from)
		if b, _ := s.Answer(start, m.client, m.bytes()); b != nil {
			t.Errorf("%s is answered: %x", from, b)
		}
	}
	optional := base
	optional.options = []byte{200, 0, 0, 5, 1, 2, 3, 4, 5, 0, 0, 0}
	if g := s.asked(t, start, optional); g.code != success {
		t.Errorf("an option that may be ignored: %+v", g)
	}
}

// Nothing of IPv6 has to be opened.
func TestIPv6(t *testing.T) {
	s := server(t, nil, start)
	from := netip.MustParseAddr("fe80::9%eth1")
	m := mapRequest{client: from.WithZone(""), nonce: nonceA, protocol: protocolUDP, internal: 5000, lifetime: 600}
	if b, changed := s.Answer(start, from, m.bytes()); len(b) < headerSize || code(b[3]) != unsupportedOpcode || changed {
		t.Errorf("%x", b)
	}
	announce := m.bytes()[:headerSize]
	announce[1] = opAnnounce
	if b, _ := s.Answer(start, from, announce); len(b) != headerSize || code(b[3]) != success {
		t.Errorf("%x", b)
	}
	if b, _ := s.Answer(start, from, []byte{0, 0}); len(b) != headerSize || code(b[3]) != unsupportedVersion {
		t.Errorf("%x", b)
	}
}

func pmp(op byte, internal, suggested uint16, lifetime uint32) []byte {
	b := []byte{versionNATPMP, op, 0, 0}
	b = binary.BigEndian.AppendUint16(b, internal)
	b = binary.BigEndian.AppendUint16(b, suggested)
	return binary.BigEndian.AppendUint32(b, lifetime)
}

func TestNATPMP(t *testing.T) {
	s := server(t, nil, start)
	now := start.Add(7 * time.Second)
	want := func(asks []byte, words ...any) {
		t.Helper()
		var b []byte
		for _, w := range words {
			switch w := w.(type) {
			case int:
				b = append(b, byte(w))
			case uint16:
				b = binary.BigEndian.AppendUint16(b, w)
			case uint32:
				b = binary.BigEndian.AppendUint32(b, w)
			}
		}
		if got, _ := s.Answer(now, hostA, asks); !reflect.DeepEqual(got, b) {
			t.Errorf("%x: %x, want %x", asks, got, b)
		}
	}
	want([]byte{0, 0}, 0, 128, uint16(0), uint32(7), 203, 0, 113, 7)
	want(pmp(opUDP, 5000, 40002, 3600), 0, 129, uint16(0), uint32(7), uint16(5000), uint16(40002), uint32(3600))
	want(pmp(opTCP, 5000, 40002, 7200), 0, 130, uint16(0), uint32(7), uint16(5000), uint16(40002), uint32(3600))
	want(pmp(3, 5000, 0, 60), 0, 131, uint16(5), uint32(7))
	want([]byte{0, 1, 0}, 0, 129, uint16(4), uint32(7))
	want(pmp(opTCP, 5000, 0, 0), 0, 130, uint16(0), uint32(7), uint16(5000), uint16(0), uint32(0))
	// PCP takes over what NAT-PMP opened, and not the other way round.
	if g := s.asked(t, now, udp(hostA, nonceA)); g.code != success || g.port != 40002 {
		t.Errorf("%+v", g)
	}
	want(pmp(opUDP, 5000, 40002, 3600), 0, 129, uint16(2), uint32(7), uint16(5000), uint16(0), uint32(0))
	want(pmp(opUDP, 0, 0, 0), 0, 129, uint16(2), uint32(7), uint16(0), uint16(0), uint32(0))
	s.Use(plan(netip.Addr{}), serves, busy, now)
	want([]byte{0, 0}, 0, 128, uint16(3), uint32(7), uint32(0))
	want(pmp(opTCP, 5000, 0, 60), 0, 130, uint16(3), uint32(7), uint16(5000), uint16(0), uint32(0))
}

// Epoch and leases go on after a restart; without a state the epoch begins.
func TestRestart(t *testing.T) {
	s := server(t, nil, start)
	if g := s.asked(t, start.Add(time.Minute), udp(hostA, nonceA)); g.code != success {
		t.Fatal(g)
	}
	text, err := json.Marshal(s.State(start.Add(2 * time.Minute)))
	if err != nil {
		t.Fatal(err)
	}
	later := start.Add(5 * time.Minute)
	again := New(ParseState(text), later)
	if changed, announce := again.Use(plan(external), serves, busy, later); changed || announce {
		t.Error(changed, announce)
	}
	if got := again.Leases(later); len(got) != 1 || !got[0].Expires.Equal(start.Add(11*time.Minute)) || again.epoch(later) != 300 {
		t.Errorf("%+v, epoch %d", got, again.epoch(later))
	}
	if g := again.asked(t, later, udp(hostA, nonceB)); g.code != notAuthorized {
		t.Errorf("another nonce: %+v", g)
	}
	if late := New(ParseState(text), start.Add(12*time.Minute)); len(late.leases) != 0 {
		t.Errorf("%+v", late.leases)
	}
	// A clock that was set back: no time has passed.
	back := New(ParseState(text), start.Add(-time.Hour))
	if got := back.leases; len(got) != 1 || !got[0].Expires.Equal(start.Add(-51*time.Minute)) || back.epoch(start.Add(-time.Hour)) != 120 {
		t.Errorf("%+v, epoch %d", got, back.epoch(start.Add(-time.Hour)))
	}
	fresh := New(ParseState([]byte("{}")), later)
	if changed, announce := fresh.Use(plan(external), serves, busy, later); changed || !announce || fresh.epoch(later) != 0 {
		t.Error(changed, announce, fresh.epoch(later))
	}
}

// Another address begins the epoch anew, and takes the leases along; another plan ends those that it cannot have.
func TestUse(t *testing.T) {
	s := server(t, nil, start)
	for _, host := range []netip.Addr{hostA, hostB} {
		if g := s.asked(t, start, udp(host, nonceA)); g.code != success {
			t.Fatal(g)
		}
	}
	later := start.Add(time.Minute)
	if changed, announce := s.Use(plan(netip.Addr{}), serves, busy, later); changed || announce || len(s.leases) != 2 {
		t.Error("without an address", changed, announce)
	}
	other := netip.MustParseAddr("203.0.113.99")
	if changed, announce := s.Use(plan(other), serves, busy, later); !changed || !announce || s.epoch(later) != 0 || len(s.leases) != 2 || s.leases[0].External.Addr() != other {
		t.Error("another address", changed, announce, s.leases)
	}
	only := func(a netip.Addr) bool { return a == hostB }
	if changed, announce := s.Use(plan(other), only, busy, later); !changed || announce || len(s.leases) != 1 || s.leases[0].Internal.Addr() != hostB {
		t.Error("a host that may not any more", changed, announce, s.leases)
	}
	p := plan(other)
	p.PCP.Ports.First = s.leases[0].External.Port() + 1
	if changed, _ := s.Use(p, serves, busy, later); !changed || len(s.leases) != 0 {
		t.Error("other ports", s.leases)
	}
	for i, b := range s.Announcements(later) {
		if want := [][]byte{answerHeader(opAnnounce, success, 0, 0), {0, 128, 0, 0, 0, 0, 0, 0, 203, 0, 113, 99}}[i]; !reflect.DeepEqual(b, want) {
			t.Errorf("%x", b)
		}
	}
}

// A port that a program of the gateway has taken meanwhile is the host's no longer than it was given for.
func TestBusyMeanwhile(t *testing.T) {
	s := server(t, nil, start)
	g := s.asked(t, start, udp(hostA, nonceA))
	if g.code != success {
		t.Fatal(g)
	}
	taken := func(_ uint8, port uint16) bool { return port == g.port }
	s.busy = taken
	if again := s.asked(t, start.Add(time.Minute), udp(hostA, nonceA)); again.code != noResources || s.leases[0].Expires != start.Add(10*time.Minute) {
		t.Error("renewed", again, s.leases)
	}
	if changed, _ := s.Use(plan(external), serves, taken, start.Add(time.Minute)); !changed || len(s.leases) != 0 {
		t.Error("in force again", s.leases)
	}
}

func TestRestore(t *testing.T) {
	s := server(t, nil, start)
	before := s.Leases(start)
	m := udp(hostA, nonceA)
	if _, changed := s.Answer(start, hostA, m.bytes()); !changed {
		t.Error("nothing changed")
	}
	s.Restore(before)
	if b := s.Refuse(start, m.bytes()); code(b[3]) != networkFailure || len(b) != 60 || len(s.Leases(start)) != 0 {
		t.Errorf("%x", b)
	}
	if b := s.Refuse(start, pmp(opUDP, 1, 2, 3)); len(b) != 16 || b[3] != 3 {
		t.Errorf("%x", b)
	}
}

func TestLimiter(t *testing.T) {
	l := Limiter{Each: 2, All: 3}
	for i, want := range []bool{true, true, false} {
		if l.Allows(start, hostA) != want {
			t.Error(i)
		}
	}
	if !l.Allows(start, hostB) || l.Allows(start, hostB) || len(l.hosts) > 3 {
		t.Error("more than all may have")
	}
	if !l.Allows(start.Add(time.Second), hostB) {
		t.Error("not in the next second")
	}
}

// Whatever comes, answers are no larger than a message of PCP, answers alone are sent, and no host has more than it may.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte{0, 0})
	f.Add(pmp(opUDP, 5000, 40001, 60))
	f.Add(pmp(opTCP, 0, 0, 0))
	f.Add(udp(hostA, nonceA).bytes())
	m := udp(hostA, nonceA)
	m.options = []byte{2, 0, 0, 0, 200, 0, 0, 1, 0, 0, 0, 0}
	f.Add(m.bytes())
	f.Add(m.bytes()[:30])
	f.Add([]byte{2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 192, 168, 1, 10})
	f.Fuzz(func(t *testing.T, asks []byte) {
		s := server(t, nil, start)
		s.asked(t, start, udp(hostB, nonceB))
		for range 2 {
			b, changed := s.Answer(start, hostA, asks)
			if b != nil && (len(b) < 8 || len(b) > MaxSize || b[1] != asks[1]|isAnswer) || changed && b == nil {
				t.Errorf("%x: %x", asks, b)
			}
		}
		if s.known(protocolUDP, netip.AddrPortFrom(hostB, 5000)) == nil {
			t.Errorf("%x ended another host's", asks)
		}
		for _, l := range s.leases {
			if l.Internal.Addr() != hostA && l.Internal.Addr() != hostB || !s.plan.PCP.Ports.Contains(l.External.Port()) || l.External.Port() == 40005 {
				t.Errorf("%x: %+v", asks, l)
			}
		}
		s.Refuse(start, append([]byte{2, 1}, asks...))
	})
}
