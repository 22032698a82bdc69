package loose

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/text"
	"github.com/natkit/natkit/internal/lazyregexp"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// Host is what a tree has of one network namespace of one machine.
type Host struct {
	// Samples are one or two instants, the older first. One alone compares with nothing.
	Samples []*Sample
	// Texts are what was recognised, in the order of their time.
	Texts []*Text
	// Notes are what has to be said about them: what contradicts, what could not be read. Lost is what an archive or a
	// file that is truncated or damaged does not have.
	Notes, Lost []string
	// TimesKnown is whether it is known how long lies between the samples.
	TimesKnown bool
	// Netns is the name of the network namespace; empty for the host's own.
	Netns string
	walk  Walk
}

// place is whose a text is: a node of a cluster, a network namespace; both are often empty.
type place struct{ node, netns string }

func (p place) String() string { return strings.Trim(p.node+"/"+p.netns, "/") }

var (
	ofNode  = lazyregexp.New(`(?:^|/)(?:nodes|hosts|host_service_logs)/([^/]+)/|(?:^|/)(sosreport-[^/]+|sos-[^/]+)/`)
	ofNetns = lazyregexp.New(`(?:ip_netns_exec_|/namespaces/|/netns/)([\w.:-]+?)(?:/|_(?:conntrack|sysctl|ip|ip6tables|iptables|ss|netstat|nstat|nft|ethtool|-)|$)`)
)

func placeOf(t *Text) (p place) {
	if m := ofNode.FindStringSubmatch(t.File); m != nil {
		p.node = cmp.Or(m[1], m[2])
	}
	if m := ofNetns.FindStringSubmatch(t.File); m != nil && !strings.HasPrefix(t.File, "namespaces/") {
		p.netns = m[1]
	}
	return p
}

// Read recognises the texts of a tree and returns those of one host: of the node and network namespace that of
// names, "node/netns", "node", "/netns"; if that is empty of the only node, outside of its namespaces.
func Read(walk Walk, of string, o Options) (*Host, error) {
	r := &reader{Options: o}
	if err := walk(r.read); err != nil {
		return nil, err
	}
	texts, err := r.choose(of)
	if err != nil {
		return nil, err
	}
	_, netns, _ := strings.Cut(of, "/")
	h := &Host{Texts: texts, Notes: r.notes, Lost: r.lost, Netns: netns, walk: walk}
	h.dropCut()
	h.arrange()
	return h, nil
}

// ErrNothing is the cause where a tree has no text that natkit reads.
var ErrNothing = errors.New("natkit recognises none of its files")

// choose returns the texts of a place.
func (r *reader) choose(of string) ([]*Text, error) {
	if len(r.texts) == 0 {
		switch {
		case r.files == 0:
			return nil, fmt.Errorf("%w: it has no file", ErrNothing)
		case len(r.lost) > 0:
			return nil, fmt.Errorf("%w: %s", ErrNothing, r.lost[0])
		case len(r.notes) > 0: // it is damaged, or may not be read
			return nil, fmt.Errorf("%w: %s", ErrNothing, r.notes[0])
		case len(r.unknown) == 0:
			return nil, fmt.Errorf("%w: all are configuration (below etc/)", ErrNothing)
		}
		return nil, fmt.Errorf("%w: %d, such as %s; it reads the output of conntrack -S, conntrack -L, sysctl -a, dmesg, nstat -az, ss -s, iptables-save, nft list ruleset, ip and files of /proc", ErrNothing, r.others, r.unknown[0])
	}
	byPlace := map[place][]*Text{}
	hosts := hostsOf(r.texts)
	for _, t := range r.texts {
		p := placeOf(t)
		if p.node == "" && len(hosts) > 1 {
			p.node = t.host
		}
		byPlace[p] = append(byPlace[p], t)
	}
	nodes := map[string]bool{}
	for p := range byPlace {
		nodes[p.node] = true
	}
	node, netns, _ := strings.Cut(of, "/")
	named := slices.Sorted(maps.Keys(nodes))
	if len(named) > 1 { // what is of no node is about the cluster
		named = slices.DeleteFunc(named, func(n string) bool { return n == "" })
	}
	switch {
	case node != "" && !nodes[node]:
		return nil, fmt.Errorf("it has no host %q: it has %s", node, strings.Join(named, ", "))
	case node == "" && len(named) > 1:
		return nil, fmt.Errorf("it has texts of %d hosts: choose one of %s; natkit doctor --of HOST does", len(named), strings.Join(named, ", "))
	case node == "":
		node = named[0]
	}
	if rest := byPlace[place{}]; len(hosts) > 1 && node != "" && len(rest) > 0 {
		r.note("%s passed over, such as %s: nothing says of which of the hosts it is", units.Plural(int64(len(rest)), "text is", "texts are"), rest[0].File)
	}
	texts := byPlace[place{node, netns}]
	if len(texts) == 0 {
		return nil, fmt.Errorf("it has nothing of the network namespace %q of %s", netns, cmp.Or(node, "the host"))
	}
	return append(texts, r.shared(byPlace, node, netns)...), nil
}

