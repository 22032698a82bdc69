package edit

import (
	"errors"
	"io/fs"
	"os/exec"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune"
	"golang.org/x/sys/unix"
)

// world is a namespace with programs that make rules in it.
type world struct {
	t  *testing.T
	ns *netns.Handle
}

func newWorld(t *testing.T) world {
	t.Helper()
	testutil.NeedRoot(t)
	for _, p := range []string{"nft", "iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"} {
		testutil.NeedProgram(t, p)
	}
	ns, err := netns.New("ruleset")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return world{t, ns}
}

// run is a program's output; its errors are the test's.
func (w world) run(stdin string, words ...string) string {
	w.t.Helper()
	var out []byte
	err := w.ns.Do(func() (err error) {
		cmd := exec.Command(words[0], words[1:]...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err = cmd.CombinedOutput()
		return err
	})
	if err != nil {
		w.t.Fatalf("%s: %v\n%s", strings.Join(words, " "), err, out)
	}
	return string(out)
}

func (w world) nft(script string) { w.t.Helper(); w.run(script, "nft", "-f", "-") }

// listing is what nft shows, without handles.
func (w world) listing() string { w.t.Helper(); return w.run("", "nft", "list", "ruleset") }

func (w world) rules() []snapshot.NATRule {
	w.t.Helper()
	r, err := read.NAT(w.ns)
	if err != nil {
		w.t.Fatal(err)
	}
	return r.Rules
}

// one is the only rule whose text begins so.
func (w world) one(text string) snapshot.NATRule {
	w.t.Helper()
	var fit []snapshot.NATRule
	for _, r := range w.rules() {
		if strings.HasPrefix(r.Text, text) {
			fit = append(fit, r)
		}
	}
	if len(fit) != 1 {
		w.t.Fatalf("%d rules begin with %q: %+v", len(fit), text, w.rules())
	}
	return fit[0]
}

func (w world) change(target, value string) {
	w.t.Helper()
	o, err := nat.ParseOptions(value)
	if err == nil {
		err = Change(target, o)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	if now, err := Options(target); err != nil || now != o {
		w.t.Errorf("%s reads back %q, %v; want %q", target, now, err, value)
	}
}

const changeable = `table ip shop {
	chain post {
		type nat hook postrouting priority srcnat;
		oifname "d0" ip saddr 198.18.0.0/24 counter packets 7 bytes 700 masquerade comment "mine, and yours"
		oifname "d0" tcp dport 80 masquerade to :1024-2047 random
		meta l4proto { tcp, udp } ip daddr { 198.18.1.1, 198.18.1.5-198.18.1.9 } snat to 203.0.113.1-203.0.113.9:5000-6000 persistent
		udp dport 53 snat to 203.0.113.5
		masquerade
		masquerade
	}
}
table ip6 shop {
	chain post {
		type nat hook postrouting priority srcnat;
		meta l4proto tcp snat to [2001:db8::1]-[2001:db8::9]:1000-1999
	}
}
table inet both {
	set known { type ipv4_addr; elements = { 198.18.4.4 }; }
	chain post {
		type nat hook postrouting priority 90;
		meta nfproto ipv4 meta l4proto udp masquerade to :7000
		ip saddr 198.18.9.9 udp dport 53 snat ip to 203.0.113.7
		ip saddr @known tcp dport vmap { 22 : accept, 23 : accept } masquerade
		limit rate 10/second ct state new meta mark set 0x00000007 log prefix "nat " quota over 10 mbytes counter packets 3 bytes 4 masquerade
	}
}
`

// TestChangeAndBack holds that nft shows the change, and afterwards what it showed
// before.
func TestChangeAndBack(t *testing.T) {
	w := newWorld(t)
	w.nft(changeable)
	before := w.listing()
	for _, r := range w.rules() {
		was := tune.NATOptionsOf(&r).String()
		for _, value := range []string{"fully-random", "20000-29999 fully-random persistent", "4000", "random"} {
			ports := value[0] <= '9'
			if r.FirstPort == 0 && r.Protocol == "" && ports {
				continue
			}
			w.change(r.Target, value)
			if after := w.listing(); !shows(after, value) {
				t.Errorf("%s to %q: nft shows\n%s", r.Text, value, after)
			}
		}
		w.change(r.Target, was)
		if after := w.listing(); after != before {
			t.Fatalf("%s to and fro: nft shows\n%s\nit was\n%s", r.Text, after, before)
		}
	}
}

// shows is true where each word of the value stands in a line.
func shows(listing, value string) bool {
	for line := range strings.Lines(listing) {
		all := true
		for _, word := range strings.Fields(value) {
			all = all && strings.Contains(line, word)
		}
		if all {
			return true
		}
	}
	return false
}

func TestChangeOfAlikes(t *testing.T) {
	w := newWorld(t)
	w.nft("table ip n {\n chain c {\n type nat hook postrouting priority 100\n masquerade\n masquerade\n }\n }\n")
	rules := w.rules()
	if len(rules) != 2 || rules[1].Target != rules[0].Target+"#2" {
		t.Fatalf("%+v", rules)
	}
	w.change(rules[1].Target, "fully-random")
	if now := w.rules(); now[0].FullyRandom || !now[1].FullyRandom || now[1].Handle != rules[1].Handle {
		t.Errorf("%+v", now)
	}
}

// TestUndoBehindAnAlike: Docker does not find its rule again, and inserts it in front.
func TestUndoBehindAnAlike(t *testing.T) {
	w := newWorld(t)
	const rule = "-p tcp -j MASQUERADE"
	w.run("", strings.Fields("iptables-nft -t nat -A POSTROUTING "+rule)...)
	target := w.rules()[0].Target
	w.change(target, "fully-random")
	w.run("", strings.Fields("iptables-nft -t nat -I POSTROUTING "+rule)...)
	now := w.rules()
	if len(now) != 2 || now[1].Target != target || now[0].Target != target+"#2" {
		t.Fatalf("%+v", now)
	}
	w.change(target, "")
	if now := w.rules(); now[0].FullyRandom || now[1].FullyRandom {
		t.Errorf("%+v", now)
	}
}

func TestChangeIptablesNft(t *testing.T) {
	w := newWorld(t)
	for _, rule := range []string{
		"iptables-nft -t nat -A POSTROUTING -o d0 -j MASQUERADE",
		"iptables-nft -t nat -A POSTROUTING -s 198.18.0.0/16 -p tcp -m comment --comment mine -j MASQUERADE --to-ports 1024-2047",
		"iptables-nft -t nat -A POSTROUTING -p udp --dport 53 -j SNAT --to-source 203.0.113.1-203.0.113.4:1000-2000 --persistent",
		"iptables-nft -t nat -A POSTROUTING -p udp -m multiport --dports 53,5353:5355 -m statistic --mode nth --every 2 --packet 0 -j MASQUERADE",
		"iptables-nft -t nat -A POSTROUTING ! -p tcp -m conntrack --ctstate NEW -m addrtype --dst-type UNICAST -m limit --limit 7/s -j MASQUERADE",
		"ip6tables-nft -t nat -A POSTROUTING -p tcp -j SNAT --to-source 2001:db8::1",
		"ip6tables-nft -t nat -A POSTROUTING -o d0 -j MASQUERADE",
	} {
		w.run("", strings.Fields(rule)...)
	}
	show := func() string {
		return w.run("", "iptables-nft", "-t", "nat", "-S") + w.run("", "ip6tables-nft", "-t", "nat", "-S")
	}
	before := show()
	for _, r := range w.rules() {
		was := tune.NATOptionsOf(&r).String()
		w.change(r.Target, strings.TrimSpace(was+" fully-random"))
		if after := show(); strings.Count(after, "--random-fully") != 1 {
			t.Errorf("%s: iptables shows\n%s", r.Text, after)
		}
		if r.Protocol != "" {
			w.change(r.Target, "3000-3999")
			if after := show(); !strings.Contains(after, "3000-3999") || strings.Contains(after, "--random-fully") {
				t.Errorf("%s: iptables shows\n%s", r.Text, after)
			}
		}
		w.change(r.Target, was)
		if after := show(); after != before {
			t.Fatalf("%s to and fro: iptables shows\n%s\nit was\n%s", r.Text, after, before)
		}
	}
}

func TestChangeRefused(t *testing.T) {
	w := newWorld(t)
	w.nft("table ip n {\n chain c {\n type nat hook postrouting priority 100\n masquerade\n }\n }\n")
	target := w.one("masquerade").Target
	if err := Changeable(target); err != nil {
		t.Error(err)
	}
	err := Change(target, nat.Options{Ports: nat.Ports{First: 1024, Last: 65535}})
	if err == nil || !strings.Contains(err.Error(), "not only for protocols") {
		t.Errorf("ports without a protocol: %v", err)
	}
	w.nft("flush ruleset\n")
	if err := Changeable(target); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "any more") {
		t.Errorf("the rule is gone: %v", err)
	}
	if _, err := Options(strings.Replace(target, "netns ", "netns 9", 1)); err == nil || !strings.Contains(err.Error(), "network namespace 9") {
		t.Errorf("there is no such namespace: %v", err)
	}
	if _, err := Options("netns x"); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no target: %v", err)
	}
}

