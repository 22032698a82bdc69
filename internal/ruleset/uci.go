package ruleset

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/lazyregexp"
)

// uciText is a line that a file of UCI, or what 'uci show' prints of one, has.
var uciText = lazyregexp.New(`(?m)^\s*config ['"]?(zone|redirect|nat|defaults|interface)['"]?(\s|$)|^firewall\.[^ =.]+=`)

// section is one of a file of OpenWrt's UCI.
type section struct {
	kind, name string
	line       int
	values     map[string][]string
	keys       []string
}

func (s *section) get(key string) string { return strings.Join(s.values[key], " ") }

// list are the values of a list, or the words of an option.
func (s *section) list(key string) (all []string) {
	for _, v := range s.values[key] {
		all = append(all, strings.Fields(v)...)
	}
	return all
}

func (s *section) set(key, value string, one bool) {
	if _, known := s.values[key]; !known {
		s.keys = append(s.keys, key)
	} else if one {
		s.values[key] = nil
	}
	s.values[key] = append(s.values[key], value)
}

// String is the section on one line.
func (s *section) String() string {
	text := strings.TrimSpace("config " + s.kind + " " + s.name)
	for i, key := range s.keys {
		text += map[bool]string{true: ": ", false: ", "}[i == 0] + key + " " + s.get(key)
	}
	return text
}

// is reports whether a switch is on, or, where it is not there, what it is then.
func (s *section) is(key string, otherwise bool) bool {
	switch s.get(key) {
	case "1", "yes", "on", "true", "enabled":
		return true
	case "0", "no", "off", "false", "disabled":
		return false
	}
	return otherwise
}

// setting is what it says of its rules beside their conditions.
func (s *section) setting() setting {
	of := setting{line: s.line, text: s.String()}
	if s.kind == "zone" { // its log is about what filters drop
		return of
	}
	of.name = s.get("name")
	if prefix := s.get("log"); s.is("log", prefix != "") {
		if of.log = (&Log{Prefix: prefix}); prefix == "1" || s.is("log", false) {
			of.log.Prefix = of.name + ": "
		}
	}
	return of
}

// uciParser reads /etc/config/firewall with /etc/config/network, or what 'uci show' prints of both.
type uciParser struct {
	configured
	sections []*section
	// zones are those of the firewall in their order, zone has each by its name, networks those of the network.
	zones          []*section
	zone, networks map[string]*section
	// sets are the ipsets by their names.
	sets map[string]*section
	// devices are the interfaces of zones; rules are sections by their kind and the zone where they are asked.
	devices map[string][]string
	rules   map[string][]*section
}

func parseUCI(text string) *Ruleset {
	return withOff(parseUCIWhere(text, false), parseUCIWhere(text, true))
}

// parseUCIWhere reads the rules that are enabled, or those that are not.
func parseUCIWhere(text string, off bool) *Ruleset {
	p := uciParser{configured: configured{off: off}, devices: map[string][]string{}, zone: map[string]*section{}, networks: map[string]*section{}, sets: map[string]*section{}, rules: map[string][]*section{}}
	shown := map[string]*section{}
	for line := range strings.SplitSeq(text, "\n") {
		p.line++
		p.read(strings.TrimSpace(line), shown)
	}
	for _, s := range p.sections {
		p.sort(s)
	}
	for _, z := range p.zones {
		p.devices[z.get("name")] = p.devicesOf(z)
	}
	p.firewall()
	return &p.set
}

func (p *uciParser) begin(kind, name string) *section {
	s := &section{kind: kind, name: name, line: p.line, values: map[string][]string{}}
	p.sections = append(p.sections, s)
	return s
}

