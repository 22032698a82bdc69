package ruleset

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/nat"
)

// ruleParser reads the options of one rule. What a list of addresses makes of one
// rule, several, comes last.
type ruleParser struct {
	version  int
	rule     Rule
	from, to []netip.Prefix
	words    []string
	// module is the match or target that unknown options belong to.
	module string
	target bool
	// options, of the target, are given to it at the end.
	flags   map[string]bool
	values  map[string]string
	unknown []string
}

// parseRule reads what comes after the chain. A list of addresses is several
// rules, as iptables makes of it.
func parseRule(words []string, version int, budget *Budget) ([]*Rule, error) {
	p := ruleParser{version: version, words: words, flags: map[string]bool{}, values: map[string]string{}}
	for len(p.words) > 0 {
		if err := p.option(); err != nil {
			return nil, err
		}
	}
	if err := p.finish(); err != nil {
		return nil, err
	}
	if !budget.Makes(len(orAny(p.from))*len(orAny(p.to)) - 1) {
		return nil, ErrTooMany
	}
	var all []*Rule
	for _, from := range orAny(p.from) {
		for _, to := range orAny(p.to) {
			r := p.rule
			r.Match.From, r.Match.To = Some(from), Some(to)
			all = append(all, &r)
		}
	}
	return all, nil
}

func orAny(list []netip.Prefix) []netip.Prefix {
	if len(list) == 0 {
		return []netip.Prefix{{}}
	}
	return list
}

func (p *ruleParser) next() string {
	w := p.words[0]
	p.words = p.words[1:]
	return w
}

// long are the long names of short options, and other spellings of long ones.
var long = map[string]string{
	"--source": "-s", "--src": "-s", "--destination": "-d", "--dst": "-d",
	"--in-interface": "-i", "--out-interface": "-o", "--protocol": "-p", "--proto": "-p",
	"--match": "-m", "--jump": "-j", "--goto": "-g", "--set-counters": "-c",
	"--destination-port": "--dport", "--destination-ports": "--dports",
	"--source-port": "--sport", "--source-ports": "--sports",
}

// option reads one option with its argument.
func (p *ruleParser) option() error {
	at := p.words
	w, not := p.next(), false
	if w == "!" {
		not = true
		if len(p.words) == 0 {
			return errors.New("no option comes after the exclamation mark")
		}
		at = p.words
		w = p.next()
	}
	if !strings.HasPrefix(w, "-") {
		return fmt.Errorf("%q is no option", w)
	}
	if name, value, ok := strings.Cut(w, "="); ok && strings.HasPrefix(w, "--") {
		at[0] = value // in the place of both
		w, p.words = name, at
	}
	if name, ok := long[w]; ok {
		w = name
	}
	if slices.Contains([]string{"--random", "--random-fully", "--persistent", "--notrack", "--clamp-mss-to-pmtu"}, w) {
		p.flags[w] = true
		return nil
	}
	if read := withArgument[w]; read != nil {
		if len(p.words) > 1 && p.words[0] == "!" { // as iptables wrote it before 1.4.3
			not = true
			p.next()
		}
		if len(p.words) == 0 {
			return fmt.Errorf("%s has no value", w)
		}
		return read(p, p.next(), not)
	}
	p.other(w, not)
	return nil
}

// other keeps an option that natkit has no word for, with all its arguments.
func (p *ruleParser) other(w string, not bool) {
	words := []string{w}
	if not {
		words = []string{"!", w}
	}
	for len(p.words) > 0 && p.words[0] != "!" && !strings.HasPrefix(p.words[0], "-") {
		words = append(words, p.next())
	}
	text := strings.Join(words, " ")
	if p.module != "" && !p.target {
		text = p.module + " " + text
	}
	p.unknown = append(p.unknown, text)
	if !p.target {
		p.rule.Match.Unknown = append(p.rule.Match.Unknown, text)
	} else {
		p.rule.Target.Unknown = append(p.rule.Target.Unknown, text)
	}
	p.module = ""
}

type reader func(p *ruleParser, value string, not bool) error

// withArgument is filled below: its functions refer to it.
var withArgument map[string]reader

func init() {
	value := func(name string) reader {
		return func(p *ruleParser, v string, not bool) error {
			if not || p.values[name] != "" {
				p.rule.Target.Unknown = append(p.rule.Target.Unknown, name+" "+v)
			}
			p.values[name] = v
			return nil
		}
	}
	withArgument = map[string]reader{
		"-s": (*ruleParser).source, "-d": (*ruleParser).destination,
		"-i": (*ruleParser).in, "-o": (*ruleParser).out, "-p": (*ruleParser).protocol,
		"--dport": (*ruleParser).ports, "--dports": (*ruleParser).ports,
		"--sport": (*ruleParser).sourcePorts, "--sports": (*ruleParser).sourcePorts,
		"--dst-type": (*ruleParser).dstType, "--tcp-flags": (*ruleParser).tcpFlags,
		"-m": (*ruleParser).match, "-j": (*ruleParser).jump, "-g": (*ruleParser).jumpTo,
		"--comment": func(p *ruleParser, v string, _ bool) error { p.rule.Comment = v; return nil },
		"-c":        func(p *ruleParser, _ string, _ bool) error { p.words = p.words[min(1, len(p.words)):]; return nil },
		"--to":      value("--to"), "--to-source": value("--to"), "--to-destination": value("--to"),
		"--to-ports": value("--to-ports"), "--set-mss": value("--set-mss"),
	}
}

