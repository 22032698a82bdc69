package diagnose

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
)

// household is a gateway that masquerades what leaves by wan0, and publishes port 80.
func household(rows ...snapshot.FollowedService) *snapshot.Recording {
	s := &snapshot.Snapshot{NATRules: &snapshot.NATRules{Rules: []snapshot.NATRule{
		{Family: "ip", Hook: "postrouting", Kind: snapshot.NATMasquerade, NATCondition: snapshot.NATCondition{OutInterface: "wan0"}},
		{Family: "ip", Hook: "prerouting", Kind: snapshot.NATDest, NATCondition: snapshot.NATCondition{Protocol: "tcp", DestinationPort: 80, InInterface: "wan0"}, First: netip.MustParseAddr("192.168.1.10"), Last: netip.MustParseAddr("192.168.1.10")},
	}}}
	return &snapshot.Recording{Snapshots: []*snapshot.Snapshot{s, s}, Followed: &snapshot.Followed{Services: rows}}
}

// failed is a service of which 20 connections from a client came so far.
func failed(step snapshot.Step, protocol, in, client, service string, place snapshot.FailedPlace) snapshot.FollowedService {
	return snapshot.FollowedService{Protocol: protocol, In: in, Service: netip.MustParseAddrPort(service), Steps: map[snapshot.Step]uint64{step: 20}, Repeated: 20,
		Failed: &snapshot.FailedConnection{Step: step, Client: netip.MustParseAddrPort(client), Place: &place}}
}

// dropped is a place where a rule surely drops it.
func dropped(place snapshot.FailedPlace, rule string) snapshot.FailedPlace {
	place.Filter = &snapshot.Filter{Drops: []snapshot.RulePlace{{Text: rule}}}
	return place
}

const (
	stranger, pc, guest, policy = "203.0.113.9:1000", "192.168.1.20:1000", "10.9.0.5:1000", "iptables -t filter -P FORWARD DROP"
	outside, inside             = "198.51.100.10:", "192.168.1.10:"
)

