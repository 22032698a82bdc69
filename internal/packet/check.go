package packet

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"
)

// Bounds of a run.
const (
	MaxPackets  = 100_000_000_000
	MaxDuration = 24 * time.Hour
	MaxRate     = 1e8
	maxWorkers  = 1024
)

// Check finds what cannot be run, or must not.
func (c Config) Check() error {
	for _, check := range []func() error{
		c.Flows.Check, c.checkPublic, c.Spec.Check, c.checkBounds,
		func() error { return c.Expect.Check(c.Flows.IPv6()) },
	} {
		if err := check(); err != nil {
			return err
		}
	}
	if c.Spec.IPv6 != c.Flows.IPv6() {
		return errors.New("the packets and their addresses are not of one family")
	}
	return nil
}

func (c Config) checkBounds() error {
	switch {
	case c.Packets == 0 && c.Duration == 0:
		return errors.New("packets and time are both 0: the run would never end; give one of them")
	case c.Packets < 0 || c.Packets > MaxPackets:
		return fmt.Errorf("packets %d: must be 0 (until the time is over) to %d", c.Packets, int64(MaxPackets))
	case c.Duration < 0 || c.Duration > MaxDuration:
		return fmt.Errorf("time %v: must be 0 (until all are sent) to %v", c.Duration, MaxDuration)
	case c.Rate < 0 || math.IsNaN(c.Rate) || c.Rate > MaxRate:
		return fmt.Errorf("rate %g: must be 0 (as fast as it goes) to %g packets per second", c.Rate, float64(MaxRate))
	case c.Workers < 1 || c.Workers > maxWorkers:
		return fmt.Errorf("workers %d: must be 1 to %d", c.Workers, maxWorkers)
	case c.Workers > c.Flows.Count:
		return fmt.Errorf("workers %d: each needs a flow of its own, and there are %d; give more --flows", c.Workers, c.Flows.Count)
	case c.Packets > 0 && int64(c.Workers) > c.Packets:
		return fmt.Errorf("workers %d: more than the packets to send (%d)", c.Workers, c.Packets)
	case c.Bare && (c.Expect.Given() || c.Verify):
		return errors.New("bare frames carry no addresses and no checksum: nothing can be expected of them")
	}
	return nil
}

// checkPublic refuses what is neither the sender's nor nobody's.
func (c Config) checkPublic() error {
	if c.OwnNetwork {
		return nil
	}
	for _, d := range c.Flows.Destinations {
		if Public(d.Addr()) {
			return publicError("destination", d.Addr())
		}
	}
	for _, s := range c.Flows.Sources {
		if Public(s) {
			return publicError("source", s)
		}
	}
	for _, end := range []End{c.Expect.Source, c.Expect.Destination} {
		if end.Prefix.IsValid() && PublicPrefix(end.Prefix) {
			return publicError("expected mapping to", end.Prefix)
		}
	}
	return nil
}

func publicError(what string, where fmt.Stringer) error {
	return fmt.Errorf("%s %v: a public address, which load may harm: give --i-own-this-network if it and all on the way there are yours", what, where)
}

// PublicPrefix reports whether a prefix has any address that is Public.
func PublicPrefix(p netip.Prefix) bool {
	if nat64.Bits() <= p.Bits() && nat64.Contains(p.Addr()) {
		b := p.Addr().As16()
		p = netip.PrefixFrom(netip.AddrFrom4([4]byte(b[12:])), p.Bits()-nat64.Bits())
	}
	for _, prefix := range own {
		if prefix.Bits() <= p.Bits() && prefix.Contains(p.Addr()) {
			return false
		}
	}
	return true
}
