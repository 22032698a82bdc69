package convert

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/ruleset"
)

// imported are the rules that a text becomes, as the file writes them, and the kinds of its notes by their lines.
func imported(t *testing.T, text string) (rules []string, notes map[int]ruleset.Note, all *Result) {
	t.Helper()
	r, err := Import(ruleset.Parse(text, 4))
	if err != nil {
		t.Fatal(err)
	}
	readsBack(t, r)
	for _, rule := range slices.Concat(r.Config.NAT, r.Config.IPv6) {
		rules = append(rules, gateway.MarshalRule(rule))
	}
	notes = map[int]ruleset.Note{}
	for _, n := range r.Notes {
		notes[n.Line] = n
	}
	return rules, notes, r
}

// TestStatementsOfNft: what stands beside a translation is taken, or refuses its rule.
func TestStatementsOfNft(t *testing.T) {
	const dnat = "dnat: {on: any, port: tcp/80, to: 192.168.1.10, in: eth0}"
	for statements, want := range map[string]struct{ rule, kind, word string }{
		"counter": {rule: dnat},
		"counter packets 3 bytes 180 log prefix \"web: \"": {rule: "{" + dnat + ", log: {prefix: \"web: \"}}", kind: ruleset.Differs},
		"log": {rule: "{" + dnat + ", log: on}", kind: ruleset.Differs},
		"log prefix \"web: \" level info flags tcp sequence":    {rule: "{" + dnat + ", log: {prefix: \"web: \"}}", kind: ruleset.Differs, word: "flags tcp sequence"},
		"log group 2 snaplen 100 queue-threshold 5":             {rule: "{" + dnat + ", log: on}", kind: ruleset.Differs, word: "group 2"},
		"log prefix \"x\" limit rate 5/second":                  {kind: ruleset.Untranslated, word: "limit rate 5/second"},
		"log limit rate over 5/second":                          {kind: ruleset.Untranslated, word: "limit rate"},
		"limit rate 5/second log":                               {kind: ruleset.Untranslated, word: "limit rate"},
		"log prefix \"x\" ct count over 10":                     {kind: ruleset.Untranslated, word: "ct count over 10"},
		"log prefix \"x\" quota until 10 mbytes":                {kind: ruleset.Untranslated, word: "quota"},
		"log prefix \"x\" ip ttl > 5":                           {kind: ruleset.Untranslated, word: "ip ttl > 5"},
		"counter packets 3 limit rate 5/second":                 {kind: ruleset.Untranslated, word: "limit rate"},
		"notrack":                                               {kind: ruleset.Untranslated, word: "two things (notrack, dnat)"},
		"tcp flags syn / syn,rst tcp option maxseg size set 99": {kind: ruleset.Untranslated, word: "two things (mss, dnat)"},
		"meta mark set 0x1":                                     {kind: ruleset.Untranslated, word: "meta mark set"},
		"ip ttl set 5":                                          {kind: ruleset.Untranslated, word: "ip ttl set"},
	} {
		text := "table ip nat {\n\tchain pre {\n\t\ttype nat hook prerouting priority dstnat; policy accept;\n\t\tiifname \"eth0\" tcp dport 80 " + statements + " dnat to 192.168.1.10\n\t}\n}\n"
		rules, notes, _ := imported(t, text)
		if diff := cmp.Diff(ruleset.Some(want.rule), rules); diff != "" {
			t.Errorf("%s (-want +got):\n%s", statements, diff)
		}
		if n := notes[4]; n.Kind != want.kind || !strings.Contains(n.Reason, want.word) {
			t.Errorf("%s: %+v, want %q with %q", statements, n, want.kind, want.word)
		}
	}
}

