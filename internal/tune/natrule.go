package tune

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
)

// NATOptions are what a change of kind NATRule changes: the value that stands in
// its Before and After. The zero value is a rule without ports and options.
type NATOptions struct {
	// FirstPort and LastPort bound the ports; 0 leaves them to the kernel.
	FirstPort, LastPort uint16
	// Random, FullyRandom and Persistent are NF_NAT_RANGE_PROTO_RANDOM,
	// NF_NAT_RANGE_PROTO_RANDOM_FULLY and NF_NAT_RANGE_PERSISTENT.
	Random, FullyRandom, Persistent bool
}

// NATOptionsOf are a rule's.
func NATOptionsOf(r *snapshot.NATRule) NATOptions {
	return NATOptions{r.FirstPort, r.LastPort, r.Random, r.FullyRandom, r.Persistent}
}

// NATRuleChange is the change that gives a rule these ports and options, for
// instance fully-random: take NATOptionsOf the rule and set FullyRandom. It is
// only for rules that have a Target. Cost and Risk are Assess'.
func NATRuleChange(r *snapshot.NATRule, after NATOptions) Change {
	return Change{Kind: NATRule, Target: r.Target, Before: NATOptionsOf(r).String(), After: after.String()}
}

// String is the value: "1024-65535 fully-random", "fully-random", "".
func (o NATOptions) String() string {
	var words []string
	switch {
	case o.FirstPort == 0:
	case o.FirstPort == o.LastPort:
		words = append(words, fmt.Sprint(o.FirstPort))
	default:
		words = append(words, fmt.Sprintf("%d-%d", o.FirstPort, o.LastPort))
	}
	for _, w := range []struct {
		on   bool
		word string
	}{{o.Random, "random"}, {o.FullyRandom, "fully-random"}, {o.Persistent, "persistent"}} {
		if w.on {
			words = append(words, w.word)
		}
	}
	return strings.Join(words, " ")
}

// ParseNATOptions reads such a value; the words' order does not matter.
func ParseNATOptions(s string) (NATOptions, error) {
	var o NATOptions
	for _, word := range strings.Fields(s) {
		if err := o.set(word); err != nil {
			return NATOptions{}, fmt.Errorf("options of a NAT rule %q: %w", s, err)
		}
	}
	return o, nil
}

func (o *NATOptions) set(word string) error {
	flag := map[string]*bool{"random": &o.Random, "fully-random": &o.FullyRandom, "persistent": &o.Persistent}[word]
	switch {
	case flag != nil && *flag:
		return fmt.Errorf("%s stands twice", word)
	case flag != nil:
		*flag = true
		return nil
	case o.FirstPort != 0:
		return fmt.Errorf("%q: expected one port or range, and random, fully-random, persistent", word)
	}
	low, high, isRange := strings.Cut(word, "-")
	if !isRange {
		high = low
	}
	first, err := port(low)
	if err != nil {
		return fmt.Errorf("%q: expected ports such as 1024-65535, random, fully-random or persistent", word)
	}
	last, err := port(high)
	if err != nil || last < first {
		return fmt.Errorf("%q: expected ports such as 1024-65535", word)
	}
	o.FirstPort, o.LastPort = first, last
	return nil
}

func port(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err == nil && n == 0 {
		err = errors.New("there is no port 0")
	}
	return uint16(n), err
}

// NATTarget is what a Target of kind NATRule names.
type NATTarget struct {
	// Netns is the inode of the network namespace.
	Netns uint64
	// Rule is the target itself, which a rule of that namespace has.
	Rule string
	// Place is "ip nat POSTROUTING", for messages.
	Place string
}

