package pktgen

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// connections is a small run to a destination.
func connections(to string) packets.ConnectConfig {
	dst := netip.MustParseAddrPort(to)
	ports := nat.Ports{First: 10000, Last: 10999}
	return packets.ConnectConfig{
		Flows: packets.Flows{
			Count: 2 * ports.Len(), Sources: sources(dst.Addr()), SourcePorts: ports, Destinations: []netip.AddrPort{dst}, Seed: 1,
		},
		Connections: 1000, Window: 50, Timeout: 2 * time.Second, Close: load.CloseClient,
	}
}

// respond answers at the server, at port 80.
func respond(t testing.TB, ns *netns.Handle, name string) *Responder {
	t.Helper()
	r, err := Respond(Port{ns, name}, []nat.Ports{{First: 80, Last: 80}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func connect(t testing.TB, n *network, cfg packets.ConnectConfig) *packets.ConnectResult {
	t.Helper()
	r, err := Connect(t.Context(), cfg, egress(t, n, cfg.Target().Addr().String()), nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// routeSources gives the gateway the way back to the clients' second address.
func (n *network) routeSources(t testing.TB) {
	t.Helper()
	address(t, n.client, "eth0", "198.18.0.3/24", "2001:db8:18::3/64")
}

// all is what a run of n connections without a fault has counted.
func all(n int64) packets.Connections {
	return packets.Connections{Started: n, Established: n, Answered: n, Complete: n}
}

var closeModes = []load.CloseMode{load.CloseClient, load.CloseServer, load.CloseReset, packets.CloseNone}

func TestConnectDirect(t *testing.T) {
	t.Parallel()
	for _, to := range []string{"198.18.0.1:80", "[2001:db8:18::1]:80"} {
		for _, mode := range closeModes {
			t.Run(fmt.Sprint(to, mode), func(t *testing.T) {
				n := newNetwork(t)
				server := respond(t, n.gateway, "eth0")
				cfg := connections(to)
				cfg.Close = mode
				r := connect(t, n, cfg)
				if r.Connections != all(1000) || r.Misdelivered+r.Late+r.Duplicated+r.Unexpected+r.BadChecksum != 0 {
					t.Errorf("%+v", r)
				}
				served, err := server.Counts()
				want := packets.Responded{Opened: 1000, Answered: 1000, Interface: served.Interface, Seconds: served.Seconds, Notes: served.Notes}
				switch mode {
				case load.CloseReset:
					want.Reset = 1000
				case load.CloseClient, load.CloseServer:
					want.Closed = 1000
				}
				if err != nil || fmt.Sprint(*served) != fmt.Sprint(want) {
					t.Errorf("%+v, %v; want %+v", served, err, want)
				}
			})
		}
	}
}

// natRules translate connections to the gateway's port 8080 both ways, and count what conntrack
// calls invalid.
const natRules = `table inet nat {
	counter invalid { }
	chain pre { type nat hook prerouting priority dstnat; tcp dport 8080 dnat ip to 198.19.0.2:80; tcp dport 8080 dnat ip6 to [2001:db8:19::2]:80; }
	chain post { type nat hook postrouting priority srcnat; oifname "eth1" masquerade; }
	chain forward { type filter hook forward priority 0; ct state invalid counter name invalid; }
	chain raw { type filter hook prerouting priority 0; ct state invalid counter name invalid; }
}`

var stateWord = regexp.MustCompile(`(?m)^(?:ipv[46]\s+\d+\s+)?tcp\s+6\s+(?:\d+\s+)?([A-Z_]+)`)

// states counts the gateway's TCP entries by state.
func (n *network) states(t testing.TB) map[string]int {
	t.Helper()
	counted := map[string]int{}
	do(t, n.gateway, func() error {
		for _, family := range []string{"ipv4", "ipv6"} {
			out, err := exec.Command("conntrack", "-L", "-f", family, "-p", "tcp").Output()
			if err != nil {
				return err
			}
			for _, m := range stateWord.FindAllStringSubmatch(string(out), -1) {
				counted[m[1]]++
			}
		}
		return nil
	})
	return counted
}

func TestConnectThroughNAT(t *testing.T) {
	t.Parallel()
	state := map[load.CloseMode]string{load.CloseClient: "TIME_WAIT", load.CloseServer: "TIME_WAIT", load.CloseReset: "CLOSE", packets.CloseNone: "ESTABLISHED"}
	for _, to := range []string{"198.18.0.1:8080", "[2001:db8:18::1]:8080"} {
		for _, mode := range closeModes {
			t.Run(fmt.Sprint(to, mode), func(t *testing.T) {
				n := newNetwork(t)
				n.forward(t)
				n.routeSources(t)
				n.nft(t, natRules)
				server := respond(t, n.server, "eth0")
				cfg := connections(to)
				cfg.Close = mode
				r := connect(t, n, cfg)
				if r.Connections != all(1000) || r.Misdelivered+r.Late+r.Duplicated+r.Unexpected+r.BadChecksum != 0 {
					t.Errorf("%+v", r)
				}
				if got := n.states(t); len(got) != 1 || got[state[mode]] != 1000 {
					t.Errorf("conntrack has %v, want 1000 in %s", got, state[mode])
				}
				if invalid := n.counter(t, "inet nat", "invalid"); invalid != 0 {
					t.Errorf("%d packets are invalid for conntrack", invalid)
				}
				if served, err := server.Counts(); err != nil || served.Opened != 1000 || served.Passed != 0 {
					t.Errorf("%+v, %v", served, err)
				}
			})
		}
	}
}

// lossRules drop each tenth segment of one step on the way through the gateway.
const lossRules = `table ip filter { counter dropped { }; chain forward { type filter hook forward priority 0;
	%s numgen inc mod 10 == 3 counter name dropped %s; }; }`

// TestConnectLossIsExact loses, resets and copies segments of each step, and compares with what
// the rule has counted.
func TestConnectLossIsExact(t *testing.T) {
	t.Parallel()
	const synAck, reply, fin = `tcp sport 80 tcp flags & (syn|ack) == syn|ack`, `tcp sport 80 tcp flags & (psh|ack) == psh|ack`, `tcp sport 80 tcp flags & (fin|ack) == fin|ack`
	for _, tt := range []struct {
		name, match, verdict string
		want                 func(*packets.ConnectResult, int64)
	}{
		{"SYN-ACK lost", synAck, "drop", func(r *packets.ConnectResult, n int64) {
			r.Established, r.Answered, r.Complete, r.Incomplete.SYNACK = 1000-n, 1000-n, 1000-n, n
		}},
		{"SYN lost", `tcp dport 80 tcp flags == syn`, "drop", func(r *packets.ConnectResult, n int64) {
			r.Established, r.Answered, r.Complete, r.Incomplete.SYNACK = 1000-n, 1000-n, 1000-n, n
		}},
		{"reply lost", reply, "drop", func(r *packets.ConnectResult, n int64) {
			r.Answered, r.Complete, r.Incomplete.Reply = 1000-n, 1000-n, n
		}},
		{"FIN lost", fin, "drop", func(r *packets.ConnectResult, n int64) { r.Complete, r.Incomplete.Close = 1000-n, n }},
		{"SYN refused", `tcp dport 80 tcp flags == syn`, "reject with tcp reset", func(r *packets.ConnectResult, n int64) {
			r.Established, r.Answered, r.Complete, r.Reset.SYNACK = 1000-n, 1000-n, 1000-n, n
		}},
		{"FIN copied", fin, `dup to 198.18.0.2 device "eth0"`, func(r *packets.ConnectResult, n int64) { r.Duplicated = n }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			n.forward(t)
			n.routeSources(t)
			n.nft(t, fmt.Sprintf(lossRules, tt.match, tt.verdict))
			respond(t, n.server, "eth0")
			cfg := connections("198.19.0.2:80")
			if strings.Contains(tt.name, "copied") { // to the client's one address that the rule knows
				cfg.Flows.Sources, cfg.Flows.Count = cfg.Flows.Sources[:1], cfg.Flows.SourcePorts.Len()
			}
			cfg.Window = 200 // lost ones keep their place until the end
			r := connect(t, n, cfg)
			dropped := n.counter(t, "ip filter", "dropped")
			want := packets.ConnectResult{Connections: all(1000)}
			tt.want(&want, dropped)
			if r.Connections != want.Connections || r.Duplicated != want.Duplicated || r.Misdelivered+r.Late+r.Unexpected+r.BadChecksum+r.NoRoom != 0 || dropped < 90 {
				t.Errorf("%+v; the rule met %d", r, dropped)
			}
		})
	}
}

// TestWrongMappingIsSeen has a gateway that crosses two flows on the way back, and one that does
// not translate the way back at all.
func TestWrongMappingIsSeen(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, to, rules string
		from            netip.AddrPort // of the first misdelivered segment
	}{
		{"crossed", "198.19.0.2:80", `table ip raw { chain post { type filter hook postrouting priority 300;
			oifname "eth0" tcp sport 80 tcp dport set tcp dport map { 10000 : 10001, 10001 : 10000 }; }; }`, netip.MustParseAddrPort("198.19.0.2:80")},
		{"not translated back", "198.18.0.1:8080", `table ip raw { chain pre { type filter hook prerouting priority raw;
			iifname "eth0" tcp dport 8080 notrack ip daddr set 198.19.0.2 tcp dport set 80; }; }`, netip.MustParseAddrPort("198.19.0.2:80")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			n.forward(t)
			n.nft(t, tt.rules)
			respond(t, n.server, "eth0")
			cfg := connections(tt.to)
			cfg.Flows.Sources, cfg.Flows.SourcePorts, cfg.Flows.Count = cfg.Flows.Sources[:1], nat.Ports{First: 10000, Last: 10001}, 2
			cfg.Connections, cfg.Window, cfg.Timeout = 2, 2, 100*time.Millisecond
			r := connect(t, n, cfg)
			want := packets.Connections{Started: 2, Incomplete: packets.Steps{SYNACK: 2}}
			if r.Connections != want || r.Misdelivered != 2 || len(r.MisdeliveredAs) == 0 || r.MisdeliveredAs[0].Source != tt.from {
				t.Errorf("%+v, %d misdelivered, as %v", r.Connections, r.Misdelivered, r.MisdeliveredAs)
			}
		})
	}
}

// TestMappingThatChanges has the request come from another address than the SYN: the responder
// does not answer it, and the kernel resets it.
func TestMappingThatChanges(t *testing.T) {
	n := newNetwork(t)
	n.forward(t)
	n.nft(t, `table ip raw { chain post { type filter hook postrouting priority 300;
		oifname "eth1" tcp flags & psh == psh ip saddr set 198.18.0.9; }; chain pre { type filter hook prerouting priority raw;
		iifname "eth1" ip daddr 198.18.0.9 ip daddr set 198.18.0.2; }; }`)
	server := respond(t, n.server, "eth0")
	cfg := connections("198.19.0.2:80")
	cfg.Flows.Sources, cfg.Flows.Count = cfg.Flows.Sources[:1], cfg.Flows.SourcePorts.Len()
	r := connect(t, n, cfg)
	want := packets.Connections{Started: 1000, Established: 1000, Reset: packets.Steps{Reply: 1000}}
	served, err := server.Counts()
	if r.Connections != want || err != nil || served.Passed != 1000 || served.Answered != 0 {
		t.Errorf("%+v; the server %+v, %v", r.Connections, served, err)
	}
}

// TestConnectCannotBe has runs that are refused or get nowhere, and leave nothing.
func TestConnectCannotBe(t *testing.T) {
	n := newNetwork(t)
	cfg := connections("198.18.0.1:80")
	cfg.Flows.Sources, cfg.Flows.Count = cfg.Flows.Sources[:1], cfg.Flows.SourcePorts.Len() // of which the gateway knows the neighbour
	r, err := Connect(t.Context(), cfg, egress(t, n, "198.18.0.1"), nil)
	if want := (packets.Connections{Started: 1000, Reset: packets.Steps{SYNACK: 1000}}); err != nil || r.Connections != want { // by the kernel at the other end
		t.Errorf("%+v, %v; want %+v", r, err, want)
	}
	if attached(t, n.client, "eth0") || attached(t, n.gateway, "eth0") {
		t.Error("a program is still attached")
	}
	first := respond(t, n.gateway, "eth0")
	_, err = Respond(Port{n.gateway, "eth0"}, []nat.Ports{{First: 81, Last: 81}})
	wantError(t, err, "answer at gateway/eth0", "there is one already")
	_, err = Respond(Port{n.gateway, "eth7"}, nil)
	wantError(t, err, "answer at gateway/eth7", "no such interface")
	taken := respond(t, n.client, "eth0")
	_, err = Connect(t.Context(), cfg, egress(t, n, "198.18.0.1"), nil)
	wantError(t, err, "connect by client/eth0", "there is one already")
	taken.Close()
	first.Close()
	down(t, n.gateway, "eth0")
	_, err = Respond(Port{n.gateway, "eth0"}, nil)
	wantError(t, err, "answer at gateway/eth0", "down")
}

// TestKernelConnectionsGoOn has a kernel's connections to the responder's port with ever fewer
// options: the last one's SYN looks like the client's, but for its partial checksum.
func TestKernelConnectionsGoOn(t *testing.T) {
	n := newNetwork(t)
	for _, name := range []string{"tcp_timestamps", "tcp_sack", "tcp_window_scaling"} {
		sysctl(t, n.client, "net/ipv4/"+name, "0")
		server := respond(t, n.gateway, "eth0")
		if got := exchange(t, n, "198.18.0.1:80"); got != "hello" {
			t.Errorf("without %s the server read %q", name, got)
		}
		if served, err := server.Counts(); err != nil || served.BadChecksum != 0 || served.Opened != 0 || served.Passed == 0 {
			t.Errorf("without %s: %+v, %v", name, served, err)
		}
		server.Close()
	}
}

// exchange returns what a server of the gateway reads from a client until that closes.
func exchange(t *testing.T, n *network, to string) (text string) {
	t.Helper()
	var l net.Listener
	do(t, n.gateway, func() (err error) { l, err = net.Listen("tcp", to); return err })
	defer l.Close()
	deadline := time.Now().Add(testutil.Patience(10 * time.Second))
	if err := l.(*net.TCPListener).SetDeadline(deadline); err != nil {
		t.Fatal(err)
	}
	var c net.Conn
	do(t, n.client, func() (err error) { c, err = net.DialTimeout("tcp", to, testutil.Patience(10*time.Second)); return err })
	defer c.Close()
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := errors.Join(c.SetDeadline(deadline), s.SetDeadline(deadline)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(s)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

// TestNothingAnswers ends within about a second.
func TestNothingAnswers(t *testing.T) {
	n := newNetwork(t) // which does not forward
	_, err := Connect(t.Context(), connections("198.19.0.2:80"), egress(t, n, "198.19.0.2"), nil)
	wantError(t, err, "none of the first 32 SYNs from client/eth0 to 198.19.0.2:80", "bench serve --engine packet")
}

// TestConnectInterrupted ends at once, with what was reached.
func TestConnectInterrupted(t *testing.T) {
	n := newNetwork(t)
	respond(t, n.gateway, "eth0")
	cfg := connections("198.18.0.1:80")
	cfg.Connections, cfg.Duration = 0, time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	r, err := Connect(ctx, cfg, egress(t, n, "198.18.0.1"), func(p packets.ConnectProgress) {
		if p.Complete > 0 {
			cancel()
		}
	})
	if err != nil || r.Complete == 0 || r.Complete != r.Started || len(r.Course) == 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestConnectPaced begins no more than the schedule has.
func TestConnectPaced(t *testing.T) {
	n := newNetwork(t)
	respond(t, n.gateway, "eth0")
	cfg := connections("198.18.0.1:80")
	cfg.Connections, cfg.Duration, cfg.Rate, cfg.Window = 0, 200*time.Millisecond, 5000, cfg.Flows.Count
	r := connect(t, n, cfg)
	if r.Started > 1000 || r.Complete != r.Started || r.Handshake.Max <= 0 {
		t.Errorf("%+v", r)
	}
}

// TestConnectLimit has runs that were behind their schedule.
func TestConnectLimit(t *testing.T) {
	cfg := connections("198.18.0.1:80")
	cfg.Connections, cfg.Rate = 0, 1000
	for _, tt := range []struct {
		name    string
		started int64
		worked  time.Duration
		full    bool
		limited bool
	}{
		{"kept", 10_000, 10 * time.Second, false, false},
		{"within what is tolerated", 9_901, 10 * time.Second, false, false},
		{"behind", 9_800, 10 * time.Second, false, true},
		{"the window was full", 5_000, 10 * time.Second, true, false},
		{"the window was full at the end", 9_990, 10 * time.Second, true, false},
		{"interrupted", 5_000, 5 * time.Second, false, false},
	} {
		cfg.Duration = 10 * time.Second
		c := &client{cfg: cfg, worked: tt.worked, full: tt.full}
		if got := c.limit(tt.started); (got != "") != tt.limited {
			t.Errorf("%s: %q", tt.name, got)
		}
		if got, want := c.behind(tt.started), tt.started < 9_900 && tt.worked == cfg.Duration; got != want {
			t.Errorf("%s: behind %t", tt.name, got)
		}
	}
}

// TestConnectRate has the time that a rate is of.
func TestConnectRate(t *testing.T) {
	cfg := connections("198.18.0.1:80")
	for _, tt := range []struct {
		name    string
		rate    float64
		seconds float64
		want    float64
	}{
		{"a closed loop", 0, 0.5, 64},
		{"as scheduled", 16, 2, 16},
		{"the first ones were all", 16, 0.001, 16},
		{"behind", 100, 4, 8},
	} {
		cfg.Rate = tt.rate
		if got := (&client{cfg: cfg}).rate(all(32), 0, tt.seconds); got != tt.want {
			t.Errorf("%s: %g/s, want %g", tt.name, got, tt.want)
		}
	}
	cfg.Rate, cfg.Duration = 100, 100*time.Millisecond
	c := &client{cfg: cfg}
	if n := probesOf(1000, c.pace(), cfg.Duration); n != 10 {
		t.Errorf("%d connections go ahead, and 10 are due in all", n)
	}
}

// TestConnectEndNotes has what is to be known of a run's end.
func TestConnectEndNotes(t *testing.T) {
	lossy, used := all(1000), all(2000)
	lossy.Complete = 900
	for _, tt := range []struct {
		name         string
		n            packets.Connections
		rate         float64
		worked, last time.Duration
		want         int
	}{
		{"until the end", lossy, 0, 4 * time.Second, 3900 * time.Millisecond, 0},
		{"the path died", lossy, 0, 4 * time.Second, 1400 * time.Millisecond, 1},
		{"a slow schedule", lossy, 0.4, 4 * time.Second, 1400 * time.Millisecond, 0},
		{"all were complete", all(1000), 0, 4 * time.Second, 1400 * time.Millisecond, 0},
		{"every flow was used", used, 0, 2 * time.Second, 2 * time.Second, 1},
	} {
		cfg := connections("198.18.0.1:80")
		cfg.Close, cfg.Connections, cfg.Duration, cfg.Rate = packets.CloseNone, 0, 4*time.Second, tt.rate
		c := &client{cfg: cfg, worked: tt.worked, lastComplete: tt.last}
		if got := c.endNotes(tt.n); len(got) != tt.want {
			t.Errorf("%s: %q", tt.name, got)
		}
	}
}

// lossy is a client whose connections all lose their last segment, after its probe.
func lossy(t *testing.T, change func(*packets.ConnectConfig)) *client {
	t.Helper()
	n := newNetwork(t)
	n.forward(t)
	n.routeSources(t)
	n.nft(t, fmt.Sprintf(lossRules, `tcp sport 80 tcp flags & (fin|ack) == fin|ack counter drop;`, ""))
	respond(t, n.server, "eth0")
	cfg := connections("198.19.0.2:80")
	change(&cfg)
	c := &client{cfg: cfg, from: egress(t, n, "198.19.0.2")}
	t.Cleanup(func() { c.close() })
	if err := c.open(); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestConnectDeadPath ends a run without a time limit.
func TestConnectDeadPath(t *testing.T) {
	c := lossy(t, func(cfg *packets.ConnectConfig) { cfg.Timeout = 100 * time.Millisecond })
	ctx, end := context.WithCancelCause(t.Context())
	defer end(nil)
	err := c.sender.onCPU(func() error { return c.work(ctx, time.Now().Add(-time.Hour), end) })
	if n, _ := c.counts(); err != nil || ctx.Err() == nil || n.Started == 1000 || n.Complete != 0 {
		t.Errorf("%v, %v, %+v", err, ctx.Err(), n.Connections)
	}
	c.cfg.Duration = 2 * time.Hour
	if c.dead(time.Hour) {
		t.Error("a run with a time limit lasts as long")
	}
}

// TestConnectDrainEnds with the run, and not with the timeouts of its connections.
func TestConnectDrainEnds(t *testing.T) {
	c := lossy(t, func(cfg *packets.ConnectConfig) { cfg.Window, cfg.Timeout = 1000, 10*time.Second })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c.progress = func(p packets.ConnectProgress) {
		if p.Started == 1000 {
			cancel()
		}
	}
	r, err := c.conduct(ctx)
	if err != nil || r.Incomplete.Close != 1000 || c.expired.Load() != 0 {
		t.Errorf("%+v, %v; %d waited for their timeout", r, err, c.expired.Load())
	}
}

// TestConnectTimeoutInOpenLoop gives connections up although the window has room.
func TestConnectTimeoutInOpenLoop(t *testing.T) {
	c := lossy(t, func(cfg *packets.ConnectConfig) {
		cfg.Connections, cfg.Duration, cfg.Rate, cfg.Window, cfg.Timeout = 0, 200*time.Millisecond, 1000, cfg.Flows.Count, time.Millisecond
	})
	ctx, end := context.WithCancelCause(t.Context())
	defer end(nil)
	err := c.sender.onCPU(func() error { return c.work(ctx, time.Now(), end) })
	if err != nil || c.expired.Load() == 0 {
		t.Errorf("%v, %d expired", err, c.expired.Load())
	}
}
