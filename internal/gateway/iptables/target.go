package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

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
	if len(m.Ports)+len(m.SourcePorts) > 0 && !slices.Contains(withPorts, m.Protocol) {
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
		t.Prefix, err = parsePrefix(to)
		if err == nil && t.Prefix.Addr().Is4() != (p.version == 4) {
			err = fmt.Errorf("%s is not an address of IPv%d", to, p.version)
		}
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
func givenPorts(s string) (Ports, error) {
	low, high, both := strings.Cut(s, "-")
	if !both {
		high = low
	}
	first, err := parsePort(low)
	if err != nil {
		return Ports{}, err
	}
	last, err := parsePort(high)
	if err == nil && (last < first || first == 0) {
		err = fmt.Errorf("the ports %s are no range", s)
	}
	return Ports{first, last}, err
}
