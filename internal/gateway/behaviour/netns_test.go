package behaviour

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/gateway/engine/fake"
	"github.com/natkit/natkit/internal/testutil"
)

func newWorld(t *testing.T, e Engine) *Play {
	t.Helper()
	testutil.NeedRoot(t)
	w, err := Namespaces(e, testutil.Patience(patience), Pairs)()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return &Play{World: w}
}

// TestWorldForwards shows that every host reaches every other through the gateway
// where nothing translates, and that nothing else comes. Hosts by the same interface of
// the gateway are left out: it rightly redirects them to a way without it (those behind
// a router as well, where fib_validate_source of Linux 5.4 takes them for neighbours).
func TestWorldForwards(t *testing.T) {
	p := newWorld(t, carried{engine.Set{&fake.Engine{}}})
	p.untranslated = true
	addresses := map[Host][]string{
		A: {"192.168.0.2:1", "[fd00:1::2]:1", "10.1.0.2:1"}, B: {"192.168.0.63:2", "[fd00:1::3]:2", "10.1.0.3:1"}, C: {"172.17.0.2:3", "[fd00:2::2]:3"},
		X: {"198.18.0.10:4", "[2001:db8:f:1::10]:4"}, Y: {"198.18.1.20:5", "[2001:db8:f:2::20]:5"},
	}
	start := time.Now()
	n := 0
	for from, sources := range addresses {
		for to, destinations := range addresses {
			for _, s := range sources {
				for _, d := range destinations {
					if device(from) == device(to) || ap(s).Addr().Is4() != ap(d).Addr().Is4() {
						continue
					}
					n++
					got, err := p.Exchange(from, to, UDPPacket(ap(s), ap(d), ""))
					if err != nil {
						t.Error(err)
					} else if tuple := got.Frame.Tuple(); tuple.Src != ap(s) || tuple.Dst != ap(d) {
						t.Errorf("%s to %s: came as %v", from, to, tuple)
					}
				}
			}
		}
	}
	t.Logf("%d exchanges in %v", n, time.Since(start))
	for _, fault := range p.faults {
		t.Error(fault)
	}
}

func device(h Host) string {
	a, _ := deviceOf(h)
	return a.dev
}

// TestWorldHears checks that a world reports mappings and timers, and that what must
// never be does not pass unseen.
func TestWorldHears(t *testing.T) {
	p := newWorld(t, alone)
	plan, err := (&Case{ID: "world"}).Plan()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Timers(map[Timer]time.Duration{UDP: 77 * time.Second}), p.Apply(plan)); err != nil {
		t.Fatal(err)
	}
	mapped, err := p.both(insideA, outsideX)
	if err != nil {
		t.Fatal(err)
	}
	m, err := p.mapping(insideA.AddrPort)
	if err != nil {
		t.Fatal(err)
	}
	if m.Outside != mapped || m.Remote != outsideX.AddrPort || m.Left < 70*time.Second || m.Left > 77*time.Second {
		t.Errorf("mapping %+v; seen outside: %v", m, mapped)
	}
	if len(p.faults) > 0 {
		t.Errorf("faults where there is none: %v", p.faults)
	}
	if err := p.Timers(map[Timer]time.Duration{UDP: time.Millisecond}); err == nil {
		t.Error("a timer of a millisecond is taken")
	}
	if _, err := p.Send("no-host", nil); err == nil {
		t.Error("an unknown host can send")
	}
}

// TestFaults has what must never be: wrong checksums, and an address from inside that
// is seen outside.
func TestFaults(t *testing.T) {
	good := UDPPacket(ap("203.0.113.1:4000"), outsideX.AddrPort, "right")
	arrival := func(spoil func(b []byte)) *Arrival {
		b := slices.Clone(good)
		spoil(b)
		a := &Arrival{At: X, Packet: b}
		if err := decode(&a.Frame, b); err != nil {
			t.Fatal(err)
		}
		return a
	}
	if err := arrival(func([]byte) {}).fault(); err != nil {
		t.Errorf("nothing is wrong: %v", err)
	}
	if err := arrival(func(b []byte) { b[8]-- }).fault(); err == nil {
		t.Error("a TTL that the header's checksum does not know passes")
	}
	if err := arrival(func(b []byte) { b[len(b)-1]++ }).fault(); err == nil {
		t.Error("a payload that the checksum does not know passes")
	}
	leaked := &Arrival{At: X}
	if err := decode(&leaked.Frame, UDPPacket(insideA.AddrPort, outsideX.AddrPort, "")); err != nil {
		t.Fatal(err)
	}
	if leaked.leak() == nil {
		t.Error("an address from inside is seen outside, and not reported")
	}
	if leaked.At = B; leaked.leak() != nil {
		t.Error("inside it may be seen")
	}
}
