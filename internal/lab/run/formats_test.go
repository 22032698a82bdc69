package run

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/ports"
	"github.com/natkit/natkit/internal/snapshot"
)

// format is the form in which a kernel answers what doctor asks.
type format struct {
	release string
	// statHeader is that of /proc/net/stat/nf_conntrack, which is read where ctnetlink is
	// refused; empty: ctnetlink answers. The counters that it lacks are merged into those that
	// counted the same before: see statFile.
	statHeader string
	// later are the counters of /proc/net/netstat that are younger, and the older one that
	// counted the same; empty where none did.
	later map[string]string
	// softnet is how many columns /proc/net/softnet_stat has (softnet_seq_show).
	softnet int
	// sysctls that are younger.
	sysctls []string
	// noReasons: skb:kfree_skb has no reason (before 5.17).
	noReasons bool
}

const statColumns = "found new invalid ignore delete delete_list insert insert_failed drop early_drop icmp_error expect_new expect_create expect_delete search_restart"

// Names as in include/uapi/linux/snmp.h and net/ipv4/proc.c of later kernels.
var since6_1 = map[string]string{
	"TCPPLBRehash": "", "TCPAORequired": "", "TCPAOBad": "", "TCPAOKeyNotFound": "", "TCPAOGood": "",
	"TCPAODroppedIcmps": "", "PAWSOldAck": "PAWSEstab", "TSEcrRejected": "", "PAWSTimewait": "PAWSEstab", "BeyondWindow": "",
}

var formats = []format{
	{release: "6.1.0", later: since6_1, softnet: 13, sysctls: []string{"tcp_tw_reuse_delay"}},
	{release: "5.10.0", statHeader: "entries clashres " + statColumns, later: since6_1, softnet: 13, noReasons: true,
		sysctls: []string{"tcp_tw_reuse_delay", "nf_conntrack_tcp_ignore_invalid_rst"}},
	{release: "5.4.0", statHeader: "entries searched " + statColumns, later: since6_1, softnet: 11, noReasons: true,
		sysctls: []string{"tcp_tw_reuse_delay", "nf_conntrack_tcp_ignore_invalid_rst"}},
}

// TestFormats: what is rewritten is understood as that kernel's.
func TestFormats(t *testing.T) {
	members, _ := readKept(t, "table-full")
	for _, k := range formats {
		rec, err := collect.ReadBundle(bytes.NewReader(bundle(t, k.rewrite(t, members))), nil)
		if err != nil {
			t.Fatal(err)
		}
		last := rec.Last()
		if last.Kernel.Release != k.release || (last.ConntrackStat.Source == "ctnetlink") != (k.statHeader == "") {
			t.Errorf("%s: release %s, counters of %s", k.release, last.Kernel.Release, last.ConntrackStat.Source)
		}
		for name, lacked := range map[string]bool{"chaintoolong": k.statHeader != "", "clash_resolve": strings.Contains(k.statHeader, "searched"), "drop": false} {
			if _, there := last.ConntrackStat.Total(name); there == lacked {
				t.Errorf("%s: the counter %s is there: %t", k.release, name, there)
			}
		}
		_, younger := last.TCP.Counters["TcpExtPAWSTimewait"]
		if _, older := last.TCP.Counters["TcpExtPAWSEstab"]; younger || !older {
			t.Errorf("%s: PAWSTimewait is there: %t, PAWSEstab: %t", k.release, younger, older)
		}
		if slices.ContainsFunc(last.KernelLog, func(l snapshot.LogLine) bool { return l.Netns != 0 }) || len(last.KernelLog) == 0 {
			t.Errorf("%s: %d log lines, some with a namespace", k.release, len(last.KernelLog))
		}
	}
}

