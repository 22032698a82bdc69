package loose

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/lazyregexp"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/snapshot"
)

// Sample is one instant of a host, in the forms in which the kernel gives it.
type Sample struct {
	// At is when it was taken; zero where that is not known. Uptime is seconds since the start, with HasUptime.
	At        time.Time
	Uptime    float64
	HasUptime bool
	// Files are those below /proc and /sys, by their path.
	Files map[string][]byte
	// Sysctls are by their names with dots; AllSysctls is true where one text had all of a host.
	Sysctls    map[string]string
	AllSysctls bool
	// Stats are the counters of each CPU, nil where there are none, and StatsSource where they stood.
	Stats       []map[string]uint64
	StatsSource string
	// Release and Arch are the kernel's.
	Release, Arch string
	// Netns is the inode of the network namespace; 0 where that is not known.
	Netns uint64
	// Log are the lines of the kernel log, the oldest first; HasLog is true where there was one.
	Log    []LogLine
	HasLog bool
	// Rules are the tables of rules, nil where there is no text of them.
	Rules []*ruleset.Table
	// RulesCut is the file whose rules are cut short; empty where none is.
	RulesCut string
	// FiltersUnknown is the file of rules of which nothing says whether there is a table filter beside them, as of
	// 'iptables-save -t nat'; empty where none is.
	FiltersUnknown string
	// Sockets are those of TCP and UDP, with HasSockets where connected ones may be among them; Listening is true where listening ones are among them.
	Sockets               []Socket
	HasSockets, Listening bool
	// Table is the list of connections; nil where there is none.
	Table *Text

	// SinceNstat is true where the counters of TCP, UDP and IP are from nstat without -a.
	SinceNstat bool

	network
	// filters is whether the table filter is known, partOfRules a file that leaves that open; by the version of IP, 0 for both.
	filters     map[int]bool
	partOfRules map[int]string
	// grown are counters by how much they grew since nstat ran before.
	grown map[string]uint64
	// listed is true where the list of sockets has those of UDP as well.
	listed   bool
	counters map[string]uint64
	count    *uint64
	notes    []string
	// from has where a sysctl was read.
	from map[string]*Text
}

func newSample() *Sample {
	return &Sample{Files: map[string][]byte{}, Sysctls: map[string]string{}, from: map[string]*Text{}, counters: map[string]uint64{}, filters: map[int]bool{}, partOfRules: map[int]string{}}
}

func (s *Sample) note(format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
}

// addFile adds a file of the kernel unless there is one: what is the kernel's own comes first.
func (s *Sample) addFile(path string, data []byte) {
	if _, there := s.Files[path]; !there {
		s.Files[path] = data
	}
}

func (s *Sample) countIs(n uint64) {
	if s.count == nil {
		s.count = &n
	}
}

func (s *Sample) addCounters(all map[string]uint64) {
	for name, n := range all {
		if _, there := s.counters[name]; !there {
			s.counters[name] = n
		}
	}
}

// finish puts what was read from words into files of the kernel's form.
func (s *Sample) finish() {
	_, snmp := s.Files["/proc/net/snmp"]
	_, netstat := s.Files["/proc/net/netstat"]
	s.SinceNstat = len(s.grown) > 0 && len(s.counters) == 0 && !snmp && !netstat
	s.addProtocols(s.counters)
	if s.SinceNstat {
		s.addProtocols(s.grown)
	}
	if _, known := s.Sysctls[snapshot.ConntrackCount]; !known && s.count != nil {
		s.Sysctls[snapshot.ConntrackCount] = strconv.FormatUint(*s.count, 10)
	}
	for name, value := range s.Sysctls {
		s.addFile(sysctlPath(name), []byte(value+"\n"))
	}
	if s.Release == "" {
		s.Release = s.Sysctls["kernel.osrelease"]
	}
	if s.Release != "" {
		s.addFile(sysctlPath("kernel.osrelease"), []byte(s.Release+"\n"))
	}
}

