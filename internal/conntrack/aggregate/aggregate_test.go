package aggregate

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/unix"
)

func roomy() Memory { return Memory{Budget: NewBudget(64 << 20), Seed: 1} }

// entry is a TCP connection of a client to a service, as text says it.
func entry(proto uint8, from, to string) conntrack.Entry {
	client, server := netip.MustParseAddrPort(from), netip.MustParseAddrPort(to)
	e := conntrack.Entry{
		Orig: conntrack.Tuple{Src: client.Addr(), Dst: server.Addr(), Proto: proto, SrcPort: client.Port(), DstPort: server.Port()},
	}
	if proto == unix.IPPROTO_TCP {
		e.TCPState = conntrack.TCPEstablished
	}
	e.Reply = e.Orig.Mirror()
	return e
}

// variety has one entry of each kind that keys distinguish.
func variety() []conntrack.Entry {
	plain := entry(unix.IPPROTO_TCP, "198.18.0.1:1024", "203.0.113.1:443")
	plain.Status = conntrack.SeenReply | conntrack.Assured
	snat := entry(unix.IPPROTO_TCP, "198.18.0.1:1025", "203.0.113.1:443")
	snat.Reply.Dst, snat.Status, snat.TCPState = netip.MustParseAddr("203.0.113.9"), conntrack.SeenReply, conntrack.TCPTimeWait
	dnat := entry(unix.IPPROTO_UDP, "198.18.1.2:53000", "203.0.113.2:53")
	dnat.Reply.Src, dnat.Mark, dnat.Zone, dnat.ReplyZone = netip.MustParseAddr("198.18.9.9"), 0x20, 3, 3
	both := entry(unix.IPPROTO_TCP, "198.18.1.2:53001", "203.0.113.2:80")
	both.Reply.Src, both.Reply.DstPort, both.Status = netip.MustParseAddr("198.18.9.9"), 4000, conntrack.SeenReply|conntrack.Assured|conntrack.Offload
	both.Fields, both.Zone = conntrack.NoState, 4
	six := entry(unix.IPPROTO_SCTP, "[2001:db8:1:2::7]:9", "[2001:db8:ffff::1]:10")
	six.SCTPState, six.Status = 4, conntrack.SeenReply|conntrack.Assured|conntrack.Offload|conntrack.HWOffload
	ping := entry(unix.IPPROTO_ICMP, "198.18.0.1:0", "203.0.113.1:0")
	ping.Orig.ICMPID, ping.Reply.ICMPID = 7, 7
	return []conntrack.Entry{plain, snat, dnat, both, six, ping}
}

func groupsOf(t *testing.T, keys string, entries []conntrack.Entry) (rows []string) {
	t.Helper()
	parsed, err := ParseKeys(keys)
	if err != nil {
		t.Fatal(err)
	}
	a := New(parsed, roomy())
	for i := range entries {
		a.Add(&entries[i])
	}
	for g := range a.Groups(0, 0) {
		var row []string
		for i := range parsed {
			row = append(row, g.Text(i))
		}
		rows = append(rows, fmt.Sprint(strings.Join(row, "|"), " ", g.Entries))
	}
	if !a.Exact() || a.Bound() != 0 || a.Len() != len(rows) || a.Entries() != int64(len(entries)) {
		t.Errorf("exact %v, bound %d, %d groups of %d entries", a.Exact(), a.Bound(), a.Len(), a.Entries())
	}
	return rows
}

