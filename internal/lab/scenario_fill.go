package lab

import (
	"cmp"
	"fmt"
)

// Fill fills a node's connection table until it holds Entries, or until a Share of the
// maximum that the host had when the scenario began is taken, or until Free places
// below it are left. One of the three is set.
type Fill struct {
	Node    string  `yaml:"node"`
	Free    int64   `yaml:"free"`
	Share   float64 `yaml:"share"`
	Entries int64   `yaml:"entries"`
	// Mix is one of those that natkit brings along, DefaultMix where empty. Parts,
	// instead, are those of a mix of its own, whose addresses may be the lab's.
	Mix   string `yaml:"mix"`
	Parts []Part `yaml:"parts"`
	Seed  uint64 `yaml:"seed"`
}

func (f *Fill) mix() (*Mix, error) {
	if len(f.Parts) > 0 {
		return &Mix{Name: "of-the-scenario", Title: "of the scenario", Parts: f.Parts}, nil
	}
	return FindMix(cmp.Or(f.Mix, DefaultMix))
}

// Filler makes the entries of the fill. The scenario must have passed Parse.
func (f *Fill) Filler() (*Filler, error) {
	mix, err := f.mix()
	if err != nil {
		return nil, err
	}
	return mix.Filler(f.Seed, FillMark), nil
}

// Target is how many entries the table must hold, where limit is nf_conntrack_max.
// It refuses where CheckFill does.
func (f *Fill) Target(limit, availableBytes int64) (int64, error) {
	if f.Free != 0 {
		return FillTarget(limit, f.Free, availableBytes)
	}
	target, err := Amount{Entries: f.Entries, Share: f.Share}.Target(limit)
	if err == nil {
		err = CheckFill(target, availableBytes)
	}
	return target, err
}

func (c *checker) fill(path []any, f *Fill) {
	c.node(append(path, "node"), f.Node)
	switch {
	case f.amounts() > 1:
		c.fail(path, "expected one of fill.free, fill.share and fill.entries, found %d", f.amounts())
	case !(f.Share >= 0 && f.Share <= 1):
		c.fail(append(path, "share"), "expected fill.share: above 0 to 1, found %g", f.Share)
	case f.Entries < 0 || f.Entries > MaxFill:
		c.fail(append(path, "entries"), "expected fill.entries: 1 to %d, found %d", MaxFill, f.Entries)
	case f.Entries == 0 && f.Share == 0 && f.Free < 1:
		c.fail(append(path, "free"), "expected fill.free: 1 or more places, found %d", f.Free)
	case f.Mix != "" && len(f.Parts) > 0:
		c.fail(append(path, "mix"), "expected fill.mix or fill.parts, found both")
	}
	if c.first != nil {
		return
	}
	mix, err := f.mix()
	if err != nil {
		c.fail(append(path, "mix"), "%s", err)
		return
	}
	if len(f.Parts) == 0 {
		return
	}
	if p := mix.check(); p != nil {
		c.fail(append(path, p.path...), "%s", p.message)
	} else if room := mix.Filler(f.Seed, 0).Room(); f.Entries > room {
		c.fail(append(path, "entries"), "%s", fmt.Sprintf("entries %d: the parts make only %d distinct connections", f.Entries, room))
	}
}

// amounts is how many of the ways to say how full are given.
func (f *Fill) amounts() (n int) {
	for _, given := range []bool{f.Free != 0, f.Share != 0, f.Entries != 0} {
		if given {
			n++
		}
	}
	return n
}
