package collect

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
)

func TestParseStat(t *testing.T) {
	const (
		// The columns of each kernel's ct_cpu_seq_start.
		old   = "entries  searched found new invalid ignore delete delete_list insert insert_failed drop early_drop icmp_error  expect_new expect_create expect_delete"
		v3_10 = old + " search_restart"
		v5_10 = "entries  clashres found new invalid ignore delete delete_list insert insert_failed drop early_drop icmp_error  expect_new expect_create expect_delete search_restart"
		v5_15 = "entries  clashres found new invalid ignore delete chainlength insert insert_failed drop early_drop icmp_error  expect_new expect_create expect_delete search_restart"
	)
	values := func(n int, shift uint64) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "%08x ", uint64(i+10)+shift)
		}
		return b.String()
	}
	tests := []struct {
		name, header string
		columns      int
		want         map[string]uint64 // some of the first CPU's
		absent       []string
	}{
		{"2.6.32", old, 16, map[string]uint64{"searched": 11, "delete_list": 17, "insert_failed": 19, "drop": 20, "early_drop": 21, "icmp_error": 22}, []string{"search_restart", "clash_resolve", "chaintoolong", "entries"}},
		{"3.10–5.4", v3_10, 17, map[string]uint64{"searched": 11, "delete_list": 17, "drop": 20, "search_restart": 26}, []string{"clash_resolve", "chaintoolong"}},
		{"5.10", v5_10, 17, map[string]uint64{"clash_resolve": 11, "delete_list": 17, "drop": 20}, []string{"searched", "clashres", "chaintoolong"}},
		{"5.15", v5_15, 17, map[string]uint64{"clash_resolve": 11, "chaintoolong": 17, "drop": 20}, []string{"searched", "delete_list", "chainlength"}},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			text := c.header + "\n" + values(c.columns, 0) + "\n" + values(c.columns, 0xfffffff0) + "\n"
			cpus, err := parseStat(strings.NewReader(text))
			if err != nil || len(cpus) != 2 {
				t.Fatalf("%d CPUs, %v", len(cpus), err)
			}
			for name, want := range c.want {
				if got, ok := cpus[0][name]; !ok || got != want {
					t.Errorf("%s = %d, %v; want %d", name, got, ok, want)
				}
				if got := cpus[1][name]; got != want+0xfffffff0 {
					t.Errorf("%s of CPU 1 = %d, want %d", name, got, want+0xfffffff0)
				}
			}
			for _, name := range c.absent {
				if _, ok := cpus[0][name]; ok {
					t.Errorf("%s is there, this kernel has it not", name)
				}
			}
		})
	}
	for name, text := range map[string]string{
		"empty": "", "header only": v5_15 + "\n", "other file": "cpu  1 2 3\n",
		"fewer values": v5_15 + "\n" + values(16, 0), "not hexadecimal": "entries drop\n0 zz\n",
	} {
		if cpus, err := parseStat(strings.NewReader(text)); err == nil {
			t.Errorf("%s: accepted as %v", name, cpus)
		}
	}
}

