package behaviour

import (
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/convert"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/testutil"
)

// typed is an engine that runs commands of iptables, whatever the plan, and imports
// what then is there.
type typed struct {
	program  string
	commands []string
	// saved and live are what the text of iptables-save and the kernel's rules give.
	saved, live *convert.Result
}

func (*typed) Name() string               { return "iptables" }
func (*typed) Remove(*netns.Handle) error { return nil }

func (e *typed) Apply(ns *netns.Handle, _ *gateway.Plan) error {
	var text []byte
	err := ns.Do(func() (err error) {
		for _, c := range e.commands {
			command := exec.Command(e.program, strings.Fields(c)...)
			if out, err := command.CombinedOutput(); err != nil {
				return fmt.Errorf("%v: %w: %s", command, err, out)
			}
		}
		// One program has several names, of which a machine may lack this one.
		save := exec.Command(e.program)
		save.Args = []string{e.program + "-save"}
		text, err = save.Output()
		return err
	})
	if err != nil {
		return err
	}
	if e.saved, err = convert.Import(ruleset.Parse(string(text), 4)); err != nil {
		return err
	}
	set, err := read.Tables(ns)
	if err != nil {
		return err
	}
	e.live, err = convert.Import(set)
	return err
}

// importCases are kinds of NAT as iptables has them, with the number of rules that
// cannot be translated.
var importCases = []struct {
	name         string
	commands     []string
	untranslated int
	want         []string
}{
	{"masquerade", []string{"-A POSTROUTING -s 192.168.0.0/16 -j MASQUERADE"}, 0,
		[]string{"masquerade: {from: 192.168.0.0/16}"}},
	{"masquerade out of an interface but to some", []string{
		"-A POSTROUTING -s 192.168.0.0/16 -d 198.18.1.0/24 -j RETURN", "-A POSTROUTING -s 192.168.0.0/16 -o wan -j MASQUERADE"}, 0,
		[]string{"masquerade: {from: 192.168.0.0/16, except-to: 198.18.1.0/24, out: wan}"}},
	{"masquerade by a negation", []string{"-A POSTROUTING -s 192.168.0.0/16 ! -d 198.18.1.0/24 -j MASQUERADE --random-fully"}, 0,
		[]string{"masquerade: {from: 192.168.0.0/16, except-to: 198.18.1.0/24, random: fully}"}},
	{"snat of one", []string{"-A POSTROUTING -s 192.168.0.2 -j SNAT --to-source 203.0.113.7"}, 0,
		[]string{"snat: {from: 192.168.0.2, to: 203.0.113.7}"}},
	{"snat to a pool", []string{"-A POSTROUTING -s 192.168.0.0/24 -o wan -j SNAT --to-source 203.0.113.8-203.0.113.15 --persistent"}, 0,
		[]string{"snat: {from: 192.168.0.0/24, out: wan, to: 203.0.113.8/29}"}},
	{"dnat of an address", []string{"-A PREROUTING -d 203.0.113.7 -j DNAT --to-destination 192.168.0.2"}, 0,
		[]string{"dnat: {on: 203.0.113.7, to: 192.168.0.2}"}},
	{"dnat of ports", []string{
		"-A PREROUTING -d 203.0.113.7 -p udp --dport 5000 -j DNAT --to-destination 192.168.0.2:6000",
		"-A PREROUTING -d 203.0.113.7 -p udp --dport 5001:5003 -j DNAT --to-destination 192.168.0.3",
		"-A PREROUTING -d 203.0.113.7 -p tcp -m multiport --dports 80,443 -j DNAT --to-destination 172.17.0.2"}, 0,
		[]string{"dnat: {on: 203.0.113.7, port: udp/5000, to: 192.168.0.2:6000}", "dnat: {on: 203.0.113.7, port: udp/5001-5003, to: 192.168.0.3}",
			"dnat: {on: 203.0.113.7, port: [tcp/80, tcp/443], to: 172.17.0.2}"}},
	{"both: a floating address", []string{
		"-A POSTROUTING -s 192.168.0.2 -j SNAT --to-source 203.0.113.9", "-A PREROUTING -d 203.0.113.9 -j DNAT --to-destination 192.168.0.2"}, 0,
		[]string{"static: {inside: 192.168.0.2, outside: 203.0.113.9}"}},
	{"netmap", []string{
		"-A POSTROUTING -s 192.168.0.0/26 -j NETMAP --to 203.0.113.64/26", "-A PREROUTING -d 203.0.113.64/26 -j NETMAP --to 192.168.0.0/26"}, 0,
		[]string{"netmap: {inside: 192.168.0.0/26, outside: 203.0.113.64/26}"}},
	{"by way of a chain", []string{"-N in", "-A PREROUTING -d 203.0.113.7 -j in", "-A in -p udp --dport 5000 -j DNAT --to-destination 192.168.0.2",
		"-A POSTROUTING -s 192.168.0.2 -j SNAT --to-source 203.0.113.7", "-A POSTROUTING -s 192.168.0.0/24 -j MASQUERADE"}, 0,
		[]string{"dnat: {on: 203.0.113.7, port: udp/5000, to: 192.168.0.2}", "snat: {from: 192.168.0.2, to: 203.0.113.7}", "masquerade: {from: 192.168.0.0/24}"}},
	{"a way in for one interface", []string{"-A PREROUTING -i wan -d 203.0.113.7 -p udp --dport 5000 -j DNAT --to-destination 192.168.0.2"}, 0,
		[]string{"dnat: {on: 203.0.113.7, port: udp/5000, to: 192.168.0.2, in: wan}"}},
	{"a way in for hosts inside and the gateway too", []string{
		"-A PREROUTING -d 203.0.113.7 -p udp --dport 5000 -j DNAT --to-destination 192.168.0.2:5002",
		"-A OUTPUT -d 203.0.113.7 -p udp --dport 5000 -j DNAT --to-destination 192.168.0.2:5002",
		"-A POSTROUTING -s 192.168.0.0/24 -d 192.168.0.2 -o lan -p udp --dport 5002 -j SNAT --to-source 203.0.113.7",
		"-A POSTROUTING -s 192.168.0.0/24 -j MASQUERADE"}, 0,
		[]string{"dnat: {on: 203.0.113.7, port: udp/5000, to: 192.168.0.2:5002, local: on}", "masquerade: {from: 192.168.0.0/24}",
			"snat: {from: 192.168.0.0/24, only-to: 192.168.0.2, port: udp/5002, out: lan, to: 203.0.113.7}"}},
	{"a port that is not tracked", []string{
		"-t raw -A PREROUTING -d 203.0.113.9 -p udp --dport 5000 -j CT --notrack",
		"-t raw -A OUTPUT -s 203.0.113.9 -p udp --sport 5000 -j CT --notrack",
		"-A PREROUTING -d 203.0.113.9 -j DNAT --to-destination 192.168.0.2"}, 0,
		[]string{"notrack: {on: 203.0.113.9, port: udp/5000}", "dnat: {on: 203.0.113.9, to: 192.168.0.2}"}},
	{"a rule that another one does the same as", []string{
		"-A PREROUTING -d 203.0.113.7 -p udp --dport 5000 -j DNAT --to-destination 192.168.0.2",
		"-A POSTROUTING -s 192.168.0.0/24 -d 192.168.0.2 -j MASQUERADE",
		"-A POSTROUTING -s 192.168.0.0/24 -j MASQUERADE"}, 0,
		[]string{"dnat: {on: 203.0.113.7, port: udp/5000, to: 192.168.0.2}", "masquerade: {from: 192.168.0.0/24}", "masquerade: {from: 192.168.0.0/24, only-to: 192.168.0.2}"}},
	{"policy", []string{
		"-A POSTROUTING -s 192.168.0.0/16 -d 198.18.1.0/24 -p udp --dport 5000 -j SNAT --to-source 203.0.113.20",
		"-A POSTROUTING ! -s 192.168.0.2 -j SNAT --to-source 203.0.113.21", "-A POSTROUTING -s 192.168.0.2 -p tcp -j SNAT --to-source 203.0.113.22"}, 0,
		[]string{"snat: {from: 192.168.0.0/16, only-to: 198.18.1.0/24, port: udp/5000, to: 203.0.113.20}",
			"snat: {to: 203.0.113.21, except-from: 192.168.0.2}", "snat: {from: 192.168.0.2, port: tcp, to: 203.0.113.22}"}},
	{"the wider one first", []string{
		"-A PREROUTING -i dmz -p udp --dport 5000:5002 -j DNAT --to-destination 192.168.0.2", "-A PREROUTING -d 203.0.113.7 -p udp --dport 5000 -j DNAT --to-destination 192.168.0.3:80"}, 0,
		[]string{"dnat: {on: any, port: udp/5000-5002, to: 192.168.0.2, in: dmz}", "dnat: {on: 203.0.113.7, port: udp/5000, to: 192.168.0.3:80, except-in: dmz}"}},
	{"what has no word", []string{"-A POSTROUTING -s 192.168.0.0/24 -p tcp -j MASQUERADE --to-ports 1024-2000", "-A POSTROUTING -s 172.17.0.0/24 ! -o lan -j MASQUERADE",
		"-A PREROUTING -p udp --dport 53:54 -j REDIRECT", "-A PREROUTING -d 203.0.113.7 -m connmark --mark 1 -j DNAT --to-destination 192.168.0.2"}, 2,
		[]string{"masquerade: {from: 192.168.0.0/24, port: tcp, ports: 1024-2000}", "masquerade: {from: 172.17.0.0/24, except-out: lan}"}},
}

