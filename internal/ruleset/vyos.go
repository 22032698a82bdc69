package ruleset

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/lazyregexp"
	"github.com/natkit/natkit/internal/snapshot"
)

// vyosText is a line of VyOS' configuration about translation: of its commands, or of config.boot.
var vyosText = lazyregexp.New(`(?m)^\s*(\S+[#$] )?set (nat(66)? (source|destination|static)|nat64|nat cgnat|load-balancing wan) |^(nat(66|64)?|load-balancing) \{`)

// vyosRule is a rule of VyOS' configuration.
type vyosRule struct {
	family, kind string
	number       int
	line         int
	// values are by the words before them: "source address".
	values map[string][]string
	keys   []string
}

// vyosParser reads commands that set something, one in each line, or config.boot.
type vyosParser struct {
	configured
	rules []*vyosRule
	// known has them by family, kind and number.
	known map[string]*vyosRule
	// groups are those of the firewall, by kind and name.
	groups map[string][]string
	// named are the parts that natkit leaves and that have their note.
	named map[string]bool
	// open are the words before each bracket of config.boot that is open.
	open [][]string
}

func parseVyOS(text string) *Ruleset {
	return withOff(parseVyOSWhere(text, false), parseVyOSWhere(text, true))
}

// parseVyOSWhere reads the rules that are enabled, or those that are not.
func parseVyOSWhere(text string, off bool) *Ruleset {
	p := vyosParser{configured: configured{off: off}, groups: map[string][]string{}, known: map[string]*vyosRule{}, named: map[string]bool{}}
	for line := range strings.SplitSeq(text, "\n") {
		p.line++
		p.read(strings.TrimSpace(line))
	}
	if len(p.open) > 0 {
		p.note(Untranslated, strings.Join(p.open[len(p.open)-1], " "), "does not end: "+CutShort)
	}
	// Static rules are a table of their own, which VyOS loads last: the kernel asks it first.
	last := func(r *vyosRule) int { return map[bool]int{true: 1}[r.kind != "static"] }
	slices.SortStableFunc(p.rules, func(a, b *vyosRule) int {
		return cmp.Or(cmp.Compare(last(a), last(b)), cmp.Compare(a.number, b.number))
	})
	for _, r := range p.rules {
		p.write(r)
	}
	return &p.set
}

// prompt is what stands before a command on a screen.
var prompt = lazyregexp.New(`^\S+[#$] `)

func (p *vyosParser) read(line string) {
	if line == "" || line[0] == '#' || strings.HasPrefix(line, "//") || strings.HasPrefix(line, "/*") {
		return
	}
	words, err := tokens(prompt.ReplaceAllString(line, ""))
	switch {
	case err != nil:
		p.note(Untranslated, line, err.Error())
	case len(words) == 0:
	case words[0] == "set":
		p.command(words[1:])
	case words[len(words)-1] == "{":
		path := slices.Concat(p.path(), words[:len(words)-1])
		if len(p.open) >= deepest {
			path = p.path()
		}
		if p.open = append(p.open, path); len(path) == 4 { // nat source rule 10
			p.command(path)
		}
	case line == "}" && len(p.open) > 0:
		p.open = p.open[:len(p.open)-1]
	case len(p.open) > 0:
		p.command(slices.Concat(p.path(), words))
	case words[0] == "delete":
		p.note(Untranslated, line, "changes what is there already: import what 'show configuration commands' prints afterwards")
	case slices.Contains([]string{"configure", "commit", "save", "exit", "edit"}, words[0]):
	default:
		p.foreign(line)
	}
}

func (p *vyosParser) path() []string {
	if len(p.open) == 0 {
		return nil
	}
	return p.open[len(p.open)-1]
}

// vyosFlags are words without a value.
var vyosFlags = []string{"disable", "exclude", "log"}

