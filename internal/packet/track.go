package packet

// Window is how many sequence numbers a Track remembers behind the greatest one.
const Window = 64

// Track is what a receiver knows of one flow's sequence numbers. The zero value
// expects sequence 0.
type Track struct {
	// Next is one more than the greatest sequence seen (NextExp in RFC 4737).
	Next uint32
	// Seen has bit i set where Next-1-i has come.
	Seen uint64
}

// Arrival is what one packet's sequence number says.
type Arrival int

const (
	// InOrder is a packet that is newer than all before, after a gap or not.
	InOrder Arrival = iota
	// Reordered is a packet that comes for the first time, after a newer one
	// (RFC 4737, section 3.3).
	Reordered
	// Duplicated is a packet that came before (RFC 5560).
	Duplicated
	// Late is more than Window behind the newest: too long ago to tell whether it
	// is reordered or duplicated.
	Late
)

// Observe takes the next packet's sequence number. Numbers are compared as in RFC
// 1982, so that they may wrap.
func (t *Track) Observe(sequence uint32) Arrival {
	if ahead := sequence - t.Next; int32(ahead) >= 0 {
		if ahead+1 >= Window {
			t.Seen = 1
		} else {
			t.Seen = t.Seen<<(ahead+1) | 1
		}
		t.Next = sequence + 1
		return InOrder
	}
	age := t.Next - 1 - sequence
	if age >= Window {
		return Late
	}
	bit := uint64(1) << age
	if t.Seen&bit != 0 {
		return Duplicated
	}
	t.Seen |= bit
	return Reordered
}
