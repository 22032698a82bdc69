package report

import (
	"fmt"

	"github.com/natkit/natkit/internal/simulate"
	"github.com/natkit/natkit/internal/units"
)

// simulationLimit is a rate above which tuples come again too early.
type simulationLimit struct {
	// What comes again, and the seconds for which a tuple is in use.
	What    string
	Seconds float64
	// Tuples are ports times addresses times destinations.
	Tuples   float64
	timeWait bool
}

// Rate is in connections per second.
func (l simulationLimit) Rate() float64 { return l.Tuples / l.Seconds }

func (l simulationLimit) arithmetic() string {
	return fmt.Sprintf("%s ports / %s s", units.Fixed(l.Tuples, 0), trimZero(units.Fixed(l.Seconds, 1)))
}

func trimZero(number string) string {
	if n := len(number); n > 2 && number[n-2:] == ".0" {
		return number[:n-2]
	}
	return number
}

// timeWaitSeconds is how long a TIME_WAIT of a group can stand, 0 where there are none.
// Those that were seen to run out do not tell it where ports come again sooner than that,
// so that the longest never end by themselves.
func timeWaitSeconds(r *simulate.Result, group int) float64 {
	c := &r.Config
	if c.Connection.ClosesFirst == simulate.CloseClient || group >= len(c.Servers) {
		return 0
	}
	weights := 0
	for _, s := range c.Servers {
		weights += s.Count * s.Weight
	}
	s := &c.Servers[group]
	if most := s.MaxTimeWait; most != nil && *most == 0 {
		return 0
	}
	perServer := highestRate(r) * float64(s.Weight) / float64(max(weights, 1))
	return max(r.Servers[group].Life.MaxSeconds, simulate.LongestLife(s.Kernel, perServer).Seconds())
}

// tuplesOf is ports times addresses times what clients call.
func tuplesOf(c *simulate.Config) float64 {
	nat, whole := float64(int(c.NAT.Ports[1])-int(c.NAT.Ports[0])+1)*float64(c.NAT.Addresses), 0
	for _, s := range c.Servers {
		whole += s.Count * s.Addresses
	}
	if c.Balancer != nil {
		whole = c.Balancer.Addresses
	}
	return nat * float64(whole)
}

// limitsOf are those of the NAT's ports; each is a rate at which ports in turn come
// again after just the time for which the former connection is remembered.
func limitsOf(r *simulate.Result) []simulationLimit {
	c := &r.Config
	tuples := tuplesOf(c)
	var all []simulationLimit
	if hold := c.NAT.HoldDown; hold != nil && hold.Duration > 0 {
		all = append(all, simulationLimit{"the NAT holds ports down", hold.Seconds(), tuples, false})
	}
	if c.Balancer != nil {
		all = append(all, simulationLimit{"the balancer knows the session", c.Balancer.Timeout.Seconds(), tuples, false})
	}
	for i, s := range r.Servers {
		if life := timeWaitSeconds(r, i); life > 0 {
			all = append(all, simulationLimit{"TIME_WAIT stands, group " + s.Name, life, tuples, true})
		}
	}
	return all
}

func simulationLimits(r *simulate.Result) *Table {
	t := &Table{Indent: 2, Columns: []Column{{Head: "while"}, {Head: "ports in turn come again at", Right: true}, {Head: "that is", Right: true}}}
	highest := highestRate(r)
	for _, l := range limitsOf(r) {
		rate := Cell{Text: units.Fixed(l.Rate(), 0) + "/s"}
		if highest > l.Rate() {
			rate.Tone = Warn
		}
		t.Cells(Cell{Text: l.What}, Cell{Text: l.arithmetic()}, rate)
	}
	return t
}
