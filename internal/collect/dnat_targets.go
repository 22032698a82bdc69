package collect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/unix"
)

const (
	// mostTargets bounds the targets that are looked up, some 20 µs each; mostOfRule those of
	// one rule: what has more translates a whole prefix.
	mostTargets = 1000
	mostOfRule  = 16
	// mostDrops bounds the places that may drop what goes to one target, mostJudged the rules
	// that are asked about packets, some 0.1 µs each.
	mostDrops  = 8
	mostJudged = 4_000_000
)

// readDNATTargets asks for the route, the neighbour and, on this machine, the listening
// socket of each constant address that a rule leads to.
func (o *observation) readDNATTargets(context.Context) (err error) {
	if o.NATRules == nil {
		return errNone
	}
	o.DNATTargets, err = answer(o, question{"DNAT targets", "dnat_targets.json"}, func() (*snapshot.DNATTargets, error) {
		return o.askTargets(o.NATRules)
	})
	if errors.As(err, new(errNotRecorded)) {
		return errNone
	}
	return err
}

// targetsOf returns where rules lead, each end once.
func targetsOf(rules *snapshot.NATRules) []snapshot.DNATTarget {
	type end struct {
		protocol string
		address  netip.Addr
		port     uint16
		// family is that of redirect; incoming is of it and of loopback addresses.
		family   string
		incoming bool
	}
	targets, seen := []snapshot.DNATTarget{}, map[end]bool{}
	for i := range rules.Rules {
		r := &rules.Rules[i]
		if r.TranslatesSource() || r.FirstPort != r.LastPort {
			continue
		}
		e := end{protocol: r.Protocol}
		for _, to := range endsOf(r) {
			e.address, e.port = to.Address, to.Port
			if e.port == 0 && r.LastDestinationPort <= r.DestinationPort {
				e.port = r.DestinationPort
			}
			if !e.address.IsValid() {
				e.family = r.Family
			}
			e.incoming = (!e.address.IsValid() || e.address.IsLoopback()) && r.Hook == "prerouting"
			if !seen[e] && len(targets) < mostTargets {
				seen[e] = true
				targets = append(targets, snapshot.DNATTarget{Rule: i, Protocol: e.protocol, Address: e.address, Port: e.port})
			}
		}
	}
	return targets
}

// endsOf are the addresses that a rule gives, of a map that it draws from as well, with their ports.
func endsOf(r *snapshot.NATRule) (all []snapshot.Drawn) {
	if len(r.Drawn) > 0 && len(r.Drawn) <= mostOfRule {
		return r.Drawn
	}
	for _, address := range addressesOf(r) {
		all = append(all, snapshot.Drawn{Address: address, Port: r.FirstPort})
	}
	return all
}

// addressesOf returns the addresses that a rule gives, one that is not valid for redirect;
// none where they are too many, or not constant.
func addressesOf(r *snapshot.NATRule) (all []netip.Addr) {
	if r.Kind == snapshot.NATRedirect {
		return []netip.Addr{{}}
	}
	for a := r.First; a.IsValid() && a.Compare(r.Last) <= 0; a = a.Next() {
		if all = append(all, a); len(all) > mostOfRule {
			return nil
		}
	}
	return all
}

// askTargets returns the targets of the rules, with what the kernel has of each.
func (o *observation) askTargets(natRules *snapshot.NATRules) (*snapshot.DNATTargets, error) {
	byMap := func(r snapshot.NATRule) bool {
		return r.Chance || isOfMap(&r) && o.Programs != nil && len(o.Programs.Interfaces) > 0
	}
	if len(targetsOf(natRules)) == 0 && !slices.ContainsFunc(natRules.Rules, byMap) {
		return &snapshot.DNATTargets{Targets: []snapshot.DNATTarget{}}, nil
	}
	all := &snapshot.DNATTargets{}
	k, err := o.lookUp()
	if err == nil {
		all.PolicyRouting = len(k.router.rules) > 0
	}
	if err == nil {
		k.listPorts()
		err = k.takesRest()
	}
	targets := targetsOf(natRules) // now with the destinations of maps
	all.Targets = targets
	for i := range targets {
		if err == nil {
			err = k.fill(&targets[i])
		}
		if err == nil && targets[i].NoRoute == "" {
			err = k.pass(&targets[i])
		}
	}
	if err != nil {
		return nil, fmt.Errorf("look up the targets of DNAT: %w", err)
	}
	if err := k.addBeside(all); err != nil {
		return nil, fmt.Errorf("ask filters about other protocols of DNAT: %w", err)
	}
	if err := k.addPorts(all); err != nil {
		return nil, fmt.Errorf("ask filters about the ports of DNAT: %w", err)
	}
	if err := k.addMapped(all); err != nil {
		return nil, fmt.Errorf("ask filters about what programs forward: %w", err)
	}
	all.TooMany = k.judged < 0
	return all, nil
}

