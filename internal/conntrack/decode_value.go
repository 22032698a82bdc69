package conntrack

import (
	"bytes"
	"encoding/binary"
	"net/netip"
)

func getU8(v []byte, to *uint8) error {
	if len(v) < 1 {
		return errTruncated
	}
	*to = v[0]
	return nil
}

func getU16(v []byte, to *uint16) error {
	if len(v) < 2 {
		return errTruncated
	}
	*to = binary.BigEndian.Uint16(v)
	return nil
}

func getU32(v []byte, to *uint32) error {
	if len(v) < 4 {
		return errTruncated
	}
	*to = binary.BigEndian.Uint32(v)
	return nil
}

// getTwoU64 reads two 64-bit attributes out of a nest.
func getTwoU64(b []byte, typeA uint16, a *uint64, typeB uint16, z *uint64) error {
	for len(b) > 0 {
		typ, v, rest, err := nextAttr(b)
		if err != nil {
			return err
		}
		if typ == typeA || typ == typeB {
			if len(v) < 8 {
				return errTruncated
			}
			to := a
			if typ == typeB {
				to = z
			}
			*to = binary.BigEndian.Uint64(v)
		}
		b = rest
	}
	return nil
}

// getName reads a string out of a nest.
func getName(b []byte, want uint16, to *[]byte) error {
	for len(b) > 0 {
		typ, v, rest, err := nextAttr(b)
		if err != nil {
			return err
		}
		if typ == want {
			if end := bytes.IndexByte(v, 0); end >= 0 {
				v = v[:end]
			}
			*to = v
		}
		b = rest
	}
	return nil
}

func getAddr4(v []byte, to *netip.Addr) error {
	if len(v) < 4 {
		return errTruncated
	}
	*to = netip.AddrFrom4([4]byte(v))
	return nil
}

func getAddr16(v []byte, to *netip.Addr) error {
	if len(v) < 16 {
		return errTruncated
	}
	*to = netip.AddrFrom16([16]byte(v))
	return nil
}