// TestImportedRulesDoTheSame runs commands of iptables in one world and what natkit
// imports of them in another: the same packets become the same.
func TestImportedRulesDoTheSame(t *testing.T) {
	for _, program := range []string{"iptables-nft", "iptables-legacy"} {
		for _, c := range importCases {
			t.Run(program+"/"+c.name, func(t *testing.T) {
				testutil.NeedRoot(t)
				testutil.NeedProgram(t, program)
				e := &typed{program: program}
				for _, command := range c.commands {
					if !strings.HasPrefix(command, "-t ") {
						command = "-t nat " + command
					}
					e.commands = append(e.commands, command)
				}
				before := newWorld(t, e)
				if err := before.Apply(nil); err != nil {
					t.Fatal(err)
				}
				compareImports(t, e, c.untranslated, c.want)
				if c.untranslated > 0 {
					return
				}
				fareTheSame(t, before, e.live, strings.Contains(strings.Join(c.commands, " "), "random"))
			})
		}
	}
}

// fareTheSame sends packets through what was imported as well.
func fareTheSame(t *testing.T, before *Play, imported *convert.Result, random bool) {
	t.Helper()
	if strings.Contains(imported.YAML(), "hairpin: ") {
		testutil.NeedFeature(t, testutil.Hairpin)
	}
	plan, err := gateway.Compile(&imported.Config, Facts())
	if err != nil {
		t.Fatal(err)
	}
	after := newWorld(t, alone)
	if err := after.Apply(plan); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fates(t, before, random), fates(t, after, random)); diff != "" {
		t.Errorf("packets fare otherwise (-theirs +natkit):\n%s", diff)
	}
}

