package tune

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// Facts is what the cost and risk of a change depend on.
type Facts = capacity.Table

// assessment judges changes by facts.
type assessment struct{ Facts }

// Assess returns the changes of one plan with their cost and risk, where natkit
// knows them. A change's own texts are kept.
func Assess(changes []Change, f Facts) []Change {
	// Each is judged by what will be there when all are made.
	for _, c := range changes {
		_, after, ok := numbers(c)
		switch {
		case !ok:
		case c.Key() == maxKey:
			f.Max = after
		case c.Target == snapshot.ConntrackBuckets && c.Kind == Sysctl:
			f.Buckets = after
		}
	}
	out := slices.Clone(changes)
	for i, c := range out {
		if c.Cost == "" && c.Risk == "" {
			out[i].Cost, out[i].Risk = assess(c, assessment{f})
			out[i].Risk = joinRisks(out[i].Risk, sideEffects(c))
		}
	}
	return out
}

// numbers are the values of a sysctl that is one number.
func numbers(c Change) (before, after int64, ok bool) {
	before, errBefore := strconv.ParseInt(NormalValue(c.Before), 0, 64)
	after, errAfter := strconv.ParseInt(NormalValue(c.After), 0, 64)
	return before, after, c.Kind == Sysctl && errBefore == nil && errAfter == nil
}

func assess(c Change, f assessment) (cost, risk string) {
	before, after, ok := numbers(c)
	switch {
	case c.Kind == NATRule:
		return changeNATRule(c)
	case !ok || before == after:
		return "", ""
	case c.Key() == maxKey && after == 0:
		return f.unlimited()
	case c.Key() == maxKey && before == 0:
		return "", "sets a limit where there was none (0), " + strings.TrimPrefix(f.lowerMax(after), "lowers a limit ")
	case c.Key() == maxKey && after > before:
		return f.raiseMax(before, after)
	case c.Key() == maxKey:
		return "", f.lowerMax(after)
	case c.Target == snapshot.ConntrackBuckets:
		return f.resize(c, before, after)
	case strings.HasPrefix(c.Target, "net.netfilter.nf_conntrack_") && strings.Contains(c.Target, "timeout"):
		return "", changeTimeout(before, after)
	case before == 1 && after == 0:
		return "", "turns it off for everything that relies on it"
	case after < before:
		return "", fmt.Sprintf("lowers the value from %s to %s", units.Count(before), units.Count(after))
	}
	return "", ""
}

func (f assessment) raiseMax(before, after int64) (cost, risk string) {
	full := f.Cost.TableBytes(after, f.Buckets)
	cost = fmt.Sprintf("up to %s more memory, %s in all (%v)",
		units.Bytes(full-f.Cost.TableBytes(before, f.Buckets)), units.Bytes(full), f.Cost)
	risks := []string{"holds for all network namespaces; memory is taken only as entries come"}
	if f.MemoryBytes > 0 && full > capacity.Budget(f.MemoryBytes) {
		risks = append(risks, "a full table would take more than a quarter of the machine's memory")
	}
	return cost, strings.Join(append(risks, f.longChains()...), "; ")
}

// unlimited is nf_conntrack_max = 0: __nf_conntrack_alloc then compares with
// nothing.
func (f assessment) unlimited() (cost, risk string) {
	return fmt.Sprintf("no bound: %v for as many as come", f.Cost),
		"0 means no limit: connections are never refused, in no network namespace, and a flood takes memory until the machine has none; hash chains grow without end"
}

func (f assessment) lowerMax(after int64) string {
	risk := "lowers a limit of the whole host, every network namespace included"
	if f.Entries > after {
		risk += fmt.Sprintf("; %s connections are tracked now, more than the new maximum: new connections are dropped at once",
			units.Count(f.Entries))
	}
	return risk
}

func (f assessment) resize(c Change, before, after int64) (cost, risk string) {
	if after > before {
		cost = units.Bytes(f.Cost.TableBytes(0, after)-f.Cost.TableBytes(0, before)) + " more memory for the bucket array"
	}
	return cost, strings.Join(append([]string{Stall(f.Facts, c)}, f.longChains()...), "; ")
}

