package lab

import (
	"slices"
	"strings"
)

// Remedy is what a stage tries against the fault of another one. What it does is what
// is different in the stage.
type Remedy struct {
	// Against is the stage with the fault.
	Against string `yaml:"against"`
	// Cost and Risk are a sentence each.
	Cost string `yaml:"cost"`
	Risk string `yaml:"risk"`
	// Expect are the effects that it may have; where it is empty, any.
	Expect []Effect `yaml:"expect"`
}

// maxApart bounds the labs that stand at the same time.
const maxApart = 16

// apart refuses what stages that run at the same time would share: the host's values,
// and what others have left.
func (c *checker) apart(path []any, st Stage) {
	if !st.Apart {
		return
	}
	for _, given := range []struct {
		key string
		set bool
	}{
		{"fill", st.Fill != nil}, {"keep_entries", st.KeepEntries}, {"host", len(st.Host) > 0},
		{"apply", st.Apply != ""}, {"trace", len(st.Trace) > 0},
	} {
		if given.set {
			c.fail(append(path, given.key), "stage %q is apart: expected no %s, which stages that run at the same time would share", st.Name, given.key)
		}
	}
	if n := c.apartFrom(st.Name); n > maxApart {
		c.fail(append(path, "apart"), "expected at most %d stages that are apart after each other, found %d", maxApart, n)
	}
}

// apartFrom is how many stages that are apart follow each other from this one on.
func (c *checker) apartFrom(name string) (n int) {
	began := false
	for _, st := range c.s.Stages {
		if began = began || st.Name == name; !began {
			continue
		}
		if !st.Apart {
			break
		}
		n++
	}
	return n
}

func (c *checker) remedy(path []any, stage int, r *Remedy) {
	c.stageName(append(path, "against"), r.Against)
	if i := slices.IndexFunc(c.s.Stages, func(s Stage) bool { return s.Name == r.Against }); i >= stage {
		c.fail(append(path, "against"), "against %q: expected a stage before this one", r.Against)
	}
	if strings.TrimSpace(r.Cost) == "" {
		c.fail(append(path, "cost"), "expected remedy.cost: a sentence")
	}
	if strings.TrimSpace(r.Risk) == "" {
		c.fail(append(path, "risk"), "expected remedy.risk: a sentence")
	}
	for i, e := range r.Expect {
		if !slices.Contains(Effects, e) {
			c.fail(append(path, "expect", i), "effect %q: expected one of: %s", e, effectNames())
		}
	}
}

func effectNames() string {
	names := make([]string, len(Effects))
	for i, e := range Effects {
		names[i] = string(e)
	}
	return strings.Join(names, ", ")
}