// addProtocols puts counters into the kernel's files.
func (s *Sample) addProtocols(counters map[string]uint64) {
	for path, groups := range map[string][]string{"/proc/net/snmp": {"Ip", "Icmp", "Tcp", "Udp"}, "/proc/net/netstat": {"TcpExt", "IpExt"}} {
		if data := snmpFile(counters, groups...); len(data) > 0 {
			s.addFile(path, data)
		}
	}
	if data := linesFile(counters, "Ip6", "Udp6"); len(data) > 0 {
		s.addFile("/proc/net/snmp6", data)
	}
	if data := linesFile(counters, "Xfrm"); len(data) > 0 {
		s.addFile("/proc/net/xfrm_stat", data)
	}
}

// startNstat makes the counters of the first of two samples 0 where the last one has by how much they grew in between.
func (s *Sample) startNstat(last *Sample) {
	none := map[string]uint64{}
	for name := range last.grown {
		none[name] = 0
	}
	for _, path := range []string{"/proc/net/snmp", "/proc/net/netstat", "/proc/net/snmp6", "/proc/net/xfrm_stat"} {
		delete(s.Files, path)
	}
	s.addProtocols(none)
}

// linesFile writes counters as /proc/net/snmp6 and xfrm_stat have them.
func linesFile(counters map[string]uint64, prefixes ...string) []byte {
	var b bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(counters)) {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			fmt.Fprintf(&b, "%s\t%d\n", name, counters[name])
		}
	}
	return b.Bytes()
}

const procSys = `(?:^|[/ ])proc/sys/([\w./:-]+)`

var procSysName = lazyregexp.New(procSys)

// swapped exchanges the separators of sysctls' names and of paths: in a name '/' stands for a dot within a part.
var swapped = strings.NewReplacer(".", "/", "/", ".")

func sysctlPath(name string) string { return "/proc/sys/" + swapped.Replace(name) }

// fewestOfAll is how many sysctls a list of all has at least: those of one network namespace are more.
const fewestOfAll = 200

// ofAll begin names that each list of all has. It is sorted, and the last of them is behind net.netfilter: what grep
// left of ipv4, or what was cut short, is no such list.
var ofAll = []string{"net.core.", "net.ipv4.", "net.unix."}

// hasAll reports whether these are all sysctls of a host.
func hasAll(names map[string]bool) bool {
	return len(names) >= fewestOfAll && !slices.ContainsFunc(ofAll, func(prefix string) bool {
		for name := range names {
			if strings.HasPrefix(name, prefix) {
				return false
			}
		}
		return true
	})
}

var sysctlLine = lazyregexp.New(`^\s*((?:net|kernel|vm|fs|dev|user|debug|abi|crypto|sunrpc)\.[\w./:@*-]+)\s*=\s*(.*)$`)

// readSysctls reads names and values. Lines about what may not be read are passed over.
func readSysctls(s *Sample, t *Text) error {
	names := map[string]bool{}
	for line := range strings.Lines(string(t.Data)) {
		if m := sysctlLine.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil {
			s.setSysctl(t, m[1], strings.Join(strings.Fields(m[2]), " "))
			names[m[1]] = true
		}
	}
	if len(names) == 0 {
		return fmt.Errorf("has no line NAME = VALUE")
	}
	s.AllSysctls = s.AllSysctls || !t.cut && hasAll(names)
	return nil
}

// readSysctlFile reads a file below /proc/sys.
func readSysctlFile(s *Sample, t *Text) error {
	m := procSysName.FindStringSubmatch(cmp.Or(t.Command, t.File))
	if m == nil {
		m = procSysName.FindStringSubmatch(t.hints())
	}
	s.setSysctl(t, swapped.Replace(m[1]), strings.Join(strings.Fields(string(t.Data)), " "))
	return nil
}

// varies are sysctls that say how things are, and not how they are to be.
var varies = lazyregexp.New(`_count$|\.random\.|-nr$|-state$|^fs\.|\.pty\.nr|^kernel\.(?:ns_last_pid|sched|perf)|_mem$|^vm\.|tcp_fastopen_key|stat_refresh|ipfrag_secret|\.stable_secret|^dev\.|^debug\.`)

// setSysctl sets a value, the newest last; one that contradicts that of an earlier text is noted. Some have several lines
// in one text (kernel.core_modes).
func (s *Sample) setSysctl(t *Text, name, value string) {
	was, there := s.Sysctls[name]
	if there && was != value && s.from[name] != t && !varies.MatchString(name) {
		s.note("%s is %q in %s and %q in %s: the latter is taken", name, was, s.from[name].File, value, t.File)
	}
	s.Sysctls[name], s.from[name] = value, t
}