// TestScriptOfNft: what people write by hand means the same as what nft lists.
func TestScriptOfNft(t *testing.T) {
	const chain = "type nat hook postrouting priority srcnat; policy accept;"
	for name, c := range map[string]struct {
		text  string
		rules []string
	}{
		"one line":                    {"table ip nat { chain post { " + chain + " oifname \"eth0\" masquerade } }", []string{"masquerade: {out: eth0}"}},
		"no policy":                   {"table nat { chain post { type nat hook postrouting priority 100; oifname eth0 masquerade; } }", []string{"masquerade: {out: eth0}"}},
		"comments":                    {"table ip nat { # a {\n chain post { # b }\n " + chain + "# c\n oifname \"a#b\" masquerade # d\n } }", []string{"masquerade: {out: \"a#b\"}"}},
		"definition":                  {"define wan = eth0\ntable ip nat { chain post { " + chain + " oifname $wan masquerade } }", []string{"masquerade: {out: eth0}"}},
		"definition of another":       {"define a = \"eth0\"\ndefine wan = $a\ntable ip nat { define a = eth1\n chain post { " + chain + " oifname $wan masquerade } }", []string{"masquerade: {out: eth0}"}},
		"definitions in a set":        {"define a = 10.0.0.0/8\ndefine b = { 192.168.0.0/16, 172.16.0.0/12 }\ntable ip nat { chain post { " + chain + " ip saddr { $a, $b } masquerade } }", []string{"masquerade: {from: [10.0.0.0/8, 192.168.0.0/16, 172.16.0.0/12]}"}},
		"redefined":                   {"define wan = eth0\nredefine wan = eth1\ntable ip nat { chain post { " + chain + " oifname $wan masquerade } }", []string{"masquerade: {out: eth1}"}},
		"undefined":                   {"define wan = eth0\nundefine wan\ntable ip nat { chain post { " + chain + " oifname $wan masquerade } }", nil},
		"priority":                    {"define p = srcnat\ntable ip nat { chain post { type nat hook postrouting priority $p; masquerade } }", []string{"masquerade: {}"}},
		"commands":                    {"add table ip nat\nadd chain ip nat post { " + chain + " }\nadd rule ip nat post oifname \"eth0\" masquerade", []string{"masquerade: {out: eth0}"}},
		"inserted":                    {"add chain ip nat post { " + chain + " }\nadd rule ip nat post masquerade\ninsert rule ip nat post ip saddr 10.0.0.1 return", []string{"masquerade: {except-from: 10.0.0.1}"}},
		"flushed":                     {"add chain ip nat post { " + chain + " }\nadd rule ip nat post masquerade\nflush chain ip nat post\nadd rule ip nat post oifname eth0 masquerade", []string{"masquerade: {out: eth0}"}},
		"deleted":                     {"add chain ip nat post { " + chain + " }\nadd rule ip nat post masquerade\ndelete rule ip nat post handle 4", nil},
		"put at a place":              {"add chain ip nat post { " + chain + " }\nadd rule ip nat post masquerade\nadd rule ip nat post handle 4 ip saddr 10.0.0.1 return", nil},
		"elements":                    {"table ip nat { set s { type ipv4_addr; }\n chain post { " + chain + " ip saddr @s masquerade } }\nadd element ip nat s { 10.0.0.1, 10.0.0.2 }", []string{"masquerade: {from: [10.0.0.1, 10.0.0.2]}"}},
		"twice":                       {"table ip nat { chain post { " + chain + " oifname eth0 masquerade } }\ntable ip nat { chain post { oifname eth1 masquerade } }", []string{"masquerade: {out: eth0}", "masquerade: {out: eth1}"}},
		"dormant":                     {"table ip nat { flags dormant; chain post { " + chain + " masquerade } }", nil},
		"several lines":               {"table ip nat {\n chain post {\n  " + chain + "\n  ip saddr {\n   10.0.0.1,\n   10.0.0.2 # two\n  } masquerade\n }\n}", []string{"masquerade: {from: [10.0.0.1, 10.0.0.2]}"}},
		"a line that goes on":         {"table ip nat {\n chain post {\n  " + chain + "\n  oifname eth0 \\\n   masquerade\n }\n}", []string{"masquerade: {out: eth0}"}},
		"a comma in quotation marks":  {"table ip nat { chain post { " + chain + " oifname eth0 log prefix \"a,\" masquerade } }", []string{"{masquerade: {out: eth0}, log: {prefix: \"a,\"}}"}},
		"a set in a chain of its own": {"add table ip nat\nadd chain ip nat post { " + chain + " ip saddr { 10.0.0.1, 10.0.0.2 } oifname eth0 masquerade; }", []string{"masquerade: {from: [10.0.0.1, 10.0.0.2], out: eth0}"}},
		"no spaces":                   {"define\tinside={10.0.0.1,10.0.0.2}\ntable ip nat { set s { type ipv4_addr; elements={ 10.0.0.3 } }\n chain post { " + chain + " ip saddr {$inside, 10.0.0.9} masquerade; ip saddr @s masquerade } }", []string{"masquerade: {from: [10.0.0.1, 10.0.0.2, 10.0.0.9, 10.0.0.3]}"}},
		"another file in a chain":     {"table ip nat { chain post { " + chain + "\n include \"more.nft\"\n masquerade } }", nil},
	} {
		t.Run(name, func(t *testing.T) {
			rules, notes, r := imported(t, c.text)
			if diff := cmp.Diff(c.rules, rules); diff != "" {
				t.Errorf("rules (-want +got):\n%s%+v", diff, notes)
			}
			if whole := len(c.rules) > 0; whole != r.Exact() && name != "dormant" && name != "a comma in quotation marks" {
				t.Errorf("exact: %v, %+v", r.Exact(), r.Notes)
			}
			if len(r.Notes) == 0 && len(c.rules) == 0 {
				t.Error("nothing is said of what is left")
			}
		})
	}
}

