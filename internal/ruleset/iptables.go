package ruleset

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/nat"
)

// optionParser reads the options of one rule of iptables.
type optionParser struct {
	textRule
	// module is the match or target that unknown options belong to.
	module string
	target bool
	// values are of options of the target, which are given to it at the end.
	values map[string]string
	// clock are the options of the match time.
	clock clockOptions
}

// parseRule reads what comes after the chain. A list of addresses makes several rules, as
// in iptables.
func parseRule(words []string, version int, budget *Budget) ([]*Rule, error) {
	p := optionParser{textRule: textRule{words: words, version: version, budget: budget}, values: map[string]string{}}
	for len(p.words) > 0 {
		if err := p.option(); err != nil {
			return nil, err
		}
	}
	if err := p.finish(); err != nil {
		return nil, err
	}
	return p.all()
}

// long are the long names of short options, and other spellings of long ones.
var long = map[string]string{
	"--source": "-s", "--src": "-s", "--destination": "-d", "--dst": "-d",
	"--in-interface": "-i", "--out-interface": "-o", "--protocol": "-p", "--proto": "-p",
	"--match": "-m", "--jump": "-j", "--goto": "-g", "--set-counters": "-c",
	"--destination-port": "--dport", "--destination-ports": "--dport", "--dports": "--dport",
	"--source-port": "--sport", "--source-ports": "--sport", "--sports": "--sport",
	"--to-source": "--to", "--to-destination": "--to",
}

// option reads one option with its argument.
func (p *optionParser) option() error {
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
	read := withArgument[w]
	switch {
	case strings.HasPrefix(w, "--") && p.rule.Target.Set(w):
		return nil
	case w == "--notrack" || w == "--clamp-mss-to-pmtu":
		p.values[w] = "on"
		return nil
	case (w == "--utc" || w == "--contiguous") && p.module == "-m time":
		if p.clock.asked = true; w == "--contiguous" {
			p.unknown("-m time --contiguous")
		}
		return nil
	case read == nil:
		p.other(w, not)
		return nil
	}
	if len(p.words) > 1 && p.words[0] == "!" { // as iptables wrote it before 1.4.3
		not = true
		p.next()
	}
	if len(p.words) == 0 {
		return fmt.Errorf("%s has no value", w)
	}
	return read(p, p.next(), not)
}

// other keeps an option that natkit has no word for, with all its arguments.
func (p *optionParser) other(w string, not bool) {
	words := []string{w}
	if not {
		words = []string{"!", w}
	}
	for len(p.words) > 0 && p.words[0] != "!" && !strings.HasPrefix(p.words[0], "-") {
		words = append(words, p.next())
	}
	text := strings.Join(words, " ")
	if p.target {
		p.rule.Target.Unknown = append(p.rule.Target.Unknown, text)
	} else {
		p.unknown(strings.TrimSpace(p.module + " " + text))
	}
	p.module = ""
}

type optionReader func(p *optionParser, value string, not bool) error

// withArgument is filled below: its functions refer to it.
var withArgument map[string]optionReader

func init() {
	list := func(take func(r *textRule, texts []string, not bool) error) optionReader {
		return func(p *optionParser, v string, not bool) error { return take(&p.textRule, strings.Split(v, ","), not) }
	}
	name := func(take func(r *textRule, names []string, not bool) error) optionReader {
		return func(p *optionParser, v string, not bool) error {
			if begin, ok := strings.CutSuffix(v, "+"); ok {
				v = begin + "*"
			}
			switch {
			case strings.Contains(v, "%"):
				return fmt.Errorf("%s is not an interface, but what wg-quick puts one in for", v)
			case v == "*" && !not: // any
				return nil
			}
			return take(&p.textRule, []string{v}, not)
		}
	}
	value := func(name string) optionReader {
		return func(p *optionParser, v string, not bool) error {
			if not || p.values[name] != "" {
				p.rule.Target.Unknown = append(p.rule.Target.Unknown, name+" "+v)
			}
			p.values[name] = v
			return nil
		}
	}
	clock := func(take func(o *clockOptions, v string, not bool)) optionReader {
		return func(p *optionParser, v string, not bool) error {
			take(&p.clock, v, not)
			p.clock.asked = true
			return nil
		}
	}
	withArgument = map[string]optionReader{
		"-s": list((*textRule).source), "-d": list((*textRule).destination), "-p": list((*textRule).protocol),
		"--dport": list((*textRule).ports), "--sport": list((*textRule).sourcePorts),
		"-i": name((*textRule).inward), "-o": name((*textRule).outward),
		"--dst-type": (*optionParser).dstType, "--tcp-flags": (*optionParser).tcpFlags,
		"--mark": (*optionParser).mark, "--uid-owner": ownedBy(false), "--gid-owner": ownedBy(true),
		"--mode": (*optionParser).ofStatistic, "--packet": (*optionParser).ofStatistic, "--probability": (*optionParser).probability, "--every": (*optionParser).every,
		"--dscp": (*optionParser).dscp, "--dscp-class": (*optionParser).dscp,
		"--ctstate": (*optionParser).state, "--state": (*optionParser).state,
		"--src-range": list((*textRule).source), "--dst-range": list((*textRule).destination),
		"--timestart": clock(func(o *clockOptions, v string, _ bool) { o.start = v }), "--timestop": clock(func(o *clockOptions, v string, _ bool) { o.stop = v }),
		"--weekdays": clock(func(o *clockOptions, v string, not bool) { o.days, o.notDays = v, not }),
		"--datestop": (*optionParser).dateStop,
		"-m":         (*optionParser).match, "-j": (*optionParser).jump, "-g": (*optionParser).jump,
		"--comment": func(p *optionParser, v string, _ bool) error { p.rule.Comment = v; return nil },
		"-c":        func(p *optionParser, _ string, _ bool) error { p.words = p.words[min(1, len(p.words)):]; return nil },
		"--to":      value("--to"), "--to-ports": value("--to-ports"), "--set-mss": value("--set-mss"),
	}
	jump := withArgument["-j"]
	withArgument["-g"] = func(p *optionParser, v string, not bool) error {
		p.rule.Target = Target{Kind: Goto, Chains: []string{v}}
		return jump(p, v, not)
	}
}