// readCount reads the number of entries as conntrack -C prints it.
func readCount(s *Sample, t *Text) error {
	n, err := strconv.ParseUint(strings.TrimSpace(string(t.Data)), 10, 63)
	if err != nil {
		return fmt.Errorf("is no number of entries: %w", err)
	}
	s.countIs(n)
	return nil
}

func readVersion(s *Sample, t *Text) error {
	for words := range fieldsOf(t.Data) {
		if len(words) > 2 && words[0] == "Linux" && words[1] == "version" {
			s.Release = words[2]
			return nil
		}
	}
	return fmt.Errorf("names no release")
}

// machines are the names of uname -m that natkit's users have.
var machines = lazyregexp.New(`^(?:x86_64|aarch64|i[3-6]86|armv\w+|ppc64\w*|s390x|riscv64|mips\w*|loongarch64)$`)

func readUname(s *Sample, t *Text) error {
	for words := range fieldsOf(t.Data) {
		if len(words) < 4 || words[0] != "Linux" {
			continue
		}
		s.Release = words[2]
		for _, w := range words[3:] {
			if machines.MatchString(w) {
				s.Arch = w
			}
		}
		return nil
	}
	return fmt.Errorf("names no release")
}

var netnsInode = lazyregexp.New(`net:\[(\d+)\]`)

func readNetns(s *Sample, t *Text) (err error) {
	s.Netns, err = strconv.ParseUint(netnsInode.FindStringSubmatch(string(t.Data))[1], 10, 64)
	return err
}

func readUptime(s *Sample, t *Text) error {
	first, _, _ := strings.Cut(strings.TrimSpace(string(t.Data)), " ")
	n, err := strconv.ParseFloat(first, 64)
	if err != nil || n < 0 || n > maxUptime {
		return fmt.Errorf("is no uptime: %.40q", first)
	}
	s.Uptime, s.HasUptime, s.At = n, true, t.At
	return nil
}

// maxUptime is longer than any machine ran, in seconds.
const maxUptime = 100 * 365 * 86400

var upFor = lazyregexp.New(`\bup\s+(?:(\d+) days?,\s+)?(?:(\d+):(\d\d)|(\d+) min)`)

// readUptimeWords reads what uptime prints, to the minute.
func readUptimeWords(s *Sample, t *Text) error {
	m := upFor.FindStringSubmatch(string(t.Data))
	if m == nil {
		return fmt.Errorf("says for how long in words that natkit does not know")
	}
	if s.HasUptime {
		return nil
	}
	var n [5]float64
	for i := 1; i < 5; i++ {
		n[i], _ = strconv.ParseFloat(m[i], 64)
	}
	if up := n[1]*86400 + n[2]*3600 + (n[3]+n[4])*60; up <= maxUptime {
		s.Uptime, s.HasUptime = up, true
	}
	return nil
}

// dateLayouts are those of date(1) in English, with -u, -R, -I and of timedatectl.
var dateLayouts = []string{time.UnixDate, "Mon Jan _2 15:04:05 PM MST 2006", "Mon Jan _2 03:04:05 PM MST 2006", "Mon _2 Jan 15:04:05 MST 2006", "Mon _2 Jan 2006 03:04:05 PM MST", "Mon _2 Jan 2006 15:04:05 MST",
	time.RFC1123Z, time.RFC3339, "2006-01-02T15:04:05,999999999-07:00", "2006-01-02 15:04:05.999999999-07:00", "2006-01-02 15:04:05", "2006-01-02T15:04:05"}

// parseDate reads the first line; false for one in another language.
func parseDate(text string) (time.Time, bool) {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	line = strings.TrimSpace(line)
	for _, layout := range dateLayouts {
		if at, err := time.Parse(layout, line); err == nil {
			return at, true
		}
	}
	return time.Time{}, false
}

// readSaved reads what iptables-save prints; of several versions of IP the header or the name says which.
func readSaved(s *Sample, t *Text) error { return s.addRules(t) }

func readNft(s *Sample, t *Text) error { return s.addRules(t) }

// numbered gives rules of iptables the numbers of their lines, by which parts of one rule are known as such. The kernel's
// own numbers only nft -a prints; without it, nothing of nft may be taken for one.
func numbered(table *ruleset.Table, t *Text) {
	if t.kind.name != "iptables-save" {
		table.Source = "nftables"
		return
	}
	table.Source = variant(t)
	for _, c := range table.Chains {
		for _, r := range c.Rules {
			r.Handle = uint64(r.Line)
		}
	}
}