// TestNotWider: what natkit does not read of a text makes no rule match more, and is among the notes.
func TestNotWider(t *testing.T) {
	const chain = "type nat hook postrouting priority srcnat; policy accept;"
	post := func(rules string) string {
		return "table ip nat {\n\tchain post {\n\t\t" + chain + "\n\t\t" + rules + "\n\t\toifname \"eth0\" counter packets 2 bytes 120 masquerade\n\t}\n}\n"
	}
	const masquerade = "masquerade: {out: eth0}"
	for name, c := range map[string]struct {
		text  string
		rules []string
		line  int
	}{
		"a match of iptables":            {post("ip daddr 10.1.0.0/16 # xt_policy counter packets 0 bytes 0 accept"), nil, 5},
		"a match at the begin":           {post("# xt_policy counter packets 0 bytes 0 accept # handle 7"), nil, 5},
		"a match in words of iptables":   {post("ip daddr 10.1.0.0/16 # policy match dir out pol ipsec counter packets 0 bytes 0 accept"), nil, 5},
		"only a match of iptables":       {post("# policy match dir out pol ipsec counter packets 0 bytes 0 accept"), nil, 5},
		"a target of iptables":           {post("ip saddr 10.1.0.0/16 counter packets 5 bytes 300 # xt_SNAT"), nil, 4},
		"a target without a counter":     {post("ip saddr 10.1.0.0/16 # xt_NETMAP # handle 5"), nil, 4},
		"a match that nft names":         {post("ip daddr 10.1.0.0/16 xt match policy counter packets 0 bytes 0 accept"), nil, 5},
		"a comment of iptables":          {post("ip daddr 10.1.0.0/16 xt match \"comment\" counter packets 0 bytes 0 accept"), []string{"masquerade: {except-to: 10.1.0.0/16, out: eth0}"}, 0},
		"a comment":                      {post("ip daddr 10.1.0.0/16 counter packets 0 bytes 0 accept # the other office"), []string{"masquerade: {except-to: 10.1.0.0/16, out: eth0}"}, 0},
		"a rule in a comment":            {post("# ip daddr 10.1.0.0/16 counter packets 0 bytes 0 accept"), []string{masquerade}, 0},
		"no name":                        {"table ip nat { chain post { " + chain + "\n oifname \"\" masquerade; } }", nil, 2},
		"an empty definition":            {"define wan =\ntable ip nat { chain post { " + chain + "\n oifname $wan masquerade; } }", nil, 3},
		"brackets":                       {"add chain ip nat post { " + chain + " { masquerade; } }", nil, 1},
		"an empty priority":              {"table ip nat { chain post { type nat hook postrouting priority \" \"; } }", nil, 0},
		"a set that rules fill":          {"table ip nat { set s { type ipv4_addr; size 9; flags dynamic; elements = { 10.0.0.1 } }\n chain post { " + chain + "\n ip saddr @s masquerade; } }", nil, 3},
		"elements that end":              {"table ip nat { set s { type ipv4_addr . inet_service; flags interval,timeout; elements = { 10.0.0.1 . 80 timeout 1h expires 5m } }\n chain post { " + chain + "\n ip saddr . tcp dport @s masquerade; } }", nil, 3},
		"a map that rules fill":          {"table ip nat { map m { type ipv4_addr : verdict; flags dynamic; elements = { 10.0.0.1 : accept } }\n chain post { " + chain + "\n ip saddr vmap @m\n masquerade; } }", nil, 3},
		"an element that is deleted":     {"table ip nat { set s { type ipv4_addr; elements = { 10.0.0.1, 10.0.0.2 } }\n chain post { " + chain + "\n ip saddr != @s masquerade; } }\ndelete element ip nat s { 10.0.0.1 }\nadd element ip nat s { 10.0.0.3 }", nil, 3},
		"an exception that is not read":  {"table ip filter { chain forward { type filter hook forward priority 0;\n ip daddr @office accept\n tcp flags syn tcp option maxseg size set rt mtu; } }", nil, 3},
		"an exception by a name":         {"*mangle\n-A FORWARD -d example.org -j RETURN\n-A FORWARD -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu\nCOMMIT\n", nil, 3},
		"a connection's mark":            {post("ct mark 0x10 accept"), nil, 5},
		"a mark of the connection's":     {post("meta mark set ct mark"), []string{masquerade}, 4},
		"a map of the connection's mark": {post("ct mark vmap { 0x1 : accept }"), nil, 4},
	} {
		t.Run(name, func(t *testing.T) {
			rules, notes, r := imported(t, c.text)
			if diff := cmp.Diff(c.rules, rules); diff != "" {
				t.Errorf("rules (-want +got):\n%s%+v", diff, notes)
			}
			if c.line > 0 && notes[c.line].Kind != ruleset.Untranslated || c.line == 0 && !r.Exact() {
				t.Errorf("line %d: %+v", c.line, r.Notes)
			}
		})
	}
}

