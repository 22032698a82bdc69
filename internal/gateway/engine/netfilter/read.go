package netfilter

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/ruleset/read"
)

// Family is the family of natkit's table.
const Family = ruleset.GatewayFamily

// sealed writes the table by one transaction and returns its seal: the hashes of what the
// kernel returns then. Somebody may change the table before it is read: the seal is of the
// generation after the one before, and otherwise the table is written again. Where others
// write all the time there is none, and the table works as well.
func sealed(ns *netns.Handle, digest string, write func() error) (seal string, err error) {
	for range attempts {
		before, err := read.Generation(ns)
		if err == nil {
			err = write()
		}
		if err != nil {
			return "", fmt.Errorf("apply the gateway's rules: %w", err)
		}
		t, err := read.TableNamed(ns, Family, Table)
		if err == nil && t != nil && t.Generation == max(before+1, 1) { // 0 is left out (nf_tables_commit)
			remember(ns, t.Generation, digest)
			return sealOf(t), nil
		}
	}
	return "", nil
}

// intact are tables that were read or sealed and are as natkit wrote them, by the cookies of their
// namespaces: they need not be read again before the rules change.
var intact = struct {
	sync.Mutex
	tables map[uint64]intactTable
}{tables: map[uint64]intactTable{}}

type intactTable struct {
	generation uint32
	digest     string
}

// mostIntact bounds the namespaces that are remembered; a process mostly has one.
const mostIntact = 64

func remember(ns *netns.Handle, generation uint32, digest string) {
	id, err := netns.IDOf(ns)
	if err != nil || id.Cookie == 0 {
		return
	}
	intact.Lock()
	defer intact.Unlock()
	if len(intact.tables) >= mostIntact {
		clear(intact.tables)
	}
	intact.tables[id.Cookie] = intactTable{generation, digest}
}

// advance notes a transaction of natkit's own, which leaves intact what was so before it.
func advance(ns *netns.Handle, from uint32) {
	id, err := netns.IDOf(ns)
	intact.Lock()
	defer intact.Unlock()
	if t, known := intact.tables[id.Cookie]; err == nil && known && t.generation == from {
		intact.tables[id.Cookie] = intactTable{max(from+1, 1), t.digest}
	}
}

// remembered returns the digest of the table that is intact; empty if it is another
// namespace's, or rules have changed since.
func remembered(ns *netns.Handle) string {
	digest, _ := rememberedAt(ns)
	return digest
}

// rememberedAt is remembered, and the generation of the rules that the table is of.
func rememberedAt(ns *netns.Handle) (digest string, generation uint32) {
	id, err := netns.IDOf(ns)
	if err != nil || id.Cookie == 0 {
		return "", 0
	}
	generation, err = read.Generation(ns)
	intact.Lock()
	defer intact.Unlock()
	t, known := intact.tables[id.Cookie]
	if err != nil || !known || t.generation != generation {
		return "", 0
	}
	return t.digest, generation
}

// object is a chain with its rules, or a set with its elements.
type object struct {
	// name is "chain prerouting", "set source4-1".
	name string
	// parts is the number of its rules or elements, hash is over all that the kernel
	// returns of them, without handles and what packets and time change.
	parts int
	hash  string
}

// sealOf is the digest of the plan, and a line for each object.
func sealOf(t *read.Table) string {
	var b strings.Builder
	fmt.Fprintln(&b, digestOf(t))
	for _, o := range objectsOf(t) {
		fmt.Fprintf(&b, "%s %d %s\n", o.hash, o.parts, o.name)
	}
	return b.String()
}

// parseSeal returns the objects of a seal; nil where it is not of the digest.
func parseSeal(seal, digest string) map[string]object {
	lines := strings.Split(strings.TrimSuffix(seal, "\n"), "\n")
	if digest == "" || lines[0] != digest {
		return nil
	}
	all := map[string]object{}
	for _, line := range lines[1:] {
		f := strings.SplitN(line, " ", 3)
		if len(f) != 3 {
			return nil
		}
		n, err := strconv.Atoi(f[1])
		if err != nil {
			return nil
		}
		all[f[2]] = object{f[2], n, f[0]}
	}
	return all
}

