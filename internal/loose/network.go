package loose

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
)

// network is what ip and tc print of a namespace.
type network struct {
	// Links are the interfaces, HasLinks whether there is a text of them, HasLinkCounters with their counters.
	Links                     []Link
	HasLinks, HasLinkCounters bool
	Addresses                 []Address
	HasAddresses              bool
	Routes                    []Route
	HasRoutes                 bool
	RoutingRules              []RoutingRule
	HasRoutingRules           bool
	Neighbours                []Neighbour
	HasNeighbours             bool
	Queues                    []snapshot.Queue
	HasQueues                 bool
}

// Link is an interface as ip -d link prints it.
type Link struct {
	snapshot.Link
	Index int
	// Flags are the words between < and >, Kind that of ip -d: "veth".
	Flags               []string
	Kind, Master        string
	PortState, Hardware string
}

// Address is an address of an interface.
type Address struct {
	netip.Prefix
	Interface string
	// Scope is global, site, link or host, Flags are the words behind: "tentative".
	Scope string
	Flags []string
}

// Route is a route of a table.
type Route struct {
	// Type is unicast, local, unreachable, blackhole, prohibit, throw and so on, Table a number or a name.
	Type   string
	To     netip.Prefix
	Table  string
	Metric uint64
	// Hops are the next hops.
	Hops []Hop
	From netip.Prefix
}

// Hop is a next hop: Via is not valid where the destination is on the link.
type Hop struct {
	Via    netip.Addr
	Device string
	// Dead is true of one whose link has no carrier.
	Dead bool
}

// RoutingRule is a rule of ip-rule(8).
type RoutingRule struct {
	Priority     uint32
	V6, Not      bool
	From, To     netip.Prefix
	In, Out      string
	Mark, Mask   uint32
	Protocol     uint8
	SPort, DPort [2]uint16
	// Table is a number or a name; Action blackhole, unreachable or prohibit instead.
	Table, Action string
}

// Neighbour is an entry of the neighbour tables.
type Neighbour struct {
	netip.Addr
	Interface, Hardware, State string
	// Proxy is true of an address that this host answers for.
	Proxy bool
}

// linkKinds are those of ip -d, as far as what they are makes a difference.
var linkKinds = []string{"veth", "bridge", "bond", "team", "vlan", "macvlan", "ipvlan", "macvtap", "dummy", "ifb", "tun", "vxlan", "geneve", "gre", "gretap", "ipip", "sit", "wireguard", "vrf", "nlmon", "xfrm", "vti", "ip6tnl", "ip6gre"}

// readLinks reads what ip link and ip addr print, with and without -o, -s and -d.
func readLinks(s *Sample, t *Text) error {
	var now *Link
	var values *[4]*uint64 // of the line below RX: or TX:
	var received [4]*uint64
	links := []Link{}
	at := func(name string) *Link {
		name, _, _ = strings.Cut(name, "@")
		i := slices.IndexFunc(links, func(l Link) bool { return l.Name == name })
		if i < 0 {
			links = append(links, Link{Link: snapshot.Link{Name: name}})
			i = len(links) - 1
		}
		return &links[i]
	}
	missed := false
	for line := range strings.Lines(string(t.Data)) {
		for part := range strings.SplitSeq(line, "\\") { // the lines of -o
			words := strings.Fields(part)
			if len(words) == 0 {
				continue
			}
			if index, is := strings.CutSuffix(words[0], ":"); is && len(words) > 1 {
				if n, err := strconv.Atoi(index); err == nil {
					now = at(strings.TrimSuffix(words[1], ":"))
					now.Index = n
					if words = words[2:]; len(words) > 0 && words[0][0] == '<' {
						now.head(words)
						s.HasLinks = true
						continue
					}
				}
			}
			if now == nil || len(words) == 0 {
				continue
			}
			switch {
			case values != nil:
				for i, to := range values {
					if to != nil && i+1 < len(words) {
						*to, _ = strconv.ParseUint(words[i+1], 10, 64)
					}
				}
				if len(words) > 4 && missed && values == &received {
					now.RXMissed, _ = strconv.ParseUint(words[4], 10, 64)
				}
				values, s.HasLinkCounters = nil, true
			case words[0] == "RX:" && len(words) > 1 && words[1] == "bytes":
				received = [4]*uint64{&now.RXPackets, &now.RXErrors, &now.RXDropped}
				values, missed = &received, slices.Contains(words, "missed")
			case words[0] == "TX:" && len(words) > 1 && words[1] == "bytes":
				values = &[4]*uint64{&now.TXPackets, &now.TXErrors, &now.TXDropped}
			case strings.HasPrefix(words[0], "link/") && len(words) > 1:
				now.Hardware = words[1]
			case words[0] == "inet" || words[0] == "inet6":
				if a, ok := addressOf(words, now.Name); ok {
					s.HasAddresses = true
					s.addAddress(a)
				}
			case words[0] == "bridge_slave" && len(words) > 2 && words[1] == "state":
				now.PortState = words[2]
			case strings.HasPrefix(words[0], "prog/xdp") && len(words) > 2:
				id, _ := strconv.ParseUint(words[2], 10, 32)
				now.XDPProgram = uint32(id)
			case slices.Contains(linkKinds, words[0]):
				now.Kind = words[0]
			}
		}
	}
	if len(links) == 0 {
		return fmt.Errorf("has no interface")
	}
	for i := range links {
		s.addLink(&links[i], t.kind.counts)
	}
	return nil
}