func TestKeys(t *testing.T) {
	for keys, want := range map[string][]string{
		"family":              {"ipv4 5", "ipv6 1"},
		"proto":               {"tcp 3", "icmp 1", "udp 1", "sctp 1"},
		"state":               {"- 3", "ESTABLISHED 1", "TIME_WAIT 1", "sctp ESTABLISHED 1"},
		"src":                 {"198.18.0.1 3", "198.18.1.2 2", "2001:db8:1:2::7 1"},
		"src/24":              {"198.18.0.0/24 3", "198.18.1.0/24 2", "2001:db8:1:2::7 1"},
		"src/48":              {"198.18.0.1 3", "198.18.1.2 2", "2001:db8:1::/48 1"},
		"src/15/64":           {"198.18.0.0/15 5", "2001:db8:1:2::/64 1"},
		"src/0":               {"0.0.0.0/0 5", "2001:db8:1:2::7 1"},
		"src/32/128":          {"198.18.0.1 3", "198.18.1.2 2", "2001:db8:1:2::7 1"},
		"dst":                 {"203.0.113.1 3", "203.0.113.2 2", "2001:db8:ffff::1 1"},
		"sport":               {"- 1", "9 1", "1024 1", "1025 1", "53000 1", "53001 1"},
		"dport":               {"443 2", "- 1", "10 1", "53 1", "80 1"},
		"reply-src":           {"198.18.9.9 2", "203.0.113.1 3", "2001:db8:ffff::1 1"},
		"reply-dst":           {"198.18.0.1 2", "198.18.1.2 2", "203.0.113.9 1", "2001:db8:1:2::7 1"},
		"reply-sport":         {"443 2", "- 1", "10 1", "53 1", "80 1"},
		"reply-dport":         {"- 1", "9 1", "1024 1", "1025 1", "4000 1", "53000 1"},
		"nat":                 {"none 3", "snat 1", "dnat 1", "both 1"},
		"snat-address":        {"- 4", "198.18.1.2 1", "203.0.113.9 1"},
		"zone":                {"0 4", "3 1", "orig 4, reply 0 1"},
		"mark":                {"0x0 5", "0x20 1"},
		"status":              {"unreplied 2", "answered 1", "assured 1", "assured offloaded 1", "assured offloaded to hardware 1"},
		"family,snat-address": {"ipv4|- 3", "ipv4|198.18.1.2 1", "ipv4|203.0.113.9 1", "ipv6|- 1"},
		"proto,state,dst/24": {"tcp|-|203.0.113.0/24 1", "tcp|ESTABLISHED|203.0.113.0/24 1", "tcp|TIME_WAIT|203.0.113.0/24 1",
			"icmp|-|203.0.113.0/24 1", "udp|-|203.0.113.0/24 1", "sctp|sctp ESTABLISHED|2001:db8:ffff::1 1"},
	} {
		got := groupsOf(t, keys, variety())
		// The order of equals is that of the values' bytes: tested apart.
		slices.Sort(got)
		slices.Sort(want)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", keys, d)
		}
	}
}

func TestOrder(t *testing.T) {
	var entries []conntrack.Entry
	for _, from := range []string{"198.18.0.9:1", "198.18.0.10:1", "198.18.0.2:1", "198.18.0.2:2", "[2001:db8::1]:1", "[2001:db8::1]:2", "[2001:db8::1]:3", "[2001:db8::2]:1"} {
		to := "203.0.113.1:80"
		if strings.HasPrefix(from, "[") {
			to = "[2001:db8::80]:80"
		}
		entries = append(entries, entry(unix.IPPROTO_TCP, from, to))
	}
	want := []string{"2001:db8::1 3", "198.18.0.2 2", "198.18.0.9 1", "198.18.0.10 1", "2001:db8::2 1"}
	if d := cmp.Diff(want, groupsOf(t, "src", entries)); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

func TestTopAndMin(t *testing.T) {
	keys, _ := ParseKeys("src")
	a := New(keys, roomy())
	for i := range 20 {
		for j := range i + 1 {
			e := entry(unix.IPPROTO_TCP, fmt.Sprintf("198.18.0.%d:%d", i, j+1), "203.0.113.1:80")
			if i%2 == 1 {
				e = entry(unix.IPPROTO_TCP, fmt.Sprintf("[2001:db8::%d]:%d", i, j+1), "[2001:db8::80]:80")
			}
			a.Add(&e)
		}
	}
	for _, tt := range []struct {
		top   int
		least int64
		want  []int64
	}{
		{3, 0, []int64{20, 19, 18}}, {0, 18, []int64{20, 19, 18}}, {2, 18, []int64{20, 19}}, {5, 100, nil},
	} {
		var got []int64
		for g := range a.Groups(tt.top, tt.least) {
			got = append(got, g.Entries)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("top %d of at least %d: %v, want %v", tt.top, tt.least, got, tt.want)
		}
	}
	for range a.Groups(0, 0) {
		break // a reader may stop
	}
}

func TestValues(t *testing.T) {
	entries := variety()
	keys, _ := ParseKeys("mark,zone,dport,snat-address,state,src/24,nat")
	a := New(keys, roomy())
	a.Add(&entries[2])
	for g := range a.Groups(0, 0) {
		var got []any
		for i := range keys {
			got = append(got, g.Value(i))
		}
		want := []any{uint32(0x20), uint16(3), uint16(53), nil, nil, "198.18.1.0/24", "dnat"}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("-want +got:\n%s", d)
		}
	}
}

