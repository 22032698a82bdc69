package packets

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/nat"
)

// Defaults of a run of datagrams.
const (
	UDPTimeout = time.Second
	// defaultInFlight fits into a socket's default buffer (net.core.rmem_default), which holds
	// about 250 small datagrams.
	defaultInFlight  = 100
	defaultDatagrams = 1000
)

// Bounds of a run of datagrams, besides those of CheckBounds.
const (
	maxSockets     = 1 << 20
	maxConcurrency = 1_000_000
)

// UDPConfig is one run of datagrams that a server echoes. Zero values mean the defaults given.
type UDPConfig struct {
	// To is the server.
	To netip.AddrPort `json:"to"`
	// Flows is the number of sockets to cycle through, each with its own source address and port;
	// 1.
	Flows int `json:"flows"`
	// Size is the list for ParseSizes; 64, or the least with headers and token.
	Size string `json:"size"`
	// FrameBytes are the frame sizes (RFC 2544) that each flow cycles through, from its own
	// offset; set by Checked.
	FrameBytes []int `json:"frame_bytes"`
	// Rate in datagrams per second, regardless of replies; 0 is as fast as replies come.
	Rate float64 `json:"rate_per_second"`
	// Concurrency bounds unanswered datagrams if there is no Rate; 100. A lost one counts until
	// the Timeout.
	Concurrency int `json:"concurrency,omitempty"`
	// Packets to send in all, 1000; 0 with a Duration means until that ends.
	Packets  int64         `json:"packets"`
	Duration time.Duration `json:"duration_ns"`
	// Timeout of a reply; 1 s. Later ones count as received until the run ends, a Timeout after
	// the last datagram.
	Timeout time.Duration `json:"timeout_ns"`
	// Sources are local addresses; empty lets the kernel choose.
	Sources []netip.Addr `json:"sources,omitempty"`
	// SourcePorts of the flows on each of Sources, in an order by Seed; zero leaves them to the
	// kernel.
	SourcePorts nat.Ports `json:"source_ports,omitzero"`
	Seed        uint64    `json:"seed"`
	// Workers is the number of threads; the number of CPUs, not more than Flows.
	Workers int `json:"workers"`
	// OwnNetwork allows a public address to be the server.
	OwnNetwork bool `json:"i_own_this_network,omitempty"`
}

// Checked sets the defaults and reports what cannot be run. Workers may stay 0.
func (c UDPConfig) Checked() (UDPConfig, error) {
	if c.Flows == 0 {
		c.Flows = 1
	}
	if c.Timeout == 0 {
		c.Timeout = UDPTimeout
	}
	if c.Packets == 0 && c.Duration == 0 {
		c.Packets = defaultDatagrams
	}
	if c.Rate != 0 && c.Concurrency != 0 {
		return c, errors.New("rate and concurrency are both given: a schedule waits for no reply; give one of them")
	}
	if c.Rate == 0 && c.Concurrency == 0 {
		c.Concurrency = defaultInFlight
	}
	if err := c.checkTarget(); err != nil {
		return c, err
	}
	if err := c.checkBounds(); err != nil {
		return c, err
	}
	if err := c.checkPorts(); err != nil {
		return c, err
	}
	var err error
	c.FrameBytes, err = c.frames()
	return c, err
}

func (c UDPConfig) checkTarget() error {
	to := c.To.Addr()
	if !to.IsValid() || c.To.Port() == 0 {
		return errors.New("no server: give ADDRESS:PORT, such as 198.18.0.2:9000 or [2001:db8::2]:9000")
	}
	if !load.IsHost(to) {
		return fmt.Errorf("server %v: not an address of a host", c.To)
	}
	if Public(to) && !c.OwnNetwork {
		return PublicError("server", c.To)
	}
	if cause := load.ZoneError(to); cause != "" {
		return fmt.Errorf("server %v: %s", c.To, cause)
	}
	return load.CheckSources(c.Sources, to)
}

func (c UDPConfig) checkBounds() error {
	switch {
	case c.Flows < 1 || c.Flows > maxSockets:
		return fmt.Errorf("flows %d: must be 1 to %d", c.Flows, maxSockets)
	case c.Packets/int64(c.Flows) >= math.MaxUint32:
		return fmt.Errorf("packets %d: at most 2^32 per flow can be numbered; give more --flows", c.Packets)
	case c.Timeout < time.Millisecond || c.Timeout > time.Minute:
		return fmt.Errorf("timeout %v: must be 1ms to 1m", c.Timeout)
	case c.Concurrency < 0 || c.Concurrency > maxConcurrency:
		return fmt.Errorf("concurrency %d: must be 1 to %d", c.Concurrency, maxConcurrency)
	}
	return CheckBounds(c.Packets, c.Duration, c.Rate, 0, c.Workers)
}

