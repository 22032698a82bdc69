package report

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// The schemas of what the verbs that make load print as JSON.
const (
	HTTPLoadSchema    = "natkit.bench-http/1"
	ConnectLoadSchema = "natkit.bench-connect/1"
	HoldLoadSchema    = "natkit.bench-hold/1"
	UDPLoadSchema     = "natkit.bench-udp/1"
	PacketsLoadSchema = "natkit.bench-packets/1"
	ServedSchema      = "natkit.bench-serve/1"
	HeldSchema        = "natkit.bench-serve-tcp/1"
)

// LoadHead is what stands before the result in the document of a run.
type LoadHead struct {
	Schema  string `json:"schema"`
	Version string `json:"natkit_version"`
	// Command does the same again, as a shell takes it.
	Command string `json:"command,omitempty"`
	// Netns is where the load came from.
	Netns snapshot.Netns `json:"netns,omitzero"`
}

// loadText is the result of a run: labelled values in the words and the order of ab, with
// what ab does not report after them, and tables of times.
type loadText struct {
	printer
	table Table
	// grouped numbers have separators; ab's have none.
	grouped bool
}

func newLoadText(w io.Writer, style Style) *loadText {
	return &loadText{printer: printer{w: w, style: style}, table: Table{Columns: []Column{{Min: 22}, {}}}}
}

func (t *loadText) line(name, format string, args ...any) { t.toned(Plain, name, format, args...) }

func (t *loadText) toned(tone Tone, name, format string, args ...any) {
	t.table.Cells(Cell{Text: name + ":"}, Cell{fmt.Sprintf(format, args...), tone})
}

// some is a line for a number that is usually 0, and then left out.
func (t *loadText) some(name string, n int64, format string) {
	text := fmt.Sprint(n)
	if t.grouped {
		text = units.Count(n)
	}
	if n > 0 {
		t.line(name, format, text)
	}
}

// cost prints what each of n requests or datagrams cost this process.
func (t *loadText) cost(one string, n, calls int64, cpu load.CPU) {
	per := 1e6 / float64(max(n, 1))
	t.line("System calls", "%.2f per %s", per*float64(calls)/1e6, one)
	t.line("CPU", "%.2f us per %s here, %.2f us on the whole machine", per*(cpu.UserSeconds+cpu.SystemSeconds), one, per*cpu.MachineSeconds)
	t.line("Memory", "%s at most", units.Bytes(cpu.MaxRSSBytes))
}

// remarks are why the generator was the limit, and whatever else has to be known.
func (t *loadText) remarks(limit string, notes ...string) {
	if limit != "" {
		t.toned(Warn, "Generator", "THE LIMIT: %s", limit)
	}
	for _, note := range notes {
		if note != "" {
			t.line("Note", "%s", note)
		}
	}
}

// write writes the lines.
func (t *loadText) write() error {
	t.printer.table(&t.table)
	return t.err
}

// namedTimes is a row of a table of times.
type namedTimes struct {
	name string
	load.Times
}

// times writes ab's tables of times, in milliseconds; the percentages are those of the
// row total, of which longest is the last.
func (t *loadText) times(title, of, longest string, total load.Times, note string, rows ...namedTimes) error {
	table := &Table{Columns: []Column{{Min: 10}, {Head: "min", Right: true, Min: 9}, {Head: "mean", Right: true, Min: 9},
		{Head: "[+/-sd]", Right: true, Min: 8}, {Head: "median", Right: true, Min: 9}, {Head: "max", Right: true, Min: 9}}}
	millis := func(v float64) string { return fmt.Sprintf("%.3f", v) }
	for _, r := range rows {
		table.Row(r.name+":", millis(r.Min), millis(r.Mean), millis(r.SD), millis(r.Median), millis(r.Max))
	}
	t.heading(title + " (ms)")
	t.printer.table(table)
	if note != "" {
		t.printer.line(note)
	}
	t.heading("Percentage of the " + of + " within a certain time (ms)")
	table = &Table{Columns: []Column{{Right: true, Min: 7}, {Right: true, Min: 9}, {}}}
	for _, p := range []struct {
		name  string
		value float64
	}{{"50%", total.Median}, {"90%", total.P90}, {"95%", total.P95}, {"99%", total.P99}, {"99.9%", total.P999}} {
		table.Row(p.name, millis(p.value))
	}
	table.Row("100%", millis(total.Max), "("+longest+")")
	t.printer.table(table)
	return t.err
}