// ParseNATTarget reads "netns 4026532290 ip nat POSTROUTING 5f3a9c01": the
// namespace, the place, and a hash over what ports and options do not change; of
// rules of a chain that are alike the second that was made has "#2" behind it.
func ParseNATTarget(target string) (NATTarget, error) {
	f := strings.Fields(target)
	if len(f) != 6 || f[0] != "netns" || strings.Join(f, " ") != target {
		return NATTarget{}, fmt.Errorf("NAT rule %q: expected netns INODE FAMILY TABLE CHAIN HASH", target)
	}
	inode, err := strconv.ParseUint(f[1], 10, 64)
	if err != nil {
		return NATTarget{}, fmt.Errorf("NAT rule %q: %q is not the inode of a network namespace", target, f[1])
	}
	return NATTarget{Netns: inode, Rule: target, Place: strings.Join(f[2:5], " ")}, nil
}

// ParseNATAssignment reads "TARGET=1024-65535 fully-random".
func ParseNATAssignment(s string) (target string, o NATOptions, err error) {
	i := strings.LastIndexByte(s, '=') // names in a target may have one
	if i < 0 {
		return "", o, fmt.Errorf("setting %q: expected TARGET=OPTIONS, such as %q", s, s+"=fully-random")
	}
	target = s[:i]
	if _, err = ParseNATTarget(target); err == nil {
		o, err = ParseNATOptions(s[i+1:])
	}
	return target, o, err
}

func (c Change) validateNATRule() error {
	if _, err := ParseNATTarget(c.Target); err != nil {
		return err
	}
	for _, v := range []string{c.Before, c.After} {
		o, err := ParseNATOptions(v)
		if err != nil {
			return err
		}
		if o.String() != v {
			return fmt.Errorf("options of a NAT rule %q: expected the form %q", v, o.String())
		}
	}
	return nil
}

// changeNATRule says what the change of a rule's ports and options does.
func changeNATRule(c Change) (cost, risk string) {
	before, errBefore := ParseNATOptions(c.Before)
	after, errAfter := ParseNATOptions(c.After)
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
	if w := fewer(before, after); w != "" {
		risks = append(risks, w)
	}
	risks = append(risks, "holds for new connections only, and until the rules are loaded anew",
		"the program that made the rule (Docker, kube-proxy, firewalld) may not recognise it afterwards and add its own again")
	return cost, joinRisks(risks...)
}

// NATRuleByHand says what to write into the file from which the rules come, which
// natkit does not know. It also tells how to change a rule without a Target.
func NATRuleByHand(c Change) string {
	o, err := ParseNATOptions(c.After)
	if err != nil {
		return err.Error()
	}
	var nft, iptables []string
	for _, w := range []struct {
		on            bool
		nft, iptables string
	}{{o.Random, "random", " --random"}, {o.FullyRandom, "fully-random", " --random-fully"}, {o.Persistent, "persistent", " --persistent"}} {
		if w.on {
			nft, iptables = append(nft, w.nft), append(iptables, w.iptables)
		}
	}
	ports := NATOptions{FirstPort: o.FirstPort, LastPort: o.LastPort}.String()
	colon, to, toPorts := "", "", ""
	if ports != "" {
		colon, to, toPorts = ":"+ports, " to :"+ports, " --to-ports "+ports
	}
	flags, options := "", strings.Join(iptables, "")
	if len(nft) > 0 {
		flags = " " + strings.Join(nft, ",")
	}
	return fmt.Sprintf("in the file that loads the ruleset, write 'masquerade%s%s' or 'snat to ADDRESS%s%s' (nft), '-j MASQUERADE%s%s' or '-j SNAT --to-source ADDRESS%s%s' (iptables)",
		to, flags, colon, flags, toPorts, options, colon, options)
}

// fewer says that there are fewer ports than before.
func fewer(before, after NATOptions) string {
	size := func(o NATOptions) int {
		if o.FirstPort == 0 {
			return 1 << 16
		}
		return int(o.LastPort) - int(o.FirstPort) + 1
	}
	if size(after) >= size(before) {
		return ""
	}
	return fmt.Sprintf("only %d ports for each destination: more connections than that to one fail", size(after))
}
