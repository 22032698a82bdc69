package look

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/testutil"
)

const crowded = `gateway:
  interfaces: {wan: wan0, lan: lan0}
  nat:
    - snat: {from: 192.168.0.2, to: 203.0.113.7, ports: 2000-2003}
    - snat: {from: 192.168.0.0/24, to: 203.0.113.8, ports: keep}
    - masquerade: {from: 192.168.0.0/16}
    - dnat: {on: 203.0.113.1, port: udp/8080, to: 192.168.0.2:8080}
`

// drops reads the status before and after fn, and returns the latter.
func (w *world) drops(fn func()) (*observe.Status, uint64) {
	w.t.Helper()
	l := New(w.options())
	l.CountDrops()
	w.t.Cleanup(func() {
		if err := l.Close(); err != nil {
			w.t.Error(err)
		}
	})
	var looks [2]*observe.Status
	for i := range looks {
		s, err := l.Look(w.t.Context())
		if err != nil {
			w.t.Fatal(err)
		}
		if looks[i] = s; i == 0 {
			fn()
		}
	}
	if looks[1].Drops.ByRule == nil {
		w.t.Fatalf("not counted by rule: %v", looks[1].Notes)
	}
	return looks[1], *looks[1].Drops.InsertFailed - *looks[0].Drops.InsertFailed
}

// settle waits until the given numbers of first packets were translated and dropped.
func (w *world) settle(translated, failed uint64) {
	w.t.Helper()
	testutil.Eventually(w.t, fmt.Sprintf("%d translated, %d dropped", translated, failed), func() bool {
		s := w.look()
		var all uint64
		for _, r := range s.Rules {
			if r.New != nil {
				all += *r.New
			}
		}
		return all == translated && *s.Drops.InsertFailed == failed
	})
}

// sendFrom sends a datagram from an address and port.
func (w *world) sendFrom(address string, port int, to string) {
	w.t.Helper()
	w.do(w.inside, func() error {
		c, err := (&net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(address), Port: port}}).Dial("udp4", to)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("hello"))
		return err
	})
}

func dropped(t *testing.T, s *observe.Status, want ...uint64) {
	t.Helper()
	for i, n := range want {
		if r := s.Rules[i]; r.Dropped == nil || *r.Dropped != n {
			t.Errorf("%s: %v dropped, want %d", r.Rule, r.Dropped, n)
		}
	}
}

// Four ports for ten connections to one place: six find none, and the same ports serve
// another place.
func TestDropsOfAUsedUpRange(t *testing.T) {
	w := newWorld(t)
	w.apply(crowded, w.facts())
	s, failed := w.drops(func() {
		w.send(w.inside, "203.0.113.100:9", 10)
		w.send(w.inside, "203.0.113.100:10", 3)
		w.settle(13, 6)
	})
	dropped(t, s, 6, 0, 0, 0)
	if r := s.Rules[0]; failed != 6 || *r.New != 13 || r.Flows != 7 || r.DroppedPerSecond == nil || *r.DroppedPerSecond <= 0 {
		t.Errorf("insert_failed %d, %d new, %d flows, rate %v", failed, *r.New, r.Flows, r.DroppedPerSecond)
	}
	if by := s.Drops.ByRule; by.NoRule > 0 || by.Untold > 0 || by.Seconds <= 0 {
		t.Errorf("%+v", by)
	}
}

// Hosts with the same port to the same place, where ports are kept.
func TestDropsOfKeptPorts(t *testing.T) {
	w := newWorld(t)
	w.address(w.inside, "eth0", "192.168.0.3/24")
	w.address(w.inside, "eth0", "192.168.0.4/24")
	w.apply(crowded, w.facts())
	s, failed := w.drops(func() {
		w.sendFrom("192.168.0.3", 5555, "203.0.113.100:9")
		w.sendFrom("192.168.0.4", 5555, "203.0.113.100:9")
		w.sendFrom("192.168.0.4", 5556, "203.0.113.100:9")
		w.sendFrom("192.168.0.4", 5555, "203.0.113.100:10")
		w.settle(4, 1)
	})
	dropped(t, s, 0, 1, 0, 0)
	if failed != 1 || s.Rules[1].Flows != 3 {
		t.Errorf("insert_failed %d, %d flows", failed, s.Rules[1].Flows)
	}
}

// A gateway that loses no connection shows no drops: neither for what works, nor for
// what a firewall drops before the rule or behind one that changed the destination.
func TestNoDropsWhereNoneAre(t *testing.T) {
	w := newWorld(t)
	w.apply(crowded, w.facts())
	w.run("nft", `table ip firewall {
		chain forward { type filter hook forward priority 0
			udp dport { 8080, 99 } drop
		}
	}`)
	s, failed := w.drops(func() {
		w.connect(w.inside, "203.0.113.100:7", 4)
		w.send(w.inside, "203.0.113.100:99", 5)
		w.send(w.outside, "203.0.113.1:8080", 5)
		w.send(w.inside, "198.51.100.1:7", 3) // no route
	})
	dropped(t, s, 0, 0, 0, 0)
	if failed != 0 || s.Rules[0].Flows != 4 || s.Drops.ByRule.NoRule != 0 {
		t.Errorf("insert_failed %d, %d flows, %+v", failed, s.Rules[0].Flows, s.Drops.ByRule)
	}
}

// Rules of another plan may have the same names: the count begins anew.
func TestDropsOfAnotherPlan(t *testing.T) {
	w := newWorld(t)
	w.apply(crowded, w.facts())
	s, _ := w.drops(func() {
		w.send(w.inside, "203.0.113.100:9", 10)
		w.settle(10, 6)
		w.apply(strings.Replace(crowded, "2000-2003", "2000-2001", 1), w.facts())
	})
	dropped(t, s, 0, 0, 0, 0)
}

// Without --watch drops are not counted by rule, and nothing is claimed.
func TestDropsAreAbsentWithoutWatch(t *testing.T) {
	w := newWorld(t)
	w.apply(crowded, w.facts())
	if s := w.look(); s.Drops.ByRule != nil || s.Rules[0].Dropped != nil || s.Rules[0].DroppedPerSecond != nil {
		t.Errorf("%+v, %+v", s.Drops, s.Rules[0])
	}
}

func TestDropsThatCannotBeCounted(t *testing.T) {
	w := newWorld(t)
	w.apply(crowded, w.facts())
	l := New(w.options())
	l.drops = &dropCount{hindered: errors.New("no eBPF here")}
	s, err := l.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(s.Notes, "drops are not counted by rule: no eBPF here") || s.Drops.ByRule != nil || s.Rules[0].Dropped != nil {
		t.Errorf("%v, %+v", s.Notes, s.Drops)
	}
}
