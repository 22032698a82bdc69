package text

import (
	"net/netip"
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

// take passes over prefix if that is next.
func (s *scanner) take(prefix string) bool {
	if len(s.b)-s.i >= len(prefix) && string(s.b[s.i:s.i+len(prefix)]) == prefix {
		s.i += len(prefix)
		return true
	}
	return false
}

// ends reports whether a word ends here.
func (s *scanner) ends() bool { return s.i == len(s.b) || isBlank(s.b[s.i]) }

// decimal takes a word that is a number up to limit, which must be far below
// 2^64; decimal64 knows no limit.
func (s *scanner) decimal(limit uint64) (v uint64, ok bool) {
	start := s.i
	for s.i < len(s.b) {
		d := uint64(s.b[s.i] - '0')
		if d > 9 || v > limit {
			break
		}
		v = v*10 + d
		s.i++
	}
	return v, s.i > start && v <= limit && s.ends()
}

func (s *scanner) decimal64() (v uint64, ok bool) { return decimal(s.word()) }

// hex takes a word that is a hexadecimal number up to limit, with 0x before it.
func (s *scanner) hex(limit uint64) (uint64, bool) {
	if !s.take("0x") {
		return 0, false
	}
	return hexadecimal(s.word(), limit)
}

// addr takes a word that is an IP address.
func (s *scanner) addr(to *netip.Addr) bool {
	if a, n := ipv4(s.b[s.i:]); n > 0 {
		s.i += n
		if s.ends() {
			*to = netip.AddrFrom4(a)
			return true
		}
		s.i -= n
	}
	return ipv6(s.word(), to)
}

// decimal reads a whole text as a number.
func decimal(v []byte) (n uint64, ok bool) {
	if len(v) == 0 || len(v) > 20 {
		return 0, false
	}
	for _, c := range v {
		d := uint64(c - '0')
		if d > 9 || n > (1<<64-1-d)/10 {
			return 0, false
		}
		n = n*10 + d
	}
	return n, true
}

// number reads a whole text as a number that its destination can hold.
func number[T unsigned](v []byte, to *T) bool {
	n, ok := decimal(v)
	*to = T(n)
	return ok && uint64(T(n)) == n
}

// address reads a whole text as an IP address.
func address(v []byte, to *netip.Addr) bool {
	s := scanner{b: v}
	return s.addr(to) && s.i == len(v)
}

func hexadecimal(v []byte, limit uint64) (n uint64, ok bool) {
	if len(v) == 0 || len(v) > 16 {
		return 0, false
	}
	for _, c := range v {
		d, ok := hexDigit(c)
		if !ok {
			return 0, false
		}
		n = n<<4 | uint64(d)
	}
	return n, n <= limit
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case c-'0' <= 9:
		return c - '0', true
	case c|0x20-'a' <= 5:
		return c | 0x20 - 'a' + 10, true
	}
	return 0, false
}

// ipv4 reads an address at the beginning of b and tells how long it is, 0 where
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

// ipv6 reads a whole text as an IPv6 address without a zone (RFC 4291, 2.2).
func ipv6(v []byte, to *netip.Addr) bool {
	var a [16]byte
	n, gap, i := 0, -1, 0 // bytes written, where :: was, place in v
	if len(v) < 2 {
		return false
	}
	if v[0] == ':' {
		if v[1] != ':' {
			return false
		}
		gap, i = 0, 2
	}
	for i < len(v) {
		if n == 16 {
			return false
		}
		if tail, size := ipv4(v[i:]); size > 0 && i+size == len(v) {
			if n > 12 {
				return false
			}
			n += copy(a[n:], tail[:])
			break
		}
		group, size := hexGroup(v[i:])
		if size == 0 {
			return false
		}
		a[n], a[n+1] = byte(group>>8), byte(group)
		n += 2
		if i += size; i == len(v) {
			break
		}
		if v[i] != ':' || i+1 == len(v) {
			return false
		}
		if i++; v[i] == ':' {
			if gap >= 0 {
				return false
			}
			gap = n
			i++
		}
	}
	return finishIPv6(&a, n, gap, to)
}

// finishIPv6 puts zeros where :: was.
func finishIPv6(a *[16]byte, n, gap int, to *netip.Addr) bool {
	if gap < 0 && n != 16 || gap >= 0 && n == 16 {
		return false
	}
	if gap >= 0 {
		copy(a[gap+16-n:], a[gap:n])
		clear(a[gap : gap+16-n])
	}
	*to = netip.AddrFrom16(*a)
	return true
}

// hexGroup reads up to four digits at the beginning of b and tells how many.
func hexGroup(b []byte) (v uint16, n int) {
	for ; n < len(b) && n < 4; n++ {
		d, ok := hexDigit(b[n])
		if !ok {
			break
		}
		v = v<<4 | uint16(d)
	}
	return v, n
}
