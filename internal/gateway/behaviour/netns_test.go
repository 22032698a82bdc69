package behaviour

import (
	"os/exec"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// script is an engine that loads one nft script, whatever the plan.
type script string

func (script) Name() string               { return "script" }
func (script) Remove(*netns.Handle) error { return nil }

func (s script) Apply(ns *netns.Handle, _ *gateway.Plan) error {
	return ns.Do(func() error { return exec.Command("nft", string(s)).Run() })
}

func newWorld(t *testing.T, e Engine) *Play {
	t.Helper()
	testutil.NeedRoot(t)
	w, err := Namespaces(e, testutil.Patience(5*time.Second))()
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
// where nothing translates, and that nothing else comes. A and B share a network: the
// gateway rightly tells them so by redirects.
func TestWorldForwards(t *testing.T) {
	p := newWorld(t, script("list ruleset"))
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
					shared := deviceIs(from, LAN) && deviceIs(to, LAN)
					if shared || from == to || ap(s).Addr().Is4() != ap(d).Addr().Is4() {
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

func deviceIs(h Host, dev string) bool {
	a, _ := deviceOf(h)
	return a.dev == dev
}

func TestWorldMasquerades(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	p := newWorld(t, script("table ip x { chain p { type nat hook postrouting priority 100; oifname wan masquerade; }; }"))
	if err := p.Apply(nil); err != nil {
		t.Fatal(err)
	}
	got, err := p.Exchange(A, X, UDPPacket(ap("192.168.0.2:4000"), ap("198.18.0.10:53"), ""))
	if err != nil {
		t.Fatal(err)
	}
	if src := got.Frame.Tuple().Src; src.Addr() != WANAddress.Addr() {
		t.Errorf("came from %v", src)
	}
	back, err := p.Exchange(X, A, got.Back("answer"))
	if err != nil {
		t.Fatal(err)
	}
	if dst := back.Frame.Tuple().Dst; dst != ap("192.168.0.2:4000") {
		t.Errorf("the answer came to %v", dst)
	}
	m, err := p.Mappings()
	if err != nil || len(m) != 1 || m[0].Outside != got.Frame.Tuple().Src {
		t.Errorf("mappings: %+v, %v", m, err)
	}
}