// command takes one command.
func (p *vyosParser) command(words []string) {
	switch {
	case len(words) > 5 && words[0] == "firewall" && words[1] == "group":
		switch key := words[2] + " " + words[3]; words[4] {
		case "include":
			p.groups["include "+key] = append(p.groups["include "+key], words[5])
		case "address", "network", "port", "interface":
			p.groups[key] = append(p.groups[key], words[5])
		}
		return
	case p.left(words) || p.adjusts(words):
		return
	case len(words) < 4 || words[0] != "nat" && words[0] != "nat66" || words[2] != "rule":
		return
	}
	number, err := strconv.Atoi(words[3])
	if err != nil {
		p.note(Untranslated, strings.Join(words, " "), "has no number of a rule")
		return
	}
	key := strings.Join(words[:3], " ") + strconv.Itoa(number)
	if p.known[key] == nil {
		p.known[key] = &vyosRule{family: words[0], kind: words[1], number: number, line: p.line, values: map[string][]string{}}
		p.rules = append(p.rules, p.known[key])
	}
	r, rest := p.known[key], words[4:]
	if len(rest) == 0 {
		return
	}
	value := rest[len(rest)-1]
	key = strings.Join(rest[:len(rest)-1], " ")
	if slices.Contains(vyosFlags, rest[0]) || key == "" {
		key, value = rest[0], "on"
	}
	if _, known := r.values[key]; !known {
		r.keys = append(r.keys, key)
	}
	r.values[key] = append(r.values[key], value)
}

// vyosLeft are the parts of a configuration that translate and that natkit does not read, by the words that they begin with.
var vyosLeft = []struct{ words, reason string }{
	{"nat64", "translates between IPv6 and IPv4, which natkit does not"},
	{"nat cgnat", NoWord + "cgnat: natkit's word is snat with the pool's addresses, and 'limits' for what a host may take"},
	{"load-balancing wan", "divides connections among uplinks; natkit's word is interfaces: {wan: [{interface: eth0, weight: 3}, …]}"},
}

// left notes such a part, once.
func (p *vyosParser) left(words []string) bool {
	for _, part := range vyosLeft {
		n := len(strings.Fields(part.words))
		if len(words) <= n || strings.Join(words[:n], " ") != part.words {
			continue
		}
		if !p.named[part.words] {
			p.named[part.words] = true
			p.note(Untranslated, "set "+part.words, part.reason)
		}
		return true
	}
	return false
}

// adjusts takes the MSS of an interface: interfaces ethernet eth0 vif 7 ip adjust-mss clamp-mss-to-pmtu, or, as it was
// before VyOS 1.4, firewall options interface eth0 adjust-mss 1400.
func (p *vyosParser) adjusts(words []string) bool {
	at := slices.Index(words, "adjust-mss")
	if at < 0 || at+1 >= len(words) {
		return false
	}
	device, version := "", 4
	for i := 1; i+1 < at; i++ {
		switch {
		case i == 2 && (words[0] == "interfaces" || words[1] == "options"):
			device = words[i]
			if words[1] == "options" {
				device = words[i+1]
			}
		case strings.HasPrefix(words[i], "vif"):
			device += "." + words[i+1]
		}
	}
	if words[at-1] == "ipv6" || words[at-1] == "adjust-mss6" {
		version = 6
	}
	if device == "" {
		return false
	}
	size := words[at+1]
	if size == "clamp-mss-to-pmtu" {
		size = ""
	}
	if p.off {
		return true
	}
	p.clamp(setting{line: p.line, text: "set " + strings.Join(words, " ")}, version, device, size)
	return true
}

// setting is what it says of its rules beside their conditions.
func (r *vyosRule) setting() setting {
	of := setting{line: r.line, text: r.String(), name: strings.Join(r.values["description"], " ")}
	if len(r.values["log"]) > 0 {
		of.log = &Log{}
	}
	return of
}

// String is the rule in the words of commands, on one line.
func (r *vyosRule) String() string {
	text := "set " + r.family + " " + r.kind + " rule " + strconv.Itoa(r.number)
	for i, key := range r.keys {
		text += map[bool]string{true: ": ", false: ", "}[i == 0] + strings.TrimSuffix(key+" "+strings.Join(r.values[key], " "), " on")
	}
	return text
}

// get returns the value behind one of the words, and notes that they are understood.
func (r *vyosRule) get(used *[]string, keys ...string) string {
	for _, key := range keys {
		if *used = append(*used, key); len(r.values[key]) > 0 {
			return strings.Join(r.values[key], ",")
		}
	}
	return ""
}

