package diagnose

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/snapshot"
)

// left is a service of which 20 connections left by an interface, came so far, and became this.
func left(step snapshot.Step, client, service, target, given, out string, place snapshot.FailedPlace) snapshot.FollowedService {
	s := failed(step, "tcp", "lan0", client, service, place)
	s.Out = out
	s.Failed.LeftFrom, s.Failed.LeftTo = s.Failed.Client, s.Service
	if target != "" {
		s.Target = netip.MustParseAddrPort(target)
		s.Failed.LeftTo = s.Target
	}
	if given != "" {
		s.Given = netip.MustParseAddr(given)
		s.Failed.LeftFrom = netip.AddrPortFrom(s.Given, s.Failed.Client.Port())
	}
	return s
}

// TestRemedies: the first advice is for the place in which connections end.
func TestRemedies(t *testing.T) {
	const database, dns = "10.50.0.10:5432", "198.51.100.10:53"
	rule := func(text string) *snapshot.RulePlace { return &snapshot.RulePlace{Text: text} }
	answers := left(snapshot.StepAnswerLost, pc, outside+"443", "", "203.0.113.1", "wan0", dropped(snapshot.FailedPlace{}, "iptables -t filter -A DOCKER-USER -i wan0 -j DROP"))
	reversed := left(snapshot.StepAnswerLost, pc, outside+"25", "", "203.0.113.1", "wan1", snapshot.FailedPlace{ReversePath: true})
	vlan := left(snapshot.StepAnswerLost, pc, outside+"25", "", "203.0.113.1", "eth0.100", snapshot.FailedPlace{ReversePath: true})
	spared := snapshot.FailedPlace{Uplink: true, Spares: rule("iptables -t nat -A A -d 10.0.0.0/8 -j RETURN")}
	tunnel := snapshot.FailedPlace{NextHop: netip.MustParseAddr("10.255.0.2"), Translates: rule("iptables -t nat -A POSTROUTING -j MASQUERADE")}
	exempt := snapshot.FailedPlace{Uplink: true, Exempts: []snapshot.RulePlace{{Text: "iptables -t raw -A PREROUTING -p udp --dport 53 -j CT --notrack"}, {Text: "iptables -t raw -A PREROUTING -p udp --sport 53 -j CT --notrack"}}}
	near := snapshot.FailedPlace{NextHop: netip.MustParseAddr("192.168.1.10")}
	published := failed(snapshot.StepLostHere, "tcp", "wan0", stranger, outside+"80", dropped(snapshot.FailedPlace{To: netip.MustParseAddrPort(inside + "8080")}, "inet firewalld filter_FORWARD: reject"))
	published.Failed.Place.Filter.Drops[0].Owner = "firewalld"
	half := left(snapshot.StepNoAnswer, pc, outside+"443", "", "203.0.113.1", "dsl0", snapshot.FailedPlace{})
	half.Steps[snapshot.StepAnswered] = 6
	shared := failed(snapshot.StepLostHere, "tcp", "wan0", stranger, outside+"443", dropped(snapshot.FailedPlace{To: netip.MustParseAddrPort(inside + "443")}, "iptables -t filter -A FORWARD -p tcp (hashlimit per destination) -j DROP"))
	shared.Failed.Place.Filter.Drops[0].Limits = true
	unlisted := failed(snapshot.StepLostHere, "tcp", "wan0", stranger, outside+"443", dropped(snapshot.FailedPlace{To: netip.MustParseAddrPort(inside + "443"), InUplink: true}, policy))
	unlisted.Failed.Place.Filter.AcceptsOthers = rule("iptables -t filter -A FORWARD -s 198.51.100.0/28 -p tcp --dport 443 -j ACCEPT")
	listed := left(snapshot.StepAnswered, pc, outside+"443", inside+"443", "", "lan0", near)
	listed.Failed, listed.In = nil, "wan0"
	behind := failed(snapshot.StepLostHere, "tcp", "wan0", stranger, outside+"443", dropped(snapshot.FailedPlace{To: netip.MustParseAddrPort(inside + "443")}, policy))
	behind.Failed.Place.Filter.Drops[0].Limits, behind.Failed.Place.Filter.Drops[0].Limit = true, "iptables -t filter -A FORWARD -p tcp --dport 443 (limit) -j ACCEPT"
	both := failed(snapshot.StepLostHere, "tcp", "lan0", pc, outside+"443", dropped(snapshot.FailedPlace{}, policy))
	both.Failed.Place.AnswerFilter = &snapshot.Filter{Drops: []snapshot.RulePlace{{Text: policy}}}
	own := left(snapshot.StepRefused, "203.0.113.1:1000", inside+"8008", "", "", "dsl0", near)
	own.In = ""
	bridged := failed(snapshot.StepLostHere, "tcp", "vnet0", stranger, outside+"443", dropped(snapshot.FailedPlace{}, policy))
	bridged.Bridged = true
	single := bridged
	single.Failed = failed(snapshot.StepLostHere, "tcp", "vnet0", stranger, outside+"443", dropped(snapshot.FailedPlace{}, "iptables -t filter -A FORWARD -d 198.51.100.10/32 -j DROP")).Failed
	served := left(snapshot.StepAnswered, pc, "10.60.0.11:5432", "", "", "wan0", snapshot.FailedPlace{})
	served.Failed = nil
	astray := left(snapshot.StepNoAnswer, pc, outside+"443", "", "203.0.113.1", "wan0", snapshot.FailedPlace{})
	astray.Failed.AstrayIn = "wan0"
	among := left(snapshot.StepNoAnswer, "10.8.0.6:40000", inside+"445", "", "", "lan0", near)
	among.In = "tun0"
	beside := left(snapshot.StepAnswered, "10.8.0.6:40001", "192.168.1.20:9100", "", "", "lan0", near)
	beside.In, beside.Failed = "tun0", nil
	for name, c := range map[string]struct {
		row   snapshot.FollowedService
		more  []snapshot.FollowedService
		first string
	}{
		"a limit for all clients":       {shared, nil, "'--hashlimit-mode srcip'"},
		"a source that is on no list":   {unlisted, []snapshot.FollowedService{listed}, "add it to the sources of this rule, or of its list ('ipset add', 'nft add element'), or add a rule like it: iptables -t filter -A FORWARD -s 198.51.100.0/28"},
		"all sources are on no list":    {unlisted, nil, "-I FORWARD -i wan0 -p tcp -d 192.168.1.10 --dport 443 -j ACCEPT"},
		"a policy behind a limit":       {behind, nil, "--dport 443 (limit) -j ACCEPT; it has one count for all clients together"},
		"a policy for both ways":        {both, nil, "--dport 443 -j ACCEPT; and for the answers iptables -I FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"},
		"a policy":                      {failed(snapshot.StepLostHere, "tcp", "lan0", pc, outside+"443", dropped(snapshot.FailedPlace{}, policy)), nil, "iptables -I FORWARD -i lan0 -p tcp -d 198.51.100.10 --dport 443 -j ACCEPT"},
		"a policy for this host":        {failed(snapshot.StepLostHere, "tcp", "lan0", pc, inside+"53", dropped(snapshot.FailedPlace{Local: true}, "inet f input: policy drop")), nil, "nft insert rule inet f input ip daddr 192.168.1.10 tcp dport 53 accept"},
		"firewalld":                     {published, nil, "destination address=192.168.1.10 port port=8080"},
		"answers":                       {answers, nil, "iptables -I DOCKER-USER -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"},
		"the reverse path of answers":   {reversed, nil, "conf.wan1.rp_filter=2"},
		"the reverse path of a VLAN":    {vlan, nil, "conf.eth0/100.rp_filter=2"},
		"spared":                        {left(snapshot.StepNoAnswer, pc, database, "", "", "wan0", spared), nil, "A -d 10.0.0.0/8 -j RETURN"},
		"not tracked":                   {left(snapshot.StepNoAnswer, pc, outside+"53", "", "", "wan0", exempt), nil, "--dport 53 -j CT --notrack; and for the answers iptables -t raw -D PREROUTING -p udp --sport 53"},
		"spared, as others that work":   {left(snapshot.StepNoAnswer, pc, database, "", "", "wan0", spared), []snapshot.FollowedService{served}, "lead 10.50.0.10 by"},
		"the address of another uplink": {half, nil, "-I POSTROUTING -s 192.168.1.0/24 -o dsl0 -j MASQUERADE"},
		"another hardware address":      {astray, nil, "on the next router of wan0, delete its neighbour entry of 203.0.113.1"},
		"one server is silent":          {among, []snapshot.FollowedService{beside}, "on 192.168.1.10, let its default route, or one to 10.8.0.0/24, lead to this host"},
		"a server alone is silent":      {among, nil, "look on 192.168.1.10"},
		"masqueraded into a tunnel":     {left(snapshot.StepNoAnswer, pc, database, "", "10.255.0.1", "wg0", tunnel), nil, "not by wg0"},
		"its own questions":             {left(snapshot.StepNoAnswer, inside+"5335", dns, inside+"53", "192.168.1.1", "lan0", near), nil, "natkit conntrack delete -p tcp -s 192.168.1.10 -d 198.51.100.10 --dport 53"},
		"a server that is silent":       {left(snapshot.StepNoAnswer, stranger, outside+"80", inside+"8080", "", "lan0", near), nil, "look on 192.168.1.10, whose hardware address is known"},
		"a server that refuses":         {left(snapshot.StepRefused, stranger, outside+"80", inside+"8080", "", "lan0", near), nil, "on 192.168.1.10, look what listens on port 8080"},
		"a program here is refused":     {own, nil, "on 192.168.1.10, look what listens on port 8008"},
		"a closed bridge":               {bridged, nil, "iptables -I FORWARD -i br0 -o br0 -j ACCEPT"},
		"one destination on a bridge":   {single, nil, "iptables -I FORWARD -p tcp -d 198.51.100.10 --dport 443 -j ACCEPT"},
		"where nothing else is known":   {failed(snapshot.StepLostHere, "tcp", "wan0", stranger, outside+"80", snapshot.FailedPlace{}), nil, "natkit path"},
		"a rule that drops some of it":  {failed(snapshot.StepPartLost, "udp", "wan0", stranger, outside+"80", dropped(snapshot.FailedPlace{}, "inet f c: (limit) drop")), nil, "restrict what the rule drops"},
	} {
		rec := household(append([]snapshot.FollowedService{c.row}, c.more...)...)
		rec.Last().Audit = &snapshot.Audit{Interfaces: []snapshot.Interface{{Name: "wan0", Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("203.0.113.1/24")}}, {Name: "dsl0", Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("198.18.0.2/24")}}}}
		rec.Last().Ways = &snapshot.Ways{All: []snapshot.Way{
			{Kind: snapshot.WayBridge, In: "br0", Out: "br0", Filter: &snapshot.Filter{Drops: []snapshot.RulePlace{{Text: policy}}}},
			{Kind: snapshot.WayBridge, In: "docker0", Out: "docker0", Filter: &snapshot.Filter{Passes: true}},
		}}
		all := rows(rec)
		if len(all) == 0 {
			t.Errorf("%s: no row", name)
			continue
		}
		var f failing
		if all[0].advise(&f); f.advice == nil || !strings.Contains(f.advice.Title, c.first) {
			t.Errorf("%s: %+v, want %q", name, f.advice, c.first)
		}
	}
}

