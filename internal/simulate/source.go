package simulate

import (
	"math/rand/v2"
	"time"
)

// source tells when connections begin, and whose they are.
type source interface {
	// due is when the next one begins, never where that is not known yet.
	due() int64
	// take is the one that is due: its batch (none without batches) and its host.
	take() (batch, host int32)
	// over tells that a connection is over.
	over(batch int32, now int64)
}

// arrivals are those of a curve.
type arrivals struct {
	stream *stream
	people *population
	random *rand.Rand
	at     int64
}

func newArrivals(c *Config, people *population, random *rand.Rand) *arrivals {
	a := &arrivals{stream: newStream(c, random), people: people, random: random}
	a.at = a.stream.next()
	return a
}

func (a *arrivals) due() int64 { return a.at }

func (a *arrivals) take() (batch, host int32) {
	host = a.people.pick(a.random)
	a.at = a.stream.next()
	return none, host
}

func (a *arrivals) over(int32, int64) {}

// course is one batch after the other.
type course struct {
	batches []Batch
	people  *population
	// hosts are those of each batch: [first, first+count).
	hosts []clientRange
	spans []batchSpan

	// Of the batch at hand: how many are to begin and are under way, how many begin
	// at once when at comes, and the host whose turn it is.
	batch        int32
	left, active int64
	ready        int64
	at           float64
	turn         int32
}

type clientRange struct{ first, count int32 }

// batchSpan is from the first SYN of a batch until its last connection is over.
type batchSpan struct{ start, end int64 }

func newCourse(c *Config, people *population) *course {
	s := &course{batches: c.Batches, people: people, spans: make([]batchSpan, len(c.Batches))}
	for _, b := range c.Batches {
		r := clientRange{0, int32(len(people.hosts))}
		for i := range c.Clients {
			if b.Clients != "" && c.Clients[i].Name == b.Clients {
				r = clientRange{people.groups[i].first, people.groups[i].hosts}
			}
		}
		s.hosts = append(s.hosts, r)
	}
	s.enter(0)
	return s
}

// enter waits for the batch at hand, whose predecessor is over now.
func (s *course) enter(now int64) {
	if int(s.batch) == len(s.batches) {
		return
	}
	b := &s.batches[s.batch]
	s.left, s.at, s.turn = b.Connections, float64(now+int64(b.Pause.Duration)), 0
	s.ready = int64(b.Concurrency)
	s.spans[s.batch].start = int64(s.at)
}

func (s *course) due() int64 {
	if s.left == 0 || int(s.batch) == len(s.batches) {
		return never
	}
	if s.batches[s.batch].Rate == 0 && s.ready == 0 {
		return never
	}
	return int64(s.at)
}

func (s *course) take() (batch, host int32) {
	if rate := s.batches[s.batch].Rate; rate > 0 {
		s.at += float64(time.Second) / rate
	} else {
		s.ready--
	}
	s.left--
	s.active++
	r := s.hosts[s.batch]
	host = r.first + s.turn
	if s.turn++; s.turn == r.count {
		s.turn = 0
	}
	return s.batch, host
}

func (s *course) over(_ int32, now int64) {
	s.active--
	if s.left > 0 {
		if s.batches[s.batch].Rate == 0 {
			s.ready++
			s.at = float64(now)
		}
		return
	}
	if s.active == 0 {
		s.spans[s.batch].end = now
		s.batch++
		s.enter(now)
	}
}
