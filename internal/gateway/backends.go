package gateway

import (
	"cmp"
	"fmt"
	"time"

	"github.com/natkit/natkit/internal/document"
	"github.com/natkit/natkit/internal/nat"
)

const (
	// mostChecked bounds the hosts that are checked, each as often as a rule has it.
	mostChecked = 1000
	// mostPlaces bounds the elements of the maps in which hosts are chosen.
	mostPlaces = 1 << 20
)

// balanced finds what keeps a rule from choosing among its hosts, and checking them; nil if nothing does.
func (r *DNAT) balanced() *document.Problem {
	problem := func(key, format string, args ...any) *document.Problem {
		return document.NewProblem([]any{"dnat", "health", key}, format, args...)
	}
	if r.Health == nil {
		if r.AllDown != "" {
			return document.NewProblem([]any{"dnat", "all-down"}, "all-down requires health: without checks no host is known to be down")
		}
		return nil
	}
	switch h := r.Health; {
	case len(r.To) < 2:
		return document.NewProblem([]any{"dnat", "health"}, "health requires several hosts in to: a host that is alone is not replaced by another")
	case bool(h.TCP) == (h.HTTP != ""):
		return document.NewProblem([]any{"dnat", "health"}, "health requires tcp: on or http: /path, and not both")
	case h.Port == 0 && !r.checksItself():
		return problem("port", "health requires port: the rule does not say which port of TCP to check")
	case h.timeout() > h.interval():
		return problem("timeout", "timeout %s is longer than interval %s", shortDuration(h.timeout()), shortDuration(h.interval()))
	}
	return nil
}

// checksItself reports whether the port to which connections go is one of TCP, and the only one.
func (r *DNAT) checksItself() bool {
	if len(r.Port) != 1 || r.Port[0].Protocol != "tcp" {
		return false
	}
	span, one := r.Port.span()
	return r.To[0].Port != 0 || one && span.Len() == 1
}

func (h *Health) interval() time.Duration { return cmp.Or(time.Duration(h.Interval), DefaultInterval) }
func (h *Health) timeout() time.Duration {
	return cmp.Or(time.Duration(h.Timeout), min(DefaultTimeout, h.interval()))
}

// check is how the hosts of the rule are checked; nil where they are not.
func (r *DNAT) check() *nat.Check {
	h := r.Health
	if h == nil {
		return nil
	}
	c := &nat.Check{Path: string(h.HTTP), Port: uint16(h.Port), Interval: h.interval(), Timeout: h.timeout(),
		Rise: cmp.Or(int(h.Rise), DefaultRise), Fall: cmp.Or(int(h.Fall), DefaultFall)}
	if c.Port == 0 && r.To[0].Port == 0 {
		c.Port = r.Port[0].First
	}
	return c
}

// tooManyHosts says what is more than natkit carries out, of the hosts that are checked and of the places of choices up
// to a rule; it is empty where nothing is.
func (r *DNAT) tooManyHosts(checked, places *int) string {
	a := r.action()
	if a.Check != nil {
		*checked += len(r.To)
	}
	if len(a.Backends) > 1 && (a.Check != nil || a.Balance == nat.BalanceHash) {
		*places += a.Places()
	}
	switch {
	case *checked > mostChecked:
		return fmt.Sprintf("a file checks at most %d hosts", mostChecked)
	case *places > mostPlaces:
		return fmt.Sprintf("choices by hash take more than %d elements of maps: use round-robin without health for some of them", mostPlaces)
	}
	return ""
}

// Checked are the rules of a plan whose hosts are checked, each with one entry of it.
func (p *Plan) Checked() map[Ref]*Entry {
	all := map[Ref]*Entry{}
	for i := range p.Destinations {
		if e := &p.Destinations[i]; e.Action.Check != nil {
			all[e.Rule] = e
		}
	}
	return all
}