// addBeside adds the targets of rules for several protocols once more for those but TCP, as which filters were
// asked about them.
func (k *lookups) addBeside(all *snapshot.DNATTargets) error {
	for _, t := range all.Targets {
		if t.Protocol != "" || t.NoRoute != "" || !t.Address.IsValid() {
			continue
		}
		protocols := k.protocolsOf(&k.rules.Rules[t.Rule])
		if !slices.Contains(protocols, unix.IPPROTO_TCP) {
			continue
		}
		for _, protocol := range protocols {
			if protocol == unix.IPPROTO_TCP || len(all.Targets) >= mostTargets {
				continue
			}
			beside := snapshot.DNATTarget{Rule: t.Rule, Protocol: nat.ProtocolName(protocol), Beside: true, Address: t.Address, Port: t.Port, Local: t.Local, Interface: t.Interface, NextHop: t.NextHop}
			if err := k.pass(&beside); err != nil {
				return err
			}
			all.Targets = append(all.Targets, beside)
		}
	}
	return nil
}

// listPorts completes rules with the destination ports of their sets, which are not read with the rules.
func (k *lookups) listPorts() {
	listed := ruleset.ListedBy(k.tables)
	for i := range k.rules.Rules {
		r := &k.rules.Rules[i]
		l := listed[ruleset.RuleID{Family: r.Family, Table: r.Table, Handle: r.Handle}]
		if r.DestinationPort == 0 && len(r.SeveralPorts) == 0 && r.Handle != 0 && len(l.Addresses) == 0 && len(l.Ports) < ruleset.MostListed {
			r.SeveralPorts = l.Ports
		}
	}
}

// mostPorts bounds the ports of a rule that filters are asked about one by one.
const mostPorts = 16

// addPorts adds the targets of rules for a few ports, which they keep, once more for each port that filters drop:
// of all ports together they are asked what they do to some.
func (k *lookups) addPorts(all *snapshot.DNATTargets) error {
	for _, t := range all.Targets {
		r := &k.rules.Rules[t.Rule]
		passes := t.Filter != nil && t.Filter.Passes || t.Programs && t.Bypassed == nil
		if t.Port != 0 || t.Beside || t.NoRoute != "" || !t.Address.IsValid() || !passes {
			continue
		}
		for _, port := range fewPorts(r.SeveralPorts) {
			one := snapshot.DNATTarget{Rule: t.Rule, Protocol: t.Protocol, Beside: true, OfSeveral: true, Address: t.Address, Port: port, Local: t.Local, Interface: t.Interface, NextHop: t.NextHop}
			if err := k.pass(&one); err != nil {
				return err
			}
			drops := one.Filter != nil && !one.Filter.Passes || one.Bypassed != nil
			if drops && len(all.Targets) < mostTargets {
				all.Targets = append(all.Targets, one)
			}
		}
	}
	return nil
}

// fewPorts returns the ports of all ranges, nil if they are more than mostPorts.
func fewPorts(ranges []nat.Ports) (all []uint16) {
	for _, p := range ranges {
		if p.First == 0 || p.Len() > mostPorts-len(all) {
			return nil
		}
		for port := p.First; ; port++ {
			if all = append(all, port); port == p.Last {
				break
			}
		}
	}
	return all
}

// ruleOf is the rule as the tables of Judged have it; nil where they do not.
func (k *lookups) ruleOf(r *snapshot.NATRule) *ruleset.Rule {
	for _, t := range k.tables {
		c := t.Find(r.Chain)
		if t.Family != r.Family || t.Name != r.Table || c == nil || r.Handle == 0 {
			continue
		}
		if i := slices.IndexFunc(c.Rules, func(n *ruleset.Rule) bool { return n.Handle == r.Handle }); i >= 0 {
			return c.Rules[i]
		}
	}
	return nil
}

// protocolsOf are those that a rule is for by a set.
func (k *lookups) protocolsOf(r *snapshot.NATRule) []uint8 {
	if rule := k.ruleOf(r); rule != nil {
		return rule.Match.SeveralProtocols()
	}
	return nil
}

// judged are the rules of the namespace, read once for a snapshot.
func (o *observation) judged() (all []*ruleset.Table, err error) {
	if o.tables == nil {
		o.tables, err = o.src.judged()
	}
	return o.tables, err
}