// read takes a line of a file, or of 'uci show': firewall.@zone[1].masq='1'.
func (p *uciParser) read(line string, shown map[string]*section) {
	words, err := tokens(line)
	switch {
	case err != nil:
		p.note(Untranslated, line, err.Error())
	case len(words) == 0 || strings.HasPrefix(words[0], "#") || words[0] == "package":
	case words[0] == "config" && len(words) > 1:
		p.begin(words[1], strings.Join(words[2:], " "))
	case (words[0] == "option" || words[0] == "list") && len(words) > 2 && len(p.sections) > 0:
		p.sections[len(p.sections)-1].set(words[1], strings.Join(words[2:], " "), words[0] == "option")
	default:
		p.shown(line, words, shown)
	}
}

func (p *uciParser) shown(line string, words []string, shown map[string]*section) {
	path, first, ok := strings.Cut(words[0], "=")
	names := strings.Split(path, ".")
	if !ok || len(names) < 2 || len(names) > 3 {
		p.foreign(line)
		return
	}
	key := names[0] + "." + names[1]
	if len(names) == 2 {
		name := names[1]
		if name[:min(1, len(name))] == "@" {
			name = ""
		}
		shown[key] = p.begin(first, name)
		return
	}
	if s := shown[key]; s != nil {
		for _, v := range append([]string{first}, words[1:]...) {
			s.set(names[2], v, false)
		}
	}
}

// sort puts a section where it is asked.
func (p *uciParser) sort(s *section) {
	add := func(key string) { p.rules[key] = append(p.rules[key], s) }
	target := strings.ToUpper(s.get("target"))
	switch name := s.get("name"); {
	case s.kind == "interface" && p.networks[s.name] == nil:
		p.networks[s.name] = s
	case s.kind == "ipset" && p.sets[name] == nil:
		p.sets[name] = s
	case s.kind == "zone" && !s.is("enabled", true): // as if it were not there
	case s.kind == "zone" && p.zone[name] == nil:
		p.zone[name], p.zones = s, append(p.zones, s)
	case s.is("enabled", true) == p.off:
	case s.kind == "redirect" && target == "SNAT":
		add("snat " + s.get("dest"))
	case s.kind == "redirect" && (target == "" || target == "DNAT"):
		add("dnat")
		add("reflected")
	case s.kind == "nat":
		add("nat " + cmp.Or(s.get("src"), "*"))
	default:
		p.left(s, target)
	}
}

// left notes a section that concerns translation and that natkit does not read.
func (p *uciParser) left(s *section, target string) {
	reason := ""
	switch {
	case s.kind == "redirect":
		reason = NoWord + "redirects with the target " + target
	case s.kind == "rule" && (target == "NOTRACK" || target == "HELPER"):
		reason = NoWord + "rules of a zone with the target " + target + ": natkit's words are notrack and helpers"
	case s.kind == "include":
		reason = "is another file: import the kernel's rules ('natkit gateway import' without a file) or what 'nft list ruleset' prints"
	default:
		return
	}
	p.line = s.line
	p.note(Untranslated, s.String(), reason)
}

// devicesOf are the interfaces of a zone; none where one is not known.
func (p *uciParser) devicesOf(zone *section) (all []string) {
	all = zone.list("device")
	for _, network := range zone.list("network") {
		device := p.deviceOf(network, 0)
		if device == "" {
			return nil
		}
		if !slices.Contains(all, device) {
			all = append(all, device)
		}
	}
	return all
}

// deviceOf is the interface of a network by its section of /etc/config/network.
func (p *uciParser) deviceOf(name string, depth int) string {
	s := p.networks[name]
	if s == nil || depth > 8 {
		return ""
	}
	device := cmp.Or(s.get("device"), s.get("ifname"))
	if other, alias := strings.CutPrefix(device, "@"); alias {
		return p.deviceOf(other, depth+1)
	}
	switch proto := s.get("proto"); {
	case s.get("type") == "bridge":
		return "br-" + name
	case proto == "pppoe" || proto == "pptp" || proto == "l2tp" || proto == "ppp" || proto == "3g":
		return proto + "-" + name
	case proto == "6in4" || proto == "6to4" || proto == "6rd":
		return proto + "-" + name
	case proto == "wireguard":
		return name
	case strings.Contains(device, " "):
		return ""
	}
	return device
}

