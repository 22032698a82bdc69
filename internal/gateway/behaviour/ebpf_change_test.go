package behaviour

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/testutil"
)

// published is the port outside of every mapping of fixedFile.
const published = 8000

// fixedFile is a drawn gateway file: each address outside stands for one inside, as a whole or by a port.
type fixedFile struct {
	text string
	// inside has the end inside of each address outside; whole are those that stand for all of it.
	inside map[netip.Addr]netip.AddrPort
	whole  map[netip.Addr]bool
	rules  int
}

// perFile is how many mappings a file has in each family.
const perFile = 6

func drawFile(r *rand.Rand) fixedFile {
	f := fixedFile{inside: map[netip.Addr]netip.AddrPort{}, whole: map[netip.Addr]bool{}}
	var b strings.Builder
	var pairs []string
	b.WriteString("interfaces: {wan: wan, lan: [lan, dmz]}\n")
	for _, family := range []struct{ list, outside, inside string }{{"nat", "203.0.113.2%d", "192.168.0.1%d"}, {"ipv6", "2001:db8:1::2%d", "fd00:1::1%d"}} {
		b.WriteString(family.list + ":\n")
		before := len(pairs)
		for i, j := range r.Perm(perFile) {
			outside, inside := netip.MustParseAddr(fmt.Sprintf(family.outside, i)), netip.MustParseAddr(fmt.Sprintf(family.inside, j))
			port := uint16(80 + r.IntN(3))
			f.rules++
			switch r.IntN(4) {
			case 3:
				f.whole[outside], port = true, published
				if pairs = append(pairs, fmt.Sprintf("%q", outside.String()+" "+inside.String())); len(pairs) > before+1 {
					f.rules--
				}
			case 0:
				f.whole[outside], port = true, published
				fmt.Fprintf(&b, "  - static: {inside: %q, outside: %q}\n", inside, outside)
			case 1:
				f.whole[outside], port = true, published
				fmt.Fprintf(&b, "  - netmap: {inside: \"%v/%d\", outside: \"%v/%[2]d\"}\n", inside, inside.BitLen(), outside)
			default:
				fmt.Fprintf(&b, "  - dnat: {on: %q, port: udp/%d, to: %q}\n", outside, published, netip.AddrPortFrom(inside, port))
			}
			f.inside[outside] = netip.AddrPortFrom(inside, port)
		}
		if len(pairs) > before {
			b.WriteString("  - static: {pairs: $drawn}\n")
		}
	}
	f.text = b.String()
	if len(pairs) > 0 {
		f.text = "sets: {drawn: {pairs: [" + strings.Join(pairs, ", ") + "]}}\n" + f.text
	}
	return f
}

// seen is what the file makes of a packet's ends.
func (f *fixedFile) seen(t frame.Tuple) frame.Tuple {
	for outside, inside := range f.inside {
		switch {
		case t.Dst == netip.AddrPortFrom(outside, published):
			t.Dst = inside
		case t.Src.Addr() == inside.Addr() && f.whole[outside]:
			t.Src = netip.AddrPortFrom(outside, t.Src.Port())
		case t.Src == inside:
			t.Src = netip.AddrPortFrom(outside, published)
		}
	}
	return t
}

// changing is a world in which packets flow while the file changes.
type changing struct {
	*netnsWorld
	x      [2]netip.AddrPort // of each family
	number uint32
	sent   map[uint32]frame.Tuple
}

// sendAll sends a packet to each address outside, and one from each end inside of some files.
func (c *changing) sendAll(files ...*fixedFile) (in, out int, err error) {
	clear(c.sent)
	once := map[frame.Tuple]bool{}
	for _, f := range files {
		for outside, inside := range f.inside {
			x := c.x[0]
			if outside.Is6() {
				x = c.x[1]
			}
			request, answer := frame.Tuple{Src: x, Dst: netip.AddrPortFrom(outside, published)}, frame.Tuple{Src: inside, Dst: x}
			if !once[request] {
				in++
				err = c.send(X, request)
			}
			if !once[answer] && err == nil {
				out++
				err = c.send(A, answer)
			}
			if once[request], once[answer] = true, true; err != nil {
				return in, out, err
			}
		}
	}
	return in, out, nil
}

func (c *changing) send(from Host, t frame.Tuple) error {
	c.number++
	c.sent[c.number] = t
	at, _ := deviceOf(from)
	packet := UDPPacket(t.Src, t.Dst, string(binary.BigEndian.AppendUint32(nil, c.number)))
	return write(c.wires.far[at.dev], ethernet(frame.Link{Source: at.mac, Destination: gatewayMAC[at.dev]}, packet))
}

