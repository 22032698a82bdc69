package follow

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/syn"
	"github.com/natkit/natkit/internal/tap"
	"github.com/natkit/natkit/internal/testutil"
)

// path is a client, a gateway and a server in a row.
type path struct{ client, gateway, server *netns.Handle }

func newPath(t *testing.T) path {
	t.Helper()
	testutil.NeedRoot(t)
	p := path{testutil.Namespace(t, "client"), testutil.Namespace(t, "gateway"), testutil.Namespace(t, "server")}
	testutil.Veth(t, testutil.End{Netns: p.client, Name: "eth0", Addresses: []string{"198.18.0.2/24", "2001:db8::2/64"}},
		testutil.End{Netns: p.gateway, Name: "outside", Addresses: []string{"198.18.0.1/24", "2001:db8::1/64"}})
	testutil.Veth(t, testutil.End{Netns: p.gateway, Name: "inside", Addresses: []string{"198.19.0.1/24", "2001:db8:1::1/64"}},
		testutil.End{Netns: p.server, Name: "eth0", Addresses: []string{"198.19.0.2/24", "2001:db8:1::2/64"}})
	testutil.Routes(t, p.client, "198.18.0.1", "2001:db8::1")
	testutil.Routes(t, p.server, "198.19.0.1", "2001:db8:1::1")
	testutil.Sysctl(t, p.gateway, "net/ipv4/ip_forward", "1")
	testutil.Sysctl(t, p.gateway, "net/ipv6/conf/all/forwarding", "1")
	p.serve(t)
	return p
}

// serve answers connections and datagrams to port 80 of the server.
func (p path) serve(t *testing.T) {
	t.Helper()
	testutil.Inside(t, p.server, func() error {
		for _, network := range []string{"tcp4", "tcp6"} {
			l, err := net.Listen(network, ":80")
			if err != nil {
				return err
			}
			t.Cleanup(func() { l.Close() })
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					conn.Close()
				}
			}()
		}
		c, err := net.ListenPacket("udp4", ":80")
		if err != nil {
			return err
		}
		t.Cleanup(func() { c.Close() })
		go func() {
			b := make([]byte, 64)
			for {
				n, from, err := c.ReadFrom(b)
				if errors.Is(err, net.ErrClosed) {
					return
				}
				if err == nil {
					_, _ = c.WriteTo(append(b[:n:n], '!'), from)
				}
			}
		}()
		return nil
	})
}

// ask opens a connection, or sends a datagram and waits for the answer, a number of times. Whether
// that goes well is what the tap is to say.
func (p path) ask(t *testing.T, times int, network, address string) {
	t.Helper()
	testutil.Inside(t, p.client, func() error {
		for range times {
			c, err := net.DialTimeout(network, address, testutil.Patience(2*time.Second))
			if err != nil {
				continue
			}
			if network == "udp" {
				_ = c.SetDeadline(time.Now().Add(testutil.Patience(2 * time.Second)))
				_, _ = c.Write([]byte("?"))
			}
			_, _ = io.ReadAtLeast(c, make([]byte, 8), 1)
			c.Close()
		}
		return nil
	})
}