// outcome is what became of requests or connections.
func (t *loadText) outcome(what string, r *load.Result) {
	t.table.Row()
	t.line("Time taken for tests", "%.3f seconds", r.Seconds)
	t.line("Complete "+what, "%d", r.Completed)
	t.line("Failed "+what, "%d", r.Failed)
	t.phases(r.Failures)
	t.late(r.ConnectLate)
	t.some("Unfinished at the end", r.Unfinished, "%s")
	if r.FirstFailureSeconds >= 0 {
		t.line("First failure", "after %.3f seconds; %.2f [#/sec] completed from then on", r.FirstFailureSeconds, r.AfterFirstFailurePerSecond)
	}
}

func (t *loadText) phases(failures []load.Failure) {
	for _, f := range failures {
		t.line("  "+string(f.Phase), "%s %d", f.Reason, f.Count)
	}
}

func (t *loadText) late(n int64) {
	t.some("Late connections", n, "%s took a second or more: their SYN was retransmitted")
}

// HTTPLoad writes the result of a run with at least one completed request.
func HTTPLoad(w io.Writer, style Style, r *load.Result) error {
	t, c := newLoadText(w, style), r.Config
	if r.Server != "" {
		t.line("Server Software", "%s", r.Server)
	}
	t.line("URL", "%s", c.URL)
	t.line("Document Length", "%d bytes", r.DocumentBytes)
	t.line("Concurrency Level", "%d (%s)", c.Concurrency, units.Plural(c.Workers, "thread", "threads"))
	t.line("Load", "%s", httpLoad(c))
	if c.MergeAck {
		t.line("Note", "--merge-ack: one packet fewer per connection, not comparable with runs without it")
	}
	t.outcome("requests", r)
	t.line("Total transferred", "%d bytes", r.BytesReceived)
	t.line("HTML transferred", "%d bytes", r.BodyBytes)
	t.line("Requests per second", "%.2f [#/sec] (mean)", r.RequestsPerSecond)
	if c.Rate == 0 {
		per := 1000 * r.Seconds / float64(r.Completed)
		t.line("Time per request", "%.3f [ms] (mean)", per*float64(c.Concurrency))
		t.line("Time per request", "%.3f [ms] (mean, across all concurrent requests)", per)
	}
	t.line("Requests in flight", "%.1f (mean)", r.MeanInFlight)
	t.line("Transfer rate", "%.2f [Kbytes/sec] received", float64(r.BytesReceived)/1024/r.Seconds)
	t.cost("request", r.Completed+r.Failed, r.SystemCalls, r.CPU)
	t.remarks(r.GeneratorLimit, r.CPUContention)
	if err := t.write(); err != nil {
		return err
	}
	rows, note := []namedTimes{{"Connect", r.Connect}, {"Processing", r.Processing}, {"Waiting", r.Waiting}, {"Total", r.Total}}, ""
	if r.ServiceTotal != nil {
		rows = append(rows, namedTimes{"Service", *r.ServiceTotal})
		note = "Connect and Total count from when a request was due, Service from when it began."
	}
	return t.times("Connection Times", "requests served", "longest request", r.Total, note, rows...)
}

