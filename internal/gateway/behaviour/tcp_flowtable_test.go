package behaviour

import (
	"slices"
	"testing"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// fastPath is netfilter with a flowtable, whatever the file says.
type fastPath struct{ carried }

func (f fastPath) Apply(ns *netns.Handle, p *gateway.Plan) error {
	fast := *p
	fast.Flowtable = devices
	return f.carried.Apply(ns, &fast)
}

// fastTimes are cases about how long a flow is kept. One on the fast path is kept by
// net.netfilter.nf_flowtable_tcp_timeout and …udp_timeout, 30 s, and the kernel does not
// report its age (ctnetlink_dump_timeout leaves it out of what is offloaded). One that leaves
// the fast path has these 30 s less than the tracker's time for it (flow_offload_fixup_ct,
// since Linux 5.14): none where that was set to 2 s, so that its FIN ends it.
var fastTimes = []string{
	"rfc4787-req-5-stream", "rfc4787-req-5b", "rfc4787-req-5c", "rfc6888-req-8", "pool-recovers",
	"keep-clash-recovers", "keep-late-packet", "rfc5382-req-5", "rfc5382-req-5-unacknowledged",
	"rfc5382-req-5-a", "rfc7857-2-2-wait", "rfc7857-7", "rfc7857-7-1", "rfc7857-7-1-ipv6", "rfc7857-7-1-rst", "rfc7857-2-1-less",
}

// fastStates are those about connections that are half open or closing, which only newer
// kernels leave to the tracker.
var fastStates = []string{
	"rfc5382-req-5-syn-received", "rfc5382-req-5-fin-wait", "rfc5382-req-5-close-wait",
	"rfc5382-req-5-last-ack", "rfc5382-req-5-time-wait", "rfc7857-2-1-default",
}

// fastRefresh are those about packets that keep a mapping alive. On older kernels the fast
// path's do not until the tracker's garbage collection has come by (gc_worker), and who
// meets the entry before takes it for expired: a dump of any namespace removes it then.
var fastRefresh = []string{"rfc4787-req-6"}

// fastWindows are cases about sequence numbers, which the fast path does not look at
// (nf_flow_state_check, net/netfilter/nf_flow_table_ip.c): what is beyond the window
// passes, translated, and the tracker, to which a RST goes back, does not know by then
// what the next one is.
var fastWindows = map[string][]Outcome{
	"tcp-rst-inside":                {"passes, session goes on", "passes, session closes"},
	"tcp-rst-outside":               {"passes, session goes on", "passes, session closes"},
	"tcp-rst-before-window":         {"is dropped, session goes on", "passes, session goes on", "passes, session closes"},
	"tcp-rst-before-window-inside":  {"is dropped, session goes on", "is dropped, session closes", "passes, session goes on", "passes, session closes"},
	"tcp-rst-beyond-window":         {"passes, session closes", "passes, session goes on"},
	"tcp-rst-inexact":               {"passes, session closes", "passes, session goes on"},
	"tcp-data-beyond-window":        {Passes},
	"tcp-data-beyond-window-inside": {Translated},
}

// TestFlowtable runs the suite with the kernel's fast path, which must not be seen but
// in times and in windows.
func TestFlowtable(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.FlowTable)
	times := fastTimes
	if testutil.FastEstablished.Probe() != nil {
		times = slices.Concat(times, fastStates)
	}
	if testutil.FastKept.Probe() != nil {
		times = slices.Concat(times, fastRefresh)
	}
	cases := slices.DeleteFunc(playable(t, All()), func(c Case) bool { return slices.Contains(times, c.ID) })
	for i, r := range Run(Netfilter, cases, worlds(fastPath{alone}), slow(), atATime) {
		allowed, declared := fastWindows[cases[i].ID]
		switch {
		case declared && !slices.Contains(allowed, r.Outcome):
			t.Errorf("%s: got %q, declared %q with a flowtable; %v", r.ID, r.Outcome, allowed, r.Err)
		case !declared && r.Err != nil:
			t.Errorf("%s: %v", r.ID, r.Err)
		}
		t.Logf("%s: %s", r.ID, r.Outcome)
	}
}
