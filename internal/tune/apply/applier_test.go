package apply

import (
	"errors"
	"io/fs"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
)

// natHost is a namespace with a link to an unresponsive neighbour.
type natHost struct {
	t  *testing.T
	ns *netns.Handle
}

func newNATHost(t *testing.T, rule string) natHost {
	t.Helper()
	testutil.NeedRoot(t)
	for _, p := range []string{"ip", "nft", "iptables-nft"} {
		testutil.NeedProgram(t, p)
	}
	ns, err := netns.New("natrule")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	g := natHost{t, ns}
	g.run("ip link add v0 type veth peer name v1")
	g.run("ip addr add 198.18.0.1/24 dev v0")
	g.run("ip link set v0 arp off up")
	g.run("ip link set v1 up")
	g.run(rule)
	return g
}

func (g natHost) run(line string) string {
	g.t.Helper()
	var out []byte
	err := g.ns.Do(func() (err error) {
		words := strings.Fields(line)
		cmd := exec.Command(words[0], words[1:]...)
		if words[0] == "nft" && len(words) > 3 {
			cmd = exec.Command("nft", "-f", "-")
			cmd.Stdin = strings.NewReader(strings.TrimPrefix(line, "nft ") + "\n")
		}
		out, err = cmd.CombinedOutput()
		return err
	})
	if err != nil {
		g.t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return string(out)
}

// fullyRandom is the change of the only rule there.
func (g natHost) fullyRandom() tune.Change {
	g.t.Helper()
	r, err := read.NAT(g.ns)
	if err != nil || len(r.Rules) != 1 {
		g.t.Fatalf("rules %+v, %v", r, err)
	}
	o := tune.NATOptionsOf(&r.Rules[0])
	o.FullyRandom = true
	return tune.NATRuleChange(&r.Rules[0], o)
}

const flows = 20

// kept is how many of flows new connections keep their source port through NAT.
func (g natHost) kept(firstPort uint16) int {
	g.t.Helper()
	to := net.UDPAddr{IP: net.IPv4(198, 18, 0, 99), Port: 9}
	err := g.ns.Do(func() error {
		for i := range flows {
			c, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.IPv4(198, 18, 0, 1), Port: int(firstPort) + i}, &to)
			if err != nil {
				return err
			}
			_, err = c.Write([]byte("x"))
			c.Close()
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		g.t.Fatal(err)
	}
	seen, kept := 0, 0
	_, err = dump.Each(g.t.Context(), g.ns, nil, func(e *conntrack.Entry) error {
		if e.Orig.SrcPort >= firstPort && e.Orig.SrcPort < firstPort+flows {
			seen++
			if e.Reply.DstPort == e.Orig.SrcPort {
				kept++
			}
		}
		return nil
	})
	if err != nil || seen != flows {
		g.t.Fatalf("%d connections were tracked of %d, %v", seen, flows, err)
	}
	return kept
}

func (g natHost) options() Options {
	g.t.Helper()
	j, err := journal.At(filepath.Join(g.t.TempDir(), "journal"))
	if err != nil {
		g.t.Fatal(err)
	}
	return Options{Journal: j, ProcRoot: "/proc", Root: g.t.TempDir()}
}

const nftMasquerade = `nft table ip nat {
	chain post {
		type nat hook postrouting priority srcnat; policy accept;
		oifname "v0" masquerade comment "of the test"
	}
}`

const iptablesMasquerade = "iptables-nft -t nat -A POSTROUTING -o v0 -j MASQUERADE"

func TestNATRuleFullyRandom(t *testing.T) {
	for _, tt := range []struct{ name, rule, show, word string }{
		{"nftables", nftMasquerade, "nft list ruleset", "fully-random"},
		{"iptables-nft", iptablesMasquerade, "iptables-nft -t nat -S", "--random-fully"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newNATHost(t, tt.rule)
			before := g.run(tt.show)
			if n := g.kept(20000); n != flows {
				t.Errorf("%d of %d connections keep their port before the change", n, flows)
			}
			a := mustApply(t, plan(g.fullyRandom()), g.options())
			if after := g.run(tt.show); !strings.Contains(after, tt.word) {
				t.Errorf("%s does not show %s:\n%s", tt.show, tt.word, after)
			}
			// By chance 1 in 3000 keeps it.
			if n := g.kept(21000); n > 2 {
				t.Errorf("%d of %d connections keep their port with fully-random", n, flows)
			}
			tx, err := a.Undo()
			if err != nil || states(tx) != "undone" {
				t.Errorf("undo: %s, %v", states(tx), err)
			}
			if after := g.run(tt.show); after != before {
				t.Errorf("%s shows\n%s\nand showed\n%s", tt.show, after, before)
			}
			// One of the random ports may stand in the way.
			if n := g.kept(22000); n < flows-2 {
				t.Errorf("%d of %d connections keep their port after the undo", n, flows)
			}
		})
	}
}