func TestParseSlabinfo(t *testing.T) {
	const text = `slabinfo - version: 2.1
# name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : tunables <limit> <batchcount> <sharedfactor> : slabdata <active_slabs> <num_slabs> <sharedavail>
nf_conntrack_expect      0      0    208   19    1 : tunables    0    0    0 : slabdata      0      0      0
nf_conntrack        5168   5168    256   16    1 : tunables    0    0    0 : slabdata    323    323      0
dma-kmalloc-128        0      0    128   32    1 : tunables    0    0    0 : slabdata      0      0      0
kmalloc-rnd-03-128   100    128    128   32    1 : tunables    0    0    0 : slabdata      4      4      0
kmalloc-128         9760   9760    128   32    1 : tunables    0    0    0 : slabdata    305    305      0
`
	slabs, err := parseSlabinfo(strings.NewReader(text))
	if err != nil || len(slabs) != 5 {
		t.Fatalf("%d slabs, %v", len(slabs), err)
	}
	src := &fixture{files: map[string]string{slabinfo: text}}
	size, err := readSize(src, machine{Arch: "x86_64", PageBytes: 4096})
	want := &snapshot.ConntrackSize{
		EntryBytes: 256, ExtensionBytes: 128, BucketBytes: 8,
		SlabBytes: 323 * 4096, ActiveEntries: 5168, ExtensionSlabBytes: (305 + 4) * 4096,
		Source: slabinfo, ExtensionSource: "NF_CT_EXT_PREALLOC, the same since Linux 4.19",
	}
	if d := cmp.Diff(want, size); err != nil || d != "" {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
	for _, bad := range []string{"nf_conntrack 1 2\n", "nf_conntrack 1 2 x 4 5 : tunables 0 0 0 : slabdata 1 1 0\n", "kmem: 1\n"} {
		if s, err := parseSlabinfo(strings.NewReader(bad)); err == nil {
			t.Errorf("%q accepted as %v", bad, s)
		}
	}
}

func TestSizeFallsBack(t *testing.T) {
	m := machine{Arch: "x86_64", PageBytes: 4096}
	// 248 + a pointer fit into four cache lines; 256 + a pointer do not.
	for bytes, want := range map[int]uint64{248: 256, 256: 320, 312: 320} {
		size, err := readSize(&fixture{structs: map[string]int{"nf_conn": bytes}}, m)
		if err != nil || size.EntryBytes != want || size.Source != "BTF" {
			t.Errorf("BTF, %d bytes: %+v, %v; want %d", bytes, size, err, want)
		}
	}
	if size, err := readSize(&fixture{}, m); err == nil {
		t.Errorf("nothing to read: %+v", size)
	}
}

func TestParseMemory(t *testing.T) {
	const modern = "MemTotal:       24684812 kB\nMemFree:        20000000 kB\nMemAvailable:   23000000 kB\nHugePages_Total:       0\n"
	tests := []struct {
		name, text string
		want       *snapshot.Memory
	}{
		{"now", modern, &snapshot.Memory{TotalBytes: 24684812 << 10, AvailableBytes: 23000000 << 10}},
		{"no total", "MemFree: 200 kB\n", nil},
		{"empty", "", nil},
		{"nonsense", "MemTotal: many kB\n\x00", nil},
	}
	for _, c := range tests {
		got, err := parseMemory(strings.NewReader(c.text))
		if d := cmp.Diff(c.want, got); d != "" || (err == nil) != (c.want != nil) {
			t.Errorf("%s: %v (-want +got):\n%s", c.name, err, d)
		}
	}
}

func TestParseCPUList(t *testing.T) {
	for text, want := range map[string]int{"0\n": 1, "0-1\n": 2, "0-3,8": 5, "": 0, "3-1": 0, "x": 0, "0-99999999": 0} {
		if got, err := parseCPUList(text); got != want || (err == nil) != (want > 0) {
			t.Errorf("%q = %d, %v; want %d", text, got, err, want)
		}
	}
}

func TestParseLine(t *testing.T) {
	tests := []struct {
		record string
		want   *snapshot.LogLine
	}{
		{"4,370,1729914585,-;nf_conntrack: nf_conntrack: table full in netns 4026532733, dropping packet\n",
			&snapshot.LogLine{Seq: 370, UptimeSeconds: 1729.914585, Netns: 4026532733, Text: "nf_conntrack: nf_conntrack: table full in netns 4026532733, dropping packet"}},
		{"4,1,5,-;nf_conntrack: table full, dropping packet\n SUBSYSTEM=net\n DEVICE=n2\n",
			&snapshot.LogLine{Seq: 1, UptimeSeconds: 5e-6, Text: "nf_conntrack: table full, dropping packet"}},
		{"4,2,6000000,-,caller=T12;net_ratelimit: 4213 callbacks suppressed\n",
			&snapshot.LogLine{Seq: 2, UptimeSeconds: 6, Suppressed: 4213, Text: "net_ratelimit: 4213 callbacks suppressed"}},
		{`4,4,7,-;RIP: 0010:nf_nat_l4proto_unique_tuple+0xd1/0x160 [nf_nat]` + "\n", &snapshot.LogLine{Seq: 4, UptimeSeconds: 7e-6, Text: "RIP: 0010:nf_nat_l4proto_unique_tuple+0xd1/0x160 [nf_nat]"}},
		{`4,5,7,-;pc : __nf_conntrack_find_get+0x98/0x2c8 [nf_conntrack]` + "\n", &snapshot.LogLine{Seq: 5, UptimeSeconds: 7e-6, Text: "pc : __nf_conntrack_find_get+0x98/0x2c8 [nf_conntrack]"}},
		{`4,6,7,-;RIP: 0010:nvme_poll+0xd1/0x160 [nvme]` + "\n", nil},
		{`4,7,7,-; nf_conntrack_in+0xd1/0x160 [nf_conntrack]` + "\n", nil},
		{`4,8,7,-;IPv4: martian source 198.18.0.1 from 203.0.113.7, on dev wan1` + "\n", &snapshot.LogLine{Seq: 8, UptimeSeconds: 7e-6, Text: "IPv4: martian source 198.18.0.1 from 203.0.113.7, on dev wan1"}},
		{`4,3,7,-;neighbour: arp_cache: neighbor table overflow!` + "\n", &snapshot.LogLine{Seq: 3, UptimeSeconds: 7e-6, Text: "neighbour: arp_cache: neighbor table overflow!"}},
		{`4,4,8,-;nf_ct_proto_6: invalid \x1b[31m\xff packet` + "\n", &snapshot.LogLine{Seq: 4, UptimeSeconds: 8e-6, Text: "nf_ct_proto_6: invalid ?[31m? packet"}},
		{"6,5,9,-;e1000: link is up\n", nil},
		// Of programs: LOG_USER, LOG_DAEMON.
		{"12,6,9,-;nf_conntrack: nf_conntrack: table full, dropping packet\n", nil},
		{"30,7,9,-;monitor: neighbour: arp_cache: neighbor table overflow!\n", nil},
		{"x,8,9,-;table full, dropping packet\n", nil},
		{"4,x,9,-;table full, dropping packet\n", nil},
		{"4,1,9;table full, dropping packet\n", nil},
		{"table full, dropping packet", nil},
		{"", nil},
	}
	for _, c := range tests {
		got, ok := parseLine([]byte(c.record))
		if ok != (c.want != nil) {
			t.Errorf("%q: of interest = %v", c.record, ok)
		} else if ok {
			if d := cmp.Diff(*c.want, got); d != "" {
				t.Errorf("%q (-want +got):\n%s", c.record, d)
			}
		}
	}
}

func TestLogKeepsTheNewestLines(t *testing.T) {
	var l logReader
	for i := range 3*keptLines + 7 {
		if !l.add(fmt.Appendf(nil, "4,%d,1,-;nf_conntrack: table full, dropping packet\n", i)) {
			t.Fatal("a line of interest was not")
		}
	}
	lines := l.newest()
	if len(lines) != keptLines || lines[len(lines)-1].Seq != 3*keptLines+6 || lines[0].Seq != 2*keptLines+7 {
		t.Errorf("%d lines, %d to %d", len(lines), lines[0].Seq, lines[len(lines)-1].Seq)
	}
	if cap(l.lines) > 5*keptLines {
		t.Errorf("room for %d lines", cap(l.lines))
	}
}

func FuzzParseLine(f *testing.F) {
	f.Add([]byte("4,370,1729914585,-;nf_conntrack: table full in netns 4026532733, dropping packet\n K=v\n"))
	f.Add([]byte(`4,2,6000000,-;net_ratelimit: 4213 callbacks suppressed \xff`))
	f.Fuzz(func(t *testing.T, b []byte) {
		defer testutil.Bounded(t, len(b))()
		if l, ok := parseLine(b); ok && strings.ContainsAny(l.Text, "\x00\x1b\n") {
			t.Errorf("control characters in %q", l.Text)
		}
		nextSeq(b)
		if n := recordLen(b); len(b) > 0 && (n <= 0 || n > len(b)) {
			t.Errorf("record of %d bytes in %d", n, len(b))
		}
	})
}

func TestReadFromOtherRoots(t *testing.T) {
	dir := t.TempDir()
	for path, text := range map[string]string{
		"proc/sys/kernel/osrelease":                 "5.4.0-42-generic\n",
		"proc/sys/kernel/random/boot_id":            "abc\n",
		"proc/meminfo":                              "MemTotal: 1000 kB\nMemAvailable: 500 kB\n",
		"proc/sys/net/netfilter/nf_conntrack_max":   "262144\n",
		"proc/sys/net/netfilter/nf_conntrack_count": "17\n",
		"proc/sys/net/ipv4/ip_local_port_range":     "32768\t60999\n",
		"proc/slabinfo":                             "nf_conntrack 1 1 320 1 1 : tunables 0 0 0 : slabdata 2 2 0\n",
		"sys/devices/system/cpu/online":             "0-15\n",
		"kmsg":                                      "4,9,1000000,-;nf_conntrack: table full, dropping packet\n",
	} {
		path = dir + "/" + path
		if err := os.MkdirAll(path[:strings.LastIndex(path, "/")], 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Read(t.Context(), Options{Proc: dir + "/proc", Sys: dir + "/sys", Kmsg: dir + "/kmsg"})
	if err != nil {
		t.Fatal(err)
	}
	if s.Kernel.Release != "5.4.0-42-generic" || s.Kernel.CPUs != 16 || s.Kernel.BootID != "abc" {
		t.Errorf("kernel = %+v", s.Kernel)
	}
	want := snapshot.Sysctls{
		"net.netfilter.nf_conntrack_max": "262144", "net.netfilter.nf_conntrack_count": "17",
		"net.ipv4.ip_local_port_range": "32768 60999",
	}
	if d := cmp.Diff(want, s.Sysctls); d != "" {
		t.Errorf("sysctls (-want +got):\n%s", d)
	}
	if s.ConntrackSize == nil || s.ConntrackSize.EntryBytes != 320 || s.Memory.TotalBytes != 1000<<10 {
		t.Errorf("size = %+v, memory = %+v", s.ConntrackSize, s.Memory)
	}
	if len(s.KernelLog) != 1 || s.KernelLogNext != 10 {
		t.Errorf("kernel log = %+v, next %d", s.KernelLog, s.KernelLogNext)
	}
	for _, name := range []string{"kernel", "memory", "sysctls", "conntrack_size", "kernel_log"} {
		if why := s.PartError(name); why != "" {
			t.Errorf("%s: %s", name, why)
		}
	}
}

func TestWithoutConntrack(t *testing.T) {
	dir := t.TempDir()
	s, err := Read(t.Context(), Options{Proc: dir, Sys: dir, Kmsg: dir + "/kmsg"})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"sysctls": "nf_conntrack", "kernel_log": "no such file", "memory": "/proc/meminfo: no such file",
		"kernel": "osrelease",
	} {
		if got := s.PartError(name); !strings.Contains(got, want) {
			t.Errorf("%s: %q does not say %q", name, got, want)
		}
	}
	if s.Memory != nil {
		t.Errorf("memory = %+v", s.Memory)
	}
}

// TestHiddenSysctls: sysctls that are missing do not mean that connection tracking is not loaded.
func TestHiddenSysctls(t *testing.T) {
	for loaded, want := range map[bool]bool{true: false, false: true} {
		_, err := readSysctls(&fixture{}, loaded)
		if err == nil || strings.HasSuffix(err.Error(), snapshot.NotLoaded) != want {
			t.Errorf("loaded %t: %v", loaded, err)
		}
	}
}

// A report prints the release: a hostile bundle's is no longer than a kernel's can be.
func TestReleaseIsBounded(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "sys/kernel/osrelease")
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, bytes.Repeat([]byte("6"), 1<<20), 0o644)); err != nil {
		t.Fatal(err)
	}
	s, err := Read(t.Context(), Options{Proc: dir, Sys: dir, Kmsg: dir + "/kmsg"})
	if err != nil {
		t.Fatal(err)
	}
	if got := s.PartError("kernel"); s.Kernel.Release != "" || !strings.Contains(got, "1048576 bytes") {
		t.Errorf("release of %d bytes, %s", len(s.Kernel.Release), got)
	}
}