// mark is a mark of the packet, or of the connection.
func (p *optionParser) mark(v string, not bool) error {
	k, err := parseMark(v)
	c := MarkCondition{Connection: p.module == "-m connmark", Value: k.Value, Mask: k.Mask, Not: not}
	p.rule.Match.asks(c, strings.TrimSpace(p.module+" "+notText(not)+"--mark "+v))
	p.rule.Match.Marked = true
	return err
}

// ownedBy is the user or the group of the program that sends a packet.
func ownedBy(group bool) optionReader {
	return func(p *optionParser, v string, not bool) error {
		ids, ok := parseIDs(v)
		option := "-m owner " + notText(not) + map[bool]string{false: "--uid-owner ", true: "--gid-owner "}[group] + v
		if !ok {
			p.unknown(option + ", a name: iptables-save prints its number")
			return nil
		}
		p.rule.Match.asks(OwnerCondition{[]nat.IDs{ids}, group, not, not}, option)
		return nil
	}
}

// ofStatistic is an option that says no more of how many packets meet a rule.
func (p *optionParser) ofStatistic(v string, not bool) error {
	p.share(0, not)
	return nil
}

// probability is the share of packets that meet a rule by chance.
func (p *optionParser) probability(v string, not bool) error {
	f, err := strconv.ParseFloat(v, 64)
	if err != nil || f < 0 || f > 1 {
		return fmt.Errorf("%q is not a probability", v)
	}
	p.share(uint32(f*(1<<31)), not)
	return nil
}

// every is one of so many packets, in turn.
func (p *optionParser) every(v string, not bool) error {
	n, err := strconv.ParseUint(v, 10, 31)
	if err != nil || n == 0 {
		return fmt.Errorf("%q is not a number of packets", v)
	}
	p.share(uint32(1<<31/n), not)
	return nil
}

func (p *optionParser) share(n uint32, not bool) {
	m := &p.rule.Match
	m.note("-m statistic")
	m.Part, m.Random, m.Share = true, true, max(m.Share, n)
	if not || m.Share == 0 && p.module != "-m statistic" {
		p.unknown("-m statistic !")
	}
}

// dateStop is the last date; iptables-save prints the last one that the kernel's field holds, too.
func (p *optionParser) dateStop(v string, not bool) error {
	if p.clock.asked = true; not || v != "2038-01-19T03:14:07" {
		p.unknown("-m time --datestop " + v)
	}
	return nil
}

func (p *optionParser) dscp(v string, not bool) error {
	point, err := nat.ParseDSCP(v)
	p.rule.Match.asks(DSCPCondition{[]uint8{point}, not}, "-m dscp "+notText(not)+v)
	return err
}

// states are those of connections in the words of iptables and nft.
var states = map[string]ConnBits{
	"INVALID": ConnInvalid, "ESTABLISHED": ConnEstablished, "RELATED": ConnRelated, "NEW": ConnNew, "UNTRACKED": ConnUntracked,
	"SNAT": ConnSNAT, "DNAT": ConnDNAT,
}

func (p *optionParser) state(v string, not bool) error {
	return p.states(strings.Split(v, ","), not, strings.TrimSpace("-m conntrack "+notText(not)+"--ctstate "+v))
}

