package pcap

import (
	"unsafe"

	"github.com/natkit/natkit/internal/packet"
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

// trouble gives that of the connection, made of the packets remembered if need be.
func (t *tracker) trouble(c *conn) *trouble {
	if c.trouble == nil {
		c.trouble = &trouble{ladder: make([]record, 0, maxLadder)}
		t.troubled += perTrouble
		c.recent(func(r *record) { c.trouble.ladder = append(c.trouble.ladder, *r) })
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
	tr, moved := c.trouble, t.moves.finish(c)
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
	i := Incident{Kind: kind, Client: c.addr(c.client), Server: c.addr(1 - c.client),
		Frame: c.syn.firstNumber, Time: timeOf(c.syn.first), SYNs: tr.syns, Outcome: outcome, LadderMore: tr.left}
	if outcome == Connected {
		i.ConnectSeconds = seconds(at - c.syn.first)
	} else if moved != nil {
		moved.tell(&i, c.syn.first)
	}
	for n := 1; n < len(tr.syns); n++ {
		i.Intervals = append(i.Intervals, tr.syns[n].Time.Sub(tr.syns[n-1].Time).Seconds())
	}
	i.Former = c.formerReport()
	i.Ladder = ladder(tr.ladder, c.client, roles(&i, outcome))
	t.kept.add(i)
}

func (t *tracker) countOutcome(kind Kind, outcome Outcome) {
	switch {
	case kind == SYNRefused:
		t.report.Connections.Refused++
	case kind == SYNUnanswered && outcome != Connected:
		t.report.Connections.Unanswered++
	}
}

// kindOf is the most serious of the verdicts.
func kindOf(syns []SYN, behind bool) Kind {
	has := map[Verdict]bool{}
	for i := range syns {
		has[syns[i].Verdict] = true
	}
	switch {
	case has[RejectedPAWS]:
		return SYNRejectedPAWS
	case has[RejectedSequence]:
		return SYNRejectedSeq
	case has[Challenged]:
		return SYNOnOpen
	case has[Unanswered]:
		return SYNUnanswered
	case has[Refused]:
		return SYNRefused
	case behind:
		return TimestampBack
	}
	return ""
}

func (c *conn) formerReport() *Former {
	f := &c.former
	if !f.valid {
		return nil
	}
	report := &Former{LastFrame: f.number, LastTime: timeOf(f.at), After: seconds(c.syn.first - f.at),
		Closed: closedNames[f.closed], RcvNxt: f.rcvNxt, SndNxt: f.sndNxt}
	if f.hasTS {
		report.LastTSVal = pointer(f.tsval)
	}
	return report
}

// roles tells what the packets of an attempt are.
func roles(i *Incident, outcome Outcome) func(*record) Role {
	syns, began := i.SYNs, i.Time.UnixNano()
	return func(r *record) Role {
		for n := range syns {
			switch r.number {
			case syns[n].Frame:
				return RoleSYN
			case syns[n].Answer:
				if r.flags&packet.RST != 0 {
					return RoleReset
				}
				return RoleOldACK
			case syns[n].Reset:
				return RoleReset
			}
		}
		switch {
		case r.at < began || r.at == began && r.number < i.Frame:
			return RoleFormer
		case outcome == Connected && r.flags&(packet.SYN|packet.ACK) == packet.SYN|packet.ACK:
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
			Seq: r.seq, Ack: r.ack, Length: int(r.length), Window: r.window, Role: role(r)}
		if r.hasTimestamps() {
			steps[n].TSVal, steps[n].TSEcr = pointer(r.tsval), pointer(r.tsecr)
		}
	}
	return steps
}
