package lab

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/conntrack"
)

// tupleKey is a tuple in a form that maps compare fast; key is what the kernel
// keys entries by, both directions alike.
type tupleKey struct {
	src, dst     [16]byte
	ports, proto uint64
}

func key(t *conntrack.Tuple) tupleKey {
	return tupleKey{t.Src.As16(), t.Dst.As16(), uint64(t.SrcPort)<<48 | uint64(t.DstPort)<<32 | uint64(t.ICMPID), uint64(t.Proto)<<16 | uint64(t.ICMPType)<<8 | uint64(t.ICMPCode)}
}

// mustBeDistinct looks at the first n entries: no tuple, original or reply, may be
// there twice, which the kernel would refuse.
func mustBeDistinct(t *testing.T, f *Filler, n int64) {
	t.Helper()
	seen := make(map[tupleKey]int64, 2*n)
	var e conntrack.Entry
	for i := range n {
		part := f.Entry(i, &e)
		if err := e.Check(); err != nil {
			t.Fatalf("entry %d: %v", i, err)
		}
		for _, tuple := range []*conntrack.Tuple{&e.Orig, &e.Reply} {
			if other, twice := seen[key(tuple)]; twice {
				t.Fatalf("entries %d and %d (part %s) have the same tuple %+v", other, i, f.mix.Parts[part].Name, *tuple)
			}
			seen[key(tuple)] = i
		}
	}
}

func TestMixesAreDistinctAndAsDescribed(t *testing.T) {
	const n = 200_000
	for _, m := range Mixes() {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			f := m.Filler(7, FillMark)
			if room := f.Room(); room < 1<<20 {
				t.Errorf("room for %d entries only", room)
			}
			mustBeDistinct(t, f, n)
			counts := make([]int64, len(m.Parts))
			var e, again conntrack.Entry
			other := m.Filler(7, FillMark)
			for i := range int64(n) {
				part := f.Entry(i, &e)
				counts[part]++
				if i%97 == 0 {
					checkEntry(t, &m.Parts[part], &e)
					if other.Entry(i, &again); !again.Equal(&e) {
						t.Fatalf("entry %d is not the same when it is made again", i)
					}
				}
			}
			if diff := gocmp.Diff(f.Counts(n), counts); diff != "" {
				t.Errorf("parts (-Counts +made):\n%s", diff)
			}
			checkShares(t, m, counts, n)
		})
	}
}

// checkShares compares with the weights: what is made first follows them within
// one entry of each part.
func checkShares(t *testing.T, m *Mix, counts []int64, n int64) {
	t.Helper()
	weights := 0
	for _, p := range m.Parts {
		weights += p.Share
		n -= p.Count
	}
	for i, p := range m.Parts {
		want := float64(n)*float64(p.Share)/float64(weights) + float64(p.Count)
		if math.Abs(want-float64(counts[i])) > 1 {
			t.Errorf("part %s has %d entries, want %.1f", p.Name, counts[i], want)
		}
	}
}

// checkEntry compares an entry with the text of its part.
func checkEntry(t *testing.T, p *Part, e *conntrack.Entry) {
	t.Helper()
	timeout := p.Timeout
	if timeout == (Span{}) {
		timeout = p.usualTimeout()
	}
	ports := p.SourcePorts
	if ports == (Ports{}) {
		ports = clientPorts
	}
	fail := func(what string) { t.Fatalf("part %s: %s of %+v", p.Name, what, *e) }
	switch {
	case e.Mark != FillMark:
		fail("mark")
	case e.Timeout < timeout.First || e.Timeout > timeout.Last:
		fail("timeout")
	case e.TCPState.String() != cmp.Or(p.State, conntrack.TCPNone.String()) || e.Status != statusBits[p.seen()]:
		fail("state")
	case !p.Sources.Prefix.Contains(e.Orig.Src) || e.Orig.Src.Is4() && !FillSources.Contains(e.Orig.Src):
		fail("source")
	case p.Protocol != "icmp" && (e.Orig.SrcPort < ports.First || e.Orig.SrcPort > ports.Last):
		fail("source port")
	case !among(p.Destinations, e.Orig.Dst, e.Orig.DstPort):
		fail("destination")
	case e.IsSNAT() != (p.NAT != nil && p.NAT.SNAT != nil) || e.IsDNAT() != (p.NAT != nil && len(p.NAT.DNAT) > 0):
		fail("translation")
	case e.IsSNAT() && !among(p.NAT.SNAT.To, e.Reply.Dst, 0):
		fail("address of SNAT")
	case e.IsSNAT() && p.NAT.SNAT.Order == Preserve && (e.Reply.DstPort != e.Orig.SrcPort || e.Reply.ICMPID != e.Orig.ICMPID):
		fail("port of SNAT")
	case e.IsDNAT() && !among(p.NAT.DNAT, e.Reply.Src, e.Reply.SrcPort):
		fail("server")
	}
}

