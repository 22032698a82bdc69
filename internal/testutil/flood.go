package testutil

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// FloodUDP sends a datagram from each port from 10000 to 59999 of to's own
// address, in turn, until ctx ends: 50,000 unanswered flows. It runs in the network
// namespace of the calling thread.
func FloodUDP(ctx context.Context, to netip.AddrPort, perSecond int) error {
	const first, last, burstsPerSecond = 10_000, 59_999, 200
	tick := time.NewTicker(time.Second / burstsPerSecond)
	defer tick.Stop()
	for port := uint16(first); ctx.Err() == nil; <-tick.C {
		for range perSecond / burstsPerSecond {
			if err := SendUDP(netip.AddrPortFrom(to.Addr(), port), to); err != nil {
				return err
			}
			if port++; port > last {
				port = first
			}
		}
	}
	return nil
}

// SendUDP sends one datagram.
func SendUDP(from, to netip.AddrPort) error {
	c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(from), net.UDPAddrFromAddrPort(to))
	if err != nil {
		return fmt.Errorf("send from %v to %v: %w", from, to, err)
	}
	// Refused, or dropped by a full table: that is what tests are about.
	c.Write([]byte("x"))
	return c.Close()
}

// AnswerUDP sends back what comes to at, until ctx ends: with FloodUDP, flows that are
// answered. It listens when it returns, in the network namespace of the calling thread.
func AnswerUDP(ctx context.Context, at netip.AddrPort) error {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return fmt.Errorf("answer at %v: %w", at, err)
	}
	context.AfterFunc(ctx, func() { c.Close() })
	go func() {
		buf := make([]byte, 64)
		for ctx.Err() == nil {
			// An ICMP error about an earlier answer, or a full table: the next may go.
			if n, from, err := c.ReadFromUDPAddrPort(buf); err == nil {
				c.WriteToUDPAddrPort(buf[:n], from)
			}
		}
	}()
	return nil
}
