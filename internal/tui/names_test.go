package tui

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
)

// TestNames: what an address is called stands behind it as far as there is room, and takes none of the values'.
func TestNames(t *testing.T) {
	frame := func(width int, n *snapshot.Names) string {
		s := busy()
		s.Names = n
		return New(Theme{ASCII: true}, time.Second).Resize(width, 44).Take(s).Frame()
	}
	known := &snapshot.Names{Addresses: map[netip.Addr]snapshot.Name{
		netip.MustParseAddr("198.18.7.200"): {Kind: snapshot.NamePod, Text: "shop/web\x1b[31m-7d9f"},
		netip.MustParseAddr("203.0.113.1"):  {Kind: snapshot.NameHosts, Text: "api.example"},
	}}
	wide := frame(200, known)
	for _, want := range []string{"198.18.7.200 (pod shop/web", "tcp 203.0.113.1:443 (api.example)", "203.0.113.1:443 (to api.example)"} {
		if !strings.Contains(wide, want) {
			t.Errorf("%q is not in\n%s", want, wide)
		}
	}
	if strings.Contains(wide, "\x1b[31m") {
		t.Errorf("a name acts on the terminal: %q", wide)
	}
	narrow, without := strings.Split(frame(60, known), "\n"), strings.Split(frame(60, nil), "\n")
	for i, line := range without {
		if fields := strings.Fields(line); len(fields) > 0 && !strings.HasSuffix(narrow[i], fields[len(fields)-1]) {
			t.Errorf("the values of %q are not in %q", line, narrow[i])
		}
		if report.TextWidth(narrow[i]) > 60 {
			t.Errorf("%q is too wide", narrow[i])
		}
	}
}