// TestGarbledEntry: tuples of two versions of IP, or of none, break nothing.
func TestGarbledEntry(t *testing.T) {
	keys, _ := ParseKeys("src,dst,reply-src,reply-dst,snat-address")
	a := New(keys, roomy())
	e := entry(unix.IPPROTO_TCP, "198.18.0.1:1", "203.0.113.1:80")
	e.Reply = conntrack.Tuple{Src: netip.MustParseAddr("2001:db8::1")}
	a.Add(&e)
	a.Add(&conntrack.Entry{TCPState: 200, Orig: conntrack.Tuple{Proto: unix.IPPROTO_TCP}})
	if a.Len() != 2 {
		t.Errorf("%d groups, want 2", a.Len())
	}
	for g := range a.Groups(0, 0) {
		for i := range keys {
			_, _ = g.Text(i), g.Value(i)
		}
	}
}

func TestParseKeysRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":              "a key is missing; there are: family, proto, state, src,",
		"src,":          "a key is missing",
		"srcc":          `unknown key "srcc": did you mean "src"?`,
		"replay-src":    `did you mean "reply-src"?`,
		"source":        `did you mean "src"?`,
		"xyzzyplugh":    `unknown key "xyzzyplugh"; there are`,
		"src,src":       `key "src" is there twice`,
		"src/24,src/24": "twice",
		"src,src/32":    "twice",
		"state/24":      `key "state/24": only addresses have prefixes`,
		"src/x":         "the length of a prefix",
		"src/129":       "the length of a prefix",
		"src/-1":        "the length of a prefix",
		"src/":          "the length of a prefix",
		"src/24/129":    "the length of a prefix",
		"src/64/64":     "the first of two lengths is IPv4's",
		"src/24/64/1":   "the length of a prefix",
		"family,proto,state,src,dst,sport,dport,nat,zone": "9 keys: at most 8",
	} {
		if _, err := ParseKeys(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	for _, text := range append(Names(), "SRC", " src , dst ", "src,src/24,src/16", strings.Join(Names()[:8], ",")) {
		if _, err := ParseKeys(text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzParseKeys(f *testing.F) {
	for _, text := range []string{"src/24/64", "state,src", "", ",,,", "src/", "mark/1"} {
		f.Add(text)
	}
	entries := variety()
	f.Fuzz(func(t *testing.T, text string) {
		defer testutil.Bounded(t, len(text))()
		keys, err := ParseKeys(text)
		if err != nil {
			return
		}
		a := New(keys, roomy())
		for i := range entries {
			a.Add(&entries[i])
		}
		for g := range a.Groups(0, 0) {
			for i := range keys {
				if g.Text(i) == "" {
					t.Errorf("%q: empty value", text)
				}
			}
		}
	})
}

func TestAddAllocatesNothing(t *testing.T) {
	entries := variety()
	for _, name := range append(Names(), "state,src", "src/24,dst/48,snat-address,reply-src,reply-dst,dport") {
		keys, _ := ParseKeys(name)
		a := New(keys, roomy())
		add := func() {
			for i := range entries {
				a.Add(&entries[i])
			}
		}
		add()
		if n := testing.AllocsPerRun(100, add); n != 0 {
			t.Errorf("%s: %v allocations for %d entries", name, n, len(entries))
		}
	}
}

func BenchmarkAdd(b *testing.B) {
	for _, sources := range []int{1000, 1_000_000, 4_000_000} {
		b.Run(fmt.Sprintf("sources=%d", sources), func(b *testing.B) {
			keys, _ := ParseKeys("state,src")
			e := entry(unix.IPPROTO_TCP, "198.18.0.1:1", "203.0.113.1:80")
			for range b.N {
				a := New(keys, Memory{Budget: NewBudget(44 << 20), Seed: 1})
				for i := range 4_000_000 {
					n := uint32(i) * 2654435761 % uint32(sources)
					e.Orig.Src = netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
					a.Add(&e)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/4e6, "ns/entry")
		})
	}
}
