//go:build linux

package convert

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/gateway/engine/netfilter"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The corpus are rule sets in the shapes in which programs and people write them, in testdata/corpus. Their first line
// says what host they are for: "# world eth0=203.0.113.2/24,default eth1=192.168.1.1/24". What the kernel does not read,
// as UCI and VyOS' configuration, has beside it what such a router loads (.nft).

// sent is how many packets of other hosts and of programs are sent through each of the corpus, and how many more at night.
const (
	sentForwarded, sentLocal = 160, 40
	atNight                  = 25
)

// least is the share of the corpus' rules of NAT that the file has to do.
const least = 0.9

// TestCorpus loads each of the corpus in one namespace, has the engine apply what is imported of it in another one, and
// sends the same random packets through both: they become the same, but for those of rules that import leaves.
func TestCorpus(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.Tun)
	testutil.NeedFeature(t, testutil.Hairpin) // rules about sources that ask for an interface by which packets come in
	testutil.NeedProgram(t, "nft")
	testutil.NeedProgram(t, "iptables-nft")
	testutil.ShareHost(t)
	files, err := filepath.Glob("testdata/corpus/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	files = slices.DeleteFunc(files, func(name string) bool { return strings.Count(filepath.Base(name), ".") > 1 })
	if len(files) < 40 {
		t.Fatalf("the corpus has %d rule sets", len(files))
	}
	seed, times := seedOf(t, 19), 1
	if os.Getenv("NATKIT_NIGHTLY") != "" {
		times = atNight
	}
	all := playEach(t, len(files), seed, times, func(c *corpusCase, i int) string {
		c.read(files[i])
		return filepath.Base(files[i])
	})
	t.Logf("%d rule sets, %d of %d rules of NAT taken; %d packets and programs, %d translated, %d of rules that are left", len(files), all.taken, all.rules, all.packets, all.translated, all.left)
	if share := float64(all.taken) / float64(all.rules); share < least {
		t.Errorf("%.0f %% of the rules are taken, want %.0f %%", 100*share, 100*least)
	}
	if all.translated < all.packets/5 || all.left > all.packets/5 {
		t.Errorf("the packets say little: %+v", all)
	}
}

// seedOf is that of NATKIT_SEED, at night another one each time, else the usual one.
func seedOf(t *testing.T, usual uint64) (seed uint64) {
	t.Helper()
	switch text := os.Getenv("NATKIT_SEED"); {
	case text != "":
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seed = n
	case os.Getenv("NATKIT_NIGHTLY") != "":
		seed = rand.Uint64()
	default:
		seed = usual
	}
	t.Logf("NATKIT_SEED=%d", seed)
	return seed
}

// TestRandomRules does the same with rules that are drawn, which overlap in every way and stand in any order.
func TestRandomRules(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.Tun)
	testutil.NeedFeature(t, testutil.Hairpin)
	testutil.NeedProgram(t, "iptables-nft")
	testutil.ShareHost(t)
	seed, sets := seedOf(t, 7), 24
	if os.Getenv("NATKIT_NIGHTLY") != "" {
		sets = 500
	}
	all := playEach(t, sets, seed, 1, func(c *corpusCase, i int) string {
		text, name := drawnRules(c.r), "drawn.iptables"
		if i%4 == 3 {
			text, name = inIPv6(text), "drawn.ip6tables"
		}
		c.take(name, text)
		return strconv.Itoa(i)
	})
	t.Logf("%d of %d rules taken; %d packets and programs, %d translated, %d of rules that are left", all.taken, all.rules, all.packets, all.translated, all.left)
	if all.translated < all.packets/5 || all.taken*4 < all.rules*3 {
		t.Errorf("the sample says little: %+v", all)
	}
}

var drawnAddress = regexp.MustCompile(`(\d+\.\d+\.\d+)\.(\d+)(?:/(\d+)|:(\d[\d-]*))?`)

// inIPv6 are the same rules with addresses of IPv6.
func inIPv6(text string) string {
	networks := map[string]string{"203.0.113": "2001:db8:1::", "198.51.100": "2001:db8:9::", "192.168.1": "fd00:1::", "192.168.2": "fd00:2::", "192.168.0": "fd00::"}
	text = drawnAddress.ReplaceAllStringFunc(text, func(word string) string {
		m := drawnAddress.FindStringSubmatch(word)
		address := networks[m[1]]
		if m[2] != "0" {
			address += m[2]
		}
		switch {
		case m[3] != "":
			return address + map[string]string{"16": "/16", "24": "/64"}[m[3]]
		case m[4] != "":
			return "[" + address + "]:" + m[4]
		}
		return address
	})
	return strings.ReplaceAll(text, "-p icmp", "-p icmpv6")
}