// Stall describes what the change of nf_conntrack_buckets from one number to another
// does to the host's traffic; empty for other changes.
func Stall(f Facts, c Change) string {
	before, after, ok := numbers(c)
	if !ok || before == after || c.Target != snapshot.ConntrackBuckets {
		return ""
	}
	entries := f.Entries + f.OtherEntries
	return fmt.Sprintf("all packets of the host wait for %s (estimate) while %s entries are rehashed",
		units.Roughly(capacity.ResizeSeconds(entries)), units.Count(entries))
}

// longChains describes what a full table means for the hash.
func (f assessment) longChains() []string {
	length := capacity.ChainLength(max(f.Max, f.Entries)+f.OtherEntries, f.Buckets)
	if length <= capacity.LongChain {
		return nil
	}
	text := fmt.Sprintf("when full, hash chains of %s entries on average in %s buckets", units.Fixed(length, 0), units.Count(f.Buckets))
	if length > capacity.RefusedChain {
		text += ", which kernels from 5.15 on may refuse (chaintoolong)"
	}
	return []string{text}
}

func changeTimeout(before, after int64) string {
	switch {
	case after <= 0:
		return "entries end as soon as they are made: answers find none, and NAT cannot map them back"
	case after < before:
		return "idle connections are forgotten sooner: packets that come later find no entry, and NAT cannot map them back"
	}
	return "entries stay longer: the table fills faster at the same rate of connections"
}

// Along are the sysctls that the kernel sets along with one and that an undo puts back,
// as patterns of paths below /proc/sys.
func Along(name string) []string {
	switch name {
	case "net.ipv4.ip_forward", "net.ipv4.conf.all.forwarding": // inet_forward_change
		return []string{"net/ipv4/conf/*/forwarding", "net/ipv4/conf/all/accept_redirects"}
	case "net.ipv6.conf.all.forwarding": // addrconf_forward_change
		return []string{"net/ipv6/conf/*/forwarding"}
	}
	return nil
}

// IsAlong reports whether the kernel sets one sysctl along with another.
func IsAlong(name, other string) bool {
	file, err := SysctlPath(other)
	return err == nil && slices.ContainsFunc(Along(name), func(pattern string) bool {
		ok, _ := path.Match(pattern, file)
		return ok
	})
}

// SetAlong is the value that the kernel gives to one of these where it sets the other one
// to value.
func SetAlong(name, value string) string {
	if !strings.HasSuffix(name, ".accept_redirects") {
		return value
	}
	if SameValue(value, "0") { // a host believes redirects, a router does not
		return "1"
	}
	return "0"
}

// MadeOf is true where got is what the kernel may have made of writing asked to
// a sysctl that was before: the same value; a vector of which only the first
// numbers were given, or taken (do_proc_dointvec leaves the others as they are);
// or a set of numbers put in order and joined (proc_do_large_bitmap, as of
// ip_local_reserved_ports).
func MadeOf(before, asked, got string) bool {
	if SameValue(asked, got) {
		return true
	}
	b, a, g := strings.Fields(before), strings.Fields(asked), strings.Fields(got)
	if len(g) > 1 {
		taken := 0
		for taken < min(len(a), len(g)) && SameValue(a[taken], g[taken]) {
			taken++
		}
		return taken > 0 && len(b) == len(g) && slices.EqualFunc(b[taken:], g[taken:], SameValue)
	}
	want, okWant := ranges(asked)
	have, okHave := ranges(got)
	return okWant && okHave && slices.Equal(want, have)
}

// ranges reads "8080,9000-9002,9001" into disjoint ranges in order.
func ranges(text string) ([][2]uint64, bool) {
	var all [][2]uint64
	for _, part := range strings.Split(text, ",") {
		low, high, isRange := strings.Cut(part, "-")
		if !isRange {
			high = low
		}
		from, errFrom := strconv.ParseUint(low, 10, 32)
		to, errTo := strconv.ParseUint(high, 10, 32)
		if errFrom != nil || errTo != nil || from > to {
			return nil, false
		}
		all = append(all, [2]uint64{from, to})
	}
	slices.SortFunc(all, func(a, b [2]uint64) int { return cmp.Compare(a[0], b[0]) })
	joined := all[:1]
	for _, r := range all[1:] {
		if last := &joined[len(joined)-1]; r[0] <= last[1]+1 {
			last[1] = max(last[1], r[1])
		} else {
			joined = append(joined, r)
		}
	}
	return joined, true
}