// TestZonesOfUCI: a zone may ask for more than interfaces, and OpenWrt leaves out some sections.
func TestZonesOfUCI(t *testing.T) {
	const zone = "config zone\n\toption name wan\n\tlist device eth0\n\toption masq 1\n"
	redirect := func(options string) string {
		return "config redirect\n\toption proto tcp\n\toption src_dport 80\n\toption dest_ip 10.0.0.1\n" + options
	}
	const masquerade, web = "masquerade: {out: eth0}", "dnat: {on: any, port: tcp/80, to: 10.0.0.1, in: eth0}"
	for name, c := range map[string]struct {
		text  string
		rules []string
		kinds []string
	}{
		"all":                   {zone + redirect("\toption src wan\n"), []string{masquerade, web}, nil},
		"a subnet":              {zone + "\tlist subnet 192.0.2.0/24\n" + redirect("\toption src wan\n"), nil, []string{ruleset.Untranslated, ruleset.Untranslated}},
		"of IPv6":               {zone + "\toption family ipv6\n" + redirect("\toption src wan\n"), nil, nil},
		"of IPv4":               {zone + "\toption family ipv4\n", []string{masquerade}, nil},
		"not from one of IPv4":  {zone + "\toption masq6 1\n\tlist masq_src '!192.168.1.66'\n", []string{"masquerade: {out: eth0, except-from: 192.168.1.66}", masquerade}, nil},
		"disabled":              {zone + "\toption enabled 0\n" + redirect("\toption src wan\n"), nil, []string{ruleset.Untranslated}},
		"from no zone":          {zone + redirect(""), []string{masquerade}, []string{ruleset.LeftAlone}},
		"from all zones":        {zone + redirect("\toption src '*'\n"), []string{masquerade}, []string{ruleset.LeftAlone}},
		"of either version":     {zone + redirect("\toption src wan\n\toption family any\n"), []string{masquerade, web}, nil},
		"a set with a timeout":  {zone + "config ipset\n\toption name s\n\tlist match src_ip\n\toption timeout 600\n\tlist entry 198.51.100.1\n" + redirect("\toption src wan\n\toption ipset s\n"), []string{masquerade}, []string{ruleset.Untranslated}},
		"vyos: address, group":  {"set firewall group address-group G address 10.0.0.1\nset nat source rule 1 source address 10.0.0.0/8\nset nat source rule 1 source group address-group G\nset nat source rule 1 translation address masquerade\n", nil, []string{ruleset.Untranslated}},
		"vyos: port, and group": {"set firewall group port-group G port 80\nset nat source rule 1 protocol tcp\nset nat source rule 1 destination port 1-1024\nset nat source rule 1 destination group port-group G\nset nat source rule 1 translation address masquerade\n", nil, []string{ruleset.Untranslated}},
	} {
		t.Run(name, func(t *testing.T) {
			rules, _, r := imported(t, c.text)
			var kinds []string
			for _, n := range r.Notes {
				kinds = append(kinds, n.Kind)
			}
			if diff := cmp.Diff(c.rules, rules) + cmp.Diff(c.kinds, kinds); diff != "" {
				t.Errorf("(-want +got):\n%s%+v", diff, r.Notes)
			}
		})
	}
}

