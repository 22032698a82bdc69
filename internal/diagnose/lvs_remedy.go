package diagnose

import (
	"fmt"

	"github.com/natkit/natkit/internal/ipvs"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// affinityRemedies are advice: each changes how connections are spread, or needs others.
func (b *balancer) affinityRemedies(u *snapshot.IPVSUse, s *snapshot.IPVSService) []Remedy {
	var r []Remedy
	if m := b.reuseRemedy(s); m != nil {
		r = append(r, *m)
	}
	if ipvs.PassesBy(s) && b.hold(s) > 60 {
		r = append(r, Remedy{
			Title:    fmt.Sprintf("shorten the FIN timeout: ipvsadm --set 0 60 0 (now %d s)", b.hold(s)),
			Predicts: fmt.Sprintf("entries go after 60 s: up to %s new sessions per second and client address", units.Rate(float64(fullRange)/60)),
			Cost:     "none",
			Risk:     "packets of a connection that comes to its end later than that find no entry, and are answered with a reset; below the servers' own 60 s a port may come to another server while the first holds it in TIME_WAIT, which does no harm",
		})
	}
	return append(r,
		Remedy{
			Title:    "let clients come from more addresses (more addresses at the NAT before the balancer), or offer the service on more addresses",
			Predicts: "each pair of addresses has its own ports: twice the addresses, half the reuse",
			Cost:     "addresses, and changes at both ends",
			Risk:     "allow-lists must know the new addresses",
		},
		Remedy{
			Title:    "keep connections open and use them again (keep-alive)",
			Predicts: "fewer connections need fewer ports",
			Risk:     "clients and servers have to do so (HTTP/1.0 does not by itself)",
		},
		Remedy{
			Title: "not a cure: more servers. Watch packets and established connections per server, not the rate of new connections, which is wrong here",
		})
}

// reuseRemedy has the kernel schedule such connections anew; nil where it cannot, or does:
// any mode but 0 is for TIME_WAIT, and its bit 1 for FIN_WAIT as well (is_new_conn_expected,
// net/netfilter/ipvs/ip_vs_core.c).
func (b *balancer) reuseRemedy(s *snapshot.IPVSService) *Remedy {
	mode, known := b.reuseMode()
	want := int64(1)
	if ipvs.PassesBy(s) {
		want = 3
	}
	if !known || mode&2 != 0 || want == 1 && mode != 0 {
		return nil
	}
	risk := "a client that went to the same server by chance of its port no longer does"
	if b.delaysReuse() {
		risk = "this kernel, unless the fix was backported, drops the first SYN of each such connection as IPVS uses connection tracking (" + snapshot.IPVSConntrack + " is 1): 1 s of delay, see lvs-conn-reuse; " + risk
	}
	return &Remedy{
		Title:    fmt.Sprintf("set %s to %d (now %d)", snapshot.IPVSReuse, want|mode, mode),
		Predicts: "a new connection on a used tuple is scheduled and counted as any other",
		Cost:     "one more entry to be made for each",
		Risk:     risk,
	}
}
