package load

import (
	"math"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// Sample is one completed request. The instants are nanoseconds since the run's
// start.
type Sample struct {
	// Intended is when the request was due, Start when it began: the same in a
	// closed loop.
	Intended, Start int64
	// Connected is when the connection stood; Start where it stood already.
	Connected int64
	Sent      int64
	First     int64 // first byte of the response
	Done      int64
	Body      int64 // bytes
}

// Tally is what one worker counted. Nothing but NewTally allocates.
type Tally struct {
	Completed, Failed int64
	// AfterFailure counts requests completed after the run's first failure.
	AfterFailure int64
	// Late counts completed requests whose connection took LateConnect or longer.
	Late       int64
	Unfinished int64
	Received   int64 // bytes, heads included
	Body       int64 // bytes
	// Document is the body of the first completed request, -1 where there is none.
	Document    int64
	SystemCalls int64

	connect, processing, waiting, total *Histogram
	service                             *Histogram // nil in a closed loop
	failures                            FailureCounts
}

// LateConnect is the first retransmission timeout of a SYN, in nanoseconds (RFC 6298,
// 2.1; TCP_TIMEOUT_INIT), less what the kernel's timers are early by.
const LateConnect = 990_000_000

// NewTally is an empty tally; openLoop adds the time from the actual start.
func NewTally(openLoop bool) *Tally {
	t := &Tally{
		Document: -1,
		connect:  NewHistogram(), processing: NewHistogram(),
		waiting: NewHistogram(), total: NewHistogram(),
		failures: FailureCounts{},
	}
	if openLoop {
		t.service = NewHistogram()
	}
	return t
}

// Complete counts a good request. As in ab, connect + processing = total, and
// waiting is the part of processing until the first byte.
func (t *Tally) Complete(s Sample) {
	t.Completed++
	t.Body += s.Body
	if t.Document < 0 {
		t.Document = s.Body
	}
	t.connect.Record(s.Connected - s.Intended)
	if s.Connected-s.Start >= LateConnect {
		t.Late++
	}
	t.processing.Record(s.Done - s.Connected)
	t.waiting.Record(s.First - s.Sent)
	t.total.Record(s.Done - s.Intended)
	if t.service != nil {
		t.service.Record(s.Done - s.Start)
	}
}

// Fail counts a failed request.
func (t *Tally) Fail(phase Phase, reason Reason) {
	t.Failed++
	t.failures.Add(phase, reason)
}

// Merge adds another worker's tally.
func (t *Tally) Merge(o *Tally) {
	t.Completed += o.Completed
	t.Failed += o.Failed
	t.AfterFailure += o.AfterFailure
	t.Late += o.Late
	t.Unfinished += o.Unfinished
	t.Received += o.Received
	t.Body += o.Body
	t.SystemCalls += o.SystemCalls
	if t.Document < 0 {
		t.Document = o.Document
	}
	t.connect.Merge(o.connect)
	t.processing.Merge(o.processing)
	t.waiting.Merge(o.waiting)
	t.total.Merge(o.total)
	if t.service != nil && o.service != nil {
		t.service.Merge(o.service)
	}
	t.failures.Merge(o.failures)
}

// Failures lists the classes.
func (t *Tally) Failures() []Failure { return t.failures.List() }

// Fill writes the tally into a result whose Seconds and FirstFailureSeconds are
// set.
func (t *Tally) Fill(r *Result) {
	r.Completed, r.Failed, r.Unfinished = t.Completed, t.Failed, t.Unfinished
	r.BytesReceived, r.BodyBytes, r.DocumentBytes = t.Received, t.Body, max(t.Document, 0)
	r.SystemCalls, r.ConnectLate = t.SystemCalls, t.Late
	r.Failures = t.Failures()
	if r.Seconds > 0 {
		r.RequestsPerSecond = float64(t.Completed) / r.Seconds
	}
	if rest := r.Seconds - r.FirstFailureSeconds; r.FirstFailureSeconds >= 0 && rest > 0 {
		r.AfterFirstFailurePerSecond = float64(t.AfterFailure) / rest
	}
	r.Connect, r.Processing = t.connect.Times(), t.processing.Times()
	r.Waiting, r.Total = t.waiting.Times(), t.total.Times()
	if t.service != nil {
		times := t.service.Times()
		r.ServiceTotal = &times
	}
}

// Range and precision of the histograms, in nanoseconds: half a microsecond
// apart at the low end, three digits above.
const (
	lowestNs  = 1_000
	highestNs = 600_000_000_000
)

// Histogram collects durations. Minimum, maximum, mean and standard deviation
// are exact, quantiles are good to the histogram's digits. A duration above the
// range counts in the highest bucket.
type Histogram struct {
	h        *hdr.Histogram
	n        int64
	min, max int64
	sum      float64
	sumSq    float64 // of microseconds, to keep digits
}

// NewHistogram has three significant digits; Record does not allocate.
func NewHistogram() *Histogram { return newHistogram(3) }

func newHistogram(digits int) *Histogram { return NewHistogramOf(lowestNs, highestNs, digits) }

// NewHistogramOf has the given range in nanoseconds and significant digits.
func NewHistogramOf(lowest, highest int64, digits int) *Histogram {
	return &Histogram{h: hdr.New(lowest, highest, digits), min: math.MaxInt64}
}

// Record adds one duration in nanoseconds; a negative one counts as 0.
func (h *Histogram) Record(ns int64) {
	ns = max(ns, 0)
	h.n++
	h.min = min(h.min, ns)
	h.max = max(h.max, ns)
	us := float64(ns) / 1e3
	h.sum += us
	h.sumSq += us * us
	// The value is brought into the range, so this cannot fail.
	_ = h.h.RecordValue(min(ns, h.h.HighestTrackableValue()))
}

// Merge adds what o holds.
func (h *Histogram) Merge(o *Histogram) {
	if o.n == 0 {
		return
	}
	h.h.Merge(o.h)
	h.n += o.n
	h.min = min(h.min, o.min)
	h.max = max(h.max, o.max)
	h.sum += o.sum
	h.sumSq += o.sumSq
}

// Reset empties the histogram and keeps its memory.
func (h *Histogram) Reset() {
	h.h.Reset()
	*h = Histogram{h: h.h, min: math.MaxInt64}
}

// Quantile, of 0 to 1, in milliseconds; never outside what was recorded. 0
// where nothing was.
func (h *Histogram) Quantile(q float64) float64 {
	if h.n == 0 {
		return 0
	}
	v := h.h.ValueAtQuantile(q * 100)
	return float64(min(max(v, h.min), h.max)) / 1e6
}

// Times summarises; all 0 where nothing was recorded.
func (h *Histogram) Times() Times {
	if h.n == 0 {
		return Times{}
	}
	mean := h.sum / float64(h.n)
	variance := max(h.sumSq/float64(h.n)-mean*mean, 0)
	return Times{
		Min:    float64(h.min) / 1e6,
		Mean:   mean / 1e3,
		SD:     math.Sqrt(variance) / 1e3,
		Median: h.Quantile(0.5),
		P90:    h.Quantile(0.9),
		P95:    h.Quantile(0.95),
		P99:    h.Quantile(0.99),
		P999:   h.Quantile(0.999),
		Max:    float64(h.max) / 1e6,
	}
}

// Course collects a run's seconds from its workers. It is not safe for concurrent use.
type Course struct {
	workers int
	done    []Second
	open    []*Interval // the seconds after done
}

// Interval is what one worker did in one second, or several workers. It is reused: Reset empties
// it.
type Interval struct {
	Completed, Failed, Lost int64
	total                   *Histogram
	workers                 int // that have handed in this second
}

// NewInterval is empty; its histogram has two significant digits.
func NewInterval() *Interval { return &Interval{total: newHistogram(2)} }

// Complete counts a completed request of that many nanoseconds.
func (i *Interval) Complete(total int64) {
	i.Completed++
	i.total.Record(total)
}

// Reset empties the interval.
func (i *Interval) Reset() {
	if i.Completed > 0 {
		i.total.Reset()
	}
	i.Completed, i.Failed, i.Lost = 0, 0, 0
}

// NewCourse expects each second from this number of workers.
func NewCourse(workers int) *Course { return &Course{workers: workers, done: []Second{}} }

// Add adds a worker's second number index (from 0). Every worker hands in each of its seconds once,
// in order.
func (c *Course) Add(index int, in *Interval) {
	for len(c.done)+len(c.open) <= index {
		c.open = append(c.open, NewInterval())
	}
	s := c.open[index-len(c.done)]
	s.workers++
	s.Completed += in.Completed
	s.Failed += in.Failed
	s.Lost += in.Lost
	s.total.Merge(in.total)
	for len(c.open) > 0 && c.open[0].workers == c.workers {
		c.close()
	}
}

func (c *Course) close() {
	s := c.open[0]
	c.open = c.open[1:]
	c.done = append(c.done, Second{
		At: float64(len(c.done) + 1), Completed: s.Completed, Failed: s.Failed, Lost: s.Lost, P99: s.total.Quantile(0.99),
	})
}

// Series is the course of a run that ended after this number of seconds. Later Adds are
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

// Pace is the schedule of an open loop: request k is due k/PerSecond after the
// start, whatever became of the requests before it.
type Pace struct{ PerSecond float64 }

// never is a time after every run's end.
const never = time.Duration(math.MaxInt64)

// At is when request k (from 0) is due.
func (p Pace) At(k int64) time.Duration {
	at := math.Ceil(float64(k) / p.PerSecond * 1e9)
	if at >= float64(never) || math.IsNaN(at) {
		return never
	}
	return time.Duration(at)
}

// Due returns the number of requests due once elapsed has passed: those with
// At(k) <= elapsed.
func (p Pace) Due(elapsed time.Duration) int64 {
	if elapsed < 0 {
		return 0
	}
	k := int64(elapsed.Seconds()*p.PerSecond) + 1
	// Rounding may be off by one either way; At decides.
	for k > 0 && p.At(k-1) > elapsed {
		k--
	}
	for p.At(k) <= elapsed {
		k++
	}
	return k
}
