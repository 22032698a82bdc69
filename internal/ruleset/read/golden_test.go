package read

import (
	"bufio"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/ruleset"
	"golang.org/x/sys/unix"
)

var update = flag.Bool("update", false, "write ../testdata anew from this kernel's answers")

// answers are what a kernel said, in hexadecimal: lines of a word and bytes.
type answers struct{ lines [][2]string }

const (
	nftAnswers    = "../testdata/nftables.txt"
	legacyAnswers = "../testdata/iptables-legacy.txt"
)

func (a *answers) add(word string, b []byte) {
	a.lines = append(a.lines, [2]string{word, hex.EncodeToString(b)})
}

func (a *answers) write(t *testing.T, file string) {
	t.Helper()
	var b strings.Builder
	for _, l := range a.lines {
		fmt.Fprintln(&b, l[0], l[1])
	}
	if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

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

// TestUpdateAnswers writes what this kernel says of the rules of the other tests.
func TestUpdateAnswers(t *testing.T) {
	if !*update {
		return
	}
	w := newWorld(t)
	w.nft(readable)
	var a answers
	c, err := Dial(w.ns)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, q := range []struct {
		word string
		msg  int
	}{{"chain", unix.NFT_MSG_GETCHAIN}, {"rule", unix.NFT_MSG_GETRULE}} {
		all, err := c.ask(q.msg, unix.AF_UNSPEC, unix.NLM_F_DUMP, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range all {
			a.add(q.word, b)
		}
	}
	a.write(t, nftAnswers)
	w.updateLegacy()
}

func (w world) updateLegacy() {
	w.t.Helper()
	for _, line := range iptablesRules {
		words := strings.Fields(line)
		w.run("", append([]string{words[0] + "-legacy", "-t", "nat"}, words[1:]...)...)
	}
	var a answers
	err := w.ns.Do(func() error {
		for _, s := range legacySources {
			fd, err := unix.Socket(s.domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			b := make([]byte, ruleset.LegacyInfoSize)
			copy(b, "nat")
			if err := getsockopt(fd, s.level, optInfo, b); err != nil {
				return err
			}
			_, blob, err := s.ask("nat")
			if err != nil {
				return err
			}
			a.add(s.layout.Family+"-info", b)
			a.add(s.layout.Family+"-entries", blob)
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	a.write(w.t, legacyAnswers)
}

// verdictsTo are the elements of a verdict map that jump to a chain.
func verdictsTo(t testing.TB, chain string) []ruleset.Element {
	t.Helper()
	nest := func(kind uint16, b []byte) []byte { return netlink.AppendAttr(nil, kind|unix.NLA_F_NESTED, b) }
	jump := int32(unix.NFT_JUMP)
	verdict := netlink.AppendText(netlink.AppendU32(nil, unix.NFTA_VERDICT_CODE, uint32(jump)), unix.NFTA_VERDICT_CHAIN, chain)
	elements, err := ruleset.ParseElements(nest(unix.NFTA_LIST_ELEM, nest(unix.NFTA_SET_ELEM_DATA, nest(unix.NFTA_DATA_VERDICT, verdict))))
	if err != nil {
		t.Fatal(err)
	}
	return elements
}

// recorded are the tables of recorded answers, without the elements of other maps.
func recorded(t testing.TB) (all []*ruleset.Dump) {
	t.Helper()
	dump := func(k ruleset.TableKey) *ruleset.Dump {
		i := slices.IndexFunc(all, func(d *ruleset.Dump) bool { return d.Key == k })
		if i < 0 {
			i = len(all)
			all = append(all, &ruleset.Dump{Key: k, Links: map[uint32]string{1: "lo"}, Elements: map[string][]ruleset.Element{}})
		}
		return all[i]
	}
	readAnswers(t, nftAnswers, func(word string, b []byte) {
		switch word {
		case "chain":
			c, err := ruleset.ParseChain(b)
			if err != nil {
				t.Fatal(err)
			}
			dump(c.Key).Chains = append(dump(c.Key).Chains, c)
		case "rule":
			r, err := ruleset.ParseRule(b)
			if err != nil {
				t.Fatal(err)
			}
			d := dump(r.Key)
			d.Rules = append(d.Rules, r)
			for _, e := range r.Exprs {
				if e.Name == "lookup" && e.Data.Has(unix.NFTA_LOOKUP_DREG) && e.Data.U32(unix.NFTA_LOOKUP_DREG) == 0 {
					d.Elements[e.Data.Text(unix.NFTA_LOOKUP_SET)] = append(verdictsTo(t, "mapped"), verdictsTo(t, "mapped")...)
				}
			}
		}
	})
	for _, d := range all {
		d.Identify(7)
	}
	return slices.DeleteFunc(all, func(d *ruleset.Dump) bool { return d.Key.Name == "asleep" })
}

func TestRecordedNftables(t *testing.T) {
	var all []*ruleset.Table
	for _, d := range recorded(t) {
		all = append(all, d.Table(&ruleset.Budget{}))
	}
	if d := cmp.Diff(readableRules, describeAll(ruleset.NATRules(all, &ruleset.Budget{}).Rules)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// TestIDsStay: a rule that natkit changed once is known by its ID to a later natkit, which
// takes the change back.
func TestIDsStay(t *testing.T) {
	found := false
	for _, d := range recorded(t) {
		for r, id := range d.IDs {
			if r.Chain == "sub" {
				found = true
				if id != "netns 7 ip shop sub cd6980cb" {
					t.Errorf("the rule of chain sub is now called %q", id)
				}
			}
		}
	}
	if !found {
		t.Error("the rule of chain sub has no ID")
	}
}

func TestRecordedLegacy(t *testing.T) {
	var all []*ruleset.Table
	var info ruleset.LegacyInfo
	readAnswers(t, legacyAnswers, func(word string, b []byte) {
		family, what, _ := strings.Cut(word, "-")
		l := map[string]*ruleset.Layout{"ip": &ruleset.LayoutIP4, "ip6": &ruleset.LayoutIP6}[family]
		if what == "info" {
			var err error
			if info, err = ruleset.ParseLegacyInfo(b); err != nil {
				t.Fatal(err)
			}
			return
		}
		table, err := ruleset.ParseLegacy(l, "nat", info, b)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, table)
	})
	if d := cmp.Diff(iptablesRead, describeAll(ruleset.NATRules(all, &ruleset.Budget{}).Rules)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}