// uciConditions are the options of rules that have a word, or mean nothing for translations.
var uciConditions = strings.Fields("name enabled target src dest src_ip src_port src_dip src_dport dest_ip dest_port proto family reflection reflection_src reflection_zone" +
	" snat_ip snat_port device mark log log_limit utc_time masq_src masq_dest _name counter")

// firewall makes rules of the sections in the order in which fw4 asks them.
func (p *uciParser) firewall() {
	for _, s := range p.rules["dnat"] {
		p.dnat(s)
	}
	for _, s := range p.rules["reflected"] {
		zones := s.list("reflection_zone")
		if len(zones) == 0 {
			zones = []string{cmp.Or(s.get("dest"), p.zoneOf(s.get("dest_ip")))}
		}
		for _, name := range zones {
			p.rules["reflected "+name] = append(p.rules["reflected "+name], s)
		}
	}
	for _, s := range p.rules["nat *"] {
		p.snat(s, "", s.get("snat_ip"), s.get("snat_port"))
	}
	for _, z := range p.zones {
		name := z.get("name")
		for _, s := range p.rules["nat "+name] {
			p.snat(s, name, s.get("snat_ip"), s.get("snat_port"))
		}
		for _, s := range p.rules["snat "+name] {
			p.snat(s, name, s.get("src_dip"), s.get("src_dport"))
		}
		for _, s := range p.rules["reflected "+name] {
			p.reflected(s, z)
		}
		if p.off {
			continue
		}
		p.masquerade(z)
		if z.is("mtu_fix", false) {
			for _, version := range []int{4, 6} {
				for _, name := range p.interfaces(z, z.get("name")) {
					p.clamp(z.setting(), version, name, "")
				}
			}
		}
	}
}

// zoneOf is the zone with the network of an address, which fw4 takes for a redirect that names none; empty where no network
// in the text has it.
func (p *uciParser) zoneOf(address string) string {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return ""
	}
	for _, z := range p.zones {
		for _, network := range p.addresses(z, func(p netip.Prefix) string { return p.Masked().String() }) {
			if n, err := netip.ParsePrefix(network); err == nil && n.Contains(a) {
				return z.get("name")
			}
		}
	}
	return ""
}

// interfaces are those of a zone for a rule about it; one that is empty for all zones.
func (p *uciParser) interfaces(s *section, zone string) []string {
	if zone == "" || zone == "*" {
		return []string{""}
	}
	if list := p.devices[zone]; len(list) > 0 {
		return list
	}
	p.line = s.line
	p.note(Untranslated, s.String(), "is for the zone "+zone+", of which the interfaces are not in the text: give /etc/config/network with it")
	return nil
}

// ofZone is what a zone asks for beside its interfaces; is is false where it has no packets of a version of IP.
func (p *uciParser) ofZone(name string, version int) (o options, is bool) {
	z := p.zone[name]
	if z == nil {
		return nil, true
	}
	if family := z.get("family"); strings.Contains(family, "4") != strings.Contains(family, "6") && strings.Contains(family, "4") != (version == 4) {
		return nil, false
	}
	for _, key := range []string{"subnet", "extra", "extra_src", "extra_dest"} {
		if value := z.get(key); value != "" {
			o.other(key, value)
		}
	}
	return o, true
}