func (p *optionParser) dstType(v string, not bool) error {
	if not || v != "LOCAL" {
		p.unknown("--dst-type " + v)
		return nil
	}
	p.rule.Match.ToLocal = true
	return nil
}

// tcpFlags has two arguments: the flags that are examined, and those that are set.
func (p *optionParser) tcpFlags(mask string, not bool) error {
	if len(p.words) == 0 {
		return fmt.Errorf("--tcp-flags has one value, not two")
	}
	set := p.next()
	if !not && (mask == "SYN,RST" || mask == "RST,SYN") && set == "SYN" {
		p.rule.Match.SYN = true
		return nil
	}
	p.unknown("--tcp-flags " + mask + " " + set)
	return nil
}

// match names a module. One without an option of its own is a condition too.
func (p *optionParser) match(v string, _ bool) error {
	p.target, p.module = false, ""
	switch v {
	case "tcp", "udp", "sctp", "dccp", "udplite", "multiport", "comment", "addrtype":
		return nil
	}
	p.module = "-m " + v
	if len(p.words) == 0 || !strings.HasPrefix(p.words[0], "--") && p.words[0] != "!" {
		p.unknown(p.module)
		p.module = ""
	}
	return nil
}

func (p *optionParser) jump(v string, _ bool) error {
	p.target, p.module = true, ""
	p.rule.Target.Name = v
	return nil
}

// kinds are the targets of iptables. After those that pass, the packet goes on to the next
// rule; those that end are unknown and may end its way. Any other name is a chain's.
var kinds = map[string]Kind{
	"": Pass, "ACCEPT": Accept, "DROP": Drop, "RETURN": Return,
	"MASQUERADE": Masquerade, "SNAT": SNAT, "DNAT": DNAT, "NETMAP": Netmap, "REDIRECT": Redirect,
	"NOTRACK": Notrack, "TCPMSS": MSS, "CT": Pass,
}

func init() {
	for kind, names := range map[Kind]string{
		Pass: "LOG NFLOG ULOG MARK CONNMARK CONNSECMARK SECMARK AUDIT SET TRACE CLASSIFY DSCP TOS TTL HL CHECKSUM TEE IDLETIMER LED RATEEST",
		Ends: "REJECT QUEUE NFQUEUE TPROXY CLUSTERIP SAME BALANCE MIRROR SYNPROXY TARPIT DELUDE RAWDNAT RAWSNAT DNPT SNPT FULLCONENAT",
	} {
		for _, name := range strings.Fields(names) {
			kinds[name] = kind
		}
	}
}

// withPorts are the protocols for which iptables and nft take ports.
var withPorts = []string{"tcp", "udp", "sctp", "dccp", "udplite"}

// finish makes the target of its options.
func (p *optionParser) finish() (err error) {
	t := &p.rule.Target
	if p.clock.asked {
		is, not, err := p.clock.condition()
		if err != nil {
			return err
		}
		p.rule.Match.times(is, "-m time")
		if not.Not {
			p.rule.Match.times(not, "-m time ! --weekdays "+p.clock.days)
		}
	}
	if t.Kind == Goto {
		return nil
	}
	kind, known := kinds[t.Name]
	switch {
	case t.Name == "CT" && p.values["--notrack"] != "":
		t.Kind = Notrack
	case known:
		t.Kind = kind
	default:
		t.Kind, t.Chains = Jump, []string{t.Name}
	}
	switch to, ports := p.values["--to"], p.values["--to-ports"]; {
	case (t.Kind == SNAT || t.Kind == DNAT) && to == "":
		err = fmt.Errorf("%s has no address to give", t.Name)
	case t.Kind == SNAT || t.Kind == DNAT:
		err = t.addresses(to, p.version)
	case t.Kind == Netmap:
		err = t.netmap(to, p.version)
	case (t.Kind == Masquerade || t.Kind == Redirect) && ports != "":
		t.Ports, err = givenPorts(ports)
	case t.Kind == MSS:
		size := p.values["--set-mss"]
		t.Clamp = p.values["--clamp-mss-to-pmtu"] != ""
		if t.Clamp == (size != "") {
			return errors.New("TCPMSS takes either --clamp-mss-to-pmtu or --set-mss")
		}
		err = t.setMSS(size)
	}
	return err
}

// setMSS reads the size of segments, if one is given.
func (t *Target) setMSS(size string) error {
	if size == "" {
		return nil
	}
	n, err := strconv.ParseUint(size, 0, 16)
	if t.Bytes = uint16(n); err == nil && n == 0 {
		err = errors.New("has no size of segments")
	}
	return err
}
