package diff

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// comparisons are what is compared of two snapshots. Items that are nil were not read.
var comparisons = []struct {
	kind Kind
	of   func(*snapshot.Snapshot) []item
}{
	{Kernel, kernel},
	{Memory, memory},
	{Sysctl, sysctls},
	{NATRule, natRules},
	{Refusal, refusals},
	{RuleTable, iptables},
	{Program, programs},
	{Interface, interfaces},
	{Queue, queues},
	{Route, routes},
	{IPVS, ipvs},
	{IPsec, policies},
	{Subscriber, subscribers},
}

// kernel leaves out what is new at each boot.
func kernel(s *snapshot.Snapshot) []item {
	k := s.Kernel
	if k.Release == "" {
		return nil
	}
	return []item{{"release", k.Release}, {"architecture", k.Arch}, {"CPUs", strconv.Itoa(k.CPUs)}}
}

func memory(s *snapshot.Snapshot) []item {
	all := []item{}
	if s.Memory != nil {
		all = append(all, item{"total", units.Bytes(int64(s.Memory.TotalBytes))})
	}
	if z := s.ConntrackSize; z != nil {
		all = append(all, item{"entry of the connection table", units.Bytes(int64(z.EntryBytes))})
	}
	if len(all) < 2 {
		return nil
	}
	return all
}

// sysctls are settings; the number of entries is none.
func sysctls(s *snapshot.Snapshot) []item {
	if s.Sysctls == nil || s.PartError(snapshot.PartSysctls) != "" {
		return nil
	}
	all := []item{}
	for name, value := range s.Sysctls {
		if name != snapshot.ConntrackCount {
			all = append(all, item{name, value})
		}
	}
	sortItems(all)
	return all
}

func sortItems(all []item) {
	slices.SortFunc(all, func(a, b item) int { return strings.Compare(a.name+"\x00"+a.value, b.name+"\x00"+b.value) })
}

// natRules are by their place and words; handles are new with each load.
func natRules(s *snapshot.Snapshot) []item {
	if s.NATRules == nil {
		return nil
	}
	all := []item{}
	for i := range s.NATRules.Rules {
		r := &s.NATRules.Rules[i]
		all = append(all, item{name: r.Place() + ": " + strings.TrimSpace(ruleWords(r)+" "+r.Text)})
	}
	return all
}

// ruleWords are the conditions of a rule.
func ruleWords(r *snapshot.NATRule) string {
	words := conditionWords(&r.NATCondition)
	for i := range r.Unless {
		words = append(words, "unless ("+strings.Join(conditionWords(&r.Unless[i]), " ")+")")
	}
	for _, is := range []struct {
		so   bool
		word string
	}{{r.Marked, "marked"}, {r.OriginalDestination, "original destination"}, {r.Partial, "and other conditions"}} {
		if is.so {
			words = append(words, is.word)
		}
	}
	return strings.Join(words, " ")
}

func conditionWords(c *snapshot.NATCondition) (words []string) {
	add := func(word, value string) {
		if value != "" {
			words = append(words, word+" "+value)
		}
	}
	prefix := func(p netip.Prefix) string {
		if !p.IsValid() {
			return ""
		}
		return p.String()
	}
	add("iif", c.InInterface)
	add("oif", c.OutInterface)
	add("from", prefix(c.FromSource))
	add("to", prefix(c.ToDestination))
	if c.LocalDestination {
		words = append(words, "to this host")
	}
	add("proto", c.Protocol)
	switch {
	case c.LastDestinationPort != 0:
		add("dport", fmt.Sprintf("%d-%d", c.DestinationPort, c.LastDestinationPort))
	case c.DestinationPort != 0:
		add("dport", strconv.Itoa(int(c.DestinationPort)))
	}
	return words
}

// audited is nil where no rule translates, and there are no items then.
func audited(s *snapshot.Snapshot, of func(*snapshot.Audit) []item) []item {
	switch {
	case s.Audit != nil:
		return append([]item{}, of(s.Audit)...)
	case s.NATRules != nil && s.PartError(snapshot.PartAudit) == "":
		return []item{}
	}
	return nil
}

func refusals(s *snapshot.Snapshot) []item {
	return audited(s, func(a *snapshot.Audit) (all []item) {
		for _, r := range a.Refusals {
			all = append(all, item{r.Text, r.Why})
		}
		return all
	})
}