// TestAccepted: a rule is in the words of the program that keeps the place, opens no more than is missed, and
// matches what is known there.
func TestAccepted(t *testing.T) {
	lan := netip.MustParsePrefix("192.168.1.0/24")
	to, to6 := netip.MustParseAddrPort(inside+"53"), netip.MustParseAddrPort("[2001:db8::1]:80")
	https := netip.AddrPortFrom(netip.Addr{}, 443)
	const forward, input, docker = "iptables -t filter -P FORWARD DROP", "iptables -t filter -P INPUT DROP", "ip6tables -t filter -A DOCKER-USER -j DROP"
	for want, c := range map[string]struct {
		a           accepted
		text, owner string
	}{
		"ufw prepend allow in on lan0 proto udp to 192.168.1.10 port 53":                                                                                                   {accepted{protocol: "udp", to: to, seen: "lan0", chain: "INPUT"}, input, "ufw"},
		"ufw prepend allow proto udp to 192.168.1.10 port 53 (on all interfaces)":                                                                                          {accepted{protocol: "udp", to: to, chain: "INPUT"}, input, "ufw"},
		"ufw prepend allow out on wan0 proto tcp to any port 443":                                                                                                          {accepted{protocol: "tcp", to: https, out: "wan0", chain: "OUTPUT"}, input, "ufw"},
		"ufw route prepend allow in on lan0 out on wan0 from 192.168.1.0/24 to any":                                                                                        {accepted{from: lan, in: "lan0", out: "wan0", chain: "FORWARD"}, forward, "ufw"},
		"ufw route prepend allow in on wan0 proto tcp to 2001:db8::1 port 80":                                                                                              {accepted{protocol: "tcp", to: to6, seen: "wan0", chain: "FORWARD"}, forward, "ufw"},
		"ip6tables -I DOCKER-USER -p tcp -d 2001:db8::1 --dport 80 -j ACCEPT":                                                                                              {accepted{protocol: "tcp", to: to6, chain: "FORWARD"}, docker, "docker"},
		"nft insert rule ip6 docker-bridges f ip6 daddr 2001:db8::1 tcp dport 80 accept":                                                                                   {accepted{protocol: "tcp", to: to6, chain: "FORWARD"}, "ip6 docker-bridges f: policy drop", "docker"},
		"restrict what the rule drops there: netdev f i: drop":                                                                                                             {accepted{protocol: "udp", to: to, chain: "FORWARD"}, "netdev f i: drop", ""},
		"restrict what the rule drops there: inet firewalld f: drop (firewalld keeps it: change it there)":                                                                 {accepted{answers: true, chain: "FORWARD"}, "inet firewalld f: drop", "firewalld"},
		"firewall-cmd --permanent --zone ZONE --add-rich-rule 'rule family=ipv4 destination address=192.168.1.10 port port=53 protocol=udp accept'; firewall-cmd --reload": {accepted{protocol: "udp", to: to, chain: "INPUT"}, "inet firewalld f: drop", "firewalld"},
	} {
		if got := c.a.how(snapshot.RulePlace{Text: c.text, Owner: c.owner}, c.owner); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	for _, text := range []string{forward, "inet f input: policy drop"} {
		if got := deletes(snapshot.RulePlace{Text: text}); got != text {
			t.Errorf("a policy: %s", got)
		}
	}
}

// TestCulprits: of the places that may drop a packet those count that do.
func TestCulprits(t *testing.T) {
	maybe := snapshot.RulePlace{Text: "maybe", Unsure: true}
	rejects, drops, never := snapshot.RulePlace{Text: "rejects", Rejects: true}, snapshot.RulePlace{Text: "drops"}, snapshot.RulePlace{Text: "never", Counted: true}
	silent := failed(snapshot.StepLostHere, "tcp", "wan0", stranger, outside+"80", snapshot.FailedPlace{})
	answered := failed(snapshot.StepLostHere, "tcp", "wan0", stranger, outside+"80", snapshot.FailedPlace{})
	answered.Steps[snapshot.StepUnreachableHere] = 2
	for name, c := range map[string]struct {
		s      snapshot.FollowedService
		passes bool
		drops  []snapshot.RulePlace
		want   string
	}{
		"all may":              {silent, true, []snapshot.RulePlace{maybe, drops}, "maybe,drops"},
		"one surely does":      {silent, false, []snapshot.RulePlace{maybe, drops}, "drops"},
		"none is sure":         {silent, false, []snapshot.RulePlace{maybe}, "maybe"},
		"it was answered":      {answered, false, []snapshot.RulePlace{drops, rejects}, "rejects"},
		"it was not":           {silent, false, []snapshot.RulePlace{drops, rejects}, "drops"},
		"it counted nothing":   {silent, true, []snapshot.RulePlace{never, maybe}, "maybe"},
		"none counted a thing": {silent, true, []snapshot.RulePlace{never}, "never"},
	} {
		var texts []string
		for _, p := range culprits(&c.s, &snapshot.Filter{Passes: c.passes, Drops: c.drops}) {
			texts = append(texts, p.Text)
		}
		if got := strings.Join(texts, ","); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestAbsorbed: what the table says of an address that sources become is that of the service of which it is seen
// where its connections end.
func TestAbsorbed(t *testing.T) {
	given := netip.MustParseAddr("10.255.0.1")
	table := failing{name: "tcp from 10.255.0.1", how: "gets no answers", key: serviceID{protocol: "tcp"}, given: given, severity: Critical, evidence: []Evidence{{What: "table"}}}
	known, udp := table, table
	known.known, udp.key.protocol = true, "udp"
	seen := failing{name: "tcp 10.20.0.10:445", how: "gets no answers", key: serviceID{protocol: "tcp", service: netip.MustParseAddrPort("10.20.0.10:445")}, given: given, severity: Warning}
	for name, c := range map[string]struct {
		b    failing
		want int
	}{"the same": {table, 1}, "the rules explain it": {known, 2}, "another protocol": {udp, 2}} {
		got := traceAdded([]failing{c.b}, []failing{seen})
		if len(got) != c.want || c.want == 1 && (got[0].name != seen.name || got[0].severity != Critical || len(got[0].evidence) != 1) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestDetoured: answers that leave by another uplink are reported where no flow goes on, and the address is that
// of the link by which the questions come.
func TestDetoured(t *testing.T) {
	link := func(name, address string) snapshot.Interface {
		return snapshot.Interface{Name: name, Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix(address)}}
	}
	elsewhere := snapshot.FollowedService{Protocol: "udp", In: "wan1", Service: netip.MustParseAddrPort("203.0.113.2:443"), Target: netip.MustParseAddrPort(inside + "443"),
		Steps: map[snapshot.Step]uint64{snapshot.StepAnswered: 20}, Detoured: 20, DetourOut: "wan0"}
	alive, few := elsewhere, elsewhere
	alive.WentOn, few.Detoured = 3, 4
	opened := elsewhere
	opened.Protocol, opened.WentOn = "tcp", 2
	for name, c := range map[string]struct {
		s       snapshot.FollowedService
		at      snapshot.Interface
		reports bool
	}{
		"no flow goes on":           {elsewhere, link("wan1", "203.0.113.2/24"), true},
		"TCP goes on":               {elsewhere, link("wan1", "203.0.113.2/24"), false},
		"flows go on":               {alive, link("wan1", "203.0.113.2/24"), false},
		"few":                       {few, link("wan1", "203.0.113.2/24"), false},
		"an address of neither":     {elsewhere, link("lo", "203.0.113.2/32"), false},
		"the other one has it, too": {elsewhere, link("wan1", "203.0.113.2/24"), false},
	} {
		rec := household(c.s)
		if name == "TCP goes on" {
			rec = household(c.s, opened)
		}
		other := link("wan0", "192.0.2.2/24")
		if name == "the other one has it, too" {
			other = link("wan0", "203.0.113.3/24")
		}
		rec.Last().Audit = &snapshot.Audit{Interfaces: []snapshot.Interface{other, c.at}}
		if got := followedOnes(rec); len(got) > 0 != c.reports || c.reports && got[0].severity != Warning {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestMovesPort: a rule gives another source port to what has the same port at both ends and gets no answer.
func TestMovesPort(t *testing.T) {
	at := func(client, left string) snapshot.FollowedService {
		s := failed(snapshot.StepNoAnswer, "udp", "lan0", "192.168.1.20:"+client, outside+"500", snapshot.FailedPlace{Out: "wan0", Uplink: true})
		s.Out, s.Given = "wan0", netip.MustParseAddr("203.0.113.1")
		s.Failed.LeftFrom, s.Failed.LeftTo = netip.MustParseAddrPort("203.0.113.1:"+left), netip.MustParseAddrPort(outside+"500")
		return s
	}
	answered := at("500", "20157")
	answered.Steps[snapshot.StepAnswered] = 20
	for name, c := range map[string]struct {
		s      snapshot.FollowedService
		random bool
		want   bool
	}{
		"a random port":                   {at("500", "20157"), true, true},
		"the port was taken, by no rule":  {at("500", "20157"), false, false},
		"the port is kept":                {at("500", "500"), true, false},
		"a client with any port":          {at("40000", "20157"), true, false},
		"others with a port are answered": {answered, true, false},
	} {
		rec := household(c.s)
		rec.Last().NATRules.Rules[0].Random = c.random
		r := rows(rec)[0]
		var f failing
		if r.advise(&f); (r.movesPort() != nil) != c.want || c.want != (f.advice != nil && strings.Contains(f.advice.Title, "--sport 500 --dport 500")) {
			t.Errorf("%s: %v, advice %+v", name, r.movesPort(), f.advice)
		}
	}
}

// TestElsewhere: a source that a rule gives and no interface has is named with the rule, unless one beside it is
// answered.
func TestElsewhere(t *testing.T) {
	netmap := snapshot.FailedPlace{Translates: &snapshot.RulePlace{Text: "ip6tables -t nat -A POSTROUTING -j NETMAP --to 2001:db8:4::/64"}}
	fails := left(snapshot.StepNoAnswer, "[fd00:1::20]:40000", "[2001:db8:99::80]:443", "", "2001:db8:4::20", "wan0", netmap)
	answered := left(snapshot.StepAnswered, "[fd00:1::21]:40000", "[2001:db8:98::80]:443", "", "2001:db8:4::21", "wan0", snapshot.FailedPlace{})
	answered.Failed = nil
	at := func(address string) *snapshot.Audit {
		return &snapshot.Audit{Interfaces: []snapshot.Interface{{Name: "wan0", Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix(address)}}}}
	}
	for name, c := range map[string]struct {
		all   []snapshot.FollowedService
		audit *snapshot.Audit
		named bool
	}{
		"an old prefix":             {[]snapshot.FollowedService{fails}, at("2001:db8:f::1/64"), true},
		"an address of this host":   {[]snapshot.FollowedService{fails}, at("2001:db8:4::20/64"), false},
		"one beside it is answered": {[]snapshot.FollowedService{fails, answered}, at("2001:db8:f::1/64"), false},
		"addresses are not known":   {[]snapshot.FollowedService{fails}, nil, false},
	} {
		rec := household(c.all...)
		rec.Last().Audit = c.audit
		got := followedOnes(rec)
		if len(got) == 0 || strings.Contains(got[0].place, "NETMAP --to 2001:db8:4::/64") != c.named || strings.Contains(got[0].cause, "NETMAP") != c.named || c.named && !strings.Contains(got[0].advice.Title, "NETMAP") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestOtherSource: the server answers from another one of its addresses.
func TestOtherSource(t *testing.T) {
	s := failed(snapshot.StepOtherSource, "udp", "wan0", stranger, outside+"53", snapshot.FailedPlace{Out: "lan0"})
	s.Out, s.Target = "lan0", netip.MustParseAddrPort("192.168.1.11:53")
	s.Failed.LeftTo, s.Failed.By = s.Target, netip.MustParseAddr("192.168.1.10")
	var f failing
	r := rows(household(s))[0]
	if r.advise(&f); f.advice == nil || !strings.Contains(f.advice.Title, "192.168.1.11:53") || !strings.Contains(f.advice.Title, "192.168.1.10,") {
		t.Errorf("%+v", f.advice)
	}
}

// TestWithinRange: what comes to a port that one rule publishes is not beside the range of another one.
func TestWithinRange(t *testing.T) {
	for port, beside := range map[string]bool{"12000": false, "30000": true} {
		s := failed(snapshot.StepUnreachableHere, "udp", "wan0", stranger, outside+port, snapshot.FailedPlace{})
		s.Repeated, s.Steps = 100, map[snapshot.Step]uint64{snapshot.StepUnreachableHere: 1}
		rec := household(s)
		rec.Last().Audit = &snapshot.Audit{}
		for _, ports := range [][2]uint16{{5060, 5061}, {10000, 20000}} {
			n := snapshot.NATRule{Family: "ip", Hook: "prerouting", Kind: snapshot.NATDest, NATCondition: snapshot.NATCondition{Protocol: "udp", InInterface: "wan0"}, Partial: true, FirstOfSeveral: ports[0], LastOfSeveral: ports[1]}
			rec.Last().NATRules.Rules = append(rec.Last().NATRules.Rules, n)
		}
		r := rows(rec)[0]
		if got := r.blockedHere(); (got.how != "") != beside {
			t.Errorf("port %s: %+v", port, got)
		}
	}
}

// TestOtherUplink: a loose filter is no first advice where the answers would leave by another uplink.
func TestOtherUplink(t *testing.T) {
	lost := failed(snapshot.StepLostHere, "tcp", "dsl0", stranger, outside+"443", snapshot.FailedPlace{ReversePath: true})
	for name, c := range map[string]struct {
		paths []snapshot.ReversePath
		near  string
		first string
	}{
		"an uplink":             {[]snapshot.ReversePath{{Interface: "wan0", Default: true}, {Interface: "dsl0", Default: true}}, "192.0.2.1/24", "first send answers back"},
		"no uplink":             {[]snapshot.ReversePath{{Interface: "wan0", Default: true}, {Interface: "dsl0"}}, "192.0.2.1/24", "where the ways differ on purpose"},
		"a sender that is near": {[]snapshot.ReversePath{{Interface: "wan0", Default: true}, {Interface: "dsl0", Default: true}}, netip.MustParseAddrPort(stranger).Addr().String() + "/24", "where the ways differ on purpose"},
	} {
		rec := household(lost)
		rec.Last().ReversePaths = c.paths
		rec.Last().Audit = &snapshot.Audit{Interfaces: []snapshot.Interface{{Name: "lan9", Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix(c.near)}}}}
		r := &row{FollowedService: &lost, rec: rec, place: lost.Failed.Place, all: rec.Followed.Services}
		f := failing{}
		if r.advise(&f); f.advice == nil || !strings.HasPrefix(f.advice.Title, c.first) {
			t.Errorf("%s: %+v", name, f.advice)
		}
	}
}