// addAddress adds one that no other text has.
func (s *Sample) addAddress(a Address) {
	same := func(o Address) bool { return o.Prefix == a.Prefix && o.Interface == a.Interface }
	if !slices.ContainsFunc(s.Addresses[max(0, len(s.Addresses)-mostNear):], same) {
		s.Addresses = append(s.Addresses, a)
	}
}

// addLink adds what a text says to what others said.
func (s *Sample) addLink(l *Link, counters bool) {
	i := slices.IndexFunc(s.Links, func(o Link) bool { return o.Name == l.Name })
	if i < 0 {
		s.Links = append(s.Links, *l)
		return
	}
	was := s.Links[i]
	if !counters {
		mtu := cmp.Or(l.MTU, was.MTU)
		l.Link = was.Link
		l.MTU = mtu
	}
	l.Kind, l.Master, l.PortState, l.Hardware, l.Index = cmp.Or(l.Kind, was.Kind), cmp.Or(l.Master, was.Master), cmp.Or(l.PortState, was.PortState), cmp.Or(l.Hardware, was.Hardware), cmp.Or(l.Index, was.Index)
	if l.Flags == nil {
		l.Flags = was.Flags
	}
	s.Links[i] = *l
}

// head reads "<BROADCAST,UP> mtu 1500 qdisc noqueue master br0 state UP".
func (l *Link) head(words []string) {
	l.Flags = strings.Split(strings.Trim(words[0], "<>"), ",")
	for i := 1; i+1 < len(words); i++ {
		switch words[i] {
		case "mtu":
			l.MTU, _ = strconv.Atoi(words[i+1])
		case "master":
			l.Master = words[i+1]
		}
	}
}

// addressOf reads "inet 198.18.0.1/24 brd 198.18.0.255 scope global eth0", and "inet 10.0.0.1 peer 10.0.0.2/32".
func addressOf(words []string, device string) (a Address, ok bool) {
	if len(words) < 2 {
		return a, false
	}
	a.Interface, a.Scope = device, "global"
	text := words[1]
	p, err := netip.ParsePrefix(text)
	if err != nil {
		address, err := netip.ParseAddr(text)
		if err != nil {
			return a, false
		}
		p = nat.Host(address)
	}
	a.Prefix = p
	for i := 2; i < len(words); i++ {
		if words[i] == "scope" && i+1 < len(words) {
			a.Scope = words[i+1]
			a.Flags = words[i+2:]
			break
		}
	}
	return a, true
}

// routeTypes are those that are printed before the destination.
var routeTypes = []string{"unicast", "local", "broadcast", "multicast", "anycast", "unreachable", "blackhole", "prohibit", "throw", "nat"}

