package pcap

import (
	"cmp"
	"slices"
)

// incidents are kept within a bounded memory; all are counted.
type incidents struct {
	kinds  map[Kind]*ofKind
	each   int   // of a kind
	memory int64 // for all
	used   int64
	peak   int64
}

type ofKind struct {
	count int64
	list  []Incident
}

func newIncidents(memory int64, each int) incidents {
	all := incidents{kinds: map[Kind]*ofKind{}, each: each, memory: memory}
	for _, kind := range Kinds {
		all.kinds[kind] = &ofKind{}
	}
	return all
}

// wants counts an incident, and reports whether there may be room for it.
func (i *incidents) wants(kind Kind) bool {
	of := i.kinds[kind]
	of.count++
	return len(of.list) < i.each && (i.used < i.memory || i.lesser(kind) != nil)
}

// add keeps an incident. Where memory is short, the last one of the least serious
// kind goes.
func (i *incidents) add(one Incident) {
	cost := costOf(&one)
	for i.used+cost > i.memory {
		lesser := i.lesser(one.Kind)
		if lesser == nil {
			return
		}
		last := len(lesser.list) - 1
		i.used -= costOf(&lesser.list[last])
		lesser.list[last] = Incident{}
		lesser.list = lesser.list[:last]
	}
	i.used += cost
	i.peak = max(i.peak, i.used)
	of := i.kinds[one.Kind]
	of.list = append(of.list, one)
}

// lesser is the least serious kind below kind of which one is kept.
func (i *incidents) lesser(kind Kind) *ofKind {
	for _, k := range slices.Backward(Kinds) {
		if k == kind {
			return nil
		}
		if of := i.kinds[k]; len(of.list) > 0 {
			return of
		}
	}
	return nil
}

// costOf is about what an incident takes in memory.
func costOf(i *Incident) int64 {
	const fixed, perStep, former = 512, 128, 128
	return fixed + former + perSYN*int64(len(i.SYNs)) + perStep*int64(cap(i.Ladder)) + 8*int64(cap(i.Intervals))
}

// drop forgets a kind, as if there had been none.
func (i *incidents) drop(kind Kind) {
	for n := range i.kinds[kind].list {
		i.used -= costOf(&i.kinds[kind].list[n])
	}
	i.kinds[kind] = &ofKind{}
}

// fill puts them into the report.
func (i *incidents) fill(r *Report) {
	r.Kinds, r.Incidents = []KindCount{}, []Incident{}
	for _, kind := range Kinds {
		of := i.kinds[kind]
		if of.count == 0 {
			continue
		}
		r.Kinds = append(r.Kinds, KindCount{kind, of.count, int64(len(of.list))})
		slices.SortStableFunc(of.list, func(a, b Incident) int {
			return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Frame, b.Frame))
		})
		r.Incidents = append(r.Incidents, of.list...)
	}
}
