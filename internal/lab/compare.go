package lab

import (
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/load/packets"
)

// Compare is about the stages whose packets are counted where they arrive and have no rate: how fast
// they forward, how much of the time is the gateway's, and how often as fast as another they are.
type Compare struct {
	// With is the stage that the others are compared with.
	With string `yaml:"with" json:"with" check:"required stage"`
	// Alone is the stage in which the packets arrive before the gateway: what a packet takes longer
	// in others is the gateway's time.
	Alone string `yaml:"alone" json:"alone" check:"required stage"`
	// Rounds is how often they run, in turn, as a machine is not always as fast: what counts is the
	// median.
	Rounds int `yaml:"rounds" json:"rounds" check:"required 1..15"`
}

// Arrive is where the packets of a load arrive. Each is accounted for, and its checksums are checked.
type Arrive struct {
	// Node is where; its interface that leads back to the sender takes them all.
	Node string `yaml:"node" check:"required node"`
	// As is their destination there; the one that they are sent to where it is not valid.
	As netip.AddrPort `yaml:"as" check:"lab"`
}

// Redirect is an XDP program at a node that forwards all frames between two neighbours: what remains of
// a router without routes, rules and translation.
type Redirect struct {
	Node   string `yaml:"node" check:"required node"`
	From   string `yaml:"from" check:"required node"`
	Toward string `yaml:"toward" check:"required node"`
}

// flatOut reports whether a load sends as fast as it can, and counts what arrives.
func (l Load) flatOut() bool { return l.Is(LoadPackets) && l.Arrive != nil && l.Rate == 0 }

// translates reports whether its packets arrive with another destination than they are sent to.
func (l Load) translates() bool { return l.Arrive.As.IsValid() && l.Arrive.As != l.To }

// Compared reports whether a stage is one of those that are compared.
func (s *Scenario) Compared(st *Stage) bool {
	return s.Compare != nil && slices.ContainsFunc(s.LoadsOf(st), Load.flatOut)
}

// Rounds are the stages in the order in which they run: those that are compared in each round, the others in the last
// one.
func (s *Scenario) Rounds() (all []*Stage) {
	rounds := 1
	if s.Compare != nil {
		rounds = s.Compare.Rounds
	}
	for round := range rounds {
		for i := range s.Stages {
			if st := &s.Stages[i]; round == rounds-1 || s.Compared(st) {
				all = append(all, st)
			}
		}
	}
	return all
}

// Delivery is what became of a load whose packets are counted where they arrive.
type Delivery struct {
	Node string `json:"node"`
	packets.Delivery
	Corrupted packets.Corrupted `json:"corrupted"`
	// PerSecond are the packets that arrived, in each round.
	PerSecond []float64 `json:"per_second"`
	// Translates reports whether they arrive with another destination than they are sent to.
	Translates bool `json:"translates"`
}

// Wrong is how many arrived and should not have arrived like that.
func (d *Delivery) Wrong() int64 {
	return d.Misdelivered + d.Corrupted.Total() + d.Duplicated + d.Reordered + d.Late
}

// add adds what arrived in another round.
func (d *Delivery) add(o *Delivery) {
	d.Sent, d.Received, d.Lost = d.Sent+o.Sent, d.Received+o.Received, d.Lost+o.Lost
	d.Misdelivered, d.Duplicated, d.Reordered, d.Late = d.Misdelivered+o.Misdelivered, d.Duplicated+o.Duplicated, d.Reordered+o.Reordered, d.Late+o.Late
	d.Corrupted.IPChecksum, d.Corrupted.Checksum, d.Corrupted.Partial = d.Corrupted.IPChecksum+o.Corrupted.IPChecksum, d.Corrupted.Checksum+o.Corrupted.Checksum, d.Corrupted.Partial+o.Corrupted.Partial
	d.PerSecond = append(d.PerSecond, o.PerSecond...)
}

// DeliveryOf is what became of a load of packets.
func DeliveryOf(l Load, r *packets.Result) *Delivery {
	return &Delivery{Node: l.Arrive.Node, Delivery: r.Delivery, Corrupted: r.Corrupted, PerSecond: []float64{r.ReceivedPerSecond}, Translates: l.translates()}
}

// Delivery is that of the first load whose packets were counted; nil where there is none.
func (s *StageReport) Delivery() *Delivery {
	for _, l := range s.Loads {
		if l.Delivery != nil {
			return l.Delivery
		}
	}
	return nil
}

// AddRound adds a stage's report to one of an earlier round, or to the others.
func (r *Report) AddRound(s StageReport) {
	earlier := r.Stage(s.Name)
	if earlier == nil || earlier.Delivery() == nil || s.Delivery() == nil {
		r.Stages = append(r.Stages, s)
		return
	}
	was := earlier.Loads
	for i := range was {
		now := &s.Loads[i]
		now.Seconds, now.Sent = now.Seconds+was[i].Seconds, now.Sent+was[i].Sent
		if d := was[i].Delivery; d != nil {
			d.add(now.Delivery)
			now.Delivery = d
		}
	}
	s.Result.Seconds, s.Completed, s.Failed = s.Result.Seconds+earlier.Result.Seconds, s.Completed+earlier.Completed, s.Failed+earlier.Failed
	s.OtherCPU = max(s.OtherCPU, earlier.OtherCPU)
	for name, n := range earlier.Counters {
		s.Counters[name] += n
	}
	s.RequestsPerSecond = median(s.Delivery().PerSecond)
	*earlier = s
}

