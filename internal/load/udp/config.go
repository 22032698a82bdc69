// Package udp describes datagrams that a server answers, and what came of them. It
// sends nothing; internal/load/run does.
package udp

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/packet"
)

// Defaults of a run of datagrams.
const (
	DefaultTimeout = time.Second
	// DefaultInFlight is little enough for the buffer that a socket has by
	// default (net.core.rmem_default), which holds about 250 small datagrams.
	DefaultInFlight = 100
	DefaultPackets  = 1000
)

// Bounds of a run of datagrams.
const (
	maxFlows       = 1 << 20
	maxPackets     = 100_000_000_000
	maxDuration    = 24 * time.Hour
	maxConcurrency = 1_000_000
	maxRate        = 1e8
	maxWorkers     = 1024
)

// Config is one run of datagrams that a server answers with the same payload.
// The zero value of a field means the default given with it.
type Config struct {
	// To is the server.
	To netip.AddrPort `json:"to"`
	// Flows is the number of sockets, each with a source address and port of its
	// own, that send in turn; 1.
	Flows int `json:"flows"`
	// Size is what was asked for: frame sizes as packet.ParseSizes reads them; 64,
	// or the least that holds the headers and the token.
	Size string `json:"size"`
	// FrameBytes are the sizes of Ethernet frames with FCS (RFC 2544), which each
	// flow takes in turn, from a place that is its number's; Checked sets them.
	FrameBytes []int `json:"frame_bytes"`
	// Rate in datagrams per second, on a schedule that waits for no reply; 0 means
	// as fast as the replies come.
	Rate float64 `json:"rate_per_second"`
	// Concurrency bounds the datagrams without a reply where there is no Rate; 100.
	// A lost one keeps its place for the Timeout.
	Concurrency int `json:"concurrency,omitempty"`
	// Packets to send in all, 1000; 0 with a Duration means until that ends.
	Packets  int64         `json:"packets"`
	Duration time.Duration `json:"duration_ns"`
	// Timeout is how long a reply is waited for; 1 s. Later ones count as received
	// as long as the run lasts, which is until so long after the last datagram.
	Timeout time.Duration `json:"timeout_ns"`
	// Sources are local addresses; empty lets the kernel choose.
	Sources []netip.Addr `json:"sources,omitempty"`
	// SourcePorts are given to the flows, with each of Sources, in an order that
	// Seed determines; zero leaves the port to the kernel.
	SourcePorts load.PortRange `json:"source_ports,omitzero"`
	Seed        uint64         `json:"seed"`
	// Workers is the number of threads; the number of CPUs, not more than Flows.
	Workers int `json:"workers"`
	// OwnNetwork allows a public address to be the server.
	OwnNetwork bool `json:"i_own_this_network,omitempty"`
}

// Checked fills in the defaults and finds what cannot be run. Workers stay 0 where
// not given.
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
	switch {
	case !to.IsValid() || c.To.Port() == 0:
		return errors.New("no server: give ADDRESS:PORT, such as 198.18.0.2:9000 or [2001:db8::2]:9000")
	case to.IsUnspecified() || to.IsMulticast() || to == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fmt.Errorf("server %v: not an address of a host", c.To)
	case packet.Public(to) && !c.OwnNetwork:
		return fmt.Errorf("server %v: a public address, which load may harm: give --i-own-this-network if it and all on the way there are yours", c.To)
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
	case c.Packets < 0 || c.Packets > maxPackets:
		return fmt.Errorf("packets %d: must be 0 (until the time is over) to %d", c.Packets, int64(maxPackets))
	case c.Packets/int64(c.Flows) >= math.MaxUint32:
		return fmt.Errorf("packets %d: at most 2^32 per flow can be told apart; give more --flows", c.Packets)
	case c.Duration < 0 || c.Duration > maxDuration:
		return fmt.Errorf("time %v: must be 0 (until all are sent) to %v", c.Duration, maxDuration)
	case c.Timeout < time.Millisecond || c.Timeout > time.Minute:
		return fmt.Errorf("timeout %v: must be 1ms to 1m", c.Timeout)
	case c.Rate < 0 || math.IsNaN(c.Rate) || c.Rate > maxRate:
		return fmt.Errorf("rate %g: must be 0 (as fast as replies come) to %g datagrams per second", c.Rate, float64(maxRate))
	case c.Concurrency < 0 || c.Concurrency > maxConcurrency:
		return fmt.Errorf("concurrency %d: must be 1 to %d", c.Concurrency, maxConcurrency)
	case c.Workers < 0 || c.Workers > maxWorkers:
		return fmt.Errorf("workers %d: must be 0 (one per CPU) to %d", c.Workers, maxWorkers)
	}
	return nil
}

func (c Config) checkPorts() error {
	if n := c.SourcePorts.Len(); n > 0 && c.Flows > n*max(len(c.Sources), 1) {
		return fmt.Errorf("%d flows: %d source addresses with %d ports each are too few; give more (--source, --source-port) or fewer --flows",
			c.Flows, max(len(c.Sources), 1), n)
	}
	return nil
}