// receive wants a number of packets at an interface, each as one of some files has it.
func (c *changing) receive(dev string, n int, files ...*fixedFile) error {
	buffer, deadline := make([]byte, 1<<16), time.Now().Add(c.patience)
	for n > 0 {
		b, err := receiveFrom(c.wires.far[dev], buffer, time.Until(deadline))
		if err == nil && b == nil && time.Now().After(deadline) {
			err = os.ErrDeadlineExceeded
		}
		if err != nil {
			return fmt.Errorf("%d packets are lost at %s: %w%s", n, dev, err, c.missing())
		}
		var f frame.Frame
		if b == nil || f.Decode(b) != nil || len(f.Payload) != 4 {
			continue // others talk, too
		}
		sent, known := c.sent[binary.BigEndian.Uint32(f.Payload)]
		if !known {
			return fmt.Errorf("at %s: came twice, or late: %s", dev, line(&f))
		}
		delete(c.sent, binary.BigEndian.Uint32(f.Payload))
		if !f.IPChecksumOK() || bad(&f) {
			return fmt.Errorf("at %s: wrong checksum: %s", dev, line(&f))
		}
		if n--; !oneOfFiles(sent, f.Tuple(), files) {
			return fmt.Errorf("at %s: %v > %v came as %s", dev, sent.Src, sent.Dst, line(&f))
		}
	}
	return nil
}

// missing are the packets that did not come, by their ends.
func (c *changing) missing() string {
	var b strings.Builder
	for _, t := range c.sent {
		fmt.Fprintf(&b, "\n%v > %v", t.Src, t.Dst)
	}
	return b.String()
}

func oneOfFiles(sent, got frame.Tuple, files []*fixedFile) bool {
	for _, f := range files {
		if f.seen(sent) == got {
			return true
		}
	}
	return false
}

// exchange sends a packet of each flow of some files, and wants all of them.
func (c *changing) exchange(files ...*fixedFile) error {
	in, out, err := c.sendAll(files...)
	if err == nil {
		err = c.receive(LAN, in, files...)
	}
	if err == nil {
		err = c.receive(WAN, out, files...)
	}
	return err
}

// change applies a file while packets flow. It returns how many times each flow had one meanwhile.
func (c *changing) change(e programs, before, after *fixedFile) (times int, err error) {
	plan, err := compile("drawn", after.text)
	if err != nil {
		return 0, err
	}
	assigned, notes, err := e.set().Assign(e.asks(plan), gateway.Facts{})
	if err != nil || len(assigned.Assigned[gateway.EngineEBPF]) != after.rules {
		return 0, fmt.Errorf("the programs do not have all rules: %v, %w\n%s", notes, err, after.text)
	}
	applied := make(chan error, 1)
	go func() { applied <- c.Apply(plan) }()
	for {
		select {
		case err := <-applied:
			if err == nil {
				err = c.exchange(after)
			}
			return times, err
		default:
			if err := c.exchange(before, after); err != nil {
				return times, errorsOf(err, <-applied)
			}
			times++
		}
	}
}

func errorsOf(err, applied error) error {
	if applied != nil {
		return fmt.Errorf("%w; apply: %w", err, applied)
	}
	return err
}

// TestEBPFChangesUnderTraffic applies drawn files one after the other while packets flow: each packet becomes what the
// file before or the one after makes of it, and none is lost. NATKIT_SEED=… repeats what a failing test printed.
func TestEBPFChangesUnderTraffic(t *testing.T) {
	seed := uint64(20)
	if text := os.Getenv("NATKIT_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	} else if os.Getenv("NATKIT_NIGHTLY") != "" {
		seed = rand.Uint64()
	}
	for _, e := range []programs{{gateway.XDPOff}, {gateway.XDPNative}} {
		t.Run(string(e.xdp), func(t *testing.T) {
			testutil.NeedRoot(t)
			t.Parallel()
			testutil.ShareHost(t) // what the programs leave to netfilter is tracked: it would be lost where a test fills the host's table
			t.Logf("NATKIT_SEED=%d", seed)
			w, err := Namespaces(e, testutil.Patience(patience), Polled)()
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			changesUnderTraffic(t, e, w.(*netnsWorld), rand.New(rand.NewPCG(seed, 0)))
		})
	}
}

func changesUnderTraffic(t *testing.T, e programs, w *netnsWorld, r *rand.Rand) {
	c := &changing{netnsWorld: w, sent: map[uint32]frame.Tuple{}}
	before, times := drawFile(r), 0
	plan, err := compile("drawn", before.text)
	if err == nil {
		err = w.Apply(plan)
	}
	if err != nil {
		t.Fatal(err)
	}
	for round := range 8 {
		// Clients of its own: netfilter keeps connections of ends that the programs left to it.
		c.x = [2]netip.AddrPort{
			netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, 0, byte(20 + round)}), 5000),
			netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("2001:db8:f:1::%d", 20+round)), 5000)}
		after := drawFile(r)
		if err := c.exchange(&before); err != nil {
			t.Fatalf("round %d, before: %v\n%s", round, err, before.text)
		}
		n, err := c.change(e, &before, &after)
		if err != nil {
			t.Fatalf("round %d: %v\nbefore:\n%safter:\n%s", round, err, before.text, after.text)
		}
		before, times = after, times+n
	}
	if times == 0 {
		t.Error("no packet was sent while a file was applied")
	}
	t.Logf("%d packets of each flow while files were applied, none lost", times)
}