// drawnRules are rules of NAT with conditions of few values, so that many overlap.
func drawnRules(r *rand.Rand) string {
	var b strings.Builder
	b.WriteString("# world eth0=203.0.113.2/24,default eth1=192.168.1.1/24 eth2=192.168.2.1/24\n*nat\n:X - [0:0]\n")
	some := func(share int, text ...string) string {
		if r.IntN(100) >= share {
			return ""
		}
		return one(r, text) + " "
	}
	for range 4 + r.IntN(8) {
		services := some(60, "-p tcp", "-p udp", "-p tcp --dport 80", "-p tcp -m multiport --dports 80,443", "-p tcp --dport 80:90", "-p udp --dport 53", "! -p tcp", "-p tcp ! --dport 443", "-p icmp")
		from := some(50, "-s 192.168.1.0/24", "-s 192.168.0.0/16", "-s 192.168.1.5", "! -s 192.168.1.5", "-s 198.51.100.0/24", "! -s 192.168.2.0/24")
		mark := some(15, "-m mark --mark 0x10", "-m mark ! --mark 0x20", "-m mark --mark 0x5/0x5") + some(10, "-m dscp --dscp 0x2e", "-m dscp ! --dscp 8")
		to := "-j RETURN"
		switch chain := one(r, []string{"PREROUTING", "PREROUTING", "PREROUTING", "OUTPUT", "POSTROUTING", "POSTROUTING", "POSTROUTING", "POSTROUTING", "X"}); chain {
		case "PREROUTING", "OUTPUT":
			if r.IntN(5) > 0 {
				to = "-j DNAT --to-destination " + one(r, []string{"192.168.1.10", "192.168.1.11", "192.168.2.12"})
				if strings.Contains(services, "--dport") && !strings.Contains(services, "!") {
					to += some(40, ":8080")
				}
				if strings.Contains(services, "-p tcp") && r.IntN(4) == 0 && !strings.Contains(services, "!") {
					to = "-j REDIRECT --to-ports " + one(r, []string{"3128", "3129"})
				}
			}
			where := some(60, "-i eth0", "-i eth1", "! -i eth1")
			if chain == "OUTPUT" {
				where = some(40, "-m owner --uid-owner 33", "-m owner ! --uid-owner 33", "-m owner --gid-owner 1337")
			}
			fmt.Fprintf(&b, "-A %s %s%s%s%s%s%s\n", chain, from, some(60, "-d 203.0.113.2", "-d 203.0.113.3", "-d 203.0.113.0/24", "! -d 203.0.113.3", "-d 198.51.100.0/24"), where, services, mark, to)
		case "POSTROUTING", "X":
			if r.IntN(4) > 0 {
				to = "-j SNAT --to-source " + one(r, []string{"203.0.113.50", "203.0.113.51", "203.0.113.52"})
				if services == "-p tcp " || services == "-p udp " {
					to += some(30, ":20000-29999")
				}
			}
			if chain == "POSTROUTING" && r.IntN(6) == 0 {
				to = "-j X"
			}
			out := some(50, "-o eth0", "-o eth1", "! -o eth1")
			fmt.Fprintf(&b, "-A %s %s%s%s%s%s%s\n", chain, from, some(40, "-d 198.51.100.0/24", "-d 198.51.100.7", "! -d 192.168.0.0/16", "-d 192.168.1.10"), out, services, mark, to)
		}
	}
	return b.String() + "COMMIT\n"
}

// playEach plays several rule sets, some at a time, of which take makes one and names it.
func playEach(t *testing.T, sets int, seed uint64, times int, take func(c *corpusCase, i int) string) (all tally) {
	var mutex sync.Mutex
	t.Run("sets", func(t *testing.T) {
		for i := range sets {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				c := corpusCase{T: t, r: rand.New(rand.NewPCG(seed, uint64(i)))}
				name := take(&c, i)
				if c.play(times); t.Failed() {
					t.Logf("%s:\n%s", name, c.text)
				}
				mutex.Lock()
				defer mutex.Unlock()
				all.add(&c.tally)
			})
		}
	})
	return all
}