// TestConfigurationsLoseNothing: what a configuration says of translation is in the file, or among the notes.
func TestConfigurationsLoseNothing(t *testing.T) {
	const zone = "config zone\n\toption name wan\n\tlist device pppoe-wan\n\toption masq 1\n"
	const vyos = "set nat source rule 10 outbound-interface name 'pppoe0'\nset nat source rule 10 translation address 'masquerade'\n"
	for name, c := range map[string]struct {
		text string
		mss  gateway.MSS
		line int
		kind string
		rule string
	}{
		"mtu_fix":                 {text: zone + "\toption mtu_fix '1'\n", mss: gateway.MSS{Clamp: true}, line: 1, kind: ruleset.Differs},
		"no mtu_fix":              {text: zone + "\toption mtu_fix '0'\n"},
		"another target":          {text: zone + "config redirect\n\toption target 'SOMETHING'\n", line: 5, kind: ruleset.Untranslated},
		"notrack of a zone":       {text: zone + "config rule\n\toption target NOTRACK\n", line: 5, kind: ruleset.Untranslated},
		"helper":                  {text: zone + "config rule\n\toption target HELPER\n", line: 5, kind: ruleset.Untranslated},
		"another file":            {text: zone + "config include\n\toption path '/etc/firewall.user'\n", line: 5, kind: ruleset.Untranslated},
		"a rule that logs":        {text: zone + "config redirect\n\toption name web\n\toption src wan\n\toption proto tcp\n\toption src_dport 80\n\toption dest_ip 10.0.0.1\n\toption log 1\n", line: 5, kind: ruleset.Differs, rule: `log: {prefix: "web: "}`},
		"a rule with a prefix":    {text: zone + "config redirect\n\toption name web\n\toption src wan\n\toption proto tcp\n\toption src_dport 80\n\toption dest_ip 10.0.0.1\n\toption log 'in '\n", line: 5, kind: ruleset.Differs, rule: `log: {prefix: "in "}`},
		"vyos: clamp":             {text: "set interfaces pppoe pppoe0 ip adjust-mss 'clamp-mss-to-pmtu'\n" + vyos, mss: gateway.MSS{Clamp: true}, line: 1, kind: ruleset.Differs},
		"vyos: clamp of a VLAN":   {text: "interfaces {\n ethernet eth0 {\n  vif 7 {\n   ip {\n    adjust-mss clamp-mss-to-pmtu\n   }\n  }\n }\n}\nnat {\n source {\n  rule 1 {\n   translation {\n    address masquerade\n   }\n  }\n }\n}\n", mss: gateway.MSS{Clamp: true}, line: 5, kind: ruleset.Differs},
		"vyos: a number":          {text: "set firewall options interface pppoe0 adjust-mss '1412'\n" + vyos, line: 1, kind: ruleset.Untranslated},
		"vyos: nat64":             {text: "set nat64 source rule 10 source prefix '64:ff9b::/96'\nset nat64 source rule 10 translation pool 1 address '203.0.113.1'\n" + vyos, line: 1, kind: ruleset.Untranslated},
		"vyos: cgnat":             {text: "set nat cgnat pool external ext1 range '203.0.113.0/24'\n" + vyos, line: 1, kind: ruleset.Untranslated},
		"vyos: uplinks":           {text: "set load-balancing wan interface-health eth0 nexthop '203.0.113.1'\n" + vyos, line: 1, kind: ruleset.Untranslated},
		"vyos: a rule that logs":  {text: vyos + "set nat source rule 10 log\n", line: 1, kind: ruleset.Differs, rule: "log: on"},
		"vyos: nat64 and no more": {text: "nat64 {\n source {\n  rule 1 {\n   source {\n    prefix 64:ff9b::/96\n   }\n  }\n }\n}\n", line: 3, kind: ruleset.Untranslated},
	} {
		t.Run(name, func(t *testing.T) {
			rules, notes, r := imported(t, c.text)
			if r.Config.MSS != c.mss {
				t.Errorf("mss: %+v, want %+v", r.Config.MSS, c.mss)
			}
			if n := notes[c.line]; n.Kind != c.kind {
				t.Errorf("line %d: %+v, want %q; %+v", c.line, n, c.kind, r.Notes)
			}
			if !strings.Contains(strings.Join(rules, "\n"), c.rule) {
				t.Errorf("%q, want %q", rules, c.rule)
			}
		})
	}
}