// FuzzParseFiles is for /proc/meminfo, slabinfo and stat.
func FuzzParseFiles(f *testing.F) {
	f.Add("MemTotal: 16 kB\nMemAvailable: 8 kB\n")
	f.Add("slabinfo - version: 2.1\nnf_conntrack 1 2 320 25 2 : tunables 0 0 0 : slabdata 1 1 0\n")
	f.Add("cpu  1 2 3 4 5 6 7 8 9 10\nbtime 1\n")
	f.Add("entries  searched found\n00000001 00000002 00000003\n")
	f.Fuzz(func(t *testing.T, text string) {
		defer testutil.Bounded(t, len(text))()
		slabs, err := parseSlabinfo(strings.NewReader(text))
		if err == nil && len(slabs) > strings.Count(text, "\n")+1 {
			t.Errorf("%d slabs", len(slabs))
		}
		if m, err := parseMemory(strings.NewReader(text)); err == nil && m == nil {
			t.Error("neither memory nor an error")
		}
		if rows, err := parseStat(strings.NewReader(text)); err == nil && len(rows) > strings.Count(text, "\n")+1 {
			t.Errorf("%d rows", len(rows))
		}
		_, _ = parseCPUTimes(strings.NewReader(text))
	})
}

// FuzzSoftnet is for /proc/net/softnet_stat.
func FuzzSoftnet(f *testing.F) {
	f.Add("00000001 00000002 00000003 00000000 00000000 00000000 00000000 00000000 00000000 00000000\n")
	f.Add("0 1 2\nffffffff ffffffff ffffffff 0 0 0 0 0 0 0 0 0 5 0 0\n")
	f.Fuzz(func(t *testing.T, text string) {
		defer testutil.Bounded(t, len(text))()
		if s, err := parseSoftnet(strings.NewReader(text)); (s == nil) == (err == nil) {
			t.Errorf("%+v, %v", s, err)
		}
	})
}

