package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/units"
)

// loadLines describe the load of most stages once, and then what is different in
// others.
func loadLines(r *lab.Report) []string {
	common := usualLoad(r)
	var lines []string
	if common != nil {
		lines = append(lines, strings.Join(common, ", "))
	}
	for _, s := range r.Stages {
		if !onlyHTTP(s) {
			exchanges := 0
			for _, l := range s.Loads {
				if l.Exchange != nil {
					exchanges++
					continue
				}
				lines = append(lines, fmt.Sprintf("in %s %s: %s", s.Name, loadName(l), l.Asked))
			}
			if exchanges > 0 {
				lines = append(lines, fmt.Sprintf("in %s %s of exchanges, below", s.Name, units.Plural(exchanges, "load", "loads")))
			}
			continue
		}
		parts := loadParts(s.Config)
		parts = slices.DeleteFunc(parts, func(part string) bool { return slices.Contains(common, part) })
		if len(parts) > 0 {
			lines = append(lines, "in "+s.Name+" "+strings.Join(parts, ", "))
		}
	}
	return lines
}

// usualLoad is what most stages have, the first of them where several are as many; nil
// where no stage has a load of requests alone.
func usualLoad(r *lab.Report) (usual []string) {
	count, most := map[string]int{}, 0
	for _, s := range r.Stages {
		if onlyHTTP(s) {
			count[strings.Join(loadParts(s.Config), ", ")]++
		}
	}
	for _, s := range r.Stages {
		parts := loadParts(s.Config)
		if n := count[strings.Join(parts, ", ")]; onlyHTTP(s) && n > most {
			usual, most = parts, n
		}
	}
	return usual
}

// onlyHTTP reports whether a stage had one load, of requests.
func onlyHTTP(s lab.StageReport) bool {
	return len(s.Loads) == 0 || len(s.Loads) == 1 && s.Loads[0].Kind == lab.LoadHTTP
}

func loadName(l lab.LoadReport) string {
	if l.From == "" {
		return l.Kind
	}
	return l.Kind + " from " + l.From
}

func loadParts(c load.Config) []string {
	parts := []string{units.Count(max(c.Concurrency, 1)) + " concurrent"}
	if c.Requests > 0 {
		parts = append(parts, units.Plural(c.Requests, "request", "requests"))
	}
	if c.Duration > 0 {
		parts = append(parts, "at most "+c.Duration.String())
	}
	if c.Timeout > 0 {
		parts = append(parts, "timeout "+c.Timeout.String()+" per request")
	}
	if c.Rate > 0 {
		parts = append(parts, units.Rate(c.Rate)+" requests/s started")
	}
	if c.Batch > 0 {
		parts = append(parts, "in batches of "+units.Count(c.Batch))
	}
	if n := len(c.Sources); n > 0 && c.Batch > 0 {
		parts = append(parts, "from "+units.Plural(n, "address", "addresses"))
	}
	if n := len(c.ConnectTo); n > 0 {
		parts = append(parts, "to "+units.Plural(n, "address", "addresses"))
	}
	parts = append(parts, closing(c))
	if c.MergeAck {
		parts = append(parts, "request on the handshake's ACK")
	}
	return parts
}

func closing(c load.Config) string {
	switch {
	case c.PerConnection > 0:
		return units.Plural(c.PerConnection, "request", "requests") + " for each connection"
	case c.KeepAlive:
		return "connections kept alive"
	case c.Close == load.CloseClient:
		return "one connection each, closed by the client"
	case c.Close == load.CloseReset:
		return "one connection each, closed by reset"
	}
	return "one connection each, closed by the server"
}
