package tune

import (
	"strings"
	"testing"
)

const exampleDigest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestGatewayTarget(t *testing.T) {
	target := GatewayTarget(4026532290)
	if inode, err := ParseGatewayTarget(target); err != nil || inode != 4026532290 {
		t.Errorf("%q: %d, %v", target, inode, err)
	}
	for _, bad := range []string{"", "netns", "netns 1", "netns x inet natkit", "netns 01 inet natkit", "netns -1 inet natkit", "netns 1 ip natkit",
		"netns 1 inet natkit ", "netns 99999999999999999999 inet natkit"} {
		if inode, err := ParseGatewayTarget(bad); err == nil {
			t.Errorf("%q: %d", bad, inode)
		}
	}
}

func TestGatewayChanges(t *testing.T) {
	target := GatewayTarget(42)
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
		{"to one that is changed", Change{Kind: Gateway, Target: target, Before: GatewayNone, After: GatewayChanged(other)}, false},
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