// tally counts rules and packets.
type tally struct{ rules, taken, packets, translated, left int }

func (a *tally) add(b *tally) {
	a.rules, a.taken, a.packets, a.translated, a.left = a.rules+b.rules, a.taken+b.taken, a.packets+b.packets, a.translated+b.translated, a.left+b.left
}

// corpusCase is one rule set, played.
type corpusCase struct {
	*testing.T
	r     *rand.Rand
	tally tally

	text string
	// original is what the kernel is given, by this program.
	original, program string
	version           int
	links             []corpusLink
	t                 *translator
	result            *Result
	addresses         []netip.Addr
	ports             []uint16
	// chosen are destinations of which each stands for all of its rule.
	chosen map[nat.Backend]string
	port   uint16
}

type corpusLink struct {
	name      string
	address   netip.Prefix
	isDefault bool
}

func (c *corpusCase) read(name string) {
	c.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		c.Fatal(err)
	}
	c.take(name, string(text))
}

// take takes a rule set of the form that a file's name says.
func (c *corpusCase) take(name, text string) {
	c.Helper()
	first, rest, _ := strings.Cut(text, "\n")
	for word := range strings.FieldsSeq(strings.TrimPrefix(first, "# world ")) {
		name, address, _ := strings.Cut(word, "=")
		address, isDefault := strings.CutSuffix(address, ",default")
		c.links = append(c.links, corpusLink{name, netip.MustParsePrefix(address), isDefault})
	}
	c.text, c.version = rest, 4
	c.original = rest
	switch filepath.Ext(name) {
	case ".iptables":
		c.program = "iptables-nft-restore"
	case ".ip6tables":
		c.program, c.version = "ip6tables-nft-restore", 6
	case ".nft":
		c.program = "nft"
	default:
		text, err := os.ReadFile(name + ".nft")
		if err != nil {
			c.Fatal(err)
		}
		c.program, c.original = "nft", string(text)
	}
	var err error
	if c.t, _, err = translate(ruleset.Parse(c.text, c.version)); err != nil {
		c.Fatal(err)
	}
	if c.result, err = Import(ruleset.Parse(c.text, c.version)); err != nil {
		c.Fatal(err)
	}
	c.count()
	c.words()
}

// count counts the rules that translate and are no other program's.
func (c *corpusCase) count() {
	seen := map[*ruleset.Rule]bool{}
	for _, e := range c.t.entries {
		n, noted := c.t.notes[e]
		if e.Owner != "" || !e.Rule.Target.Translates() || seen[e.Rule] || noted && n.Kind == ruleset.Unreachable {
			continue
		}
		seen[e.Rule] = true
		if c.tally.rules++; !noted || n.Kind != ruleset.Untranslated {
			c.tally.taken++
			continue
		}
		if n.Reason == "" {
			c.Errorf("%s is left without a reason", n.Text)
		}
		c.Logf("left: %s: %s", n.Text, n.Reason)
	}
	for _, n := range c.result.Notes {
		if n.Reason == "" {
			c.Errorf("a note without a reason: %+v", n)
		}
	}
}

var (
	addressWord = regexp.MustCompile(`\b\d+\.\d+\.\d+\.\d+(/\d+)?\b|[0-9a-f]{1,4}:[0-9a-f:]+(/\d+)?`)
	numberWord  = regexp.MustCompile(`\b\d{1,5}\b`)
)

// words are the addresses and ports of the text, and others near them.
func (c *corpusCase) words() {
	for _, word := range addressWord.FindAllString(c.text+c.original, -1) {
		word, _, _ = strings.Cut(word, ":443")
		p, err := netip.ParsePrefix(word)
		if a, e := netip.ParseAddr(word); e == nil {
			p, err = nat.Host(a), nil
		}
		if err != nil || p.Addr().Is4() != (c.version == 4) || p.Addr().IsMulticast() || p.Addr().IsUnspecified() || p.Addr().IsLoopback() || p.Addr() == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
			continue
		}
		c.addresses = append(c.addresses, p.Addr(), c.within(p))
	}
	for _, word := range numberWord.FindAllString(addressWord.ReplaceAllString(c.text, ""), -1) {
		if n, err := strconv.ParseUint(word, 10, 16); err == nil && n > 0 {
			c.ports = append(c.ports, uint16(n), uint16(n), uint16(n)+1)
		}
	}
	c.ports = append(c.ports, 80, 443, 53, 7777)
	for _, l := range c.links {
		c.addresses = append(c.addresses, c.within(l.address.Masked()))
	}
	if c.chosen = map[nat.Backend]string{}; c.result == nil {
		return
	}
	for _, r := range slices.Concat(c.result.Config.NAT, c.result.Config.IPv6) {
		if r.DNAT == nil || len(r.DNAT.To) < 2 {
			continue
		}
		for _, b := range r.DNAT.To {
			b.Weight = 0
			c.chosen[b] = fmt.Sprint("one of ", r.DNAT.To)
		}
	}
}

