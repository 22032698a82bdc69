package follow

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
	"golang.org/x/sys/unix"
)

// serviceKey is what attempts are counted by. Those that did not leave have no target, given and
// out; in is set where all that came in by it failed.
type serviceKey struct {
	protocol      uint8
	asked, target netip.AddrPort
	given         netip.Addr
	in, out       int
	fragmented    bool
}

// key is that of a service by what became of an attempt.
func (a *attempt) key() serviceKey {
	k := serviceKey{protocol: a.protocol, asked: a.asked(), fragmented: a.fragmented}
	if a.left == nil {
		return k
	}
	k.out = a.left.iface
	if a.came != nil && a.left.Dst != a.came.Dst {
		k.target = a.left.Dst
	}
	if a.came != nil && a.left.Src.Addr() != a.came.Src.Addr() {
		k.given = a.left.Src.Addr()
	}
	return k
}

// source is an interface, or a client, of the connections to a destination.
type source struct {
	protocol uint8
	asked    netip.AddrPort
	in       int
	client   netip.Addr
}

func (a *attempt) bySource() (in, client source) {
	s := source{protocol: a.protocol, asked: a.asked()}
	if a.came == nil {
		return s, s
	}
	in, client = s, s
	in.in, client.client = a.came.last(), a.came.Src.Addr()
	return in, client
}

// fate is what became of the connections from a source.
type fate struct{ answered, failed int }

// fates are those of the sources, and of all of a destination.
func (w *Watch) fates(now float64) map[source]fate {
	m := map[source]fate{}
	for _, a := range w.ended(now) {
		step := a.step(now)
		in, client := a.bySource()
		all := source{protocol: a.protocol, asked: in.asked}
		for i, s := range []source{all, in, client} {
			if i > 0 && s == all {
				continue
			}
			f := m[s]
			if step.Fails() {
				f.failed++
			} else if step == snapshot.StepAnswered {
				f.answered++
			}
			m[s] = f
		}
	}
	return m
}

// fewestOfInterface is how many must fail before an interface is told apart from others.
const fewestOfInterface = 3

// service sums attempts up.
type service struct {
	snapshot.FollowedService
	sums    [3]float64
	timed   [3]int
	clients map[netip.Addr]bool
	example map[snapshot.Step]*attempt
}

// Result returns what was seen up to now. names are those of interfaces.
func (w *Watch) Result(now float64, names func(index int) string) *snapshot.Followed {
	w.findLost()
	services, fates, all := map[serviceKey]*service{}, w.fates(now), w.ended(now)
	r := &snapshot.Followed{Sample: 1, Lost: w.lost, Connections: uint64(len(all))}
	for _, a := range all {
		in, client := a.bySource()
		all := fates[source{protocol: a.protocol, asked: in.asked}]
		key := a.key()
		if f := fates[in]; f.answered == 0 && f.failed >= fewestOfInterface && all.answered > 0 {
			key.in = in.in
		}
		s := services[key]
		if s == nil {
			s = newService(key, names)
			services[key] = s
		}
		s.add(a, now, names)
		if step := a.step(now); step == snapshot.StepAnswered {
			r.Answered++
		} else if step.Fails() && fates[client].answered > 0 {
			s.Mixed++
		}
	}
	r.Services = make([]snapshot.FollowedService, 0, len(services))
	for _, s := range services {
		r.Services = append(r.Services, s.result(names))
	}
	sortServices(r)
	return r
}

// unsent adds the connections of this host's programs, among those that are being opened, whose SYN did not
// leave.
func (w *Watch) unsent(r *snapshot.Followed, opening []frame.Tuple) {
	sent := map[uint16]bool{} // ports of sources, which translation mostly keeps
	for _, a := range w.all {
		if a.came == nil && a.left != nil {
			sent[a.left.Src.Port()] = true
		}
	}
	found := map[netip.AddrPort]*snapshot.FollowedService{}
	for _, t := range opening {
		if sent[t.Src.Port()] || !forwardable(t.Dst.Addr()) && !t.Dst.Addr().IsLoopback() || !isEnd(w.service, t.Dst) || !isEnd(w.client, t.Src) {
			continue
		}
		if found[t.Dst] == nil {
			found[t.Dst] = &snapshot.FollowedService{Protocol: "tcp", Service: t.Dst, Steps: map[snapshot.Step]uint64{}, Failed: &snapshot.FailedConnection{Step: snapshot.StepLostHere, Client: t.Src}}
		}
		found[t.Dst].Steps[snapshot.StepLostHere]++
	}
	for _, s := range found {
		r.Services = append(r.Services, *s)
	}
	sortServices(r)
}

// sortServices has those first of which most fail, and bounds them.
func sortServices(r *snapshot.Followed) {
	slices.SortFunc(r.Services, func(a, b snapshot.FollowedService) int {
		return cmp.Or(cmp.Compare(b.Failing(), a.Failing()), cmp.Compare(b.Steps[snapshot.StepAnswered], a.Steps[snapshot.StepAnswered]), cmp.Compare(a.Protocol, b.Protocol), a.Service.Compare(b.Service),
			a.Target.Compare(b.Target), a.Given.Compare(b.Given), cmp.Compare(a.Out, b.Out), cmp.Compare(a.In, b.In))
	})
	r.MoreServices += int64(max(0, len(r.Services)-mostListed))
	r.Services = r.Services[:min(len(r.Services), mostListed)]
}

