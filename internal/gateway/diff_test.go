package gateway

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// changes are a difference's lines; settings come last.
func changes(d Diff) string {
	var b strings.Builder
	for _, r := range d.Rules {
		fmt.Fprintf(&b, "%s %s: %s -> %s\n", r.Change, r.Rule, r.Before, r.After)
	}
	for _, s := range d.Settings {
		fmt.Fprintf(&b, "%s: %s -> %s\n", s.Setting, s.Before, s.After)
	}
	return fmt.Sprintf("%s%d unchanged, %d renumbered\n", b.String(), d.Unchanged, d.Renumbered)
}

// What turning a setting off does to connections is not what turning it on does.
func TestSettingsTurnedOff(t *testing.T) {
	effects := func(old, new string) (all map[string]string) {
		all = map[string]string{}
		for _, s := range DiffOf(compile(t, old, router), compile(t, new, router)).Settings {
			all[s.Setting] = s.Connections
		}
		return all
	}
	const with = roles + "\n  accounting: on\n  helpers: [ftp, sip]\n  limits: {connections-per-source: 5}"
	on, off := effects(roles, with), effects(with, roles)
	for _, name := range []string{"accounting", "connections-per-source", "helpers"} {
		if on[name] == "" || off[name] == "" || on[name] == off[name] {
			t.Errorf("%s: on %q, off %q", name, on[name], off[name])
		}
	}
}

