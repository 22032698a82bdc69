package load

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
	// Late counts completed requests whose connection took lateConnect or longer.
	Late       int64
	Unfinished int64
	Received   int64 // bytes, heads included
	Body       int64 // bytes
	// Document is the body of the first completed request, -1 where there is none.
	Document    int64
	SystemCalls int64

	connect, processing, waiting, total *Histogram
	service                             *Histogram // nil in a closed loop
	failures                            *FailureCounts
}

// lateConnect is the first retransmission timeout of a SYN, in nanoseconds (RFC 6298,
// 2.1; TCP_TIMEOUT_INIT), less what the kernel's timers are early by.
const lateConnect = 990_000_000

// NewTally is an empty tally; openLoop adds the time from the actual start.
func NewTally(openLoop bool) *Tally {
	t := &Tally{
		Document: -1,
		connect:  NewHistogram(), processing: NewHistogram(),
		waiting: NewHistogram(), total: NewHistogram(),
		failures: NewFailureCounts(),
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
	if s.Connected-s.Start >= lateConnect {
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
func (t *Tally) Fail(phase PhaseIndex, reason Reason) {
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