// TestTimes: hours and days are those of UTC, or their rule is refused.
func TestTimes(t *testing.T) {
	const dnat, zone = "dnat: {on: any, port: tcp/80, to: 192.168.1.10, in: eth0", "config zone\n\toption name wan\n\tlist device eth0\n"
	iptables := func(options string) string {
		return "*nat\n-A PREROUTING -i eth0 -p tcp -m tcp --dport 80 -m time " + options + " -j DNAT --to-destination 192.168.1.10\nCOMMIT\n"
	}
	nft := func(condition string) string {
		return "table ip nat {\nchain pre {\ntype nat hook prerouting priority dstnat; policy accept;\niifname \"eth0\" tcp dport 80 " + condition + " dnat to 192.168.1.10\n}\n}\n"
	}
	uci := func(options string) string {
		return zone + "config redirect\n\toption src wan\n\toption proto tcp\n\toption src_dport 80\n\toption dest_ip 192.168.1.10\n" + options
	}
	for text, want := range map[string]struct{ rule, kind string }{
		iptables("--timestart 08:00:00 --timestop 17:59:59 --datestop 2038-01-19T03:14:07"): {rule: ", utc-hours: 08:00-18:00}"},
		iptables("--timestart 08:00 --timestop 18:00 --utc"):                                {", utc-hours: 08:00-18:00}", ruleset.Differs},
		iptables("--timestart 22:00 --timestop 05:59:59"):                                   {rule: ", utc-hours: [00:00-06:00, 22:00-24:00]}"},
		iptables("--timestart 22:00 --timestop 00:00"):                                      {", utc-hours: 22:00-24:00}", ruleset.Differs},
		iptables("--weekdays Mon,6,Sun"):                                                    {rule: ", utc-days: [sun, mon, sat]}"},
		iptables("! --weekdays Sun --timestart 06:00"):                                      {rule: ", utc-hours: 06:00-24:00, except-utc-days: sun}"},
		iptables("--weekdays Mon,Tue,Wed,Thu,Fri,Sat,Sun"):                                  {rule: "}"},
		iptables("--timestart 08:00:30"):                                                    {kind: ruleset.Untranslated},
		iptables("--timestart 08:00 --kerneltz"):                                            {kind: ruleset.Untranslated},
		iptables("--timestart 22:00 --timestop 06:00 --contiguous"):                         {kind: ruleset.Untranslated},
		iptables("--datestart 2026-01-01"):                                                  {kind: ruleset.Untranslated},
		iptables("--datestop 2026-01-01"):                                                   {kind: ruleset.Untranslated},
		iptables("--monthdays 1"):                                                           {kind: ruleset.Untranslated},
		nft("meta day \"Monday\""):                                                          {rule: ", utc-days: mon}"},
		nft("meta day { Saturday, Sunday }"):                                                {rule: ", utc-days: [sun, sat]}"},
		nft("meta day != { 6, 0 }"):                                                         {rule: ", except-utc-days: [sun, sat]}"},
		nft("meta hour \"08:00\"-\"18:00\""):                                                {kind: ruleset.Untranslated},
		uci("\toption utc_time 1\n\toption start_time 08:00:00\n\toption stop_time 17:59:59\n\toption weekdays 'Mon Tue'\n"): {rule: ", utc-hours: 08:00-18:00, utc-days: [mon, tue]}"},
		uci("\toption utc_time 1\n\toption weekdays '!Sun'\n"):                                                               {rule: ", except-utc-days: sun}"},
		uci("\toption start_time 08:00:00\n"):                                                                                {kind: ruleset.Untranslated},
		uci("\toption utc_time 1\n\toption start_date 2026-01-01\n"):                                                         {kind: ruleset.Untranslated},
	} {
		rules, _, r := imported(t, text)
		if want.rule != "" {
			want.rule = dnat + want.rule
		}
		if diff := cmp.Diff(ruleset.Some(want.rule), rules); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
		kinds := []string{}
		for _, n := range r.Notes {
			kinds = append(kinds, n.Kind)
		}
		if !slices.Equal(slices.Compact(kinds), ruleset.Some(want.kind)) {
			t.Errorf("%s: %+v, want %q", text, r.Notes, want.kind)
		}
	}
}

