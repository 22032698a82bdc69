package collect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/loose"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/snapshot"
)

// errLacks is why something is missing where there are texts of other programs alone, with what would give it.
type errLacks struct{ what, by string }

func (e errLacks) Error() string {
	if e.by == "" {
		return fmt.Sprintf("read %s: no text of other programs has it; it takes 'natkit snapshot' on that host", e.what)
	}
	return fmt.Sprintf("read %s: not among the files; it takes %s", e.what, e.by)
}

// lacks reports whether an error is that files lack something.
func lacks(err error) bool { return errors.As(err, new(errLacks)) }

// texts answers from what other programs printed. It brings it into the forms of the kernel, so that the collectors
// read both alike.
type texts struct {
	host *loose.Host
	*loose.Sample
	// logNext is the number of the log's next line.
	logNext uint64
}

// printers are what prints the contents of files.
var printers = map[string]string{
	"/proc/net/snmp": "'nstat -az' or the file itself", "/proc/net/netstat": "'nstat -az' or the file itself", procSockstat: "'ss -s' or the file itself",
	procStat: "'conntrack -S' or the file itself", procSoftnet: "the file itself", procNetlink: "the file itself",
	slabinfo: "the file itself (as root)", "/proc/meminfo": "the file itself", sysctlRoot + "net/netfilter": "'sysctl -a'",
	sysctlRoot + "kernel/osrelease": "'uname -a'", sysctlRoot + "kernel/random/boot_id": "'sysctl -a'",
}

func (t *texts) inside(fn func() error) error { return fn() }

func (t *texts) readStart(path string, most int, _ time.Duration) ([]byte, bool, error) {
	data, there := t.Files[path]
	switch {
	case there:
		return data[:min(len(data), most)], len(data) <= most, nil
	case path == "/sys/devices/system/cpu/online" && len(t.Stats) > 1:
		return fmt.Appendf(nil, "0-%d\n", len(t.Stats)-1), true, nil
	case path == procIPVS && (!t.AllSysctls || t.hasIPVS()):
		return nil, false, errLacks{path, "'ipvsadm -Ln' or the file itself"}
	case printers[path] != "":
		return nil, false, errLacks{path, printers[path]}
	}
	return nil, false, fmt.Errorf("read %s: %w", path, fs.ErrNotExist)
}

// hasIPVS reports whether the module is loaded, which then has sysctls.
func (t *texts) hasIPVS() bool {
	for name := range t.Sysctls {
		if strings.HasPrefix(name, snapshot.IPVSPrefix) {
			return true
		}
	}
	return false
}

func (t *texts) list(dir, prefix string) (names []string, err error) {
	for path := range t.Files {
		name, is := strings.CutPrefix(path, dir+"/"+prefix)
		if is && !strings.Contains(name, "/") {
			names = append(names, prefix+name)
		}
	}
	if slices.Sort(names); len(names) == 0 && !t.AllSysctls {
		return nil, errLacks{strings.ReplaceAll(strings.TrimPrefix(dir, sysctlRoot), "/", ".") + "." + prefix + "*", printers[sysctlRoot+"net/netfilter"]}
	}
	return names, nil
}

func (t *texts) counters(_ context.Context, fn func([]byte) error) error {
	if t.Stats == nil {
		return errLacks{"conntrack's counters", printers[procStat]}
	}
	var messages []byte
	for i, cpu := range t.Stats {
		messages = conntrack.AppendStats(messages, uint16(i), cpu)
	}
	if err := fn(messages); !errors.Is(err, dump.ErrStop) {
		return err
	}
	return nil
}

// datagramBytes is how much of a list is handed on at once, as a dump of the kernel is.
const datagramBytes = 32 << 10

func (t *texts) table(_ context.Context, fn func([]byte) error) (r dump.Result, err error) {
	if t.Sample.Table == nil {
		return r, errLacks{"the connection table", "'conntrack -L -o extended,id'"}
	}
	var messages []byte
	stats, err := t.host.EachEntry(t.Sample.Table, func(e *conntrack.Entry) error {
		if e.Check() != nil {
			return nil
		}
		messages = conntrack.Append(messages, conntrack.New, 0, 0, e)
		if len(messages) < datagramBytes {
			return nil
		}
		err := fn(messages)
		messages = messages[:0]
		return err
	})
	if t.Sample.Table.Cut() && errors.Is(err, io.ErrUnexpectedEOF) { // which r.Complete says
		err = nil
	}
	if err == nil && len(messages) > 0 {
		err = fn(messages)
	}
	r.Complete = err == nil && stats.Garbled == 0 && !t.Sample.Table.Cut()
	if errors.Is(err, dump.ErrStop) {
		err = nil
	}
	return r, err
}

// ofNetns is what Linux 6.18 and later say of the namespace.
var ofNetns = regexp.MustCompile(` in netns \d+\b`)

