package read

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
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

func (w world) rules() []snapshot.NATRule {
	w.t.Helper()
	r, err := NAT(w.ns)
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