// members are those of a group of the firewall, as a condition.
func (p *vyosParser) members(r *vyosRule, used *[]string, side string, kinds ...string) (string, bool) {
	for _, kind := range kinds {
		name := r.get(used, side+" group "+kind)
		if name == "" {
			continue
		}
		name, not := strings.CutPrefix(name, "!")
		list := p.group(kind, name, 0)
		if len(list) == 0 {
			return "", false
		}
		return map[bool]string{true: "!"}[not] + strings.Join(list, ","), true
	}
	return "", true
}

// write makes rules of iptables of one of VyOS.
func (p *vyosParser) write(r *vyosRule) {
	if (len(r.values["disable"]) > 0) != p.off {
		return
	}
	used := []string{"description", "log", "exclude", "disable"}
	version := map[string]int{"nat": 4, "nat66": 6}[r.family]
	if r.kind == "static" {
		p.static(r, &used, version)
		return
	}
	var o options
	known := true
	for _, side := range []struct{ name, address, port string }{{"source", "-s", "--sport"}, {"destination", "-d", "--dport"}} {
		group, ok := p.members(r, &used, side.name, "address-group", "network-group", "ipv6-address-group", "ipv6-network-group")
		known = known && ok
		address := r.get(&used, side.name+" address", side.name+" prefix")
		if address != "" && group != "" { // both are asked for
			o.other(side.name+"-group", group)
		}
		o.add(side.address, cmp.Or(address, group))
	}
	in, ok := p.interfaces(r, &used, "inbound-interface", "-i", &o)
	out, ok2 := p.interfaces(r, &used, "outbound-interface", "-o", &o)
	known = known && ok && ok2
	sport, ok := p.members(r, &used, "source", "port-group")
	dport, ok2 := p.members(r, &used, "destination", "port-group")
	if known = known && ok && ok2; !known {
		p.line = r.line
		p.note(Untranslated, r.String(), "is for a group whose members are not in the text: give 'firewall group' with it")
	}
	for _, one := range []struct {
		key  string
		port *string
	}{{"source port", &sport}, {"destination port", &dport}} {
		ports := r.get(&used, one.key)
		if ports != "" && *one.port != "" { // both are asked for
			o.other(strings.ReplaceAll(one.key, " ", "-")+"-group", *one.port)
		}
		*one.port = cmp.Or(ports, *one.port)
	}
	to, hosts := p.translation(r, &used), p.backends(r, &used)
	if len(hosts.list) > 0 {
		to = target("DNAT", hosts.list[0].Address.String(), "")
	}
	for _, key := range r.keys {
		if !slices.Contains(used, key) {
			o.other(strings.ReplaceAll(key, " ", "-"), strings.Join(r.values[key], ","))
		}
	}
	if !known {
		to = options{"-j", "QUEUE"} // what it matches is not known
	}
	chain := map[string]string{"source": "POSTROUTING", "destination": "PREROUTING"}[r.kind]
	if chain == "" {
		return
	}
	for _, protocol := range protocolsOf(strings.Split(r.get(&used, "protocol"), ",")) {
		for _, from := range in {
			for _, by := range out {
				one := slices.Clone(o)
				one.add("-i", from)
				one.add("-o", by)
				one.add("-p", protocol)
				one.add("--sport", sport)
				one.add("--dport", dport)
				hosts.spread(p.rule(r.setting(), version, chain, append(one, to...)))
			}
		}
	}
}

// interfaces are those of a condition, one of which a packet has to have; one that is empty where there is none. Those that
// it must not have become options. known is false where it is for a group that is not in the text.
func (p *vyosParser) interfaces(r *vyosRule, used *[]string, side, option string, o *options) (all []string, known bool) {
	names, not := strings.CutPrefix(r.get(used, side+" name", side), "!")
	if group := r.get(used, side+" group"); group != "" {
		group, not = strings.CutPrefix(group, "!")
		if names = strings.Join(p.group("interface-group", group, 0), ","); names == "" {
			return []string{""}, false
		}
	}
	for name := range strings.SplitSeq(strings.ReplaceAll(names, "*", "+"), ",") {
		if not {
			o.add(option, "!"+name)
		} else {
			all = append(all, name)
		}
	}
	return orAny(all), true
}

