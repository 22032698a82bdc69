package pcap

import (
	"cmp"
	"slices"
	"unsafe"

	"github.com/natkit/natkit/internal/frame"
)

// maxLadder bounds how many packets an incident shows.
const maxLadder = 16

// trouble is an attempt to connect that will be an incident.
type trouble struct {
	syns   []SYN
	ladder []record
	left   int64 // packets that are not in ladder
}

// What a trouble takes in memory, in bytes: with its ladder, and for each SYN.
const (
	perTrouble = 128 + maxLadder*int64(unsafe.Sizeof(record{}))
	perSYN     = 2 * int64(unsafe.Sizeof(SYN{}))
)

func (t *trouble) memory() int64 { return perTrouble + perSYN*int64(len(t.syns)) }

// trouble returns that of the connection, made if need be.
func (t *tracker) trouble(c *conn) *trouble {
	if c.trouble == nil {
		c.trouble = &trouble{ladder: append(make([]record, 0, maxLadder), c.remembered()...)}
		t.troubled += perTrouble
	}
	return c.trouble
}

// note adds a SYN with its verdict.
func (t *tracker) note(c *conn, s SYN) {
	tr := t.trouble(c)
	if len(tr.syns) == MaxSYNs {
		return
	}
	tr.syns = append(tr.syns, s)
	t.troubled += perSYN
	t.peakTroubled = max(t.peakTroubled, t.troubled)
}

// add adds a packet, once.
func (t *trouble) add(r *record) {
	if n := len(t.ladder); n > 0 && t.ladder[n-1].number == r.number {
		return
	}
	if len(t.ladder) == maxLadder {
		t.left++
		return
	}
	t.ladder = append(t.ladder, *r)
}

// emit makes an incident of an attempt. at is when it succeeded.
func (t *tracker) emit(c *conn, outcome Outcome, at int64) {
	tr := c.trouble
	c.trouble = nil
	if tr == nil {
		return
	}
	t.troubled -= tr.memory()
	kind := kindOf(tr.syns, c.syn.timestampBehind)
	t.countOutcome(kind, outcome)
	if kind == "" || !t.kept.wants(kind) {
		return
	}
	i := c.incident(kind, c.client, c.syn.firstNumber, c.syn.first, tr.ladder, roles(tr.syns, c.syn.firstNumber, c.syn.first, outcome))
	i.SYNs, i.Outcome, i.LadderMore, i.Former = tr.syns, outcome, tr.left, c.formerReport()
	if outcome == Connected {
		i.ConnectSeconds = seconds(at - c.syn.first)
	}
	for n := 1; n < len(tr.syns); n++ {
		i.Intervals = append(i.Intervals, tr.syns[n].Time.Sub(tr.syns[n-1].Time).Seconds())
	}
	t.kept.add(i)
}

// incident returns one of a connection, with the packets that show it; role may be nil.
func (c *conn) incident(kind Kind, client uint8, frame, at int64, records []record, role func(*record) Role) Incident {
	return Incident{Kind: kind, Client: c.addr(client), Server: c.addr(1 - client), Frame: frame, Time: timeOf(at),
		Ladder: ladder(records, client, role)}
}

// opener returns the end that sent the SYN; if the capture has none, the given sender.
func (c *conn) opener(sender uint8) uint8 {
	if c.begun {
		return c.client
	}
	return sender
}

func (t *tracker) countOutcome(kind Kind, outcome Outcome) {
	switch {
	case kind == SYNRefused:
		t.report.Connections.Refused++
	case kind == SYNUnanswered && outcome != Connected:
		t.report.Connections.Unanswered++
	case kind == SYNNotAccepted && outcome != Connected:
		t.report.Connections.NotAccepted++
	}
}

// kindOf is the most serious of the verdicts.
func kindOf(syns []SYN, behind bool) (worst Kind) {
	if behind {
		worst = TimestampBack
	}
	for _, v := range []struct {
		verdict Verdict
		kind    Kind
	}{{Refused, SYNRefused}, {NotAccepted, SYNNotAccepted}, {Unanswered, SYNUnanswered}, {Undecided, SYNOnFormer}, {Challenged, SYNOnOpen}, {RejectedSequence, SYNRejectedSeq}, {RejectedPAWS, SYNRejectedPAWS}} {
		if slices.ContainsFunc(syns, func(s SYN) bool { return s.Verdict == v.verdict }) {
			worst = v.kind
		}
	}
	return worst
}

func (c *conn) formerReport() *Former {
	f := &c.former
	if !f.valid {
		return nil
	}
	report := &Former{LastFrame: f.number, LastTime: timeOf(f.at), After: seconds(c.syn.first - f.at),
		Closed: f.closed, RcvNxt: f.rcvNxt, SndNxt: f.sndNxt}
	if f.hasTS {
		report.LastTSVal = new(f.tsval)
	}
	return report
}

// roles returns the role of each packet of an attempt, whose first SYN is given.
func roles(syns []SYN, first, began int64, outcome Outcome) func(*record) Role {
	return func(r *record) Role {
		for n := range syns {
			switch r.number {
			case syns[n].Frame:
				return RoleSYN
			case syns[n].Answer:
				if r.flags&frame.RST != 0 {
					return RoleReset
				}
				return RoleOldACK
			case syns[n].Reset:
				return RoleReset
			}
		}
		switch {
		case r.at < began || r.at == began && r.number < first:
			return RoleFormer
		case outcome == Connected && r.flags&(frame.SYN|frame.ACK) == frame.SYN|frame.ACK:
			return RoleSYNACK
		}
		return ""
	}
}