func (c UDPConfig) checkPorts() error {
	if n := c.SourcePorts.Len(); n > 0 && c.Flows > n*max(len(c.Sources), 1) {
		return fmt.Errorf("%d flows: %d source addresses with %d ports each are too few; give more (--source, --source-port) or fewer --flows",
			c.Flows, max(len(c.Sources), 1), n)
	}
	return nil
}

// MaxSourcesSeen bounds the different senders that a server remembers.
const MaxSourcesSeen = 1 << 20

// Served is what a server that answers datagrams saw.
type Served struct {
	Listen  netip.AddrPort `json:"listen"`
	Workers int            `json:"workers"`
	Seconds float64        `json:"seconds"`
	// Received are all datagrams; Answered were sent back.
	Received int64 `json:"received"`
	Answered int64 `json:"answered"`
	// Public came from public addresses and were not answered.
	Public int64 `json:"not_answered_public"`
	// Foreign were no requests of a run, such as replies, and not answered; they count in
	// Received only.
	Foreign int64 `json:"not_answered_foreign"`
	// Expected is the expected sender; nil for any, and then Misdelivered and Sources are 0.
	Expected *End `json:"expected_source,omitempty"`
	// Misdelivered came from other senders, which were answered, too.
	Misdelivered     int64    `json:"misdelivered"`
	MisdeliveredFrom []Sender `json:"misdelivered_from,omitempty"`
	// Sources is the number of different senders, up to MaxSourcesSeen.
	Sources int `json:"sources,omitempty"`
	// SocketDrops are datagrams that found no room in the server's sockets.
	SocketDrops int64 `json:"socket_drops"`
	// Failures are answers that this machine refused to send.
	Failures    []load.Failure `json:"failures"`
	Series      []ServedSecond `json:"series"`
	CPU         load.CPU       `json:"cpu"`
	SystemCalls int64          `json:"system_calls"`
}

// ServedSecond is one second of a server's work.
type ServedSecond struct {
	// At is the end of the second, since the start.
	At       float64 `json:"at_seconds"`
	Received int64   `json:"received"`
	Answered int64   `json:"answered"`
}

// CheckExpected finds an expectation that a server cannot judge.
func CheckExpected(e End, at netip.Addr) error {
	switch {
	case e.Address == Same || e.Address == Netmap || e.Port == Same:
		return errors.New("a server does not know what was sent: give an address or a prefix, and ports, not same or netmap")
	case e.Prefix.IsValid() && !at.IsUnspecified() && e.Prefix.Addr().Is4() != at.Unmap().Is4():
		return errors.New("not of the same family as the address to listen on")
	}
	return nil
}

// ServeTally is what one worker of a server counted.
type ServeTally struct {
	Received, Answered, Public, Foreign, Misdelivered int64
	SocketDrops, SystemCalls                          int64
	Failures                                          load.FailureCounts
	sources                                           map[netip.AddrPort]struct{}
	senders                                           senders
	room                                              int
}

// NewServeTally remembers at most the given number of senders.
func NewServeTally(senders int) *ServeTally {
	return &ServeTally{Failures: load.FailureCounts{}, sources: map[netip.AddrPort]struct{}{}, room: senders}
}

// From judges a sender.
func (t *ServeTally) From(from netip.AddrPort, expected End) {
	if len(t.sources) < t.room {
		t.sources[from] = struct{}{}
	}
	if !expected.Fits(netip.AddrPort{}, from) {
		t.Misdelivered++
		t.senders.add(Sender{from, 1})
	}
}

// Fill adds the tallies of all workers to what was served.
func (s *Served) Fill(tallies []*ServeTally) {
	failures, senders := load.FailureCounts{}, senders{}
	for _, t := range tallies {
		s.Received += t.Received
		s.Answered += t.Answered
		s.Public += t.Public
		s.Foreign += t.Foreign
		s.Misdelivered += t.Misdelivered
		s.SocketDrops += t.SocketDrops
		s.SystemCalls += t.SystemCalls
		// The kernel delivers all datagrams of a sender to one worker.
		s.Sources += len(t.sources)
		failures.Merge(t.Failures)
		for _, stray := range t.senders {
			senders.add(stray)
		}
	}
	s.Failures, s.MisdeliveredFrom = failures.List(), senders
}