func TestBetween(t *testing.T) {
	const base = roles + `
  nat:
    - masquerade: {from: [192.168.0.0/16, 10.0.0.0/8], except-to: 10.0.0.0/8}
    - dnat: {on: wan, port: tcp/80, to: "192.168.0.2:8080", hairpin: true}`
	for _, c := range []struct{ name, old, new, want string }{
		{"the same", base, base, `
2 unchanged, 0 renumbered
`},
		{"from nothing", "", base + "\n  mss: clamp", `
added nat[0] masquerade:  -> from 192.168.0.0/16, 10.0.0.0/8 except to 10.0.0.0/8 out eth0 becomes the interface's address
added nat[1] dnat:  -> on 203.0.113.1, 203.0.113.2 tcp/80 becomes 192.168.0.2:8080 hairpin
engine:  -> netfilter
wan:  -> eth0
lan:  -> eth1
mss:  -> clamp
IPv4 forwarding:  -> on
0 unchanged, 0 renumbered
`},
		{"a rule before others is one rule", base, strings.Replace(base, "\n    - masq", "\n    - notrack: {on: 203.0.113.9}\n    - masq", 1), `
added nat[0] notrack:  -> to and from 203.0.113.9 not tracked
2 unchanged, 2 renumbered
`},
		{"another target is a change", base, strings.Replace(base, "192.168.0.2:", "192.168.0.3:", 1), `
changed nat[1] dnat: on 203.0.113.1, 203.0.113.2 tcp/80 becomes 192.168.0.2:8080 hairpin -> on 203.0.113.1, 203.0.113.2 tcp/80 becomes 192.168.0.3:8080 hairpin
1 unchanged, 0 renumbered
`},
		{"hairpin is a change", base, strings.Replace(base, ", hairpin: true", "", 1), `
changed nat[1] dnat: on 203.0.113.1, 203.0.113.2 tcp/80 becomes 192.168.0.2:8080 hairpin -> on 203.0.113.1, 203.0.113.2 tcp/80 in eth0 becomes 192.168.0.2:8080
1 unchanged, 0 renumbered
`},
		{"snat in the place of masquerade", base, strings.Replace(base, "masquerade: {", "snat: {to: 203.0.113.1, ", 1), `
changed nat[0] snat: from 192.168.0.0/16, 10.0.0.0/8 except to 10.0.0.0/8 out eth0 becomes the interface's address -> from 192.168.0.0/16, 10.0.0.0/8 except to 10.0.0.0/8 out eth0 becomes 203.0.113.1
1 unchanged, 0 renumbered
`},
		{"removed, and another at its place", base, strings.Replace(base, "masquerade: {from: [192.168.0.0/16, 10.0.0.0/8], except-to: 10.0.0.0/8}", "netmap: {inside: 10.1.0.0/24, outside: 198.51.100.0/24}", 1), `
added nat[0] netmap:  -> 10.1.0.0/24 is outside 198.51.100.0/24 out eth0
removed nat[0] masquerade: from 192.168.0.0/16, 10.0.0.0/8 except to 10.0.0.0/8 out eth0 becomes the interface's address -> 
1 unchanged, 0 renumbered
`},
		{"a note and a log", base, strings.Replace(base, "- masquerade: {from: [192.168.0.0/16, 10.0.0.0/8], except-to: 10.0.0.0/8}", "- masquerade: {from: [192.168.0.0/16, 10.0.0.0/8], except-to: 10.0.0.0/8}\n      note: everybody\n      log: {rate: 1/s}", 1), `
changed nat[0] masquerade: from 192.168.0.0/16, 10.0.0.0/8 except to 10.0.0.0/8 out eth0 becomes the interface's address -> from 192.168.0.0/16, 10.0.0.0/8 except to 10.0.0.0/8 out eth0 becomes the interface's address log 1/s
1 unchanged, 0 renumbered
`},
		{"all gone", base, "", `
removed nat[0] masquerade: from 192.168.0.0/16, 10.0.0.0/8 except to 10.0.0.0/8 out eth0 becomes the interface's address -> 
removed nat[1] dnat: on 203.0.113.1, 203.0.113.2 tcp/80 becomes 192.168.0.2:8080 hairpin -> 
engine: netfilter -> 
wan: eth0 -> 
lan: eth1 -> 
IPv4 forwarding: on -> 
0 unchanged, 0 renumbered
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			old, new := planOrNil(t, c.old), planOrNil(t, c.new)
			d := DiffOf(old, new)
			if diff := cmp.Diff(strings.TrimPrefix(c.want, "\n"), changes(d)); diff != "" {
				t.Error(diff)
			}
			if d.Same() != (c.old == c.new) {
				t.Error("Same:", d.Same())
			}
		})
	}
}

// planOrNil makes the plan of what stands below the key gateway; nil of nothing.
func planOrNil(t testing.TB, body string) *Plan {
	t.Helper()
	if body == "" {
		return nil
	}
	return compile(t, body, router)
}

func TestEffects(t *testing.T) {
	static := func(more string) string {
		return roles + "\n  nat:\n    - static: {inside: 192.168.0.3, outside: 203.0.113.9" + more + "}\n    - notrack: {on: 203.0.113.10}"
	}
	masq := roles + "\n  nat:\n    - masquerade: {}"
	balanced := func(more string) string {
		return roles + "\n  nat:\n    - dnat: {on: 203.0.113.7, port: tcp/80, to: [10.0.0.1, 10.0.0.2]" + more + ", hairpin: on}"
	}
	for _, c := range []struct{ name, old, new, want string }{
		{"stateful to stateless", static(""), static(", stateless: true"), statelessEffects[Changed]},
		{"hairpin", static(""), static(", hairpin: true"), trackedEffects[Changed]},
		{"notrack goes", static(""), strings.Split(static(""), "\n    - notrack")[0], untrackedEffects[Removed]},
		{"a rule goes, others stay", static(""), strings.Replace(static(""), "static: {inside: 192.168.0.3, outside: 203.0.113.9", "masquerade: {", 1), trackedEffects[Added]},
		{"all goes", masq, "", untranslated},
		{"a log comes", masq, masq + "\n      log: on", reportedAnew},
		{"checks come", balanced(""), balanced(", health: {tcp: on}"), checkedAnew},
		{"other checks", balanced(", health: {tcp: on}"), balanced(", health: {tcp: on, fall: 9}, all-down: reject"), checkedAnew},
		{"checks and a host", balanced(", health: {tcp: on}"), strings.Replace(balanced(""), "10.0.0.1", "10.0.0.9", 1), trackedEffects[Changed]},
		{"a name comes", masq, masq + "\n      name: all", reportedAnew},
		{"an interface named stateless", "", "\n  nat:\n    - masquerade: {out: stateless}", trackedEffects[Added]},
	} {
		d := DiffOf(planOrNil(t, c.old), planOrNil(t, c.new))
		if len(d.Rules) == 0 || d.Rules[0].Connections != c.want {
			t.Errorf("%s: %+v", c.name, d.Rules)
		}
	}
}