// compareImports wants the text of iptables-save and the kernel to give the same.
func compareImports(t *testing.T, e *typed, untranslated int, want []string) {
	t.Helper()
	if diff := cmp.Diff(rulesOf(e.saved), rulesOf(e.live)); diff != "" {
		t.Errorf("rules (-text +kernel):\n%s", diff)
	}
	want = slices.Sorted(slices.Values(want))
	if diff := cmp.Diff(want, rulesOf(e.live)); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	for source, r := range map[string]*convert.Result{"text": e.saved, "kernel": e.live} {
		if got := r.Untranslated(); len(got) != untranslated {
			t.Errorf("%s: %d not translated, want %d: %+v", source, len(got), untranslated, got)
		}
	}
	if !cmp.Equal(e.saved.Config.Interfaces, e.live.Config.Interfaces) {
		t.Errorf("interfaces differ: %v, %v", e.saved.Config.Interfaces, e.live.Config.Interfaces)
	}
}

func rulesOf(r *convert.Result) (lines []string) {
	for _, rule := range r.Config.NAT {
		lines = append(lines, gateway.MarshalRule(rule))
	}
	slices.Sort(lines)
	return lines
}

// fates are what becomes of packets of several protocols in both directions, and of
// the answers to them.
func fates(t *testing.T, p *Play, random bool) (all []string) {
	t.Helper()
	type probe struct {
		from     Host
		src, dst string
	}
	var probes []probe
	for _, to := range []string{"198.18.0.10", "198.18.1.20"} {
		probes = append(probes, probe{A, "192.168.0.2", to}, probe{B, "192.168.0.3", to}, probe{A, "10.1.0.2", to}, probe{C, "172.17.0.2", to})
	}
	probes = append(probes, probe{B, "192.168.0.3", "203.0.113.7"}) // and back inside
	for _, to := range []string{"203.0.113.7", "203.0.113.9", "203.0.113.66", "203.0.113.67", "192.168.0.2"} {
		probes = append(probes, probe{X, "198.18.0.10", to}, probe{C, "172.17.0.3", to})
	}
	for i, x := range probes {
		src := netip.AddrPortFrom(netip.MustParseAddr(x.src), uint16(4000+i))
		for _, port := range []uint16{80, 5000, 5002} {
			dst := netip.AddrPortFrom(netip.MustParseAddr(x.dst), port)
			all = append(all, fate(t, p, x.from, src, dst, UDPPacket(src, dst, ""), true))
			all = append(all, fate(t, p, x.from, src, dst, synPacket(src, dst), false))
			if random {
				for i, line := range all {
					all[i] = givenPort.ReplaceAllString(line, "{$1:random ")
				}
			}
		}
	}
	return all
}

