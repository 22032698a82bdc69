package drops

import (
	"cmp"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
)

// hook frees what a netfilter hook drops by its verdict, whichever it was.
const hook = "nf_hook_slow"

// ruleFunctions free packets at the rule itself: nftables since Linux 6.8, and in
// long-term kernels that took it over (Debian's 6.1 and 6.12).
var ruleFunctions = []string{"nft_do_chain", "ipt_do_table", "ip6t_do_table"}

// causes are those of tables.h, with the function whose verdict tells.
var causes = []struct{ name, function string }{
	{},
	{snapshot.CauseTableFull, "nf_conntrack_in"},
	{snapshot.CauseInvalid, "nf_conntrack_in"},
	{snapshot.CauseNotInserted, "__nf_conntrack_confirm"},
	{snapshot.CauseNATFailed, "nf_nat_inet_fn"},
}

// addCauses tells why netfilter dropped.
func (t *Tracer) addCauses(d *snapshot.Drops, counts map[dropsSite]uint64) {
	found := map[snapshot.DropCause]uint64{}
	hooked := map[uint64]uint64{} // drops by a verdict without a cause, by namespace
	for site, packets := range counts {
		function, ns := base(t.names.place(site.Location).Name), uint64(site.Netns)
		switch {
		case site.Cause > 0 && int(site.Cause) < len(causes):
			c := causes[site.Cause]
			found[snapshot.DropCause{Cause: c.name, Netns: ns, Source: c.function}] += packets
		case function == hook:
			hooked[ns] += packets
		case slices.Contains(ruleFunctions, function):
			found[snapshot.DropCause{Cause: snapshot.CauseRule, Netns: ns, Source: function}] += packets
		}
	}
	switch {
	case t.verdicts:
		d.NAT = "fexit"
		for ns, packets := range hooked {
			found[snapshot.DropCause{Cause: snapshot.CauseRule, Netns: ns, Source: hook + ", by no verdict of conntrack or NAT"}] += packets
		}
	case t.before != nil && t.opt.Filter == nil && t.opt.Interface == "":
		d.NAT = "counters"
		t.before.divide(hooked, found)
	}
	for c, packets := range found {
		c.Packets = packets
		d.Causes = append(d.Causes, c)
	}
	slices.SortFunc(d.Causes, func(a, b snapshot.DropCause) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Netns, b.Netns), cmp.Compare(a.Cause, b.Cause), cmp.Compare(a.Source, b.Source))
	})
}

// base is a function's name in the source: compilers append .isra.0, .constprop.0, …
func base(function string) string {
	name, _, _ := strings.Cut(function, ".")
	return name
}
