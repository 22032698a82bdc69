package cli

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/testutil"
)

// TestTuneNATRule changes a rule of another namespace than the one it runs in.
func TestTuneNATRule(t *testing.T) {
	b := newTuneBench(t)
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "iptables-nft")
	ns, err := netns.New("tune-nat")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	iptables := func(line string) (out []byte) {
		err := ns.Do(func() (err error) {
			out, err = exec.Command("iptables-nft", words("-t nat "+line)...).CombinedOutput()
			return err
		})
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return out
	}
	iptables("-A POSTROUTING -p tcp -j MASQUERADE")
	rules, err := read.NAT(ns)
	if err != nil || len(rules.Rules) != 1 {
		t.Fatalf("%+v, %v", rules, err)
	}
	target := rules.Rules[0].Target
	assignment := target + "=1024-65535 fully-random"

	b.must([]string{"tune", "apply", "--dry-run", assignment}, target+" (no options) → 1024-65535 fully-random",
		"random port", "before 5.7", "Docker, kube-proxy, firewalld")
	if code, _, errs := b.run("tune", "apply", "--persist", assignment); code != exitFailed || !strings.Contains(errs, "--to-ports 1024-65535 --random-fully") {
		t.Errorf("exit %d, %s", code, errs)
	}
	b.must([]string{"tune", "apply", "--yes", assignment}, "applied as t0001")
	if now := iptables("-S"); !strings.Contains(string(now), "--to-ports 1024-65535 --random-fully") {
		t.Errorf("%s", now)
	}
	b.must([]string{"tune", "apply", assignment}, "is 1024-65535 fully-random already")
	b.must(words("tune list"), "applied", target+" (no options) → 1024-65535 fully-random")
	b.must(words("tune undo --last"), "t0001 undone", target+" (no options)")
	if now := iptables("-S"); !strings.HasSuffix(string(now), "-p tcp -j MASQUERADE\n") {
		t.Errorf("%s", now)
	}
	for arg, want := range map[string]string{
		"netns 1 ip nat POSTROUTING 0":      "expected TARGET=OPTIONS",
		"netns 1 ip nat=fully-random":       "expected netns INODE FAMILY",
		target + "=quickly":                 `"quickly": expected `,
		target[:len(target)-1] + "~=random": "any more",
	} {
		if code, _, errs := b.run("tune", "apply", arg); code == exitOK || !strings.Contains(errs, want) {
			t.Errorf("%s: exit %d, %s", arg, code, errs)
		}
	}
}
