package read

import (
	"bufio"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

var update = flag.Bool("update", false, "write testdata anew from this kernel's answers")

// answers are what a kernel said, in hexadecimal: lines of a word and bytes.
type answers struct{ lines [][2]string }

const (
	nftAnswers    = "testdata/nftables.txt"
	legacyAnswers = "testdata/iptables-legacy.txt"
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
	c, err := dial(w.ns)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, q := range []struct {
		word string
		msg  int
	}{{"chain", unix.NFT_MSG_GETCHAIN}, {"rule", unix.NFT_MSG_GETRULE}} {
		all, err := c.ask(q.msg, unix.AF_UNSPEC, netlink.Dump, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range all {
			a.add(q.word, m.Data)
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
			b := make([]byte, infoBytes)
			copy(b, "nat")
			if err := getsockopt(fd, s.level, optInfo, b); err != nil {
				return err
			}
			_, blob, err := s.table(fd, "nat")
			if err != nil {
				return err
			}
			a.add(s.layout.family+"-info", b)
			a.add(s.layout.family+"-entries", blob)
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	a.write(w.t, legacyAnswers)
}

// tablesOf are the tables of recorded answers, without maps' elements.
func tablesOf(t testing.TB) *ruleset {
	t.Helper()
	set, at := &ruleset{links: map[uint32]string{1: "lo"}}, map[tableKey]int{}
	table := func(k tableKey) *kernelTable {
		if _, ok := at[k]; !ok {
			at[k] = len(set.tables)
			set.tables = append(set.tables, kernelTable{key: k, verdicts: map[string][]string{}, targets: map[*kernelRule]string{}})
		}
		return &set.tables[at[k]]
	}
	readAnswers(t, nftAnswers, func(word string, b []byte) {
		switch word {
		case "chain":
			c, err := parseChain(b)
			if err != nil {
				t.Fatal(err)
			}
			table(tableKey{c.family, c.table}).chains = append(table(tableKey{c.family, c.table}).chains, c)
		case "rule":
			r, err := parseRule(b)
			if err != nil {
				t.Fatal(err)
			}
			k := table(tableKey{r.family, r.table})
			k.rules = append(k.rules, r)
			for _, e := range r.exprs { // a map's elements are asked for by its name
				if e.name == "lookup" && e.data.has(nftLookupDreg) && e.data.u32(nftLookupDreg) == 0 {
					k.verdicts[e.data.text(nftLookupSet)] = []string{"mapped", "mapped"}
				}
			}
		}
	})
	return set
}

func TestRecordedNftables(t *testing.T) {
	set := tablesOf(t)
	set.identify(7)
	var all []found
	for i := range set.tables {
		if set.tables[i].key.name != "asleep" {
			all = append(all, set.tables[i].found(set.links, newBudget())...)
		}
	}
	if d := cmp.Diff(readableRules, describeAll(inHookOrder(all))); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// TestTargetsStay: a rule that natkit changed once is known by its target to a
// later natkit, which takes the change back.
func TestTargetsStay(t *testing.T) {
	set := tablesOf(t)
	set.identify(7)
	for _, table := range set.tables {
		for r, target := range table.targets {
			if r.chain == "sub" && target != "netns 7 ip shop sub cd6980cb" {
				t.Errorf("the rule of chain sub is now called %q", target)
			}
		}
	}
}

func TestRecordedLegacy(t *testing.T) {
	var all []found
	var info tableInfo
	readAnswers(t, legacyAnswers, func(word string, b []byte) {
		family, what, _ := strings.Cut(word, "-")
		l := map[string]layout{"ip": layoutIP4, "ip6": layoutIP6}[family]
		if what == "info" {
			var err error
			if info, err = parseInfo(b); err != nil {
				t.Fatal(err)
			}
			return
		}
		table, err := parseLegacy(l, "nat", info, b)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, table.rules(newBudget())...)
	})
	if d := cmp.Diff(iptablesRead, describeAll(inHookOrder(all))); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}
