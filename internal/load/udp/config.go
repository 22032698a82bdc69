// Package udp describes runs of datagrams that a server answers, and their results.
// internal/load/run sends them.
package udp

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/nat"
)

// Defaults of a run of datagrams.
const (
	DefaultTimeout = time.Second
	// DefaultInFlight fits into a socket's default buffer (net.core.rmem_default), which holds
	// about 250 small datagrams.
	DefaultInFlight = 100
	DefaultPackets  = 1000
)

// Bounds of a run of datagrams, besides those of packets.CheckBounds.
const (
	maxFlows       = 1 << 20
	maxConcurrency = 1_000_000
)

// Config is one run of datagrams that a server echoes. Zero values mean the defaults given.
type Config struct {
	// To is the server.
	To netip.AddrPort `json:"to"`
	// Flows is the number of sockets to cycle through, each with its own source address and port;
	// 1.
	Flows int `json:"flows"`
	// Size is the list for packets.ParseSizes; 64, or the least with headers and token.
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
func (c Config) Checked() (Config, error) {
	if c.Flows == 0 {
		c.Flows = 1
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Packets == 0 && c.Duration == 0 {
		c.Packets = DefaultPackets
	}
	if c.Rate != 0 && c.Concurrency != 0 {
		return c, errors.New("rate and concurrency are both given: a schedule waits for no reply; give one of them")
	}
	if c.Rate == 0 && c.Concurrency == 0 {
		c.Concurrency = DefaultInFlight
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

func (c Config) checkTarget() error {
	to := c.To.Addr()
	if !to.IsValid() || c.To.Port() == 0 {
		return errors.New("no server: give ADDRESS:PORT, such as 198.18.0.2:9000 or [2001:db8::2]:9000")
	}
	if !load.IsHost(to) {
		return fmt.Errorf("server %v: not an address of a host", c.To)
	}
	if packets.Public(to) && !c.OwnNetwork {
		return packets.PublicError("server", c.To)
	}
	if cause := load.ZoneError(to); cause != "" {
		return fmt.Errorf("server %v: %s", c.To, cause)
	}
	return load.CheckSources(c.Sources, to)
}

func (c Config) checkBounds() error {
	switch {
	case c.Flows < 1 || c.Flows > maxFlows:
		return fmt.Errorf("flows %d: must be 1 to %d", c.Flows, maxFlows)
	case c.Packets/int64(c.Flows) >= math.MaxUint32:
		return fmt.Errorf("packets %d: at most 2^32 per flow can be numbered; give more --flows", c.Packets)
	case c.Timeout < time.Millisecond || c.Timeout > time.Minute:
		return fmt.Errorf("timeout %v: must be 1ms to 1m", c.Timeout)
	case c.Concurrency < 0 || c.Concurrency > maxConcurrency:
		return fmt.Errorf("concurrency %d: must be 1 to %d", c.Concurrency, maxConcurrency)
	}
	return packets.CheckBounds(c.Packets, c.Duration, c.Rate, 0, c.Workers)
}

func (c Config) checkPorts() error {
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
	Expected *packets.End `json:"expected_source,omitempty"`
	// Misdelivered came from other senders, which were answered, too.
	Misdelivered     int64   `json:"misdelivered"`
	MisdeliveredFrom []Stray `json:"misdelivered_from,omitempty"`
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
func CheckExpected(e packets.End, at netip.Addr) error {
	switch {
	case e.Address == packets.Same || e.Address == packets.Netmap || e.Port == packets.Same:
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
	Failures                                          *load.FailureCounts
	sources                                           map[netip.AddrPort]struct{}
	strays                                            strays
	room                                              int
}

// NewServeTally remembers at most the given number of senders.
func NewServeTally(senders int) *ServeTally {
	return &ServeTally{Failures: load.NewFailureCounts(), sources: map[netip.AddrPort]struct{}{}, room: senders}
}

// From judges a sender.
func (t *ServeTally) From(from netip.AddrPort, expected packets.End) {
	if len(t.sources) < t.room {
		t.sources[from] = struct{}{}
	}
	if !expected.Fits(netip.AddrPort{}, from) {
		t.Misdelivered++
		t.strays.add(Stray{from, 1})
	}
}

// Fill adds the tallies of all workers to what was served.
func (s *Served) Fill(tallies []*ServeTally) {
	failures, strays := load.NewFailureCounts(), strays{}
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
		for _, stray := range t.strays {
			strays.add(stray)
		}
	}
	s.Failures, s.MisdeliveredFrom = failures.List(), strays
}