// within is an address of a prefix.
func (c *corpusCase) within(p netip.Prefix) netip.Addr {
	r := nat.RangeOf(p)
	return r.At(c.r.Uint64N(uint64(min(r.Size(), 250))))
}

func one[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

// outside are addresses of other networks.
var outside = map[int][]string{4: {"198.51.100.7", "198.51.100.15", "192.0.2.33", "203.0.113.200"}, 6: {"2001:db8:9::1", "2001:db8:9::2"}}

func (c *corpusCase) destination() netip.Addr {
	if c.r.IntN(4) == 0 {
		return netip.MustParseAddr(one(c.r, outside[c.version]))
	}
	if c.r.IntN(4) == 0 {
		return one(c.r, c.links).address.Addr()
	}
	return one(c.r, c.addresses)
}

// classes are the DSCPs of packets, by which both hosts mark them.
var classes = map[uint8]uint32{0: 0, 8: 0x10, 16: 0x20, 24: 0x25, 46: 0}

// meant makes a packet one that a rule may be about.
func (c *corpusCase) meant(p *nat.Packet) {
	if len(c.t.entries) == 0 || c.r.IntN(3) == 0 {
		return
	}
	m := &one(c.r, c.t.entries).Match
	if len(m.From) > 0 && m.From[0].Bits() > 0 {
		p.Src = c.within(m.From[0])
	}
	if len(m.To) > 0 && m.To[0].Bits() > 0 {
		p.Dst = c.within(m.To[0])
	}
	if p.In != "" && len(m.In) > 0 && !strings.HasSuffix(m.In[0], "*") {
		p.In = m.In[0]
	}
	if m.Protocol == unix.IPPROTO_TCP || m.Protocol == unix.IPPROTO_UDP {
		p.Protocol = m.Protocol
	}
	if len(m.Ports) > 0 {
		r := one(c.r, m.Ports)
		p.DstPort = r.First + uint16(c.r.IntN(r.Len()))
	}
	if p.Owned && len(m.Users) > 0 {
		p.User = m.Users[0].First
	}
}

// packet draws one of another host, with a source port that no other one has.
func (c *corpusCase) packet() nat.Packet {
	in := one(c.r, c.links)
	c.port++
	p := nat.Packet{In: in.name, Dst: c.destination(), SrcPort: 10000 + c.port, DstPort: one(c.r, c.ports), DSCP: one(c.r, []uint8{0, 0, 0, 0, 8, 16, 24, 46})}
	p.Mark = classes[p.DSCP]
	switch n := c.r.IntN(8); {
	case n == 0:
		p.Src = one(c.r, c.addresses)
	case in.isDefault && n < 6:
		p.Src = netip.MustParseAddr(one(c.r, outside[c.version]))
	default:
		p.Src = c.within(in.address.Masked())
	}
	p.Protocol = one(c.r, []uint8{unix.IPPROTO_UDP, unix.IPPROTO_UDP, unix.IPPROTO_UDP, unix.IPPROTO_TCP, unix.IPPROTO_TCP, unix.IPPROTO_TCP, unix.IPPROTO_ICMP})
	c.meant(&p)
	if p.Protocol == unix.IPPROTO_ICMP {
		p.DstPort = p.SrcPort
		if c.version == 6 {
			p.Protocol = unix.IPPROTO_ICMPV6
		}
	}
	return p
}

func compose(p nat.Packet) []byte {
	ip := frame.IP{Source: p.Src, Destination: p.Dst, Protocol: p.Protocol, DSCP: p.DSCP}
	t := frame.Tuple{Src: netip.AddrPortFrom(p.Src, p.SrcPort), Dst: netip.AddrPortFrom(p.Dst, p.DstPort)}
	switch p.Protocol {
	case unix.IPPROTO_UDP:
		return ip.Append(nil, frame.AppendUDP(nil, t, []byte("x"), false))
	case unix.IPPROTO_TCP:
		return ip.Append(nil, frame.AppendTCP(nil, t, frame.TCP{Flags: frame.SYN, SequenceNumber: 1, Window: 1000}, nil))
	}
	echo := frame.ICMP{Type: 8, Rest: uint32(p.SrcPort)<<16 | 1}
	if p.Src.Is6() {
		echo.Type = 128
	}
	return ip.Append(nil, frame.AppendICMP(nil, p.Src, p.Dst, echo, []byte("x")))
}

// host is a namespace with the links of the case, of which each is a tun interface: what is written to it the kernel has
// handled when the write returns.
type corpusHost struct {
	ns   *netns.Handle
	tuns map[string]*os.File
}

// quiet marks packets by their class, and keeps the host from answering: a RST would end the connection's entry.
const quiet = `
table inet quiet {
	chain pre {
		type filter hook prerouting priority -150;
		ip dscp cs1 meta mark set 0x10
		ip dscp cs2 meta mark set 0x20
		ip dscp cs3 meta mark set 0x25
	}
	chain tracked {
		type filter hook postrouting priority 0;
		ct state new accept
	}
	chain out {
		type filter hook output priority -400;
		tcp flags & rst == rst drop
		icmp type { destination-unreachable, echo-reply } drop
		icmpv6 type { destination-unreachable, echo-reply, nd-router-solicit, mld2-listener-report } drop
	}
}
`

func (c *corpusCase) host(name string) corpusHost {
	c.Helper()
	h := corpusHost{testutil.Namespace(c.T, name), map[string]*os.File{}}
	for key, value := range map[string]string{"net/ipv6/conf/default/accept_dad": "0", "net/ipv4/conf/default/rp_filter": "0", "net/ipv4/conf/all/rp_filter": "0",
		"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1"} {
		testutil.Sysctl(c.T, h.ns, key, value)
	}
	links := testutil.Links(c.T, h.ns)
	testutil.Addresses(c.T, links, "lo")
	for _, l := range c.links {
		testutil.Inside(c.T, h.ns, func() error {
			tun := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: l.name}, Mode: netlink.TUNTAP_MODE_TUN, Flags: netlink.TUNTAP_NO_PI, Queues: 1}
			if err := netlink.LinkAdd(tun); err != nil {
				return err
			}
			h.tuns[l.name] = tun.Fds[0]
			return nil
		})
		c.Cleanup(func() { h.tuns[l.name].Close() })
		testutil.Addresses(c.T, links, l.name, l.address.String())
		if link, err := links.LinkByName(l.name); err != nil || l.isDefault {
			err = errors.Join(err, links.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: anywhere(l.address.Addr())}))
			if err != nil {
				c.Fatal(err)
			}
		}
	}
	testutil.Nft(c.T, h.ns, quiet)
	return h
}

