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
	// keptOneWay bounds the translations, and apart from them the plain destinations,
	// that are told apart; what comes beyond is left out. A scan has thousands of plain
	// ones and must not keep translations out.
	keptOneWay  = 4096
	shownOneWay = 64
)

// oneWayKey is a service and what became of it.
type oneWayKey struct {
	service, target netip.AddrPort
	zone            uint16
}

func (k oneWayKey) translated() bool { return k.service != k.target }

// oneWay finds UDP entries to which clients sent packets between two dumps and that
// never had an answer. A client that goes on asking keeps its entry, and with that
// the translation of its first packet, whatever the rules have become.
type oneWay struct {
	found                    map[oneWayKey]*snapshot.OneWay
	translated, untranslated int
}

func newOneWay() oneWay { return oneWay{found: map[oneWayKey]*snapshot.OneWay{}} }

// add takes an entry of the second dump that is the same connection as before in the
// first one. Entries of helpers are translated without a rule.
func (o *oneWay) add(e *Entry, before known, gap Gap) {
	if e.Orig.Proto != unix.IPPROTO_UDP || e.Status&(SeenReply|Expected) != 0 {
		return
	}
	// As in reborn: what is left is in whole seconds, so one of them is in doubt.
	expected := float64(before.left()) - gap.seconds()
	if float64(e.Timeout) < expected+1 {
		return
	}
	w := o.of(e)
	if w == nil {
		return
	}
	w.Entries++
	w.OldestSeconds = max(w.OldestSeconds, gap.age(e))
}

func (o *oneWay) of(e *Entry) *snapshot.OneWay {
	k := oneWayKey{
		netip.AddrPortFrom(e.Orig.Dst, e.Orig.DstPort), netip.AddrPortFrom(e.Reply.Src, e.Reply.SrcPort), e.Zone,
	}
	if w := o.found[k]; w != nil {
		return w
	}
	kept := &o.untranslated
	if k.translated() {
		kept = &o.translated
	}
	if *kept == keptOneWay {
		return nil
	}
	*kept++
	w := &snapshot.OneWay{Service: k.service, Target: k.target, Zone: k.zone, Source: e.Orig.Src}
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

// list has the translated ones first, each kind with the most entries first.
func (o *oneWay) list() []snapshot.OneWay {
	all := make([]snapshot.OneWay, 0, len(o.found))
	for _, w := range o.found {
		all = append(all, *w)
	}
	slices.SortFunc(all, func(a, b snapshot.OneWay) int {
		if a.Translated() != b.Translated() {
			if a.Translated() {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(b.Entries, a.Entries), a.Service.Compare(b.Service), a.Target.Compare(b.Target), cmp.Compare(a.Zone, b.Zone))
	})
	return all[:min(len(all), shownOneWay)]
}