// TestNATRuleLifeline: the guard is in natkit's namespace, the rule in another.
func TestNATRuleLifeline(t *testing.T) {
	g := newNATHost(t, nftMasquerade)
	opt := g.options()
	before := g.run("nft list ruleset")
	h := startHelper(t, self, helperBrief{JournalDir: opt.Journal.Dir(), ProcRoot: "/proc", Root: opt.Root,
		Plan: plan(g.fullyRandom()), Lifeline: true})
	guard := guardOf(t, opt, h.applied(t))
	if now := g.run("nft list ruleset"); !strings.Contains(now, "fully-random") {
		t.Errorf("not applied:\n%s", now)
	}
	h.kill(t)
	within(t, testutil.Patience(5*time.Second), "rule back", func() bool { return g.run("nft list ruleset") == before })
	waitGuard(t, guard)
}

// TestNATRuleUndoneFromElsewhere: unlike a sysctl, a rule says where it is.
func TestNATRuleUndoneFromElsewhere(t *testing.T) {
	g := newNATHost(t, nftMasquerade)
	opt := g.options()
	before := g.run("nft list ruleset")
	change := g.fullyRandom()
	var a *Applied
	err := g.ns.Do(func() (err error) {
		a, err = Apply(t.Context(), plan(change), opt)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if tx, err := Undo(a.ID(), opt); err != nil || states(tx) != "undone" {
		t.Errorf("undo: %+v, %v", tx, err)
	}
	if now := g.run("nft list ruleset"); now != before {
		t.Errorf("the undo left\n%s", now)
	}
}

// TestNATRuleUnconfirmed: the guard of a deadline finds the namespace, too.
func TestNATRuleUnconfirmed(t *testing.T) {
	g := newNATHost(t, iptablesMasquerade)
	opt := g.options()
	opt.Confirm = testutil.Patience(3 * time.Second)
	before := g.run("iptables-nft -t nat -S")
	a := mustApply(t, plan(g.fullyRandom()), opt)
	guard := guardOf(t, opt, a.ID())
	within(t, testutil.Patience(5*time.Second), "rule back", func() bool { return g.run("iptables-nft -t nat -S") == before })
	waitGuard(t, guard)
	if tx := mustLoad(t, opt, a.ID()); states(tx) != "undone" {
		t.Errorf("journal: %s", states(tx))
	}
}

func TestNATRuleOfANamespaceThatIsGone(t *testing.T) {
	g := newNATHost(t, nftMasquerade)
	opt := g.options()
	change := g.fullyRandom()
	a := mustApply(t, plan(change), opt)
	if err := g.ns.Close(); err != nil {
		t.Fatal(err)
	}
	within(t, testutil.Patience(5*time.Second), "end of the namespace", func() bool {
		ns, err := netns.Open(a.tx.In(a.tx.Changes[0]))
		ns.Close()
		return errors.Is(err, fs.ErrNotExist)
	})
	tx, err := Undo(a.ID(), opt)
	if err != nil || states(tx) != "left" || !strings.Contains(tx.Changes[0].Note, "is gone") {
		t.Errorf("undo: %+v, %v", tx, err)
	}
	if _, err := Apply(t.Context(), plan(change), opt); err == nil {
		t.Error("applied to what is gone")
	}
}

// TestNATRuleOfANamespaceWhoseNumberIsAnothers: the namespace is one that came later than
// the one that was changed, and has its number and the very same rule: it is not natkit's
// to change.
func TestNATRuleOfANamespaceWhoseNumberIsAnothers(t *testing.T) {
	g := newNATHost(t, nftMasquerade)
	opt := g.options()
	a := mustApply(t, plan(g.fullyRandom()), opt)
	testutil.NeedFeature(t, testutil.NetnsCookie)
	a.tx.Changes[0].NetnsCookie--
	if err := opt.Journal.Save(a.tx); err != nil {
		t.Fatal(err)
	}
	theirs := g.run("nft list ruleset")
	tx, err := Undo(a.ID(), opt)
	if err != nil || states(tx) != "left" || !strings.Contains(tx.Changes[0].Note, "is gone") {
		t.Errorf("undo: %+v, %v", tx, err)
	}
	if now := g.run("nft list ruleset"); now != theirs {
		t.Errorf("undo changed\n%s\nto\n%s", theirs, now)
	}
}

// TestNATRuleOfAnOldJournal: where only the number is known, a rule that looks the same
// may be another's.
func TestNATRuleOfAnOldJournal(t *testing.T) {
	g := newNATHost(t, nftMasquerade)
	opt := g.options()
	a := mustApply(t, plan(g.fullyRandom()), opt)
	testutil.NeedFeature(t, testutil.NetnsCookie)
	a.tx.Changes[0].NetnsCookie = 0
	if err := opt.Journal.Save(a.tx); err != nil {
		t.Fatal(err)
	}
	before := g.run("nft list ruleset")
	if tx, err := Undo(a.ID(), opt); err == nil || tx.Finished() || !strings.Contains(err.Error(), "--force") {
		t.Errorf("undo: %+v, %v", tx, err)
	}
	opt.Force = true
	if tx, err := Undo(a.ID(), opt); err != nil || states(tx) != "left" {
		t.Errorf("given up: %+v, %v", tx, err)
	}
	if now := g.run("nft list ruleset"); now != before {
		t.Errorf("undo changed\n%s\nto\n%s", before, now)
	}
}

func TestNATRuleChangedByOthers(t *testing.T) {
	for _, tt := range []struct{ name, line, note string }{
		{"other options", "nft flush chain ip nat post; add rule ip nat post oifname \"v0\" masquerade random", `is "random", natkit wrote "fully-random"`},
		{"removed", "nft flush chain ip nat post;", "any more"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newNATHost(t, nftMasquerade)
			opt := g.options()
			a := mustApply(t, plan(g.fullyRandom()), opt)
			g.run(tt.line)
			theirs := g.run("nft list ruleset")
			tx, err := Undo(a.ID(), opt)
			if err != nil || states(tx) != "left" || !strings.Contains(tx.Changes[0].Note, tt.note) {
				t.Errorf("undo: %+v, %v", tx, err)
			}
			if now := g.run("nft list ruleset"); now != theirs {
				t.Errorf("undo changed\n%s\nto\n%s", theirs, now)
			}
		})
	}
}

func TestNATRuleIsNotPersisted(t *testing.T) {
	g := newNATHost(t, nftMasquerade)
	opt := g.options()
	opt.Persist = true
	_, err := Apply(t.Context(), plan(g.fullyRandom()), opt)
	if err == nil || !strings.Contains(err.Error(), "write 'masquerade fully-random' or 'snat to ADDRESS fully-random' (nft)") {
		t.Errorf("%v", err)
	}
}