// TestLabels: names and comments of the original, and rules that are disabled there.
func TestLabels(t *testing.T) {
	const zone = "config zone\n\toption name wan\n\tlist device eth0\n"
	for text, want := range map[string][]string{
		zone + "config redirect\n\toption name web\n\toption src wan\n\toption proto tcp\n\toption src_dport 80\n\toption dest_ip 10.0.0.1\n": {
			"{dnat: {on: any, port: tcp/80, to: 10.0.0.1, in: eth0}, name: web}"},
		zone + "config redirect\n\toption name 'web \"1\"'\n\toption enabled 0\n\toption src wan\n\toption proto tcp\n\toption src_dport 80\n\toption dest_ip 10.0.0.1\n": {
			"{dnat: {on: any, port: tcp/80, to: 10.0.0.1, in: eth0}, note: \"web '1'\", enabled: off}"},
		"*nat\n-A POSTROUTING -o eth0 -m comment --comment \"the \\\\ office\" -j MASQUERADE\nCOMMIT\n": {"{masquerade: {out: eth0}, note: \"the   office\"}"},
		"*nat\n-A POSTROUTING -o eth0 -m comment --comment a -j MASQUERADE\n-A POSTROUTING -o eth1 -m comment --comment a -j MASQUERADE\nCOMMIT\n": {
			"{masquerade: {out: eth0}, note: a}", "{masquerade: {out: eth1}, note: a}"},
		"table ip nat { chain p { type nat hook postrouting priority 100; oifname eth0 masquerade comment \"office\" } }": {"{masquerade: {out: eth0}, name: office}"},
		"set nat source rule 5 disable\nset nat source rule 5 translation address masquerade\nset nat source rule 9 source address 10.0.0.0/8\nset nat source rule 9 translation address masquerade\n": {
			"masquerade: {from: 10.0.0.0/8}", "{masquerade: {}, enabled: off}"},
		"set nat static rule 5 disable\nset nat static rule 5 destination address 203.0.113.5\nset nat static rule 5 translation address 10.0.0.5\nset nat source rule 9 translation address masquerade\n": {
			"masquerade: {}", "{static: {inside: 10.0.0.5, outside: 203.0.113.5}, enabled: off}"},
	} {
		rules, notes, _ := imported(t, text)
		if diff := cmp.Diff(want, rules); diff != "" {
			t.Errorf("%s (-want +got):\n%s%+v", text, diff, notes)
		}
	}
}

