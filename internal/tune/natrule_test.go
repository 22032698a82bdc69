package tune

import (
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
)

func TestParseNATOptions(t *testing.T) {
	for _, tt := range []struct {
		in      string
		want    nat.Options
		refused bool
	}{
		{"", nat.Options{}, false},
		{"fully-random", nat.Options{FullyRandom: true}, false},
		{"1024-65535 fully-random", nat.Options{Ports: nat.Ports{First: 1024, Last: 65535}, FullyRandom: true}, false},
		{" persistent  53 random", nat.Options{Ports: nat.Ports{First: 53, Last: 53}, Random: true, Persistent: true}, false},
		{"random random", nat.Options{}, true},
		{"1-2 3-4", nat.Options{}, true},
		{"0", nat.Options{}, true},
		{"2000-1000", nat.Options{}, true},
		{"1000-70000", nat.Options{}, true},
		{"-", nat.Options{}, true},
		{"fully-randomly", nat.Options{}, true},
		{"+1024", nat.Options{}, true},
	} {
		got, err := nat.ParseOptions(tt.in)
		if got != tt.want || (err != nil) != tt.refused {
			t.Errorf("nat.ParseOptions(%q) = %+v, %v; want %+v, refused %v", tt.in, got, err, tt.want, tt.refused)
		}
	}
}

func FuzzParseNATOptions(f *testing.F) {
	f.Add("1024-65535 fully-random")
	f.Add("persistent 7")
	f.Fuzz(func(t *testing.T, s string) {
		defer testutil.Bounded(t, len(s))()
		o, err := nat.ParseOptions(s)
		if err != nil {
			return
		}
		if again, err := nat.ParseOptions(o.String()); err != nil || again != o {
			t.Errorf("%q is %+v, which is written %q and read as %+v, %v", s, o, o.String(), again, err)
		}
	})
}

func natRule() *snapshot.NATRule {
	return &snapshot.NATRule{Target: "netns 4026532290 ip nat POSTROUTING 5f3a9c01", FirstPort: 1024, LastPort: 2047}
}

func TestNATRuleChange(t *testing.T) {
	o := NATOptionsOf(natRule())
	o.FullyRandom = true
	c := Assess([]Change{NATRuleChange(natRule(), o)}, Facts{})[0]
	if c.Before != "1024-2047" || c.After != "1024-2047 fully-random" {
		t.Errorf("change is %+v", c)
	}
	for _, want := range []string{"before 5.7", "Docker"} {
		if !strings.Contains(c.Risk, want) {
			t.Errorf("risk %q does not speak of %s", c.Risk, want)
		}
	}
	if !strings.Contains(c.Cost, "random port") {
		t.Errorf("cost is %q", c.Cost)
	}
	if err := (Plan{Origin: "test", Changes: []Change{c}}).Validate(); err != nil {
		t.Error(err)
	}
	back := Assess(Undo(Plan{Origin: "test", Changes: []Change{c}}).Changes, Facts{})[0]
	if !strings.Contains(back.Risk, "insert_failed") {
		t.Errorf("risk of taking it back is %q", back.Risk)
	}
}

func TestNATRuleChangeOfPorts(t *testing.T) {
	c := Assess([]Change{NATRuleChange(natRule(), nat.Options{Ports: nat.Ports{First: 2000, Last: 2009}})}, Facts{})[0]
	if !strings.Contains(c.Risk, "only 10 ports") || c.Cost != "" {
		t.Errorf("cost %q, risk %q", c.Cost, c.Risk)
	}
	for _, wider := range []nat.Options{{Ports: nat.Ports{First: 1024, Last: 65535}}, {}} {
		if c := Assess([]Change{NATRuleChange(natRule(), wider)}, Facts{})[0]; !strings.HasPrefix(c.Risk, RiskOfMorePorts) {
			t.Errorf("risk of %q is %q", c.After, c.Risk)
		}
	}
}

