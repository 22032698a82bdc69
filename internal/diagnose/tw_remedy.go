package diagnose

import (
	"fmt"
	"math"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// The ways out of a port that comes back too soon. All are advice: they concern other
// machines, or lower what natkit never lowers by itself.
func (e *endpoint) reuseRemedies() []Remedy {
	return []Remedy{
		{
			Title:    "more addresses at the clients' NAT (SNAT to a range)",
			Predicts: "each address has all its ports anew: " + e.portsNeeded(),
			Cost:     "addresses, and the operator of the NAT",
			Risk:     "where the NAT chooses ports at random (Linux, if it does not keep the client's) it only makes them rarer; allow-lists of this server must know the addresses",
		},
		{
			Title:    "more addresses or ports for this service, which clients take by turns",
			Predicts: "each one doubles, triples … the time until a port comes back: " + e.portsNeeded(),
			Cost:     "addresses, DNS or the clients' configuration",
			Risk:     "as before: with ports chosen at random rejections only become rarer",
		},
		{
			Title:    "keep connections open and use them again (HTTP keep-alive, connection pools)",
			Predicts: "ports are taken at the rate of connections, not of requests: with 100 requests a connection a hundredth",
			Cost:     "the clients must speak HTTP/1.1 or pool; the server holds idle connections",
		},
		{
			Title:    "let the clients close first",
			Predicts: "TIME_WAIT is then on their side, where nobody else's SYN meets it",
			Cost:     "a protocol or server setting in which the server does not close after its answer",
			Risk:     "clients hold TIME_WAIT, and need as many ports of their own",
		},
		{
			Title:    "have the NAT keep a closed connection's port for longer than TIME_WAIT (Linux: " + timeWaitTimeout + " of 60 s or more; RFC 6888 asks for 120 s)",
			Predicts: "no port comes back within TIME_WAIT",
			Cost:     "ports are held for so long: the rate times the time are needed",
			Risk:     "where there are too few, connections fail at the NAT instead; Linux 6.6 and later give ports away before their time then, and the fault is back",
		},
		{
			Title:    "have the NAT keep the clients' own source ports: no fully-random or random, which change them all",
			Predicts: "a client that uses its port again goes on with its own timestamps, and is accepted; it matters most with clients that give each connection a timestamp offset of its own (" + offsetPerConnection + ")",
			Cost:     "none where clients rarely have the same port at once",
			Risk:     "two connections at the same moment can be given one port (snat-race)",
		},
		{
			Title:    fmt.Sprintf("a lower %s, which removes TIME_WAIT early", snapshot.TCPMaxTWBuckets),
			Predicts: "fewer tuples that a SYN can meet; at 0 none",
			Risk:     "late segments of a former connection can get into a new one, and a lost last ACK leaves clients in LAST_ACK: what TIME_WAIT is there for",
		},
		{
			Title: fmt.Sprintf("not a cure: %s=0 at the server", snapshot.TCPTimestamps),
			Risk:  "the counter stops and rejections go on: without timestamps TIME_WAIT takes a SYN only if its sequence number is after the old one, which another machine's is in half of the cases; and RTT and PAWS protection are lost",
		},
	}
}

// portsNeeded is the arithmetic of the source with most rejected SYNs, where a trace has
// seen all of them, else of all.
func (e *endpoint) portsNeeded() string {
	rate, of := 0.0, "this server"
	if s, _ := e.syns(); s != nil && len(s.Sources) > 0 && s.Sample == 1 && s.Lost == 0 {
		from := s.Sources[0]
		rate, of = float64(from.SYNs-min(from.SYNs, from.Repeated))/s.Seconds, from.Source
	} else if opened, ok := e.delta(passiveOpens); ok && e.rec.Seconds() > 0 {
		rate = float64(opened) / e.rec.Seconds()
	}
	if rate < 1 {
		return fmt.Sprintf("connections per second × %d s is how many ports are needed", timeWaitSeconds)
	}
	return fmt.Sprintf("%s/s from %s × %d s of TIME_WAIT are %s ports", units.Rate(rate), preposition(of), timeWaitSeconds,
		units.Count(int64(math.Ceil(rate*timeWaitSeconds))))
}

func preposition(of string) string {
	if of == "this server" {
		return "all clients of " + of
	}
	return of
}