func newService(key serviceKey, names func(int) string) *service {
	s := &service{clients: map[netip.Addr]bool{}, example: map[snapshot.Step]*attempt{}}
	s.FollowedService = snapshot.FollowedService{Protocol: nat.ProtocolName(key.protocol), Service: key.asked, Target: key.target, Given: key.given,
		InOnly: key.in != 0, Fragmented: key.fragmented, Steps: map[snapshot.Step]uint64{}}
	if key.out != 0 {
		s.Out = names(key.out)
	}
	return s
}

func (s *service) add(a *attempt, now float64, names func(int) string) {
	step := a.step(now)
	s.Steps[step]++
	s.Repeated += uint64(a.repeated)
	if e := s.example[step]; e == nil || e.astray == 0 && a.astray != 0 {
		s.example[step] = a
	}
	if a.came != nil {
		s.In = names(a.came.last())
		s.Bridged = a.bridged
		s.clients[a.came.Src.Addr()] = true
	} else if a.isUnasked() {
		s.clients[a.answered.Dst.Addr()] = true
	}
	if step != snapshot.StepAnswered {
		return
	}
	s.detour(a, names)
	for i, pair := range [][2]*sight{{a.came, a.left}, {a.left, a.answered}, {a.answered, a.returned}} {
		if pair[0] == nil || pair[1] == nil {
			continue
		}
		seconds := pair[1].at - pair[0].at
		if i == 0 {
			seconds = a.here // not the time until the client sent it again
		}
		s.sums[i] += seconds
		s.timed[i]++
	}
}

// fewestOfFlow is how many datagrams of a client, the first included, are a flow that goes on: those that get no
// answer send fewer in the time that is watched.
const fewestOfFlow = 8

// detour counts an answer that left by another interface than the question came in by, and whether what came
// after it shows that it arrived.
func (s *service) detour(a *attempt, names func(int) string) {
	out := a.returned.elsewhere(a.came)
	if out == 0 || a.bridged {
		return
	}
	s.DetourOut = names(out)
	if s.Detoured++; a.repeated+1 >= fewestOfFlow || a.protocol == unix.IPPROTO_TCP && a.stream != nil {
		s.WentOn++
	}
}

// result has the averages, and an example of what most came to.
func (s *service) result(names func(int) string) snapshot.FollowedService {
	s.Clients = len(s.clients)
	for i, to := range []*float64{&s.HereSeconds, &s.BeyondSeconds, &s.BackSeconds} {
		if s.timed[i] > 0 {
			*to = s.sums[i] / float64(s.timed[i])
		}
	}
	var worst snapshot.Step
	for step, n := range s.Steps {
		if step.Fails() && (worst == "" || n > s.Steps[worst] || n == s.Steps[worst] && step < worst) {
			worst = step
		}
	}
	// Of ICMP errors hosts send few a second (icmp_ratelimit): one says what became of those without any.
	told := map[snapshot.Step]snapshot.Step{snapshot.StepNoAnswer: snapshot.StepUnreachable, snapshot.StepLostHere: snapshot.StepUnreachableHere}
	if said := told[worst]; s.Steps[said] > 0 && s.Steps[snapshot.StepAnswered] == 0 {
		worst = said
	}
	if worst != "" {
		s.Failed = s.example[worst].failed(worst, names)
	}
	return s.FollowedService
}

func (a *attempt) failed(step snapshot.Step, names func(int) string) *snapshot.FailedConnection {
	f := &snapshot.FailedConnection{Step: step}
	if a.left != nil {
		f.Client, f.LeftFrom, f.LeftTo = a.left.Src, a.left.Src, a.left.Dst
	}
	if a.came != nil {
		f.Client, f.TTL = a.came.Src, a.came.ttl
	} else if a.left == nil && a.answered != nil {
		f.Client = a.answered.Dst
	}
	if a.left != nil && a.answered != nil {
		f.AnswerSeconds, f.AnswerBridged = a.answered.at-a.left.at, a.answered.passing
	}
	if step == snapshot.StepPartLost {
		f.Answer, _ = a.partLost()
		n := a.passed[index(f.Answer)]
		f.DatagramsIn, f.DatagramsOut = n.in, n.out
	}
	if step == snapshot.StepNoAnswer && a.astray != 0 {
		f.AstrayIn = names(a.astray)
	}
	f.OneSided = a.oneSided() || a.isUnasked()
	a.describe(f, names)
	if a.isUnasked() {
		f.AnswerIn = names(a.answered.last())
	}
	if i := a.answered.elsewhere(a.left); i != 0 {
		f.AnswerIn = names(i)
	}
	if i := a.returned.elsewhere(a.came); i != 0 {
		f.AnswerOut = names(i)
	}
	switch {
	case step == snapshot.StepOtherSource:
		f.By = a.answered.Src.Addr()
	case step == snapshot.StepAnswerUntranslated:
		f.By = a.returned.Src.Addr()
	case f.By.IsValid():
	case a.refused != nil:
		f.By = a.refused.by
	case a.unreachable != nil:
		f.By, f.ICMPType, f.ICMPCode = a.unreachable.by, a.unreachable.icmp.Type, a.unreachable.icmp.Code
	}
	return f
}
