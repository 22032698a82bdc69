package packets

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/natkit/natkit/internal/load"
)

// CloseNone leaves connections open. The other modes are those of package load; CloseReset is
// the client's.
const CloseNone load.CloseMode = "none"

// ConnectConfig is one run of TCP connections that eBPF programs make, each with a request and
// a reply of one segment.
type ConnectConfig struct {
	// Flows are all combinations of consecutive source addresses and ports with the one
	// destination; each is used again when all others have been.
	Flows Flows `json:"flows"`
	// Connections to begin in all; 0 means until Duration ends.
	Connections int64 `json:"connections"`
	// Duration bounds the run; 0 means until all have begun.
	Duration time.Duration `json:"duration_ns"`
	// Rate in connections per second, whatever became of those before (open loop); 0 means as
	// fast as Window lets.
	Rate float64 `json:"rate_per_second"`
	// Window bounds the connections that have begun and not ended.
	Window int `json:"window"`
	// Timeout is the time after which a connection counts as incomplete, and leaves the window.
	Timeout time.Duration `json:"timeout_ns"`
	// Close is who closes a connection, and how.
	Close load.CloseMode `json:"close"`
	// OwnNetwork allows public addresses.
	OwnNetwork bool `json:"i_own_this_network,omitempty"`
}

// Rounds is how often one flow can be used in a run.
const Rounds = 1 << 16

// maxTimeout keeps ages far from where the programs' clock wraps (2^32 × 1024 ns).
const maxTimeout = 10 * time.Minute

// Target is the destination.
func (c ConnectConfig) Target() netip.AddrPort { return c.Flows.Destinations[0] }

// Total is the greatest number of connections that the run can begin.
func (c ConnectConfig) Total() int64 {
	rounds := int64(Rounds)
	if c.Close == CloseNone {
		rounds = 1
	}
	total := int64(c.Flows.Count) * rounds
	if c.Connections > 0 {
		total = min(total, c.Connections)
	}
	return total
}

// Check reports what cannot be run, or must not.
func (c ConnectConfig) Check() error {
	if err := errors.Join(c.checkFlows(), c.checkPublic()); err != nil {
		return err
	}
	if err := CheckBounds(c.Connections, c.Duration, c.Rate, 1, 1); err != nil {
		return fmt.Errorf("connections: %w", err)
	}
	flows := c.Flows.Count
	switch {
	case c.Connections == 0 && c.Duration == 0:
		return errors.New("connections and time are both 0: the run would never end; give one of them")
	case c.Window < 1 || c.Window > flows:
		return fmt.Errorf("%d connections at a time: must be 1 to the number of flows, %d; more source addresses or ports make more", c.Window, flows)
	case c.Timeout < time.Millisecond || c.Timeout > maxTimeout:
		return fmt.Errorf("timeout %v: must be 1ms to %v", c.Timeout, maxTimeout)
	case c.Close != load.CloseClient && c.Close != load.CloseServer && c.Close != load.CloseReset && c.Close != CloseNone:
		return fmt.Errorf("close mode %q: must be client, server, rst or none", c.Close)
	case c.Close == CloseNone && c.Connections > int64(flows):
		return fmt.Errorf("%d connections that stay open: each needs a flow of its own, and there are %d; give more source addresses or ports", c.Connections, flows)
	case c.Connections > c.Total():
		return fmt.Errorf("%d connections of %d flows: at most %d of each; give more source addresses or ports", c.Connections, flows, Rounds)
	}
	return nil
}

func (c ConnectConfig) checkFlows() error {
	if n := c.Flows.Combinations(); n > MaxFlows {
		return fmt.Errorf("%d source addresses × %d source ports: at most %d flows; give fewer", len(c.Flows.Sources), c.Flows.SourcePorts.Len(), MaxFlows)
	}
	if err := c.Flows.Check(); err != nil {
		return err
	}
	if len(c.Flows.Destinations) != 1 || uint64(c.Flows.Count) != c.Flows.Combinations() {
		return errors.New("connections go to one destination, and use all of their source addresses and ports")
	}
	for i, s := range c.Flows.Sources {
		if i > 0 && s != c.Flows.Sources[i-1].Next() {
			return fmt.Errorf("source address %v does not follow %v: the addresses must be one range or prefix", s, c.Flows.Sources[i-1])
		}
		if b := s.AsSlice(); i > 0 && [4]byte(b[len(b)-4:]) == [4]byte{} {
			return fmt.Errorf("source address %v: a range must not go over the last 32 bits of an address", s)
		}
	}
	return nil
}

func (c ConnectConfig) checkPublic() error {
	if c.OwnNetwork || len(c.Flows.Destinations) == 0 {
		return nil
	}
	if to := c.Target().Addr(); Public(to) {
		return PublicError("destination", to)
	}
	for _, s := range c.Flows.Sources {
		if Public(s) {
			return PublicError("source", s)
		}
	}
	return nil
}

// Steps are numbers of connections by what they waited for.
type Steps struct {
	SYNACK int64 `json:"syn_ack"`
	Reply  int64 `json:"reply"`
	// Close is the server's FIN, or its acknowledgement of the client's where it closed first.
	Close int64 `json:"close"`
}

// Total of all steps.
func (s Steps) Total() int64 { return s.SYNACK + s.Reply + s.Close }

// Connections counts what became of the connections of a run.
type Connections struct {
	Started int64 `json:"started"`
	// Established had a SYN-ACK, Answered the reply.
	Established int64 `json:"established"`
	Answered    int64 `json:"answered"`
	// Complete had all, as the close mode wants.
	Complete int64 `json:"complete"`
	// Reset by the server or something on the way.
	Reset Steps `json:"reset"`
	// Incomplete waited in vain. No segment is sent again, so a single lost one is enough.
	Incomplete Steps `json:"incomplete"`
}