// rewrite returns the members of a bundle as this kernel's.
func (k *format) rewrite(t *testing.T, members []asked) (all []asked) {
	t.Helper()
	for _, m := range members {
		switch {
		case strings.HasSuffix(m.name, "/osrelease"):
			m.data = []byte(k.release + "\n")
		case strings.HasSuffix(m.name, "/proc/net/netstat"):
			m.data = k.netstat(t, m.data)
		case strings.HasSuffix(m.name, "/softnet_stat"):
			m.data = regexp.MustCompile(fmt.Sprintf(`(?m)^((?:\S+ ?){%d}).*$`, k.softnet)).ReplaceAll(m.data, []byte("$1"))
		case strings.HasSuffix(m.name, "/kmsg.txt"): // the namespace is named since 6.18
			m.data = regexp.MustCompile(` in netns \d+`).ReplaceAll(m.data, nil)
		case strings.HasSuffix(m.name, "/trace.json") && k.noReasons:
			m.data = regexp.MustCompile(`"reason": *"[A-Z0-9_]+"`).ReplaceAll(m.data, []byte(`"reason":""`))
		case strings.HasSuffix(m.name, "/counters.bin") && k.statHeader != "":
			m = asked{strings.TrimSuffix(m.name, "counters.bin") + "files/proc/net/stat/nf_conntrack", k.statFile(t, m.data)}
		case strings.HasSuffix(m.name, "/head.json"):
			m.data = k.head(t, m.data)
		case slices.ContainsFunc(k.sysctls, func(name string) bool { return strings.HasSuffix(m.name, "/"+name) }):
			continue
		}
		all = append(all, m)
	}
	return all
}

// statFile writes the counters as ct_cpu_seq_show of that kernel does. Before 5.15 there was no
// cap on hash chains, so nothing is refused for it; before 5.10 a clash that was resolved
// counted in insert_failed (nf_conntrack_core.c).
func (k *format) statFile(t *testing.T, msgs []byte) []byte {
	t.Helper()
	cpus, err := dump.AppendStats(nil, msgs)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	names := strings.Fields(k.statHeader)
	fmt.Fprintln(&text, k.statHeader)
	for _, cpu := range cpus {
		cpu["insert_failed"] -= cpu["chaintoolong"]
		if !slices.Contains(names, "clashres") {
			cpu["insert_failed"] += cpu["clash_resolve"]
		}
		cpu["clashres"] = cpu["clash_resolve"]
		for _, name := range names {
			fmt.Fprintf(&text, "%08x ", cpu[name])
		}
		text.WriteString("\n")
	}
	return []byte(text.String())
}

// netstat leaves out younger counters, and adds them to those that counted the same.
func (k *format) netstat(t *testing.T, data []byte) []byte {
	t.Helper()
	lines := strings.Split(string(data), "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
		if len(names) != len(values) {
			t.Fatalf("netstat: %d names, %d values", len(names), len(values))
		}
		for j := len(names) - 1; j > 0; j-- {
			older, is := k.later[names[j]]
			if !is {
				continue
			}
			if at := slices.Index(names, older); at > 0 {
				var a, b uint64
				fmt.Sscan(values[at], &a)
				fmt.Sscan(values[j], &b)
				values[at] = fmt.Sprint(a + b)
			}
			names, values = slices.Delete(names, j, j+1), slices.Delete(values, j, j+1)
		}
		lines[i], lines[i+1] = strings.Join(names, " "), strings.Join(values, " ")
	}
	return []byte(strings.Join(lines, "\n"))
}

// head is head.json without what this kernel lacks: younger sysctls, ctnetlink for the
// counters where the file is read, and BTF before 5.10.
func (k *format) head(t *testing.T, data []byte) []byte {
	t.Helper()
	var head map[string]any
	if err := json.Unmarshal(data, &head); err != nil {
		t.Fatal(err)
	}
	failures, _ := head["failures"].(map[string]any)
	if failures == nil {
		failures = map[string]any{}
	}
	if k.statHeader != "" {
		failures["ctnetlink counters"] = map[string]any{"error": "operation not permitted", "errno": 1}
	}
	for _, name := range k.sysctls {
		for path := range failures {
			if strings.HasSuffix(path, "/"+name) {
				delete(failures, path)
			}
		}
	}
	head["failures"] = failures
	for what, names := range head["lists"].(map[string]any) {
		head["lists"].(map[string]any)[what] = slices.DeleteFunc(names.([]any), func(name any) bool { return slices.Contains(k.sysctls, name.(string)) })
	}
	out, err := json.Marshal(head)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// made is what this kernel's tables would have been made into: before 6.6 no closed connection
// makes room for a new one (nf_nat_used_tuple_harder).
func (k *format) made(was made) made {
	if ports.Evicts(k.release) {
		return was
	}
	was.Snapshots = slices.Clone(was.Snapshots)
	for i, s := range was.Snapshots {
		if s.Ports == nil {
			continue
		}
		p := *s.Ports
		p.Evicts, p.Pools = false, slices.Clone(p.Pools)
		for j := range p.Pools {
			pool := &p.Pools[j]
			pool.FailsIfTaken = pool.FailsIfKept
			pool.Fails = pool.TakenShare * pool.FailsIfTaken
		}
		was.Snapshots[i].Ports = &p
	}
	return was
}
