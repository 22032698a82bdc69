package text

import (
	"bytes"
	"net/netip"
	"strconv"
	"unsafe"
)

// scanner walks over the words of a line.
type scanner struct {
	b []byte
	i int
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' }

// end passes over blanks and reports whether nothing comes after them.
func (s *scanner) end() bool {
	for s.i < len(s.b) && isBlank(s.b[s.i]) {
		s.i++
	}
	return s.i == len(s.b)
}

// word takes what comes before the next blank, perhaps nothing.
func (s *scanner) word() []byte {
	start := s.i
	for s.i < len(s.b) && !isBlank(s.b[s.i]) {
		s.i++
	}
	return s.b[start:s.i]
}

// pair is word, with the place of its first sign of equality, -1 where it has none.
func (s *scanner) pair() (word []byte, eq int) {
	rest := s.b[s.i:]
	eq = -1
	for n, c := range rest {
		if c == '=' && eq < 0 {
			eq = n
		} else if c == ' ' || c == '\t' {
			rest = rest[:n]
			break
		}
	}
	s.i += len(rest)
	return rest, eq
}

// number reads a whole text as a number that its destination can hold: decimal, or
// hexadecimal behind 0x.
func number[T unsigned](v []byte, to *T) bool {
	n := uint64(0)
	switch {
	case len(v) == 0:
		return false
	case len(v) > 2 && v[1] == 'x' || len(v) > 19: // what can be more than 64 bits
		var err error
		if n, err = strconv.ParseUint(string(v), 0, 64); err != nil {
			return false
		}
	default:
		for _, c := range v {
			d := uint64(c - '0')
			if d > 9 {
				return false
			}
			n = n*10 + d
		}
	}
	*to = T(n)
	return uint64(*to) == n
}

// address reads a whole text as an IP address without a zone. ParseAddr keeps its argument
// for an error only, which is not used here.
func address(v []byte, to *netip.Addr) bool {
	if a, n := ipv4(v); n == len(v) && n > 0 {
		*to = netip.AddrFrom4(a)
		return true
	}
	if bytes.IndexByte(v, ':') < 0 {
		return false
	}
	a, err := netip.ParseAddr(unsafe.String(unsafe.SliceData(v), len(v)))
	if err != nil || a.Zone() != "" {
		return false
	}
	*to = a
	return true
}

// ipv4 reads an address at the beginning of b and returns its length, 0 where
// there is none.
func ipv4(b []byte) (a [4]byte, n int) {
	for part := range a {
		if part > 0 {
			if n >= len(b) || b[n] != '.' {
				return a, 0
			}
			n++
		}
		start, v := n, uint(0)
		for ; n < len(b) && b[n]-'0' <= 9 && n-start < 3; n++ {
			v = v*10 + uint(b[n]-'0')
		}
		// Like netip, no zeros before: some read them as octal.
		if n == start || v > 255 || (b[start] == '0' && n > start+1) {
			return a, 0
		}
		a[part] = byte(v)
	}
	return a, n
}