// kernelLog numbers the lines from 1 on.
func (t *texts) kernelLog(fn func([]byte) bool) (uint64, error) {
	if !t.HasLog {
		return 0, errLacks{"the kernel log", "'dmesg' or 'journalctl -k'"}
	}
	log := t.host.Samples[len(t.host.Samples)-1].Log
	for i, l := range log {
		if uint64(i)+1 < t.logNext {
			text := l.Text
			if t.Netns == 0 { // of which one the lines are is not known
				text = ofNetns.ReplaceAllString(text, "")
			}
			fn(fmt.Appendf(nil, "4,%d,%d,-;%s\n", i+1, int64(l.Uptime*1e6), text))
		}
	}
	return t.logNext, nil
}

func (t *texts) namer() func(context.Context) *snapshot.Names { return nil }

// judged needs the filters as well, which may be in a table that a text of nat alone does not show.
func (t *texts) judged() ([]*ruleset.Table, error) {
	if t.FiltersUnknown != "" {
		return nil, fmt.Errorf("read filters: not known: %s has other tables alone; it takes 'iptables-save -c' of all tables, or 'nft -a list ruleset'", t.FiltersUnknown)
	}
	return t.rules("rules")
}

// rules returns the tables, if they are whole: what a text that is cut short has not may be behind its end.
func (t *texts) rules(what string) ([]*ruleset.Table, error) {
	switch {
	case t.Rules == nil:
		return nil, errLacks{what, "'iptables-save -c' or 'nft -a list ruleset'"}
	case t.RulesCut != "":
		return nil, fmt.Errorf("read %s: %s is cut short: %s", what, t.RulesCut, ruleset.CutShort)
	}
	return t.Rules, nil
}

func (t *texts) answer(q question, v any, ask func() error) error {
	switch v := v.(type) {
	case *snapshot.NATRules:
		tables, err := t.rules(q.what)
		if err == nil {
			*v = *ruleset.NATRules(tables, &ruleset.Budget{})
		}
		return err
	case *snapshot.Links:
		return give(v, t.linksOf)
	case *snapshot.OwnPorts:
		return give(v, t.ownPorts)
	}
	if isAsked(q.member) {
		return ask()
	}
	return errLacks{what: q.what}
}

func give[T any](to *T, of func() (*T, error)) error {
	v, err := of()
	if err == nil {
		*to = *v
	}
	return err
}

func (t *texts) structSize(string) (int, error) {
	return 0, errLacks{"the size of an entry", printers[slabinfo]}
}

func (t *texts) machine() (machine, error) {
	return machine{Arch: t.Arch, PageBytes: 4096, Netns: snapshot.Netns{Inode: t.Netns, Name: t.host.Netns}}, nil
}

func (t *texts) traced(*snapshot.Trace) (*snapshot.Trace, error) { return nil, nil }

func (t *texts) clock(label string) instant {
	now := instant{Wall: t.At, Uptime: t.Uptime}
	if t.Sample.Table != nil && strings.HasPrefix(label, snapshot.PartTable) && !t.Sample.Table.At.IsZero() && !t.At.IsZero() {
		now.Uptime += t.Sample.Table.At.Sub(t.At).Seconds()
		now.Wall = t.Sample.Table.At
	}
	return now
}

// ReadLoose reads what other programs printed on a host, with the collectors that read the running kernel. of names the
// host and its network namespace where there are several. What has to be said about the texts is a part "files".
func ReadLoose(walk loose.Walk, of string, budget *snapshot.Budget) (*snapshot.Recording, error) {
	if budget == nil {
		budget = snapshot.NewBudget(snapshot.DefaultBudget)
	}
	host, err := loose.Read(walk, of, loose.Options{Budget: budget, KeepLog: isInteresting})
	if err != nil {
		return nil, err
	}
	host.DropParts()
	o := RecordOptions{Options: Options{MaxEntries: math.MaxInt}}
	if !host.TimesKnown { // rates are not known, and a second table tells nothing
		for _, s := range host.Samples[:len(host.Samples)-1] {
			s.Table = nil
		}
	}
	rec, err := record(context.Background(), o, func(i int) (source, bool, error) {
		t := &texts{host: host, Sample: host.Samples[i]}
		t.logNext = host.LogNext(i)
		return t, i+1 < len(host.Samples), nil
	})
	if err != nil {
		return nil, err
	}
	if len(rec.Snapshots) == 1 {
		rec.SinceStartOf(rec.Last())
	}
	rec.Lost, rec.SinceNstat = host.Lost, host.Last().SinceNstat
	rec.SomeSysctls, rec.NoUptime = !host.Last().AllSysctls, !host.Last().HasUptime
	for _, n := range host.Notes {
		last := rec.Last()
		last.Parts = append(last.Parts, snapshot.Part{Name: "files", Error: n})
	}
	return rec, nil
}
