package lab

import (
	"fmt"
	"strings"

	"github.com/natkit/natkit/internal/units"
)

// Asked says in a few words what a load sends.
func (l Load) Asked() string {
	var parts []string
	add := func(given bool, format string, args ...any) {
		if given {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	switch {
	case l.Is(LoadNone):
		return "nothing for " + l.For.String()
	case l.Is(LoadHold):
		add(true, "%s held to %s", units.Plural(l.Concurrency, "connection", "connections"), l.To)
	case l.Is(LoadHTTP):
		add(true, "%s, %s concurrent", units.Plural(l.Requests, "request", "requests"), units.Count(l.Concurrency))
		if l.Batch != nil {
			add(true, "in batches of %s", units.Count(l.Batch.Requests))
		}
		add(len(l.Sources) > 0, "from %s", units.Plural(len(l.Sources), "address", "addresses"))
		add(len(l.Servers) > 0, "to %s", units.Plural(len(l.Servers), "address", "addresses"))
		add(l.KeepAlive > 1, "%s for each connection", units.Plural(l.KeepAlive, "request", "requests"))
		add(l.Close != "", "closed by %s", l.Close)
	case l.Is(LoadExchange):
		add(true, "%s, %s to %s", l.Exchange.Name, units.Plural(l.Requests, l.Exchange.protocol()+" exchange", l.Exchange.protocol()+" exchanges"), l.To)
	default:
		add(true, "%s to %s", l.what(), l.To)
		add(l.Requests > 0, "%s in all", units.Count(l.Requests))
		add(l.Flows > 0 || l.SourcePorts != (Ports{}), "%s", units.Plural(l.FlowCount(), "flow", "flows"))
		add(l.Rate > 0, "%s/s", units.Rate(l.Rate))
	}
	add(l.For.Duration > 0, "for %s", l.For)
	add(l.Timeout.Duration > 0, "timeout %s", l.Timeout)
	return strings.Join(parts, ", ")
}

func (l Load) what() string {
	switch {
	case l.Is(LoadUDP):
		return "datagrams"
	case l.TCP != "":
		return "TCP packets (" + l.TCP + ")"
	}
	return "UDP packets"
}