func TestValidateNATRule(t *testing.T) {
	good := NATRuleChange(natRule(), nat.Options{})
	for _, tt := range []struct {
		name string
		edit func(*Change)
		want string
	}{
		{"no rule", func(c *Change) { c.Target = "ip nat POSTROUTING" }, "expected netns INODE"},
		{"no inode", func(c *Change) { c.Target = strings.Replace(c.Target, "4026532290", "x", 1) }, "not the inode"},
		{"two lines", func(c *Change) { c.Target += "\n" }, "expected netns INODE"},
		{"bad value", func(c *Change) { c.After = "quickly" }, "quickly"},
		{"other form", func(c *Change) { c.After = "fully-random 1-2" }, "expected the form"},
	} {
		c := good
		tt.edit(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
}

func TestNATRuleByHand(t *testing.T) {
	for after, want := range map[string]string{
		"": "write 'masquerade' or 'snat to ADDRESS' (nft), '-j MASQUERADE' or '-j SNAT --to-source ADDRESS' (iptables)",
		"1024-65535 random fully-random": "write 'masquerade to :1024-65535 random,fully-random' or 'snat to ADDRESS:1024-65535 random,fully-random' (nft), " +
			"'-j MASQUERADE --to-ports 1024-65535 --random --random-fully' or '-j SNAT --to-source ADDRESS:1024-65535 --random --random-fully' (iptables)",
	} {
		if got := NATRuleByHand(Change{After: after}); !strings.HasSuffix(got, want) {
			t.Errorf("%q: %s", after, got)
		}
	}
}

func TestParseNATAssignment(t *testing.T) {
	const target = "netns 7 ip a=b post 5f3a9c01"
	got, o, err := ParseNATAssignment(target + "=4000 random")
	if err != nil || got != target || o.String() != "4000 random" {
		t.Errorf("%q, %q, %v", got, o, err)
	}
	if _, _, err := ParseNATAssignment("netns 7"); err == nil {
		t.Error("no options are accepted")
	}
}

const exampleDigest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestGatewayTarget(t *testing.T) {
	target := GatewayTarget(4026532290, "xdp")
	if inode, engine, err := ParseGatewayTarget(target); err != nil || inode != 4026532290 || engine != "xdp" {
		t.Errorf("%s: %d, %s, %v", target, inode, engine, err)
	}
	// As earlier versions wrote it.
	if inode, engine, err := ParseGatewayTarget("netns 4026532290 inet natkit"); err != nil || inode != 4026532290 || engine != EngineNetfilter {
		t.Errorf("former: %d, %s, %v", inode, engine, err)
	}
	former := Change{Kind: Gateway, Target: "netns 7 inet natkit"}
	if now := (Change{Kind: Gateway, Target: GatewayTarget(7, EngineNetfilter)}); former.Key() != now.Key() || former.Netns() != 7 {
		t.Errorf("%q is not %q", former.Key(), now.Key())
	}
	for _, bad := range []string{"", "netns", "netns 1", "netns x netfilter", "netns 01 netfilter", "netns -1 netfilter", "netns 1 ip natkit",
		"netns 1 netfilter ", "netns 1 ", "netns 99999999999999999999 netfilter", "netns 1 ../x"} {
		if inode, engine, err := ParseGatewayTarget(bad); err == nil {
			t.Errorf("%q: %d, %s", bad, inode, engine)
		}
	}
}

func TestGatewayChanges(t *testing.T) {
	target := GatewayTarget(42, "netfilter")
	other := strings.Repeat("ab", 32)
	cases := []struct {
		name   string
		change Change
		ok     bool
	}{
		{"first", Change{Kind: Gateway, Target: target, Before: GatewayNone, After: exampleDigest}, true},
		{"over", Change{Kind: Gateway, Target: target, Before: other, After: exampleDigest}, true},
		{"away", Change{Kind: Gateway, Target: target, Before: other, After: GatewayNone}, true},
		{"over one that was changed", Change{Kind: Gateway, Target: target, Before: GatewayChanged(other), After: exampleDigest}, true},
		{"over a foreign one", Change{Kind: Gateway, Target: target, Before: GatewayForeign, After: exampleDigest}, false},
		{"to one that is changed", Change{Kind: Gateway, Target: target, Before: GatewayNone, After: GatewayChanged(other)}, true},
		{"to a path", Change{Kind: Gateway, Target: target, Before: GatewayNone, After: "../../etc/passwd"}, false},
		{"from nothing", Change{Kind: Gateway, Target: target, After: exampleDigest}, false},
		{"nowhere", Change{Kind: Gateway, Target: "inet natkit", Before: GatewayNone, After: exampleDigest}, false},
		{"file", Change{Kind: GatewayFile, Target: GatewayFileTarget, After: exampleDigest}, true},
		{"file away", Change{Kind: GatewayFile, Target: GatewayFileTarget, Before: exampleDigest}, true},
		{"another file", Change{Kind: GatewayFile, Target: "/etc/passwd", After: exampleDigest}, false},
		{"file of no digest", Change{Kind: GatewayFile, Target: GatewayFileTarget, After: "text"}, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if err := c.change.Validate(); (err == nil) != c.ok {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestGatewayValues(t *testing.T) {
	for _, tt := range []struct {
		value, digest string
		changed       bool
	}{
		{exampleDigest, exampleDigest, false},
		{GatewayChanged(exampleDigest), exampleDigest, true},
		{GatewayNone, "", false}, {GatewayForeign, "", false}, {"", "", false}, {" changed", "", true}, {"0123 changed", "", true},
	} {
		if digest, changed := GatewayDigest(tt.value); digest != tt.digest || changed != tt.changed {
			t.Errorf("%q: %q, %t", tt.value, digest, changed)
		}
	}
	c := Change{Kind: Gateway, Before: GatewayChanged(exampleDigest)}
	for value, want := range map[string]bool{exampleDigest: true, GatewayChanged(exampleDigest): true, GatewayNone: false, strings.Repeat("ab", 32): false} {
		if got := c.Follows(value); got != want {
			t.Errorf("follows %q: %t", value, got)
		}
	}
	for value, want := range map[string]string{exampleDigest: "0123456789ab", GatewayChanged(exampleDigest): "0123456789ab changed", GatewayNone: "none", "": ""} {
		if got := c.Shown(value); got != want {
			t.Errorf("%q is shown as %q, want %q", value, got, want)
		}
	}
}