// UDPResult is what a run found.
type UDPResult struct {
	Config UDPConfig `json:"config"`
	// RunToken is the first four bytes of every payload; its lowest bit is set in replies.
	RunToken uint32 `json:"run_token"`
	// Seconds from the start to the last datagram or reply.
	Seconds float64 `json:"seconds"`
	UDPCounts
	// MisdeliveredFrom has the first addresses that misdelivered replies came from.
	MisdeliveredFrom []Sender `json:"misdelivered_from,omitempty"`
	// Failures in phase send were not sent; those in phase wait are ICMP errors, which are
	// rate-limited.
	Failures []load.Failure `json:"failures"`
	// SentPerSecond and AnsweredPerSecond are datagrams, the latter each once.
	SentPerSecond     float64 `json:"sent_per_second"`
	AnsweredPerSecond float64 `json:"answered_per_second"`
	// RoundTrip counts from the sending of a datagram to the reading of its reply.
	RoundTrip load.Times `json:"round_trip_ms"`
	// Series counts per second datagrams answered (completed) and timed out (failed).
	Series         []load.Second `json:"series"`
	CPU            load.CPU      `json:"cpu"`
	GeneratorLimit string        `json:"generator_limit,omitempty"`
	CPUContention  string        `json:"cpu_contention,omitempty"`
	// Hint is what to check if nothing came back.
	Hint string `json:"hint,omitempty"`
}

// UDPCounts are the counts of a run, or of one of its workers.
type UDPCounts struct {
	// Delivery counts replies: Received are of the right length, from the server, to the sending
	// flow; Misdelivered from another address or to another flow.
	Delivery
	// InFlight datagrams were unanswered when the run was interrupted; they are not lost.
	InFlight int64 `json:"in_flight,omitempty"`
	// Altered replies have another length than their datagram.
	Altered int64 `json:"altered"`
	// Foreign datagrams had no token of a reply to this run.
	Foreign int64 `json:"foreign"`
	// Unsent datagrams were due before the run ended, and not even tried.
	Unsent int64 `json:"unsent"`
	// SocketDrops found no room in their socket or had a wrong checksum (sk_drops): they are
	// lost.
	SocketDrops int64 `json:"socket_drops"`
	// SentFrameBytes are the bytes of Ethernet frames with FCS, one way.
	SentFrameBytes int64 `json:"sent_frame_bytes"`
	// SystemCalls made by the workers for the run's datagrams.
	SystemCalls int64 `json:"system_calls"`
}

// Answered returns how many datagrams had a reply.
func (r *UDPResult) Answered() int64 { return r.Sent - r.Lost - r.InFlight }

// Sender is where misdelivered replies came from.
type Sender struct {
	From  netip.AddrPort `json:"from"`
	Count int64          `json:"count"`
}

// maxStrays bounds the list.
const maxStrays = 8

// senders are the first addresses that something came from.
type senders []Sender

func (all *senders) add(s Sender) {
	if i := slices.IndexFunc(*all, func(o Sender) bool { return o.From == s.From }); i >= 0 {
		(*all)[i].Count += s.Count
	} else if len(*all) < maxStrays {
		*all = append(*all, s)
	}
}

// UDPTally counts for one worker. Only NewUDPTally and the first senders allocate.
type UDPTally struct {
	UDPCounts
	Answered  int64
	Failures  load.FailureCounts
	RoundTrip *load.Histogram
	senders   senders
}

// NewUDPTally is empty.
func NewUDPTally() *UDPTally {
	return &UDPTally{Failures: load.FailureCounts{}, RoundTrip: load.NewHistogram()}
}

// Stray counts a misdelivered reply.
func (t *UDPTally) Stray(from netip.AddrPort) {
	t.Misdelivered++
	t.senders.add(Sender{from, 1})
}

// Merge adds another worker's tally.
func (t *UDPTally) Merge(o *UDPTally) {
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
	for _, s := range o.senders {
		t.senders.add(s)
	}
}

// Fill writes the tally into a result whose Seconds are set.
func (t *UDPTally) Fill(r *UDPResult) {
	r.UDPCounts = t.UDPCounts
	r.Lost = max(t.Sent-t.Answered-t.InFlight, 0)
	r.Failures, r.MisdeliveredFrom = t.Failures.List(), t.senders
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

// Overflow reports replies that this machine itself lost; empty if there were none.
func Overflow(drops int64) string {
	if drops == 0 {
		return ""
	}
	return fmt.Sprintf("%d replies came and found no room in a socket here: more flows or workers, a lower rate, or a greater net.core.rmem_max", drops)
}

// hint is one line on what to check where nothing came back.
func (r *UDPResult) hint() string {
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

func (r *UDPResult) reason(text string) bool {
	return slices.ContainsFunc(r.Failures, func(f load.Failure) bool { return f.Reason == text })
}
