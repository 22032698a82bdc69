package ipvs

import (
	"net/netip"
	"testing"
)

func conn(port uint16, server, state string, expires int64) *Connection {
	return &Connection{
		Tuple:  Tuple{"tcp", netip.AddrPortFrom(netip.MustParseAddr("198.18.1.9"), port), netip.MustParseAddrPort("198.18.0.80:443")},
		Server: netip.MustParseAddrPort(server + ":443"), State: state, Expires: expires,
	}
}

const a, b = "198.19.0.11", "198.19.0.12"

// The entries of the first reading beside the one in question give the timeouts: 120 s.
func TestUsedAgain(t *testing.T) {
	for _, tt := range []struct {
		name        string
		before, now *Connection
		again, same int64
	}{
		{"goes on to expire", conn(1, a, "TIME_WAIT", 50), conn(1, a, "TIME_WAIT", 45), 0, 0},
		{"rounded up", conn(1, a, "TIME_WAIT", 50), conn(1, a, "TIME_WAIT", 46), 0, 0},
		{"established on the same server", conn(1, a, "TIME_WAIT", 50), conn(1, a, "ESTABLISHED", 899), 1, 1},
		{"closed again on the same server", conn(1, a, "TIME_WAIT", 50), conn(1, a, "TIME_WAIT", 118), 1, 1},
		{"given another server", conn(1, a, "TIME_WAIT", 50), conn(1, b, "TIME_WAIT", 118), 1, 0},
		{"answers pass by", conn(1, a, "FIN_WAIT", 50), conn(1, a, "FIN_WAIT", 117), 1, 1},
		{"the close took a while", conn(1, a, "FIN_WAIT", 119), conn(1, a, "TIME_WAIT", 119), 0, 0},
		{"established before", conn(1, a, "ESTABLISHED", 800), conn(1, a, "TIME_WAIT", 118), 0, 0},
		{"expired and still listed", conn(1, a, "TIME_WAIT", 0), conn(1, a, "TIME_WAIT", 0), 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			first, second := NewTable(), NewTable()
			for port, state := range map[uint16]string{7: "TIME_WAIT", 8: "FIN_WAIT"} {
				first.Add(conn(port, a, state, 120))
				second.Add(conn(port, a, state, 115))
			}
			first.Add(tt.before)
			second.Add(tt.now)
			first.Complete, second.Complete, second.At = true, true, 5
			s := second.Summary(first, 5)
			u := s.Services[0]
			if u.UsedAgain != tt.again || u.SameServer != tt.same || u.New != 0 || s.Compared != 3 {
				t.Errorf("used again %d, same server %d, new %d, compared %d", u.UsedAgain, u.SameServer, u.New, s.Compared)
			}
		})
	}
}

// TestNew: what is new is known only where both tables were whole.
func TestNew(t *testing.T) {
	for _, complete := range []bool{true, false} {
		first, second := NewTable(), NewTable()
		first.Add(conn(1, a, "TIME_WAIT", 100))
		second.Add(conn(2, b, "ESTABLISHED", 900))
		first.Complete, second.Complete, second.At = true, complete, 2
		s := second.Summary(first, 5)
		want := int64(0)
		if complete {
			want = 1
		}
		if u := s.Services[0]; s.NewKnown != complete || u.New != want || u.TopClients[0].New != want || u.Servers[0].New != want {
			t.Errorf("complete %v: %+v", complete, s)
		}
	}
}

func TestMostAreListed(t *testing.T) {
	table := NewTable()
	for port := range uint16(300) {
		c := conn(port+1, a, "TIME_WAIT", 100)
		c.Service = netip.AddrPortFrom(c.Service.Addr(), 1+port%30)
		c.Server = netip.AddrPortFrom(c.Server.Addr(), 1+port)
		table.Add(c)
	}
	s := table.Summary(nil, 4)
	if len(s.Services) != 4 || s.ServicesTotal != 30 || len(s.Services[0].Servers) != 4 || s.Services[0].TopClients[0].Ports != 10 {
		t.Errorf("%d services of %d, servers %d", len(s.Services), s.ServicesTotal, len(s.Services[0].Servers))
	}
}
