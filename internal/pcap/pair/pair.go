// Package pair matches two captures that were taken on both sides of a NAT: what went in
// and never came out, what was rewritten, how long it took.
//
// It knows nothing of the NAT. Packets are matched by what a NAT leaves as it is
// (TCP sequence numbers, payloads), within a window of time. What changes those on the way
// looks lost: SYNPROXY and helpers that rewrite payloads, proxies, and segments that are
// joined or split between the captures (GRO and TSO of another machine).
package pair

import (
	"fmt"
	"io"
	"time"
)

// Options of Match. The zero value means the usual ones.
type Options struct {
	// Window is the longest time that a packet may take from one capture to the other;
	// 2 s.
	Window time.Duration
	// Memory bounds what is kept of packets and flows, in bytes; 256 MiB.
	Memory int64
	// Listed bounds how many flows are listed of each kind; 100.
	Listed int
}

// Bounds of Options.
const (
	MinMemory     = 16 << 20
	DefaultMemory = 256 << 20
	defaultWindow = 2 * time.Second
	maxWindow     = time.Minute
	defaultListed = 100
)

func (o Options) withDefaults() (Options, error) {
	if o.Window == 0 {
		o.Window = defaultWindow
	}
	if o.Memory == 0 {
		o.Memory = DefaultMemory
	}
	if o.Listed == 0 {
		o.Listed = defaultListed
	}
	switch {
	case o.Window < time.Millisecond || o.Window > maxWindow:
		return o, fmt.Errorf("match captures: window of %v: must be from 1ms to %v", o.Window, maxWindow)
	case o.Memory < MinMemory:
		return o, fmt.Errorf("match captures: memory of %d bytes: %d are the least", o.Memory, MinMemory)
	case o.Listed < 0:
		return o, fmt.Errorf("match captures: %d flows to list: must not be negative", o.Listed)
	}
	return o, nil
}

// Match reads two captures and matches them. The first one counts as the inside one unless
// the translations say otherwise. Both are read once, as streams, side by side.
func Match(inside, outside io.Reader, o Options) (*Report, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	m := newMatcher(o)
	if err := m.read(inside, outside); err != nil {
		return nil, err
	}
	return m.report(), nil
}
