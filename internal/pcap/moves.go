package pcap

import "net/netip"

// moves follows rejected SYNs that come again from another port: a NAT that forgot the
// attempt gives the next transmission a port of its own. It is the same SYN by its
// sequence number, which is random.
type moves struct {
	of  map[moveKey]*move
	max int
}

type moveKey struct {
	client [16]byte
	server [16]byte
	port   uint16 // the server's
	isn    uint32
}

// move is where a SYN was last seen.
type move struct {
	attempts  int // that wait for it
	port      uint16
	frame     int64
	connected int64 // time of the SYN-ACK; 0 where there is none
}

func newMoves(memory int64) moves {
	const each = 256
	return moves{of: map[moveKey]*move{}, max: int(memory / each)}
}

func (c *conn) moveKey() moveKey {
	k := &c.key
	return moveKey{k.addr[c.client], k.addr[1-c.client], k.port[1-c.client], c.syn.seq}
}

// watch waits for the SYN of an attempt that was rejected.
func (m *moves) watch(c *conn) {
	if c.syn.watched {
		return
	}
	id := c.moveKey()
	known := m.of[id]
	if known == nil {
		if len(m.of) >= m.max {
			return
		}
		known = &move{port: c.key.port[c.client], frame: c.syn.number}
		m.of[id] = known
	}
	known.attempts++
	c.syn.watched = true
}

// begin notes an attempt that may be another's.
func (m *moves) begin(c *conn) {
	if len(m.of) == 0 {
		return
	}
	if known := m.of[c.moveKey()]; known != nil {
		known.port, known.frame = c.key.port[c.client], c.syn.number
	}
}

// accept notes that a SYN was accepted.
func (m *moves) accept(c *conn, at int64) {
	if len(m.of) == 0 {
		return
	}
	if known := m.of[c.moveKey()]; known != nil {
		known.connected = at
	}
}

// finish tells where the SYN of an attempt that is over went on; nil where it did not.
func (m *moves) finish(c *conn) *move {
	if !c.syn.watched {
		return nil
	}
	id := c.moveKey()
	known := m.of[id]
	known.attempts--
	if known.attempts == 0 {
		delete(m.of, id)
	}
	c.syn.watched = false
	if known.port == c.key.port[c.client] {
		return nil
	}
	return known
}

// tell puts into an incident how the attempt went on.
func (m *move) tell(i *Incident, first int64) {
	i.Outcome, i.ConnectSeconds = Moved, 0
	i.Continued = &Continued{Client: netip.AddrPortFrom(i.Client.Addr(), m.port), Frame: m.frame, Connected: m.connected != 0}
	if m.connected != 0 {
		i.ConnectSeconds = seconds(m.connected - first)
	}
}
