package fleet

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"path"
	"strconv"
	"strings"
	"time"
)

// ListName is the file in which a collector (natkit-fleet, kubectl natkit, the Ansible role) keeps what it did, beside the
// bundles.
const ListName = "natkit-nodes.tsv"

// List is a collector's list. Each line has the node, when the collector began and ended with it by its own clock (seconds
// since 1970), and "ok" or why there is no bundle, with tabs between. The bundle of NODE is NODE.tar.gz in Dir; the last
// line of a node counts.
type List struct {
	Dir     string
	Entries []Entry
	// Wrong are lines that are none.
	Wrong int
	at    map[string]int
}

// Entry is a node of a collector's list.
type Entry struct {
	Node         string
	Began, Ended time.Time
	// Failure is empty where there is a bundle.
	Failure string
}

const (
	mostEntries = 100_000
	mostWhy     = 1000
)

// ParseList reads a collector's list.
func ParseList(dir string, r io.Reader) (List, error) {
	l := List{Dir: dir, at: map[string]int{}}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := lines.Text()
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		e, ok := parseEntry(line)
		if !ok {
			l.Wrong++
			continue
		}
		if i, known := l.at[e.Node]; known {
			l.Entries[i] = e
			continue
		}
		if len(l.Entries) == mostEntries {
			return l, fmt.Errorf("it lists more than %d nodes", mostEntries)
		}
		l.at[e.Node] = len(l.Entries)
		l.Entries = append(l.Entries, e)
	}
	return l, lines.Err()
}

func parseEntry(line string) (Entry, bool) {
	f := strings.SplitN(line, "\t", 4)
	if len(f) != 4 || f[0] == "" || len(f[0]) > mostName {
		return Entry{}, false
	}
	began, ok1 := parseTime(f[1])
	ended, ok2 := parseTime(f[2])
	e := Entry{Node: f[0], Began: began, Ended: ended, Failure: f[3][:min(len(f[3]), mostWhy)]}
	if e.Failure == "ok" {
		e.Failure = ""
	}
	return e, ok1 && ok2 && f[3] != ""
}

// parseTime reads seconds since 1970; empty is not known.
func parseTime(text string) (time.Time, bool) {
	if text == "" {
		return time.Time{}, true
	}
	s, err := strconv.ParseFloat(text, 64)
	if err != nil || !(s >= 0 && s <= 1<<40) {
		return time.Time{}, false
	}
	whole, part := math.Modf(s)
	return time.Unix(int64(whole), int64(part*1e9)).UTC(), true
}

// find returns the entry of the node whose bundle a source is, as 'NODE.tar.gz' in the list's directory; nil where there is
// none.
func (l *List) find(source string) *Entry {
	if path.Dir(slashes(source)) != path.Clean(slashes(l.Dir)) {
		return nil
	}
	if i, ok := l.at[stem(source)]; ok {
		return &l.Entries[i]
	}
	return nil
}

func slashes(name string) string { return strings.ReplaceAll(name, `\`, "/") }

// entryOf is the collector's line about a node whose bundle it fetched; nil where there is none.
func entryOf(n *Node, lists []List) *Entry {
	for i := range lists {
		if e := lists[i].find(n.Source); e != nil && e.Failure == "" {
			return e
		}
	}
	return nil
}

// applyLists gives nodes the name that the collector knows them by.
func applyLists(nodes []*Node, lists []List) {
	for _, n := range nodes {
		if e := entryOf(n, lists); e != nil {
			n.Name = strings.ToValidUTF8(e.Node, "\uFFFD")
		}
	}
}

// missing are the nodes of the lists without a bundle.
func missing(lists []List) []Failure {
	all := []Failure{}
	for _, l := range lists {
		for _, e := range l.Entries {
			if e.Failure != "" {
				all = append(all, Failure{Node: e.Node, Why: e.Failure})
			}
		}
		if l.Wrong > 0 {
			all = append(all, Failure{Source: path.Join(l.Dir, ListName), Why: fmt.Sprintf("%d of its lines are not NODE, BEGAN, ENDED, RESULT with tabs between", l.Wrong)})
		}
	}
	return all
}
