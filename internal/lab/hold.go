package lab

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// openTimeout limits the opening of a held connection if the load does not set it.
const openTimeout = 2 * time.Second

// UntilAllStand reports whether a load of kind hold has no time of its own: it opens its connections,
// verifies and closes them.
func (l Load) UntilAllStand() bool { return l.Is(LoadHold) && l.For == 0 }

// Holding is what a load of kind hold does within limit, the shorter one of its own time and of the stage's.
func (l Load) Holding(limit time.Duration) load.HoldConfig {
	c := load.HoldConfig{
		To: l.To.Addr(), Ports: nat.Ports{First: l.To.Port(), Last: l.To.Port() + uint16(max(l.Ports, 1)-1)},
		Connections: l.Concurrency, Duration: limit, Keep: limit, Timeout: cmp.Or(l.Timeout, openTimeout), Verify: l.Verify,
		Close: load.CloseClient, Sources: l.Sources, SourcePorts: nat.Ports(l.SourcePorts), Seed: l.Seed, Workers: l.Workers,
	}
	if l.UntilAllStand() {
		// Without TIME_WAIT the next stage may have the same addresses and ports.
		c.Keep, c.Close = l.Keep, load.CloseReset
	}
	return c
}

// Connections is the greatest number that a load holds until all of them stand; 0 where none does.
func (s *Scenario) Connections() (most int) {
	for i := range s.Stages {
		for _, l := range s.LoadsOf(&s.Stages[i]) {
			if l.UntilAllStand() {
				most = max(most, l.Concurrency)
			}
		}
	}
	return most
}

// scale multiplies the connections that are held, and with them what fills have and leave and the buckets
// of the host, within their bounds: the stages then show the same of another number. Limits of the host stay.
func (s *Scenario) scale(by float64) {
	times := func(n int64) int64 { return max(int64(math.Round(float64(n)*by)), min(n, 1)) }
	held := func(l *Load) {
		if l.UntilAllStand() {
			l.Concurrency = int(times(int64(l.Concurrency)))
		}
	}
	held(&s.Load)
	for i := range s.Stages {
		st := &s.Stages[i]
		for j := range st.Loads { // a copy already
			held(&st.Loads[j])
		}
		if st.Fill != nil {
			f := *st.Fill
			f.Entries, f.Free = times(f.Entries), times(f.Free)
			st.Fill = &f
		}
		if text, given := st.Host[snapshot.ConntrackBuckets]; given {
			n, _ := strconv.ParseInt(text, 10, 64) // checked before
			st.Host = maps.Clone(st.Host)
			st.Host[snapshot.ConntrackBuckets] = strconv.FormatInt(min(max(times(n), capacity.BucketStep), maxHostValue), 10)
		}
	}
}

const (
	// heldBytes is what the kernel and natkit take for a connection of which both ends are on this machine, and
	// that a gateway tracks: two sockets with their files, entries in epolls and in the hashes of ports, and an
	// entry of the connection table.
	heldBytes = 2 * capacity.EndBytes
	// spareShare of the available memory stays free, and that number of files.
	spareShare = 0.1
	spareFiles = 10_000
)

// CheckHold refuses more connections than memory, in bytes, and open files, of the whole machine, are there for.
func CheckHold(connections int, memory, files int64) error {
	fits := func(n int64) string {
		n -= n % max(int64(math.Pow10(len(strconv.FormatInt(n, 10))-2)), 1) // two digits
		return fmt.Sprintf("use --connections %d", max(n, 1))
	}
	n := int64(connections)
	if usable := int64(float64(memory) * (1 - spareShare)); n*heldBytes > usable {
		return fmt.Errorf("hold %s connections: they take about %s, of the %s available: %s",
			units.Count(n), units.Bytes(n*heldBytes), units.Bytes(memory), fits(usable/heldBytes))
	}
	if usable := files - spareFiles; 2*n > usable {
		return fmt.Errorf("hold %s connections: both ends are %s open files, and fs.file-max leaves %s: raise it, or %s",
			units.Count(n), units.Count(2*n), units.Count(files), fits(usable/2))
	}
	return nil
}

