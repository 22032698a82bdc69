package behaviour

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/gateway/engine/ebpf"
	"github.com/natkit/natkit/internal/gateway/engine/netfilter"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// programs is netfilter with the eBPF engine before it.
type programs struct{ xdp gateway.XDP }

func (e programs) set() carried { return carried{engine.Set{ebpf.Engine{}, netfilter.Engine{}}} }

// asks has a plan ask for the engine.
func (e programs) asks(p *gateway.Plan) *gateway.Plan {
	with := *p
	with.Bypass, with.XDP = 3<<24, e.xdp
	return &with
}

func (e programs) Apply(ns *netns.Handle, p *gateway.Plan) error { return e.set().Apply(ns, e.asks(p)) }

func (e programs) Remove(ns *netns.Handle) error { return e.set().Remove(ns) }

func (e programs) Use(ns *netns.Handle, p *gateway.Plan, out map[gateway.Ref][]bool) error {
	return e.set().Use(ns, p, out)
}

func (e programs) Steer(ns *netns.Handle, p *gateway.Plan, up func(u *gateway.Uplink, v6 bool) bool) error {
	return e.set().Steer(ns, p, up)
}

// claims reports whether the programs carry out a rule of a case.
func (e programs) claims(c Case) bool {
	p, err := c.Plan()
	if err != nil {
		return false
	}
	p, _, err = e.set().Assign(e.asks(p), gateway.Facts{})
	return err == nil && p.Part(gateway.EngineEBPF) != nil
}

// claimed are the cases with rules that the programs carry out.
func claimed(t *testing.T) []Case {
	cases := slices.DeleteFunc(All(), func(c Case) bool { return !programs{}.claims(c) })
	if len(cases) < 80 {
		t.Errorf("the programs carry out rules of %d cases only", len(cases))
	}
	return playable(t, cases)
}

func TestEBPF(t *testing.T) {
	playSuite(t, EBPF, programs{gateway.XDPOff}, func(c Case) bool { return c.Run != nil && !programs{}.claims(c) })
}

// TestEBPFAtXDP plays the cases of which the programs carry out something with native XDP, between interfaces
// that take what it redirects. What is seen is the same as at tc.
func TestEBPFAtXDP(t *testing.T) {
	testutil.NeedRoot(t)
	t.Parallel()
	asRecorded(t, EBPF, Run(EBPF, claimed(t), Namespaces(programs{gateway.XDPNative}, testutil.Patience(patience), Polled), slow(), atATime))
}

// TestEBPFOnVLANs plays them with VLAN interfaces in the place of the gateway's.
func TestEBPFOnVLANs(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.VLAN)
	t.Parallel()
	asRecorded(t, EBPF, Run(EBPF, claimed(t), Namespaces(programs{gateway.XDPNative}, testutil.Patience(patience), Tagged), slow(), atATime))
}

// TestEBPFRedirects: what the programs forward at native XDP does not come to the stack, where tc begins, but for the first
// packet that each CPU sees of a flow, and again after a second; with tc alone all do.
func TestEBPFRedirects(t *testing.T) {
	testutil.NeedRoot(t)
	t.Parallel()
	const packets = 20
	for _, xdp := range []gateway.XDP{gateway.XDPNative, gateway.XDPOff} {
		w, err := Namespaces(programs{xdp}, testutil.Patience(patience), Polled)()
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		if plan, err := compile("fixed", fixedGateway); err != nil || w.Apply(plan) != nil {
			t.Fatal(err)
		}
		var stack int
		err = w.(*netnsWorld).gateway.Do(func() (err error) {
			stack, err = openPacket(WAN, unix.ETH_P_ALL)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(stack)
		at := places(false)[0]
		for range packets {
			if _, err := carry(&Play{World: w}, outsideX, at.inside, at.request(flowUDP, outsideX)); err != nil {
				t.Fatal(err)
			}
		}
		came, buffer := 0, make([]byte, 1<<16)
		for n := 0; err == nil; n, err = unix.Read(stack, buffer) {
			var f frame.Frame
			if n > 0 && f.Decode(buffer[:n]) == nil && f.Transport == unix.IPPROTO_UDP {
				came++
			}
		}
		if all := xdp == gateway.XDPOff; all != (came == packets) {
			t.Errorf("xdp: %s: %d of %d packets came to the stack", xdp, came, packets)
		}
	}
}