// lookUp returns what is read once for a snapshot.
func (o *observation) lookUp() (k *lookups, err error) {
	if o.lookedUp != nil {
		return o.lookedUp, nil
	}
	k = &lookups{rules: o.NATRules, listening: map[string][]netip.AddrPort{}, judged: mostJudged}
	if k.router, err = o.asksRoutes(); err != nil {
		return nil, err
	}
	if k.host, err = o.readHost(); err != nil {
		return nil, err
	}
	if k.tables, err = o.judged(); err != nil {
		return nil, err
	}
	if k.programs = o.Programs; k.programs != nil && len(k.programs.Interfaces) > 0 {
		if k.mappings, err = k.router.mappings(); err != nil {
			return nil, err
		}
	}
	k.filters = ruleset.Costs(k.tables)
	o.lookedUp = k
	return k, nil
}

// lookups is what is read once for all targets and ways.
type lookups struct {
	rules     *snapshot.NATRules
	router    *router
	host      *host
	listening map[string][]netip.AddrPort
	tables    []*ruleset.Table
	// programs are those of a gateway, mappings what they have; nil where there are none.
	programs *snapshot.Programs
	mappings mappings
	// outers are the interfaces of the default routes, of IPv6 or not.
	outers map[bool]string
	// filters is how many rules a packet may be asked by at each hook, judged how many may still be asked.
	filters map[string]int
	judged  int
}

func (k *lookups) fill(t *snapshot.DNATTarget) error {
	if !t.Address.IsValid() { // redirect
		t.Local = true
		return k.listens(t)
	}
	route, known := k.router.ask(flow{to: netip.AddrPortFrom(t.Address, 0)})
	switch {
	case !known:
		return nil
	case route.Error != "":
		t.NoRoute = route.Error
		return nil
	case route.Local:
		t.Local = true
		if t.Address.Is4() && t.Address.IsLoopback() && k.rules.Rules[t.Rule].Hook == "prerouting" {
			var err error
			if t.Martian, err = k.router.localnetOff(k.rules.Rules[t.Rule].InInterface); err != nil {
				return err
			}
		}
		return k.listens(t)
	}
	t.NextHop, t.Interface, t.Neighbour, t.Broken, t.Ports = route.NextHop, route.Out, route.Neighbour, route.Broken, route.Ports
	if t.NextHop == t.Address && (t.Neighbour == snapshot.NeighbourIncomplete || t.Neighbour == snapshot.NeighbourFailed) {
		t.Sublink = k.router.sublinkOf(t.Interface)
	}
	t.Refused = k.router.example(k.host, &k.rules.Rules[t.Rule], t)
	return nil
}

// notForwarded returns the sysctl by which what comes in by an interface (empty: by any) is not
// forwarded; empty where it is. For IPv6 an interface's own says only whether it is a router
// (ip6_forward).
func (r *router) notForwarded(v6 bool, in string) (sysctl string, err error) {
	family := map[bool]string{false: "ipv4", true: "ipv6"}[v6]
	on := func(device string) (bool, error) {
		file := "/proc/sys/net/" + family + "/conf/" + device + "/forwarding"
		if is, known := r.forwarding[file]; known {
			return is, nil
		}
		value, err := r.file(file)
		is := strings.TrimSpace(string(value)) != "0"
		if err == nil {
			r.forwarding[file] = is
		}
		return is, err
	}
	all, err := on("all")
	switch {
	case err != nil || all && (v6 || in == ""):
		return "", ignoreAbsent(err)
	case v6:
		return "net.ipv6.conf.all.forwarding", nil
	case in != "":
		if own, err := on(in); err != nil || own {
			return "", ignoreAbsent(err)
		}
	}
	for _, l := range r.sorted() {
		if own, ownErr := on(l.name); ownErr == nil && own && l.flags&unix.IFF_LOOPBACK == 0 {
			if in == "" {
				return "", nil
			}
			return "net.ipv4.conf." + in + ".forwarding", nil
		}
	}
	return "net.ipv4.ip_forward", nil // no interface does: answers come in by another one
}

// ignoreAbsent is nil for an interface or a family that is not there.
func ignoreAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// neighbourStates are the kernel's NUD_* (include/uapi/linux/neighbour.h).
var neighbourStates = map[int]string{
	unix.NUD_INCOMPLETE: snapshot.NeighbourIncomplete, unix.NUD_REACHABLE: snapshot.NeighbourReachable, unix.NUD_STALE: "STALE", unix.NUD_DELAY: "DELAY",
	unix.NUD_PROBE: "PROBE", unix.NUD_FAILED: snapshot.NeighbourFailed, unix.NUD_NOARP: "NOARP", unix.NUD_PERMANENT: "PERMANENT",
}

