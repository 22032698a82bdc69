package apply

import (
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/tune"
)

// TestServiceSaysThatForwardingIsOff: once, until it is on again.
func TestServiceSaysThatForwardingIsOff(t *testing.T) {
	w := newWorld(t)
	k := newKeeper(&Service{Host: w.Host, File: "gateway.yaml"}, &manager{})
	var lines []string
	k.Log = func(line string) { lines = append(lines, line) }
	if err := k.apply(t.Context(), []byte(masqueradeText), newInputs("gateway.yaml"), "start"); err != nil {
		t.Fatal(err)
	}
	w.ip("sysctl -qw net.ipv4.ip_forward=0")
	k.usual(t.Context())
	k.usual(t.Context())
	if len(lines) != 2 || !strings.Contains(lines[1], "net.ipv4.ip_forward set to 0") || !strings.Contains(k.status(), "forwards nothing") {
		t.Errorf("said %q, status %s", lines, k.status())
	}
	if err := k.apply(t.Context(), []byte(masqueradeText), newInputs("gateway.yaml"), "reload"); err != nil {
		t.Fatal(err)
	}
	w.wantSysctl(Forward4, "1")
	if k.usual(t.Context()); !strings.HasPrefix(k.status(), "in force") {
		t.Errorf("said %q, status %s", lines, k.status())
	}
}

// TestServiceDoesNotFight: rules that are removed whenever they come are left to the
// periodic check, which is logged once.
func TestServiceDoesNotFight(t *testing.T) {
	w := newWorld(t)
	k := newKeeper(&Service{Host: w.Host, File: "gateway.yaml"}, &manager{})
	var lines []string
	k.Log = func(line string) { lines = append(lines, line) }
	if err := k.apply(t.Context(), []byte(masqueradeText), newInputs("gateway.yaml"), "start"); err != nil {
		t.Fatal(err)
	}
	remove := func() {
		t.Helper()
		if err := w.Engines.Remove(w.ns); err != nil {
			t.Fatal(err)
		}
	}
	for range mostQuick {
		remove()
		k.missing(t.Context())
		w.want(k.digest)
	}
	if said := strings.Join(lines, "\n"); strings.Count(said, "removed repeatedly") != 1 {
		t.Errorf("said %s", said)
	}
	remove()
	k.missing(t.Context())
	w.want(tune.GatewayNone)
	lines = nil
	k.usual(t.Context())
	w.want(k.digest)
	if len(lines) != 1 {
		t.Errorf("said again: %q", lines)
	}
	k.usual(t.Context()) // they stay
	remove()
	k.missing(t.Context())
	w.want(k.digest)
}

// TestServiceTellsWhatItWaitsFor: an interface that the file does not name any more is
// not said to have come.
func TestServiceTellsWhatItWaitsFor(t *testing.T) {
	k := newKeeper(&Service{}, &manager{})
	var said []string
	k.Log = func(line string) { said = append(said, line) }
	for _, step := range []struct {
		named string
		have  []string
		want  string
	}{
		{"a b", nil, "waiting for a, b: what the file says of it counts as soon as it is there"},
		{"a b", []string{"b"}, "b is there"},
		{"a b", []string{"b"}, ""},
		{"c", []string{"b"}, "waiting for c: what the file says of it counts as soon as it is there"},
		{"c", []string{"c"}, "c is there"},
	} {
		said = nil
		r := &Ready{Gateway: &gateway.Plan{WAN: strings.Fields(step.named)}, Facts: gateway.Facts{Known: true}}
		r.Gateway.Sources = []gateway.Entry{{Match: nat.Match{Out: r.Gateway.WAN}, Action: nat.Action{Kind: nat.Masquerade}}}
		for _, name := range step.have {
			r.Facts.Interfaces = append(r.Facts.Interfaces, gateway.Interface{Name: name})
		}
		if k.logWaiting(r); strings.Join(said, "|") != step.want {
			t.Errorf("%+v: said %q", step, said)
		}
	}
}

// TestServiceNotesOnce: what there is to know of a file is logged again only where it is something else.
func TestServiceNotesOnce(t *testing.T) {
	k := newKeeper(&Service{}, &manager{})
	var said []string
	k.Log = func(line string) { said = append(said, line) }
	found := func(messages ...string) *Ready {
		r := &Ready{Prepared: Prepared{Notes: []string{"a note"}}}
		for _, m := range messages {
			r.Findings = append(r.Findings, gateway.Finding{ID: "x", Severity: gateway.Notice, Line: 3, Message: m})
		}
		return r
	}
	for _, step := range []struct {
		found  *Ready
		reason string
		want   string
	}{
		{found("set a is empty"), "start", "a note|notice: line 3: set a is empty"},
		{found("set a is empty"), "file changed", ""},
		{found("set a is empty", "set b is empty"), addressesChanged, ""},
		{found("set a is empty", "set b is empty"), "file changed", "notice: line 3: set b is empty"},
		{found(), "file changed", ""},
		{found("set b is empty"), "reload", "notice: line 3: set b is empty"},
	} {
		said = nil
		if k.logNotes(step.found, step.reason); strings.Join(said, "|") != step.want {
			t.Errorf("%+v: said %q", step, said)
		}
	}
}