// FuzzSockstat is for /proc/net/sockstat and sockstat6.
func FuzzSockstat(f *testing.F) {
	f.Add("sockets: used 281\nTCP: inuse 5 orphan 0 tw 2 alloc 7 mem 1\nUDP: inuse 2 mem 1\n")
	f.Add("TCP6: inuse\nTCP6: inuse -1\n")
	f.Fuzz(func(t *testing.T, text string) {
		defer testutil.Bounded(t, len(text))()
		for _, protocol := range []string{"TCP", "TCP6"} {
			if all, err := parseSockstat(strings.NewReader(text), procSockstat, protocol); err == nil && len(all) > len(text) {
				t.Errorf("%d numbers", len(all))
			}
		}
	})
}

// FuzzCounterLines is for /proc/net/snmp6 and xfrm_stat.
func FuzzCounterLines(f *testing.F) {
	f.Add("Ip6InReceives                   \t7\nUdp6NoPorts\t18446744073709551615\n")
	f.Add("XfrmInError\t1\nx\n 1 2 3\n")
	f.Fuzz(func(t *testing.T, text string) {
		defer testutil.Bounded(t, len(text))()
		to := snapshot.Counters{}
		if _ = parseCounterLines(strings.NewReader(text), "/proc/net/snmp6", to); len(to) > strings.Count(text, "\n")+1 {
			t.Errorf("%d counters", len(to))
		}
	})
}

// FuzzLocalPorts is for ip_local_port_range, ip_local_reserved_ports, and lists of CPUs, which have the same form.
func FuzzLocalPorts(f *testing.F) {
	f.Add("32768\t60999\n", "8080,9000-9100\n")
	f.Add("1 2", "0-65535")
	f.Fuzz(func(t *testing.T, text, reserved string) {
		defer testutil.Bounded(t, 1<<16+len(text)+len(reserved))()
		if r, err := parseLocalPorts(text, reserved); err == nil && (r.ports() < 0 || r.ports() > 1<<16) {
			t.Errorf("%q without %q are %d ports", text, reserved, r.ports())
		}
		if n, err := parseCPUList(reserved); err == nil && n < 0 {
			t.Errorf("%q are %d CPUs", reserved, n)
		}
	})
}

// FuzzProcess is for /proc/PID/stat.
func FuzzProcess(f *testing.F) {
	f.Add([]byte("12 (a) b) c) S 1 12 12 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 1 0 33 0 0\n"))
	f.Add([]byte("x (y\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		defer testutil.Bounded(t, len(text))()
		if pid, _, ok := parseProcess(text); ok && pid < 0 {
			t.Errorf("process %d", pid)
		}
	})
}