func (p *ruleParser) source(v string, not bool) error {
	return addresses(v, not, p.version, &p.from, &p.rule.Match.NotFrom)
}

func (p *ruleParser) destination(v string, not bool) error {
	return addresses(v, not, p.version, &p.to, &p.rule.Match.NotTo)
}

func (p *ruleParser) in(v string, not bool) error {
	return named(v, not, &p.rule.Match.In, &p.rule.Match.NotIn)
}

func (p *ruleParser) out(v string, not bool) error {
	return named(v, not, &p.rule.Match.Out, &p.rule.Match.NotOut)
}

// named is an interface; one that ends in + stands for all that begin so.
func named(v string, not bool, is, isNot *[]string) error {
	if strings.HasSuffix(v, "+") {
		v = strings.TrimSuffix(v, "+") + "*"
	}
	switch {
	case strings.Contains(v, "%"):
		return fmt.Errorf("%s is not an interface, but what wg-quick puts one in for", v)
	case not:
		*isNot = append(*isNot, v)
	case v == "*": // any
	case len(*is) > 0:
		return fmt.Errorf("an interface is there twice")
	default:
		*is = []string{v}
	}
	return nil
}

func (p *ruleParser) protocol(v string, not bool) error {
	protocol, err := protocolNumber(v)
	switch {
	case err != nil:
		return err
	case not:
		p.rule.Match.Unknown = append(p.rule.Match.Unknown, "! -p "+v)
	default:
		p.rule.Match.Protocol = protocol
	}
	return nil
}

func (p *ruleParser) ports(v string, not bool) error {
	return p.portList(&p.rule.Match.Ports, "--dports", v, not)
}

func (p *ruleParser) sourcePorts(v string, not bool) error {
	return p.portList(&p.rule.Match.SourcePorts, "--sports", v, not)
}

func (p *ruleParser) portList(list *[]nat.Ports, option, v string, not bool) error {
	if not || len(*list) > 0 {
		p.rule.Match.Unknown = append(p.rule.Match.Unknown, "! "+option+" "+v)
		return nil
	}
	for _, one := range strings.Split(v, ",") {
		ports, err := parsePorts(one)
		if err != nil {
			return err
		}
		*list = append(*list, ports)
	}
	return nil
}

func (p *ruleParser) dstType(v string, not bool) error {
	if not || v != "LOCAL" {
		p.rule.Match.Unknown = append(p.rule.Match.Unknown, "--dst-type "+v)
		return nil
	}
	p.rule.Match.ToLocal = true
	return nil
}

// tcpFlags has two arguments: the flags that are looked at, and those that are set.
func (p *ruleParser) tcpFlags(mask string, not bool) error {
	if len(p.words) == 0 {
		return fmt.Errorf("--tcp-flags has one value, not two")
	}
	set := p.next()
	if !not && (mask == "SYN,RST" || mask == "RST,SYN") && set == "SYN" {
		p.rule.Match.SYN = true
		return nil
	}
	p.rule.Match.Unknown = append(p.rule.Match.Unknown, "--tcp-flags "+mask+" "+set)
	return nil
}

// match names a module. One without an option of its own is a condition too.
func (p *ruleParser) match(v string, not bool) error {
	p.target, p.module = false, ""
	switch v {
	case "tcp", "udp", "sctp", "dccp", "udplite", "multiport", "comment", "addrtype":
		return nil
	}
	p.module = "-m " + v
	if len(p.words) == 0 || !strings.HasPrefix(p.words[0], "--") && p.words[0] != "!" {
		p.rule.Match.Unknown = append(p.rule.Match.Unknown, p.module)
		p.module = ""
	}
	return nil
}

func (p *ruleParser) jump(v string, not bool) error {
	p.target, p.module = true, ""
	p.rule.Target.Name = v
	return nil
}

func (p *ruleParser) jumpTo(v string, not bool) error {
	p.rule.Target = Target{Kind: Goto, Name: v, Chains: []string{v}}
	return nil
}

// passing are targets after which the packet goes on to the next rule.
var passing = []string{"LOG", "NFLOG", "ULOG", "MARK", "CONNMARK", "CONNSECMARK", "SECMARK", "AUDIT",
	"SET", "TRACE", "CLASSIFY", "DSCP", "TOS", "TTL", "HL", "CHECKSUM", "TEE", "IDLETIMER", "LED", "RATEEST"}

var kinds = map[string]Kind{
	"": Pass, "ACCEPT": Accept, "DROP": Drop, "RETURN": Return,
	"MASQUERADE": Masquerade, "SNAT": SNAT, "DNAT": DNAT, "NETMAP": Netmap, "REDIRECT": Redirect,
	"NOTRACK": Notrack, "TCPMSS": MSS,
}

