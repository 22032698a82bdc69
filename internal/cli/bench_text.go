package cli

import (
	"bytes"
	"fmt"
	"io"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/report"
)

// writeBenchText renders a result with at least one completed request in the words and the order of ab, so that its
// users find their way, with what ab does not tell after it.
func writeBenchText(w io.Writer, r *load.Result) error {
	var b bytes.Buffer
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-24s%s\n", name+":", fmt.Sprintf(format, args...))
	}
	if r.Server != "" {
		line("Server Software", "%s", r.Server)
	}
	line("URL", "%s", r.Config.URL)
	line("Document Length", "%d bytes", r.DocumentBytes)
	line("Concurrency Level", "%d (%d threads)", r.Config.Concurrency, r.Config.Workers)
	line("Load", "%s", loadWords(r.Config))
	if r.Config.MergeAck {
		line("Note", "--merge-ack: one packet fewer per connection, not comparable with runs without it")
	}
	b.WriteByte('\n')
	writeBenchTotals(line, r)
	writeBenchCost(line, r)
	b.WriteByte('\n')
	writeBenchTimes(&b, r)
	_, err := w.Write(b.Bytes())
	return err
}

// loadWords says in one line what was done.
func loadWords(c load.Config) string {
	words := "one connection per request"
	switch {
	case c.PerConnection > 0:
		words = fmt.Sprintf("%d requests per connection (keep-alive), then the %s closes", c.PerConnection, whoCloses(c.Close))
	case c.KeepAlive:
		words = "many requests per connection (keep-alive)"
	case c.Close == load.CloseClient:
		words += ", the client closes"
	case c.Close == load.CloseReset:
		words += ", the client closes with a reset"
	default:
		words += ", the server closes"
	}
	if c.Rate > 0 {
		words += fmt.Sprintf(", %g requests/s on schedule (open loop)", c.Rate)
	} else {
		words += ", closed loop"
	}
	if c.Batch > 0 {
		words += fmt.Sprintf(", batches of %d with %s between", c.Batch, c.Pause)
	}
	if n := len(c.Sources); n > 0 {
		words += fmt.Sprintf(", from %d addresses", n)
	}
	if n := len(c.ConnectTo); n > 0 {
		words += fmt.Sprintf(", to %d addresses", n)
	}
	return words
}

func whoCloses(c load.CloseMode) string {
	switch c {
	case load.CloseClient:
		return "client"
	case load.CloseReset:
		return "client, with a reset,"
	}
	return "server"
}

type lineFunc func(name, format string, args ...any)

func writeBenchTotals(line lineFunc, r *load.Result) {
	line("Time taken for tests", "%.3f seconds", r.Seconds)
	line("Complete requests", "%d", r.Completed)
	line("Failed requests", "%d", r.Failed)
	for _, f := range r.Failures {
		line("  "+string(f.Phase), "%s %d", f.Reason, f.Count)
	}
	if r.ConnectLate > 0 {
		line("Late connections", "%d took a second or more: their SYN was sent again", r.ConnectLate)
	}
	if r.Unfinished > 0 {
		line("Unfinished at the end", "%d", r.Unfinished)
	}
	if r.FirstFailureSeconds >= 0 {
		line("First failure", "after %.3f seconds; %.2f [#/sec] completed from then on",
			r.FirstFailureSeconds, r.AfterFirstFailurePerSecond)
	}
	line("Total transferred", "%d bytes", r.BytesReceived)
	line("HTML transferred", "%d bytes", r.BodyBytes)
	line("Requests per second", "%.2f [#/sec] (mean)", r.RequestsPerSecond)
	if r.Config.Rate == 0 {
		per := 1000 * r.Seconds / float64(r.Completed)
		line("Time per request", "%.3f [ms] (mean)", per*float64(r.Config.Concurrency))
		line("Time per request", "%.3f [ms] (mean, across all concurrent requests)", per)
	}
	line("Requests in flight", "%.1f (mean)", r.MeanInFlight)
	line("Transfer rate", "%.2f [Kbytes/sec] received", float64(r.BytesReceived)/1024/r.Seconds)
}

func writeBenchCost(line lineFunc, r *load.Result) {
	own := r.CPU.UserSeconds + r.CPU.SystemSeconds
	n := float64(r.Completed + r.Failed)
	line("System calls", "%.2f per request", float64(r.SystemCalls)/n)
	line("CPU", "%.1f us per request here, %.1f us on the whole machine", 1e6*own/n, 1e6*r.CPU.MachineSeconds/n)
	line("Memory", "%s at most", report.Bytes(float64(r.CPU.MaxRSSBytes)))
	writeGenerator(line, r.GeneratorLimit, r.CPUContention)
}

// writeGenerator says why the generator was the limit, and who else used the CPUs;
// both may be empty.
func writeGenerator(line lineFunc, limit, contention string) {
	if limit != "" {
		line("Generator", "THE LIMIT: %s", limit)
	}
	if contention != "" {
		line("Note", "%s", contention)
	}
}

func writeBenchTimes(b *bytes.Buffer, r *load.Result) {
	b.WriteString("Connection Times (ms)\n")
	writeTimesHead(b)
	writeTimesRow(b, "Connect", r.Connect)
	writeTimesRow(b, "Processing", r.Processing)
	writeTimesRow(b, "Waiting", r.Waiting)
	writeTimesRow(b, "Total", r.Total)
	if r.ServiceTotal != nil {
		writeTimesRow(b, "Service", *r.ServiceTotal)
		b.WriteString("Connect and Total count from when a request was due, Service from when it began.\n")
	}
	b.WriteString("\nPercentage of the requests served within a certain time (ms)\n")
	writePercentages(b, r.Total, "longest request")
}

func writeTimesHead(b *bytes.Buffer) {
	fmt.Fprintf(b, "%-11s %10s %10s %9s %10s %10s\n", "", "min", "mean", "[+/-sd]", "median", "max")
}

func writeTimesRow(b *bytes.Buffer, name string, t load.Times) {
	fmt.Fprintf(b, "%-11s %10.3f %10.3f %9.3f %10.3f %10.3f\n", name+":", t.Min, t.Mean, t.SD, t.Median, t.Max)
}

// writePercentages has ab's table; longest is what its last line is about.
func writePercentages(b *bytes.Buffer, t load.Times, longest string) {
	for _, p := range []struct {
		name  string
		value float64
	}{
		{"50%", t.Median}, {"90%", t.P90}, {"95%", t.P95},
		{"99%", t.P99}, {"99.9%", t.P999}, {"100%", t.Max},
	} {
		note := ""
		if p.name == "100%" {
			note = fmt.Sprintf(" (%s)", longest)
		}
		fmt.Fprintf(b, "%7s %10.3f%s\n", p.name, p.value, note)
	}
}
