package gateway

import (
	"net/netip"
	"strings"

	"github.com/natkit/natkit/internal/prefix"
)

// String says what s does, in the words of the file.
func (s Source) String() string { return s.Conditions() + " becomes " + s.becomes() }

// Conditions are the packets that s is for, in the words of the file.
func (s *Source) Conditions() string {
	var w words
	if h := s.Hairpin; h.Prefix.IsValid() {
		w.say("back inside")
		if h.Prefix.Bits() > 0 {
			w.add("of", h.String())
		}
	}
	w.add("from", prefix.List(s.From))
	w.add("except to", prefix.List(s.NotTo))
	w.add("out", strings.Join(s.Out, ", "))
	return w.String()
}

// becomes says what s gives.
func (s *Source) becomes() string {
	var w words
	switch {
	case s.Masquerade:
		w.say("the interface's address")
	case s.Prefix.IsValid():
		w.say(prefix.Text(s.Prefix))
	default:
		w.say(Ranges(s.To).String())
	}
	w.add("ports", s.Ports.String())
	switch s.Random {
	case RandomPorts:
		w.say("random")
	case RandomFully:
		w.say("random fully")
	}
	if s.Persistent {
		w.say("persistent")
	}
	return w.String()
}

// String is the original destination that is meant.
func (h HairpinOf) String() string { return onText(h.Prefix, h.Port) }

// String says what d does, in the words of the file.
func (d Destination) String() string { return d.Conditions() + " becomes " + d.becomes() }

// Conditions are as Source's.
func (d *Destination) Conditions() string {
	var w words
	w.add("on", onText(d.On, d.Port))
	w.add("from", prefix.List(d.From))
	w.add("in", strings.Join(d.In, ", "))
	if d.Local {
		w.say("and of programs here")
	}
	return w.String()
}

func (d *Destination) becomes() string {
	if d.Prefix.IsValid() {
		return prefix.Text(d.Prefix)
	}
	return d.To.String()
}

// String says what p does, in the words of the file.
func (p Pair) String() string {
	var w words
	w.say(prefix.Text(p.Inside))
	w.add("is outside", prefix.Text(p.Outside))
	w.add("out", strings.Join(p.Out, ", "))
	w.say("stateless")
	if p.Neutral {
		w.say("checksum-neutral (RFC 6296)")
	}
	return w.String()
}

// String says what u leaves alone.
func (u Untracked) String() string {
	return "to and from " + onText(host(u.On), u.Port) + " not tracked"
}

// onText is an address with its protocol and port: 203.0.113.7 tcp/80.
func onText(p netip.Prefix, port Port) string {
	return strings.TrimSpace(prefix.Text(p) + " " + port.String())
}

// words builds a line of words and values.
type words struct{ parts []string }

// say adds a word that stands alone.
func (w *words) say(word string) { w.parts = append(w.parts, word) }

// add adds a word and its value; neither where the value is empty.
func (w *words) add(word, value string) {
	if value != "" {
		w.parts = append(w.parts, word, value)
	}
}

func (w *words) String() string { return strings.Join(w.parts, " ") }