// withPorts are the protocols for which iptables takes ports.
var withPorts = []string{"tcp", "udp", "sctp", "dccp", "udplite"}

// finish makes the target of its options.
func (p *ruleParser) finish() error {
	t, m := &p.rule.Target, &p.rule.Match
	if len(m.Ports)+len(m.SourcePorts) > 0 && !nat.HasPorts(m.Protocol) {
		return fmt.Errorf("has ports without a protocol that has them")
	}
	if t.Kind == Goto {
		return nil
	}
	kind, known := kinds[t.Name]
	switch {
	case known:
		t.Kind = kind
	case t.Name == "CT" && p.flags["--notrack"]:
		t.Kind = Notrack
	case t.Name == "CT", slices.Contains(passing, t.Name):
		t.Kind = Pass
	case strings.ToUpper(t.Name) == t.Name && slices.Contains(ending, t.Name):
		t.Kind = Ends
	default:
		t.Kind, t.Chains = Jump, []string{t.Name}
	}
	t.Random, t.RandomFully, t.Persistent = p.flags["--random"], p.flags["--random-fully"], p.flags["--persistent"]
	return p.targetValues()
}

// ending are targets of iptables that natkit does not know and that may end a
// packet's way; any other name is a chain's.
var ending = []string{"REJECT", "QUEUE", "NFQUEUE", "TPROXY", "CLUSTERIP", "SAME", "BALANCE", "MIRROR",
	"SYNPROXY", "TARPIT", "DELUDE", "RAWDNAT", "RAWSNAT", "DNPT", "SNPT", "FULLCONENAT"}

// targetValues reads the values of the target's options.
func (p *ruleParser) targetValues() (err error) {
	t, to := &p.rule.Target, p.values["--to"]
	switch t.Kind {
	case SNAT, DNAT:
		if to == "" {
			return fmt.Errorf("%s has no address to give", t.Name)
		}
		err = t.addresses(to, p.version)
	case Netmap:
		err = t.netmap(to, p.version)
	case Masquerade, Redirect:
		if v := p.values["--to-ports"]; v != "" {
			t.Ports, err = givenPorts(v)
		}
	case MSS:
		t.Clamp = p.flags["--clamp-mss-to-pmtu"]
		if v := p.values["--set-mss"]; v != "" {
			n, bad := strconv.ParseUint(v, 0, 16)
			t.Bytes = uint16(n)
			err = bad
		}
		if t.Clamp == (t.Bytes != 0) {
			err = fmt.Errorf("TCPMSS takes either --clamp-mss-to-pmtu or --set-mss")
		}
	}
	return err
}

// netmap reads the prefix that NETMAP gives.
func (t *Target) netmap(to string, version int) error {
	p, err := parsePrefix(to)
	if err == nil && p.Addr().Is4() != (version == 4) {
		err = fmt.Errorf("%s is not an address of IPv%d", to, version)
	}
	t.First, t.Last = p.Addr(), nat.LastAddr(p)
	return err
}

// addresses reads 203.0.113.7, 203.0.113.7-203.0.113.9:1024-65535, :80, [fd00::1]:80.
func (t *Target) addresses(v string, version int) error {
	addrs, ports := v, ""
	if version == 4 {
		addrs, ports, _ = strings.Cut(v, ":")
	} else if inner, ok := strings.CutPrefix(v, "["); ok {
		addrs, ports, ok = strings.Cut(inner, "]")
		if !ok {
			return fmt.Errorf("%q: the bracket is not closed", v)
		}
		ports = strings.TrimPrefix(ports, ":")
	}
	if addrs != "" {
		first, last, ranged := strings.Cut(addrs, "-")
		if !ranged {
			last = first
		}
		var err error
		if t.First, err = parseAddress(first, version); err != nil {
			return err
		}
		if t.Last, err = parseAddress(last, version); err != nil {
			return err
		}
		if t.Last.Less(t.First) {
			return fmt.Errorf("%q ends before it begins", v)
		}
	}
	if ports == "" {
		return nil
	}
	ports, base, shifted := strings.Cut(ports, "/")
	if shifted { // by as much as the port asked for differs from the base
		t.Unknown = append(t.Unknown, "ports that are shifted")
		if _, err := parsePort(base); err != nil {
			return err
		}
	}
	var err error
	t.Ports, err = givenPorts(ports)
	return err
}

func parseAddress(s string, version int) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil || a.Is4() != (version == 4) || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q is not an address of IPv%d", s, version)
	}
	return a, nil
}

// givenPorts reads 80 and 1024-65535.
func givenPorts(s string) (nat.Ports, error) {
	low, high, both := strings.Cut(s, "-")
	if !both {
		high = low
	}
	first, err := parsePort(low)
	if err != nil {
		return nat.Ports{}, err
	}
	last, err := parsePort(high)
	if err == nil && (last < first || first == 0) {
		err = fmt.Errorf("the ports %s are no range", s)
	}
	return nat.Ports{First: first, Last: last}, err
}
