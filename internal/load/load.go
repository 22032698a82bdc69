// Package load describes HTTP load and what came of it: configuration, pacing,
// histograms, HTTP parsing. It sends nothing; internal/load/run does.
package load

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/natkit/natkit/internal/nat"
)

// CloseMode is the side that closes a connection first, which decides who keeps it in
// TIME_WAIT and which conntrack timeout holds.
type CloseMode string

const (
	// CloseServer waits for the server's FIN (HTTP/1.0, as ab).
	CloseServer CloseMode = "server"
	// CloseClient closes as soon as the response is complete, or without a request as soon
	// as the connection stands.
	CloseClient CloseMode = "client"
	// CloseReset closes with RST.
	CloseReset CloseMode = "rst"
)

func (m CloseMode) known() bool { return m == CloseServer || m == CloseClient || m == CloseReset }

func (m CloseMode) unknown() error {
	return fmt.Errorf("close mode %q: must be client, server or rst", m)
}

// ParseCloseMode reads a mode; "fin" is another word for "client".
func ParseCloseMode(text string) (CloseMode, error) {
	m := CloseMode(text)
	if text == "fin" {
		m = CloseClient
	}
	if !m.known() {
		return "", errors.New("must be client (or fin), server or rst")
	}
	return m, nil
}

// Config is one run of HTTP load. The zero value of a field means the default
// given with it.
type Config struct {
	URL string `json:"url"`
	// Concurrency is the number of connections open at once; 1.
	Concurrency int `json:"concurrency"`
	// Requests to send in all; 0 means until Duration ends.
	Requests int64 `json:"requests"`
	// Duration bounds the run; 0 means until Requests are done.
	Duration time.Duration `json:"duration_ns"`
	// Timeout bounds each request from (intended) start to last byte; 30 s.
	Timeout time.Duration `json:"timeout_ns"`
	// KeepAlive sends many requests over one connection.
	KeepAlive bool `json:"keep_alive"`
	// PerConnection ends a kept connection after this number of requests, by the side that Close names;
	// 0 means never.
	PerConnection int `json:"requests_per_connection,omitempty"`
	// NoRequest sends nothing: a connection is closed as soon as it stands, and counts as
	// a request. With CloseServer it waits for the server to close.
	NoRequest bool      `json:"no_request,omitempty"`
	Close     CloseMode `json:"close"`
	// Batch cuts the requests into pieces of this size. The next piece begins when all of
	// the last one are over and Pause has passed; 0 means that all are one piece.
	Batch int64         `json:"batch,omitempty"`
	Pause time.Duration `json:"pause_ns,omitempty"`
	// Rate in requests per second makes the run an open loop whose latency
	// counts from the intended start; 0 means closed loop.
	Rate float64 `json:"rate_per_second"`
	// Sources are local addresses that connections take in turn; empty lets the
	// kernel choose. A socket that is used again keeps its address, at no cost,
	// unless a worker has more addresses than connections: then each connection
	// binds anew, one system call more.
	Sources []netip.Addr `json:"sources,omitempty"`
	// ConnectTo are addresses that connections go to in turn, at the URL's port, instead
	// of to the URL's host.
	ConnectTo []netip.Addr `json:"connect_to,omitempty"`
	// MergeAck lets the request ride on the handshake's ACK (TCP_QUICKACK off):
	// one packet fewer per connection, not comparable with runs without it.
	MergeAck bool `json:"merge_ack"`
	// Workers is the number of threads; the number of CPUs.
	Workers int `json:"workers"`
	// SourcePorts are taken in an order that Seed determines, each with each of
	// the Sources before one comes again; zero leaves the port to the kernel, which
	// is faster: a port of natkit's choice takes a new socket for each connection
	// and two more system calls.
	SourcePorts nat.Ports `json:"source_ports,omitzero"`
	// Seed makes the order of the sources, and of SourcePorts, repeatable.
	Seed uint64 `json:"seed"`
	// AbortAfter ends the run with an error after this number of connections that failed
	// other than by a timeout, where none succeeded before; 0 means never.
	AbortAfter int `json:"abort_after,omitempty"`
}

// Phase is a part of a request's life, as in ab's table.
type Phase string

const (
	// Connect lasts from the intended start until the connection stands.
	Connect Phase = "connect"
	// Send is the writing of the request.
	Send Phase = "send"
	// Wait lasts from the sent request to the first byte of the response.
	Wait Phase = "wait"
	// Read lasts from the first byte to the last, the server's FIN included
	// where the server closes.
	Read Phase = "read"
	// Reply stands for responses that arrived but were wrong.
	Reply Phase = "reply"
	// Keep, Verify and Close are the parts of the life of a connection that is held:
	// nothing is sent, a byte has to come back, the end.
	Keep   Phase = "keep"
	Verify Phase = "verify"
	Close  Phase = "close"
)

// Failure counts requests that failed in one way.
type Failure struct {
	Phase Phase `json:"phase"`
	// Reason is "timed out", "refused", "reset", "no local port", another
	// errno's text in lower case, or what was wrong with the reply.
	Reason string `json:"reason"`
	Count  int64  `json:"count"`
}

// Times summarises one histogram, in milliseconds.
type Times struct {
	Min    float64 `json:"min"`
	Mean   float64 `json:"mean"`
	SD     float64 `json:"sd"`
	Median float64 `json:"median"`
	P90    float64 `json:"p90"`
	P95    float64 `json:"p95"`
	P99    float64 `json:"p99"`
	P999   float64 `json:"p99_9"`
	Max    float64 `json:"max"`
}

