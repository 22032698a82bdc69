package ruleset

import (
	"bufio"
	"encoding/hex"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/testutil"
)

// readAnswers calls each with what a kernel answered, of lines of a word and bytes in
// hexadecimal.
func readAnswers(t testing.TB, file string, each func(word string, b []byte)) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		word, digits, _ := strings.Cut(lines.Text(), " ")
		b, err := hex.DecodeString(digits)
		if err != nil {
			t.Fatal(err)
		}
		each(word, b)
	}
	if lines.Err() != nil {
		t.Fatal(lines.Err())
	}
}

// rewritten is a rule as the kernel would return it after a change.
func rewritten(t testing.TB, e *Edit, o nat.Options) *KernelRule {
	t.Helper()
	b, err := e.Message(o, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := ParseRule(append([]byte{e.Rule.Key.Family, 0, 0, 0}, b...))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var someOptions = []nat.Options{
	{}, {FullyRandom: true}, {Ports: nat.Ports{First: 1, Last: 65535}, Random: true}, {Ports: nat.Ports{First: 53, Last: 53}, Persistent: true},
}

// TestRewrittenRules holds that recorded rules have the options asked for, keep their
// fingerprint, and are given back as they were.
func TestRewrittenRules(t *testing.T) {
	n := 0
	readAnswers(t, "testdata/nftables.txt", func(word string, b []byte) {
		if word != "rule" {
			return
		}
		r, err := ParseRule(b)
		if err != nil {
			t.Fatal(err)
		}
		e := Editable(r)
		if e == nil {
			return
		}
		n++
		for _, o := range someOptions {
			changed := Editable(rewritten(t, e, o))
			if changed == nil || changed.Options() != o || changed.fingerprint() != e.fingerprint() {
				t.Errorf("rule %d of %s with %q is %+v", r.Handle, r.Chain, o, changed)
				continue
			}
			back := Editable(rewritten(t, changed, e.Options()))
			if back == nil || back.Options() != e.Options() || len(back.Rule.Exprs) != len(r.Exprs) {
				t.Errorf("rule %d of %s with %q and back is %+v", r.Handle, r.Chain, o, back)
			}
		}
	})
	if n < 10 {
		t.Errorf("only %d rules were rewritten", n)
	}
}

func FuzzRule(f *testing.F) {
	readAnswers(f, "testdata/nftables.txt", func(_ string, b []byte) { f.Add(b) })
	f.Fuzz(func(t *testing.T, b []byte) {
		defer testutil.Bounded(t, len(b))()
		ParseChain(b)
		CommentOf(b)
		elements, _ := ParseElements(b)
		r, err := ParseRule(b)
		if err != nil {
			return
		}
		d := &Dump{Key: r.Key, Rules: []*KernelRule{r}, Elements: map[string][]Element{}}
		for _, name := range d.NeededMaps() {
			d.Elements[name] = elements
		}
		for _, table := range []*Table{d.Table(&Budget{}), d.BySet(&Budget{})} {
			table.Describe()
			if len(table.Find(r.Chain).Rules) == 0 {
				t.Error("a rule without elements is gone")
			}
			for _, one := range table.Find(r.Chain).Rules {
				if one.Target.Translates() && one.Target.Name == "" && one.Target.Kind != Ends {
					t.Errorf("a translation without a name: %+v", one)
				}
			}
		}
		e := Editable(r)
		if e == nil {
			return
		}
		e.fingerprint()
		for _, o := range someOptions {
			if changed := Editable(rewritten(t, e, o)); changed != nil && changed.Options() != o {
				t.Errorf("%q became %q", o, changed.Options())
			}
		}
	})
}

func FuzzLegacy(f *testing.F) {
	var info []byte
	readAnswers(f, "testdata/iptables-legacy.txt", func(_ string, b []byte) {
		if len(b) == LegacyInfoSize {
			info = b
			return
		}
		f.Add(info, b, true)
		f.Add(info, b, false)
	})
	f.Fuzz(func(t *testing.T, head, blob []byte, ip6 bool) {
		defer testutil.Bounded(t, len(head)+len(blob)+8)()
		info, err := ParseLegacyInfo(head)
		if err != nil {
			return
		}
		l := &LayoutIP4
		if ip6 {
			l = &LayoutIP6
		}
		table, err := ParseLegacy(l, "nat", info, blob)
		if err != nil {
			return
		}
		Audit([]*Table{table}, func(netip.Addr) string { return "lan0" })
		for _, r := range NATRules([]*Table{table}, &Budget{}).Rules {
			if r.Kind == "" || r.Text == "" || r.Target != "" {
				t.Errorf("a translation without kind or text: %+v", r)
			}
		}
	})
}

func FuzzXt(f *testing.F) {
	for name := range XTKinds {
		f.Add(name, uint32(0), make([]byte, 24), false)
		f.Add(name, uint32(1), make([]byte, 40), true)
		f.Add(name, uint32(2), make([]byte, 48), false)
	}
	f.Add("tcp", uint32(0), make([]byte, 12), false)
	f.Add("udp", uint32(0), make([]byte, 10), false)
	f.Fuzz(func(t *testing.T, name string, revision uint32, data []byte, ip6 bool) {
		defer testutil.Bounded(t, len(name)+len(data)+16)()
		var r Rule
		r.match(name, revision, data, ip6)
		r.target(name, revision, data, ip6)
		if r.Target.Translates() != (XTKinds[name] != "") {
			t.Errorf("%s translates: %v", name, r.Target.Translates())
		}
	})
}