// conditions are those of a rule for a protocol.
func (p *uciParser) conditions(s *section, protocol, from, to, sport, dport string) (o options) {
	o.add("-s", from)
	o.add("-d", to)
	o.add("-p", protocol)
	o.add("--sport", strings.ReplaceAll(sport, " ", ","))
	o.add("--dport", strings.ReplaceAll(dport, " ", ","))
	if mark := s.get("mark"); mark != "" {
		o = append(o, "-m", "mark")
		o.add("--mark", mark)
	}
	clock := map[string]string{"start_time": "--timestart", "stop_time": "--timestop", "weekdays": "--weekdays"}
	if !s.is("utc_time", false) {
		clock = nil // in the time zone of the router
	}
	for _, key := range s.keys {
		switch option := clock[key]; {
		case key == "ipset" && p.ofSet(s.get(key), &o):
		case option != "":
			o = append(o, "-m", "time")
			o.add(option, strings.ReplaceAll(s.get(key), " ", ","))
		case !slices.Contains(uciConditions, key):
			o.other(key, s.get(key))
		}
	}
	return o
}

// ofSet adds the condition that an address is in a set, if its elements are in the text and are addresses of one side.
func (p *uciParser) ofSet(value string, o *options) bool {
	name, not := strings.CutPrefix(value, "!")
	set := p.sets[strings.TrimSpace(name)]
	if set == nil || !set.is("enabled", true) || len(set.list("loadfile"))+len(set.list("timeout")) > 0 || len(set.list("entry")) == 0 {
		return false
	}
	option := map[string]string{"ip": "-s", "net": "-s", "src_ip": "-s", "src_net": "-s", "dest_ip": "-d", "dest_net": "-d"}[strings.Join(set.list("match"), " ")]
	if option == "" {
		return false
	}
	o.add(option, map[bool]string{true: "!"}[not]+strings.Join(set.list("entry"), ","))
	return true
}

// versions are those of IP that a section is for.
func (s *section) versions(addresses ...string) []int {
	for _, a := range addresses {
		switch {
		case strings.Contains(a, ":"):
			return []int{6}
		case strings.Contains(a, "."):
			return []int{4}
		}
	}
	switch s.get("family") {
	case "ipv6":
		return []int{6}
	case "any":
		return []int{4, 6}
	}
	return []int{4}
}

func (p *uciParser) protocols(s *section, otherwise ...string) []string {
	if list := s.list("proto"); len(list) > 0 {
		return protocolsOf(list)
	}
	return otherwise
}

func (p *uciParser) dnat(s *section) {
	to, src := s.get("dest_ip"), s.get("src")
	if src == "" || src == "*" {
		p.line = s.line
		p.note(LeftAlone, s.String(), "names no zone that packets come from: OpenWrt leaves it out, too")
		return
	}
	for _, version := range s.versions(to, s.get("src_dip"), s.get("src_ip")) {
		zone, is := p.ofZone(src, version)
		if !is {
			continue
		}
		for _, in := range p.interfaces(s, src) {
			for _, protocol := range p.protocols(s, "tcp", "udp") {
				var o options
				o.add("-i", in)
				o = append(o, zone...)
				o = append(o, p.conditions(s, protocol, s.get("src_ip"), s.get("src_dip"), s.get("src_port"), s.get("src_dport"))...)
				if port := s.get("dest_port"); to != "" {
					o = append(o, target("DNAT", to, port)...)
				} else {
					o = append(o, "-j", "REDIRECT")
					o.add("--to-ports", port)
				}
				p.rule(s.setting(), version, "PREROUTING", o)
			}
		}
	}
}

func (p *uciParser) snat(s *section, zone, address, port string) {
	for _, version := range s.versions(address, s.get("src_ip"), s.get("dest_ip")) {
		asks, is := p.ofZone(zone, version)
		if !is {
			continue
		}
		out := p.interfaces(s, zone)
		if device := s.get("device"); device != "" {
			out = []string{device}
		}
		for _, name := range out {
			for _, protocol := range p.protocols(s, "") {
				var o options
				o.add("-o", name)
				o = append(o, asks...)
				o = append(o, p.conditions(s, protocol, s.get("src_ip"), s.get("dest_ip"), s.get("src_port"), s.get("dest_port"))...)
				switch strings.ToUpper(s.get("target")) {
				case "SNAT":
					o = append(o, target("SNAT", address, port)...)
				case "ACCEPT":
					o = append(o, "-j", "ACCEPT")
				default:
					o = append(o, "-j", "MASQUERADE")
					o.add("--to-ports", port)
				}
				p.rule(s.setting(), version, "POSTROUTING", o)
			}
		}
	}
}