// localnetOff reports whether the kernel drops packets to 127.0.0.0/8 that come in by an
// interface (empty or a pattern: by every one): net.ipv4.conf.*.route_localnet is 0 of it and
// of all (IN_DEV_NET_ROUTE_LOCALNET).
func (r *router) localnetOff(device string) (off bool, err error) {
	names := []string{"all", device}
	if device == "" || strings.HasSuffix(device, "*") {
		for _, l := range r.sorted() {
			names = append(names, l.name)
		}
	}
	for _, name := range names {
		value, err := r.file("/proc/sys/net/ipv4/conf/" + name + "/route_localnet")
		if err == nil && strings.TrimSpace(string(value)) != "0" {
			return false, nil
		}
		if err != nil && (name == "all" || !errors.Is(err, fs.ErrNotExist)) {
			return false, err
		}
	}
	return true, nil
}

// listens finds out whether a socket takes what comes to a port of this machine; one of
// IPv6 that is bound to no address counts for IPv4, too.
func (k *lookups) listens(t *snapshot.DNATTarget) error {
	if t.Port == 0 || t.Protocol != "tcp" && t.Protocol != "udp" {
		return nil
	}
	open, err := k.open(t.Protocol)
	if lacks(err) { // whether one listens is not known
		return nil
	}
	if err != nil {
		return err
	}
	r := &k.rules.Rules[t.Rule]
	found := slices.ContainsFunc(open, func(s netip.AddrPort) bool {
		return s.Port() == t.Port && (t.Address.IsValid() && takes(s.Addr(), t.Address) || !t.Address.IsValid() && takesRedirected(s.Addr(), r))
	})
	t.Listening = &found
	t.Loopback = !found && slices.ContainsFunc(open, func(s netip.AddrPort) bool { return s.Port() == t.Port && s.Addr().IsLoopback() })
	return nil
}

// takesRest notes for rules that leave over a part of the connections whether a program of this host takes it.
func (k *lookups) takesRest() error {
	for i := range k.rules.Rules {
		r := &k.rules.Rules[i]
		if k.draw(r); r.Missing == "" && !r.Chance || r.Hook != "prerouting" || r.Protocol != "tcp" && r.Protocol != "udp" {
			continue
		}
		open, err := k.open(r.Protocol)
		if err != nil {
			return err
		}
		r.Listens = slices.ContainsFunc(open, func(s netip.AddrPort) bool { return s.Port() == r.DestinationPort && !s.Addr().IsLoopback() })
	}
	return nil
}

// answersHere notes of questions that are not tracked whether a program of this host answers some of them.
func (k *lookups) answersHere(untracked []snapshot.UntrackedRule) error {
	for i := range untracked {
		u := &untracked[i]
		if !u.Questions {
			continue
		}
		open, err := k.open(u.Asked.Protocol)
		if err != nil {
			return err
		}
		u.Here = slices.ContainsFunc(open, func(s netip.AddrPort) bool {
			return u.Asked.FirstPort <= s.Port() && s.Port() <= u.Asked.LastPort && !s.Addr().IsLoopback()
		})
	}
	return nil
}

// draw fills in what is known of the map that a rule chooses the address by.
func (k *lookups) draw(r *snapshot.NATRule) {
	r.Missing, r.Draws, r.Drawn, r.Hashed = "", 0, nil, false
	if rule := k.ruleOf(r); rule != nil && r.Chance && !r.TranslatesSource() {
		t := &rule.Target
		r.Missing, r.Draws, r.Drawn, r.Hashed = t.Missing, t.Draws, t.Drawn, t.Hashed
	}
}

// open lists the sockets that take packets of a protocol, which are asked for once.
func (k *lookups) open(protocol string) ([]netip.AddrPort, error) {
	open, known := k.listening[protocol]
	if known {
		return open, nil
	}
	sockets, err := k.router.sockets(protocol)
	if err != nil {
		return nil, err
	}
	for _, s := range sockets {
		open = append(open, s.Socket)
	}
	k.listening[protocol] = open
	return open, nil
}

// takes reports whether a socket bound to an address takes what comes to another one.
func takes(bound, to netip.Addr) bool {
	return bound == to || bound.IsUnspecified() && (bound.Is6() || to.Is4())
}

// takesRedirected reports whether a socket bound to an address can take what a redirect sends
// there: to the first address of the interface that a packet comes in by, or to the loopback
// address where this machine sent it (nf_nat_redirect_ipv4).
func takesRedirected(bound netip.Addr, r *snapshot.NATRule) bool {
	switch {
	case r.Family == "ip6" && bound.Is4(), r.Family == "ip" && bound.Is6() && !bound.IsUnspecified():
		return false
	}
	return !bound.IsLoopback() || r.Hook != "prerouting"
}
