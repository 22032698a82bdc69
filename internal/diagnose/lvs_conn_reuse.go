package diagnose

import (
	"fmt"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// lvsConnReuse: what IPVS does with a new connection on a tuple that has an entry still
// goes wrong in one of two ways. Where it schedules it anew and uses connection tracking,
// kernels before 5.9 drop the first SYN (ip_vs_conn_uses_conntrack). Where it does not,
// connections go to servers that were taken out.
var lvsConnReuse = Rule{
	ID:    "lvs-conn-reuse",
	Title: "reused client ports delayed, or sent to servers taken out",
	Check: checkConnReuse,
}

func checkConnReuse(rec *snapshot.Recording) (*Finding, Check) {
	b, check := readBalancer(rec)
	if b == nil {
		return nil, check
	}
	for i := range b.ipvs.Connections.Services {
		u := &b.ipvs.Connections.Services[i]
		if out := b.takenOut(u); len(out) > 0 {
			return b.deadServers(u, out), Check{Why: b.seen()}
		}
	}
	if u := b.delayed(); u != nil {
		return b.delay(u), Check{Why: b.seen()}
	}
	return nil, Check{State: OK, Why: b.seen()}
}

// delaysReuse reports whether this kernel drops the first SYN of a connection that it
// schedules anew, going by its release; stable kernels got the fix, too, some of them.
func (b *balancer) delaysReuse() bool {
	tracks, _ := b.rec.Last().Sysctls.Int(snapshot.IPVSConntrack)
	return tracks == 1 && b.rec.Last().Kernel.Before(5, 9)
}

// delayed is a service whose tuples are used again, and scheduled anew, on such a kernel.
func (b *balancer) delayed() *snapshot.IPVSUse {
	mode, known := b.reuseMode()
	if !known || mode == 0 || !b.delaysReuse() {
		return nil
	}
	for i := range b.ipvs.Connections.Services {
		u := &b.ipvs.Connections.Services[i]
		s := b.service(u)
		if s != nil && s.Persistent {
			continue // entries of persistence are not let go
		}
		if chance, ok := sameByChance(s); u.UsedAgain >= fewestReused &&
			(!ok || float64(u.SameServer) < (chance+notByChance*(1-chance))*float64(u.UsedAgain)) {
			return u
		}
	}
	return nil
}

func (b *balancer) delay(u *snapshot.IPVSUse) *Finding {
	return &Finding{
		Severity:   Warning,
		Confidence: "possible",
		Title:      fmt.Sprintf("connections on used ports wait for 1 s (%s)", useName(u)),
		Evidence: append([]Evidence{
			{What: "connections on tuples that had an entry", Value: u.UsedAgain, Unit: b.span(), Source: connSource},
			{What: snapshot.IPVSReuse, Value: b.rec.Last().Sysctls[snapshot.IPVSReuse], Source: "sysctl"},
			{What: snapshot.IPVSConntrack, Value: b.rec.Last().Sysctls[snapshot.IPVSConntrack], Source: "sysctl"},
			{What: "kernel", Value: b.rec.Last().Kernel.Release, Source: "/proc/sys/kernel/osrelease"},
		}, b.clientEvidence(u, b.service(u))...),
		Cause:       "IPVS lets go of the entry of the former connection and, as it uses connection tracking, drops the SYN to have the tracker forget it as well; kernels before 5.9 do so every time (fixed by \"ipvs: allow connection reuse for unconfirmed conntrack\", which some stable and distribution kernels have, too)",
		Consequence: "the client sends its SYN again after 1 s: its connection is slow by just that",
		Remedies: []Remedy{
			{Title: "a kernel from 5.9 on, or one with the fix", Predicts: "no delay, and connections are spread", Cost: "a restart"},
			{Title: fmt.Sprintf("set %s to 0", snapshot.IPVSReuse), Predicts: "no delay",
				Risk: "such connections stay on the server of the former one, also where its weight is 0 or it was removed: rolling updates then lose connections (lvs-affinity)"},
			{Title: fmt.Sprintf("set %s to 0 where no rule of iptables or nftables has to see the connections of IPVS", snapshot.IPVSConntrack),
				Predicts: "no delay", Risk: "masquerading of such connections and stateful rules end to work: kube-proxy needs it to be 1"},
			{Title: "keep connections open and use them again, or let clients come from more addresses", Predicts: "ports are used again later or not at all"},
		},
	}
}

// server is one that was taken out and is still given connections.
type takenOutServer struct {
	snapshot.IPVSServerUse
	removed bool
}

// takenOut are the servers of weight 0 that got connections on used tuples, and the
// removed ones that entries lead to while tuples of the service are used again.
func (b *balancer) takenOut(u *snapshot.IPVSUse) []takenOutServer {
	s := b.service(u)
	if s == nil || u.UsedAgain < fewestReused {
		return nil
	}
	heals, _ := b.rec.Last().Sysctls.Int(snapshot.IPVSExpireNoDest)
	weight := map[string]int64{}
	for _, r := range s.Servers {
		weight[r.Address] = r.Weight
	}
	var out []takenOutServer
	for _, r := range u.Servers {
		w, there := weight[r.Address]
		switch {
		case there && w == 0 && r.UsedAgain > 0:
			out = append(out, takenOutServer{r, false})
		case !there && heals == 0 && r.Entries > 0 && u.SameServer == u.UsedAgain:
			out = append(out, takenOutServer{r, true})
		}
	}
	return out
}

func (b *balancer) deadServers(u *snapshot.IPVSUse, out []takenOutServer) *Finding {
	var names []string
	evidence := []Evidence{{What: "connections on tuples that had an entry", Value: u.UsedAgain, Unit: b.span(), Source: connSource}}
	for _, r := range out {
		names = append(names, r.Address)
		if r.removed {
			evidence = append(evidence, Evidence{What: "entries to " + r.Address + ", which was removed", Value: r.Entries,
				Unit: fmt.Sprintf("of %s", units.Count(u.Entries)), Source: "/proc/net/ip_vs_conn against " + ipvsSource})
			continue
		}
		evidence = append(evidence, Evidence{What: "new connections to " + r.Address + ", whose weight is 0", Value: r.UsedAgain, Unit: b.span(), Source: connSource})
	}
	f := &Finding{
		Severity:    Critical,
		Confidence:  "certain",
		Title:       fmt.Sprintf("new connections go to %s, which %s taken out (%s)", strings.Join(names, ", "), was(len(names)), useName(u)),
		Evidence:    append(evidence, b.clientEvidence(u, b.service(u))...),
		Cause:       b.affinityCause(u, b.service(u)),
		Consequence: "as long as its ports come again within that time, a server of weight 0 never runs empty, and connections to it fail once it stops; those to a removed one are dropped without an answer until the entry expires",
		Remedies:    b.deadRemedies(),
	}
	if out[0].removed {
		f.Confidence = "likely"
	}
	return f
}

func was(n int) string {
	if n == 1 {
		return "was"
	}
	return "were"
}

func (b *balancer) deadRemedies() []Remedy {
	var r []Remedy
	if mode, known := b.reuseMode(); known && mode == 0 {
		r = append(r, Remedy{
			Title: fmt.Sprintf("set %s to 1, or to 3 where servers answer directly", snapshot.IPVSReuse), Predicts: "such connections are scheduled anew",
			Risk: "before Linux 5.9, with " + snapshot.IPVSConntrack + " = 1, each of them then waits for 1 s",
		})
	}
	if n, known := b.rec.Last().Sysctls.Int(snapshot.IPVSExpireNoDest); known && n == 0 {
		r = append(r, Remedy{
			Title:    fmt.Sprintf("set %s to 1", snapshot.IPVSExpireNoDest),
			Predicts: "an entry of a removed server goes with the first packet, which old kernels lose, and the connection is scheduled anew. With weight 0 it takes Linux 5.16 or " + snapshot.IPVSReuse + " other than 0",
			Risk:     "established connections to a removed server are cut at once",
		})
	}
	return append(r, Remedy{
		Title:    "take a server out by weight 0 and wait until its entries are gone, or stop the clients that use their ports so fast",
		Predicts: "nothing comes to it any more", Risk: "it may take for ever while ports come again within the timeout",
	})
}
