package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Check finds what a file cannot mean, would do to somebody, or cannot do on the host
// that facts tell of, in the order of the file. With the zero Facts the file is only
// checked by itself. Where no Finding refuses, Compile takes the file.
func Check(f *File, facts Facts) []Finding {
	c := &checker{file: f, config: &f.Config, facts: &facts, held: f.Config.held()}
	c.everyRule(c.rule)
	c.interfaces()
	if c.refused == 0 {
		c.compile()
	}
	if c.plan != nil {
		c.together()
		c.onHost()
	}
	c.engine()
	c.sort()
	return c.findings
}

// KernelRefuses is the finding of an engine that has asked, and was told that the kernel
// would not take what the file means: about the rule that the error names, if it does.
func KernelRefuses(f *File, err error) Finding {
	found := Finding{ID: "kernel-refuses", Severity: Refuse, Message: err.Error()}
	var about interface {
		error
		Rule() (Ref, bool)
	}
	if !errors.As(err, &about) {
		return found
	}
	if ref, ok := about.Rule(); ok && f.Line(ref) > 0 {
		p := f.place(ref.List, ref.Index)
		found.Rule, found.Line, found.Column, found.Excerpt = &ref, p.Line, p.Column, p.Excerpt
	}
	return found
}

// checker collects findings.
type checker struct {
	file   *File
	config *Config
	facts  *Facts
	// plan is what the file becomes on the host; nil where it cannot be compiled.
	plan *Plan
	// asFile is the plan as the file is written.
	asFile *Plan
	// held are addresses that pools do not give.
	held *rangeIndex
	// byPort are indexes of the plan's destinations for one port, those for more under
	// the zero Port; everyPort are all.
	byPort    map[Port][]int
	everyPort []int
	findings  []Finding
	refused   int
}

// one is a rule that is looked at.
type one struct {
	*checker
	Rule
	ref Ref
	// bits is the length of the list's addresses.
	bits int
}

func (c *checker) everyRule(look func(one)) {
	c.config.each(func(r Rule, ref Ref) { look(one{c, r, ref, ref.BitLen()}) })
}

// ruleOf is the rule that ref names.
func (c *checker) ruleOf(ref Ref) one {
	rules := c.config.NAT
	if ref.List == "ipv6" {
		rules = c.config.IPv6
	}
	return one{c, rules[ref.Index], ref, ref.BitLen()}
}

// engine finds a file for another version.
func (c *checker) engine() {
	if e := c.config.Engine; e != "" && !slices.Contains(Engines, e) {
		c.add(Finding{ID: "engine-missing", Severity: Refuse, Message: fmt.Sprintf("this version of natkit has no engine %s", e),
			Advice: "leave it out, and netfilter does the same"}, []any{"engine"})
	}
}

// compile makes the plan. What a rule may not mean was found before, so that an error
// here concerns the file as a whole.
func (c *checker) compile() {
	plan, err := Compile(c.config, *c.facts)
	if err != nil {
		c.add(Finding{ID: "not-compilable", Severity: Refuse, Message: err.Error()}, nil)
		return
	}
	c.plan = plan
}

// together looks at what rules do to each other.
func (c *checker) together() {
	c.overlaps()
	if c.refused == 0 { // two that overlap also shadow each other
		c.shadowed()
	}
	c.asFile = nil // no more is asked of it
	c.pools()
	c.notrack()
}

// onHost looks at what rules meet on the host.
func (c *checker) onHost() {
	c.load()
	if !c.facts.Known {
		return
	}
	c.support()
	c.waits()
	c.ownAddresses()
	c.targets()
	c.sessions()
	c.foreign()
}

// add takes a finding, which stands at path below the file's key gateway.
func (c *checker) add(f Finding, path []any) {
	if path != nil {
		p := c.file.place(path...)
		f.Line, f.Column, f.Excerpt = p.Line, p.Column, p.Excerpt
	}
	if f.Severity == Refuse {
		c.refused++
	}
	c.findings = append(c.findings, f)
}

// refuse and warn take a finding about the rule, at path below its word.
func (o one) refuse(id, message, advice string, path ...any) {
	o.found(Refuse, id, message, advice, path)
}

func (o one) warn(id, message, advice string, path ...any) {
	o.found(Warn, id, message, advice, path)
}

func (o one) found(s Severity, id, message, advice string, path []any) {
	whole := []any{o.ref.List, o.ref.Index}
	if len(path) > 0 {
		whole = append(append(whole, o.ref.Kind), path...)
	}
	ref := o.ref
	o.add(Finding{ID: id, Severity: s, Rule: &ref, Message: ref.Kind + ": " + message, Advice: advice}, whole)
}

// named is a rule in words of another's finding.
func (c *checker) named(ref Ref) string {
	p := c.file.place(ref.List, ref.Index)
	if p.Line == 0 {
		return ref.String()
	}
	return fmt.Sprintf("%s in line %d", ref.Kind, p.Line)
}

// sort puts findings in the order of the file, those about the whole of it last.
func (c *checker) sort() {
	slices.SortStableFunc(c.findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(uint(a.Line)-1, uint(b.Line)-1), cmp.Compare(a.Column, b.Column), cmp.Compare(a.ID, b.ID))
	})
}
