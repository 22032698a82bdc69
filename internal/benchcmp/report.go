package main

import (
	"bytes"
	"fmt"
	"strings"
	"time"
)

// machine is where the figures were taken.
type machine struct {
	CPU      string
	CPUs     int
	Kernel   string
	Version  string // of natkit
	Date     time.Time
	Versions []string // of the other programs, one line each
}

func (m machine) String() string {
	return fmt.Sprintf("Taken on %s by `make bench`: %s, %d CPUs, Linux %s, natkit %s, %s",
		m.Date.Format(time.DateOnly), m.CPU, m.CPUs, m.Kernel, m.Version, strings.Join(m.Versions, ", "))
}

// figures are what one tool needed, over all rounds.
type figures struct {
	Tool                  string
	PerSecond             []float64
	CPUMicrosPerRequest   []float64
	Failed                int64
	SystemCallsPerRequest float64
	PeakBytes             int64 // with manyConnections
}

// comparison is everything that goes into the document's section.
type comparison struct {
	Machine machine
	Setup   setup
	// Tools has natkit first.
	Tools []figures
}

// verdict is one requirement and what was seen.
type verdict struct {
	What, Seen string
	Met        bool
}

// section is the Markdown between the markers.
func (c comparison) section() (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:\n%s.\n\n", c.Machine, c.Setup)
	fmt.Fprintf(&b, "| | %s |\n|---|%s\n", strings.Join(toolNames(c.Tools), " | "), strings.Repeat("---:|", len(c.Tools)))
	for _, row := range []struct {
		name string
		cell func(figures) (string, error)
	}{
		{"requests/s, median", func(f figures) (string, error) { return medianCell(f.PerSecond, "%.0f") }},
		{"machine CPU per request, median", func(f figures) (string, error) { return medianCell(f.CPUMicrosPerRequest, "%.1f µs") }},
		{"system calls per request", func(f figures) (string, error) { return fmt.Sprintf("%.2f", f.SystemCallsPerRequest), nil }},
		{fmt.Sprintf("peak memory, %d connections", c.Setup.ManyConnections), func(f figures) (string, error) {
			return fmt.Sprintf("%.1f MiB", float64(f.PeakBytes)/(1<<20)), nil
		}},
		{"failed requests, all runs", func(f figures) (string, error) { return fmt.Sprint(f.Failed), nil }},
	} {
		fmt.Fprintf(&b, "| %s |", row.name)
		for _, f := range c.Tools {
			cell, err := row.cell(f)
			if err != nil {
				return "", fmt.Errorf("%s of %s: %w", row.name, f.Tool, err)
			}
			fmt.Fprintf(&b, " %s |", cell)
		}
		b.WriteByte('\n')
	}
	verdicts, err := c.verdicts()
	if err != nil {
		return "", err
	}
	return b.String() + "\n" + verdictTable(verdicts), nil
}

func verdictTable(verdicts []verdict) string {
	var b strings.Builder
	b.WriteString("| required | seen | |\n|---|---|---|\n")
	for _, v := range verdicts {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", v.What, v.Seen, map[bool]string{true: "met", false: "**not met**"}[v.Met])
	}
	return b.String()
}

// verdicts judge natkit against each of the others, so the better of them counts.
func (c comparison) verdicts() ([]verdict, error) {
	var all []verdict
	own := c.Tools[0]
	for _, other := range c.Tools[1:] {
		rate, err := pairedRatio(own.PerSecond, other.PerSecond)
		if err != nil {
			return nil, fmt.Errorf("requests/s against %s: %w", other.Tool, err)
		}
		cpu, err := pairedRatio(own.CPUMicrosPerRequest, other.CPUMicrosPerRequest)
		if err != nil {
			return nil, fmt.Errorf("CPU against %s: %w", other.Tool, err)
		}
		all = append(all,
			verdict{"requests/s ≥ 1.05 × " + other.Tool, rate.String(), rate.Mean >= 1.05},
			verdict{"machine CPU per request ≤ 1 × " + other.Tool, cpu.String(), cpu.Mean <= 1},
			verdict{"fewer system calls per request than " + other.Tool,
				fmt.Sprintf("%.2f against %.2f", own.SystemCallsPerRequest, other.SystemCallsPerRequest),
				own.SystemCallsPerRequest < other.SystemCallsPerRequest},
		)
		if other.Tool == "ab" {
			share := float64(own.PeakBytes) / float64(other.PeakBytes)
			all = append(all, verdict{"peak memory ≤ 0.5 × ab", fmt.Sprintf("%.2f", share), share <= 0.5})
		}
	}
	return all, nil
}

func toolNames(tools []figures) []string {
	var names []string
	for _, f := range tools {
		names = append(names, f.Tool)
	}
	return names
}

func medianCell(x []float64, format string) (string, error) {
	m, err := median(x)
	return fmt.Sprintf(format, m), err
}

// replaceSection puts text between the document's markers for name.
func replaceSection(doc []byte, name, text string) ([]byte, error) {
	begin, end := []byte("<!-- "+name+": begin -->\n"), []byte("<!-- "+name+": end -->\n")
	from := bytes.Index(doc, begin)
	if from < 0 {
		return nil, fmt.Errorf("the document has no line %q", begin)
	}
	from += len(begin)
	length := bytes.Index(doc[from:], end)
	if length < 0 {
		return nil, fmt.Errorf("the document has no line %q after the beginning", end)
	}
	out := bytes.Clone(doc[:from])
	out = append(out, text...)
	return append(out, doc[from+length:]...), nil
}
