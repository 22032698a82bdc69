package udp

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/packets"
)

// Result is what a run found.
type Result struct {
	Config Config `json:"config"`
	// RunToken is the first four bytes of every payload; its lowest bit is set in replies.
	RunToken uint32 `json:"run_token"`
	// Seconds from the start to the last datagram or reply.
	Seconds float64 `json:"seconds"`
	// Delivery counts replies: Received are of the right length, from the server, to the sending
	// flow; Misdelivered from another address or to another flow.
	packets.Delivery
	// InFlight datagrams were unanswered when the run was interrupted; they are not lost.
	InFlight int64 `json:"in_flight,omitempty"`
	// Altered replies have another length than their datagram.
	Altered int64 `json:"altered"`
	// Foreign datagrams had no token of a reply to this run.
	Foreign int64 `json:"foreign"`
	// MisdeliveredFrom has the first addresses that misdelivered replies came from.
	MisdeliveredFrom []Stray `json:"misdelivered_from,omitempty"`
	// Unsent datagrams were due before the run ended, and not even tried.
	Unsent int64 `json:"unsent"`
	// Failures in phase send were not sent; those in phase wait are ICMP errors, which are
	// rate-limited.
	Failures []load.Failure `json:"failures"`
	// SocketDrops found no room in their socket or had a wrong checksum (sk_drops): they are
	// lost.
	SocketDrops int64 `json:"socket_drops"`
	// SentPerSecond and AnsweredPerSecond are datagrams, the latter each once.
	SentPerSecond     float64 `json:"sent_per_second"`
	AnsweredPerSecond float64 `json:"answered_per_second"`
	// SentFrameBytes are the bytes of Ethernet frames with FCS, one way.
	SentFrameBytes int64 `json:"sent_frame_bytes"`
	// RoundTrip counts from the sending of a datagram to the reading of its reply.
	RoundTrip load.Times `json:"round_trip_ms"`
	// Series counts per second datagrams answered (completed) and timed out (failed).
	Series         []load.Second `json:"series"`
	CPU            load.CPU      `json:"cpu"`
	GeneratorLimit string        `json:"generator_limit,omitempty"`
	CPUContention  string        `json:"cpu_contention,omitempty"`
	// SystemCalls made by the workers for the run's datagrams.
	SystemCalls int64 `json:"system_calls"`
	// Hint says what to check where nothing came back.
	Hint string `json:"hint,omitempty"`
}

// Answered is how many datagrams had a reply.
func (r *Result) Answered() int64 { return r.Sent - r.Lost - r.InFlight }

// Stray is where misdelivered replies came from.
type Stray struct {
	From  netip.AddrPort `json:"from"`
	Count int64          `json:"count"`
}

// maxStrays bounds the list.
const maxStrays = 8

// strays are the first addresses that something came from.
type strays []Stray

func (all *strays) add(s Stray) {
	if i := slices.IndexFunc(*all, func(o Stray) bool { return o.From == s.From }); i >= 0 {
		(*all)[i].Count += s.Count
	} else if len(*all) < maxStrays {
		*all = append(*all, s)
	}
}

// Tally counts for one worker. Only NewTally and the first strays allocate.
type Tally struct {
	packets.Delivery
	Answered, Altered, Foreign  int64
	InFlight                    int64 // set where the run was interrupted
	Unsent, SocketDrops         int64
	SentFrameBytes, SystemCalls int64
	Failures                    *load.FailureCounts
	RoundTrip                   *load.Histogram
	strays                      strays
}

// NewTally is empty.
func NewTally() *Tally {
	return &Tally{Failures: load.NewFailureCounts(), RoundTrip: load.NewHistogram()}
}

// Stray counts a misdelivered reply.
func (t *Tally) Stray(from netip.AddrPort) {
	t.Misdelivered++
	t.strays.add(Stray{from, 1})
}