// Comparison is a stage beside those that others are compared with.
type Comparison struct {
	// PerSecond are packets that arrived, the median of the rounds.
	PerSecond float64 `json:"packets_per_second"`
	// GatewayNanoseconds is the time of the gateway for a packet, the median of the rounds.
	GatewayNanoseconds float64 `json:"gateway_ns_per_packet"`
	// Times is how often as fast as the stage With it is, by the medians.
	Times float64 `json:"times"`
}

// CompareStages adds to a report how its stages compare.
func (s *Scenario) CompareStages(r *Report) {
	if s.Compare == nil {
		return
	}
	with, alone := r.Stage(s.Compare.With), r.Stage(s.Compare.Alone)
	if with == nil || alone == nil || with.Delivery() == nil || alone.Delivery() == nil {
		return
	}
	r.Compared = s.Compare
	most := median(with.Delivery().PerSecond)
	for i := range r.Stages {
		st := &r.Stages[i]
		if declared, ok := s.Stage(st.Name); !ok || !s.Compared(declared) {
			continue
		}
		d := st.Delivery()
		c := &Comparison{PerSecond: median(d.PerSecond)}
		if most > 0 {
			c.Times = c.PerSecond / most
		}
		if st != alone {
			c.GatewayNanoseconds = median(longer(d.PerSecond, alone.Delivery().PerSecond))
		}
		st.Comparison = c
	}
}

// longer is how many nanoseconds more a packet took in each round.
func longer(rates, alone []float64) (all []float64) {
	for i := range min(len(rates), len(alone)) {
		if rates[i] > 0 && alone[i] > 0 {
			all = append(all, 1e9/rates[i]-1e9/alone[i])
		}
	}
	return all
}

// median is 0 of none.
func median(of []float64) float64 {
	if len(of) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(of))
	half := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[half]
	}
	return (sorted[half-1] + sorted[half]) / 2
}

func (c *checker) compare(path []any) {
	for _, one := range []struct{ key, name string }{{"with", c.s.Compare.With}, {"alone", c.s.Compare.Alone}} {
		if st, ok := c.s.Stage(one.name); ok && !c.s.Compared(st) {
			c.fail(append(path, one.key), "stage %q: expected one with a load of packets that has arrive: and no rate", one.name)
		}
	}
	for i := range c.s.Stages {
		st := &c.s.Stages[i]
		if !c.s.Compared(st) {
			continue
		}
		switch {
		case len(c.s.LoadsOf(st)) > 1:
			c.fail(at("stages", i, "loads"), "stage %q is compared: expected one load", st.Name)
		case st.Doctor != nil || st.Apply != "" || st.Apart || st.Remedy != nil || len(st.Trace) > 0:
			c.fail(at("stages", i), "stage %q is compared: expected no doctor, apply, apart, remedy or trace, which would slow it or be repeated", st.Name)
		}
	}
}

func (c *checker) arrive(path []any, l Load) {
	switch as := l.Arrive.As; {
	case l.Arrive.Node == l.From:
		c.fail(append(path, "node"), "expected another node than the one that the packets come from")
	case as.IsValid() && as.Addr().BitLen() != l.To.Addr().BitLen():
		c.fail(append(path, "as"), "address %s: expected one of the family of load.to", as.Addr())
	}
}

func (c *checker) redirect(path []any, st Stage) {
	r := st.Redirect
	for _, one := range []struct{ key, neighbour string }{{"from", r.From}, {"toward", r.Toward}} {
		if _, linked := c.s.faceToward(r.Node, one.neighbour); !linked {
			c.fail(append(path, one.key), "no link between %s and %s", r.Node, one.neighbour)
		}
	}
	if st.Gateway != nil && st.Gateway.Node == r.Node {
		c.fail(path, "redirect and gateway are mutually exclusive at a node: the program would forward all packets itself")
	}
}

// RedirectEnd is one of the two interfaces of a redirect, and the address of the neighbour that it leads to.
type RedirectEnd struct {
	Interface string
	Neighbour netip.Addr
}

// Ends are those of a redirect.
func (s *Scenario) Ends(r *Redirect) (ends [2]RedirectEnd) {
	for i, neighbour := range []string{r.From, r.Toward} {
		f, _ := s.faceToward(r.Node, neighbour)
		ends[i] = RedirectEnd{f.veth, f.peer.Address.Addr()}
	}
	return ends
}

// redirecting are the nodes at which in some stage XDP programs forward frames.
func (s *Scenario) redirecting() (nodes []string) {
	for _, st := range s.Stages {
		if st.Redirect != nil {
			nodes = append(nodes, st.Redirect.Node)
		}
		if g := st.Gateway; g != nil && g.Engine == gateway.EngineEBPF && (g.XDP == gateway.XDPNative || g.XDP == gateway.XDPGeneric) {
			nodes = append(nodes, g.Node)
		}
	}
	return nodes
}