// load gives the kernel the original rules.
func (c *corpusCase) load(h corpusHost) {
	c.Helper()
	program, args := c.program, []string{"-f", "-"}
	if restore, is := strings.CutSuffix(program, "-restore"); is { // one program has several names
		program, args = testutil.NeedProgram(c.T, strings.TrimPrefix(restore, "ip6tables-nft")+map[bool]string{true: "ip6tables-nft"}[strings.HasPrefix(restore, "ip6")]), nil
	}
	testutil.Inside(c.T, h.ns, func() error {
		cmd := exec.Command(program, args...)
		cmd.Args[0], cmd.Stdin = c.program, strings.NewReader(c.original)
		cmd.Env = append(os.Environ(), "TZ=UTC") // by which nft reads hours
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%s: %w\n%s", c.program, err, out)
		}
		return err
	})
}

// live wants the kernel's rules to become what the text becomes. Of two tables at the same hook and priority the kernel
// does not say which comes first.
func (c *corpusCase) live(h corpusHost) {
	c.Helper()
	if strings.Count(c.original, "hook prerouting priority -100") > 1 {
		return
	}
	set, err := read.Tables(h.ns)
	if err != nil {
		c.Fatal(err)
	}
	result, err := Import(set)
	if err != nil {
		c.Fatal(err)
	}
	if diff := cmp.Diff(rulesOf(c.result), rulesOf(result)); diff != "" {
		c.Errorf("rules (-text +kernel):\n%s\n%+v", diff, result.Untranslated())
	}
}