// ConnectLoad writes the result of a run of connections with at least one that was completed.
func ConnectLoad(w io.Writer, style Style, r *load.Result) error {
	t, c := newLoadText(w, style), r.Config
	to, err := load.ParseTarget(c.URL)
	if err != nil {
		return err
	}
	if r.Server != "" {
		t.line("Server Software", "%s", r.Server)
	}
	t.line("Server", "%s", to.HostPort())
	t.line("Concurrency Level", "%d (%s)", c.Concurrency, units.Plural(c.Workers, "thread", "threads"))
	t.line("Load", "%s", httpLoad(c))
	if c.MergeAck {
		t.line("Note", "--merge-ack: one packet fewer per connection, not comparable with runs without it")
	}
	t.outcome("connections", r)
	t.line("Connections per second", "%.2f [#/sec] (mean)", r.RequestsPerSecond)
	t.line("Connections open", "%.1f (mean)", r.MeanInFlight)
	t.cost("connection", r.Completed+r.Failed, r.SystemCalls, r.CPU)
	t.remarks(r.GeneratorLimit, r.CPUContention)
	if err := t.write(); err != nil {
		return err
	}
	rows, note := []namedTimes{{"Connect", r.Connect}, {"Close", r.Processing}, {"Total", r.Total}}, ""
	if !c.NoRequest {
		rows[1].name = "Request"
	}
	if r.ServiceTotal != nil {
		rows = append(rows, namedTimes{"Service", *r.ServiceTotal})
		note = "Connect and Total count from when a connection was due, Service from when it began."
	}
	return t.times("Connection Times", "connections", "longest connection", r.Total, note, rows...)
}

// HoldLoad writes the result of a run that held at least one connection.
func HoldLoad(w io.Writer, style Style, r *load.HoldResult) error {
	t, c := newLoadText(w, style), r.Config
	t.line("Server", "%v, %s %v", c.To, map[bool]string{true: "port", false: "ports"}[c.Ports.Len() == 1], c.Ports)
	t.line("Connections", "%d (%s)", c.Connections, units.Plural(r.Threads, "thread", "threads"))
	t.line("Load", "%s", holdLoad(c))
	t.table.Row()
	t.line("Time taken for tests", "%.3f seconds", r.Seconds)
	t.line("Established", "%d in %.3f seconds, %.2f [#/sec] (mean)", r.Established, r.OpenSeconds, r.OpenPerSecond)
	t.line("Failed", "%d", r.Failed)
	t.line("Lost", "%d", r.Lost)
	t.phases(r.Failures)
	t.late(r.Late)
	t.some("Taken", r.Taken, "%s combinations of addresses and ports were in use; others were taken")
	t.some("Unfinished at the end", r.Unfinished, "%s")
	t.line("Verified", "%d returned a byte, of %d", r.Alive, r.Verified)
	t.line("Closed", "%d in %.3f seconds", r.Closed, r.CloseSeconds)
	t.line("Open by second", "%s", openText(r.Series))
	if r.BytesPerConnection > 0 {
		t.line("Memory", "%.0f bytes per connection here, %s at most", r.BytesPerConnection, units.Bytes(r.CPU.MaxRSSBytes))
	}
	if r.Before != nil && r.Held != nil && r.After != nil {
		t.line("Kernel's sockets", "%s before, %s held, %s after", socketText(r.Before, r.PageBytes), socketText(r.Held, r.PageBytes), socketText(r.After, r.PageBytes))
	}
	t.line("System calls", "%.2f per connection", float64(r.SystemCalls)/float64(max(r.Established+r.Failed, 1)))
	t.line("CPU", "%.2f us per connection here, %.2f us on the whole machine",
		1e6*(r.CPU.UserSeconds+r.CPU.SystemSeconds)/float64(max(r.Established, 1)), 1e6*r.CPU.MachineSeconds/float64(max(r.Established, 1)))
	t.remarks(r.GeneratorLimit, r.CPUContention)
	if err := t.write(); err != nil {
		return err
	}
	rows := []namedTimes{{"Connect", r.Connect}}
	if r.Alive > 0 {
		rows = append(rows, namedTimes{"Byte", r.RoundTrip})
	}
	return t.times("Connection Times", "connections", "longest connect", r.Connect, "", rows...)
}

// openText is the course of the open connections, at ten moments at most.
func openText(series []load.HeldSecond) string {
	var texts []string
	for i := range series {
		if step := (len(series) + 9) / 10; (i+1)%step == 0 || i+1 == len(series) {
			texts = append(texts, fmt.Sprintf("%.3g s: %d", series[i].At, series[i].Open))
		}
	}
	return strings.Join(texts, ", ")
}

