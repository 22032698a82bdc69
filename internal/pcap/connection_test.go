package pcap

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"net/netip"
)

// connectionsOf are what Options.Each receives of a script. They add up to what the report counts.
func connectionsOf(t *testing.T, script string) (all []Connection) {
	t.Helper()
	r := reportOf(t, scripted(t, parseScript(t, clientA, serverA, script)), Options{Each: func(c *Connection) { all = append(all, *c) }})
	var begun, connected, refused int64
	for _, c := range all {
		if c.Begun {
			begun++
		}
		switch c.Outcome {
		case string(Connected):
			connected++
		case string(Refused):
			refused++
		}
	}
	if counts := r.Connections; begun != counts.Begun || connected != counts.Established || refused != counts.Refused {
		t.Errorf("%d begun, %d connected, %d refused; the report has %+v", begun, connected, refused, counts)
	}
	return all
}

func TestEachConnection(t *testing.T) {
	ms := func(n int) time.Time { return start.Add(time.Duration(n) * time.Millisecond) }
	for _, c := range []struct {
		name, script string
		want         []Connection
	}{
		{"closed by the server", serverFirst, []Connection{{Client: clientA, Server: serverA, Begun: true, First: ms(0), Last: ms(5), Outcome: "connected", Closed: ClosedByServer,
			Handshake: time.Millisecond, SYNs: 1, FromClient: Sent{3, 10}, FromServer: Sent{3, 20}}}},
		{"refused", "0 > S 100 0 0\n2 < RA 0 101 0", []Connection{{Client: clientA, Server: serverA, Begun: true, First: ms(0), Last: ms(2), Outcome: "refused", Closed: NotClosed,
			SYNs: 1, FromClient: Sent{1, 0}, FromServer: Sent{1, 0}}}},
		{"unanswered", "0 > S 100 0 0\n1000 > S 100 0 0\n3000 > S 100 0 0\n9000 > S 100 0 0", []Connection{{Client: clientA, Server: serverA, Begun: true, First: ms(0), Last: ms(9000),
			Outcome: "open-at-end", Closed: NotClosed, SYNs: 4, FromClient: Sent{4, 0}}}},
		{"two on a tuple", serverFirst + "\n70000 > S 5000 0 0 90000 0\n70001 < SA 9900 5001 0 80000 90000", []Connection{
			{Client: clientA, Server: serverA, Begun: true, First: ms(0), Last: ms(5), Outcome: "connected", Closed: ClosedByServer, Handshake: time.Millisecond, SYNs: 1, FromClient: Sent{3, 10}, FromServer: Sent{3, 20}},
			{Client: clientA, Server: serverA, Begun: true, First: ms(70000), Last: ms(70001), Outcome: "connected", Closed: NotClosed, Handshake: time.Millisecond, SYNs: 1, FromClient: Sent{1, 0}, FromServer: Sent{1, 0}}}},
		{"began before", "0 > A 101 901 10\n2 < A 901 111 30", []Connection{{Client: clientA, Server: serverA, First: ms(0), Last: ms(2), Closed: NotClosed, FromClient: Sent{1, 10}, FromServer: Sent{1, 30}}}},
		{"sent again", "0 > S 100 0 0\n1 < SA 900 101 0\n2 > A 101 901 10\n302 > A 101 901 10\n902 > A 101 901 10", []Connection{{Client: clientA, Server: serverA, Begun: true, First: ms(0), Last: ms(902),
			Outcome: "connected", Closed: NotClosed, Handshake: time.Millisecond, SYNs: 1, Retransmissions: 2, FromClient: Sent{4, 30}, FromServer: Sent{1, 0}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if d := cmp.Diff(c.want, connectionsOf(t, c.script), cmpopts.EquateComparable(netip.AddrPort{})); d != "" {
				t.Error(d)
			}
		})
	}
}