// TestFollow follows connections of each kind through real NAT.
func TestFollow(t *testing.T) {
	p := newPath(t)
	testutil.Nft(t, p.gateway, `table inet t {
	chain pre { type nat hook prerouting priority dstnat;
		meta nfproto ipv4 tcp dport 8080 dnat ip to 198.19.0.2:80; meta nfproto ipv6 tcp dport 8080 dnat ip6 to [2001:db8:1::2]:80;
		meta nfproto ipv4 udp dport 8080 dnat ip to 198.19.0.2:80; meta nfproto ipv4 tcp dport 8081 dnat ip to 198.19.0.2:81;
		meta nfproto ipv4 tcp dport 8082 dnat ip to 198.19.0.2:82; }
	chain post { type nat hook postrouting priority srcnat; oifname "inside" udp dport 80 masquerade; }
	chain f { type filter hook forward priority 0; tcp dport 82 drop; }
}`)
	tap, err := Start(t.Context(), Options{Netns: p.gateway})
	if err != nil {
		t.Fatal(err)
	}
	p.ask(t, 3, "tcp", "198.18.0.1:8080")
	p.ask(t, 3, "tcp", "[2001:db8::1]:8080")
	p.ask(t, 3, "udp", "198.18.0.1:8080")
	p.ask(t, 2, "tcp", "198.18.0.1:8081")
	p.ask(t, 2, "tcp", "198.18.0.1:8082")
	p.ask(t, 1, "tcp", "198.18.0.1:8084")
	if ping, err := exec.LookPath("ping"); err == nil {
		testutil.Run(t, p.client, "", ping, "-c", "1", "-W", "5", "198.19.0.2")
	}
	want := map[string]map[snapshot.Step]uint64{
		"tcp 198.18.0.1:8080 -> 198.19.0.2:80": {snapshot.StepAnswered: 3}, "tcp [2001:db8::1]:8080 -> [2001:db8:1::2]:80": {snapshot.StepAnswered: 3},
		"udp 198.18.0.1:8080 -> 198.19.0.2:80": {snapshot.StepAnswered: 3}, "tcp 198.18.0.1:8081 -> 198.19.0.2:81": {snapshot.StepRefused: 2},
		"tcp 198.18.0.1:8082 -> -": {snapshot.StepLostHere: 2}, "tcp 198.18.0.1:8084 -> -": {snapshot.StepRefusedHere: 1},
	}
	// What is lost needs a moment to be missed.
	testutil.Eventually(t, "the drops are missed", func() bool {
		r, err := tap.Read()
		if err != nil {
			t.Fatal(err)
		}
		return stepsOf(r)["tcp 198.18.0.1:8082 -> -"][snapshot.StepLostHere] == 2
	})
	r, err := tap.Stop()
	if err != nil {
		t.Fatal(err)
	}
	got := stepsOf(r)
	for name, steps := range want {
		for step, n := range steps {
			if got[name][step] != n {
				t.Errorf("%s: %v, want %d %s", name, got[name], n, step)
			}
		}
	}
	for i := range r.Services {
		s := &r.Services[i]
		if s.Service == netip.MustParseAddrPort("198.18.0.1:8080") && (s.In != "outside" || s.Out != "inside" || s.HereSeconds <= 0 || s.BeyondSeconds <= 0 || s.BackSeconds <= 0) {
			t.Errorf("%+v", s)
		}
		if s.Protocol == "udp" && s.Given != netip.MustParseAddr("198.19.0.1") {
			t.Errorf("the source became %v", s.Given)
		}
		if s.Protocol == "icmp" && s.Steps[snapshot.StepAnswered] != 1 {
			t.Errorf("ping: %+v", s)
		}
	}
	if r.Lost != 0 || r.Sample != 1 || r.TCPOnly || r.Seconds <= 0 {
		t.Errorf("%+v", r)
	}
}

func stepsOf(r *snapshot.Followed) map[string]map[snapshot.Step]uint64 {
	all := map[string]map[snapshot.Step]uint64{}
	for _, s := range r.Services {
		to := "-"
		if s.Target.IsValid() {
			to = s.Target.String()
		}
		all[s.Protocol+" "+s.Service.String()+" -> "+to] = s.Steps
	}
	return all
}

// TestFollowOne: of one service and one client only.
func TestFollowOne(t *testing.T) {
	p := newPath(t)
	for name, o := range map[string]Options{
		"service": {Service: netip.MustParseAddrPort("198.19.0.2:80")},
		"client":  {Client: netip.MustParseAddrPort("198.18.0.2:0"), Service: netip.MustParseAddrPort("198.19.0.2:80")},
	} {
		o.Netns = p.gateway
		tap, err := Start(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		p.ask(t, 2, "tcp", "198.19.0.2:80")
		p.ask(t, 1, "tcp", "198.19.0.2:81")
		r, err := tap.Stop()
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Services) != 1 || r.Services[0].Steps[snapshot.StepAnswered] != 2 {
			t.Errorf("%s: %+v", name, r.Services)
		}
	}
}