func socketText(s *snapshot.TCPSockets, pageBytes int) string {
	return fmt.Sprintf("%d (%s of buffers)", s.InUse+s.InUse6, units.Bytes(s.MemoryPages*int64(pageBytes)))
}

func holdLoad(c load.HoldConfig) string {
	text := fmt.Sprintf("%d at once", c.Concurrency)
	if c.Rate > 0 {
		text = fmt.Sprintf("%g connections/s on schedule (open loop)", c.Rate)
	}
	text += fmt.Sprintf(", kept %s, then %s", c.Keep, closesText(c.Close))
	if c.SourcePorts.Len() > 0 {
		text += fmt.Sprintf(", source ports %v, seed %d", c.SourcePorts, c.Seed)
	}
	return text + fromText(c.Sources)
}

func closesText(m load.CloseMode) string {
	return cmp.Or(map[load.CloseMode]string{load.CloseClient: "the client closes", load.CloseReset: "the client closes with a reset"}[m], "the server closes")
}

// Held writes what a server that holds connections saw.
func Held(w io.Writer, style Style, h *load.Held) error {
	t := newLoadText(w, style)
	t.line("Accepted", "%d", h.Accepted)
	t.line("Most at once", "%d", h.Peak)
	t.line("Bytes returned", "%d", h.Returned)
	t.line("Closed here", "%d", h.Closed)
	t.line("Closed by the peer", "%d", h.ByPeer)
	t.line("Reset by the peer", "%d", h.Reset)
	for _, f := range h.Failures {
		t.line("Not accepted", "%s %d", f.Reason, f.Count)
	}
	t.line("Memory", "%s at most", units.Bytes(h.CPU.MaxRSSBytes))
	if n := float64(h.Accepted); n > 0 {
		t.line("System calls", "%.2f per connection", float64(h.SystemCalls)/n)
		t.line("CPU", "%.2f us per connection", 1e6*(h.CPU.UserSeconds+h.CPU.SystemSeconds)/n)
	}
	return t.write()
}

func httpLoad(c load.Config) string {
	closes := closesText(c.Close)
	text := "one connection per request, " + closes
	if c.NoRequest {
		text = "no request, " + closes
	}
	switch {
	case c.PerConnection > 0:
		text = fmt.Sprintf("%d requests per connection (keep-alive), then %s", c.PerConnection, closes)
	case c.KeepAlive:
		text = "many requests per connection (keep-alive)"
	}
	if c.Rate > 0 {
		what := "requests"
		if c.NoRequest {
			what = "connections"
		}
		text += fmt.Sprintf(", %g %s/s on schedule (open loop)", c.Rate, what)
	} else {
		text += ", closed loop"
	}
	if c.Batch > 0 {
		text += fmt.Sprintf(", batches of %d with %s between", c.Batch, c.Pause)
	}
	if n := len(c.ConnectTo); n > 0 {
		text += ", to " + units.Plural(n, "address", "addresses")
	}
	return text + fromText(c.Sources)
}

func fromText(sources []netip.Addr) string {
	switch n := len(sources); n {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf(", from %v", sources[0])
	default:
		return fmt.Sprintf(", from %d addresses", n)
	}
}