// judge compares a table with its seal, and names rules of its plan.
func judge(s *gateway.State, t *read.Table, seal string, plan func(digest string) *gateway.Plan) {
	if t.Dormant {
		s.Change("the table is dormant: it translates nothing")
	}
	was := parseSeal(seal, s.Digest)
	if was == nil {
		return
	}
	var written, found map[string][]string
	for _, o := range objectsOf(t) {
		former, known := was[o.name]
		delete(was, o.name)
		difference := o.difference(former, known)
		if difference == "" {
			continue
		}
		if found == nil {
			written, found = commentsOfPlan(s.Digest, plan), commentsOf(t)
		}
		if which := details(written[o.name], found[o.name]); which != "" && written[o.name] != nil {
			difference += " (" + which + ")"
		}
		s.Change("%s: %s", o.name, difference)
	}
	for _, name := range slices.Sorted(maps.Keys(was)) {
		s.Change("%s: is gone", name)
	}
	if s.Integrity == gateway.RulesUnknown {
		s.Integrity = gateway.RulesIntact
	}
}

// judgeChoices compares the maps of hosts that are checked, and of uplinks, with what they can be by the plan.
func judgeChoices(s *gateway.State, ns *netns.Handle, p *gateway.Plan) error {
	if p = p.Part(gateway.EngineNetfilter); p == nil {
		return nil
	}
	used, err := Engine{}.InUse(ns, p)
	if err != nil {
		return err
	}
	checked := p.Checked()
	for _, r := range slices.SortedFunc(maps.Keys(checked), gateway.Ref.Compare) {
		if used[r] == nil {
			s.Change("set %s: has other elements (%s)", placesName(r, &checked[r].Action), r)
		}
	}
	steered, err := Engine{}.Steered(ns, p)
	for i, f := range []*family{ip4, ip6} {
		if served := len(p.Uplinks) > 0 && (f.v6 && p.IPv6 || !f.v6 && p.IPv4); served && steered[i] == nil && err == nil {
			s.Change("set %s: has other elements (wan)", slotsName+f.suffix)
		}
	}
	return err
}

func (o object) difference(was object, known bool) string {
	parts := "elements"
	if strings.HasPrefix(o.name, "chain ") {
		parts = "rules"
	}
	switch {
	case !known:
		return "is not natkit's"
	case was.hash == o.hash:
		return ""
	case was.parts != o.parts:
		return fmt.Sprintf("%d %s instead of %d", o.parts, parts, was.parts)
	}
	return "has other " + parts
}

// details are the rules of the file that are missing in an object, and how many of its
// rules or elements are not natkit's, as far as comments show it.
func details(written, found []string) string {
	var parts []string
	gone := without(written, found)
	slices.Sort(gone)
	switch gone = slices.Compact(gone); len(gone) {
	case 0:
	case 1:
		parts = append(parts, gone[0]+" is missing")
	default:
		parts = append(parts, listed(gone)+" are missing")
	}
	if n := len(without(found, written)); n > 0 {
		parts = append(parts, fmt.Sprintf("%d of them not natkit's", n))
	}
	return strings.Join(parts, "; ")
}

// without are those of all that are not among the others.
func without(all, others []string) []string {
	known := map[string]bool{}
	for _, c := range others {
		known[c] = true
	}
	return slices.DeleteFunc(slices.Clone(all), func(c string) bool { return known[c] })
}

// listed names a few of many.
func listed(names []string) string {
	const few = 5
	if n := len(names); n > few {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), n-few)
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " and " + names[last]
}