// shared are the texts of a machine that hold in each of its network namespaces.
func (r *reader) shared(byPlace map[place][]*Text, node, netns string) (all []*Text) {
	if netns == "" {
		return nil
	}
	for _, t := range byPlace[place{node, ""}] {
		switch t.kind.name {
		case "dmesg", "journalctl -k", kindUname, "/proc/version", "/proc/meminfo", "/proc/slabinfo", "/proc/uptime", "uptime", kindDate:
			all = append(all, t)
		}
	}
	return all
}

// ending is what names of files differ in that were written one after the other.
var ending = lazyregexp.New(`(?:[._-]?\d+)?(?:\.(?:txt|log|out|gz|xz|bz2|zst))*$`)

// series is what a text is of: texts of one series are of one thing at several times.
func (t *Text) series() string {
	of := ""
	switch {
	case strings.Contains(t.hints(), "-6"):
		of = " of IPv6"
	case t.kind.streamed && strings.HasSuffix(t.File, "_conntrack"): // the kernel's file, which may stand beside a list
		of = " of /proc"
	}
	if t.kind.counts || t.kind.log || t.kind.streamed {
		return t.kind.name + of
	}
	name := cmp.Or(t.Command, path.Base(t.File))
	if strings.HasPrefix(t.kind.name, "/proc/sys") {
		name = t.hints()[strings.LastIndex(t.hints(), "proc/sys/"):]
	}
	name = ending.ReplaceAllString(name, "")
	if t.kind.name == "sysctl -a" && t.part > 0 { // some here, some there: all are of one host
		name += fmt.Sprintf(" part %d", t.part)
	}
	return t.kind.name + " " + name
}

// dropCut leaves out texts that are cut short, of whose lines nothing follows: the socket, route or counter that a check
// asks for may be in the rest.
func (h *Host) dropCut() {
	h.Texts = slices.DeleteFunc(h.Texts, func(t *Text) bool {
		drop := t.cut && !t.kind.cuttable
		if drop {
			h.Notes = append(h.Notes, fmt.Sprintf("%s: it is cut short, and is not used", t))
		}
		return drop
	})
}

// arrange sorts texts by their time and makes samples of them: the last text of each series is of the last one, the
// one before it of the first. What does not count is the same in both where there is one text of it.
func (h *Host) arrange() {
	slices.SortStableFunc(h.Texts, func(a, b *Text) int {
		return cmp.Or(a.At.Compare(b.At), compareNames(a.File, b.File), cmp.Compare(a.first, b.first))
	})
	bySeries := map[string][]*Text{}
	twice := false
	for _, t := range h.Texts {
		s := t.series()
		bySeries[s] = append(bySeries[s], t)
		twice = twice || len(bySeries[s]) > 1 && (t.kind.counts || t.kind.streamed)
	}
	last := newSample()
	h.fill(last, func(of []*Text) *Text { return of[len(of)-1] }, bySeries)
	h.Samples = []*Sample{last}
	if !twice {
		h.clocks()
		return
	}
	first := newSample()
	h.fill(first, func(of []*Text) *Text {
		switch t := of[max(0, len(of)-2)]; {
		case len(of) > 1 || !t.kind.counts && !t.kind.streamed && !t.kind.log:
			return t
		}
		return nil
	}, bySeries)
	first.HasLog = last.HasLog
	if first.SinceNstat && last.SinceNstat {
		first.startNstat(last)
	}
	if back := wentBack(first, last); back != "" {
		h.Notes = append(h.Notes, back+": its texts are of two hosts or two boots, or their times are wrong; the later ones alone are used")
		h.clocks()
		return
	}
	h.Samples = []*Sample{first, last}
	h.clocks()
}

// gauges are in /proc/net/snmp and go up and down (RFC 4022).
var gauges = []string{"CurrEstab", "RtoAlgorithm", "RtoMin", "RtoMax", "MaxConn", "Forwarding", "DefaultTTL"}

// protocolCounters are those in /proc/net/snmp and netstat: a line of names and one of numbers for each group.
func (s *Sample) protocolCounters() map[string]uint64 {
	all := map[string]uint64{}
	for _, path := range []string{"/proc/net/snmp", "/proc/net/netstat"} {
		var names []string
		for words := range fieldsOf(s.Files[path]) {
			if len(names) == 0 || names[0] != words[0] || len(names) != len(words) {
				names = words
				continue
			}
			for i, name := range names[1:] {
				if n, err := strconv.ParseUint(words[i+1], 10, 64); err == nil && !slices.Contains(gauges, name) {
					all[strings.TrimSuffix(words[0], ":")+name] = n
				}
			}
			names = nil
		}
	}
	return all
}

