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

// key takes what comes before a sign of equality, and that; where the next word has none,
// ok is false and nothing is taken.
func (s *scanner) key() (key []byte, ok bool) {
	for i := s.i; i < len(s.b) && !isBlank(s.b[i]); i++ {
		if s.b[i] == '=' {
			key, s.i = s.b[s.i:i], i+1
			return key, true
		}
	}
	return nil, false
}

// ends reports whether a word ends before place i.
func (s *scanner) ends(i int) bool { return i == len(s.b) || isBlank(s.b[i]) }

// address takes a word that is an address, as the function of that name. What nearly all
// are is read without looking for the word's end first.
func (s *scanner) address(to *netip.Addr) bool {
	a, n := ipv4(s.b[s.i:])
	if n == 0 || !s.ends(s.i+n) {
		return address(s.word(), to)
	}
	s.i += n
	*to = netip.AddrFrom4(a)
	return true
}

// take takes a word that is a number, as address does.
func take[T unsigned](s *scanner, to *T) bool {
	n, i := uint64(0), s.i
	for ; i < len(s.b) && s.b[i]-'0' <= 9 && i-s.i < 19; i++ {
		n = n*10 + uint64(s.b[i]-'0')
	}
	if i == s.i || !s.ends(i) {
		return number(s.word(), to)
	}
	s.i = i
	*to = T(n)
	return uint64(*to) == n
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
