package run

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/host"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// tellOrphans says how many connections keep a translation that no rule gives any more.
func (k *keeper) tellOrphans(ctx context.Context, former *gateway.Plan) {
	stale, err := k.Host.Orphans(ctx, former, k.plan)
	if err != nil {
		k.log("look at the connections of former rules: %v", err)
		return
	}
	if len(stale.Keys) > 0 {
		what := map[bool]string{true: "are cut, as there is no NAT any more", false: "keep their translation"}[stale.Cut]
		k.log("%s of rules that went %s: %s", units.Plural(len(stale.Keys), "connection", "connections"), what, stale.Words())
	}
}

// Words names the rules with the number of their connections, most first.
func (s Stale) Words() string {
	refs := make([]gateway.Ref, 0, len(s.Rules))
	for ref := range s.Rules {
		refs = append(refs, ref)
	}
	sort.Slice(refs, func(i, j int) bool {
		if s.Rules[refs[i]] != s.Rules[refs[j]] {
			return s.Rules[refs[i]] > s.Rules[refs[j]]
		}
		return refs[i].String() < refs[j].String()
	})
	const most = 5
	var words []string
	for i, ref := range refs {
		if i == most {
			words = append(words, fmt.Sprintf("and of %s more", units.Plural(len(refs)-most, "rule", "rules")))
			break
		}
		words = append(words, fmt.Sprintf("%s (%s)", ref, units.Count(s.Rules[ref])))
	}
	return strings.Join(words, ", ")
}

// tellWaiting says which interfaces a configuration names that do not exist, and which of
// them do now.
func (k *keeper) tellWaiting(r *Ready) {
	missing := gateway.MissingInterfaces(r.Gateway, r.Facts)
	there := func(name string) bool {
		return slices.ContainsFunc(r.Facts.Interfaces, func(i gateway.Interface) bool { return i.Name == name })
	}
	for _, name := range k.waiting {
		if there(name) {
			k.log("%s is there", name)
		}
	}
	more := slices.DeleteFunc(slices.Clone(missing), func(name string) bool { return slices.Contains(k.waiting, name) })
	if len(more) > 0 {
		k.log("waiting for %s: what the file says of it counts as soon as it is there", strings.Join(more, ", "))
	}
	k.waiting = missing
}

// tellRemoved counts how often somebody removed the rules, and says once that it goes on.
func (k *keeper) tellRemoved() {
	switch k.removed++; {
	case k.removed < mostQuick:
		k.log("somebody removed the rules; 'natkit gateway undo' does so for good")
	case k.removed == mostQuick:
		k.log("somebody removes the rules again and again: until they stay they are put in force again every %s only", usualLook)
	}
}

func (k *keeper) tellNotes(r *Ready, reason string) {
	if reason == addressesChanged {
		return
	}
	for _, note := range r.Notes {
		k.log("%s", note)
	}
	for _, f := range r.Findings {
		if f.ID != "interface-missing" { // tellWaiting has said so
			k.log("%s: %s", f.Severity, f.Placed())
		}
	}
}

// tellForwarding says once that somebody turned off what the gateway needs, as a file of
// sysctl.d that is loaded again does.
func (k *keeper) tellForwarding() {
	now := snapshot.Sysctls{}
	if err := k.Host.do(func() error { return host.ReadSysctls(k.Host.proc(), []string{Forward4, Forward6}, now) }); err != nil {
		k.log("look at forwarding: %v", err)
		return
	}
	var off []string
	if k.plan.IPv4 && now[Forward4] == "0" {
		off = append(off, Forward4)
	}
	if k.plan.IPv6 && now[Forward6] == "0" {
		off = append(off, Forward6)
	}
	if text := strings.Join(off, " and "); text != k.off {
		if k.off = text; text != "" {
			k.log("somebody set %s to 0: nothing is forwarded; it is left so until the next change or 'systemctl reload'", text)
		}
	}
}
