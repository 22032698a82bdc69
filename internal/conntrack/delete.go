package conntrack

import "golang.org/x/sys/unix"

// Key is what the kernel needs to find one entry and no other.
type Key struct {
	Orig Tuple
	// Zone is that of the original direction; the kernel compares it there alone.
	Zone uint16
	ID   uint32
}

// Key is the one of e.
func (e *Entry) Key() Key { return Key{e.Orig, e.Zone, e.ID} }

// AppendDelete adds the message that deletes the entry of k, if its ID is still
// the same (ctnetlink_del_conntrack).
func AppendDelete(b []byte, flags uint16, seq uint32, k *Key) []byte {
	start := len(b)
	b = AppendHeader(b, Delete, flags, seq, k.Orig.Family())
	b = appendTuple(b, ctaTupleOrig, &k.Orig, 0)
	if k.Zone != 0 {
		b = appendU16(b, ctaZone, k.Zone)
	}
	if k.ID != 0 {
		b = appendU32(b, ctaID, k.ID)
	}
	return FinishMessage(b, start)
}

// Family is unix.AF_INET or unix.AF_INET6.
func (t *Tuple) Family() uint8 {
	if t.Src.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