// commentsOfPlan are those of the rules and elements that are written for a plan.
func commentsOfPlan(digest string, plan func(string) *gateway.Plan) map[string][]string {
	if plan == nil {
		return nil
	}
	p := plan(digest)
	if p == nil || p.Part(gateway.EngineNetfilter) == nil {
		return nil
	}
	all := map[string][]string{}
	t := build(p.Part(gateway.EngineNetfilter), host{digest: digest, netmap: true})
	for _, r := range t.rules {
		all["chain "+r.chain] = append(all["chain "+r.chain], r.comment)
	}
	for _, s := range t.sets {
		for _, e := range s.elements {
			all["set "+s.name] = append(all["set "+s.name], e.comment)
		}
	}
	return all
}

// commentsOf are those of a table that is there.
func commentsOf(t *read.Table) map[string][]string {
	all := map[string][]string{}
	for _, r := range t.Rules {
		all["chain "+r.Chain] = append(all["chain "+r.Chain], r.Comment)
	}
	for _, s := range t.Sets {
		for _, e := range s.Elements {
			all["set "+s.Name] = append(all["set "+s.Name], e.Comment)
		}
	}
	return all
}

// objectsOf are the table's objects in the order of their names, without MarkChain, in
// which earlier versions kept their seals.
func objectsOf(t *read.Table) []object {
	var all []object
	rules := map[string][][]byte{}
	for _, r := range t.Rules {
		rules[r.Chain] = append(rules[r.Chain], r.Content)
	}
	for _, c := range t.Chains {
		if c.Name != MarkChain {
			all = append(all, object{"chain " + c.Name, len(rules[c.Name]), hashOf(slices.Concat([][]byte{c.Content}, rules[c.Name]))})
		}
	}
	var anonymous []object
	for _, s := range t.Sets {
		if s.Anonymous {
			anonymous = append(anonymous, setObject(s))
		} else {
			all = append(all, setObject(s))
		}
	}
	all = append(all, together(anonymous))
	for _, o := range t.Objects {
		all = append(all, object{"object " + o.Name, 0, hashOf([][]byte{o.Content})})
	}
	for _, name := range t.Flowtables {
		all = append(all, object{"flowtable " + name, 0, hashOf(nil)})
	}
	slices.SortFunc(all, func(a, b object) int { return cmp.Compare(a.name, b.name) })
	return all
}

// together is one object for all sets that belong to rules: their names are numbers of
// the kernel's and say nothing.
func together(sets []object) object {
	o := object{name: "sets of rules"}
	slices.SortFunc(sets, func(a, b object) int { return cmp.Compare(a.hash, b.hash) })
	var hashes [][]byte
	for _, s := range sets {
		hashes, o.parts = append(hashes, []byte(s.hash)), o.parts+s.parts
	}
	o.hash = hashOf(hashes)
	return o
}

// setObject takes elements in an order of its own: the kernel returns them as they lie in
// its hash table. Those of a dynamic set are not natkit's; those of uplinks and leases come and
// go, as do those of hosts that are checked, which are compared with the plan (judgeChoices).
func setObject(s read.TableSet) object {
	contents := [][]byte{s.Content}
	if s.Count > 0 {
		return object{"set " + s.Name, s.Count, hashOf(append(contents, s.Sum[:]))}
	}
	if !s.Dynamic && s.Name != leasesName && s.Name != seenAsName && !strings.HasPrefix(s.Name, slotsName) && !strings.HasPrefix(s.Name, checkedPrefix) {
		slices.SortFunc(s.Elements, func(a, b read.TableElement) int { return bytes.Compare(a.Content, b.Content) })
		for _, e := range s.Elements {
			contents = append(contents, e.Content)
		}
	}
	return object{"set " + s.Name, len(contents) - 1, hashOf(contents)}
}

// hashOf is over texts and their lengths, so that two of them never read like two others.
func hashOf(contents [][]byte) string {
	h := sha256.New()
	for _, c := range contents {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(c))))
		h.Write(c)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// digestOf is the digest of the plan that the writer left; empty where the mark is gone.
func digestOf(t *read.Table) (digest string) {
	for _, r := range t.Rules {
		if d, ok := strings.CutPrefix(r.Comment, digestWords); ok && r.Chain == MarkChain {
			digest = d
		}
	}
	return digest
}
