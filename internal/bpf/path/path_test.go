package path

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/bpf"
	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
)

// modes are the ways to attach; on a kernel without kprobe.multi they are the same.
var modes = []struct {
	name     string
	oneByOne bool
}{{"multi", false}, {"one by one", true}}

// TestDNATedSYN follows a SYN through a router that rewrites its destination, to the
// server's socket.
func TestDNATedSYN(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.Kprobe)
	n := newNodes(t)
	serve(t, n)
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			if !mode.oneByOne && !canMulti() {
				t.Log("no kprobe.multi here: this is one by one")
			}
			opt := Options{Netns: n.router, Interface: "near", Filter: parse(t, "tcp dst port 80"), Functions: "nat", Packets: 1, oneByOne: mode.oneByOne}
			packets := follow(t, opt, func() {
				if err := connect(t, n, nearAddr, openPort); err != nil {
					t.Error(err)
				}
			})
			if len(packets) != 1 {
				t.Fatalf("%d packets, want 1", len(packets))
			}
			checkDNATed(t, n, packets[0])
			if canMulti() && !mode.oneByOne {
				checkReturns(t, packets[0])
			}
		})
	}
}

func checkDNATed(t *testing.T, n nodes, p *snapshot.PacketPath) {
	t.Helper()
	at := inOrder(t, p, "ip_rcv", "nf_conntrack_in", "nf_nat_inet_fn", "ip_forward", "ip_output", "dev_hard_start_xmit", "ip_rcv", "ip_local_deliver", "tcp_v4_rcv")
	for i, step := range at {
		want := "198.18.1.1:80"
		if i >= 3 {
			want = "198.18.2.2:8080"
		}
		if got := p.Steps[step]; got.Destination != want || !strings.HasPrefix(got.Source, "198.18.1.2:") || got.TCPFlags != "SYN" {
			t.Errorf("in %s it is %+v, want a SYN to %s", got.Function, got.PathAddresses, want)
		}
	}
	if first, last := p.Steps[at[0]], p.Steps[at[len(at)-1]]; first.Netns != n.router.Inode() || last.Netns != n.server.Inode() || first.Interface != "near" || last.Interface != "up" {
		t.Errorf("it went from %s of %d to %s of %d", first.Interface, first.Netns, last.Interface, last.Netns)
	}
	if v := p.Verdict; v.Result != snapshot.PathDelivered || v.Netns != n.server.Inode() {
		t.Errorf("verdict %+v, want delivered in %d", v, n.server.Inode())
	}
}

// checkReturns looks for the verdicts of the hooks that the packet passed.
func checkReturns(t *testing.T, p *snapshot.PacketPath) {
	t.Helper()
	for _, want := range []string{"nf_conntrack_in PRE_ROUTING ACCEPT", "nf_nat_inet_fn PRE_ROUTING ACCEPT", "nf_hook_slow PRE_ROUTING ACCEPT",
		"nf_hook_slow FORWARD ACCEPT", "nf_hook_slow POST_ROUTING ACCEPT"} {
		if !slices.ContainsFunc(p.Steps, func(s snapshot.PathStep) bool {
			return s.Event == snapshot.StepCall && s.Function+" "+s.Hook+" "+s.Returned == want
		}) {
			t.Errorf("no call: %s", want)
		}
	}
}

// inOrder finds calls of functions, one after the other.
func inOrder(t *testing.T, p *snapshot.PacketPath, functions ...string) []int {
	t.Helper()
	var at []int
	next := 0
	for _, f := range functions {
		i := slices.IndexFunc(p.Steps[next:], func(s snapshot.PathStep) bool { return s.Event == snapshot.StepCall && s.Function == f })
		if i < 0 {
			t.Fatalf("no call of %s behind step %d", f, next)
		}
		at = append(at, next+i)
		next += i + 1
	}
	return at
}

