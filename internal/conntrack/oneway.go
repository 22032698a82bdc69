package conntrack

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/snapshot"
)

const (
	// keptOneWay bounds what is told apart of each kind; what comes beyond is left out. A
	// scan has thousands of plain destinations and must not keep translations out.
	keptOneWay  = 4096
	shownOneWay = 64
)

// oneWayKey is a service and what became of it.
type oneWayKey struct {
	service, target netip.AddrPort
	zone            uint16
	// answered and silent are as HadAnswers and Silent of snapshot.OneWay.
	answered, silent bool
}

// oneWay finds UDP entries to which clients sent packets between two dumps and that
// never had an answer, and translated ones that had: the kernel does not tell whose
// packet kept an entry. A client that goes on asking keeps its entry, and with that the
// translation of its first packet, whatever the rules have become.
type oneWay struct {
	found map[oneWayKey]*snapshot.OneWay
	// kept is how many were found of each kind.
	kept [3]int
	// received are the answers that translated entries had in the first dump, where the
	// kernel counts them.
	received map[uint64]uint64
}

func newOneWay() oneWay {
	return oneWay{found: map[oneWayKey]*snapshot.OneWay{}, received: map[uint64]uint64{}}
}

// wasAnswered reports whether an entry is translated UDP that had answers.
func wasAnswered(e *Entry) bool {
	return e.Orig.Proto == unix.IPPROTO_UDP && e.Status&SeenReply != 0 && (e.Orig.Dst != e.Reply.Src || e.Orig.DstPort != e.Reply.SrcPort)
}

// first takes an entry of the first dump.
func (o *oneWay) first(id uint64, e *Entry) {
	if e.Fields&HasCounters != 0 && wasAnswered(e) {
		o.received[id] = e.Received.Packets
	}
}

// add takes an entry of the second dump that is the same connection as before in the
// first one. Entries of helpers are translated without a rule.
func (o *oneWay) add(id uint64, e *Entry, before known, gap Gap) {
	answered := wasAnswered(e)
	if e.Orig.Proto != unix.IPPROTO_UDP || e.Status&Expected != 0 || e.Status&SeenReply != 0 && !answered {
		return
	}
	had, counted := o.received[id]
	if answered && before.rest&knownSeen == 0 || counted && e.Received.Packets != had {
		return // one came since
	}
	// As in reborn: what is left is in whole seconds, so one of them is in doubt.
	expected := float64(before.left()) - gap.seconds()
	if float64(e.Timeout) < expected+1 {
		return
	}
	w := o.of(e, answered, counted)
	if w == nil {
		return
	}
	w.Entries++
	w.OldestSeconds = max(w.OldestSeconds, gap.age(e))
}

func (o *oneWay) of(e *Entry, answered, silent bool) *snapshot.OneWay {
	k := oneWayKey{
		netip.AddrPortFrom(e.Orig.Dst, e.Orig.DstPort), netip.AddrPortFrom(e.Reply.Src, e.Reply.SrcPort), e.Zone, answered, silent,
	}
	if w := o.found[k]; w != nil {
		return w
	}
	w := &snapshot.OneWay{Service: k.service, Target: k.target, Zone: k.zone, Source: e.Orig.Src, HadAnswers: answered, Silent: silent}
	kept := &o.kept[kindOf(w)]
	if *kept == keptOneWay {
		return nil
	}
	*kept++
	o.found[k] = w
	return w
}

// age is that of an entry of both dumps, at least.
func (g Gap) age(e *Entry) float64 {
	if e.Start == 0 || g.Now.IsZero() {
		return g.seconds()
	}
	return max(g.seconds(), g.Now.Sub(time.Unix(0, int64(e.Start))).Seconds())
}

// kindOf orders what is found: translated and without an answer, untranslated, and what
// may be answered. None keeps another out.
func kindOf(w *snapshot.OneWay) int {
	switch {
	case !w.Unanswered():
		return 2
	case !w.Translated():
		return 1
	}
	return 0
}

// list has each kind with the most entries first, and shownOneWay of those that may be
// answered besides.
func (o *oneWay) list() []snapshot.OneWay {
	all := make([]snapshot.OneWay, 0, len(o.found))
	for _, w := range o.found {
		all = append(all, *w)
	}
	slices.SortFunc(all, func(a, b snapshot.OneWay) int {
		return cmp.Or(cmp.Compare(kindOf(&a), kindOf(&b)), cmp.Compare(b.Entries, a.Entries), a.Service.Compare(b.Service), a.Target.Compare(b.Target), cmp.Compare(a.Zone, b.Zone))
	})
	unanswered := o.kept[0] + o.kept[1]
	return slices.Concat(all[:min(unanswered, shownOneWay)], all[unanswered:min(len(all), unanswered+shownOneWay)])
}
