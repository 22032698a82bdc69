package packets

import (
	"fmt"
	"math/bits"
	"net/netip"
	"strings"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/unix"
)

// State is what is known of one datagram.
type State uint8

const (
	// Unknown was not sent, or so long ago that its place was needed for another.
	Unknown State = iota
	// Flying was sent; nothing came back, and its time is not over.
	Flying
	// Settled counts as lost, by timeout or an ICMP error. A reply may still come.
	Settled
	// Answered had its reply.
	Answered
)

// Flight remembers by number when each datagram was sent and its state. Numbers may be slightly
// out of order, times not. It is not safe for concurrent use.
type Flight struct {
	slots  []int64 // time of sending in nanoseconds << 2, and the State
	mask   int64
	oldest int64 // all before it are not Flying
	head   int64 // one more than the greatest number sent
	// Flying datagrams.
	Flying int
}

// MaxFlight bounds the memory of a Flight: 8 bytes each.
const MaxFlight = 1 << 24

// NewFlight remembers at least the last n datagrams, MaxFlight at most.
func NewFlight(n int) *Flight {
	n = 1 << bits.Len(uint(min(max(n, 2), MaxFlight)-1))
	return &Flight{slots: make([]int64, n), mask: int64(n - 1)}
}

// Sent remembers datagram k, and returns how many older ones were lost for lack of room.
func (f *Flight) Sent(k, at int64) (lost int) {
	for ; f.head <= k; f.head++ {
		if f.head-f.oldest == int64(len(f.slots)) {
			lost += f.giveUpOldest()
		}
		f.slots[f.head&f.mask] = int64(Unknown)
	}
	if k < f.oldest { // too far behind the others: not followed
		return lost
	}
	f.slots[k&f.mask] = at<<2 | int64(Flying)
	f.Flying++
	return lost
}

func (f *Flight) giveUpOldest() (lost int) {
	if slot := &f.slots[f.oldest&f.mask]; State(*slot&3) == Flying {
		f.Flying--
		lost = 1
	}
	f.oldest++
	return lost
}

// Skip passes over a datagram that could not be sent.
func (f *Flight) Skip(k int64) (lost int) {
	lost = f.Sent(k, 0)
	f.Settle(k)
	return lost
}

// Answer notes a reply to datagram k, and returns its state before and its time of sending.
func (f *Flight) Answer(k int64) (before State, sent int64) { return f.become(k, Answered) }

// Settle takes an ICMP error about datagram k.
func (f *Flight) Settle(k int64) (before State, sent int64) { return f.become(k, Settled) }

func (f *Flight) become(k int64, state State) (before State, sent int64) {
	if k < 0 || k >= f.head || f.head-k > int64(len(f.slots)) {
		return Unknown, 0
	}
	slot := &f.slots[k&f.mask]
	before, sent = State(*slot&3), *slot>>2
	if before == Unknown || before == Answered {
		return before, sent
	}
	if before == Flying {
		f.Flying--
	}
	*slot = sent<<2 | int64(state)
	return before, sent
}

// Expire settles what was sent up to an instant, and returns how many there were.
func (f *Flight) Expire(until int64) (lost int) {
	for ; f.oldest < f.head; f.oldest++ {
		slot := &f.slots[f.oldest&f.mask]
		switch State(*slot & 3) {
		case Unknown:
			return lost // will be sent yet
		case Flying:
			if *slot>>2 > until {
				return lost
			}
			*slot = *slot&^3 | int64(Settled)
			f.Flying--
			lost++
		}
	}
	return lost
}

// Oldest returns when the oldest Flying datagram was sent; false if there is none, or an older
// one is unsent.
func (f *Flight) Oldest() (sent int64, ok bool) {
	for ; f.oldest < f.head; f.oldest++ {
		slot := f.slots[f.oldest&f.mask]
		switch State(slot & 3) {
		case Unknown:
			return 0, false
		case Flying:
			return slot >> 2, true
		}
	}
	return 0, false
}

// Bytes of a frame that are not IP packet, and of the largest IPv4 packet.
const (
	etherOverhead = frame.EthernetLen + frame.FCSLen
	maxIPv4       = 65535
)

// LeastFrame returns the bytes of the smallest frame of a datagram with a token to an address.
func LeastFrame(to netip.Addr) int {
	return frame.FCSLen + Spec{IPv6: !to.Unmap().Is4(), Protocol: unix.IPPROTO_UDP}.HeaderLen()
}

// PayloadBytes returns the bytes of UDP payload in a frame to an address.
func PayloadBytes(frame int, to netip.Addr) int { return frame - LeastFrame(to) + TokenLen }

// PacketBytes returns the bytes of the IP packet in a frame.
func PacketBytes(frame int) int { return frame - etherOverhead }

// frames parses the sizes. Given sizes must be possible; the default and IMIX are raised to the
// least size, 78 bytes for IPv6.
func (c UDPConfig) frames() ([]int, error) {
	size := c.Size
	if size == "" {
		size = "64"
	}
	sizes, err := ParseSizes(size)
	if err != nil {
		return nil, err
	}
	least := LeastFrame(c.To.Addr())
	named := c.Size != "" && !strings.EqualFold(c.Size, "imix")
	for i, s := range sizes {
		switch {
		case s-etherOverhead > maxIPv4:
			return nil, fmt.Errorf("size %d: an IP packet has at most %d bytes, its frame %d", s, maxIPv4, maxIPv4+etherOverhead)
		case s >= least:
		case named:
			return nil, fmt.Errorf("size %d: a frame to %v needs %d bytes for headers, FCS and the token that identifies datagrams", s, c.To.Addr(), least)
		default:
			sizes[i] = least
		}
	}
	return sizes, nil
}

// replyBit of a token's run is set in replies. Servers answer requests only: two servers that
// answered everything would loop forever after one datagram with a forged source.
const replyBit = 1

// RequestRun makes any number the run of requests.
func RequestRun(n uint32) uint32 { return n &^ replyBit }

// ReplyRun is the run in replies to a run's requests.
func ReplyRun(run uint32) uint32 { return run | replyBit }

// MakeReply turns a request's payload into its reply, in place; false if it is no request.
func MakeReply(payload []byte) bool {
	token, ok := ParseToken(payload)
	if !ok || token.Run&replyBit != 0 {
		return false
	}
	token.Run = ReplyRun(token.Run)
	token.Put(payload)
	return true
}

// Share is one worker's part of a run: flow f with f modulo Workers = Worker. Datagram k is of
// flow k modulo Flows.
type Share struct{ Flows, Workers, Worker int }

// Len is the number of the worker's flows.
func (s Share) Len() int { return (s.Flows - s.Worker + s.Workers - 1) / s.Workers }

// Flow is the number, among all, of the worker's i-th flow.
func (s Share) Flow(i int) int { return i*s.Workers + s.Worker }

// UpTo returns how many of the run's first k datagrams are this worker's.
func (s Share) UpTo(k int64) int64 {
	rounds, rest := k/int64(s.Flows), int(k%int64(s.Flows))
	return rounds*int64(s.Len()) + int64(max(rest-s.Worker+s.Workers-1, 0)/s.Workers)
}

// When returns the run's number of the worker's j-th datagram, which determines when it is due.
func (s Share) When(j int64) int64 {
	n := int64(s.Len())
	return j/n*int64(s.Flows) + int64(s.Flow(int(j%n)))
}

// Of returns how many of n datagrams in all flow f sends.
func (s Share) Of(n int64, f int) int64 {
	of := n / int64(s.Flows)
	if int64(f) < n%int64(s.Flows) {
		of++
	}
	return of
}
