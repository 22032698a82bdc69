package pcap

import "unsafe"

// ignoredRST is an RST that its receiver ignores, and what came before it.
type ignoredRST struct {
	rst    record
	window [2]uint32 // that the receiver had open
	before []record
}

// perRST is what one takes in memory, in bytes.
const perRST = int64(unsafe.Sizeof(ignoredRST{})) + ringSize*int64(unsafe.Sizeof(record{}))

// rst takes an RST of a connection that is open or was. The first one that the receiver
// ignores is kept until the connection is over: a client that goes away answers what is
// on its way with several RSTs, and the last one may be taken.
func (t *tracker) rst(c *conn, r *record) {
	receiver := &c.side[1-r.from()]
	known := c.side[0].hasSYN && c.side[1].hasSYN && receiver.hasAck && !c.reset
	if !known || !after(receiver.ack, r.seq) && !after(r.seq, receiver.right) {
		c.reset = true
		if c.ignored != nil && c.ignored.rst.from() == r.from() {
			t.dropRST(c)
		}
		return
	}
	if c.side[0].fin && c.side[1].fin || c.ignored != nil { // nothing is left to be reset
		return
	}
	c.ignored = &ignoredRST{rst: *r, window: [2]uint32{receiver.ack, receiver.right}}
	c.recent(func(o *record) { c.ignored.before = append(c.ignored.before, *o) })
	t.troubled += perRST
	t.peakTroubled = max(t.peakTroubled, t.troubled)
}

func (t *tracker) dropRST(c *conn) {
	c.ignored = nil
	t.troubled -= perRST
}

// endRST reports the RST that was ignored for good.
func (t *tracker) endRST(c *conn) {
	i := c.ignored
	if i == nil {
		return
	}
	t.dropRST(c)
	if !t.kept.wants(RSTOutOfWindow) {
		return
	}
	role := func(r *record) Role {
		if r.number == i.rst.number {
			return RoleReset
		}
		return ""
	}
	t.kept.add(Incident{Kind: RSTOutOfWindow, Client: c.addr(c.client), Server: c.addr(1 - c.client),
		Frame: i.rst.number, Time: timeOf(i.rst.at), Window: &i.window, Ladder: ladder(append(i.before, i.rst), c.client, role)})
}
