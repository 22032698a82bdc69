package capacity

import (
	"cmp"
	"math"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
)

// TimeWaitClass is the class in which TCP connections end that were closed by FINs.
const TimeWaitClass = "tcp/TIME_WAIT"

// Lifetime returns how long an entry that was created in this class occupies its place,
// in seconds: the timeout of the state in which it ends
// (Documentation/networking/nf_conntrack-sysctl.rst). A TCP connection seen
// established will be closed in time and then stay for time_wait.
func Lifetime(class string, sysctls snapshot.Sysctls) float64 {
	seconds, known := lifetimes[class]
	switch {
	case known:
	case strings.HasPrefix(class, "tcp/"):
		class, seconds = TimeWaitClass, lifetimes[TimeWaitClass]
	default:
		class, seconds = "", 600
	}
	return float64(cmp.Or(sysctls.ClassTimeout(class), seconds))
}

// lifetimes are the kernel's defaults, in seconds.
var lifetimes = map[string]uint32{
	TimeWaitClass: 120, "tcp/CLOSE": 10, "tcp/SYN_SENT": 120, "tcp/SYN_SENT2": 120, "tcp/SYN_RECV": 60,
	"udp/unreplied": 30, "udp/stream": 120, "icmp": 30, "icmpv6": 30,
}

// passing are the states of TCP that an entry leaves soon, by its next packet or its timeout.
var passing = []string{"TIME_WAIT", "SYN_SENT", "SYN_RECV", "CLOSE", "LAST_ACK", "FIN_WAIT", "CLOSE_WAIT"}

// Scale turns a number of the entries that were sampled of a table into one of all count.
func Scale(t *snapshot.ConntrackTable, count int64) float64 {
	return float64(count) / float64(t.Sampled)
}

// Held counts the entries of a recording's end that are not explained by a class that expires soon:
// established connections and the like. count is that of the table.
func Held(rec *snapshot.Recording, count int64) int64 {
	t := rec.Last().Table
	if t == nil || t.Sampled == 0 {
		return count
	}
	soon := int64(0)
	for _, state := range passing {
		soon += t.ByTCPState[state]
	}
	return ceil(float64(count) - math.Floor(float64(soon)*Scale(t, count)))
}

// Arriving is the number of entries that the new flows of a recording lead to where they last. count is that
// of the table.
func Arriving(rec *snapshot.Recording, count int64) int64 {
	if rec.Flows == nil {
		return 0
	}
	return Steady(ClassesOf(rec), Groups(rec, count))
}

// ClassesOf are the new entries of a recording.
func ClassesOf(rec *snapshot.Recording) (classes []Class) {
	for name, rate := range rec.Flows.PerSecond {
		classes = append(classes, Class{Name: name, PerSecond: rate, LifetimeSeconds: Lifetime(name, rec.Last().Sysctls)})
	}
	return classes
}

// Groups is the greatest number of (source, service) pairs that the new entries
// can come from: where the table was sampled, each unseen entry may be of a pair
// of its own. 0 means unknown. count is that of the table.
func Groups(rec *snapshot.Recording, count int64) int64 {
	f := rec.Flows
	if f == nil || f.Sampled == 0 {
		return 0
	}
	return int64(float64(f.Groups) * max(1, float64(count)/float64(f.Sampled)))
}

// Wrap is how many connections per second use so many ports up, each of which is held for some seconds: beyond
// it ports that are given in turn come again while they are still held. +Inf where they are not held at all.
func Wrap(ports int64, heldSeconds float64) float64 {
	if heldSeconds <= 0 {
		return math.Inf(1)
	}
	return float64(ports) / heldSeconds
}

// Tuples is a number of ports on so many addresses, toward so many destinations, bounded by an int64.
func Tuples(ports, addresses, destinations int64) int64 {
	return ceil(float64(ports) * float64(addresses) * float64(destinations))
}

// PortsFor is how many ports toward one destination connections hold that are spread over so many: held ones, and
// new ones that keep theirs for heldSeconds after their end.
func PortsFor(held int64, perSecond, heldSeconds float64, destinations int64) int64 {
	return ceil((float64(held) + perSecond*heldSeconds) / float64(destinations))
}

// AddressesFor is how many addresses have that many ports toward one destination, 1 at least.
func AddressesFor(needed, ports int64) int64 { return max(1, ceil(float64(needed)/float64(ports))) }

// ceil is the whole number from v on, at most the greatest int64 and 0 where v is none.
func ceil(v float64) int64 {
	switch {
	case !(v > 0):
		return 0
	case v >= math.MaxInt64:
		return math.MaxInt64
	}
	return int64(math.Ceil(v))
}