// UDPLoad writes the result of a run with at least one reply.
func UDPLoad(w io.Writer, style Style, r *packets.UDPResult) error {
	t, c := newLoadText(w, style), r.Config
	t.line("Server", "%v", c.To)
	t.line("Flows", "%d (%s)", c.Flows, units.Plural(c.Workers, "thread", "threads"))
	t.line("Frames", "%s", frameText(c.FrameBytes))
	text := fmt.Sprintf("%d in flight at once (closed loop)", c.Concurrency)
	if c.Rate > 0 {
		text = fmt.Sprintf("%g datagrams/s on schedule (open loop)", c.Rate)
	}
	text += fromText(c.Sources)
	if c.SourcePorts.Len() > 0 {
		text += fmt.Sprintf(", source ports %v, seed %d", c.SourcePorts, c.Seed)
	}
	t.line("Load", "%s", text)
	t.table.Row()
	t.line("Time taken for tests", "%.3f seconds", r.Seconds)
	t.line("Datagrams sent", "%d", r.Sent)
	t.line("Replies received", "%d", r.Received)
	t.line("Lost", "%d (%.4g %%)", r.Lost, 100*float64(r.Lost)/float64(max(r.Sent, 1)))
	t.line("Reordered", "%d", r.Reordered)
	t.line("Duplicated", "%d", r.Duplicated)
	t.line("Misdelivered", "%d", r.Misdelivered)
	t.failures(r.MisdeliveredFrom, r.Failures)
	t.some("Interrupted", r.InFlight, "%s without a reply yet, which do not count as lost")
	t.some("Too late to classify", r.Late, "%s")
	t.some("Altered in length", r.Altered, "%s")
	t.some("Foreign datagrams", r.Foreign, "%s")
	t.some("Not sent in time", r.Unsent, "%s")
	t.some("No room in sockets", r.SocketDrops, "%s")
	t.line("Datagrams per second", "%.2f sent, %.2f answered (mean)", r.SentPerSecond, r.AnsweredPerSecond)
	if r.Seconds > 0 {
		t.line("Transfer rate", "%.2f [Mbit/s] of Ethernet frames sent", float64(r.SentFrameBytes)*8/1e6/r.Seconds)
	}
	t.cost("datagram and its reply", r.Sent, r.SystemCalls, r.CPU)
	t.remarks(r.GeneratorLimit, r.CPUContention)
	if err := t.write(); err != nil {
		return err
	}
	return t.times("Round Trip Times", "replies that came", "longest reply", r.RoundTrip, "", namedTimes{"Reply", r.RoundTrip})
}

// failures prints where misdelivered datagrams came from, and errors by what refused them.
func (t *loadText) failures(from []packets.Sender, failures []load.Failure) {
	for _, s := range from {
		t.line("  from", "%v %d", s.From, s.Count)
	}
	for _, f := range failures {
		name := "Refused on the way"
		if f.Phase == load.Send {
			name = "Refused on sending"
		}
		t.line(name, "%s %d", f.Reason, f.Count)
	}
}

// frameText returns the frame sizes and their frequencies.
func frameText(sizes []int) string {
	distinct := slices.Compact(slices.Sorted(slices.Values(sizes)))
	var parts []string
	for _, size := range distinct {
		n := 0
		for _, s := range sizes {
			if s == size {
				n++
			}
		}
		parts = append(parts, fmt.Sprintf("%d (%d of %d)", size, n, len(sizes)))
	}
	text := strings.Join(parts, ", ")
	switch n := len(distinct); {
	case n == 1:
		text = fmt.Sprint(distinct[0])
	case n > 4:
		text = fmt.Sprintf("%d to %d (%d sizes)", distinct[0], distinct[n-1], n)
	}
	return text + " bytes on Ethernet, FCS included"
}

// Served writes what a server of datagrams saw.
func Served(w io.Writer, style Style, s *packets.Served) error {
	t := newLoadText(w, style)
	t.line("Datagrams received", "%d", s.Received)
	t.line("Answered", "%d", s.Answered)
	t.some("Not answered", s.Public, "%s from public addresses (see --i-own-this-network)")
	t.some("Not answered", s.Foreign, "%s that were no requests of bench udp")
	t.failures(nil, s.Failures)
	t.line("No room in sockets", "%d", s.SocketDrops)
	if s.Expected != nil {
		t.line("Misdelivered", "%d", s.Misdelivered)
		t.failures(s.MisdeliveredFrom, nil)
		t.line("Different senders", "%d", s.Sources)
	}
	if n := float64(s.Received); n > 0 {
		t.line("System calls", "%.2f per datagram", float64(s.SystemCalls)/n)
		t.line("CPU", "%.2f us per datagram", 1e6*(s.CPU.UserSeconds+s.CPU.SystemSeconds)/n)
	}
	return t.write()
}

// PacketsResult is the result of a run of generated packets, with what follows from it.
type PacketsResult struct {
	*packets.Result
	SentRates     packets.BitRates  `json:"sent_rates"`
	ReceivedRates *packets.BitRates `json:"received_rates,omitempty"`
	// BadShare is of what was sent: lost, which misdelivered and corrupted packets
	// are, and duplicated.
	BadShare *float64 `json:"bad_share,omitempty"`
	// MaxLoss is the share that was allowed.
	MaxLoss         *float64 `json:"max_loss_share,omitempty"`
	MaxLossExceeded bool     `json:"max_loss_exceeded,omitempty"`
}