func iptables(s *snapshot.Snapshot) []item {
	return audited(s, func(a *snapshot.Audit) (all []item) {
		for _, t := range a.Iptables {
			all = append(all, item{strings.Join([]string{t.Program, t.Family, t.Table}, " "), fmt.Sprintf("%d translating, %d forwarding", t.Translating, t.Forwarding)})
		}
		return all
	})
}

func routes(s *snapshot.Snapshot) []item {
	return audited(s, func(a *snapshot.Audit) (all []item) {
		for _, r := range a.Beyond {
			all = append(all, item{r.Network.String(), fmt.Sprintf("via %s dev %s", r.Router, r.Interface)})
		}
		return all
	})
}

func programs(s *snapshot.Snapshot) []item {
	if s.PartError(snapshot.PartPrograms) != "" {
		return nil
	}
	all := []item{}
	if s.Programs == nil {
		return all
	}
	for _, i := range s.Programs.Interfaces {
		value := i.Mode
		if len(i.Missing) > 0 {
			value += ", missing at " + strings.Join(i.Missing, ", ")
		}
		all = append(all, item{i.Name, value})
	}
	return all
}

// interfaces are those that translate or have addresses, by Audit, and all by Links.
func interfaces(s *snapshot.Snapshot) []item {
	if s.Links == nil && s.Audit == nil {
		return nil
	}
	all := []item{}
	if s.Links != nil {
		for _, l := range s.Links.All {
			value := fmt.Sprintf("mtu %d", l.MTU)
			if l.XDPProgram != 0 {
				value += ", with an XDP program"
			}
			all = append(all, item{l.Name, value})
		}
	}
	if s.Audit != nil {
		for _, i := range s.Audit.Interfaces {
			all = append(all, item{i.Name + " addresses", interfaceWords(&i)})
		}
	}
	sortItems(all)
	return all
}

func interfaceWords(i *snapshot.Interface) string {
	words := []string{map[bool]string{true: "up", false: "down"}[i.Up]}
	for _, is := range []struct {
		so   bool
		word string
	}{{i.ForwardingOff, "forwarding off"}, {i.NoARP, "no ARP"}, {i.Bridge, "bridge"}} {
		if is.so {
			words = append(words, is.word)
		}
	}
	for _, p := range i.Addresses {
		words = append(words, p.String())
	}
	return strings.Join(words, ", ")
}

func queues(s *snapshot.Snapshot) []item {
	if s.Links == nil {
		return nil
	}
	all := []item{}
	for i := range s.Links.Queues {
		q := &s.Links.Queues[i]
		all = append(all, item{name: q.String()})
		for _, f := range q.Filters {
			all = append(all, item{name: q.String() + ": " + f.Text})
		}
	}
	return all
}

func ipvs(s *snapshot.Snapshot) []item {
	if s.PartError("ipvs") != "" {
		return nil
	}
	all := []item{}
	if s.IPVS == nil {
		return all
	}
	if t := s.IPVS.Timeouts; t != nil {
		all = append(all, item{"timeouts", fmt.Sprintf("tcp %d s, fin %d s, udp %d s", t.TCP, t.TCPFin, t.UDP)})
	}
	for _, v := range s.IPVS.Services {
		name := strings.TrimSpace(v.Protocol + " " + v.Address)
		value := v.Scheduler
		if v.Persistent {
			value += " persistent"
		}
		all = append(all, item{name, value})
		for _, r := range v.Servers {
			all = append(all, item{name + " -> " + r.Address, fmt.Sprintf("%s weight %d", r.Forward, r.Weight)})
		}
	}
	return all
}

func policies(s *snapshot.Snapshot) []item {
	if s.PartError("ipsec_policies") != "" {
		return nil
	}
	all := []item{}
	for _, p := range s.IPsecPolicies {
		all = append(all, item{name: p.Text})
	}
	return all
}

// subscribers are counted: their ids are new with each start.
func subscribers(s *snapshot.Snapshot) []item {
	if s.EventListeners == nil {
		return nil
	}
	return []item{{"sockets that subscribed to events of conntrack", strconv.Itoa(len(s.EventListeners))}}
}
