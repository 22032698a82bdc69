package diagnose

import (
	"cmp"
	"fmt"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// checkForwarding: rules translate what this machine should forward, and it does not.
func checkForwarding(rec *snapshot.Recording) (*Finding, Check) {
	last := rec.Last()
	if last.NATRules == nil {
		return unknown(cmp.Or(last.PartError("nat_rules"), "the NAT rules were not read"))
	}
	off := map[string][]int{}
	var names []string
	if last.DNATTargets != nil {
		for _, t := range last.DNATTargets.Targets {
			if t.NotForwarded != "" && t.Rule >= 0 && t.Rule < len(last.NATRules.Rules) {
				names = once(names, t.NotForwarded)
				off[t.NotForwarded] = append(off[t.NotForwarded], t.Rule)
				if name := confForwarding(t.Interface); last.Audit != nil && last.Audit.Interface(t.Interface) != nil && last.Audit.Interface(t.Interface).ForwardingOff && t.Address.Is4() {
					names = once(names, name) // answers come in by it
					off[name] = append(off[name], t.Rule)
				}
			}
		}
	}
	if v, known := last.Sysctls.Int(ipForward); known && v == 0 && len(names) == 0 && refusedToForward(rec) > 0 {
		for i := range last.NATRules.Rules {
			if r := &last.NATRules.Rules[i]; r.TranslatesSource() && r.Family != "ip6" {
				names = once(names, ipForward)
				off[ipForward] = append(off[ipForward], i)
			}
		}
	}
	forwards, known := last.Sysctls.Int(ipForward)
	switch {
	case len(last.NATRules.Rules) == 0:
		return passed("no rule translates addresses")
	case len(names) == 0 && !known && rec.SomeSysctls:
		return unknown(ipForward + " is not among the sysctls that were read")
	case len(names) == 0 && known && forwards == 0 && rec.SomeSysctls && last.TCP == nil:
		return unknown(ipForward + " is 0; whether packets come that are to be forwarded is not known: the counters of IP are missing")
	case len(names) == 0:
		return passed("what rules translate is forwarded")
	}
	f := worded("forwarding-off", nil, nil, names[0])
	grown := last.NATRules.Grown(rec.First().NATRules)
	for _, name := range names {
		f.Evidence = append(f.Evidence, Evidence{What: name, Value: int64(0), Source: "sysctl"})
		packets := uint64(0)
		for n, i := range off[name] {
			r := &last.NATRules.Rules[i]
			packets += grown[i]
			if n < mostShown {
				f.Evidence = append(f.Evidence, Evidence{What: "a rule that needs it", Value: r.Place() + ": " + r.Text, Source: "NAT rules by netlink"})
			}
		}
		if packets > 0 {
			f.Severity = Critical
			f.Evidence = append(f.Evidence, Evidence{What: "first packets that these rules translated", Value: int64(packets), Unit: "packets", Source: "counters of the rules"})
		}
		f.Remedies = append(f.Remedies, advice("forward", settable(name), where(rec)))
	}
	if n := refusedToForward(rec); n > 0 {
		f.Severity = Critical
		f.Evidence = append(f.Evidence, Evidence{What: "packets for others that this host did not forward, among others", Value: n, Unit: "packets", Source: "IpInAddrErrors"})
	}
	return f, Check{Why: fmt.Sprintf("%s what is not forwarded", units.Plural(int64(len(off[names[0]])), "rule translates", "rules translate"))}
}

const ipForward = "net.ipv4.ip_forward"

// refusedToForward is what ip_error counted between the samples: packets for others where
// forwarding is off, and those whose source cannot be.
func refusedToForward(rec *snapshot.Recording) int64 {
	now, before := rec.Last().TCP, rec.First().TCP
	if now == nil || before == nil {
		return 0
	}
	n, _ := now.Counters.Delta(before.Counters, "IpInAddrErrors")
	return int64(n)
}