// TestConcurrentChange holds that a transaction for another generation is refused.
func TestConcurrentChange(t *testing.T) {
	w := newWorld(t)
	w.nft("table ip n {\n chain c {\n type nat hook postrouting priority 100\n masquerade\n }\n }\n")
	target := w.one("masquerade").Target
	err := onRule(target, func(r *rule) error {
		w.nft("add table ip other\n")
		return r.replace(nat.Options{FullyRandom: true})
	})
	if !errors.Is(err, errConcurrent) {
		t.Errorf("replace: %v", err)
	}
	if o, err := Options(target); err != nil || o.FullyRandom {
		t.Errorf("the rule has %q, %v", o, err)
	}
	w.change(target, "fully-random")
}

// TestOwnedTable: what a program keeps for itself is read, and not changed.
func TestOwnedTable(t *testing.T) {
	w := newWorld(t)
	c, err := read.Dial(w.ns)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	generation, err := read.Generation(w.ns)
	if err != nil {
		t.Fatal(err)
	}
	const owner = 2 // NFT_TABLE_F_OWNER
	text := netlink.AppendText[string]
	table := netlink.AppendU32(text(nil, 1, "mine"), 2, owner)
	hook := netlink.AppendU32(netlink.AppendU32(nil, unix.NFTA_HOOK_HOOKNUM, 4), unix.NFTA_HOOK_PRIORITY, 100)
	chain := netlink.AppendAttr(text(text(nil, unix.NFTA_CHAIN_TABLE, "mine"), unix.NFTA_CHAIN_NAME, "post"), unix.NFTA_CHAIN_HOOK|unix.NLA_F_NESTED, hook)
	chain = text(chain, unix.NFTA_CHAIN_TYPE, "nat")
	masq := netlink.AppendAttr(netlink.AppendText(nil, ruleset.ExprName, "masq"), ruleset.ExprData|unix.NLA_F_NESTED, nil)
	masquerade := text(text(nil, unix.NFTA_RULE_TABLE, "mine"), unix.NFTA_RULE_CHAIN, "post")
	masquerade = netlink.AppendAttr(masquerade, unix.NFTA_RULE_EXPRESSIONS|unix.NLA_F_NESTED, netlink.AppendAttr(nil, unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, masq))
	var batch transaction
	batch.begin(generation)
	batch.add(unix.NFT_MSG_NEWTABLE, unix.NFPROTO_IPV4, unix.NLM_F_CREATE, table)
	batch.add(unix.NFT_MSG_NEWCHAIN, unix.NFPROTO_IPV4, unix.NLM_F_CREATE, chain)
	batch.add(unix.NFT_MSG_NEWRULE, unix.NFPROTO_IPV4, unix.NLM_F_CREATE|unix.NLM_F_ACK, masquerade)
	err = batch.commit(c)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		t.Logf("this kernel knows no owners of tables (Linux 5.12): %v", err)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	target := w.one("masquerade").Target
	for what, err := range map[string]error{"Changeable": Changeable(target), "Change": Change(target, nat.Options{Random: true})} {
		if err == nil || !strings.Contains(err.Error(), "table ip mine has an owner") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
