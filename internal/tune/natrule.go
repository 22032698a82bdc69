package tune

import (
	"fmt"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
)

// NATOptionsOf are a rule's ports and options: the value in Before and After of changes of
// kind NATRule.
func NATOptionsOf(r *snapshot.NATRule) nat.Options {
	return nat.Options{Ports: nat.Ports{First: r.FirstPort, Last: r.LastPort}, Random: r.Random, FullyRandom: r.FullyRandom, Persistent: r.Persistent}
}

// NATRuleChange is the change that gives a rule these ports and options, for
// instance fully-random: take NATOptionsOf the rule and set FullyRandom. It is
// only for rules that have a Target. Cost and Risk are Assess'.
func NATRuleChange(r *snapshot.NATRule, after nat.Options) Change {
	return Change{Kind: NATRule, Target: r.Target, Before: NATOptionsOf(r).String(), After: after.String()}
}

// ParseNATAssignment reads "TARGET=1024-65535 fully-random".
func ParseNATAssignment(s string) (target string, o nat.Options, err error) {
	i := strings.LastIndexByte(s, '=') // names in a target may have one
	if i < 0 {
		return "", o, fmt.Errorf("setting %q: expected TARGET=OPTIONS, such as %q", s, s+"=fully-random")
	}
	target = s[:i]
	if _, err = nat.ParseRuleID(target); err == nil {
		o, err = nat.ParseOptions(s[i+1:])
	}
	return target, o, err
}

func (c Change) validateNATRule() error {
	if _, err := nat.ParseRuleID(c.Target); err != nil {
		return err
	}
	for _, v := range []string{c.Before, c.After} {
		o, err := nat.ParseOptions(v)
		if err != nil {
			return err
		}
		if o.String() != v {
			return fmt.Errorf("options of a NAT rule %q: expected the form %q", v, o.String())
		}
	}
	return nil
}

// changeNATRule describes the change of a rule's ports and options.
func changeNATRule(c Change) (cost, risk string) {
	before, errBefore := nat.ParseOptions(c.Before)
	after, errAfter := nat.ParseOptions(c.After)
	if errBefore != nil || errAfter != nil || before == after {
		return "", ""
	}
	risks := []string{}
	if after.FullyRandom && !before.FullyRandom {
		cost = "every new connection gets a random port: a source port is no longer kept where it is free"
		risks = append(risks, "peers and programs that rely on an unchanged source port lose it",
			"kernels before 5.7 had a checksum bug with VXLAN where packets are translated twice")
	}
	if before.FullyRandom && !after.FullyRandom {
		risks = append(risks, "connections that begin at the same moment may choose the same port again, and one is lost (insert_failed)")
	}
	if w := otherPorts(before, after); w != "" {
		risks = append(risks, w)
	}
	risks = append(risks, "holds for new connections only, and until the rules are loaded anew",
		"the program that made the rule (Docker, kube-proxy, firewalld) may not recognise it afterwards and add its own again")
	return cost, joinRisks(risks...)
}

// NATRuleByHand returns what to write into the file that the rules come from, which
// natkit does not know. It also explains how to change a rule without a Target.
func NATRuleByHand(c Change) string {
	o, err := nat.ParseOptions(c.After)
	if err != nil {
		return err.Error()
	}
	nft, iptables := o.Words()
	ports := o.Ports.String()
	colon, to, toPorts := "", "", ""
	if ports != "" {
		colon, to, toPorts = ":"+ports, " to :"+ports, " --to-ports "+ports
	}
	flags, options := "", strings.Join(append([]string{""}, iptables...), " ")
	if len(nft) > 0 {
		flags = " " + strings.Join(nft, ",")
	}
	return fmt.Sprintf("in the file that loads the ruleset, write 'masquerade%s%s' or 'snat to ADDRESS%s%s' (nft), '-j MASQUERADE%s%s' or '-j SNAT --to-source ADDRESS%s%s' (iptables)",
		to, flags, colon, flags, toPorts, options, colon, options)
}

// RiskOfMorePorts is that of a rule that takes more ports than before.
const RiskOfMorePorts = "where another host has other ports of the same address, answers to them go wrong; a firewall outside may let only the old range through"

// otherPorts returns the risk of more or fewer ports than before.
func otherPorts(before, after nat.Options) string {
	size := func(o nat.Options) int {
		if o.Ports == (nat.Ports{}) {
			return 1 << 16
		}
		return o.Ports.Len()
	}
	switch n := size(after) - size(before); {
	case n > 0:
		return RiskOfMorePorts
	case n == 0:
		return ""
	}
	return fmt.Sprintf("only %d ports for each destination: more connections than that to one fail", size(after))
}