// givenPort is that of a source that arrives.
var givenPort = regexp.MustCompile(`\{(203\.0\.113\.\d+):\d+ `)

func synPacket(src, dst netip.AddrPort) []byte {
	return tcp(src, dst, frame.TCP{Flags: frame.SYN}, nil).bytes()
}

// fate sends one packet, and an answer to it where it arrives.
func fate(t *testing.T, p *Play, from Host, src, dst netip.AddrPort, data []byte, answer bool) string {
	t.Helper()
	got, err := p.Send(from, data)
	if err != nil {
		t.Fatal(err)
	}
	line := fmt.Sprintf("%s %v > %v:", from, src, dst)
	for _, a := range got {
		if a.Frame.Protocol != unix.IPPROTO_UDP && a.Frame.Protocol != unix.IPPROTO_TCP {
			continue
		}
		line += fmt.Sprintf(" at %s %v", a.At, a.Frame.Tuple())
		if !answer {
			continue
		}
		back, err := p.Send(a.At, a.Back("answer"))
		if err != nil {
			t.Fatal(err)
		}
		// An error about an earlier packet may come at any time.
		i := slices.IndexFunc(back, func(b Arrival) bool { return b.At == from && b.Frame.Protocol == a.Frame.Protocol })
		if i >= 0 {
			line += fmt.Sprintf(" and back %v", back[i].Frame.Tuple())
		}
	}
	return line
}
