package load

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// Defaults of HoldConfig.
const (
	HoldConcurrency = 400
	HoldVerified    = 1000
)

// HoldPorts are all ports but those that need a privilege
// (net.ipv4.ip_unprivileged_port_start).
var HoldPorts = nat.Ports{First: 1024, Last: 65535}

// EndOfHold is the byte on which the server that holds connections closes one; it
// returns all others (ASCII's end of transmission).
const EndOfHold = 4

// Bounds of HoldConfig.
const (
	maxHeldConnections = 100_000_000
	maxKeep            = 24 * time.Hour
	// maxPool is the longest Permutation.
	maxPool = 1 << 32
)

// HoldConfig is one run that opens TCP connections, keeps them, sees whether they still
// work, and closes them. The zero value of a field means the default given with it.
type HoldConfig struct {
	To netip.Addr `json:"to"`
	// Ports of the server. Each of them has all combinations of source addresses and
	// source ports of its own.
	Ports       nat.Ports `json:"ports"`
	Connections int       `json:"connections"`
	// Concurrency is the number of connections that are being opened, verified or closed
	// at once; HoldConcurrency.
	Concurrency int `json:"concurrency"`
	// Rate in connections per second opens them on a schedule; 0 means as fast as the
	// server answers.
	Rate float64 `json:"rate_per_second"`
	// Keep is how long all of them are kept after the last one was opened.
	Keep time.Duration `json:"keep_ns"`
	// Duration bounds the opening and the keeping together; 0 means that nothing does.
	Duration time.Duration `json:"duration_ns"`
	// Timeout bounds the opening, the verification and the close of each connection; 30 s.
	// Once 100 connections, and twice Concurrency, have timed out in a row, no more are
	// verified, or closed by the server.
	Timeout time.Duration `json:"timeout_ns"`
	// Verify is the number of connections, chosen at random, on which the server must
	// return a byte before they are closed; 0 sends nothing on any.
	Verify int `json:"verify"`
	// Close is who closes; CloseReset. CloseServer requires a server that does so on
	// EndOfHold.
	Close CloseMode `json:"close"`
	// Sources are the addresses to connect from; empty takes the one that the route to
	// the server names.
	Sources []netip.Addr `json:"sources,omitempty"`
	// SourcePorts are taken in an order that Seed determines; zero leaves the port to the
	// kernel, whose search is then a part of what is measured.
	SourcePorts nat.Ports `json:"source_ports,omitzero"`
	Seed        uint64    `json:"seed"`
	// Workers is the number of threads that open connections at once; the number of CPUs,
	// and never more than Concurrency. There are more of them where the limit of open files requires it.
	Workers int `json:"workers"`
}

