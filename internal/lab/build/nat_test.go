package build

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/gateway/engine/fake"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/testutil"
)

// upWhole builds the topology of the scenario that says all that one can.
func upWhole(t *testing.T) *Lab {
	t.Helper()
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.IPv6)
	text, err := os.ReadFile(filepath.Join("..", "testdata", "whole.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := lab.Parse("whole.yaml", text)
	if err != nil {
		t.Fatal(err)
	}
	l, err := Up(t.Context(), s, Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// wantRules is what nft(8) makes of the gateway's rules of that scenario.
const wantRules = `table ip natkit-lab {
	chain prerouting {
		type nat hook prerouting priority dstnat; policy accept;
		ip daddr 198.18.0.1 udp dport 53 dnat to 198.19.0.2:9000
		ip daddr 198.19.0.1 udp dport 53 dnat to 198.19.0.2:9000
	}

	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		oifname "br0" masquerade
		oifname "br0" meta l4proto tcp snat to 198.19.0.77:1024-65535 fully-random
		oifname "br0" meta l4proto udp snat to 198.19.0.77:1024-65535 fully-random
		oifname "br0" meta l4proto tcp snat to 198.19.0.80-198.19.0.82:20000-20199
		oifname "br0" meta l4proto udp snat to 198.19.0.80-198.19.0.82:20000-20199
	}

	chain forward {
		type filter hook forward priority filter; policy accept;
		ct state invalid drop
	}
}
table ip6 natkit-lab {
	chain prerouting {
		type nat hook prerouting priority dstnat; policy accept;
	}

	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		oifname "eth2" masquerade fully-random
	}
}
`

func TestRules(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	l := upWhole(t)
	rules := l.Scenario().Stages[0].NAT
	if err := l.SetNAT(t.Context(), rules); err != nil {
		t.Fatal(err)
	}
	listed := run(t, l, "gateway", "", "nft", "list", "ruleset")
	if diff := cmp.Diff(wantRules, plain(listed)); diff != "" {
		t.Errorf("rules of the gateway (-want +got):\n%s", diff)
	}
	const server = "table ip natkit-lab {\n\tchain input {\n\t\ttype filter hook input priority filter; policy accept;\n\t\ttcp dport 81 drop\n\t}\n}\n"
	if diff := cmp.Diff(server, plain(run(t, l, "server", "", "nft", "list", "ruleset"))); diff != "" {
		t.Errorf("rules of the server (-want +got):\n%s", diff)
	}
	if err := l.SetNAT(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	for _, n := range l.Nodes() {
		if left := run(t, l, n.Name, "", "nft", "list", "ruleset"); left != "" {
			t.Errorf("rules left in %s:\n%s", n.Name, left)
		}
	}
}

// TestManyRules behind the translation of sources, more than one message takes.
func TestManyRules(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	l := upWhole(t)
	rule := lab.NAT{Node: "gateway", Drop: &lab.Drop{At: lab.HookPostrouting, Port: gateway.Port{Protocol: "tcp", First: 81, Last: 81}, Rules: 2001}}
	if err := l.SetNAT(t.Context(), []lab.NAT{rule}); err != nil {
		t.Fatal(err)
	}
	listed := run(t, l, "gateway", "", "nft", "list", "ruleset")
	if n := strings.Count(listed, "tcp dport 81 drop"); n != 2001 || !strings.Contains(listed, "type filter hook postrouting priority srcnat + 1;") {
		t.Errorf("%d rules in\n%.500s", n, listed)
	}
}

// plain is the text without comments.
func plain(rules string) string {
	var b strings.Builder
	for line := range strings.Lines(rules) {
		if !strings.HasPrefix(line, "#") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// TestServersListenEverywhere: at each of the scenario's addresses.
func TestServersListenEverywhere(t *testing.T) {
	testutil.NeedProgram(t, "nginx")
	for _, kind := range []ServerKind{Nginx, Builtin} {
		t.Run(string(kind), func(t *testing.T) {
			l := upWhole(t)
			l.scenario.Topology.Server.UDP = 0
			server, err := l.StartServer(t.Context(), kind)
			if err != nil {
				t.Fatal(err)
			}
			if n := len(l.listening().at); n != 3 {
				t.Errorf("the scenario has %d addresses for its server, want 3", n)
			}
			for _, addr := range l.listening().at {
				if err := l.Node("client").ask(t.Context(), addr, time.Now().Add(testutil.Patience(time.Minute))); err != nil {
					t.Errorf("%s at %s: %v", server.Name, addr, err)
				}
			}
		})
	}
}

func TestSysctlsOfAStage(t *testing.T) {
	l := upWhole(t)
	const name = "net.ipv4.ip_default_ttl"
	read := func() string {
		var text []byte
		err := l.Node("gateway").Netns.Do(func() (err error) {
			text, err = os.ReadFile(sysctlPath(name))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	before := read()
	for _, step := range []struct{ set, want string }{{"7", "7"}, {"9", "9"}, {"", before}, {"7", "7"}} {
		values := map[string]map[string]string{}
		if step.set != "" {
			values["gateway"] = map[string]string{name: step.set}
		}
		if err := l.SetSysctls(values); err != nil {
			t.Fatal(err)
		}
		if got := read(); got != step.want {
			t.Errorf("after setting %q: %s, want %s", step.set, got, step.want)
		}
	}
	err := l.SetSysctls(map[string]map[string]string{"gateway": {"net.ipv4.nothing": "1"}})
	if err == nil || !strings.Contains(err.Error(), "set net.ipv4.nothing in gateway") {
		t.Errorf("a value that is not there: %v", err)
	}
	if got := read(); got != before {
		t.Errorf("after that: %s, want %s", got, before)
	}
}

// TestValueOfTheWholeHostIsRefused: what is the same value outside, which differs by
// kernels, is not even written: that would set others along, which putting it back cannot.
func TestValueOfTheWholeHostIsRefused(t *testing.T) {
	ns := testutil.Namespace(t)
	const name, along = "net.ipv4.ip_forward", "net.ipv4.conf.lo.forwarding"
	want := func(name, value string) {
		t.Helper()
		if text, err := os.ReadFile(sysctlPath(name)); err != nil || strings.TrimSpace(string(text)) != value {
			t.Errorf("%s is %q, want %s (%v)", name, text, value, err)
		}
	}
	err := ns.Do(func() error {
		if err := errors.Join(os.WriteFile(sysctlPath(name), []byte("0"), 0), os.WriteFile(sysctlPath(along), []byte("1"), 0)); err != nil {
			t.Fatal(err)
		}
		node := &Node{Netns: ns} // the node's value and the one outside are the same
		err := node.setSysctl(lab.Sysctl{Key: name, Value: "1"})
		want(name, "0")
		want(along, "1")
		return err
	})
	if err == nil {
		t.Error("it was set")
	}
}

// TestSetGateway: a lab's engine has the file of the stage in force, and nothing after.
func TestSetGateway(t *testing.T) {
	testutil.NeedRoot(t)
	ns, e := testutil.Namespace(t), &fake.Engine{}
	l := &Lab{nodes: []*Node{{Name: "gw", Netns: ns}}, engines: engine.Set{e}}
	for _, step := range []*lab.Gateway{
		{Node: "gw", Config: gateway.Config{NAT: []gateway.Rule{{Masquerade: &gateway.Masquerade{}}}}},
		{Node: "gw", Config: gateway.Config{Engine: gateway.EngineNetfilter}},
		nil,
	} {
		if err := l.SetGateway(t.Context(), step); err != nil {
			t.Fatal(err)
		}
		s, err := e.Read(ns, "", nil)
		if err != nil || s.Present != (step != nil) {
			t.Errorf("%+v: %+v, %v", step, s, err)
		}
	}
}