// Second is one point of a run's course.
type Second struct {
	// At is the end of the interval, in seconds since the run's start.
	At        float64 `json:"at_seconds"`
	Completed int64   `json:"completed"`
	Failed    int64   `json:"failed"`
	// Lost are held connections that ended before they were closed.
	Lost int64 `json:"lost,omitempty"`
	// P99 of the total time in this interval, in milliseconds; 0 where nothing completed.
	P99 float64 `json:"p99_ms"`
}

// Result is what a run found. Times count completed requests only.
type Result struct {
	Config  Config  `json:"config"`
	Server  string  `json:"server_software,omitempty"`
	Seconds float64 `json:"seconds"`
	// Completed requests got a complete 2xx response in time; ab's other words
	// for failures are classes of Failures.
	Completed int64 `json:"completed"`
	Failed    int64 `json:"failed"`
	// Unfinished requests were under way, or due (open loop), when the run ended.
	Unfinished        int64   `json:"unfinished"`
	RequestsPerSecond float64 `json:"requests_per_second"`
	// MeanInFlight is the mean number of requests between their start and their
	// end, failed ones included: a little less than Concurrency in a closed loop,
	// because the generator itself takes time and its connections come and go.
	MeanInFlight  float64   `json:"mean_in_flight,omitempty"`
	BytesReceived int64     `json:"bytes_received"`
	BodyBytes     int64     `json:"body_bytes"`
	DocumentBytes int64     `json:"document_bytes"`
	Failures      []Failure `json:"failures"`
	// FirstFailureSeconds since the start; -1 where nothing failed.
	FirstFailureSeconds float64 `json:"first_failure_seconds"`
	// AfterFirstFailurePerSecond is the rate of completed requests from the first
	// failure to the end: what is still admitted.
	AfterFirstFailurePerSecond float64 `json:"after_first_failure_per_second"`
	Connect                    Times   `json:"connect_ms"`
	// ConnectLate is how many completed requests waited a second or more for their
	// connection: the time after which TCP sends a SYN again (RFC 6298).
	ConnectLate int64 `json:"connect_late"`
	Processing  Times `json:"processing_ms"`
	Waiting     Times `json:"waiting_ms"`
	Total       Times `json:"total_ms"`
	// ServiceTotal counts from the actual start where Rate is given, so that it
	// can be compared with Total, which counts from the intended one.
	ServiceTotal *Times   `json:"service_total_ms,omitempty"`
	Series       []Second `json:"series"`
	// CPU of this process and of the whole machine during the run, in seconds.
	CPU CPU `json:"cpu"`
	// GeneratorLimit is the reason why the generator, not the server, was the limit; empty
	// where it was not.
	GeneratorLimit string `json:"generator_limit,omitempty"`
	// CPUContention reports that other processes, such as a server on the same machine,
	// used much of its CPUs, or that packets did; empty where that was not so.
	CPUContention string `json:"cpu_contention,omitempty"`
	// SystemCalls made by the workers for the run's requests.
	SystemCalls int64 `json:"system_calls"`
}

// Progress is where a run stands.
type Progress struct {
	Elapsed time.Duration
	// Completed and Failed requests since the start.
	Completed, Failed int64
	// PerSecond is the rate of completed requests since the last report.
	PerSecond float64
	// InFlight requests were sent or are connecting now.
	InFlight int64
}

// String is one line for people.
func (p Progress) String() string {
	return fmt.Sprintf("%.0f s: %d completed, %d failed, %.0f requests/s, %d in flight",
		p.Elapsed.Seconds(), p.Completed, p.Failed, p.PerSecond, p.InFlight)
}

// CPU is processor time in seconds, and memory.
type CPU struct {
	UserSeconds    float64 `json:"user_seconds"`
	SystemSeconds  float64 `json:"system_seconds"`
	MachineSeconds float64 `json:"machine_busy_seconds"`
	// OtherShare is the share of the machine's CPUs, 0 to 1, that other processes used, a
	// server on the same machine among them; 0 where that was not watched.
	OtherShare float64 `json:"other_cpu_share,omitempty"`
	// MaxRSSBytes is the greatest memory of the whole process during the run; over
	// its life so far where /proc/self/clear_refs cannot be written.
	MaxRSSBytes int64 `json:"max_rss_bytes"`
}

// Permutation is an order of the numbers from 0 to n-1 that seems random and needs
// no memory.
type Permutation struct{ n, step, start uint64 }

// NewPermutation makes the one of a seed. n is at most 2^32.
func NewPermutation(n, seed uint64) Permutation {
	if n < 2 {
		return Permutation{n: n}
	}
	random := rand.New(rand.NewPCG(seed, n))
	p := Permutation{n: n, start: random.Uint64N(n)}
	// Steps of a length that has no factor in common with n meet every number once.
	for p.step = 1 + random.Uint64N(n-1); gcd(p.step, n) != 1; {
		p.step = 1 + random.Uint64N(n-1)
	}
	return p
}

// At is the k-th number; after n numbers they come again.
func (p Permutation) At(k uint64) uint64 {
	if p.n == 0 {
		return 0
	}
	return (p.start + k%p.n*p.step) % p.n
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