// HeldReport is what a load of kind hold came to.
type HeldReport struct {
	*load.HoldResult
	// Memory is by how much the kernel's slab caches grew until all connections stood, those of most bytes first.
	Memory []HeldMemory `json:"memory,omitempty"`
	// MemoryPerConnection is their sum for each connection that was established, in bytes; both ends count.
	MemoryPerConnection float64 `json:"memory_per_connection,omitempty"`
}

// HeldMemory is a slab cache of the kernel.
type HeldMemory struct {
	Cache         string  `json:"cache"`
	Bytes         int64   `json:"bytes"`
	PerConnection float64 `json:"bytes_per_connection"`
}

// smallCache is the share of all growth below which a cache is not reported.
const smallCache = 0.005

// Weigh adds to a report which slab caches grew, from their sizes before and with all connections.
func (h *HeldReport) Weigh(before, held map[string]int64) {
	if h.Established == 0 {
		return
	}
	n, sum := float64(h.Established), int64(0)
	for name, bytes := range held {
		if grown := bytes - before[name]; grown > 0 {
			sum += grown
			h.Memory = append(h.Memory, HeldMemory{Cache: name, Bytes: grown, PerConnection: float64(grown) / n})
		}
	}
	h.MemoryPerConnection = float64(sum) / n
	h.Memory = slices.DeleteFunc(h.Memory, func(m HeldMemory) bool { return float64(m.Bytes) < smallCache*float64(sum) })
	slices.SortFunc(h.Memory, func(a, b HeldMemory) int { return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Cache, b.Cache)) })
}

// Whole reports whether all connections stood, and all that were asked were alive.
func (h *HeldReport) Whole() bool {
	return h.Established == int64(h.Config.Connections) && h.Lost == 0 && h.Alive == int64(h.Config.Verify)
}

// RateAt is the rate of new connections while so many stood: between the seconds of the course before and after
// which there were as many. 0 where there never were.
func (h *HeldReport) RateAt(open int64) float64 {
	at := 0.0
	for _, s := range h.Series {
		if s.Open >= open && s.At > at {
			return float64(s.Completed) / (min(s.At, max(h.OpenSeconds, at+0.001)) - at)
		}
		at = s.At
	}
	return 0
}

// LastRate is the rate of new connections in the last second in which more could be opened.
func (h *HeldReport) LastRate() float64 {
	at, rate := 0.0, 0.0
	for _, s := range h.Series {
		if s.At > at && at < h.OpenSeconds {
			rate = float64(s.Completed) / (min(s.At, h.OpenSeconds) - at)
		}
		at = s.At
	}
	return rate
}

// Of is what a slab cache grew by for each connection, in bytes; 0 where that is not reported.
func (h *HeldReport) Of(cache string) float64 {
	if i := slices.IndexFunc(h.Memory, func(m HeldMemory) bool { return m.Cache == cache }); i >= 0 {
		return h.Memory[i].PerConnection
	}
	return 0
}

// Held is the first load of a stage that held connections until all of them stood; nil where there is none.
func (s *StageReport) Held() *HeldReport {
	for i := range s.Loads {
		if h := s.Loads[i].Held; h != nil {
			return h
		}
	}
	return nil
}

func (c *checker) hold(path []any, l Load, limited bool) {
	ports := int64(max(l.Ports, 1))
	if l.For == 0 && !limited {
		c.fail(append(path, "for"), "expected load.for, or a limit of the stage: with one of them kind %s ends", LoadHold)
	}
	if l.For > 0 && (l.Keep > 0 || l.Verify > 0) {
		c.fail(append(path, "keep"), "for and keep or verify are mutually exclusive: connections are kept until for is over")
	}
	if last := int64(l.To.Port()) + ports - 1; last > math.MaxUint16 {
		c.fail(append(path, "ports"), "expected ports up to %d, found %d from %d on", math.MaxUint16, ports, l.To.Port())
	}
	pool := int64(max(len(l.Sources), 1)) * l.SourcePorts.Len() * ports
	if l.SourcePorts != (Ports{}) && int64(l.Concurrency) > pool {
		c.fail(append(path, "concurrency"), "%s connections: %s × %s × %s are only %s; expected more sources, source_ports or ports",
			units.Count(l.Concurrency), units.Plural(max(len(l.Sources), 1), "source", "sources"), units.Plural(l.SourcePorts.Len(), "source port", "source ports"),
			units.Plural(ports, "port", "ports"), units.Count(pool))
	}
}
