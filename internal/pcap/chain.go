package pcap

// followMoves joins attempts whose SYN went on from one port to the next: each leg is
// over before it is known what became of the one behind it. Only kept incidents can be
// followed.
func followMoves(list []Incident) {
	legs := map[int64]*Incident{}
	for i := range list {
		for _, s := range list[i].SYNs {
			legs[s.Frame] = &list[i]
		}
	}
	last := make([]*Incident, len(list))
	for i := range list {
		last[i] = lastLeg(&list[i], legs)
	}
	// From the end on, as a leg is later than those that it follows.
	for i := len(list) - 1; i >= 0; i-- {
		if last[i] != &list[i] {
			list[i].join(last[i])
		}
	}
}

// maxLegs bounds how many ports an attempt is followed over: a SYN is sent no more than
// 255 times (net.ipv4.tcp_syn_retries).
const maxLegs = 256

func lastLeg(in *Incident, legs map[int64]*Incident) *Incident {
	for range maxLegs {
		if in.Continued == nil || in.Continued.Connected {
			return in
		}
		next := legs[in.Continued.Frame]
		if next == nil || next == in {
			return in
		}
		in = next
	}
	return in
}

// join gives an attempt the end of its last leg.
func (in *Incident) join(last *Incident) {
	went := *in.Continued
	switch {
	case last.Continued != nil:
		went = *last.Continued
	case last.Outcome == Connected:
		went.Client, went.Frame, went.Connected = last.Client, last.Frame, true
	default:
		went.Client, went.Frame = last.Client, last.Frame
	}
	in.Continued = &went
	if went.Connected {
		in.ConnectSeconds = last.Time.Sub(in.Time).Seconds() + last.ConnectSeconds
	}
}