// readRoutes reads what ip route prints. What is of a cache is no route.
func readRoutes(s *Sample, t *Text) error {
	if strings.Contains(t.hints(), "cache") {
		return nil
	}
	v6 := strings.Contains(t.hints(), "-6")
	before := len(s.Routes)
	for words := range fieldsOf(t.Data) {
		if words[0] == "nexthop" && len(s.Routes) > before {
			last := &s.Routes[len(s.Routes)-1]
			last.Hops = append(last.Hops, hopOf(words))
			continue
		}
		if r, ok := routeOf(words, v6); ok {
			s.Routes = append(s.Routes, r)
		}
	}
	if len(s.Routes) == before {
		return fmt.Errorf("has no route")
	}
	s.HasRoutes = true
	return nil
}

func routeOf(words []string, v6 bool) (r Route, ok bool) {
	r.Type, r.Table = "unicast", "main"
	if slices.Contains(routeTypes, words[0]) {
		r.Type, words = words[0], words[1:]
	}
	if len(words) == 0 {
		return r, false
	}
	text := words[0]
	switch p, err := netip.ParsePrefix(text); {
	case text == "default" || text == "all":
		r.To = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if v6 = v6 || slices.ContainsFunc(words, func(w string) bool { return strings.Count(w, ":") > 1 || w == "pref" }); v6 {
			r.To = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
	case err == nil:
		r.To = p
	default:
		a, err := netip.ParseAddr(text)
		if err != nil {
			return r, false
		}
		r.To = nat.Host(a)
	}
	for i := 1; i+1 < len(words); i++ {
		switch words[i] {
		case "table":
			r.Table = words[i+1]
		case "metric":
			r.Metric, _ = strconv.ParseUint(words[i+1], 10, 32)
		case "from":
			r.From, _ = prefixOf(words[i+1])
		}
	}
	if hop := hopOf(words); hop.Device != "" || hop.Via.IsValid() {
		r.Hops = []Hop{hop}
	}
	return r, true
}

func hopOf(words []string) (h Hop) {
	for i := 0; i < len(words); i++ {
		switch {
		case words[i] == "dead":
			h.Dead = true
		case i+1 == len(words):
		case words[i] == "via" && (words[i+1] == "inet6" || words[i+1] == "inet") && i+2 < len(words):
			h.Via, _ = netip.ParseAddr(words[i+2])
		case words[i] == "via":
			h.Via, _ = netip.ParseAddr(words[i+1])
		case words[i] == "dev":
			h.Device = words[i+1]
		}
	}
	return h
}

func prefixOf(text string) (netip.Prefix, bool) {
	if p, err := netip.ParsePrefix(text); err == nil {
		return p, true
	}
	if a, err := netip.ParseAddr(text); err == nil {
		return nat.Host(a), true
	}
	return netip.Prefix{}, false
}

// readRoutingRules reads what ip rule prints; of which version of IP they are says the command, or an address.
func readRoutingRules(s *Sample, t *Text) error {
	v6 := strings.Contains(t.hints(), "-6")
	s.HasRoutingRules = true
	for words := range fieldsOf(t.Data) {
		if r, ok := routingRuleOf(words, v6); ok {
			s.RoutingRules = append(s.RoutingRules, r)
		}
	}
	return nil
}

func routingRuleOf(words []string, v6 bool) (r RoutingRule, ok bool) {
	n, err := strconv.ParseUint(strings.TrimSuffix(words[0], ":"), 10, 32)
	if err != nil || len(words) < 3 || !strings.HasSuffix(words[0], ":") {
		return r, false
	}
	r.Priority, r.V6 = uint32(n), v6
	for i := 1; i < len(words); i++ {
		next := ""
		if i+1 < len(words) {
			next = words[i+1]
		}
		switch words[i] {
		case "not":
			r.Not = true
		case "from":
			r.From, _ = prefixOf(next)
		case "to":
			r.To, _ = prefixOf(next)
		case "iif":
			r.In = next
		case "oif":
			r.Out = next
		case "fwmark":
			value, mask, has := strings.Cut(next, "/")
			r.Mark, r.Mask = uint32(anyNumber(value)), 1<<32-1
			if has {
				r.Mask = uint32(anyNumber(mask))
			}
		case "ipproto":
			r.Protocol, _ = nat.ParseProtocol(next)
		case "sport":
			r.SPort = portRange(next)
		case "dport":
			r.DPort = portRange(next)
		case "lookup", "table":
			r.Table = next
		case "unreachable", "blackhole", "prohibit":
			r.Action = words[i]
		}
	}
	r.V6 = r.V6 || r.From.Addr().Is6() || r.To.Addr().Is6()
	return r, r.Table != "" || r.Action != ""
}

func anyNumber(text string) uint64 {
	n, _ := strconv.ParseUint(text, 0, 32)
	return n
}

func portRange(text string) (p [2]uint16) {
	first, last, several := strings.Cut(text, "-")
	if !several {
		last = first
	}
	a, err1 := strconv.ParseUint(first, 10, 16)
	b, err2 := strconv.ParseUint(last, 10, 16)
	if err1 != nil || err2 != nil {
		return p
	}
	return [2]uint16{uint16(a), uint16(b)}
}

// readNeighbours reads what ip neigh prints, with -s and of proxies.
func readNeighbours(s *Sample, t *Text) error {
	s.HasNeighbours = true
	for words := range fieldsOf(t.Data) {
		a, err := netip.ParseAddr(words[0])
		if err != nil {
			continue
		}
		n := Neighbour{Addr: a, State: words[len(words)-1], Proxy: slices.Contains(words, "proxy")}
		for i := 1; i+1 < len(words); i++ {
			switch words[i] {
			case "dev":
				n.Interface = words[i+1]
			case "lladdr":
				n.Hardware = words[i+1]
			}
		}
		same := func(o Neighbour) bool { return o.Addr == n.Addr && o.Interface == n.Interface && o.Proxy == n.Proxy }
		if i := slices.IndexFunc(s.Neighbours[max(0, len(s.Neighbours)-mostNear):], same); i >= 0 {
			continue
		}
		s.Neighbours = append(s.Neighbours, n)
	}
	return nil
}

// mostNear bounds the entries that one is compared with.
const mostNear = 1000

// readQdiscs reads what tc -s qdisc and tc -s class print.
func readQdiscs(s *Sample, t *Text) error {
	var now *snapshot.Queue
	for words := range fieldsOf(t.Data) {
		line := strings.Join(words, " ")
		switch {
		case (words[0] == "qdisc" || words[0] == "class") && len(words) > 2:
			q := snapshot.Queue{Kind: words[1], Handle: words[2], Class: words[0] == "class"}
			for i := 3; i+1 < len(words); i++ {
				if words[i] == "dev" {
					q.Interface = words[i+1]
				}
			}
			now = nil
			if q.Kind != "noqueue" && q.Interface != "" {
				s.Queues = append(s.Queues, q)
				now = &s.Queues[len(s.Queues)-1]
			}
		case now == nil:
		case words[0] == "Sent" && len(words) > 7:
			now.Bytes, now.Packets = count(words[1]), count(words[3])
			_, rest, _ := strings.Cut(line, "(dropped ")
			f := strings.FieldsFunc(rest, func(r rune) bool { return r == ',' || r == ' ' })
			if len(f) > 2 {
				now.Dropped, now.Overlimits = count(f[0]), count(f[2])
			}
		case words[0] == "backlog" && len(words) > 1:
			now.Waiting = size(words[1])
		}
	}
	s.HasQueues = true
	return nil
}

func count(text string) uint64 {
	n, _ := strconv.ParseUint(text, 10, 64)
	return n
}

// size reads bytes as tc prints them: 1514b, 12Kb, 1Mb.
func size(text string) uint64 {
	text = strings.TrimSuffix(text, "b")
	unit := uint64(1)
	switch {
	case strings.HasSuffix(text, "K"):
		unit = 1 << 10
	case strings.HasSuffix(text, "M"):
		unit = 1 << 20
	case strings.HasSuffix(text, "G"):
		unit = 1 << 30
	}
	f, err := strconv.ParseFloat(strings.TrimRight(text, "KMG"), 64)
	if err != nil || f < 0 || f > 1<<40 {
		return 0
	}
	return uint64(f * float64(unit))
}