func among(list []Endpoint, addr netip.Addr, port uint16) bool {
	for _, e := range list {
		if e.Contains(addr) && e.Port == port {
			return true
		}
	}
	return false
}

// TestFirstEntries compares the first entries of every mix with a golden listing:
// a fill that was described by its seed must be the same with the next natkit.
func TestFirstEntries(t *testing.T) {
	var b strings.Builder
	for _, m := range Mixes() {
		fmt.Fprintf(&b, "== %s, room for %d\n", m.Name, m.Filler(1, 0).Room())
		f := m.Filler(1, 0)
		var e conntrack.Entry
		for i := range int64(12) {
			part := f.Entry(i, &e)
			fmt.Fprintf(&b, "%-15s %s %d %s | %s\n", m.Parts[part].Name, e.TCPState, e.Timeout, tupleText(&e.Orig), tupleText(&e.Reply))
		}
	}
	const golden = "testdata/mixes.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("entries (-want +got; -update rewrites them):\n%s", diff)
	}
}

func tupleText(t *conntrack.Tuple) string {
	if t.Proto == 1 || t.Proto == 58 {
		return fmt.Sprintf("%s>%s id %d type %d", t.Src, t.Dst, t.ICMPID, t.ICMPType)
	}
	return fmt.Sprintf("%s>%s", netip.AddrPortFrom(t.Src, t.SrcPort), netip.AddrPortFrom(t.Dst, t.DstPort))
}