// apply has the engine carry out what was imported.
func (c *corpusCase) apply(h corpusHost) {
	c.Helper()
	f, err := gateway.Parse("imported.yaml", []byte(c.result.YAML()))
	if err != nil {
		c.Fatal(err)
	}
	facts := gateway.Facts{Known: true}
	for _, l := range c.links {
		facts.Interfaces = append(facts.Interfaces, gateway.Interface{Name: l.name, Addresses: []netip.Prefix{l.address}})
	}
	plan, err := gateway.Compile(&f.Config, facts)
	if err != nil {
		c.Fatal(err)
	}
	set := engine.Set{netfilter.Engine{}}
	if plan, _, err = set.Assign(plan, facts); err == nil {
		err = set.Apply(h.ns, plan, nil)
	}
	if err != nil {
		c.Fatalf("%v\n%s", err, c.result.YAML())
	}
}

// flow is a connection by what its first packet is.
type flow struct {
	protocol uint8
	src, dst netip.AddrPort
}

// end is what a connection is translated to, by its answers.
type end struct{ src, dst netip.AddrPort }

func (c *corpusCase) flows(h corpusHost) map[flow]end {
	c.Helper()
	all := map[flow]end{}
	of := func(t conntrack.Tuple) (src, dst netip.AddrPort) {
		sport, dport := t.SrcPort, t.DstPort
		if nat.IsICMP(t.Proto) {
			sport, dport = t.ICMPID, t.ICMPID
		}
		return netip.AddrPortFrom(t.Src, sport), netip.AddrPortFrom(t.Dst, dport)
	}
	_, err := dump.EachWhole(c.Context(), h.ns, nil, func() { clear(all) }, func(e *conntrack.Entry) error {
		var f flow
		var to end
		f.protocol = e.Orig.Proto
		f.src, f.dst = of(e.Orig)
		to.src, to.dst = of(e.Reply)
		all[f] = to
		return nil
	})
	if err != nil {
		c.Fatal(err)
	}
	return all
}

// play sends packets through both hosts, and compares what they became.
func (c *corpusCase) play(times int) {
	theirs, ours := c.host("theirs"), c.host("ours")
	c.load(theirs)
	c.live(theirs)
	c.apply(ours)
	for range times {
		sent := map[flow]nat.Packet{}
		for range sentForwarded {
			p := c.packet()
			sent[flowOf(p)] = p
			for _, h := range []corpusHost{theirs, ours} {
				if _, err := h.tuns[p.In].Write(compose(p)); err != nil {
					c.Fatalf("%s: %v", p, err)
				}
			}
		}
		for range sentLocal {
			c.program4(theirs, ours, sent)
		}
		c.compare(sent, c.flows(theirs), c.flows(ours))
	}
}

func flowOf(p nat.Packet) flow {
	return flow{p.Protocol, netip.AddrPortFrom(p.Src, p.SrcPort), netip.AddrPortFrom(p.Dst, p.DstPort)}
}

// program4 lets a program of some user on both hosts send to an address, with a mark of its own.
func (c *corpusCase) program4(theirs, ours corpusHost, sent map[flow]nat.Packet) {
	c.Helper()
	if c.version == 6 {
		return
	}
	c.port++
	p := nat.Packet{Dst: c.destination(), SrcPort: 10000 + c.port, DstPort: one(c.r, c.ports), Owned: true, Mark: one(c.r, []uint32{0, 0, 0x10, 0x20}),
		Src: c.links[0].address.Addr(), User: one(c.r, []uint32{0, 8, 33, 110, 1000, 1337}), Group: one(c.r, []uint32{0, 1337}), Protocol: one(c.r, []uint8{unix.IPPROTO_UDP, unix.IPPROTO_TCP})}
	c.meant(&p)
	for _, h := range []corpusHost{theirs, ours} {
		src, err := sendAs(h.ns, p)
		if err != nil {
			return // no route, or an address that none may send to
		}
		p.Src = src
	}
	sent[flowOf(p)] = p
}

