package look

import (
	"net"
	"testing"
)

// Two hosts with one source port to one destination: the second connection has none.
func TestConnectionsWithoutAPortAreRated(t *testing.T) {
	w := newWorld(t)
	w.address(w.inside, "eth0", "192.168.0.3/24")
	w.apply(`gateway:
  interfaces: {wan: wan0, lan: lan0}
  nat:
    - snat: {from: 192.168.0.0/24, to: 203.0.113.7, ports: keep}
`, w.facts())
	l := New(w.options())
	first, err := l.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if first.Drops.InsertFailedPerSecond != nil {
		t.Error("a rate after one look")
	}
	w.do(w.inside, func() error {
		for _, from := range []string{"192.168.0.2", "192.168.0.3", "192.168.0.3"} {
			d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(from), Port: 5555}}
			c, err := d.Dial("udp4", "203.0.113.100:9")
			if err != nil {
				return err
			}
			_, err = c.Write([]byte("hello"))
			c.Close()
			if err != nil {
				return err
			}
		}
		return nil
	})
	s, err := l.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d := s.Drops
	if d.InsertFailed == nil || d.NoEntry == nil {
		t.Fatalf("%+v, notes %v", d, s.Notes)
	}
	failed, all := *d.InsertFailed-*first.Drops.InsertFailed, *d.NoEntry-*first.Drops.NoEntry
	if failed != 2 || all != 2 {
		t.Errorf("insert_failed %d, drop %d: the two that found no port count in both", failed, all)
	}
	if d.InsertFailedPerSecond == nil || *d.InsertFailedPerSecond <= 0 {
		t.Errorf("rate %v", d.InsertFailedPerSecond)
	}
	if r := s.Rules[0]; r.New == nil || *r.New != 3 || r.Flows != 1 {
		t.Errorf("%+v: 3 first packets, 1 connection", r)
	}
}
