package collect

import (
	"net/netip"
	"testing"
)

func ipvsConn(port uint16, server, state string, expires int64) *ipvsConnection {
	return &ipvsConnection{
		ipvsTuple: ipvsTuple{"tcp", netip.AddrPortFrom(netip.MustParseAddr("198.18.1.9"), port), netip.MustParseAddrPort("198.18.0.80:443")},
		Server:    netip.MustParseAddrPort(server + ":443"), State: state, Expires: expires,
	}
}

const serverA, serverB = "198.19.0.11", "198.19.0.12"

// The entries of the first reading beside the one in question give the timeouts: 120 s.
func TestIPVSUsedAgain(t *testing.T) {
	for _, tt := range []struct {
		name        string
		before, now *ipvsConnection
		again, same int64
	}{
		{"goes on to expire", ipvsConn(1, serverA, "TIME_WAIT", 50), ipvsConn(1, serverA, "TIME_WAIT", 45), 0, 0},
		{"rounded up", ipvsConn(1, serverA, "TIME_WAIT", 50), ipvsConn(1, serverA, "TIME_WAIT", 46), 0, 0},
		{"established on the same server", ipvsConn(1, serverA, "TIME_WAIT", 50), ipvsConn(1, serverA, "ESTABLISHED", 899), 1, 1},
		{"closed again on the same server", ipvsConn(1, serverA, "TIME_WAIT", 50), ipvsConn(1, serverA, "TIME_WAIT", 118), 1, 1},
		{"given another server", ipvsConn(1, serverA, "TIME_WAIT", 50), ipvsConn(1, serverB, "TIME_WAIT", 118), 1, 0},
		{"answers pass by", ipvsConn(1, serverA, "FIN_WAIT", 50), ipvsConn(1, serverA, "FIN_WAIT", 117), 1, 1},
		{"the close took a while", ipvsConn(1, serverA, "FIN_WAIT", 119), ipvsConn(1, serverA, "TIME_WAIT", 119), 0, 0},
		{"established before", ipvsConn(1, serverA, "ESTABLISHED", 800), ipvsConn(1, serverA, "TIME_WAIT", 118), 0, 0},
		{"expired and still listed", ipvsConn(1, serverA, "TIME_WAIT", 0), ipvsConn(1, serverA, "TIME_WAIT", 0), 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			first, second := newIPVSTable(), newIPVSTable()
			for port, state := range map[uint16]string{7: "TIME_WAIT", 8: "FIN_WAIT"} {
				first.add(ipvsConn(port, serverA, state, 120))
				second.add(ipvsConn(port, serverA, state, 115))
			}
			first.add(tt.before)
			second.add(tt.now)
			first.complete, second.complete, second.at = true, true, 5
			s := second.summary(first, 5)
			u := s.Services[0]
			if u.UsedAgain != tt.again || u.SameServer != tt.same || u.New != 0 || s.Compared != 3 {
				t.Errorf("used again %d, same server %d, new %d, compared %d", u.UsedAgain, u.SameServer, u.New, s.Compared)
			}
		})
	}
}

// TestNew: what is new is known only where both tables were whole.
func TestIPVSNew(t *testing.T) {
	for _, complete := range []bool{true, false} {
		first, second := newIPVSTable(), newIPVSTable()
		first.add(ipvsConn(1, serverA, "TIME_WAIT", 100))
		second.add(ipvsConn(2, serverB, "ESTABLISHED", 900))
		first.complete, second.complete, second.at = true, complete, 2
		s := second.summary(first, 5)
		want := int64(0)
		if complete {
			want = 1
		}
		if u := s.Services[0]; s.NewKnown != complete || u.New != want || u.TopClients[0].New != want || u.Servers[0].New != want {
			t.Errorf("complete %v: %+v", complete, s)
		}
	}
}

func TestMostOfIPVSIsListed(t *testing.T) {
	table := newIPVSTable()
	for port := range uint16(300) {
		c := ipvsConn(port+1, serverA, "TIME_WAIT", 100)
		c.Service = netip.AddrPortFrom(c.Service.Addr(), 1+port%30)
		c.Server = netip.AddrPortFrom(c.Server.Addr(), 1+port)
		table.add(c)
	}
	s := table.summary(nil, 4)
	if len(s.Services) != 4 || s.ServicesTotal != 30 || len(s.Services[0].Servers) != 4 || s.Services[0].TopClients[0].Ports != 10 {
		t.Errorf("%d services of %d, servers %d", len(s.Services), s.ServicesTotal, len(s.Services[0].Servers))
	}
}
