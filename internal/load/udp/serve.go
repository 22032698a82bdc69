package udp

import (
	"errors"
	"net/netip"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/packet"
)

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
	// Foreign were no requests of a run, such as replies, and were not answered; no
	// other count has them besides Received.
	Foreign int64 `json:"not_answered_foreign"`
	// Expected is what senders should look like; nil where that does not matter, and
	// then Misdelivered and Sources are 0.
	Expected *packet.End `json:"expected_source,omitempty"`
	// Misdelivered came from other senders, which were answered, too.
	Misdelivered     int64   `json:"misdelivered"`
	MisdeliveredFrom []Stray `json:"misdelivered_from,omitempty"`
	// Sources is how many different addresses and ports were seen; more than
	// MaxSourcesSeen are not counted.
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
func CheckExpected(e packet.End, at netip.Addr) error {
	switch {
	case e.Address == packet.Same || e.Address == packet.Netmap || e.Port == packet.Same:
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

// NewServeTally remembers so many senders at most.
func NewServeTally(senders int) *ServeTally {
	return &ServeTally{Failures: load.NewFailureCounts(), sources: map[netip.AddrPort]struct{}{}, room: senders}
}

// From judges a sender.
func (t *ServeTally) From(from netip.AddrPort, expected packet.End) {
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
		// The kernel gives all datagrams of a sender to one worker.
		s.Sources += len(t.sources)
		failures.Merge(t.Failures)
		for _, stray := range t.strays {
			strays.add(stray)
		}
	}
	s.Failures, s.MisdeliveredFrom = failures.List(), strays
}
