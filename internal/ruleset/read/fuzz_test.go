package read

import (
	"testing"

	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune"
)

// rewritten is a rule as the kernel would tell it after a change.
func rewritten(t testing.TB, e edit, o tune.NATOptions) *kernelRule {
	t.Helper()
	exprs, err := e.expressions(o, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := parseRule(append([]byte{e.rule.family, 0, 0, 0}, e.message(exprs)...))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var someOptions = []tune.NATOptions{
	{}, {FullyRandom: true}, {FirstPort: 1, LastPort: 65535, Random: true}, {FirstPort: 53, LastPort: 53, Persistent: true},
}

// TestRewrittenRules holds that recorded rules have the options asked for, keep
// their fingerprint, and are given back byte by byte.
func TestRewrittenRules(t *testing.T) {
	n := 0
	for _, table := range tablesOf(t).tables {
		for _, r := range table.rules {
			e, ok := editable(r)
			if !ok {
				continue
			}
			n++
			for _, o := range someOptions {
				again := rewritten(t, e, o)
				changed, ok := editable(again)
				if !ok || changed.options() != o || fingerprint(again) != fingerprint(r) {
					t.Errorf("rule %d of %s with %q: editable %v, %q, %08x was %08x", r.handle, r.chain, o, ok, changed.options(), fingerprint(again), fingerprint(r))
					continue
				}
				back := rewritten(t, changed, e.options())
				if f, ok := editable(back); !ok || f.options() != e.options() || len(back.exprs) != len(r.exprs) {
					t.Errorf("rule %d of %s with %q and back has %q and %d expressions, had %q and %d", r.handle, r.chain, o, f.options(), len(back.exprs), e.options(), len(r.exprs))
				}
			}
		}
	}
	if n < 10 {
		t.Errorf("only %d rules were rewritten", n)
	}
}

func FuzzRule(f *testing.F) {
	readAnswers(f, nftAnswers, func(_ string, b []byte) { f.Add(b) })
	f.Fuzz(func(t *testing.T, b []byte) {
		defer testutil.Bounded(t, len(b))()
		parseChain(b)
		parseVerdicts(b)
		protocolsOf([][]byte{b})
		commentOf(b)
		if _, a, err := body(b); err == nil {
			tableRule(a)
			tableElement(a)
		}
		r, err := parseRule(b)
		if err != nil {
			return
		}
		m := machine{family: familyNames[r.family], verdicts: func(string) []string { return []string{"x"} }}
		if s := m.readStep(r); s.translates && (s.rule.Kind == "" || s.rule.Text == "") {
			t.Errorf("a translation without kind or text: %+v", s.rule)
		} else if s.byMap != nil {
			table := kernelTable{key: tableKey{r.family, r.table}, maps: map[string][]mapElement{s.byMap.set: append(mapElements([][]byte{b}), mapElement{b, b, "x"})}}
			if len(table.elements(s, newBudget())) == 0 {
				t.Error("a rule without elements is gone")
			}
		}
		e, ok := editable(r)
		if !ok {
			return
		}
		fingerprint(r)
		for _, o := range someOptions {
			again := rewritten(t, e, o)
			if changed, ok := editable(again); ok && changed.options() != o {
				t.Errorf("%q became %q", o, changed.options())
			}
		}
	})
}

func FuzzLegacy(f *testing.F) {
	var info []byte
	readAnswers(f, legacyAnswers, func(_ string, b []byte) {
		if len(b) == infoBytes {
			info = b
			return
		}
		f.Add(info, b, true)
		f.Add(info, b, false)
	})
	f.Fuzz(func(t *testing.T, head, blob []byte, ip6 bool) {
		defer testutil.Bounded(t, len(head)+len(blob)+8)()
		info, err := parseInfo(head)
		if err != nil {
			return
		}
		l := layoutIP4
		if ip6 {
			l = layoutIP6
		}
		table, err := parseLegacy(l, "nat", info, blob)
		if err != nil {
			return
		}
		for _, r := range table.rules(newBudget()) {
			if r.rule.Kind == "" || r.rule.Text == "" || r.rule.Target != "" {
				t.Errorf("a translation without kind or text: %+v", r.rule)
			}
		}
	})
}

func FuzzXt(f *testing.F) {
	for name := range xtKinds {
		f.Add(name, uint32(0), make([]byte, 24), false)
		f.Add(name, uint32(1), make([]byte, 40), true)
		f.Add(name, uint32(2), make([]byte, 48), false)
	}
	f.Add("tcp", uint32(0), make([]byte, 12), false)
	f.Add("udp", uint32(0), make([]byte, 10), false)
	f.Fuzz(func(t *testing.T, name string, revision uint32, data []byte, ip6 bool) {
		defer testutil.Bounded(t, len(name)+len(data)+16)()
		var s step
		s.match(name, revision, data)
		family := map[bool]string{true: "ip6", false: "ip"}[ip6]
		s.target(name, revision, data, family)
		if s.translates != (xtKinds[name] != "") {
			t.Errorf("%s translates: %v", name, s.translates)
		}
	})
}
