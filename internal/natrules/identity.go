package natrules

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net/url"
	"slices"
	"strings"
)

// identify gives the rules that natkit can change their Targets: namespace, place
// and a hash over what a change of options does not change. Of rules that are alike
// the second one of a chain, by age, has the suffix "#2": a program that misses its own
// rule since natkit changed it adds another one, often in front.
func (s *ruleset) identify(inode uint64) {
	for i := range s.tables {
		t := &s.tables[i]
		times := map[string]int{}
		byAge := func(a, b *kernelRule) int { return cmp.Compare(a.handle, b.handle) }
		for _, r := range slices.SortedFunc(slices.Values(t.rules), byAge) {
			if _, ok := editable(r); !ok || t.key.isGateway() { // the gateway's file is where those are changed
				continue
			}
			name := fmt.Sprintf("netns %d %s %s %s %08x", inode, familyNames[r.family],
				oneWord(r.table), oneWord(r.chain), fingerprint(r))
			if times[name]++; times[name] > 1 {
				name += fmt.Sprintf("#%d", times[name])
			}
			t.targets[r] = name
		}
	}
}

// oneWord writes names, which may have blanks and worse, as in a URL.
func oneWord(s string) string { return url.PathEscape(s) }

// fingerprint is a hash over a rule's expressions without counters, and without
// ports and options of its translation.
func fingerprint(r *kernelRule) uint32 {
	e, _ := editable(r)
	h := fnv.New32a()
	for i, x := range r.exprs {
		if e.portImmediate(i) {
			continue
		}
		h.Write([]byte(x.name))
		h.Write([]byte{0})
		if i == e.at {
			h.Write(e.masked())
		} else {
			h.Write(stateless(x))
		}
	}
	return h.Sum32()
}

// stateless is an expression's data without what packets change in it.
func stateless(x kernelExpr) []byte {
	switch x.name {
	case "counter", "last":
		return nil
	case "quota":
		return without(x.data, 4) // NFTA_QUOTA_CONSUMED
	case "lookup": // an anonymous set has another number in every rule
		name := strings.TrimRight(x.data.text(nftLookupSet), "0123456789")
		if name == "__set" || name == "__map" {
			return append(without(x.data, nftLookupSet), name...)
		}
	}
	return without(x.data)
}

// without writes attributes out again, but for some.
func without(a attrs, kinds ...uint16) []byte {
	var b []byte
	for _, x := range a {
		if !slices.Contains(kinds, x.kind) {
			b = binary.BigEndian.AppendUint16(b, x.kind)
			b = append(b, x.data...)
		}
	}
	return b
}