// sendAs sends the first packet of a connection as a user and a group, and returns from which address.
func sendAs(ns *netns.Handle, p nat.Packet) (src netip.Addr, err error) {
	err = ns.Do(func() error {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := errors.Join(unix.Setfsgid(int(p.Group)), unix.Setfsuid(int(p.User))); err != nil {
			return err
		}
		kind := map[uint8]int{unix.IPPROTO_UDP: unix.SOCK_DGRAM, unix.IPPROTO_TCP: unix.SOCK_STREAM}[p.Protocol]
		fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		err = errors.Join(err, unix.Setfsuid(0), unix.Setfsgid(0))
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(p.Mark)), unix.Bind(fd, &unix.SockaddrInet4{Port: int(p.SrcPort)})); err != nil {
			return err
		}
		if err = unix.Connect(fd, &unix.SockaddrInet4{Addr: p.Dst.As4(), Port: int(p.DstPort)}); err != nil && !errors.Is(err, unix.EINPROGRESS) {
			return err
		}
		if kind == unix.SOCK_DGRAM {
			if _, err := unix.Write(fd, []byte("x")); err != nil {
				return err
			}
		}
		name, err := unix.Getsockname(fd)
		if a, is := name.(*unix.SockaddrInet4); is {
			src = netip.AddrFrom4(a.Addr)
		}
		return err
	})
	return src, err
}

func (c *corpusCase) compare(sent map[flow]nat.Packet, theirs, ours map[flow]end) {
	c.Helper()
	wrong := 0
	for f, p := range sent {
		is, there := theirs[f]
		got, here := ours[f]
		c.tally.packets++
		if there && (is.src != f.dst || is.dst != f.src) {
			c.tally.translated++
		}
		if c.leaves(p, is, there) {
			c.tally.left++
			continue
		}
		if there != here || c.plain(f, is) != c.plain(f, got) {
			if wrong++; wrong == 1 {
				c.Log(c.result.YAML())
			}
			if wrong < 5 {
				c.Errorf("%s in %q (mark %#x, dscp %d, user %d, group %d): answers to theirs: %v %v -> %v, to natkit's: %v %v -> %v", p, p.In, p.Mark, p.DSCP, p.User, p.Group, there, is.src, is.dst, here, got.src, got.dst)
			}
		}
	}
}

// plain is what must be the same: a port that is chosen is one of several, as is a host.
func (c *corpusCase) plain(f flow, e end) string {
	src := e.src.String()
	if nat.IsICMP(f.protocol) { // both ends have the identifier
		src = e.src.Addr().String()
	}
	for _, b := range []nat.Backend{{Address: e.src.Addr()}, {Address: e.src.Addr(), Port: e.src.Port()}} {
		if several := c.chosen[b]; several != "" {
			src = several
		}
	}
	dst := e.dst.String()
	if e.dst.Port() != f.src.Port() {
		dst = e.dst.Addr().String() + " and a port that is given"
	}
	if strings.Contains(c.text, "random") {
		dst = e.dst.Addr().String()
	}
	return src + " " + dst
}

// leaves reports whether a packet is one of a rule that import leaves.
func (c *corpusCase) leaves(p nat.Packet, to end, there bool) bool {
	after := p
	if there {
		after.Dst, after.DstPort = to.src.Addr(), to.src.Port()
	}
	after.Out = c.route(after.Dst)
	for _, e := range c.t.entries {
		n, noted := c.t.notes[e]
		if !noted || n.Kind != ruleset.Untranslated && e.Owner == "" || !e.Rule.Target.Translates() {
			continue
		}
		as := p
		as.ToLocal = true // or maybe not
		if e.hook == "postrouting" {
			as = after
		}
		if (e.hook == "output") == (p.In == "") || e.hook == "postrouting" {
			if e.Match.Match.Matches(&as) {
				return true
			}
		}
	}
	return false
}

func (c *corpusCase) route(to netip.Addr) (out string) {
	bits := -1
	for _, l := range c.links {
		if l.address.Addr() == to {
			return "lo"
		}
		if l.address.Masked().Contains(to) && l.address.Bits() > bits || l.isDefault && bits < 0 {
			out = l.name
			if l.address.Masked().Contains(to) {
				bits = l.address.Bits()
			}
		}
	}
	return out
}

func anywhere(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: make(net.IP, a.BitLen()/8), Mask: net.CIDRMask(0, a.BitLen())}
}
