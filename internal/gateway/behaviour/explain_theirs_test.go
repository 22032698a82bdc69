package behaviour

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/host"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/testutil"
)

// program sends from the gateway itself, each time from another port.
func (s *sample) program() {
	conn, port := s.open()
	defer conn.Close()
	to := netip.AddrPortFrom(netip.MustParseAddr(pick(s.r, destinations4)), pick(s.r, []uint16{53, 55}))
	routes := kernelRoutes(s.world.gateway)
	hop, err := routes(observe.Lookup{Destination: to.Addr()})
	if err != nil {
		s.t.Fatal(err)
	}
	if hop.Unreachable != "" {
		return
	}
	p := nat.Packet{Protocol: unix.IPPROTO_UDP, Src: hop.Source, SrcPort: port, Dst: to.Addr(), DstPort: to.Port(), Owned: true, At: time.Now()}
	e, err := observe.Follow(s.plan, s.facts, routes, p)
	if err != nil {
		s.t.Fatal(err)
	}
	if e.Fate == observe.Forwarded && attached(e.Out, e.Destination.Addresses[0].First) {
		s.compareProgram(e, conn, to)
	}
}

// open is a program's socket on a port that none had before.
func (s *sample) open() (Program, uint16) {
	for {
		conn, err := s.world.Program(Socket{})
		if err != nil {
			s.t.Fatal(err)
		}
		port := uint16(conn.(*program).conn.LocalAddr().(*net.UDPAddr).Port)
		if s.ports == nil {
			s.ports = map[uint16]bool{}
		}
		if !s.ports[port] {
			s.ports[port] = true
			return conn, port
		}
		conn.Close()
	}
}

func (s *sample) compareProgram(e *observe.Trace, conn Program, to netip.AddrPort) {
	got, err := conn.Send(to, "x")
	if err != nil {
		s.t.Fatal(err)
	}
	came := likes(got, e.Packet, false)
	if !s.agrees(e, got, came) {
		return
	}
	if _, err := s.world.Send(came[0].At, came[0].Back("answer")); err != nil {
		s.t.Fatal(err)
	}
	text, from, ok, err := receive(conn, e.ReplyLost == "")
	if back := ok && text == "answer" && from == to; err != nil || back != (e.ReplyLost == "") {
		s.t.Errorf("%s: the answer: %q from %v, %v; foretold: %q\n%s", e.Packet, text, from, err, e.ReplyLost, s.text)
	}
	s.seen["program"]++
}

// receive waits for what is to come: on a slow machine the socket's own wait can be
// over before it has looked once.
func receive(conn Program, comes bool) (text string, from netip.AddrPort, ok bool, err error) {
	for end := time.Now().Add(testutil.Patience(time.Minute)); ; {
		text, from, ok, err = conn.Receive()
		if ok || err != nil || !comes || time.Now().After(end) {
			return text, from, ok, err
		}
	}
}

// theirs are chains before and after natkit's, as Docker and people make them.
const theirs = `
table ip theirs {
	chain pre { type nat hook prerouting priority -100; ip daddr 203.0.113.7 tcp dport 80 dnat to 172.17.0.2:8080; }
	chain post { type nat hook postrouting priority 100; ip saddr 192.168.0.2 oifname "wan" masquerade; }
	chain later { type nat hook postrouting priority 200; ip saddr 192.168.0.0/16 oifname "wan" snat to 203.0.113.99; }
	chain forw { type filter hook forward priority 0; policy drop; accept; }
}`

// TestExplainTheirs: what other programs translate first is theirs, what they would
// translate afterwards is not.
func TestExplainTheirs(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	testutil.NeedFeature(t, testutil.Hairpin)
	w := explainedWorld(t)
	err := w.gateway.Do(func() error {
		nft := exec.Command("nft", "-f", "-")
		nft.Stdin = strings.NewReader(theirs)
		return nft.Run()
	})
	if err != nil {
		t.Fatal(err)
	}
	facts, err := host.Read(t.Context(), w.gateway, host.Options{})
	if err != nil || len(facts.Foreign) != 4 {
		t.Fatalf("%+v, %v", facts.Foreign, err)
	}
	s := sample{t: t, world: w, r: rand.New(rand.NewPCG(7, 7)), facts: facts, seen: map[string]int{}}
	s.text = `
interfaces: {wan: wan, lan: [lan, dmz]}
nat:
  - dnat: {on: 203.0.113.7, to: 192.168.0.3, hairpin: true}
  - snat: {from: 192.168.0.0/24, to: 203.0.113.40}
`
	f, err := gateway.Parse("theirs.yaml", []byte("gateway:\n"+indent(s.text)))
	if err != nil {
		t.Fatal(err)
	}
	if s.plan, err = gateway.Compile(&f.Config, facts); err != nil {
		t.Fatal(err)
	}
	if err := w.Apply(s.plan); err != nil {
		t.Fatal(err)
	}
	for range 300 {
		from, p, b := s.packet()
		s.send(from, p, b)
	}
	if s.seen["dnat"] < 5 || s.seen["snat"] < 5 || s.seen["theirs"] < 5 {
		t.Errorf("the sample says little: %v", s.seen)
	}
}