// small is a mix of so few connections that all can be looked at.
func small(t *testing.T, part string) *Mix {
	t.Helper()
	m, err := ParseMix("small.yaml", []byte("name: small\ntitle: few\nparts:\n"+part))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestEveryConnectionOnce fills small mixes to the last entry.
func TestEveryConnectionOnce(t *testing.T) {
	const ends = `{name: a, share: 1, protocol: tcp, state: ESTABLISHED, sources: {prefix: 198.18.128.0/24, hosts: 20}, source_ports: 1000-1019, `
	for name, tc := range map[string]struct {
		parts string
		room  int64
	}{
		"plain":              {"- " + ends + `destinations: ["203.0.113.0/29:80", "203.0.113.9:81"]}`, 20 * 20 * 7},
		"sequential":         {"- " + ends + `destinations: ["203.0.113.0/29:80"], order: sequential}`, 20 * 20 * 6},
		"dnat, few servers":  {"- " + ends + `destinations: ["203.0.113.0/29:80"], nat: {dnat: ["203.0.113.128/30:80"]}}`, 20 * 20 * 2},
		"dnat, many servers": {"- " + ends + `destinations: ["203.0.113.1:80"], nat: {dnat: ["203.0.113.128/26:80"]}}`, 20 * 20},
		"preserve":           {"- " + ends + `destinations: ["203.0.113.0/29:80"], nat: {snat: {to: [203.0.113.64, 203.0.113.65, 203.0.113.66], ports: 1010-2000}}}`, 6 * 3 * 10},
		"random":             {"- " + ends + `destinations: ["203.0.113.0/29:80"], nat: {snat: {to: [203.0.113.64, 203.0.113.65, 203.0.113.66], ports: 5000-5099, order: random}}}`, 6 * 3 * 100},
		"random, few":        {"- " + ends + `destinations: ["203.0.113.0/29:80"], nat: {snat: {to: [203.0.113.64], ports: 5000-9999, order: random}}}`, 6 * 400},
		"sequential ports":   {"- " + ends + `destinations: ["203.0.113.0/29:80"], nat: {snat: {to: [203.0.113.64/31], ports: 5000-5099, order: sequential}}}`, 6 * 2 * 100},
		"full":               {"- " + ends + `destinations: ["203.0.113.0/29:80"], nat: {dnat: ["203.0.113.128/28:80"], snat: {to: [203.0.113.64/31], ports: 5000-5099, order: random}}}`, 6 * 2 * 100},
		"icmp":               {`- {name: a, share: 1, protocol: icmp, sources: {prefix: 198.18.128.0/30}, source_ports: 0-99, destinations: [203.0.113.0/30], nat: {snat: {to: [203.0.113.64], ports: 0-49, order: random}}}`, 2 * 50},
		"gre":                {`- {name: a, share: 1, protocol: gre, sources: {prefix: 198.18.128.1}, source_ports: 1-99, destinations: ["203.0.113.0/31:7"]}`, 99 * 2},
		"sctp over ipv6":     {`- {name: a, share: 1, protocol: sctp, sources: {prefix: "2001:db8::/126"}, source_ports: 1-10, destinations: ["[2001:db8:1::1]:7"]}`, 3 * 10},
		"two parts of the same ends": {"- " + ends + `destinations: ["203.0.113.0/31:80"]}` + "\n" +
			strings.Replace("- "+ends, "name: a, share: 1", "name: b, share: 3", 1) + `destinations: ["203.0.113.0/31:80"]}`, 800},
		"a count first": {"- " + strings.Replace(ends, "share: 1", "count: 50", 1) + `destinations: ["203.0.113.0/31:80"]}` + "\n" +
			strings.Replace("- "+ends, "name: a", "name: b", 1) + `destinations: ["203.0.113.0/31:80"]}`, 800},
		"counts only": {"- " + strings.Replace(ends, "share: 1", "count: 800", 1) + `destinations: ["203.0.113.0/31:80"]}`, 800},
		"one part of two is at its end": {"- " + ends + `destinations: ["203.0.113.1:80"]}` + "\n" +
			strings.Replace("- "+ends, "name: a, share: 1", "name: b, share: 3", 1) + `destinations: ["203.0.113.0/24:443"]}`, 4*400 + 1},
	} {
		t.Run(name, func(t *testing.T) {
			m := small(t, tc.parts)
			for seed := range uint64(3) {
				f := m.Filler(seed, FillMark)
				if room := f.Room(); room < tc.room || room > tc.room+3 { // where in the cycle it ends
					t.Errorf("room for %d, want %d", room, tc.room)
				}
				mustBeDistinct(t, f, f.Room())
				var e conntrack.Entry
				for i := range f.Room() {
					checkEntry(t, &m.Parts[f.Entry(i, &e)], &e)
				}
			}
		})
	}
}

func TestSeedsDiffer(t *testing.T) {
	for _, m := range Mixes() {
		if m.Name == DefaultMix {
			continue // sequential
		}
		var a, b conntrack.Entry
		same := 0
		for i := range int64(1000) {
			m.Filler(1, 0).Entry(i, &a)
			m.Filler(2, 0).Entry(i, &b)
			if reflect.DeepEqual(a, b) {
				same++
			}
		}
		if same > 10 {
			t.Errorf("mix %s: %d of 1000 entries are the same with another seed", m.Name, same)
		}
	}
}

// TestEstablishedStaysAsItWas: the scenario table-full has always filled with these.
func TestEstablishedStaysAsItWas(t *testing.T) {
	mix, err := FindMix(DefaultMix)
	if err != nil {
		t.Fatal(err)
	}
	f := mix.Filler(0, FillMark)
	for i := int64(0); i < MaxFill; i += 99991 {
		const fillHosts = 1<<15 - 2
		host := i%fillHosts + 1
		tuple := conntrack.Tuple{
			Src:     netip.AddrFrom4([4]byte{198, 18, 128 | byte(host>>8), byte(host)}),
			SrcPort: uint16(32768 + i/fillHosts), Dst: netip.MustParseAddr("198.18.127.254"), DstPort: 443, Proto: 6,
		}
		want := conntrack.Entry{
			Family: 2, Orig: tuple, Reply: tuple.Mirror(), Status: conntrack.SeenReply | conntrack.Assured | conntrack.Confirmed,
			TCPState: conntrack.TCPEstablished, Timeout: 432000, Mark: FillMark,
		}
		var got conntrack.Entry
		if f.Entry(i, &got); !got.Equal(&want) {
			t.Fatalf("entry %d is %+v, want %+v", i, got, want)
		}
	}
}
