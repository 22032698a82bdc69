package anonymize

import (
	"math/rand/v2"
	"net/netip"
	"testing"
)

func testKey(t testing.TB, secret string) *Anonymizer {
	t.Helper()
	key, err := NewKey([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	return New(key)
}

const testSecret = "0123456789abcdef"

// TestAddresses: what a key makes of an address never changes, or bundles of one key could not be compared.
func TestAddresses(t *testing.T) {
	a := testKey(t, testSecret)
	for from, want := range map[string]string{
		"8.8.8.8":              "8.110.35.8",
		"81.2.69.142":          "74.164.89.142",
		"81.2.69.160":          "74.164.89.160",
		"10.77.3.5":            "10.140.166.5",
		"192.168.1.1":          "192.168.7.1",
		"172.16.9.1":           "172.21.57.1",
		"100.64.3.4":           "100.126.81.4",
		"198.18.0.1":           "198.18.248.1",
		"169.254.169.254":      "169.254.169.254",
		"127.0.0.1":            "127.0.0.1",
		"0.0.0.0":              "0.0.0.0",
		"255.255.255.255":      "255.255.255.255",
		"224.0.0.251":          "224.0.0.251",
		"192.0.2.7":            "192.0.2.7",
		"2a02:6b8:5::160":      "2fe4:a588:525a:1b8:5caf:85a5:60cd:c260",
		"2a02:6b8:5::142":      "2fe4:a588:525a:1b8:5caf:85a5:60cd:c242",
		"fd42:1:2:3::5":        "fdde:2f9a:198:d474:5900:beb7:5c1:7b05",
		"fe80::42:acff:fe11:2": "fe80::163c:e6f8:a121:5502",
		"::1":                  "::1",
		"ff02::1":              "ff02::1",
		"ff02::1:ff00:160":     "ff02::1:ffa0:f460",
		"2001:db8::1":          "2001:db8::1",
		"64:ff9b::8.8.8.8":     "64:ff9b::86e:2308",
		"::ffff:8.8.8.8":       "::ffff:8.110.35.8",
	} {
		if got := a.Addr(netip.MustParseAddr(from)).String(); got != want {
			t.Errorf("%s becomes %s, want %s", from, got, want)
		}
	}
	if a, b := a.Addr(netip.MustParseAddr("8.8.8.8")), testKey(t, testSecret+"0").Addr(netip.MustParseAddr("8.8.8.8")); a == b {
		t.Errorf("two keys make the same %s", a)
	}
}

// anyAddress is one of either version, half of them near the ends of a class.
func anyAddress(random *rand.Rand) netip.Addr {
	c := classes[random.IntN(len(classes))]
	b := c.Addr().AsSlice()
	near := random.IntN(2) == 0
	for i := range b {
		if !near || i*8 >= c.Bits() {
			b[i] = byte(random.Uint32())
		}
	}
	if near { // the neighbour's, with one bit of its prefix flipped
		if at := random.IntN(c.Bits() + 1); at < c.Bits() {
			b[at/8] ^= 0x80 >> (at % 8)
		}
	}
	address, _ := netip.AddrFromSlice(b)
	return address
}

// TestPrefixesStay: two addresses share as many bits as before.
func TestPrefixesStay(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	a := testKey(t, testSecret)
	for range 20_000 {
		x := anyAddress(random)
		b := x.AsSlice()
		at := random.IntN(len(b) * 8)
		b[at/8] ^= 0x80 >> (at % 8) // they share at bits
		y, _ := netip.AddrFromSlice(b)
		if isEmbedding(x) || isEmbedding(y) {
			continue
		}
		if got := common(a.Addr(x).AsSlice(), a.Addr(y).AsSlice()); got != at {
			t.Fatalf("%s and %s share %d bits, %s and %s %d", x, y, at, a.Addr(x), a.Addr(y), got)
		}
	}
}

func isEmbedding(a netip.Addr) bool {
	return embedding[0].Contains(a) || a.Is4In6() || embedding[1].Contains(a)
}

func classOf(a netip.Addr) (longest netip.Prefix) {
	for _, c := range classes {
		if c.Contains(a) && (!longest.IsValid() || c.Bits() > longest.Bits()) {
			longest = c.Prefix
		}
	}
	return longest
}

// TestClassesStay: an address is private, loopback, multicast, … if it was, and public addresses change.
func TestClassesStay(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	a := testKey(t, testSecret)
	changed, all := 0, 0
	for range 20_000 {
		x := anyAddress(random)
		y := a.Addr(x)
		if classOf(x) != classOf(y) || x.IsPrivate() != y.IsPrivate() || x.IsLoopback() != y.IsLoopback() || x.IsMulticast() != y.IsMulticast() ||
			x.IsLinkLocalUnicast() != y.IsLinkLocalUnicast() || x.IsGlobalUnicast() != y.IsGlobalUnicast() || x.IsUnspecified() != y.IsUnspecified() {
			t.Fatalf("%s of %v becomes %s of %v", x, classOf(x), y, classOf(y))
		}
		if x.Is4() && !classOf(x).IsValid() {
			if all++; x != y {
				changed++
			}
		}
	}
	if float64(changed) < 0.99*float64(all) {
		t.Errorf("%d of %d public addresses changed", changed, all)
	}
}

// TestNetworksOfAddresses: 65,536 addresses become as many, in networks of 256 that keep their order.
func TestNetworksOfAddresses(t *testing.T) {
	a := testKey(t, testSecret)
	seen := map[netip.Addr]bool{}
	for at := netip.MustParseAddr("81.2.0.0"); at.As4()[1] == 2; at = at.Next() {
		got := a.Addr(at)
		if got.As4()[3] != at.As4()[3] {
			t.Fatalf("%s becomes %s", at, got)
		}
		seen[got] = true
	}
	if len(seen) != 1<<16 {
		t.Errorf("%d addresses of 65,536", len(seen))
	}
	// Beside a network of documentation the class leaves nothing but the last bits.
	if at := netip.MustParseAddr("203.0.112.5"); a.Addr(at) == at || classOf(a.Addr(at)).IsValid() {
		t.Errorf("%s becomes %s", at, a.Addr(at))
	}
}

func TestRange(t *testing.T) {
	a := testKey(t, testSecret)
	for _, c := range []struct {
		first, last string
		exact       bool
	}{
		{"81.2.69.10", "81.2.69.20", true}, {"81.2.69.0", "81.2.69.255", true}, {"10.0.0.0", "10.255.255.255", true},
		{"81.2.0.0", "81.2.3.255", true}, {"127.0.0.1", "127.0.0.9", true}, {"2a02:6b8::10", "2a02:6b8::20", true},
		{"81.2.69.200", "81.2.70.20", false}, {"0.0.0.0", "255.255.255.255", true}, {"203.0.112.3", "203.0.112.9", false},
	} {
		first, last := netip.MustParseAddr(c.first), netip.MustParseAddr(c.last)
		f, l := a.Range(first, last)
		if l.Less(f) {
			t.Errorf("%s-%s becomes %s-%s", first, last, f, l)
		}
		inside := func(x netip.Addr) bool { x = a.Addr(x); return !x.Less(f) && !l.Less(x) }
		if !inside(first) || !inside(last) || !inside(first.Next()) && first != last {
			t.Errorf("%s-%s becomes %s-%s, without an address of it", first, last, f, l)
		}
		if before := first.Prev(); c.exact && before.IsValid() && inside(before) {
			t.Errorf("%s-%s becomes %s-%s, with %s", first, last, f, l, before)
		}
		if after := last.Next(); c.exact && after.IsValid() && inside(after) {
			t.Errorf("%s-%s becomes %s-%s, with %s", first, last, f, l, after)
		}
	}
}

func TestPrefix(t *testing.T) {
	a := testKey(t, testSecret)
	for _, text := range []string{"0.0.0.0/0", "10.0.0.0/8", "81.2.69.0/24", "2a02:6b8::/32", "::/0", "81.2.0.0/15"} {
		p := netip.MustParsePrefix(text)
		got := a.Prefix(p)
		if got != got.Masked() || got.Bits() != p.Bits() || !got.Contains(a.Addr(p.Addr())) {
			t.Errorf("%s becomes %s", p, got)
		}
	}
	host := netip.MustParsePrefix("81.2.69.142/24")
	if got := a.Prefix(host); got.Addr() != a.Addr(host.Addr()) || got.Bits() != 24 {
		t.Errorf("%s becomes %s", host, got)
	}
}

func BenchmarkAddr(b *testing.B) {
	a := testKey(b, testSecret)
	random := rand.New(rand.NewPCG(1, 2))
	all := make([]netip.Addr, 1<<12)
	for i := range all {
		all[i] = netip.AddrFrom4([4]byte{81, byte(i >> 4), byte(random.Uint32()), byte(i)})
	}
	for i := 0; b.Loop(); i++ {
		a.Addr(all[i%len(all)])
	}
}