// ladder makes the steps of the packets.
func ladder(records []record, client uint8, role func(*record) Role) []Step {
	steps := make([]Step, len(records))
	for n := range records {
		r := &records[n]
		steps[n] = Step{Frame: r.number, Time: timeOf(r.at), FromClient: r.from() == client, Flags: r.flags,
			Seq: r.seq, Ack: r.ack, Length: int(r.length), Window: r.window}
		if role != nil {
			steps[n].Role = role(r)
		}
		if r.hasTimestamps() {
			steps[n].TSVal, steps[n].TSEcr = new(r.tsval), new(r.tsecr)
		}
	}
	return steps
}

// incidents are kept within a bounded memory; all are counted.
type incidents struct {
	kinds  map[Kind]*ofKind
	each   int   // of a kind
	memory int64 // for all
	used   int64
	peak   int64
}

type ofKind struct {
	count int64
	list  []Incident
}

func newIncidents(memory int64, each int) incidents {
	all := incidents{kinds: map[Kind]*ofKind{}, each: each, memory: memory}
	for _, kind := range Kinds {
		all.kinds[kind] = &ofKind{}
	}
	return all
}

// wants counts an incident, and reports whether there may be room for it.
func (i *incidents) wants(kind Kind) bool {
	of := i.kinds[kind]
	of.count++
	return len(of.list) < i.each && (i.used < i.memory || i.lesser(kind) != nil)
}

// add keeps an incident. If memory is short it replaces the last one of the least serious kind.
func (i *incidents) add(one Incident) {
	cost := costOf(&one)
	for i.used+cost > i.memory {
		lesser := i.lesser(one.Kind)
		if lesser == nil {
			return
		}
		last := len(lesser.list) - 1
		i.used -= costOf(&lesser.list[last])
		lesser.list[last] = Incident{}
		lesser.list = lesser.list[:last]
	}
	i.used += cost
	i.peak = max(i.peak, i.used)
	of := i.kinds[one.Kind]
	of.list = append(of.list, one)
}

// lesser is the least serious kind below kind of which one is kept.
func (i *incidents) lesser(kind Kind) *ofKind {
	for _, k := range slices.Backward(Kinds) {
		if k == kind {
			return nil
		}
		if of := i.kinds[k]; len(of.list) > 0 {
			return of
		}
	}
	return nil
}

// costOf is about what an incident takes in memory.
func costOf(i *Incident) int64 {
	const fixed, perStep, former = 512, 128, 128
	return fixed + former + perSYN*int64(len(i.SYNs)) + perStep*int64(cap(i.Ladder)) + 8*int64(cap(i.Intervals))
}

// drop forgets a kind, as if there had been none.
func (i *incidents) drop(kind Kind) {
	for n := range i.kinds[kind].list {
		i.used -= costOf(&i.kinds[kind].list[n])
	}
	i.kinds[kind] = &ofKind{}
}

// fill puts them into the report.
func (i *incidents) fill(r *Report) {
	r.Kinds, r.Incidents = []KindCount{}, []Incident{}
	for _, kind := range Kinds {
		of := i.kinds[kind]
		if of.count == 0 {
			continue
		}
		r.Kinds = append(r.Kinds, KindCount{kind, of.count, int64(len(of.list))})
		slices.SortStableFunc(of.list, func(a, b Incident) int {
			return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Frame, b.Frame))
		})
		r.Incidents = append(r.Incidents, of.list...)
	}
}

// ignoredRST is an RST that its receiver ignores, and what came before it.
type ignoredRST struct {
	rst    record
	window [2]uint32 // that the receiver had open
	before []record
}

// perRST is what one takes in memory, in bytes.
const perRST = int64(unsafe.Sizeof(ignoredRST{})) + ringSize*int64(unsafe.Sizeof(record{}))

// rst handles an RST. The first one that the receiver ignores is kept until the connection ends:
// a closed client answers packets in flight with several RSTs, and the last may be accepted.
func (t *tracker) rst(c *conn, r *record) {
	receiver := &c.side[1-r.from()]
	known := !t.headersAlone && c.side[0].hasSYN && c.side[1].hasSYN && receiver.hasAck && !c.reset
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
	c.ignored = &ignoredRST{rst: *r, window: [2]uint32{receiver.ack, receiver.right}, before: c.remembered()}
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
	one := c.incident(RSTOutOfWindow, c.client, i.rst.number, i.rst.at, append(i.before, i.rst), nil)
	one.Window, one.Ladder[len(i.before)].Role = &i.window, RoleReset
	t.kept.add(one)
}

// Reason is why a packet was not understood. Its text is stable.
type Reason string

// The reasons.
const (
	Decoded Reason = ""
	// UnknownLinkType is a link layer that natkit does not read.
	UnknownLinkType Reason = "link type not supported"
	// UnknownInterface is a packet of an interface that the file does not describe.
	UnknownInterface Reason = "interface not described"
	// NotIP is a frame that carries something else, such as ARP.
	NotIP Reason = "not IP"
	// CutHeader is a header that is not all there.
	CutHeader Reason = "header cut"
	// MalformedHeader is a header whose fields contradict each other.
	MalformedHeader Reason = "header malformed"
	// Encrypted is a frame of a wireless network whose payload is protected.
	Encrypted Reason = "encrypted"
)
