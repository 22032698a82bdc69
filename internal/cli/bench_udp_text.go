package cli

import (
	"bytes"
	"fmt"
	"io"
	"slices"

	"github.com/natkit/natkit/internal/load/udp"
	"github.com/natkit/natkit/internal/report"
)

// writeBenchUDPText renders a result with at least one reply, in the form of bench
// http's.
func writeBenchUDPText(w io.Writer, r *udp.Result) error {
	var b bytes.Buffer
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-24s%s\n", name+":", fmt.Sprintf(format, args...))
	}
	line("Server", "%v", r.Config.To)
	line("Flows", "%d (%d threads)", r.Config.Flows, r.Config.Workers)
	line("Frame Size", "%s", frameWords(r.Config))
	line("Load", "%s", udpLoadWords(r.Config))
	b.WriteByte('\n')
	line("Time taken for tests", "%.3f seconds", r.Seconds)
	writeUDPDelivery(line, r)
	writeUDPRates(line, r)
	writeUDPCost(line, r)
	b.WriteString("\nRound Trip Times (ms)\n")
	writeTimesHead(&b)
	writeTimesRow(&b, "Reply", r.RoundTrip)
	b.WriteString("\nPercentage of the replies that came within a certain time (ms)\n")
	writePercentages(&b, r.RoundTrip, "longest reply")
	_, err := w.Write(b.Bytes())
	return err
}

func frameWords(c udp.Config) string {
	least, most := slices.Min(c.FrameBytes), slices.Max(c.FrameBytes)
	switch {
	case least == most:
		return fmt.Sprintf("%d bytes on Ethernet, FCS included", least)
	case len(c.FrameBytes) <= 8:
		return fmt.Sprintf("%v bytes on Ethernet in turn, FCS included", c.FrameBytes)
	}
	return fmt.Sprintf("%s, %d to %d bytes on Ethernet, FCS included", c.Size, least, most)
}

// udpLoadWords says in one line what was done.
func udpLoadWords(c udp.Config) string {
	words := fmt.Sprintf("%d in flight at once (closed loop)", c.Concurrency)
	if c.Rate > 0 {
		words = fmt.Sprintf("%g datagrams/s on schedule (open loop)", c.Rate)
	}
	switch n := len(c.Sources); {
	case n == 1:
		words += fmt.Sprintf(", from %v", c.Sources[0])
	case n > 1:
		words += fmt.Sprintf(", from %d addresses", n)
	}
	if p := c.SourcePorts; p.Len() > 0 {
		words += fmt.Sprintf(", source ports %d to %d, seed %d", p.First, p.Last, c.Seed)
	}
	return words
}

func writeUDPDelivery(line lineFunc, r *udp.Result) {
	line("Datagrams sent", "%d", r.Sent)
	line("Replies received", "%d", r.Received)
	line("Lost", "%d (%.4g %%)", r.Lost, percent(r.Lost, r.Sent))
	line("Reordered", "%d", r.Reordered)
	line("Duplicated", "%d", r.Duplicated)
	line("Misdelivered", "%d", r.Misdelivered)
	for _, s := range r.MisdeliveredFrom {
		line("  from", "%v %d", s.From, s.Count)
	}
	for _, f := range r.Failures {
		name := "Refused on the way"
		if f.Phase == "send" {
			name = "Refused on sending"
		}
		line(name, "%s %d", f.Reason, f.Count)
	}
	optional := func(name string, n int64) {
		if n > 0 {
			line(name, "%d", n)
		}
	}
	if r.InFlight > 0 {
		line("Interrupted", "%d were still to be answered; they do not count as lost", r.InFlight)
	}
	optional("Too late to classify", r.Late)
	optional("Altered in length", r.Altered)
	optional("Foreign datagrams", r.Foreign)
	optional("Not sent in time", r.Unsent)
	optional("No room in sockets", r.SocketDrops)
}

func percent(part, of int64) float64 {
	if of == 0 {
		return 0
	}
	return 100 * float64(part) / float64(of)
}

func writeUDPRates(line lineFunc, r *udp.Result) {
	line("Datagrams per second", "%.2f sent, %.2f answered (mean)", r.SentPerSecond, r.AnsweredPerSecond)
	if r.Seconds > 0 {
		line("Transfer rate", "%.2f [Mbit/s] of Ethernet frames sent", float64(r.SentFrameBytes)*8/1e6/r.Seconds)
	}
}

func writeUDPCost(line lineFunc, r *udp.Result) {
	own := r.CPU.UserSeconds + r.CPU.SystemSeconds
	n := float64(max(r.Sent, 1))
	line("System calls", "%.2f per datagram and its reply", float64(r.SystemCalls)/n)
	line("CPU", "%.2f us per datagram here, %.2f us on the whole machine", 1e6*own/n, 1e6*r.CPU.MachineSeconds/n)
	line("Memory", "%s at most", report.Bytes(float64(r.CPU.MaxRSSBytes)))
	writeGenerator(line, r.GeneratorLimit, r.CPUContention)
}