func (p *uciParser) masquerade(z *section) {
	for _, version := range []int{4, 6} {
		asks, is := p.ofZone(z.get("name"), version)
		if !is || !z.is(map[int]string{4: "masq", 6: "masq6"}[version], false) {
			continue
		}
		for _, name := range p.interfaces(z, z.get("name")) {
			var o options
			o.add("-o", name)
			for option, key := range map[string]string{"-s": "masq_src", "-d": "masq_dest"} {
				var is []string
				for _, v := range z.list(key) {
					switch {
					case strings.Contains(v, ":") != (version == 6):
					case strings.HasPrefix(v, "!"):
						o.add(option, v)
					default:
						is = append(is, v)
					}
				}
				o.add(option, strings.Join(is, ","))
			}
			p.rule(z.setting(), version, "POSTROUTING", append(append(o, asks...), "-j", "MASQUERADE"))
		}
	}
}

// reflected is what OpenWrt adds to a redirect for hosts inside, by the address outside, which is known only where
// that is in the text.
func (p *uciParser) reflected(s *section, zone *section) {
	to, from := s.get("dest_ip"), p.zone[s.get("src")]
	if to == "" || strings.Contains(to, ":") || !s.is("reflection", true) || from == nil || !from.is("masq", false) {
		return
	}
	asks, is := p.ofZone(zone.get("name"), 4)
	if !is {
		return
	}
	outside := s.list("src_dip")
	if len(outside) == 0 {
		outside = p.addresses(from, func(p netip.Prefix) string { return p.Addr().String() })
	}
	networks := p.addresses(zone, func(p netip.Prefix) string { return p.Masked().String() })
	routers := p.addresses(zone, func(p netip.Prefix) string { return p.Addr().String() })
	if len(outside) == 0 || len(networks) == 0 {
		p.line = s.line
		p.note(Untranslated, s.String(), "has a reflection for hosts inside, by an address that is not in the text: natkit's word is \"hairpin: on\"")
		return
	}
	source := routers[0]
	if s.get("reflection_src") == "external" {
		source = outside[0]
	}
	for _, name := range p.interfaces(s, zone.get("name")) {
		for _, protocol := range p.protocols(s, "tcp", "udp") {
			for i := range networks {
				in, out := append(options{"-i", name}, asks...), append(options{"-o", name}, asks...)
				in = append(in, p.conditions(s, protocol, networks[i], strings.Join(outside, ","), "", s.get("src_dport"))...)
				out = append(out, p.conditions(s, protocol, networks[i], to, "", cmp.Or(s.get("dest_port"), s.get("src_dport")))...)
				p.rule(s.setting(), 4, "PREROUTING", append(in, target("DNAT", to, s.get("dest_port"))...))
				p.rule(s.setting(), 4, "POSTROUTING", append(out, target("SNAT", source, "")...))
			}
		}
	}
}

// addresses are those of a zone's networks that the text has, of IPv4.
func (p *uciParser) addresses(zone *section, as func(netip.Prefix) string) (all []string) {
	for _, name := range zone.list("network") {
		s := p.networks[name]
		if s == nil || s.get("proto") != "static" {
			continue
		}
		for _, a := range s.list("ipaddr") {
			if mask := s.get("netmask"); mask != "" && !strings.Contains(a, "/") {
				a += "/" + mask
			}
			address, mask, _ := strings.Cut(a, "/")
			host, err := netip.ParseAddr(address)
			network, err2 := parsePrefix(a, 4)
			if mask != "" && err == nil && err2 == nil {
				all = append(all, as(netip.PrefixFrom(host, network.Bits())))
			}
		}
	}
	return all
}
