package diagnose

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/snapshot"
)

// answersBy is another interface by which the same destination answers, where nothing at all that leaves by that of r
// for beyond the networks of this host is answered: the line is dead then, and not the server. It is empty where that
// is not so, or the source with which it leaves may be at fault.
func (r *row) answersBy() (other string) {
	audit := r.rec.Last().Audit
	if r.Failed.Step != snapshot.StepNoAnswer || r.Target.IsValid() || r.Out == "" || audit == nil || r.attempts() < fewestFailed || !r.hasSourceOf(audit) {
		return ""
	}
	if at, _ := audit.Near(r.Service.Addr()); at != nil {
		return ""
	}
	for i := range r.all {
		o := &r.all[i]
		at, _ := audit.Near(o.Service.Addr())
		switch answered := o.Steps[snapshot.StepAnswered] > 0; {
		case !answered:
		case o.In == r.Out, o.Out == r.Out && (at == nil || o.Target.IsValid()):
			return "" // something comes by this line
		case o.Out != "" && o.Protocol == r.Protocol && o.Service == r.Service && !o.Target.IsValid():
			other = o.Out
		}
	}
	return other
}

// hasSourceOf reports whether it leaves with an address of the interface that it leaves by, to which answers come back.
func (r *row) hasSourceOf(audit *snapshot.Audit) bool {
	source := leavesAs(r.FollowedService)
	if !source.IsValid() {
		return r.In != "" && !r.goesOutBare()
	}
	at, own := audit.Near(source)
	return own && at.Name == r.Out
}

// hasDeadLine reports whether the line that it leaves by is dead beyond this host.
func (r *row) hasDeadLine() bool { return r.answersBy() != "" }

// deadLine is the interface whose address sources become that get no answer from anywhere, and another one by which
// sources are answered meanwhile; empty where that is not so.
func (a *audit) deadLine(s *snapshot.Service) (line, other string) {
	at, own := a.Near(s.Given)
	if !own || s.Kind != snapshot.ServiceSNAT || !silent(s) || s.HalfOpen > s.Unanswered || len(s.Destinations) == 0 || !leavesByIt(s.Routes, at.Name) {
		return "", ""
	}
	for _, to := range s.Destinations {
		if near, _ := a.Near(to.Addr()); near != nil || isInside(to.Addr()) {
			return "", ""
		}
	}
	for i := range a.rec.Flows.Services.All {
		o := &a.rec.Flows.Services.All[i]
		if o.Answered+o.Open == 0 {
			continue
		}
		if o.Given == s.Given || o.Service.Addr() == s.Given {
			return "", "" // something comes by this line
		}
		if by, own := a.Near(o.Given); own && by.Name != at.Name && o.Kind == snapshot.ServiceSNAT && o.Protocol == s.Protocol {
			other = by.Name
		}
	}
	return at.Name, other
}

// leavesByIt reports whether the questions leave by an interface, or may, of several next hops.
func leavesByIt(r *snapshot.Routes, name string) bool {
	if r == nil || r.Question == nil {
		return false
	}
	return r.Question.Out == name || slices.ContainsFunc(r.Question.Hops, func(h snapshot.Route) bool { return h.Out == name })
}

// deadLineAdvice is how to find out what a line is dead for, and to do without it.
func deadLineAdvice(rec *snapshot.Recording, line, other string, to netip.Addr) Remedy {
	return advice("service-dead-line", line, other, to, where(rec))
}

// deadBeside reports whether the line of a service is dead, and another one is not.
func deadBeside(a *audit, s *snapshot.Service) bool {
	_, other := a.deadLine(s)
	return other != ""
}

func deadLineText(line, other string) string {
	return fmt.Sprintf("nothing that leaves by %s is answered, while what leaves by %s is", line, other)
}

// hasDeadLine takes for the cause that a line is dead on which others are not.
func (f *failing) hasDeadLine(rec *snapshot.Recording, a *audit, s *snapshot.Service) {
	line, other := a.deadLine(s)
	f.cause = deadLineText(line, other) + ": that line is dead beyond this host, though its next hop may still answer, or what comes back by it is dropped before it is tracked"
	f.place, f.known, f.byElimination = deadLineText(line, other), true, true
	f.severity, f.confidence = max(f.severity, Warning), "likely"
	if first := s.Destinations[0].Addr(); !slices.ContainsFunc(s.Destinations, func(d netip.AddrPort) bool { return d.Addr() != first }) {
		f.cause += fmt.Sprintf("; or %s alone is dead, as nothing else is asked for by %s", first, line)
		f.confidence = "possible"
	}
	f.advice = new(deadLineAdvice(rec, line, other, s.Destinations[0].Addr()))
}