// savedBy is the version in the first line of iptables-save, from 1.8 on.
var savedBy = lazyregexp.New(`(?m)^# Generated by \S+ v1\.8\.(\d+)`)

// variant is the program that keeps the rules of a text. From 1.8.9 on the first line says so: it has "(nf_tables)" or not.
// Before that both variants print the same one, and 'iptables -S' has none: then it is iptables, by which that host
// calls the variant that printed the text.
func variant(t *Text) string {
	first := string(t.Data[:min(len(t.Data), headBytes)])
	patch := 0
	if m := savedBy.FindStringSubmatch(first); m != nil {
		patch, _ = strconv.Atoi(m[1])
	}
	switch {
	case strings.Contains(first, "(nf_tables)") || strings.Contains(first, "xtables-save") || strings.Contains(t.hints(), "tables-nft"):
		return "iptables-nft"
	case patch >= 9 || strings.Contains(t.hints(), "tables-legacy"):
		return "iptables-legacy"
	}
	return "iptables"
}

// apart reports whether two tables of one name are surely two, of which the kernel applies both: one is of iptables-legacy,
// and the other of nf_tables.
func apart(a, b string) bool {
	const unknown, legacy = "iptables", "iptables-legacy"
	return a != unknown && b != unknown && (a == legacy) != (b == legacy)
}

// chosenTable and chosenNft are in commands that print some of the rules.
var (
	chosenTable = lazyregexp.New(`tables(?:-(?:nft|legacy))?(?:-save)?\b.*[ _](?:-t|--table)`)
	chosenNft   = lazyregexp.New(`nft .*list +(?:table|chain|set|map)\b`)
	allTables   = lazyregexp.New(`ip6?tables(?:-(?:nft|legacy))?-save`)
)

// judgeFilters notes whether a text shows that there is a table filter, or that there is none.
func (s *Sample) judgeFilters(t *Text, set *ruleset.Ruleset, version int) {
	filter := slices.ContainsFunc(set.Tables, func(table *ruleset.Table) bool { return table.Name == "filter" && table.Find("FORWARD") != nil })
	known := filter
	switch t.kind.name {
	case "nft list ruleset":
		known = !chosenNft.MatchString(t.Command)
		version = 0 // of both
	case "iptables-save":
		known = filter || allTables.MatchString(t.hints()) && !chosenTable.MatchString(t.hints())
	}
	s.filters[version] = s.filters[version] || known
	if !known && s.partOfRules[version] == "" {
		s.partOfRules[version] = t.File
	}
	s.FiltersUnknown = ""
	for of, file := range s.partOfRules {
		if !s.filters[of] && !s.filters[0] {
			s.FiltersUnknown = cmp.Or(s.FiltersUnknown, file)
		}
	}
}

func (s *Sample) addRules(t *Text) error {
	version := 4
	if strings.Contains(t.hints(), "ip6tables") {
		version = 6
	}
	set := ruleset.Parse(string(t.Data), version)
	set.ForJudge()
	if set.Foreign {
		return fmt.Errorf("has neither tables nor rules")
	}
	if s.Rules == nil {
		s.Rules = []*ruleset.Table{}
	}
	s.judgeFilters(t, set, version)
	for _, table := range set.Tables {
		numbered(table, t)
		same := func(o *ruleset.Table) bool {
			return o.Family == table.Family && o.Name == table.Name && !apart(o.Source, table.Source)
		}
		i := slices.IndexFunc(s.Rules, same)
		switch {
		case i < 0:
			s.Rules = append(s.Rules, table)
		case t.kind.name == "iptables-save": // nft shows what iptables-nft keeps in words that it does not know itself
			s.Rules[i] = table
		}
	}
	if t.cut {
		s.RulesCut = t.File
	}
	for _, n := range set.Notes {
		if strings.HasSuffix(n.Reason, ruleset.CutShort) {
			s.RulesCut = t.File
		}
		if n.Kind == ruleset.Untranslated {
			s.note("%s, line %d: %.120q %s", t, n.Line, n.Text, n.Reason)
		}
	}
	return nil
}