// wentBack names what only grows, and is less in the later sample; empty where there is none. The counters of conntrack
// have 32 bits, and may pass their end, as may others of a small machine.
func wentBack(first, last *Sample) string {
	if first.HasUptime && last.HasUptime && last.Uptime < first.Uptime {
		return fmt.Sprintf("the uptime went back from %.0f to %.0f s", first.Uptime, last.Uptime)
	}
	for i := range min(len(first.Stats), len(last.Stats)) {
		for _, name := range slices.Sorted(maps.Keys(first.Stats[i])) {
			before := first.Stats[i][name]
			if now, there := last.Stats[i][name]; there && less(now, before) {
				return fmt.Sprintf("conntrack's counter %s went back from %d to %d", name, before, now)
			}
		}
	}
	were, are := first.protocolCounters(), last.protocolCounters()
	for _, name := range slices.Sorted(maps.Keys(were)) {
		if now, there := are[name]; there && less(now, were[name]) {
			return fmt.Sprintf("the counter %s went back from %d to %d", name, were[name], now)
		}
	}
	return ""
}

// less reports whether a counter is less than before, and did not pass the end of its 32 bits.
func less(now, before uint64) bool {
	return now < before && (before > math.MaxUint32 || int32(uint32(now)-uint32(before)) < 0)
}

// fill reads the text of each series that is chosen.
func (h *Host) fill(s *Sample, choose func([]*Text) *Text, bySeries map[string][]*Text) {
	var texts []*Text
	for _, of := range bySeries {
		if t := choose(of); t != nil {
			texts = append(texts, t)
		}
	}
	slices.SortStableFunc(texts, func(a, b *Text) int {
		return cmp.Or(a.At.Compare(b.At), compareNames(a.File, b.File), cmp.Compare(a.first, b.first))
	})
	for _, t := range texts {
		switch {
		case t.kind.streamed:
			s.Table = t
			continue
		case t.kind.path != "":
			s.Files[t.kind.path] = t.Data
			continue
		case t.kind.unused != "":
			s.note("%s: recognised, not used: %s", t, t.kind.unused)
			continue
		}
		if err := t.kind.read(s, t); err != nil {
			s.note("%s: %v", t, err)
		}
	}
	if s.Table != nil && !s.Table.cut {
		s.countIs(uint64(s.Table.Entries))
	}
	h.setTime(s, texts)
	s.finish()
	for _, n := range s.notes { // most are of both samples
		if !slices.Contains(h.Notes, n) && len(h.Notes) < mostShown {
			h.Notes = append(h.Notes, n)
		}
	}
}

// DropParts leaves out lists that have less than half of the entries that there were, by the kernel's own count: what head
// or grep left of a list, from which nothing follows for the rest.
func (h *Host) DropParts() {
	const missing = 100 // a few come and go between two commands
	for _, s := range h.Samples {
		count, err := strconv.ParseInt(s.Sysctls[snapshot.ConntrackCount], 10, 64)
		if err != nil || s.Table == nil || count <= 2*s.Table.Entries || count-s.Table.Entries <= missing {
			continue
		}
		h.Notes = append(h.Notes, fmt.Sprintf("%s: it has %s of %s entries, and is not used: it says nothing about the others", s.Table, units.Count(s.Table.Entries), units.Count(count)))
		s.Table = nil
	}
}

// setTime finds out when a sample was taken: when what counts was printed.
func (h *Host) setTime(s *Sample, texts []*Text) {
	uptimeAt := s.At
	s.At = time.Time{}
	for _, counts := range []bool{true, false} {
		for _, t := range texts {
			if s.At.IsZero() && !t.At.IsZero() && (t.kind.counts || t.kind.streamed) == counts {
				s.At = t.At
			}
		}
	}
	if s.HasUptime && !uptimeAt.IsZero() && !s.At.IsZero() { // the moment of the counters, not of uptime
		s.Uptime = max(0, s.Uptime+s.At.Sub(uptimeAt).Seconds())
	}
	s.setClock()
}

const (
	// leastGap is the time in seconds between samples whose times are told apart; maxSpan the longest that is one.
	leastGap = 0.05
	maxSpan  = 366 * 86400
)