// Merge adds another worker's tally.
func (t *Tally) Merge(o *Tally) {
	t.Sent += o.Sent
	t.Received += o.Received
	t.Reordered += o.Reordered
	t.Duplicated += o.Duplicated
	t.Late += o.Late
	t.Misdelivered += o.Misdelivered
	t.Answered += o.Answered
	t.Altered += o.Altered
	t.Foreign += o.Foreign
	t.Unsent += o.Unsent
	t.SocketDrops += o.SocketDrops
	t.SentFrameBytes += o.SentFrameBytes
	t.SystemCalls += o.SystemCalls
	t.Failures.Merge(o.Failures)
	t.RoundTrip.Merge(o.RoundTrip)
	for _, s := range o.strays {
		t.strays.add(s)
	}
}

// Fill writes the tally into a result whose Seconds are set.
func (t *Tally) Fill(r *Result) {
	r.Delivery = t.Delivery
	r.InFlight = t.InFlight
	r.Lost = max(t.Sent-t.Answered-t.InFlight, 0)
	r.Altered, r.Foreign, r.Unsent, r.SocketDrops = t.Altered, t.Foreign, t.Unsent, t.SocketDrops
	r.SentFrameBytes, r.SystemCalls = t.SentFrameBytes, t.SystemCalls
	r.Failures, r.MisdeliveredFrom = t.Failures.List(), t.strays
	r.RoundTrip = t.RoundTrip.Times()
	if r.Seconds > 0 {
		r.SentPerSecond = float64(t.Sent) / r.Seconds
		r.AnsweredPerSecond = float64(t.Answered) / r.Seconds
	}
	if t.Received == 0 {
		r.Hint = r.hint()
	}
}

// Lateness reports that late of sent datagrams were behind schedule by more than load.LateAfter;
// empty if few.
func Lateness(sent, late int64) string {
	if late*100 <= sent {
		return ""
	}
	return fmt.Sprintf("%d of %d datagrams were sent more than 5 ms behind the schedule: this machine is too slow for the rate", late, sent)
}

// Overflow says that this machine lost replies itself; empty where it did not.
func Overflow(drops int64) string {
	if drops == 0 {
		return ""
	}
	return fmt.Sprintf("%d replies came and found no room in a socket here: more flows or workers, a lower rate, or a greater net.core.rmem_max", drops)
}

// hint is one line on what to check where nothing came back.
func (r *Result) hint() string {
	var refused []string
	for _, f := range r.Failures {
		refused = append(refused, fmt.Sprintf("%s: %s %d", f.Phase, f.Reason, f.Count))
	}
	text := ""
	if len(refused) > 0 {
		text = strings.Join(refused, ", ") + "; "
	}
	switch {
	case r.Misdelivered > 0:
		return text + fmt.Sprintf("all replies were misdelivered, the first from %v instead of %v: check the NAT of the way back", r.MisdeliveredFrom[0].From, r.Config.To)
	case r.Foreign > 0:
		return text + fmt.Sprintf("%d datagrams came without the token of a reply to this run: the server is none of natkit's (natkit bench serve --udp), or of another version", r.Foreign)
	case r.Altered > 0:
		return text + fmt.Sprintf("all %d replies had another length than their datagrams: the server must answer with the same payload (natkit bench serve --udp does)", r.Altered)
	case r.reason("message too long"):
		return text + "a link on the way carries less than the route from here: give a smaller --size"
	case r.reason("refused"):
		return text + "nothing listens there: start natkit bench serve --udp, or check the NAT rule's destination"
	case r.reason("unreachable"):
		return text + "no host has that address (is it up?), or there is no route to it on the way"
	case len(refused) > 0:
		return text + "check the route and the firewall rules on the way"
	}
	return "check that a server listens (natkit bench serve --udp), the route there and back, firewalls, and, where an XDP program redirects on the way, that TX checksum offload is off at both ends (ethtool -K IFACE tx off)"
}

func (r *Result) reason(text string) bool {
	return slices.ContainsFunc(r.Failures, func(f load.Failure) bool { return f.Reason == text })
}
