package drops

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/natkit/natkit/internal/bpf"
)

// attachVerdicts hooks the returns of conntrack's and NAT's functions, as far as
// that is possible. Without nf_conntrack_in's the others are of no use.
func (t *Tracer) attachVerdicts(s *ebpf.CollectionSpec) {
	alloc := t.attachVerdict(s, dropsProgVerdictAlloc)
	if err := s.Variables[dropsVarHasAlloc].Set(alloc == nil); err != nil {
		t.note(fmt.Sprintf("full tables cannot be distinguished from invalid packets: %v", err))
	}
	if err := t.attachVerdict(s, dropsProgVerdictTrack); err != nil {
		return
	}
	t.verdicts = true
	t.noteMissing(alloc, "packets not valid for their connection count as a full table")
	t.noteMissing(t.attachVerdict(s, dropsProgVerdictConfirm), "connections that were not inserted count as a rule's drops")
	for _, program := range []string{dropsProgVerdictNat, dropsProgVerdictMasq4, dropsProgVerdictMasq6} {
		t.noteMissing(t.attachVerdict(s, program), "some packets that could not be translated count as a rule's drops")
	}
	if err := s.Variables[dropsVarHasVerdicts].Set(true); err != nil {
		t.note(fmt.Sprintf("NAT's drops cannot be distinguished: %v", err))
		t.verdicts = false
	}
}

// noteMissing notes what is not reported, unless there is nothing to report: what is in a
// module that is not loaded does not drop.
func (t *Tracer) noteMissing(err error, consequence string) {
	if err != nil && !errors.Is(err, errNoFunction) {
		t.note(fmt.Sprintf("%s: %v", consequence, err))
	}
}

// errNoFunction: a function is not in this kernel at the moment.
var errNoFunction = errors.New("no such function in this kernel")

func (t *Tracer) attachVerdict(s *ebpf.CollectionSpec, program string) error {
	function := s.Programs[program].AttachTo
	if t.names.symbols != nil && len(t.names.symbols.Named(function)) == 0 {
		return fmt.Errorf("no fexit program on %s: %w", function, errNoFunction)
	}
	p, err := t.load(s, program)
	if errors.Is(err, ebpf.ErrNotSupported) { // its types are not there
		err = errors.Join(err, errNoFunction)
	}
	if err != nil {
		return fmt.Errorf("no fexit program on %s: %w", function, err)
	}
	l, err := link.AttachTracing(link.TracingOptions{Program: p})
	if err != nil {
		return fmt.Errorf("attach fexit program to %s: %w", function, err)
	}
	t.later(l)
	return nil
}

// protocolKnown is PROTOCOL_KNOWN in tables.h.
const protocolKnown = 1 << 8

// protocolName names what the program put together: "-" for none.
func protocolName(p uint32) string {
	etherType, known := uint16(p>>16), p&protocolKnown != 0
	if etherType == 0 && !known {
		return "-"
	}
	return bpf.ProtocolName(etherType, uint8(p), known)
}

// maxHarmless is RANGES in drops.bpf.c.
const maxHarmless = 32

// closedReasons are no drops on a network's way; CLOSED in drops.bpf.c is their number.
var closedReasons = [...]string{
	"QUEUE_PURGE",     // what a closed socket had not read, since Linux 6.3
	"SOCKET_CLOSE",    // the same of a Unix socket, since 6.14, as the next two
	"UNIX_DISCONNECT", // what was left of an earlier connection of a Unix socket
	"UNIX_SKIP_OOB",   // unrequested out-of-band data of a Unix socket
}

// harmlessCaller ends packets that have done their work by kfree_skb instead of
// consume_skb. It counts only where the reason is not conclusive: before Linux 5.17, and
// where it is NOT_SPECIFIED.
type harmlessCaller struct {
	function string
	// named: the function's real drops have reasons, so that it is harmless only in
	// kernels that have reasons at all.
	named bool
}

var harmlessCallers = []harmlessCaller{
	// Ends every neighbour discovery and multicast listener message this way after
	// it was handled; only echo is marked as consumed (until 6.3).
	{"icmpv6_rcv", false},
	// Frees the fragments of a packet, whatever becomes of the packet itself.
	{"skb_release_data", false}, {"kfree_skb_list", false}, {"kfree_skb_list_reason", false},
	// A multicast packet of a group that no local socket joined: Ethernet filters by hash.
	{"ip6_mc_input", false},
	// What a socket that is closed had not read or sent: with TCP that is at least the
	// peer's FIN. The same as the reason QUEUE_PURGE.
	{"sk_stream_kill_queues", false}, {"inet_sock_destruct", false}, {"tcp_disconnect", false},
	{"skb_queue_purge", false}, {"skb_queue_purge_reason", false},
	{"udp_destruct_common", false}, {"udp_destruct_sock", false}, {"udpv6_destruct_sock", false},
	// Local sockets that are closed with messages unread: no packets of a network.
	{"unix_release_sock", false}, {"unix_stream_connect", false},
	// The question of a netlink dump that was not read to its end.
	{"netlink_release", false}, {"netlink_sock_destruct", false},
	// The answer to a question about a route that there is none of ('ip route get', natkit's own questions).
	{"inet_rtm_getroute", false}, {"inet6_rtm_getroute", false},
	// A netlink message of which all that it brought was done, or that has no listener.
	{"nf_tables_commit", false}, {"nfnetlink_rcv_batch", false},
	// Made to try memory out while a driver comes up, and to run an eBPF program once.
	{"netif_napi_add_weight", false}, {"netif_napi_add_weight_locked", false}, {"bpf_prog_test_run_skb", false},
	// A packet that TIME_WAIT took: the last FIN or ACK of a connection.
	{"tcp_v4_rcv", true}, {"tcp_v6_rcv", true},
}

// isHarmless classifies a site as is_harmless in drops.bpf.c does.
func (n *names) isHarmless(s dropsSite) bool {
	n.readSymbols()
	// In Linux 5.17 the unspecified reason is the number 0.
	if n.reasons.Carried && s.Reason != n.unspecified {
		return s.Reason <= n.consumed || slices.Contains(n.closed[:], s.Reason)
	}
	for _, r := range n.harmless {
		if s.Location >= r.From && s.Location < r.To {
			return true
		}
	}
	return false
}

// findHarmless finds the code of the harmless callers.
func (n *names) findHarmless() {
	if n.symbols == nil {
		return
	}
	var wanted []string
	for _, c := range harmlessCallers {
		if n.reasons.Carried || !c.named {
			wanted = append(wanted, c.function)
		}
	}
	i := 0
	for _, functions := range n.symbols.Named(wanted...) {
		for _, f := range functions {
			if i < len(n.harmless) {
				n.harmless[i] = dropsRange{From: f.Addr, To: n.symbols.End(f.Addr)}
				i++
			}
		}
	}
}