func TestExcuses(t *testing.T) {
	var out, dmz, local, none snapshot.FailedPlace
	out.Out, out.Uplink, dmz.Out, local.Local = "wan0", true, "lan0", true
	few := failed(snapshot.StepLostHere, "tcp", "dmz0", guest, inside+"631", dropped(dmz, policy))
	few.Steps[snapshot.StepLostHere] = 4
	ordered := dropped(dmz, "iptables -t filter -A FORWARD -i dmz0 -j DROP")
	ordered.Filter.Accepts = &snapshot.RulePlace{Text: "iptables -t filter -A FORWARD -p tcp --dport 80 -j ACCEPT"}
	tcp := failed(snapshot.StepLostHere, "tcp", "lan0", pc, outside+"443", out)
	tcp.Failed, tcp.Steps = nil, map[snapshot.Step]uint64{snapshot.StepAnswered: 9}
	listed := failed(snapshot.StepLostHere, "tcp", "wan0", stranger, outside+"80", dropped(dmz, "iptables -t filter -A FORWARD ! -s 198.51.100.7/32 -p tcp --dport 80 -j DROP"))
	blocked := failed(snapshot.StepLostHere, "tcp", "wan0", stranger, outside+"80", dropped(dmz, "inet f c: ip saddr @bad drop"))
	by := func(rule string) snapshot.FollowedService {
		return failed(snapshot.StepLostHere, "tcp", "wan0", stranger, outside+"80", dropped(dmz, rule))
	}
	unread := by("inet f c: (ip saddr != @open) drop")
	unread.Failed.Place.Filter.Passes, unread.Failed.Place.Filter.Drops[0].Unsure = true, true
	stranded := by(policy)
	stranded.Failed.Place.InUplink = false
	served := failed(snapshot.StepLostHere, "tcp", "wan0", stranger, outside+"80", none)
	served.Failed, served.Steps, served.Target = nil, map[snapshot.Step]uint64{snapshot.StepAnswered: 40}, netip.MustParseAddrPort(inside+"8080")
	foreign := failed(snapshot.StepNoAnswer, "tcp", "", pc, outside+"443", snapshot.FailedPlace{Foreign: true})
	flooded := failed(snapshot.StepLostHere, "tcp", "p1", pc, inside+"443", none)
	flooded.Bridged = true
	gone, beside := failed(snapshot.StepNoAnswer, "tcp", "lan0", pc, "10.8.0.5:22", out), failed(snapshot.StepNoAnswer, "tcp", "lan0", pc, "10.8.0.6:22", out)
	beside.Failed, beside.Steps = nil, map[snapshot.Step]uint64{snapshot.StepAnswered: 9}
	quic := failed(snapshot.StepUnreachableHere, "udp", "lan0", pc, outside+"443", dropped(out, "ip f c: udp dport 443 reject"))
	quic.Failed.Place.Filter.Accepts = &snapshot.RulePlace{Text: "ip f c: iifname lan0 accept"}
	long := failed(snapshot.StepAnswerLost, "udp", "lan0", pc, outside+"53", dropped(out, "iptables -t filter -A FORWARD -p udp --sport 53 -m length --length 541:65535 -j DROP"))
	long.Failed.Place.Filter.Passes, long.Failed.Place.Filter.Drops[0].Unsure = true, true // which of them is known to it alone
	long.Given, long.Steps[snapshot.StepAnswered] = netip.MustParseAddr("203.0.113.1"), 30
	unknocked := failed(snapshot.StepLostHere, "tcp", "wan0", stranger, outside+"80", dropped(dmz, "iptables -t mangle -A PREROUTING -p tcp --dport 80 (conntrack) (recent) -j DROP"))
	unknocked.Failed.Place.Filter.Passes = true
	forged := failed(snapshot.StepLostHere, "udp", "wan0", "192.168.1.177:1000", outside+"80", snapshot.FailedPlace{ReversePath: true, InUplink: true})
	refused := func(in, client, service string, attempts uint64) []snapshot.FollowedService {
		s := failed(snapshot.StepLostHere, "tcp", in, client, service, snapshot.FailedPlace{NoRoute: "a route or a rule of type blackhole"})
		s.Steps[snapshot.StepLostHere], s.Repeated = attempts, 0
		s.Failed.Routes = &snapshot.Routes{In: in, Question: &snapshot.Route{Error: "invalid argument"}}
		return []snapshot.FollowedService{s}
	}
	// A laptop sends with the address of its VPN, or a router of a network to which the route is missing.
	stray := func(ttl uint8) []snapshot.FollowedService {
		s := failed(snapshot.StepLostHere, "tcp", "lan0", "10.66.6.6:1000", outside+"443", snapshot.FailedPlace{ReversePath: true})
		s.Failed.TTL = ttl
		beside := tcp
		beside.Given = netip.MustParseAddr("198.51.100.2")
		return []snapshot.FollowedService{s, beside}
	}
	for name, c := range map[string]struct {
		rows     []snapshot.FollowedService
		excused  bool
		severity Severity
	}{
		"what no rule is for is kept out":                     {[]snapshot.FollowedService{failed(snapshot.StepLostHere, "tcp", "wan0", stranger, outside+"22", dropped(local, "iptables -t filter -P INPUT DROP"))}, true, 0},
		"what is published is dropped":                        {[]snapshot.FollowedService{failed(snapshot.StepLostHere, "tcp", "wan0", stranger, outside+"80", dropped(dmz, policy))}, false, Critical},
		"a closed port":                                       {[]snapshot.FollowedService{failed(snapshot.StepRefusedHere, "tcp", "wan0", stranger, outside+"23", local)}, true, 0},
		"DNS of a guest is dropped":                           {[]snapshot.FollowedService{failed(snapshot.StepLostHere, "udp", "dmz0", guest, "10.9.0.1:53", dropped(local, "iptables -t filter -P INPUT DROP"))}, false, Warning},
		"SSH of a guest is dropped":                           {[]snapshot.FollowedService{failed(snapshot.StepLostHere, "tcp", "dmz0", guest, "10.9.0.1:22", dropped(local, "iptables -t filter -P INPUT DROP"))}, true, 0},
		"datagrams that a program here takes":                 {[]snapshot.FollowedService{failed(snapshot.StepLostHere, "udp", "lan0", pc, "192.168.1.1:9999", local)}, true, 0},
		"syslog without an answer":                            {[]snapshot.FollowedService{failed(snapshot.StepNoAnswer, "udp", "lan0", pc, outside+"514", out)}, true, 0},
		"SMB is not let out":                                  {[]snapshot.FollowedService{failed(snapshot.StepLostHere, "tcp", "lan0", pc, outside+"445", dropped(out, "ip f c: tcp dport 445 drop"))}, true, 0},
		"one port is not let out":                             {[]snapshot.FollowedService{failed(snapshot.StepLostHere, "tcp", "lan0", pc, outside+"443", dropped(out, "ip f c: tcp dport 443 drop"))}, false, Notice},
		"nothing is let out":                                  {[]snapshot.FollowedService{failed(snapshot.StepLostHere, "tcp", "lan0", pc, outside+"443", dropped(out, policy))}, false, Critical},
		"QUIC is not let out, and TCP is":                     {[]snapshot.FollowedService{failed(snapshot.StepUnreachableHere, "udp", "lan0", pc, outside+"443", dropped(out, "ip f c: udp dport 443 reject")), tcp}, true, 0},
		"QUIC is not let out before a rule for all":           {[]snapshot.FollowedService{quic, tcp}, true, 0},
		"QUIC is not let out, nor is TCP":                     {[]snapshot.FollowedService{quic}, false, Critical},
		"long answers are dropped":                            {[]snapshot.FollowedService{long}, false, Warning},
		"a VPN's source of a host on the link":                {stray(64), true, 0},
		"a source behind a router on the link":                {stray(63), false, Warning},
		"a VPN's source, and nothing else works":              {stray(128)[:1], false, Critical},
		"a source of the network inside comes by the uplink":  {[]snapshot.FollowedService{forged}, true, 0},
		"strangers who did not knock":                         {[]snapshot.FollowedService{unknocked, served}, true, 0},
		"networks are kept apart by a rule":                   {[]snapshot.FollowedService{failed(snapshot.StepLostHere, "tcp", "dmz0", guest, inside+"631", dropped(dmz, "iptables -t filter -A FORWARD -i dmz0 -o lan0 -j DROP"))}, true, 0},
		"few meet the policy":                                 {[]snapshot.FollowedService{few}, true, 0},
		"many meet the policy":                                {[]snapshot.FollowedService{failed(snapshot.StepLostHere, "tcp", "dmz0", guest, inside+"631", dropped(dmz, policy))}, false, Notice},
		"a rule below would accept it":                        {[]snapshot.FollowedService{failed(snapshot.StepLostHere, "tcp", "dmz0", guest, inside+"80", ordered)}, false, Warning},
		"no route":                                            {[]snapshot.FollowedService{failed(snapshot.StepUnreachableHere, "tcp", "lan0", pc, "10.7.0.1:443", snapshot.FailedPlace{NoRoute: "network is unreachable"})}, false, Warning},
		"no route of IPv6":                                    {[]snapshot.FollowedService{failed(snapshot.StepUnreachableHere, "tcp", "lan0", "[fd00::5]:1000", "[2001:db8::1]:443", snapshot.FailedPlace{NoRoute: "network is unreachable"})}, true, 0},
		"others are let in by a list":                         {[]snapshot.FollowedService{listed, served}, true, 0},
		"a list keeps out a client that asks often":           {[]snapshot.FollowedService{blocked, served}, true, 0},
		"a list drops the only client":                        {[]snapshot.FollowedService{by("inet f c: ip saddr @bad drop")}, true, 0},
		"a list that is not read lets clients in":             {[]snapshot.FollowedService{unread}, true, 0},
		"a list of sources and ports":                         {[]snapshot.FollowedService{by("inet f c: (ip saddr . tcp dport != @open) drop")}, true, 0},
		"an ipset keeps out a client":                         {[]snapshot.FollowedService{by("iptables -t filter -A FORWARD (match-set src) -j DROP")}, true, 0},
		"a set of ports is no list of sources":                {[]snapshot.FollowedService{by("inet f c: (tcp dport @ports) drop")}, false, Critical},
		"a set of destinations is no list of sources":         {[]snapshot.FollowedService{by("inet f c: (ip daddr @servers) drop")}, false, Critical},
		"a set of all networks is no list":                    {[]snapshot.FollowedService{by("inet f c: (ip saddr @all of most addresses) drop")}, false, Critical},
		"one address that a rule keeps out":                   {[]snapshot.FollowedService{by("inet f c: ip saddr 198.51.100.66 drop"), served}, false, Notice},
		"a policy accepts some public clients, and drops few": {[]snapshot.FollowedService{stranded, served}, true, 0},
		"a namespace that shares the interface":               {[]snapshot.FollowedService{foreign}, true, 0},
		"a switch floods":                                     {[]snapshot.FollowedService{flooded}, true, 0},
		"a private destination beside one that answers":       {[]snapshot.FollowedService{gone, beside}, true, 0},
		"a stranger asks what a route refuses":                {refused("wan0", stranger, "203.0.113.77:23", 50), true, 0},
		"few ask a network that is nowhere":                   {refused("lan0", pc, "10.99.0.5:445", 5), true, 0},
		"many ask a network that a route refuses":             {refused("lan0", pc, "10.99.0.5:445", 50), false, Warning},
		"a server inside is silent":                           {[]snapshot.FollowedService{failed(snapshot.StepNoAnswer, "tcp", "lan0", pc, "10.9.0.10:443", snapshot.FailedPlace{Out: "dmz0"})}, false, Notice},
		"a server inside refuses":                             {[]snapshot.FollowedService{failed(snapshot.StepRefused, "tcp", "lan0", pc, "10.9.0.10:443", snapshot.FailedPlace{Out: "dmz0"})}, true, 0},
		"data of what is routed alone is lost here":           {[]snapshot.FollowedService{failed(snapshot.StepDataLost, "tcp", "lan0", pc, "10.9.0.10:443", dropped(dmz, policy))}, false, Warning},
		"a program here ends its connections":                 {[]snapshot.FollowedService{failed(snapshot.StepResetHere, "tcp", "lan0", pc, "192.168.1.1:443", local)}, true, 0},
		"a private destination leaves by the uplink":          {[]snapshot.FollowedService{failed(snapshot.StepNoAnswer, "tcp", "lan0", pc, "10.8.0.5:22", out)}, false, Notice},
	} {
		rec := household(c.rows...)
		rec.Last().Audit = &snapshot.Audit{Interfaces: []snapshot.Interface{{Name: "lan0", Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.1.1/24")}}}}
		var first *row
		for _, r := range rows(rec) {
			if r.FollowedService == &rec.Followed.Services[0] {
				first = &r
			}
		}
		if first == nil {
			t.Errorf("%s: no row", name)
			continue
		}
		why := first.excuse()
		if first.place.ReversePath && dropsForged(rec) != c.excused {
			t.Errorf("%s: the reverse path filter drops what is forged: %v", name, !c.excused)
		}
		if first.place.ReversePath && explained(rec, dropGroup{name: "IP_RPFILTER"}) != c.excused {
			t.Errorf("%s: these drops are explained: %v", name, !c.excused)
		}
		if severity, _ := first.severity(); (why != "") != c.excused || why == "" && severity != c.severity {
			t.Errorf("%s: excuse %q, severity %v", name, why, severity)
		}
	}
}

// TestPublishedPorts: what a rule for several ports publishes is no port that is kept out; one between them is.
func TestPublishedPorts(t *testing.T) {
	for port, published := range map[string]bool{"587": true, "80": false} {
		rec := household(failed(snapshot.StepLostHere, "tcp", "wan0", stranger, outside+port, dropped(snapshot.FailedPlace{Out: "lan0", InUplink: true}, policy)))
		rec.Last().NATRules.Rules[1] = snapshot.NATRule{Family: "ip", Hook: "prerouting", Kind: snapshot.NATDest, Partial: true, FirstOfSeveral: 25, LastOfSeveral: 587, SeveralPorts: []nat.Ports{{First: 25, Last: 25}, {First: 443, Last: 443}, {First: 587, Last: 587}},
			NATCondition: snapshot.NATCondition{Protocol: "tcp", InInterface: "wan0"}, First: netip.MustParseAddr("192.168.1.10"), Last: netip.MustParseAddr("192.168.1.10")}
		r := rows(rec)[0]
		if why := r.excuse(); r.isPublished() != published || (why == "") != published {
			t.Errorf("%s: excuse %q", port, why)
		}
	}
}

// TestScan: a client that asks many without an answer is excused; a host of which all is lost is not.
func TestScan(t *testing.T) {
	for client, excused := range map[string]bool{stranger: true, pc: false} {
		in, place := "wan0", snapshot.FailedPlace{Out: "lan0"}
		if client == pc {
			in, place = "lan0", snapshot.FailedPlace{Out: "wan0", Uplink: true, ReversePath: true}
		}
		var all []snapshot.FollowedService
		for _, port := range []string{"1", "2", "3", "4", "5", "6"} {
			all = append(all, failed(snapshot.StepLostHere, "tcp", in, client, outside+port, place))
		}
		for _, r := range rows(household(all...)) {
			if why := r.excuse(); (why != "") != excused {
				t.Errorf("%s: %q", client, why)
			}
		}
	}
}

// TestHelperless: clients go on to the address that the server names.
func TestHelperless(t *testing.T) {
	control := failed(snapshot.StepLostHere, "tcp", "wan0", stranger, outside+"21", snapshot.FailedPlace{})
	control.Failed, control.Steps, control.Target = nil, map[snapshot.Step]uint64{snapshot.StepAnswered: 3}, netip.MustParseAddrPort(inside+"21")
	web := control // of the same server, which names no ports
	web.Service, web.Target = netip.MustParseAddrPort(outside+"80"), netip.MustParseAddrPort(inside+"80")
	all := []snapshot.FollowedService{control, web}
	for i, port := range []string{"40001", "40002", "40003"} {
		if got := helperless(household(all...)); len(got) != 0 {
			t.Errorf("%d connections: %+v", i, got)
		}
		all = append(all, failed(snapshot.StepLostHere, "tcp", "wan0", stranger, inside+port, snapshot.FailedPlace{}))
	}
	if got := helperless(household(all...)); len(got) != 1 || got[0].key.service != control.Service {
		t.Errorf("%+v", got)
	}
}

// TestHelperlessFromTheTable: the control connections are older than the look, the clients behind this host, and
// the server outside: filters let out connections to some ports alone. Who tries low ports, too, scans.
func TestHelperlessFromTheTable(t *testing.T) {
	ftp := snapshot.Control{Helper: "ftp", Protocol: "tcp", Service: netip.MustParseAddrPort(outside + "21"), Target: netip.MustParseAddrPort(outside + "21"), Connections: 9, Answered: 9}
	helped := ftp
	helped.Helped = 9
	var gone []snapshot.FollowedService
	for _, port := range []string{"40001", "40002", "40003"} {
		gone = append(gone, failed(snapshot.StepLostHere, "tcp", "lan0", pc, outside+port, dropped(snapshot.FailedPlace{Out: "wan0", Uplink: true}, policy)))
	}
	scan := append(slices.Clip(gone), failed(snapshot.StepLostHere, "tcp", "lan0", pc, outside+"22", dropped(snapshot.FailedPlace{Out: "wan0"}, policy)))
	for name, c := range map[string]struct {
		rows []snapshot.FollowedService
		ftp  snapshot.Control
		want int
	}{
		"no helper": {gone, ftp, 1}, "a helper": {gone, helped, 0}, "a scan": {scan, ftp, 0}, "two ports": {gone[:2], ftp, 0},
	} {
		rec := household(c.rows...)
		rec.Flows = &snapshot.Flows{ControlsKnown: true, Controls: []snapshot.Control{c.ftp}}
		if got := helperless(rec); len(got) != c.want || c.want > 0 && (got[0].key.service != ftp.Service || got[0].advice == nil) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestBesideRange: a flow that goes on to a port beside the published ones is missed by its client; a few datagrams,
// those to low ports and those of the range's own ports are judged otherwise.
func TestBesideRange(t *testing.T) {
	for name, c := range map[string]struct {
		port     string
		again    uint64
		known    bool
		how      bool
		severity Severity
	}{
		"of a client that is answered else": {"13482", 100, true, true, Warning},
		"of a stranger":                     {"13482", 100, false, true, Notice},
		"few datagrams":                     {"13482", 20, true, false, 0},
		"a low port":                        {"137", 100, true, false, 0},
		"in the range":                      {"10500", 100, true, false, 0},
	} {
		flow := failed(snapshot.StepLostHere, "udp", "wan0", stranger, outside+c.port, dropped(snapshot.FailedPlace{Local: true}, "iptables -t filter -P INPUT DROP"))
		flow.Steps, flow.Repeated, flow.Clients = map[snapshot.Step]uint64{snapshot.StepLostHere: 1}, c.again, 1
		call := failed(snapshot.StepLostHere, "udp", "wan0", stranger, outside+"5060", snapshot.FailedPlace{})
		call.Failed, call.Steps, call.Target = nil, map[snapshot.Step]uint64{snapshot.StepAnswered: 1}, netip.MustParseAddrPort(inside+"5060")
		all := []snapshot.FollowedService{flow}
		if c.known {
			all = append(all, call)
		}
		rec := household(all...)
		last := rec.Last()
		last.Audit = &snapshot.Audit{}
		last.NATRules.Rules = append(last.NATRules.Rules, snapshot.NATRule{Family: "ip", Hook: "prerouting", Kind: snapshot.NATDest, Partial: true, FirstOfSeveral: 10000, LastOfSeveral: 10999,
			NATCondition: snapshot.NATCondition{Protocol: "udp", InInterface: "wan0"}, First: netip.MustParseAddr("192.168.1.10"), Last: netip.MustParseAddr("192.168.1.10")})
		found := rows(rec)
		if len(found) != 1 {
			t.Fatalf("%s: %d rows", name, len(found))
		}
		if got := found[0].blockedHere(); (got.how != "") != c.how || got.severity != c.severity {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestOtherProtocol: a service that is asked for by another protocol than that of its rule may be meant to have one
// alone, unless nothing ever met the rule.
func TestOtherProtocol(t *testing.T) {
	for name, c := range map[string]struct {
		packets  uint64
		counted  bool
		severity Severity
	}{"the rule has no counter": {0, false, Notice}, "others met the rule": {9, true, Notice}, "nothing ever met the rule": {0, true, Warning}} {
		asked := failed(snapshot.StepUnreachableHere, "udp", "wan0", stranger, outside+"80", snapshot.FailedPlace{Local: true})
		asked.Clients = 1
		rec := household(asked)
		last := rec.Last()
		last.Audit = &snapshot.Audit{Interfaces: []snapshot.Interface{{Name: "wan0", Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("198.51.100.10/24")}}}}
		last.NATRules.Rules[1].Counted, last.NATRules.Rules[1].Packets = c.counted, c.packets
		r := row{FollowedService: &rec.Followed.Services[0], rec: rec, all: rec.Followed.Services, place: asked.Failed.Place}
		if got := r.blockedHere(); got.severity != c.severity || got.advice == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestNoEntryIsNamed: the filters let packets of the connection pass, and the rule for those of none drops them.
func TestNoEntryIsNamed(t *testing.T) {
	const rule = "iptables -t filter -A FORWARD -p tcp ! --syn -m conntrack --ctstate NEW -j DROP"
	s := failed(snapshot.StepDataLost, "tcp", "lan0", pc, outside+"5432", snapshot.FailedPlace{Filter: &snapshot.Filter{Passes: true}, NoEntryFilter: &snapshot.Filter{Drops: []snapshot.RulePlace{{Text: rule}}}})
	rec := household(s)
	rec.Drops = &snapshot.Drops{Flows: []snapshot.DropFlow{{Function: "nft_do_chain", Reason: "NETFILTER_DROP", Protocol: "tcp", Source: pc, Destination: outside + "5432"}}}
	if text := lostBy(rec, &rec.Followed.Services[0]); !strings.Contains(text, rule) {
		t.Error(text)
	}
}

// TestOwnTrafficMeetsNoRule: what this host sends itself does not meet the rules of the hook prerouting.
func TestOwnTrafficMeetsNoRule(t *testing.T) {
	s := failed(snapshot.StepNoAnswer, "tcp", "", outside+"1000", "10.96.0.20:80", snapshot.FailedPlace{Out: "wan0", Uplink: true})
	rec := household(s)
	cluster := snapshot.NATRule{Family: "ip", Table: "nat", Chain: "KUBE-SERVICES", Hook: "prerouting", Kind: snapshot.NATDest, NATCondition: snapshot.NATCondition{Protocol: "tcp", DestinationPort: 80, ToDestination: netip.MustParsePrefix("10.96.0.20/32")}}
	rec.Last().NATRules.Rules = append(rec.Last().NATRules.Rules, cluster)
	if text := stepCause(rec, &rec.Followed.Services[0]); !strings.Contains(text, "KUBE-SERVICES") {
		t.Error(text)
	}
}

// TestOneSided: clients go on though no answer passes this host: the place is the rule for INVALID, and ct-invalid says
// no more of the same packets. Connections that were opened before are reported once.
func TestOneSided(t *testing.T) {
	const rule = "iptables -t filter -A FORWARD -m conntrack --ctstate INVALID -j DROP"
	one := failed(snapshot.StepDataLost, "tcp", "lan0", pc, "10.30.0.10:502", dropped(snapshot.FailedPlace{Out: "lan0", NextHop: netip.MustParseAddr("192.168.1.2")}, rule))
	one.Out, one.Failed.OneSided = "lan0", true
	before := failed(snapshot.StepDataLost, "tcp", "lan0", pc, "10.30.0.10:502", snapshot.FailedPlace{Filter: &snapshot.Filter{Passes: true}, NoEntryFilter: &snapshot.Filter{Drops: []snapshot.RulePlace{{Text: rule}}}})
	rec := household(one, before)
	rec.Drops = &snapshot.Drops{Flows: []snapshot.DropFlow{{Function: "nft_do_chain", Reason: "NETFILTER_DROP", Protocol: "tcp", Source: pc, Destination: "10.30.0.10:502"}}}
	got := followedOnes(rec)
	if len(got) != 1 || !strings.Contains(got[0].place, rule) || !strings.Contains(got[0].advice.Title, "192.168.1.2") || !got[0].decided || !passesOneSide(rec) {
		t.Fatalf("%+v", got)
	}
	rec.Followed.Services = rec.Followed.Services[1:]
	if got = followedOnes(rec); len(got) != 1 || !strings.Contains(got[0].place, rule) || !strings.Contains(got[0].advice.Title, "conntrack -L") || passesOneSide(rec) {
		t.Errorf("%+v", got)
	}
}

// TestUnaskedAnswers: answers whose SYNs take another way are dropped by the rule for INVALID; those that come from
// outside, or where no rule is known, may be to forged sources.
func TestUnaskedAnswers(t *testing.T) {
	const rule = "iptables -t filter -A FORWARD -m conntrack --ctstate INVALID -j DROP"
	place := snapshot.FailedPlace{Out: "lan0", NextHop: netip.MustParseAddr("192.168.1.2")}
	outer := place
	outer.InUplink = true
	for name, c := range map[string]struct {
		place snapshot.FailedPlace
		want  int
	}{"inside": {dropped(place, rule), 1}, "from outside": {dropped(outer, rule), 0}, "no rule": {place, 0}} {
		s := failed(snapshot.StepAnswerLost, "tcp", "", "10.40.0.10:1000", inside+"8080", c.place)
		s.Failed.OneSided, s.Failed.AnswerIn = true, "lan0"
		got := followedOnes(household(s))
		if len(got) != c.want || c.want > 0 && (!strings.Contains(got[0].place, rule) || got[0].severity != Warning || !strings.Contains(got[0].advice.Title, "192.168.1.10 a route to 10.40.0.10 by 192.168.1.2")) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestLimited: a limit is raised, not passed by. One that lets nothing pass that is sent from inside is a fault.
func TestLimited(t *testing.T) {
	for name, c := range map[string]struct {
		in, client, rule string
		severity         Severity
	}{
		"a quota is used up":         {"lan0", pc, "inet fw forward: (quota) drop", Warning},
		"a limit for one port":       {"lan0", pc, "inet fw forward: tcp dport 25 (limit) drop", Notice},
		"strangers beyond the limit": {"wan0", stranger, "inet fw forward: (limit) drop", Notice},
	} {
		s := failed(snapshot.StepLostHere, "tcp", c.in, c.client, outside+"80", snapshot.FailedPlace{Out: "wan0", Uplink: true})
		s.Failed.Place.Filter = &snapshot.Filter{Passes: true, Drops: []snapshot.RulePlace{{Text: c.rule, Limits: true, Part: true}}}
		got := followedOnes(household(s))
		if len(got) != 1 || got[0].severity != c.severity || !strings.Contains(got[0].advice.Title, "raise the limit") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestUntrackedSYNsAreLost: SYNs that a rule exempts from tracking are a fault where connections are seen to end here.
func TestUntrackedSYNsAreLost(t *testing.T) {
	s := failed(snapshot.StepRefusedHere, "tcp", "wan0", stranger, outside+"80", snapshot.FailedPlace{Local: true})
	other := failed(snapshot.StepRefusedHere, "tcp", "wan0", stranger, outside+"81", snapshot.FailedPlace{Local: true})
	for name, c := range map[string]struct {
		rows []snapshot.FollowedService
		want bool
	}{"refused": {[]snapshot.FollowedService{s}, true}, "another": {[]snapshot.FollowedService{other}, false}, "none": {nil, false}} {
		rec := household(c.rows...)
		rec.Last().Audit = &snapshot.Audit{Untracked: []snapshot.UntrackedRule{{Kind: snapshot.NATDest, SYNs: true, Protocol: "tcp", FirstPort: 80, LastPort: 80}}}
		a, _ := readAudit(rec)
		if a == nil {
			t.Fatal("no audit")
		}
		if f, _ := a.checkNotrackNAT(); (f != nil) != c.want {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// TestUntrackedQuestionsWithoutAnswers: questions that a rule exempts from tracking are a fault where they come and no
// answer does.
func TestUntrackedQuestionsWithoutAnswers(t *testing.T) {
	exempt := func(asked, answered uint64, change func(*snapshot.UntrackedRule)) *snapshot.Audit {
		u := snapshot.UntrackedRule{Kind: snapshot.NATMasquerade, Questions: true, Asked: &snapshot.Asked{Protocol: "udp", FirstPort: 53, LastPort: 53}}
		u.Text, u.By = "masquerade", snapshot.RulePlace{Text: "questions", Counted: true, Packets: asked}
		u.Back = []snapshot.RulePlace{{Text: "answers", Counted: true, Packets: answered}}
		change(&u)
		return &snapshot.Audit{Untracked: []snapshot.UntrackedRule{u}}
	}
	nothing := func(*snapshot.UntrackedRule) {}
	for name, c := range map[string]struct {
		asked, answered uint64
		change          func(*snapshot.UntrackedRule)
		want            bool
	}{
		"no answer":         {40, 0, nothing, true},
		"most is dropped":   {50, 0, nothing, false},
		"answered":          {40, 38, nothing, false},
		"no question":       {0, 0, nothing, false},
		"this host answers": {40, 0, func(u *snapshot.UntrackedRule) { u.Here = true }, false},
		"not counted":       {40, 0, func(u *snapshot.UntrackedRule) { u.Back[0].Counted = false }, false},
		"no rule for them":  {40, 0, func(u *snapshot.UntrackedRule) { u.Back = nil }, true},
		"to a network":      {40, 0, func(u *snapshot.UntrackedRule) { u.Asked.To = netip.MustParsePrefix("10.0.0.0/8") }, false},
	} {
		rec := household()
		rec.Snapshots = []*snapshot.Snapshot{{}, rec.Last()}
		rec.First().Audit, rec.Last().Audit = exempt(0, 0, c.change), exempt(c.asked, c.answered, c.change)
		rec.First().TCP = &snapshot.TCP{Counters: snapshot.Counters{"IpInReceives": 0, "IpInDelivers": 0, "IpForwDatagrams": 0}}
		sentOn := map[bool]uint64{true: 3, false: c.asked}[name == "most is dropped"]
		rec.Last().TCP = &snapshot.TCP{Counters: snapshot.Counters{"IpInReceives": 10 + c.asked, "IpInDelivers": 10, "IpForwDatagrams": sentOn}}
		a, _ := readAudit(rec)
		if f, _ := a.checkNotrackNAT(); (f != nil) != c.want {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// TestRuleForAnAddressBeforeTranslation: what this host refuses at its own address, while the rule for the port is for
// one that a cloud has translated to it.
func TestRuleForAnAddressBeforeTranslation(t *testing.T) {
	for name, c := range map[string]struct {
		to      string
		packets uint64
		ports   []nat.Ports
		found   bool
	}{
		"the address of the cloud": {"203.0.113.50/32", 0, nil, true},
		"a set of ports":           {"203.0.113.50/32", 0, []nat.Ports{{First: 80, Last: 80}, {First: 443, Last: 443}}, true},
		"a set without the port":   {"203.0.113.50/32", 0, []nat.Ports{{First: 25, Last: 25}, {First: 443, Last: 443}}, false},
		"an address of this host":  {"10.0.0.5/32", 0, nil, false},
		"packets meet the rule":    {"203.0.113.50/32", 5, nil, false},
	} {
		rec := household(failed(snapshot.StepRefusedHere, "tcp", "eth0", stranger, "10.0.0.5:80", snapshot.FailedPlace{Local: true, InUplink: true}))
		rule := rec.Last().NATRules.Rules[1]
		rule.InInterface, rule.ToDestination, rule.Counted = "", netip.MustParsePrefix(c.to), true
		if rule.SeveralPorts = c.ports; c.ports != nil {
			rule.DestinationPort, rule.FirstOfSeveral, rule.LastOfSeveral, rule.Partial = 0, c.ports[0].First, c.ports[1].Last, true
		}
		rec.Snapshots[0] = &snapshot.Snapshot{NATRules: &snapshot.NATRules{Rules: []snapshot.NATRule{rule}}}
		rule.Packets = c.packets
		rec.Snapshots[1] = &snapshot.Snapshot{NATRules: &snapshot.NATRules{Rules: []snapshot.NATRule{rule}}, Audit: &snapshot.Audit{Interfaces: []snapshot.Interface{
			{Name: "eth0", Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.5/24")}}, {Name: "lan0", Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.1.1/24")}}}}}
		if f := rows(rec)[0].blockedHere(); (f.advice != nil && f.severity == Warning) != c.found {
			t.Errorf("%s: %+v", name, f)
		}
	}
}