// Checked fills in the defaults and finds what cannot be run. Workers stay 0 where not
// given.
func (c HoldConfig) Checked() (HoldConfig, error) {
	if c.Concurrency == 0 {
		c.Concurrency = HoldConcurrency
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Close == "" {
		c.Close = CloseReset
	}
	if err := c.checkBounds(); err != nil {
		return c, err
	}
	c.Verify = min(c.Verify, c.Connections)
	if err := checkDestinations([]netip.Addr{c.To}); err != nil {
		return c, err
	}
	if err := CheckSources(c.Sources, c.To); err != nil {
		return c, err
	}
	return c, c.checkPool()
}

func (c HoldConfig) checkBounds() error {
	switch {
	case c.Ports.First == 0 || c.Ports.Len() < 1:
		return errors.New("no port of the server: give ADDR:PORT or ADDR:FIRST-LAST")
	case c.Connections < 1 || c.Connections > maxHeldConnections:
		return fmt.Errorf("%d connections: must be 1 to %d", c.Connections, maxHeldConnections)
	case c.Concurrency < 1 || c.Concurrency > maxConcurrency:
		return fmt.Errorf("concurrency %d: must be 1 to %d", c.Concurrency, maxConcurrency)
	case c.Rate < 0 || math.IsNaN(c.Rate) || c.Rate > maxRate:
		return fmt.Errorf("rate %g: must be 0 (as fast as the server answers) to %g connections per second", c.Rate, float64(maxRate))
	case c.Keep < 0 || c.Keep > maxKeep:
		return fmt.Errorf("keep %v: must be 0 to %v", c.Keep, maxKeep)
	case c.Duration < 0:
		return fmt.Errorf("duration %v: must not be negative", c.Duration)
	case c.Timeout < time.Millisecond || c.Timeout > time.Hour:
		return fmt.Errorf("timeout %v: must be 1ms to 1h", c.Timeout)
	case c.Verify < 0:
		return fmt.Errorf("verify %d connections: must not be negative", c.Verify)
	case c.Workers < 0 || c.Workers > maxWorkers:
		return fmt.Errorf("workers %d: must be 0 (one per CPU) to %d", c.Workers, maxWorkers)
	case !c.Close.known():
		return c.Close.unknown()
	}
	return nil
}

// checkPool compares the number of connections with that of the combinations of addresses
// and ports that they can have.
func (c HoldConfig) checkPool() error {
	if c.SourcePorts.Len() == 0 {
		return nil
	}
	if pool := c.Pool(); pool < uint64(c.Connections) {
		return fmt.Errorf("%s connections: %s × %s × %s are only %s: give more addresses (--source), source ports (--source-port) or ports of the server",
			units.Count(c.Connections), units.Plural(max(len(c.Sources), 1), "source address", "source addresses"),
			units.Plural(c.SourcePorts.Len(), "source port", "source ports"), units.Plural(c.Ports.Len(), "port of the server", "ports of the server"), units.Count(pool))
	}
	return nil
}

// Pool is the number of different connections that natkit can choose from; 0 where the
// kernel chooses the source ports.
func (c HoldConfig) Pool() uint64 {
	sources := uint64(max(len(c.Sources), 1)) * uint64(c.SourcePorts.Len())
	return min(sources, maxPool) * uint64(c.Ports.Len())
}

// HoldResult is what came of a run that holds connections.
type HoldResult struct {
	Config HoldConfig `json:"config"`
	// Seconds of the whole run; OpenSeconds are those until the last connection stood or
	// had failed.
	Seconds     float64 `json:"seconds"`
	OpenSeconds float64 `json:"open_seconds"`
	// Established connections stood; Failed ones never did, Unfinished ones were not
	// tried, or under way, when the run was ended.
	Established   int64   `json:"established"`
	Failed        int64   `json:"failed"`
	Unfinished    int64   `json:"unfinished"`
	OpenPerSecond float64 `json:"established_per_second"`
	// Lost connections stood and were ended, by the server or on the way, before natkit
	// closed them.
	Lost int64 `json:"lost"`
	// Taken combinations of addresses and ports were in use by something else, and others
	// were taken instead.
	Taken int64 `json:"taken"`
	// Late connections took a second or more: their SYN was sent again (RFC 6298).
	Late int64 `json:"late"`
	// Verified connections were asked for a byte, of which Alive returned it.
	Verified int64 `json:"verified"`
	Alive    int64 `json:"alive"`
	// Closed connections were closed as Config.Close says, by natkit where the run was ended
	// or the server did not close so many that the others were not tried; CloseSeconds is how
	// long that took.
	Closed       int64   `json:"closed"`
	CloseSeconds float64 `json:"close_seconds"`
	// Failures have the phases Connect, Keep, Verify and Close.
	Failures  []Failure    `json:"failures"`
	Connect   Times        `json:"connect_ms"`
	RoundTrip Times        `json:"round_trip_ms"`
	Series    []HeldSecond `json:"series"`
	// OwnBytes is by how much the memory of this process (its resident set) grew until all
	// connections were open; BytesPerConnection is that of one. 0 where the run was ended
	// before.
	OwnBytes           int64   `json:"own_bytes"`
	BytesPerConnection float64 `json:"own_bytes_per_connection"`
	// Before, Held and After are the kernel's TCP sockets in the namespace: before the
	// first connection, with all of them, and after the last was closed. Nil where
	// /proc/net/sockstat could not be read, Held also where the run was ended before.
	// PageBytes is the size of its pages.
	PageBytes int                  `json:"page_bytes"`
	Before    *snapshot.TCPSockets `json:"sockets_before,omitempty"`
	Held      *snapshot.TCPSockets `json:"sockets_held,omitempty"`
	After     *snapshot.TCPSockets `json:"sockets_after,omitempty"`
	// Threads held the connections.
	Threads        int    `json:"threads"`
	CPU            CPU    `json:"cpu"`
	GeneratorLimit string `json:"generator_limit,omitempty"`
	CPUContention  string `json:"cpu_contention,omitempty"`
	SystemCalls    int64  `json:"system_calls"`
}

// HeldSecond is one point of the course of a run that holds connections.
type HeldSecond struct {
	Second
	// Open connections at the end of the interval.
	Open int64 `json:"open"`
}

// HeldSeries adds what was open to a course in which Completed were established.
func HeldSeries(seconds []Second) []HeldSecond {
	series, open := make([]HeldSecond, len(seconds)), int64(0)
	for i, s := range seconds {
		open += s.Completed - s.Lost
		series[i] = HeldSecond{s, open}
	}
	return series
}

// Held is what a server that holds connections saw.
type Held struct {
	Listen netip.Addr `json:"listen"`
	Ports  nat.Ports  `json:"ports"`
	// Limit of connections that it takes, and the threads that hold them.
	Limit   int     `json:"limit"`
	Threads int     `json:"threads"`
	Seconds float64 `json:"seconds"`
	// Accepted connections in all, and the greatest number that was open at once.
	Accepted int64 `json:"accepted"`
	Peak     int64 `json:"peak"`
	// Returned bytes.
	Returned int64 `json:"returned_bytes"`
	// Closed connections were closed by the server: because it was told to, or because
	// it ended.
	Closed int64 `json:"closed"`
	// ByPeer and Reset connections were ended by the other side, with a FIN or an RST.
	ByPeer int64 `json:"closed_by_peer"`
	Reset  int64 `json:"reset_by_peer"`
	// Failures are connections that could not be accepted.
	Failures    []Failure `json:"failures"`
	CPU         CPU       `json:"cpu"`
	SystemCalls int64     `json:"system_calls"`
}