// JudgePackets completes a result; maxLoss is nil where any loss is allowed.
func JudgePackets(r *packets.Result, maxLoss *float64) PacketsResult {
	p := PacketsResult{Result: r, SentRates: r.SentBits()}
	if r.To == "" || r.Sent == 0 {
		return p
	}
	rates, bad := r.ReceivedBits(), float64(r.Lost+r.Duplicated)/float64(r.Sent)
	p.ReceivedRates, p.BadShare, p.MaxLoss = &rates, &bad, maxLoss
	p.MaxLossExceeded = maxLoss != nil && bad > *maxLoss
	return p
}

// Text writes what was sent, what became of it, and the rates.
func (r PacketsResult) Text(w io.Writer, style Style) error {
	t, c := newLoadText(w, style), r.Config
	t.grouped = true
	t.line("Packets", "%s", packetsText(c))
	t.line("Frames", "%s", frameText(c.Spec.Sizes))
	if c.Bare {
		t.line("From", "%s", r.From)
	} else {
		t.line("Flows", "%s, seed %d", units.Count(c.Flows.Count), c.Flows.Seed)
		t.line("From", "%s%s, ports %v", r.From, strings.Replace(fromText(c.Flows.Sources), "from ", "", 1), c.Flows.SourcePorts)
		t.line("To", "%v", c.Flows.Destinations[0])
	}
	t.line("Counted at", "%s", cmp.Or(r.To, "nowhere (no --sink)"))
	load := "as fast as possible"
	if c.Rate > 0 {
		load = units.Rate(c.Rate) + " packets/s on schedule"
	}
	t.line("Load", "%s, from %s", load, units.Plural(c.Workers, "CPU", "CPUs"))
	if c.Verify {
		t.line("Expected on arrival", "source %s, destination %s, valid checksums", endRule(c.Expect.Source), endRule(c.Expect.Destination))
	}
	t.table.Row()
	t.line("Time taken", "%.3f seconds", r.Seconds)
	t.line("Packets sent", "%s", units.Count(r.Sent))
	if r.To != "" {
		t.line("Packets received", "%s", units.Count(r.Received))
	}
	if r.To != "" && !c.Bare { // bare frames cannot be distinguished from others
		t.delivery(r)
	}
	t.rates(r)
	t.remarks(r.GeneratorLimit, r.Notes...)
	return t.write()
}

// packetsText describes the packets.
func packetsText(c packets.Config) string {
	s := c.Spec
	if c.Bare {
		return "one frame, repeated (--bare)"
	}
	text := "UDP"
	if len(s.TCPFlags) > 0 {
		text = "TCP " + flagsText(s.TCPFlags)
	}
	if s.IPv6 {
		text += " over IPv6"
	} else {
		text += " over IPv4"
	}
	if s.VLAN != 0 {
		text += fmt.Sprintf(" in VLAN %d", s.VLAN)
	}
	if s.DSCP != 0 {
		text += fmt.Sprintf(", DSCP %d", s.DSCP)
	}
	return text + fmt.Sprintf(", TTL %d", s.HopLimit)
}

// flagsText is a cycle of flags as --tcp reads it.
func flagsText(cycle []frame.TCPFlags) string {
	var parts []string
	for i := 0; i < len(cycle); {
		n := 1
		for i+n < len(cycle) && cycle[i+n] == cycle[i] {
			n++
		}
		text := cycle[i].String()
		if n > 1 {
			text += fmt.Sprintf(":%d", n)
		}
		parts = append(parts, text)
		i += n
	}
	return strings.Join(parts, ",")
}