// group are the members of a group, and of those that it includes.
func (p *vyosParser) group(kind, name string, depth int) (all []string) {
	if depth > 8 {
		return nil
	}
	all = slices.Clone(p.groups[kind+" "+name])
	for _, other := range p.groups["include "+kind+" "+name] {
		some := p.group(kind, other, depth+1)
		if len(some) == 0 || len(all)+len(some) > mostElements {
			return nil
		}
		all = append(all, some...)
	}
	return all
}

// vyosBackends are destinations that a rule chooses one of.
type vyosBackends struct {
	list   []snapshot.Drawn
	hashed bool
}

// backends are those of a rule: load-balance backend 192.168.1.10 weight 30. What the hash is of tells whether a client has
// the same one each time.
func (p *vyosParser) backends(r *vyosRule, used *[]string) (b vyosBackends) {
	if r.kind != "destination" || len(r.values["translation port"]) > 0 {
		return b
	}
	of := r.values["load-balance hash"]
	b.hashed = len(of) > 0 && !slices.ContainsFunc(of, func(field string) bool { return field != "source-address" && field != "destination-address" })
	total := uint64(0)
	for _, key := range r.keys {
		words := strings.Fields(key)
		if len(words) != 4 || words[0] != "load-balance" || words[1] != "backend" || words[3] != "weight" {
			continue
		}
		address, err := netip.ParseAddr(words[2])
		weight, err2 := strconv.ParseUint(strings.Join(r.values[key], ""), 10, 8)
		if err != nil || err2 != nil || weight == 0 || address.Is4() != (r.family == "nat") {
			return vyosBackends{}
		}
		b.list = append(b.list, snapshot.Drawn{Address: address, Numbers: uint32(weight)})
		*used = append(*used, key, "load-balance hash")
		total += weight
	}
	if len(b.list) > 0 && total != 100 { // of so many numbers that are drawn
		*used = slices.DeleteFunc(*used, func(key string) bool { return strings.HasPrefix(key, "load-balance backend") })
	}
	return b
}

// spread gives rules these destinations.
func (b *vyosBackends) spread(rules []*Rule) {
	if len(b.list) == 0 {
		return
	}
	for _, rule := range rules {
		if t := &rule.Target; t.Kind == DNAT {
			t.First, t.Last, t.Drawn, t.Hashed = netip.Addr{}, netip.Addr{}, b.list, b.hashed
		}
	}
}

// translation is the target.
func (p *vyosParser) translation(r *vyosRule, used *[]string) options {
	address, port := r.get(used, "translation address"), r.get(used, "translation port")
	redirect := r.get(used, "translation redirect port")
	r.get(used, "protocol")
	var flags options
	if r.get(used, "translation options address-mapping") == "persistent" {
		flags = append(flags, "--persistent")
	}
	switch r.get(used, "translation options port-mapping") {
	case "random":
		flags = append(flags, "--random")
	case "fully-random":
		flags = append(flags, "--random-fully")
	}
	switch {
	case len(r.values["exclude"]) > 0:
		return options{"-j", "RETURN"}
	case address == "masquerade":
		o := options{"-j", "MASQUERADE"}
		o.add("--to-ports", port)
		return append(o, flags...)
	case r.kind == "source":
		return target("SNAT", address, port, flags...)
	case address == "" && redirect != "":
		return options{"-j", "REDIRECT", "--to-ports", redirect}
	}
	return target("DNAT", address, port, flags...)
}

// static is one address, or one prefix, for one, both ways.
func (p *vyosParser) static(r *vyosRule, used *[]string, version int) {
	outside, inside := r.get(used, "destination address"), r.get(used, "translation address")
	name := r.get(used, "inbound-interface name", "inbound-interface")
	var in, out options
	in.add("-d", outside)
	in.add("-i", name)
	out.add("-s", inside)
	out.add("-o", name)
	for _, key := range r.keys {
		if !slices.Contains(*used, key) {
			in.other(strings.ReplaceAll(key, " ", "-"), strings.Join(r.values[key], ","))
			out.other(strings.ReplaceAll(key, " ", "-"), strings.Join(r.values[key], ","))
		}
	}
	p.rule(r.setting(), version, "PREROUTING", append(in, target("DNAT", inside, "")...))
	p.rule(r.setting(), version, "POSTROUTING", append(out, target("SNAT", outside, "")...))
}
