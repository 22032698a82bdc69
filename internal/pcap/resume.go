package pcap

// window is how much is searched at once. Behind it the longest record and the
// header of the next one have room in the buffer.
const window = bufferSize - MaxFrame - 2*modifiedRecord

// resume looks for the next record behind a broken place, and notes both. It is
// false where there is none.
func (c *classic) resume(s *stream, what string) bool {
	return s.search(1, what, func(b []byte, ended bool) int {
		for i := 0; i < min(len(b), window); i++ {
			if c.plausibleAt(b, i, ended) {
				return i
			}
		}
		return -1
	})
}

// search skips step bytes, and then up to the place that find knows. find gets what is
// there from the place where the search goes on, and whether that is all of the file.
func (s *stream) search(step int64, what string, find func(b []byte, ended bool) int) bool {
	d := Damage{Offset: s.offset, What: what}
	d.Skipped = s.skip(step)
	for {
		b := s.peek(bufferSize)
		ended := len(b) < bufferSize
		at := find(b, ended)
		if at >= 0 {
			d.Skipped += s.skip(int64(at))
			s.damage(d)
			return true
		}
		if ended {
			d.Skipped += s.skip(int64(len(b)))
			d.Ended = true
			s.damage(d)
			return false
		}
		d.Skipped += s.skip(window)
	}
}

// plausibleAt reports whether a record begins at b[i]: its header is like that of the
// last good one, and so is the one behind it, or the file ends there.
func (c *classic) plausibleAt(b []byte, i int, ended bool) bool {
	next, ok := c.similar(b, i)
	if !ok {
		return false
	}
	if next == len(b) {
		return ended
	}
	_, ok = c.similar(b, next)
	return ok
}

// similar reports whether the header at b[i] is one that could follow the last good
// one, and where the next would be.
func (c *classic) similar(b []byte, i int) (next int, ok bool) {
	if i+c.record > len(b) {
		return 0, false
	}
	e := c.entry(b[i:])
	const day = 24 * 60 * 60
	near := c.last == 0 || e.seconds-c.last+day <= 2*day // wraps on purpose
	ok = near && e.captured > 0 && e.captured <= min(e.length, MaxFrame) && e.length <= c.longest && e.fraction < c.perSec
	return i + c.record + int(e.captured), ok && c.believable(e)
}