// clocks gives both samples a time on one clock, and the logs numbers.
func (h *Host) clocks() {
	last := h.Samples[len(h.Samples)-1]
	if len(h.Samples) == 1 {
		h.TimesKnown = last.HasUptime
		return
	}
	first := h.Samples[0]
	gap := last.At.Sub(first.At).Seconds()
	if first.At.IsZero() || last.At.IsZero() {
		gap = 0
	}
	if first.HasUptime && last.HasUptime && last.Uptime > first.Uptime {
		gap = last.Uptime - first.Uptime
	}
	h.TimesKnown = gap >= leastGap && gap <= maxSpan
	if !h.TimesKnown {
		gap = 0
	}
	if !last.HasUptime && len(last.Log) > 0 {
		last.Uptime = last.Log[len(last.Log)-1].Uptime
	}
	if last.Uptime < gap {
		last.Uptime = gap
	}
	first.Uptime = last.Uptime - gap
	if first.HasUptime != last.HasUptime {
		first.HasUptime = last.HasUptime
	}
}

// compareNames compares names with the numbers in them by their value: x.9 is before x.10.
func compareNames(a, b string) int {
	for a != "" && b != "" {
		x, y := digits(a), digits(b)
		if x != "" && y != "" {
			nx, ny := strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
			if c := cmp.Or(cmp.Compare(len(nx), len(ny)), cmp.Compare(nx, ny)); c != 0 {
				return c
			}
			a, b = a[len(x):], b[len(y):]
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

func digits(s string) string {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return s[:n]
}

// errFound ends a walk.
var errFound = errors.New("found")

// EachEntry reads a list of connections where it stands; fn must not keep the entry. It is io.ErrUnexpectedEOF behind the
// last line of a list that is cut short.
func (h *Host) EachEntry(t *Text, fn func(*conntrack.Entry) error) (stats text.Stats, err error) {
	var failed error
	err = h.walk(func(f *File) error {
		if f.Name != t.File {
			return nil
		}
		plain, err := decompressed(f.Reader)
		if err == nil {
			_, err = io.CopyN(io.Discard, plain, t.first)
		}
		if err == nil {
			if stats, err = text.Each(io.LimitReader(plain, t.end-t.first), fn); t.cut && err == nil {
				err = io.ErrUnexpectedEOF
			}
		}
		if failed = err; errors.Is(err, text.ErrEmpty) { // as is the list of an empty table
			failed = nil
		}
		return errFound
	})
	switch {
	case errors.Is(err, errFound):
		return stats, failed
	case err == nil:
		err = fmt.Errorf("%s is gone", t.File)
	}
	return stats, err
}

// LogNext returns the number, from 1 on, of the first line that was logged after a sample: of the last one all lines
// are before. Where there is one log, those of the first one are known by their time; without it, all are new.
func (h *Host) LogNext(sample int) uint64 {
	first, last := h.Samples[sample], h.Samples[len(h.Samples)-1]
	if first == last {
		return uint64(len(last.Log)) + 1
	}
	if n := len(first.Log); n > 0 {
		for i := len(last.Log) - 1; i >= 0; i-- {
			if last.Log[i] == first.Log[n-1] {
				return uint64(i) + 2
			}
		}
		return 1
	}
	if !first.HasUptime {
		return 1
	}
	n := 0
	for n < len(last.Log) && last.Log[n].Timed && last.Log[n].Uptime < first.Uptime {
		n++
	}
	return uint64(n) + 1
}

// Last is the newest sample.
func (h *Host) Last() *Sample { return h.Samples[len(h.Samples)-1] }

// Ruleset is the newest text of rules of each command, as a gateway's file is made of them; version is that of a text that
// does not say.
func (h *Host) Ruleset(version int) *ruleset.Ruleset {
	newest := map[string]*Text{}
	for _, t := range h.Texts {
		if t.kind.name == "iptables-save" || t.kind.name == "nft list ruleset" {
			newest[t.series()] = t
		}
	}
	set := &ruleset.Ruleset{}
	for _, series := range slices.Sorted(maps.Keys(newest)) {
		t := newest[series]
		v := version
		if strings.Contains(t.hints(), "ip6tables") {
			v = 6
		}
		one := ruleset.ParseFile(t.File, string(t.Data), v)
		for _, table := range one.Tables {
			// What iptables-nft keeps nft shows as well, and iptables-save, which comes first here, in words of its own.
			if !slices.ContainsFunc(set.Tables, func(o *ruleset.Table) bool { return o.Family == table.Family && o.Name == table.Name }) {
				set.Tables = append(set.Tables, table)
			}
		}
		if t.cut {
			set.Notes = append(set.Notes, ruleset.Note{Kind: ruleset.Untranslated, Text: t.File, Reason: "cannot be read to its end: " + ruleset.CutShort, Rules: 1})
		}
		for _, n := range one.Notes {
			n.Text = t.File + ": " + n.Text
			set.Notes = append(set.Notes, n)
		}
	}
	set.Foreign = len(set.Tables) == 0
	return set
}
