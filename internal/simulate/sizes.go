package simulate

import (
	"fmt"
	"time"
)

// checkSizes bounds memory and time, once each value by itself makes sense.
func (c *Config) checkSizes(k *checker) {
	f := c.filled()
	destinations := 0
	if f.Balancer != nil {
		destinations = f.Balancer.Addresses
	} else {
		for _, s := range f.Servers {
			destinations += s.Count * s.Addresses
		}
	}
	slots := f.NAT.Addresses * destinations * (int(f.NAT.Ports[1]) - int(f.NAT.Ports[0]) + 1)
	k.need(slots > 0 && slots <= mostSlots, fmt.Sprintf("at most %d ports of all addresses toward all destinations, not %d", mostSlots, slots), "nat")
	points := f.Duration.Duration / f.Interval.Duration
	k.need(points <= mostPoints, fmt.Sprintf("an interval that makes at most %d points, not %d", mostPoints, points), "interval")
	k.need(c.total() <= mostConns, fmt.Sprintf("at most %.0g connections in all", float64(mostConns)), "duration")
	if waiting := f.waiting(); waiting > mostWaiting {
		k.need(false, fmt.Sprintf("clients of which at most %d can wait for an answer at once (the highest rate by how long they repeat a SYN), not %.0f; with syn: {timeout: 5s} they give up sooner",
			mostWaiting, waiting), "clients")
	}
}

// waiting is how many connections may be under way without an answer: where the NAT has
// no port for them they are as many as begin while a client repeats its SYN.
func (c *Config) waiting() float64 {
	longest := int64(0)
	for i := range c.Clients {
		sum := int64(0)
		for _, wait := range c.Clients[i].SYN.waits(c.Clients[i].SYN.First.Duration) {
			sum += wait
		}
		longest = max(longest, sum)
	}
	if c.Arrivals != nil {
		return c.Arrivals.peak() / float64(c.Connection.Requests) * seconds(longest)
	}
	most := 0.0
	for _, b := range c.Batches {
		most = max(most, min(b.Rate*seconds(longest), float64(b.Connections)))
	}
	return most
}

// peak is not less than the highest rate of the curve.
func (a *Arrivals) peak() float64 {
	most := a.Rate
	for _, r := range a.Hours {
		most = max(most, r)
	}
	if a.Daily != nil {
		most = max(most, a.Daily.Low, a.Daily.High)
	}
	for _, p := range a.Points {
		most = max(most, p.Rate)
	}
	return most
}

// total is about how many connections there will be.
func (c *Config) total() float64 {
	total := 0.0
	for _, b := range c.Batches {
		total += float64(b.Connections)
	}
	if a := c.Arrivals; a != nil {
		const parts = 100
		for n := range parts {
			part := c.Duration.Duration / parts
			total += a.At(c.Start.Duration, time.Duration(n)*part+part/2) * part.Seconds()
		}
	}
	return total
}