// TestDroppedByRule: the verdict names the place and the reason, and the filter
// leaves out what else flows.
func TestDroppedByRule(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.Kprobe)
	n := newNodes(t)
	serve(t, n)
	opt := Options{Netns: n.router, Filter: parse(t, "tcp and port 81"), Functions: "nat", Packets: 1}
	packets := follow(t, opt, func() {
		if err := connect(t, n, nearAddr, openPort); err != nil {
			t.Error(err)
		}
		if err := connect(t, n, serverAddr, refusedPort); err == nil {
			t.Error("a connection came to be that a rule drops")
		}
	})
	if len(packets) == 0 {
		t.Fatal("the dropped packet was not seen")
	}
	if s := packets[0].Steps[0]; s.Destination != "198.18.2.2:81" {
		t.Errorf("%s → %s was followed", s.Source, s.Destination)
	}
	// Which of them frees it depends on the kernel.
	if v := packets[0].Verdict; v.Result != snapshot.PathDropped || v.Function != "nf_hook_slow" && v.Function != "nft_do_chain" ||
		v.Reason != "NETFILTER_DROP" || v.Netns != n.router.Inode() {
		t.Errorf("verdict %+v, want a drop in nf_hook_slow or nft_do_chain of %d", v, n.router.Inode())
	}
}

// TestCopyIsFollowed: a packet socket gets a copy of the SYN, which does not decide
// what became of the SYN.
func TestCopyIsFollowed(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.Kprobe)
	n := newNodes(t)
	serve(t, n)
	listen(t, n)
	opt := Options{Netns: n.router, Interface: "near", Filter: parse(t, "tcp dst port 80"), Functions: "nat", Packets: 1}
	packets := follow(t, opt, func() {
		if err := connect(t, n, nearAddr, openPort); err != nil {
			t.Error(err)
		}
	})
	if len(packets) != 1 {
		t.Fatalf("%d packets, want 1", len(packets))
	}
	p := packets[0]
	copied := slices.IndexFunc(p.Steps, func(s snapshot.PathStep) bool { return s.Event == snapshot.StepClone })
	if copied < 0 || p.Steps[copied].Buffer != 2 {
		t.Error("no copy was followed")
	}
	if p.Verdict.Result != snapshot.PathDelivered {
		t.Errorf("verdict %+v, want delivered", p.Verdict)
	}
}

// listen opens a packet socket on all interfaces of the router.
func listen(t *testing.T, n nodes) {
	t.Helper()
	const allProtocols = unix.ETH_P_ALL>>8 | unix.ETH_P_ALL<<8&0xff00
	testutil.Inside(t, n.router, func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, allProtocols)
		if err == nil {
			t.Cleanup(func() { unix.Close(fd) })
		}
		return err
	})
}

// TestSent: a device that keeps nothing is the end of the way.
func TestSent(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.Kprobe)
	n := newNodes(t)
	testutil.Inside(t, n.client, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "sink"
		return netlink.LinkAdd(&netlink.Dummy{LinkAttrs: attrs})
	})
	testutil.Addresses(t, testutil.Links(t, n.client), "sink", sinkAddr.String()+"/24")
	opt := Options{Netns: n.client, Filter: parse(t, "udp and dst port 9"), Functions: "nat", Packets: 1}
	packets := follow(t, opt, func() { sendUDP(t, n, beyondSink) })
	if len(packets) != 1 {
		t.Fatalf("%d packets, want 1", len(packets))
	}
	if v := packets[0].Verdict; v.Result != snapshot.PathSent || v.Interface != "sink" || v.Netns != n.client.Inode() {
		t.Errorf("verdict %+v, want sent by sink of %d", v, n.client.Inode())
	}
}

// TestRestricted: what comes by another interface, and in another namespace, is not
// followed.
func TestRestricted(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.Kprobe)
	n := newNodes(t)
	serve(t, n)
	// Answers come by this one, from the server's address and port until NAT.
	opt := Options{Netns: n.router, Interface: "far", Filter: parse(t, "tcp"), Functions: "ip_rcv,ip_forward", Packets: 1, oneByOne: true}
	packets := follow(t, opt, func() {
		if err := connect(t, n, nearAddr, openPort); err != nil {
			t.Error(err)
		}
	})
	if len(packets) != 1 {
		t.Fatalf("%d packets, want 1", len(packets))
	}
	if s := packets[0].Steps[0]; s.Source != "198.18.2.2:8080" || s.Interface != "far" {
		t.Errorf("%s → %s by %s was followed", s.Source, s.Destination, s.Interface)
	}
}