// endRule is an expected end, nearly as the flags have it.
func endRule(e packets.End) string {
	text := "any"
	switch {
	case e.Address == packets.Same:
		text = "same"
	case e.Address == packets.Inside && e.Prefix.IsSingleIP():
		text = e.Prefix.Addr().String()
	case e.Address == packets.Inside:
		text = e.Prefix.String()
	case e.Address == packets.Netmap:
		text = "netmap:" + e.Prefix.String()
	}
	switch {
	case e.Port == packets.Inside:
		text += " port " + e.Ports.String()
	case e.Port == packets.Same && e.Address != packets.Same:
		text += " port same"
	}
	return text
}

// badArrivals count packets that arrived, but not as they should; all count as lost.
func badArrivals(r *packets.Result) []portion {
	return slices.DeleteFunc([]portion{{r.Misdelivered, "misdelivered"}, {r.Corrupted.IPChecksum, "IP checksum wrong"}, {r.Corrupted.Checksum, "checksum wrong"},
		{r.Corrupted.Partial, "checksum partial"}}, func(p portion) bool { return p.n == 0 })
}

// Missing is why none of the packets arrived as it should.
func (r PacketsResult) Missing() string {
	return cmp.Or(counts(badArrivals(r.Result)...), "none arrived at all")
}

func (t *loadText) delivery(r PacketsResult) {
	count := func(name string, n int64, tone Tone) {
		text := "0"
		if n > 0 {
			text = fmt.Sprintf("%s (%s)", units.Count(n), units.Percent(float64(n)/float64(r.Sent)))
		} else {
			tone = Plain
		}
		t.toned(tone, name, "%s", text)
	}
	count("Lost", r.Lost, Bad)
	never := r.Lost
	for _, bad := range badArrivals(r.Result) {
		never -= bad.n
		text := units.Count(bad.n)
		switch {
		case bad.what == "misdelivered" && len(r.MisdeliveredAs) > 0:
			text += fmt.Sprintf(": the first from %v to %v", r.MisdeliveredAs[0].Source, r.MisdeliveredAs[0].Destination)
		case bad.what == "checksum partial":
			text += ": left to a network card, which XDP programs bypass: ethtool -K IF tx off where they are made"
		}
		t.toned(Bad, "  "+bad.what, "%s", text)
	}
	if never < r.Lost {
		t.some("  never arrived", never, "%s")
	}
	count("Duplicated", r.Duplicated, Bad)
	count("Reordered", r.Reordered, Warn)
	t.some("Late", r.Late, fmt.Sprintf("%%s: more than %d behind the newest of their flow, so reordered or duplicated", packets.Window))
	t.some("Other packets", r.OtherPackets, "%s arrived at the sink and were passed on")
	if r.MaxLoss == nil {
		return
	}
	verdict, tone := "kept:", Good
	if r.MaxLossExceeded {
		verdict, tone = fmt.Sprintf("EXCEEDED: %s lost or duplicated,", units.Count(r.Lost+r.Duplicated)), Bad
	}
	t.toned(tone, "Allowed loss", "%s --max-loss %g allows %s", verdict, *r.MaxLoss, units.Count(int64(*r.MaxLoss*float64(r.Sent))))
}

// rates are none where all of the packets went ahead to find the receiver.
func (t *loadText) rates(r PacketsResult) {
	if r.SentPerSecond == 0 {
		return
	}
	rate := func(name string, perSecond float64, bits packets.BitRates) {
		t.line(name, "%s packets/s, %s Gbit/s (%s with preambles and gaps)", units.Rate(perSecond), units.Fixed(bits.Frames/1e9, 3), units.Fixed(bits.Line/1e9, 3))
	}
	rate("Send rate", r.SentPerSecond, r.SentRates)
	if r.ReceivedRates != nil {
		rate("Receive rate", r.ReceivedPerSecond, *r.ReceivedRates)
	}
	if r.Config.Rate == 0 {
		t.line("Time per packet", "%s ns (mean, across all CPUs that send)", units.Fixed(1e9/r.SentPerSecond, 1))
	}
	if r.GeneratorNanoseconds > 0 {
		t.line("  in the generator", "%s ns", units.Fixed(r.GeneratorNanoseconds, 1))
	}
	if r.SinkNanoseconds > 0 {
		t.line("  in the sink", "%s ns", units.Fixed(r.SinkNanoseconds, 1))
	}
}
