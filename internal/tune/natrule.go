package tune

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/snapshot"
)

// NATOptions are what changes of kind NATRule change: the value that stands in their
// Before and After.
type NATOptions = ruleset.Options

// ParseNATOptions reads such a value; the words' order does not matter.
func ParseNATOptions(s string) (NATOptions, error) { return ruleset.ParseOptions(s) }

// NATOptionsOf are a rule's.
func NATOptionsOf(r *snapshot.NATRule) NATOptions {
	return NATOptions{FirstPort: r.FirstPort, LastPort: r.LastPort, Random: r.Random, FullyRandom: r.FullyRandom, Persistent: r.Persistent}
}

// NATRuleChange is the change that gives a rule these ports and options, for
// instance fully-random: take NATOptionsOf the rule and set FullyRandom. It is
// only for rules that have a Target. Cost and Risk are Assess'.
func NATRuleChange(r *snapshot.NATRule, after NATOptions) Change {
	return Change{Kind: NATRule, Target: r.Target, Before: NATOptionsOf(r).String(), After: after.String()}
}

// ParseNATAssignment reads "TARGET=1024-65535 fully-random".
func ParseNATAssignment(s string) (target string, o NATOptions, err error) {
	i := strings.LastIndexByte(s, '=') // names in a target may have one
	if i < 0 {
		return "", o, fmt.Errorf("setting %q: expected TARGET=OPTIONS, such as %q", s, s+"=fully-random")
	}
	target = s[:i]
	if _, err = ruleset.ParseID(target); err == nil {
		o, err = ParseNATOptions(s[i+1:])
	}
	return target, o, err
}

func (c Change) validateNATRule() error {
	if _, err := ruleset.ParseID(c.Target); err != nil {
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

// Kinds of gateway plans (package gateway).
const (
	// Gateway puts a plan in force in natkit's own table of a network namespace.
	// Target is GatewayTarget's, the value GatewayNone or the plan's digest, by which
	// internal/gateway/store knows it.
	Gateway Kind = "gateway"
	// GatewayFile is the file that `natkit gateway run` reads at boot. Target is
	// GatewayFileTarget, the value the digest of its text; empty where there is none.
	GatewayFile Kind = "gateway-file"
)

const (
	// GatewayNone is the value where natkit has no table.
	GatewayNone = "none"
	// GatewayForeign is read where the table is not one that natkit made.
	GatewayForeign = "foreign"
	// gatewayChanged stands behind the digest of a table that somebody changed.
	gatewayChanged = " changed"
	// GatewayFileTarget is the only Target of kind GatewayFile.
	GatewayFileTarget = "configuration"

	gatewayTable = "inet natkit"
)

// digestPattern: see gateway.Digest.
var digestPattern = regexp.MustCompile(`^[0-9a-f]{32,128}$`)

// IsDigest tells the digest of a plan or a text from other values.
func IsDigest(s string) bool { return digestPattern.MatchString(s) }

// GatewayTarget names natkit's table in the network namespace of an inode.
func GatewayTarget(inode uint64) string { return fmt.Sprintf("netns %d %s", inode, gatewayTable) }

// ParseGatewayTarget is the inode of the namespace that a target names.
func ParseGatewayTarget(target string) (inode uint64, err error) {
	number, ok := strings.CutPrefix(target, "netns ")
	number, isTable := strings.CutSuffix(number, " "+gatewayTable)
	if !ok || !isTable {
		return 0, fmt.Errorf("gateway %q: expected netns INODE %s", target, gatewayTable)
	}
	inode, err = strconv.ParseUint(number, 10, 64)
	if err != nil || GatewayTarget(inode) != target {
		return 0, fmt.Errorf("gateway %q: %q is not the inode of a network namespace", target, number)
	}
	return inode, nil
}

// GatewayChanged is the value of a table that natkit made for a plan and that
// somebody has changed since. Put back, it is the plan as natkit wrote it.
func GatewayChanged(digest string) string { return digest + gatewayChanged }

// GatewayDigest is the digest in a value of kind Gateway; empty where it has none.
// changed is true where the table is no longer as natkit wrote it.
func GatewayDigest(value string) (digest string, changed bool) {
	digest, changed = strings.CutSuffix(value, gatewayChanged)
	if !IsDigest(digest) {
		return "", changed
	}
	return digest, changed
}

// validateGateway lets only the plan before have been changed by somebody.
func (c Change) validateGateway() error {
	if _, err := ParseGatewayTarget(c.Target); err != nil {
		return err
	}
	before, _ := GatewayDigest(c.Before)
	if before == "" && c.Before != GatewayNone {
		return fmt.Errorf("gateway %s: value %q is neither %s nor the digest of a plan", c.Target, c.Before, GatewayNone)
	}
	if c.After != GatewayNone && !IsDigest(c.After) {
		return fmt.Errorf("gateway %s: value %q is neither %s nor the digest of a plan", c.Target, c.After, GatewayNone)
	}
	return nil
}

func (c Change) validateGatewayFile() error {
	if c.Target != GatewayFileTarget {
		return fmt.Errorf("gateway file %q: expected %s", c.Target, GatewayFileTarget)
	}
	for _, v := range []string{c.Before, c.After} {
		if v != "" && !IsDigest(v) {
			return fmt.Errorf("gateway file: value %q is not the digest of a text", v)
		}
	}
	return nil
}

// Follows reports whether the change begins with the value that another one wrote. A
// gateway that somebody changed by hand in between is put back as it was written.
func (c Change) Follows(value string) bool {
	if c.Kind == Gateway {
		digest, _ := GatewayDigest(c.Before)
		return c.Before == value || digest != "" && digest == value
	}
	return SameValue(c.Before, value)
}