// TestAttachesMany: the functions of a profile are watched at once.
func TestAttachesMany(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.Kprobe)
	for _, tt := range []struct {
		profile string
		least   int
	}{{"nat", 100}, {"rx", 60}, {"all", 1000}} {
		tracer, err := Start(t.Context(), Options{Functions: tt.profile, Packets: 1})
		if err != nil {
			t.Errorf("%s: %v", tt.profile, err)
			continue
		}
		a := tracer.Attached()
		began := time.Now()
		if err := tracer.Close(); err != nil {
			t.Error(err)
		}
		t.Logf("%s: %+v, detached in %v", tt.profile, a, time.Since(began))
		if a.NoReturns != nil {
			t.Errorf("%s: %v", tt.profile, a.NoReturns)
		}
		if a.Functions < 10 || !a.OneByOne && a.Functions < tt.least {
			t.Errorf("%s: %d functions are watched, want %d", tt.profile, a.Functions, tt.least)
		}
	}
}

// TestBridged: the router is a bridge, and its rules see what it forwards.
func TestBridged(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.Kprobe)
	n := newNodes(t)
	filtered := bridge(t, n)
	serveAt(t, n, bridgedServer)
	opt := Options{Netns: n.router, Filter: parse(t, "tcp dst port 8080"), Functions: "nat", Packets: 1}
	packets := follow(t, opt, func() {
		if err := connect(t, n, bridgedServer, servedPort); err != nil {
			t.Error(err)
		}
	})
	if len(packets) != 1 {
		t.Fatalf("%d packets, want 1", len(packets))
	}
	want := []string{"br_handle_frame_finish", "dev_hard_start_xmit", "tcp_v4_rcv"}
	if filtered {
		want = []string{"br_nf_pre_routing", "br_handle_frame_finish", "dev_hard_start_xmit", "tcp_v4_rcv"}
	}
	inOrder(t, packets[0], want...)
	if v := packets[0].Verdict; v.Result != snapshot.PathDelivered || v.Netns != n.server.Inode() {
		t.Errorf("verdict %+v, want delivered in %d", v, n.server.Inode())
	}
}

// TestUntraceableReturns: a function that is not there does not take the returns of
// others with it.
func TestUntraceableReturns(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.Kprobe)
	testutil.NeedFeature(t, testutil.Fentry)
	tracer, err := Start(t.Context(), Options{Functions: "ip_rcv", Packets: 1, oneByOne: true})
	if err != nil {
		t.Fatal(err)
	}
	defer tracer.Close()
	before := len(tracer.att.links)
	hook := tracer.symbols.Named("nf_hook_slow")["nf_hook_slow"]
	if len(hook) != 1 {
		t.Fatalf("%d functions nf_hook_slow", len(hook))
	}
	list := []target{{hook[0], 1}, {bpf.Function{Name: "natkit_no_such_function", Addr: 1}, 1}}
	if err := tracer.attachResults(list); err == nil || !strings.Contains(err.Error(), "natkit_no_such_function") {
		t.Errorf("error %v", err)
	}
	if got := len(tracer.att.links) - before; got != 1 {
		t.Errorf("%d functions are heard, want nf_hook_slow alone", got)
	}
}

func TestNoneSeen(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.Kprobe)
	n := newNodes(t)
	tracer, err := Start(t.Context(), Options{Netns: n.server, Filter: parse(t, "tcp port 7"), Functions: "ip_rcv", Packets: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer tracer.Close()
	ctx, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	sum, err := tracer.Follow(ctx, func(p *snapshot.PacketPath) error { t.Errorf("seen: %s", sketch(p)); return nil })
	if err != nil || sum != (Summary{}) {
		t.Errorf("%+v, %v", sum, err)
	}
}

func TestStartRefuses(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.Kprobe)
	for _, tt := range []struct {
		opt  Options
		want string
	}{
		{Options{Functions: "no_such_function", Packets: 1}, "no function of this kernel"},
		{Options{Functions: "ip*,tcp*,udp*,nf_*,skb*,dev*", Packets: 1, oneByOne: true}, "functions are too many for this kernel"},
		{Options{Functions: "nat", Packets: 1, Interface: "no-such-if"}, `find interface "no-such-if"`},
	} {
		if tracer, err := Start(t.Context(), tt.opt); err == nil {
			tracer.Close()
			t.Errorf("%+v started", tt.opt)
		} else if !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want %q", tt.opt, err, tt.want)
		}
	}
}

func parse(t *testing.T, words string) *frame.Filter {
	t.Helper()
	e, err := frame.ParseFilter(strings.Fields(words))
	if err != nil {
		t.Fatal(err)
	}
	return e
}