// Settle computes Incomplete from the other counts; closes says that the connections are closed
// by FIN, which is a step of its own.
func (c *Connections) Settle(closes bool) {
	c.Incomplete = Steps{
		SYNACK: c.Started - c.Established - c.Reset.SYNACK,
		Reply:  c.Established - c.Answered - c.Reset.Reply,
	}
	if closes {
		c.Incomplete.Close = c.Answered - c.Complete - c.Reset.Close
	}
}

// Closes reports whether connections end by FIN.
func (c ConnectConfig) Closes() bool {
	return c.Close == load.CloseClient || c.Close == load.CloseServer
}

// ConnectResult is what became of a run of connections.
type ConnectResult struct {
	Config ConnectConfig `json:"config"`
	// From names the client's interface.
	From string `json:"from"`
	// Seconds is the time from the first connection after the probe until no more were begun, or
	// the last one was complete if that was later.
	Seconds float64 `json:"seconds"`
	Connections
	// Misdelivered segments came to a flow that they do not answer, or from another address than
	// it sent to: something translated them wrongly, or not at all.
	Misdelivered   int64   `json:"misdelivered_segments"`
	MisdeliveredAs []Stray `json:"misdelivered_as,omitempty"`
	// BadChecksum segments came with a wrong checksum, and were dropped.
	BadChecksum int64 `json:"bad_checksum_segments"`
	// NoRoom segments could not be answered, as their buffers, copies by the kernel, cannot grow.
	NoRoom int64 `json:"no_room_segments"`
	// Duplicated segments came once more, Late ones after their connection had ended, and
	// Unexpected ones are none that the responder sends.
	Duplicated int64 `json:"duplicated_segments"`
	Late       int64 `json:"late_segments"`
	Unexpected int64 `json:"unexpected_segments"`
	// CompletePerSecond is 0 if the probe before the clock started was all.
	CompletePerSecond float64 `json:"complete_per_second"`
	// Handshake is the time from SYN to SYN-ACK, of one flow in 16.
	Handshake load.Times `json:"handshake_ms"`
	// OtherCPU is the share of the machine's CPUs, 0 to 1, that other processes used.
	OtherCPU float64 `json:"other_cpu_share"`
	// GeneratorLimit is why the generator was the limit, and the result invalid; empty if it was
	// not.
	GeneratorLimit string `json:"generator_limit,omitempty"`
	// WindowFull says that a run with a rate ended behind its schedule, as its window was full.
	WindowFull bool            `json:"window_full,omitempty"`
	Notes      []string        `json:"notes,omitempty"`
	Course     []ConnectSecond `json:"seconds_of_run,omitempty"`
}

// BadShare is the share of the started connections that did not become complete.
func (r *ConnectResult) BadShare() float64 {
	if r.Started == 0 {
		return 0
	}
	return float64(r.Started-r.Complete) / float64(r.Started)
}

// ConnectSecond is one point of a run's course.
type ConnectSecond struct {
	// At is the end of the interval, in seconds since the run's start.
	At       float64 `json:"at_seconds"`
	Started  int64   `json:"started"`
	Complete int64   `json:"complete"`
}

// AddSecond goes on with the last second of a course, or begins the next one; started and complete
// are totals.
func AddSecond(course []ConnectSecond, elapsed time.Duration, started, complete int64) []ConnectSecond {
	at := elapsed.Seconds()
	if n := len(course); n == 0 || course[n-1].At >= float64(n) {
		course = append(course, ConnectSecond{})
	}
	last := len(course) - 1
	for _, s := range course[:last] {
		started, complete = started-s.Started, complete-s.Complete
	}
	course[last] = ConnectSecond{At: at, Started: started, Complete: complete}
	return course
}

// HandshakeTimes summarizes a histogram of the programs: the values below 16 have a bucket each,
// and every power of two from 16 on has eight. unit is that of a value, in nanoseconds.
func HandshakeTimes(buckets []uint64, unit int64) load.Times {
	h := load.NewHistogram()
	for i, n := range buckets {
		low, width := bucket(i)
		for range n {
			h.Record((low*2 + width) * unit / 2)
		}
	}
	return h.Times()
}

// bucket returns the least value of a bucket and the number of its values.
func bucket(i int) (low, width int64) {
	if i < 16 {
		return int64(i), 1
	}
	shift := i/8 - 1
	return int64(8+i%8) << shift, 1 << shift
}

// Responded counts what a responder did.
type Responded struct {
	// Opened counts SYNs, Answered requests, Closed FINs and Reset RSTs of its connections.
	Opened   int64 `json:"opened"`
	Answered int64 `json:"answered"`
	Closed   int64 `json:"closed"`
	Reset    int64 `json:"reset"`
	// Passed segments to its ports belonged to none of its connections, or came with other
	// addresses than these: the kernel had them.
	Passed int64 `json:"passed_segments"`
	// BadChecksum segments came with a wrong checksum, and were dropped.
	BadChecksum int64 `json:"bad_checksum_segments"`
	// NoRoom segments could not be answered, as their buffers cannot grow.
	NoRoom    int64    `json:"no_room_segments"`
	Interface string   `json:"interface"`
	Seconds   float64  `json:"seconds"`
	Notes     []string `json:"notes,omitempty"`
}

// ConnectProgress is how far a run is.
type ConnectProgress struct {
	Elapsed           time.Duration
	Started, Complete int64
}
