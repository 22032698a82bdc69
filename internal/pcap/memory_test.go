package pcap

import (
	"fmt"
	"net/netip"
	"testing"
)

// TestMemory follows more tuples than there is room for.
func TestMemory(t *testing.T) {
	const tuples = 10_000
	var lines []line1
	for i := range tuples {
		client := netip.AddrPortFrom(clientA.Addr(), uint16(10000+i))
		lines = append(lines, parseScript(t, client, serverA, fmt.Sprintf("%d > S 1 0 0 1 0", i*10))...)
	}
	file := scripted(t, lines)
	r := reportOf(t, file, Options{Memory: MinMemory})
	l := r.Limits
	if l.Forgotten == 0 || l.Peak > l.Memory || l.Youngest <= 0 {
		t.Errorf("limits %+v", l)
	}
	c := r.Connections
	if c.Begun != tuples || c.Unanswered+c.Pending != tuples {
		t.Errorf("connections %+v", c)
	}
	var kept int64
	for _, k := range r.Kinds {
		kept += k.Kept
		if k.Kept > k.Count {
			t.Errorf("%+v", k)
		}
	}
	if kept == 0 || kept != int64(len(r.Incidents)) || kept >= tuples {
		t.Errorf("%d incidents kept of %d", kept, tuples)
	}
	if free := reportOf(t, file, Options{}); free.Limits.Forgotten != 0 {
		t.Errorf("limits of the usual memory %+v", free.Limits)
	}
}

// TestMemoryOfTroubles has attempts that take more memory than tuples do: all of them
// are sent again.
func TestMemoryOfTroubles(t *testing.T) {
	var lines []line1
	for i := range 5000 {
		client := netip.AddrPortFrom(clientA.Addr(), uint16(10000+i))
		lines = append(lines, parseScript(t, client, serverA, fmt.Sprintf("%d > S 1 0 0 1 0\n %d > S 1 0 0 6 0", i*10, i*10+5))...)
	}
	r := reportOf(t, scripted(t, lines), Options{Memory: MinMemory})
	if r.Limits.Forgotten == 0 || r.Limits.Peak > r.Limits.Memory || r.Retransmissions.SYN != 5000 {
		t.Errorf("limits %+v, %d SYNs sent again", r.Limits, r.Retransmissions.SYN)
	}
}

// TestSerious keeps the serious incidents where memory is short.
func TestSerious(t *testing.T) {
	var lines []line1
	for i := range 3000 {
		client := netip.AddrPortFrom(clientA.Addr(), uint16(10000+i))
		lines = append(lines, parseScript(t, client, serverA, "0 > S 1 0 0 1 0\n 9000 > S 1 0 0 2 0")...)
	}
	for i := range 100 {
		client := netip.AddrPortFrom(clientA.Addr(), uint16(40000+i))
		lines = append(lines, parseScript(t, client, serverA, "10000 > S 5000 0 0 4000 0\n 10001 < A 922 112 0 37000 5002")...)
	}
	r := reportOf(t, scripted(t, lines), Options{Memory: MinMemory})
	if r.Kinds[0].Kind != SYNRejectedPAWS || r.Kinds[0].Kept != 100 || r.Kinds[1].Count != 3000 || r.Kinds[1].Kept == 3000 {
		t.Errorf("kinds %+v", r.Kinds)
	}
}
