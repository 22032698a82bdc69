package cli

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
)

func TestAtTime(t *testing.T) {
	now := time.Date(2026, 3, 1, 0, 30, 15, 7, time.FixedZone("", 3600)) // the day before in UTC
	for text, want := range map[string]string{
		"": "2026-02-28T23:30:15Z", "07:05": "2026-02-28T07:05:00Z", "2026-01-31T15:04:00+01:00": "2026-01-31T14:04:00Z",
		"7": "", "24:00": "", "2026-01-31": "",
	} {
		at, err := atTime(text, now)
		if got := at.Format(time.RFC3339); (err == nil) != (want != "") || err == nil && got != want {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
}

// A source that several zones have does not say by which interface it comes in.
func TestExplainNeedsTheZone(t *testing.T) {
	plan := &gateway.Plan{Zones: []gateway.Zone{{Name: "red", Interfaces: []string{"eth1"}}, {Name: "blue", Interfaces: []string{"eth2"}}}}
	network := netip.MustParsePrefix("10.0.0.0/24")
	facts := &gateway.Facts{Inside: []gateway.RouteInside{{Interface: "eth1", To: network}, {Interface: "eth2", To: network}}}
	f := &gatewayExplain{}
	_, err := f.entrance(nil, nat.Packet{Src: netip.MustParseAddr("10.0.0.2")}, plan, facts)
	if err == nil || !strings.Contains(err.Error(), "red by eth1, blue by eth2): --in is required") {
		t.Error(err)
	}
	f.in = "eth2"
	if in, err := f.entrance(nil, nat.Packet{Src: netip.MustParseAddr("10.0.0.2")}, plan, facts); in != "eth2" || err != nil {
		t.Error(in, err)
	}
}
