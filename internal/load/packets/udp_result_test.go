package packets

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/unix"

	"github.com/natkit/natkit/internal/load"
)

func TestTally(t *testing.T) {
	a, b := NewUDPTally(), NewUDPTally()
	a.Sent, a.Received, a.Answered, a.Duplicated = 10, 9, 8, 1
	b.Sent, b.Received, b.Answered, b.Foreign = 5, 5, 5, 2
	for port := range uint16(20) {
		b.Stray(netip.AddrPortFrom(netip.MustParseAddr("198.18.0.9"), port%10))
	}
	a.Merge(b)
	r := &UDPResult{Seconds: 2}
	a.Fill(r)
	if r.Sent != 15 || r.Lost != 2 || r.Answered() != 13 || r.Received != 14 || r.Duplicated != 1 || r.Foreign != 2 || r.Misdelivered != 20 {
		t.Errorf("%+v", r)
	}
	if r.SentPerSecond != 7.5 || r.AnsweredPerSecond != 6.5 || r.Hint != "" || r.Failures == nil {
		t.Errorf("%+v", r)
	}
	if len(r.MisdeliveredFrom) != maxStrays || r.MisdeliveredFrom[0].Count != 2 {
		t.Errorf("%v", r.MisdeliveredFrom)
	}
}

// TestHint: where nothing came back, one line says what to look at.
func TestHint(t *testing.T) {
	for _, tt := range []struct {
		name  string
		count func(*UDPTally)
		want  string
	}{
		{"silence", func(*UDPTally) {}, "TX checksum offload"},
		{"refused", func(t *UDPTally) { t.Failures.Add(load.Wait, load.Reason(unix.ECONNREFUSED)) }, "wait: refused 1; nothing listens there"},
		{"filtered", func(t *UDPTally) { t.Failures.Add(load.Wait, load.Prohibited) }, "wait: administratively prohibited 1; check the route and the firewall"},
		{"path MTU", func(t *UDPTally) { t.Failures.Add(load.Send, load.Reason(unix.EMSGSIZE)) }, "send: message too long 1; a link on the way carries less"},
		{"no host", func(t *UDPTally) { t.Failures.Add(load.Wait, load.Reason(unix.EHOSTUNREACH)) }, "wait: unreachable 1; no host has that address"},
		{"misdelivered", func(t *UDPTally) { t.Stray(netip.MustParseAddrPort("198.18.1.2:9")) }, "the first from 198.18.1.2:9 instead of 198.18.0.2:9000"},
		{"another server", func(t *UDPTally) { t.Foreign = 3 }, "3 datagrams came without the token of a reply"},
		{"cut", func(t *UDPTally) { t.Altered = 2 }, "another length"},
	} {
		tally := NewUDPTally()
		tally.Sent = 10
		tt.count(tally)
		r := &UDPResult{Config: target("198.18.0.2:9000")}
		tally.Fill(r)
		if !strings.Contains(r.Hint, tt.want) || strings.Contains(r.Hint, "\n") {
			t.Errorf("%s: %q, want one line with %q", tt.name, r.Hint, tt.want)
		}
	}
}

// TestInterrupted: what may still be answered is not lost.
func TestInterrupted(t *testing.T) {
	tally, r := NewUDPTally(), &UDPResult{Config: target("198.18.0.2:9000")}
	tally.Sent, tally.Answered, tally.Received, tally.InFlight = 100, 80, 80, 15
	tally.Fill(r)
	if r.Lost != 5 || r.InFlight != 15 || r.Answered() != 80 {
		t.Errorf("%+v", r)
	}
}

func TestLimits(t *testing.T) {
	if s := Lateness(1000, 10); s != "" {
		t.Error(s)
	}
	if s := Lateness(1000, 11); !strings.HasPrefix(s, "11 of 1000 datagrams") {
		t.Error(s)
	}
	if s := Overflow(0); s != "" {
		t.Error(s)
	}
	if s := Overflow(7); !strings.HasPrefix(s, "7 replies") {
		t.Error(s)
	}
}

func TestServed(t *testing.T) {
	end := func(s string) End {
		e, err := ParseEnd(s)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	tallies := []*ServeTally{NewServeTally(2), NewServeTally(2)}
	for i, from := range []string{"198.18.1.1:1024", "198.18.1.1:1025", "198.18.1.1:1026", "198.18.1.9:1024"} {
		tallies[i%2].From(netip.MustParseAddrPort(from), end("198.18.1.1:1024-1025"))
		tallies[i%2].Received++
	}
	tallies[0].From(netip.MustParseAddrPort("198.18.1.1:1024"), end("198.18.1.1"))
	var s Served
	s.Fill(tallies)
	if s.Received != 4 || s.Sources != 4 || s.Misdelivered != 2 || len(s.MisdeliveredFrom) != 2 || s.Failures == nil {
		t.Errorf("%+v", s)
	}
	for text, want := range map[string]string{
		"same": "does not know", "netmap:198.18.1.0/24": "does not know", "198.18.1.1:same": "does not know",
		"2001:db8::/32": "same family",
	} {
		if err := CheckExpected(end(text), netip.MustParseAddr("198.18.1.2")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := CheckExpected(end("2001:db8::/32"), netip.IPv6Unspecified()); err != nil {
		t.Error(err)
	}
}
