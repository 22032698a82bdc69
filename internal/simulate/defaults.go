package simulate

import "time"

// What a Config takes where it says nothing.
const (
	defaultPoints       = 240
	defaultHz           = 1000
	defaultTick         = 64 * time.Nanosecond
	defaultUptime       = 30 * 24 * time.Hour
	defaultFirst        = time.Second
	defaultAfterACK     = 8 * time.Millisecond
	defaultRetries      = 6
	defaultLinear       = 4
	defaultDuration     = time.Millisecond
	defaultRTT          = 100 * time.Microsecond
	defaultRequestBytes = 200
	defaultHold         = 120 * time.Second
	roundRobinFirst     = 2048
	natFirst            = 1024
	lastPort            = 65535
	sourceFirst         = 32768
	sourceLast          = 60999
)

func orDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

func orDuration(v *Duration, d time.Duration) { orDefault(&v.Duration, d) }

func orPointer[T any](v **T, d T) {
	if *v == nil {
		*v = &d
	}
}

// filled is c with its defaults written out, sharing nothing with c that changes.
func (c Config) filled() Config {
	c.Clients = append([]Clients(nil), c.Clients...)
	c.Servers = append([]Servers(nil), c.Servers...)
	c.Batches = append([]Batch(nil), c.Batches...)
	for i := range c.Clients {
		c.Clients[i].fill()
	}
	for i := range c.Servers {
		c.Servers[i].fill()
	}
	for i := range c.Batches {
		if c.Batches[i].Rate == 0 {
			orDefault(&c.Batches[i].Concurrency, 1)
		}
	}
	if c.Arrivals != nil {
		a := *c.Arrivals
		orDefault(&a.Spacing, SpacingPoisson)
		c.Arrivals = &a
	}
	if c.Balancer != nil {
		b := *c.Balancer
		b.fill()
		c.Balancer = &b
	}
	c.Connection.fill()
	c.NAT.fill()
	c.fillInterval()
	return c
}

// fillInterval rounds to whole seconds where that makes no difference to speak of.
func (c *Config) fillInterval() {
	if c.Interval.Duration != 0 {
		return
	}
	interval := c.Duration.Duration / defaultPoints
	switch {
	case interval >= 10*time.Second:
		interval = interval.Round(time.Second)
	case interval <= 0:
		interval = time.Second
	}
	c.Interval.Duration = interval
}

func (g *Clients) fill() {
	orDefault(&g.Hosts, 1)
	orDefault(&g.Weight, 1)
	orPointer(&g.Timestamps, true)
	orDefault(&g.Clock.Hz, defaultHz)
	orDefault(&g.Clock.Offset, OffsetPair)
	orDuration(&g.Clock.Uptime, defaultUptime)
	orDefault(&g.ISN.Kind, ISNClock)
	orDuration(&g.ISN.Tick, defaultTick)
	orDefault(&g.SourcePorts, [2]uint16{sourceFirst, sourceLast})
	orPointer(&g.SYN.Retries, defaultRetries)
	orPointer(&g.SYN.Linear, defaultLinear)
	orDuration(&g.SYN.First, defaultFirst)
	orPointer(&g.SYN.AfterACK, Duration{defaultAfterACK})
}

func (s *Servers) fill() {
	orDefault(&s.Count, 1)
	orDefault(&s.Weight, 1)
	orDefault(&s.Kernel, KernelTimer)
	orDefault(&s.Addresses, 1)
	orPointer(&s.Timestamps, true)
}

func (b *Balancer) fill() {
	orDefault(&b.Addresses, 1)
	orDuration(&b.Timeout, 120*time.Second)
	orDuration(&b.SYNTimeout, time.Minute)
	orDuration(&b.ResetTimeout, 10*time.Second)
}

func (c *Connection) fill() {
	orDuration(&c.Duration, defaultDuration)
	orDuration(&c.RTT, defaultRTT)
	orDefault(&c.RequestBytes, defaultRequestBytes)
	orDefault(&c.ClosesFirst, CloseServer)
	orDefault(&c.Requests, 1)
}

func (n *NAT) fill() {
	orDefault(&n.Addresses, 1)
	orDefault(&n.Strategy, StrategyRoundRobin)
	kernel := n.Strategy == StrategyKernel
	first, hold, reset := uint16(natFirst), time.Duration(0), ResetPasses
	if n.Strategy == StrategyRoundRobin {
		first = roundRobinFirst
	}
	if kernel {
		hold, reset = defaultHold, ResetReopens
	}
	orDefault(&n.Ports, [2]uint16{first, lastPort})
	orPointer(&n.HoldDown, Duration{hold})
	orDuration(&n.SYNHold, defaultHold)
	orPointer(&n.Evicts, true)
	orDefault(&n.Reset, reset)
}
