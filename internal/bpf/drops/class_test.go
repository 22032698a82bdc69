package drops

import (
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
)

// class is a way to lose packets.
type class struct {
	name string
	// where they are lost, after prepare and by send.
	where   func(n *network) *netns.Handle
	prepare func(t *testing.T, n *network)
	send    func(t *testing.T, n *network, count int)
	// functions has the one that drops them, by different kernels; reasons the names
	// that kernels give it: NOT_SPECIFIED where the kernel did not yet know better.
	functions, reasons []string
	protocol           string
	source             string
}

func gateway(n *network) *netns.Handle { return n.gateway }
func server(n *network) *netns.Handle  { return n.server }

func sysctl(name, value string) func(*testing.T, *network) {
	return func(t *testing.T, n *network) {
		t.Helper()
		testutil.Inside(t, n.gateway, func() error { return os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(value), 0) })
	}
}

func toServer(t *testing.T, n *network, count int) {
	t.Helper()
	datagrams(t, n.client, serverIP+":9", count)
}

var classes = []class{
	{
		name: "no route", where: gateway,
		prepare: func(t *testing.T, n *network) {
			run(t, n.gateway, "ip route add unreachable 198.51.100.0/24")
		},
		send:      func(t *testing.T, n *network, count int) { datagrams(t, n.client, "198.51.100.1:9", count) },
		functions: []string{"ip_error", "ip_rcv_finish_core"}, protocol: "udp", source: clientIP,
		reasons: []string{"IP_INNOROUTES", "NOT_SPECIFIED"},
	},
	{
		name: "rp_filter", where: gateway, prepare: sysctl("conf/eth0/rp_filter", "1"),
		send: func(t *testing.T, n *network, count int) {
			raw(t, n.client, udp("198.19.0.77", serverIP, 64, 0), count)
		},
		functions: []string{"ip_rcv_finish_core", "ip_rcv_finish", "ip_rcv"}, protocol: "udp", source: "198.19.0.77",
		reasons: []string{"IP_RPFILTER"},
	},
	{
		name: "rule by nft", where: gateway, send: toServer,
		prepare: func(t *testing.T, n *network) {
			testutil.Nft(t, n.gateway, "table ip f { chain c { type filter hook forward priority 0; udp dport 9 drop; }; }")
		},
		functions: []string{"nf_hook_slow", "nft_do_chain"}, protocol: "udp", source: clientIP, reasons: []string{"NETFILTER_DROP"},
	},
	{
		name: "rule by iptables", where: gateway, send: toServer,
		prepare: func(t *testing.T, n *network) {
			run(t, n.gateway, "iptables -A FORWARD -p udp --dport 9 -j DROP")
		},
		functions: []string{"nf_hook_slow", "nft_do_chain", "ipt_do_table"}, protocol: "udp", source: clientIP,
		reasons: []string{"NETFILTER_DROP"},
	},
	{
		name: "no UDP socket", where: server,
		send:      func(t *testing.T, n *network, count int) { raw(t, n.client, udp(clientIP, serverIP, 64, 0), count) },
		functions: []string{"__udp4_lib_rcv", "udp_rcv"}, protocol: "udp", source: clientIP, reasons: []string{"NO_SOCKET"},
	},
	{
		name: "no TCP socket", where: server,
		send: func(t *testing.T, n *network, count int) {
			testutil.Inside(t, n.client, func() error {
				for range count {
					if c, err := net.DialTimeout("tcp4", serverIP+":9", testutil.Patience(time.Second)); err == nil {
						c.Close()
						t.Error("port 9 is open")
					}
				}
				return nil
			})
		},
		functions: []string{"tcp_v4_rcv"}, protocol: "tcp", source: clientIP, reasons: []string{"NO_SOCKET"},
	},
	{
		name: "bad checksum", where: server,
		send:      func(t *testing.T, n *network, count int) { raw(t, n.client, udp(clientIP, serverIP, 64, 0xbad), count) },
		functions: []string{"__udp4_lib_rcv", "udp_rcv"}, protocol: "udp", source: clientIP, reasons: []string{"UDP_CSUM"},
	},
	{
		name: "TTL exceeded", where: gateway,
		send:      func(t *testing.T, n *network, count int) { raw(t, n.client, udp(clientIP, serverIP, 1, 0), count) },
		functions: []string{"ip_forward"}, protocol: "udp", source: clientIP, reasons: []string{"IP_INHDR", "NOT_SPECIFIED"},
	},
}

// TestClasses loses packets in each way and looks for function, reason, protocol,
// namespace and flow; by both programs.
func TestClasses(t *testing.T) {
	for _, c := range classes {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			if c.prepare != nil {
				c.prepare(t, n)
			}
			ns := c.where(n)
			typed := start(t, Options{Netns: ns, FlowSample: 1, StackSample: 1})
			untyped := start(t, Options{Netns: ns, FlowSample: 1, untyped: true})
			const count = 7
			c.send(t, n, count)
			for _, tr := range []*Tracer{typed, untyped} {
				c.judge(t, until(t, tr, count), ns.Inode(), count)
			}
			judgeStacks(t, read(t, typed))
		})
	}
}

func (c class) judge(t *testing.T, d *snapshot.Drops, inode, count uint64) {
	t.Helper()
	found := false
	for _, s := range d.Sites {
		if s.Protocol != c.protocol || !slices.Contains(c.functions, base(s.Function)) {
			continue
		}
		found = true
		if s.Packets != count || s.Netns != inode || !c.isReason(s.Reason) {
			t.Errorf("%s: %+v, want %d packets in %d because of %q", d.Source, s, count, inode, c.reasons)
		}
	}
	if !found {
		t.Errorf("%s: %+v has no %q with protocol %s", d.Source, d.Sites, c.functions, c.protocol)
	}
	var inFlows uint64
	for _, f := range d.Flows {
		if host, _, err := net.SplitHostPort(f.Source); err == nil && host == c.source && slices.Contains(c.functions, base(f.Function)) {
			inFlows += f.Packets
			if f.Interface == "" {
				t.Errorf("%s: %+v: no interface", d.Source, f)
			}
		}
	}
	if inFlows != count {
		t.Errorf("%s: %d packets from %s in flows %+v, want %d", d.Source, inFlows, c.source, d.Flows, count)
	}
}

// isReason: kernels before 5.17 give none, those soon after not yet all.
func (c class) isReason(reason string) bool {
	return reason == "" || slices.Contains(c.reasons, reason)
}

func judgeStacks(t *testing.T, d *snapshot.Drops) {
	t.Helper()
	if len(d.Stacks) == 0 || d.LostStacks != 0 {
		t.Fatalf("no stacks, or some were lost: %+v", d)
	}
	for _, s := range d.Stacks {
		if len(s.Functions) < 3 {
			t.Errorf("the stack %q is short", s.Functions)
		}
	}
}