// TestCommandsOfNft: what a shell runs, as in a file of wg-quick, whose name says which interface %i is.
func TestCommandsOfNft(t *testing.T) {
	const table = "PostUp = nft add table ip wg; nft add chain ip wg post '{ type nat hook postrouting priority srcnat; }'\n"
	for text, want := range map[string][]string{
		table + "PostUp = nft add rule ip wg post ip saddr 10.8.0.0/24 oifname \"eth0\" masquerade\nPostDown = nft delete table ip wg\n":    {"masquerade: {from: 10.8.0.0/24, out: eth0}"},
		table + "PostUp = nft add rule ip wg post iifname %i oifname eth0 masquerade && iptables -A FORWARD -i %i -j ACCEPT\n":              {"masquerade: {out: eth0, in: wg0}"},
		"PostUp = iptables -t nat -A POSTROUTING -o %i -m comment --comment 'a b' -j MASQUERADE\n":                                          {"masquerade: {out: wg0}"},
		"sudo nft add chain ip nat post { type nat hook postrouting priority 100 \\; }\nnft add rule ip nat post oifname eth0 masquerade\n": {"masquerade: {out: eth0}"},
		table + "PostUp = nft add rule ip wg post oifname $WAN masquerade\n":                                                                nil,
		"PostUp = nft -f /etc/wireguard/nat.nft\n":                                                                                          nil,
		table + "PostUp = nft add rule ip wg post oifname eth0 limit rate 5/second masquerade\n":                                            nil,
	} {
		r, err := Import(ruleset.ParseFile("/etc/wireguard/wg0.conf", "[Interface]\n"+text, 4))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, rulesOf(r)); diff != "" {
			t.Errorf("%s (-want +got):\n%s%+v", text, diff, r.Notes)
		}
		if len(want) == 0 && r.Exact() {
			t.Errorf("%s: nothing is said of what is left", text)
		}
	}
}

// TestReflectionsOfUCI: a redirect without a zone inside is reflected in that of its address, as fw4 does; several zones
// are named by reflection_zone. An ipset of the text is its addresses.
func TestReflectionsOfUCI(t *testing.T) {
	const network = "config interface lan\n\toption device br-lan\n\toption proto static\n\tlist ipaddr 192.168.1.1/24\n" +
		"config interface wan\n\toption device eth0\n\toption proto static\n\tlist ipaddr 203.0.113.2/24\n" +
		"config zone\n\toption name lan\n\toption network lan\nconfig zone\n\toption name wan\n\toption network wan\n\toption masq 1\n" +
		"config ipset\n\toption name office\n\tlist match src_net\n\tlist entry 198.51.100.0/28\n\tlist entry 192.0.2.33\n" +
		"config ipset\n\toption name file\n\tlist match src_net\n\toption loadfile /etc/list\n"
	redirect := func(options string) string {
		return network + "config redirect\n\toption src wan\n\toption proto tcp\n\toption src_dport 80\n\toption dest_ip 192.168.1.10\n" + options
	}
	for text, want := range map[string]int{redirect(""): 4, redirect("\toption dest lan\n"): 4, redirect("\toption reflection_zone 'lan wan'\n"): 5, redirect("\toption reflection 0\n"): 2,
		redirect("\toption reflection 0\n\toption ipset office\n"): 2, redirect("\toption reflection 0\n\toption ipset file\n"): 1, redirect("\toption reflection 0\n\toption ipset '!office'\n"): 2} {
		rules, notes, _ := imported(t, text)
		if len(rules) != want {
			t.Errorf("%d rules, want %d: %q %+v\n%s", len(rules), want, rules, notes, text)
		}
	}
	rules, _, _ := imported(t, redirect("\toption reflection 0\n\toption ipset office\n"))
	if !slices.ContainsFunc(rules, func(r string) bool { return strings.Contains(r, "from: [198.51.100.0/28, 192.0.2.33]") }) {
		t.Errorf("%q", rules)
	}
}

// TestPolicies: what IPsec policies keep from a translation refuses it, with the word that a file has instead.
func TestPolicies(t *testing.T) {
	rules, notes, _ := imported(t, "*nat\n-A POSTROUTING -m policy --dir out --pol ipsec -j ACCEPT\n-A POSTROUTING -o eth0 -j MASQUERADE\nCOMMIT\n")
	if n := notes[3]; len(rules) > 0 || n.Kind != ruleset.Untranslated || !strings.Contains(n.Reason, "except-to") {
		t.Errorf("%q, %+v", rules, notes)
	}
}

func rulesOf(r *Result) (all []string) {
	for _, rule := range slices.Concat(r.Config.NAT, r.Config.IPv6) {
		if rule.Name, rule.Note = "", ""; rule.Enabled == nil { // comments of the kernel's rules are others
			all = append(all, gateway.MarshalRule(rule))
		}
	}
	slices.Sort(all)
	return all
}
