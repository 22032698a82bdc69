package natrules

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/prefix"
)

// element is one of a set or a map that packets do not change. It has the keys from first
// to last, which are the same but for an interval, and a map's value.
type element struct {
	first, last []byte
	value       attrs
}

const (
	nftSetTimeout      = 0x10 // NFT_SET_TIMEOUT
	nftSetInterval     = 4    // NFT_SET_INTERVAL
	nftElemIntervalEnd = 1    // NFT_SET_ELEM_INTERVAL_END
	nftElemCatchall    = 2    // NFT_SET_ELEM_CATCHALL
	nftElemKeyEnd      = 10   // NFTA_SET_ELEM_KEY_END
)

// constantSets reads the sets and maps that rules of a table look into, but for those
// whose elements come and go by themselves, those that have one for all else, and those
// that are too large to make steps of, or too many altogether.
func (c conn) constantSets(t *kernelTable, ways *budget) (map[string][]element, error) {
	asked, concerning := map[string]bool{}, t.concerning()
	for _, r := range t.rules {
		for _, e := range r.exprs {
			if e.name == "lookup" && concerning[r] {
				asked[e.data.text(nftLookupSet)] = true
			}
		}
	}
	all := map[string][]element{}
	if len(asked) == 0 {
		return all, nil
	}
	sets, err := c.dumped(t.key, unix.NFT_MSG_GETSET, appendText(nil, setTable, t.key.name))
	if err != nil {
		return nil, fmt.Errorf("read sets of table %s: %w", t.key, err)
	}
	for _, a := range sets {
		name, flags := a.text(setName), a.u32(setFlagBits)
		count := int(a.u32(setCount)) // not told before Linux 6.16
		if !asked[name] || flags&(nftSetDynamic|nftSetTimeout) != 0 || count > mostPicked || !ways.takes(max(count, 1)) {
			continue
		}
		lists, err := c.copyElements(t.key, name)
		if err != nil {
			return nil, fmt.Errorf("read set %s of table %s: %w", name, t.key, err)
		}
		elements := elementsOf(lists, flags&nftSetInterval != 0)
		if len(elements) <= mostPicked && ways.takes(max(len(elements)-count, 0)) {
			all[name] = elements
		}
	}
	return all, nil
}

// told is an element as the kernel tells it: of an interval its first key, or, as an
// element of its own, the key after its last.
type told struct {
	key, last []byte
	end       bool
	value     attrs
}

// elementsOf are those of a set, by key; none where one of them is for all else, or garbled.
func elementsOf(lists [][]byte, interval bool) (all []element) {
	var keys []told
	for _, list := range lists {
		elems, err := parseAttrs(list)
		if err != nil {
			return nil
		}
		for _, elem := range elems {
			a, err := parseAttrs(elem.data)
			flags := a.u32(nftSetElemFlags)
			if err != nil || flags&nftElemCatchall != 0 {
				return nil
			}
			keys = append(keys, told{key: a.nested(nftSetElemKey).get(nftDataValue), last: a.nested(nftElemKeyEnd).get(nftDataValue),
				end: flags&nftElemIntervalEnd != 0, value: a.nested(nftSetElemData)})
		}
	}
	slices.SortStableFunc(keys, func(a, b told) int {
		if order := bytes.Compare(a.key, b.key); order != 0 || a.end == b.end {
			return order
		}
		return map[bool]int{true: -1, false: 1}[a.end] // it ends where the next one begins
	})
	for i, k := range keys {
		switch {
		case k.end:
		case len(k.last) == len(k.key): // of several fields
			all = append(all, element{k.key, k.last, k.value})
		case interval:
			all = append(all, k.upTo(keys[i+1:])...)
		default:
			all = append(all, element{k.key, k.key, k.value})
		}
	}
	return all
}

// upTo is the interval that ends before the next key. Those of addresses become
// prefixes, which is what conditions are made of.
func (k *told) upTo(next []told) []element {
	last := bytes.Repeat([]byte{0xff}, len(k.key))
	if len(next) > 0 && len(next[0].key) == len(k.key) {
		last = before(next[0].key)
	}
	if all := addresses(k.key, last, k.value); len(all) > 0 {
		return all
	}
	return []element{{k.key, last, k.value}}
}

// addresses are the prefixes from one address to another; none of something else.
func addresses(first, last []byte, value attrs) (all []element) {
	a, ok := netip.AddrFromSlice(first)
	z, ok2 := netip.AddrFromSlice(last)
	if !ok || !ok2 {
		return nil
	}
	for _, p := range prefix.Cover(a, z) {
		all = append(all, element{p.Addr().AsSlice(), prefix.Last(p).AsSlice(), value})
	}
	return all
}

// before is the number below one that is not 0.
func before(key []byte) []byte {
	b := bytes.Clone(key)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i]--; b[i] != 0xff {
			break
		}
	}
	return b
}
