package load

// Course collects a run's seconds from its workers. It is not safe for
// concurrent use.
type Course struct {
	workers int
	done    []Second
	open    []openSecond // the seconds after done
	spare   []*Histogram
}

type openSecond struct {
	Second
	workers int // that have handed in this second
	total   *Histogram
}

// Interval is what one worker did in one second. It is reused: Reset empties it.
type Interval struct {
	Completed, Failed int64
	total             *Histogram
}

// NewInterval is empty; its histogram has two significant digits.
func NewInterval() *Interval { return &Interval{total: newHistogram(2)} }

// Complete counts a completed request of so many nanoseconds.
func (i *Interval) Complete(total int64) {
	i.Completed++
	i.total.Record(total)
}

// Reset empties the interval.
func (i *Interval) Reset() {
	if i.Completed > 0 {
		i.total.Reset()
	}
	i.Completed, i.Failed = 0, 0
}

// NewCourse expects each second from so many workers.
func NewCourse(workers int) *Course {
	return &Course{
		workers: workers, done: make([]Second, 0, 64), open: make([]openSecond, 0, 4),
		spare: []*Histogram{newHistogram(2), newHistogram(2)},
	}
}

// Add takes a worker's second number index (from 0). Every worker hands in each
// of its seconds once, in order.
func (c *Course) Add(index int, in *Interval) {
	for len(c.done)+len(c.open) <= index {
		c.open = append(c.open, openSecond{total: c.histogram()})
	}
	s := &c.open[index-len(c.done)]
	s.workers++
	s.Completed += in.Completed
	s.Failed += in.Failed
	if in.Completed > 0 {
		s.total.Merge(in.total)
	}
	for len(c.open) > 0 && c.open[0].workers == c.workers {
		c.close()
	}
}

func (c *Course) histogram() *Histogram {
	if n := len(c.spare); n > 0 {
		h := c.spare[n-1]
		c.spare = c.spare[:n-1]
		return h
	}
	return newHistogram(2)
}

func (c *Course) close() {
	s := c.open[0]
	s.At = float64(len(c.done) + 1)
	s.P99 = s.total.Quantile(0.99)
	s.total.Reset()
	c.spare = append(c.spare, s.total)
	c.done = append(c.done, s.Second)
	c.open = append(c.open[:0], c.open[1:]...)
}

// Series is the course of a run that ended after so many seconds. Later Adds are
// not allowed.
func (c *Course) Series(seconds float64) []Second {
	for len(c.open) > 0 {
		c.close()
	}
	if n := len(c.done); n > 0 && seconds < c.done[n-1].At {
		c.done[n-1].At = seconds
	}
	return c.done
}