func TestParseEnd(t *testing.T) {
	for text, want := range map[string]string{"203.0.113.1": "203.0.113.1:0", "203.0.113.1:80": "203.0.113.1:80", "2001:db8::1": "[2001:db8::1]:0", "[2001:db8::1]:443": "[2001:db8::1]:443"} {
		if got, err := ParseEnd(text); err != nil || got.String() != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "80", "web:80", "203.0.113.1:x", "203.0.113.1:70000"} {
		if got, err := ParseEnd(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// TestPauses: where packets are many they are seen in shifts, and what falls between two of them is
// not taken for lost.
func TestPauses(t *testing.T) {
	p := newPath(t)
	often := tap.Shifts{Seen: 60 * time.Millisecond, Pause: 20 * time.Millisecond}
	source := tap.OpenSource(p.gateway)
	defer source.Close()
	source.Schedule(tap.Schedule{Programs: often, Sockets: often})
	tp, err := Start(t.Context(), Options{Netns: p.gateway, Source: source})
	if err != nil {
		t.Fatal(err)
	}
	var f *snapshot.Followed
	testutil.Eventually(t, "a pause, and connections", func() bool {
		p.ask(t, 20, "tcp", "198.19.0.2:80")
		if f, err = tp.Read(); err != nil {
			t.Fatal(err)
		}
		return f.PausedSeconds > 0 && len(f.Services) > 0 && f.Services[0].Steps[snapshot.StepAnswered] >= 50
	})
	if f, err = tp.Stop(); err != nil {
		t.Fatal(err)
	}
	if f.PausedSeconds >= f.Seconds {
		t.Errorf("paused for %v s of %v s", f.PausedSeconds, f.Seconds)
	}
	for _, s := range f.Services {
		if n := s.Failing(); n > 0 {
			t.Errorf("%v: %d fail: %v", s.Service, n, s.Steps)
		}
	}
}

// TestPlaces: what this host does to what was lost is asked about the very packet.
func TestPlaces(t *testing.T) {
	p := newPath(t)
	testutil.Routes(t, p.gateway, "198.18.0.2")
	testutil.Nft(t, p.gateway, `table ip t {
	chain pre { type nat hook prerouting priority dstnat; tcp dport 8083 dnat to 198.19.0.2:83; tcp dport 8084 dnat to 198.19.5.5:80; }
	chain f { type filter hook forward priority 0; ip saddr 198.18.0.2 tcp dport 83 drop; ip saddr 198.18.0.3 tcp dport 83 drop; ct state established tcp sport 83 oifname != "inside" drop; }
	chain i { type filter hook input priority 0; tcp dport 8090 drop; }
}`)
	testutil.Inside(t, p.gateway, func() error { return netlink.RouteAdd(blackhole("198.19.5.0/24")) })
	tap, err := Start(t.Context(), Options{Netns: p.gateway})
	if err != nil {
		t.Fatal(err)
	}
	for _, port := range []string{"8083", "8084", "8090"} {
		p.ask(t, 1, "tcp", "198.18.0.1:"+port)
	}
	testutil.Eventually(t, "all are missed", func() bool {
		r, err := tap.Read()
		return err == nil && len(r.Services) == 3 && !slices.ContainsFunc(r.Services, func(s snapshot.FollowedService) bool { return s.Failed == nil })
	})
	r, err := tap.Stop()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range r.Services {
		at := s.Failed.Place
		if at == nil {
			t.Errorf("%s: no place", s.Service)
			continue
		}
		filtered := at.Filter != nil && !at.Filter.Passes && len(at.Filter.Drops) == 1
		right := map[uint16]bool{
			8083: filtered && at.To == netip.MustParseAddrPort("198.19.0.2:83") && at.Out == "inside" && at.AnswerFilter != nil && !at.AnswerFilter.Passes,
			8084: at.NoRoute != "" && at.To == netip.MustParseAddrPort("198.19.5.5:80"),
			8090: filtered && at.Local && at.InUplink,
		}
		if !right[s.Service.Port()] {
			t.Errorf("%s: %+v %+v", s.Service, at, at.Filter)
		}
	}
}

// TestPlaceWithoutEntry: data of a connection that was forgotten is the first packet of another one, which rules translate.
func TestPlaceWithoutEntry(t *testing.T) {
	p := newPath(t)
	testutil.Routes(t, p.gateway, "198.18.0.2")
	testutil.Nft(t, p.gateway, `table ip t {
	chain pre { type nat hook prerouting priority dstnat; tcp dport 8083 dnat to 198.19.0.2:83; }
	chain f { type filter hook forward priority 0; ct state new tcp flags & (syn | ack) != syn drop; }
}`)
	f := &snapshot.Followed{Services: []snapshot.FollowedService{{
		Protocol: "tcp", Service: netip.MustParseAddrPort("198.18.0.1:8083"), In: "outside", Steps: map[snapshot.Step]uint64{snapshot.StepDataLost: 5},
		Failed: &snapshot.FailedConnection{Step: snapshot.StepDataLost, Client: netip.MustParseAddrPort("198.18.0.2:40000")},
	}}}
	testutil.Inside(t, p.gateway, func() error { return addPlaces(f) })
	if at := f.Services[0].Failed.Place; at == nil || at.NoEntryFilter == nil || len(at.NoEntryFilter.Drops) != 1 {
		t.Errorf("%+v", at)
	}
}

// blackhole is a route that drops what goes to a network.
func blackhole(network string) *netlink.Route {
	_, to, _ := net.ParseCIDR(network)
	return &netlink.Route{Dst: to, Type: unix.RTN_BLACKHOLE}
}

// TestByways: a queue that tc redirects to is none of the ways out.
func TestByways(t *testing.T) {
	attrs := func(index, master int) netlink.LinkAttrs { return netlink.LinkAttrs{Index: index, MasterIndex: master} }
	ports, byways := portsAndByways([]netlink.Link{&netlink.Ifb{LinkAttrs: attrs(1, 0)}, &netlink.Bridge{LinkAttrs: attrs(2, 0)},
		&netlink.Dummy{LinkAttrs: attrs(3, 2)}, &netlink.Dummy{LinkAttrs: attrs(4, 0)}, &netlink.GenericLink{LinkAttrs: attrs(5, 0), LinkType: "nlmon"}})
	if !slices.Equal(ports, []int{3}) || !slices.Equal(byways, []int{1, 5}) {
		t.Errorf("%v, %v", ports, byways)
	}
}

// TestUnsent: what this host's programs cannot send.
func TestUnsent(t *testing.T) {
	p := newPath(t)
	testutil.Nft(t, p.server, `table ip t { chain o { type filter hook output priority 0; tcp dport 443 drop; }; }`)
	tap, err := Start(t.Context(), Options{Netns: p.server})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- p.server.Do(func() error {
			_, err := (&net.Dialer{}).DialContext(ctx, "tcp", "198.18.0.2:443")
			return err
		})
	}()
	testutil.Eventually(t, "the socket waits", func() bool {
		var opening []frame.Tuple
		err := p.server.Do(func() (err error) { opening, err = syn.Opening(); return err })
		return err == nil && len(opening) == 1
	})
	r, err := tap.Stop()
	cancel()
	if <-done == nil || err != nil {
		t.Fatal("it was opened, or ", err)
	}
	if len(r.Services) != 1 || r.Services[0].In != "" || r.Services[0].Steps[snapshot.StepLostHere] != 1 {
		t.Fatalf("%+v", r.Services)
	}
	if at := r.Services[0].Failed.Place; at == nil || at.Filter == nil || at.Filter.Passes {
		t.Errorf("%+v", at)
	}
}
