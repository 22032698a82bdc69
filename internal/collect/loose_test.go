package collect

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/conntrack/text"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/loose"
	"github.com/natkit/natkit/internal/snapshot"
	"golang.org/x/sys/unix"
)

// looseFile is a file of a directory, written that many seconds after the first one.
type looseFile struct {
	name, text string
	seconds    int
}

func looseTree(files ...looseFile) loose.Walk {
	return func(fn func(*loose.File) error) error {
		for _, f := range files {
			at := time.Unix(1_800_000_000, 0).Add(time.Duration(f.seconds) * time.Second)
			if err := fn(&loose.File{Name: f.name, Modified: at, Reader: strings.NewReader(f.text)}); err != nil {
				return err
			}
		}
		return nil
	}
}

const (
	looseStats   = "cpu=0 found=0 invalid=1 insert=0 insert_failed=0 drop=5 early_drop=0 error=0 search_restart=0\ncpu=1 found=0 invalid=1 insert=0 insert_failed=0 drop=5 early_drop=0 error=0 search_restart=0\n"
	looseSysctls = "net.netfilter.nf_conntrack_max = 100\nnet.ipv4.ip_forward = 1\n"
	looseEntry   = "tcp      6 100 ESTABLISHED src=198.18.0.2 dst=198.19.0.2 sport=40000 dport=80 src=198.19.0.2 dst=198.18.0.2 sport=80 dport=40000 [ASSURED] mark=0 use=1 id=7\n"
)

// TestTextsOnce: of texts of one time counters are since the start, and the table is the last sample's alone.
func TestTextsOnce(t *testing.T) {
	rec, err := ReadLoose(looseTree(looseFile{"a", looseStats, 0}, looseFile{"b", looseSysctls, 0}, looseFile{"c", looseEntry, 0}), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	first, last := rec.First(), rec.Last()
	drops, ok := last.ConntrackStat.Delta(first.ConntrackStat, "drop")
	count, _, _ := last.Entries()
	if !rec.SinceStart || !ok || drops != 10 || last.Table == nil || last.Table.Sampled != 1 || !last.Table.Complete || first.Table != nil || rec.Flows != nil || count != 1 {
		t.Errorf("since the start %t, %d drops (%t), table %+v, %d entries", rec.SinceStart, drops, ok, last.Table, count)
	}
	if last.Kernel.CPUs != 2 || last.ConntrackStat.Source != "ctnetlink" {
		t.Errorf("%d CPUs, %s", last.Kernel.CPUs, last.ConntrackStat.Source)
	}
}

// TestTextsTwice: rates come from two texts whose times are known, and from none where they are not.
func TestTextsTwice(t *testing.T) {
	later := strings.ReplaceAll(looseStats, "drop=5", "drop=9")
	for seconds, flows := range map[int]bool{10: true, 0: false} {
		rec, err := ReadLoose(looseTree(looseFile{"0/a", looseStats, 0}, looseFile{"0/c", looseEntry, 0}, looseFile{"0/b", looseSysctls, 0},
			looseFile{"1/a", later, seconds}, looseFile{"1/c", looseEntry, seconds}, looseFile{"1/b", looseSysctls, seconds}), "", nil)
		if err != nil {
			t.Fatal(err)
		}
		drops, ok := rec.Last().ConntrackStat.Delta(rec.First().ConntrackStat, "drop")
		if rec.SinceStart || !ok || drops%4 != 0 || drops == 0 || rec.Seconds() != float64(seconds) || (rec.Flows != nil) != flows {
			t.Errorf("%d s apart: since the start %t, %d drops (%t), %g s, flows %+v", seconds, rec.SinceStart, drops, ok, rec.Seconds(), rec.Flows)
		}
	}
}

// TestTextsLack: what is missing is said with what prints it.
func TestTextsLack(t *testing.T) {
	rec, err := ReadLoose(looseTree(looseFile{"b", looseSysctls, 0}), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	for part, by := range map[string]string{snapshot.PartStat: "conntrack -S", snapshot.PartTable: "conntrack -L", "nat_rules": "iptables-save", "kernel_log": "dmesg", snapshot.PartTCP: "nstat -az", "memory": "the file itself"} {
		if why := rec.Last().PartError(part); !strings.Contains(why, by) {
			t.Errorf("%s: %q does not name %s", part, why, by)
		}
	}
}

// TestListCut: a list of connections that is cut short is a sample, and no number of them is known.
func TestListCut(t *testing.T) {
	var file bytes.Buffer
	w := gzip.NewWriter(&file)
	for i := range 500 {
		io.WriteString(w, strings.ReplaceAll(looseEntry, "40000", fmt.Sprint(30000+i*7919%30000)))
	}
	w.Close()
	rec, err := ReadLoose(func(fn func(*loose.File) error) error {
		return loose.Archive(&loose.File{Name: "conntrack-L.gz", Reader: bytes.NewReader(file.Bytes()[:file.Len()/2])}, fn)
	}, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	last := rec.Last()
	if _, _, known := last.Entries(); len(rec.Lost) != 1 || known || last.Table == nil || last.Table.Complete || last.Table.Sampled == 0 || last.Table.Sampled >= 500 {
		t.Errorf("lost %q, number known %t, table %+v", rec.Lost, known, last.Table)
	}
	if r := diagnose.Run(rec, diagnose.Rules()); !slices.Equal(r.Lost, rec.Lost) {
		t.Errorf("the report does not say what is lost: %q", r.Lost)
	}
}

// TestSosreport: what sos collected (sos report --allow-system-changes, 4.0) on a gateway whose filter drops what its DNAT
// leads to gives that finding, and no other one.
func TestSosreport(t *testing.T) {
	data, err := os.ReadFile("testdata/sosreport-dnat-filtered.tar.xz")
	if err != nil {
		t.Fatal(err)
	}
	read := func(data []byte) (*snapshot.Recording, diagnose.Report, error) {
		rec, err := ReadLoose(func(fn func(*loose.File) error) error {
			return loose.Archive(&loose.File{Name: "sosreport.tar.xz", Reader: bytes.NewReader(data)}, fn)
		}, "", nil)
		if err != nil {
			return nil, diagnose.Report{}, err
		}
		return rec, diagnose.Run(rec, diagnose.Rules()), nil
	}
	rec, r, err := read(data)
	if err != nil {
		t.Fatal(err)
	}
	last := rec.Last()
	if !slices.Equal(r.IDs(), []string{"dnat-filtered"}) || !rec.SinceStart || len(r.Lost) > 0 || last.Kernel.Release != "6.18.44" {
		t.Errorf("%q, since the start %t, lost %q, %+v", r.IDs(), rec.SinceStart, r.Lost, last.Kernel)
	}
	if last.Table == nil || last.Table.Sampled != 0 || last.TCP == nil || last.Links == nil || last.Softnet == nil || last.ConntrackStat == nil || rec.SomeSysctls {
		t.Errorf("table %+v, TCP %v, links %v, softnet %v, conntrack's counters %v, some sysctls alone %t", last.Table, last.TCP, last.Links, last.Softnet, last.ConntrackStat, rec.SomeSysctls)
	}
	for _, p := range last.Parts {
		if p.Name == "files" && !strings.Contains(p.Error, "recognised, not used") {
			t.Errorf("a text is not understood: %s", p.Error)
		}
	}
	// Cut anywhere it gives no other finding.
	for n := len(data) / 9; n < len(data); n += len(data) / 9 {
		_, r, err := read(data[:n])
		if err == nil && (len(r.Lost) == 0 || len(r.IDs()) > 0 && !slices.Equal(r.IDs(), []string{"dnat-filtered"})) {
			t.Errorf("%d of %d bytes: lost %q, findings %q", n, len(data), r.Lost, r.IDs())
		}
	}
}

// TestTextsCut: rules that are cut short are no rules, and not few.
func TestTextsCut(t *testing.T) {
	rec, err := ReadLoose(looseTree(looseFile{"nft", "table ip nat {\n\tchain post {\n\t\ttype nat hook postrouting priority 100;\n\t\toifname \"eth0\" masq", 0}, looseFile{"b", looseSysctls, 0}), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if why := rec.Last().PartError("nat_rules"); rec.Last().NATRules != nil || !strings.Contains(why, "nft is cut short") {
		t.Errorf("%+v, %q", rec.Last().NATRules, why)
	}
	if !rec.SomeSysctls || !rec.NoUptime {
		t.Errorf("some sysctls %t, no uptime %t", rec.SomeSysctls, rec.NoUptime)
	}
}

// TestTextsRoute: the way of packets by what ip printed is that of the kernel's rules.
func TestTextsRoute(t *testing.T) {
	const (
		links  = "1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 state UNKNOWN\n2: wan0: <BROADCAST,UP,LOWER_UP> mtu 1500 state UP\n    inet 198.18.0.1/24 scope global wan0\n3: lan0: <BROADCAST,UP,LOWER_UP> mtu 1500 state UP\n    inet 10.0.0.1/24 scope global lan0\n4: down0: <NO-CARRIER,BROADCAST,UP> mtu 1500 state DOWN\n"
		routes = "default via 198.18.0.254 dev wan0 \n10.0.0.0/24 dev lan0 proto kernel scope link src 10.0.0.1 \n10.9.0.0/16 via 10.0.0.9 dev lan0 metric 20\n10.9.0.0/16 dev down0 scope link metric 10\nunreachable 10.8.0.0/16 \nlocal 10.0.0.1 dev lan0 table local scope host\n198.18.0.0/24 dev wan0 scope link\ndefault via 198.18.0.253 dev wan0 table 5\n"
		rules  = "0:\tfrom all lookup local\n100:\tfrom 10.0.0.7 lookup 5\n101:\tfrom 10.0.0.8 blackhole\n32766:\tfrom all lookup main\n32767:\tfrom all lookup default\n"
		near   = "198.18.0.254 dev wan0 lladdr 02:00:00:00:00:01 REACHABLE\n10.0.0.9 dev lan0 FAILED\n"
		all    = "net.ipv4.conf.all.forwarding = 1\nnet.ipv4.conf.lan0.forwarding = 1\nnet.ipv4.conf.lan0.rp_filter = 1\n"
	)
	host, err := loose.Read(looseTree(looseFile{"a", links, 0}, looseFile{"ip_route", routes, 0}, looseFile{"r", rules, 0}, looseFile{"n", near, 0}, looseFile{"s", all, 0}), "", loose.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := (&texts{host: host, Sample: host.Last()}).world()
	if err != nil {
		t.Fatal(err)
	}
	r, err := newRouter(w)
	if err != nil {
		t.Fatal(err)
	}
	addr := func(s string) netip.AddrPort {
		if s == "" {
			return netip.AddrPort{}
		}
		return netip.AddrPortFrom(netip.MustParseAddr(s), 0)
	}
	for _, c := range []struct{ from, to, in, want string }{
		{"", "1.1.1.1", "", "wan0 198.18.0.254 REACHABLE"},
		{"10.0.0.7", "1.1.1.1", "lan0", "wan0 198.18.0.253 "},
		{"10.0.0.8", "1.1.1.1", "lan0", unix.EINVAL.Error()},
		{"", "10.0.0.5", "", "lan0 10.0.0.5 "},
		{"", "10.0.0.1", "", "local"},
		{"", "10.8.1.1", "", unix.EHOSTUNREACH.Error()},
		{"", "10.9.1.1", "", "down0 10.9.1.1 has no carrier"},
		{"8.8.8.8", "1.1.1.1", "lan0", unix.EXDEV.Error()},
		{"", "2001:db8::1", "", unix.ENETUNREACH.Error()},
	} {
		route, known := r.ask(flow{from: addr(c.from), to: addr(c.to), in: c.in})
		got := fmt.Sprintf("%s %s %s%s", route.Out, route.NextHop, route.Neighbour, route.Broken)
		switch {
		case route.Local:
			got = "local"
		case route.Error != "":
			got = route.Error
		}
		if !known || got != c.want {
			t.Errorf("from %s to %s in by %s: %q (known %t), want %q", c.from, c.to, c.in, got, known, c.want)
		}
	}
}

// eachOf calls fn with entries of TCP connections, by number.
func eachOf(n int, fn func(*conntrack.Entry)) {
	for i := range n {
		client := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		server, own := netip.AddrFrom4([4]byte{198, 19, 0, byte(i % 250)}), netip.AddrFrom4([4]byte{198, 18, 0, 1})
		port := uint16(1024 + i%60000)
		e := conntrack.Entry{Family: unix.AF_INET, Status: conntrack.Confirmed | conntrack.SeenReply | conntrack.Assured | conntrack.SrcNAT, TCPState: conntrack.TCPState(1 + i%7),
			Timeout: uint32(i % 432000), Use: 1, ID: uint32(i) * 2654435761,
			Orig:  conntrack.Tuple{Src: client, Dst: server, Proto: unix.IPPROTO_TCP, SrcPort: port, DstPort: 443},
			Reply: conntrack.Tuple{Src: server, Dst: own, Proto: unix.IPPROTO_TCP, SrcPort: 443, DstPort: port}}
		fn(&e)
	}
}

// BenchmarkTextsMillion is doctor's reading of a list of a million connections.
func BenchmarkTextsMillion(b *testing.B) {
	var list []byte
	eachOf(1_000_000, func(e *conntrack.Entry) {
		list = append(text.Append(list, e, text.Options{Extended: true, ID: true}), '\n')
	})
	walk := func(fn func(*loose.File) error) error {
		return fn(&loose.File{Name: "list", Reader: bytes.NewReader(list)})
	}
	b.SetBytes(int64(len(list)))
	b.ReportAllocs()
	for b.Loop() {
		rec, err := ReadLoose(walk, "", nil)
		if err != nil || rec.Last().Table.Sampled != 1_000_000 {
			b.Fatal(err)
		}
	}
}

// BenchmarkBundleMillion is doctor's reading of a bundle of a million connections, in one of its two samples.
func BenchmarkBundleMillion(b *testing.B) {
	var file bytes.Buffer
	w, err := newBundle(&file, BundleOptions{}, snapshot.BundleHeader{TakenAt: time.Unix(0, 0)})
	if err != nil {
		b.Fatal(err)
	}
	for i := range 2 {
		src := newRecorder(&fixture{}, w, place{w.recordings, i}, nil)
		src.source = &listed{n: i * 1_000_000}
		observe(b.Context(), src, 1<<30, always(nil))
		if err := src.end(); err != nil {
			b.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(file.Len()))
	b.ReportAllocs()
	for b.Loop() {
		rec, err := ReadBundle(bytes.NewReader(file.Bytes()), nil)
		if err != nil || rec.Last().Table.Sampled != 1_000_000 {
			b.Fatal(err)
		}
	}
}

// listed is a source that has a table alone.
type listed struct {
	fixture
	n int
}

func (l *listed) table(_ context.Context, fn func([]byte) error) (dump.Result, error) {
	var messages []byte
	eachOf(l.n, func(e *conntrack.Entry) {
		if messages = conntrack.Append(messages, conntrack.New, 0, 0, e); len(messages) > datagramBytes {
			_ = fn(messages)
			messages = messages[:0]
		}
	})
	return dump.Result{Complete: true}, fn(messages)
}

// FuzzLoose: what texts become is diagnosed without a panic of a collector or a rule.
func FuzzLoose(f *testing.F) {
	const rules = "*nat\n:PREROUTING ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n[1:2] -A PREROUTING -i eth0 -p tcp --dport 80 -j DNAT --to-destination 10.0.0.2:8080\n-A POSTROUTING -o eth0 -j MASQUERADE\nCOMMIT\n*filter\n:FORWARD DROP [9:9]\nCOMMIT\n"
	const network = "2: eth0: <BROADCAST,UP,LOWER_UP> mtu 1500\n    inet 192.0.2.2/24 scope global eth0\n3: eth1: <UP> mtu 1500\n    inet 10.0.0.1/24 scope global eth1\n"
	f.Add(looseStats+looseSysctls, looseEntry, rules)
	f.Add(network, "default via 192.0.2.1 dev eth0\n10.0.0.0/24 dev eth1 proto kernel scope link\n", rules)
	f.Add("100: from all fwmark 0x1 lookup 5\n", "10.0.0.2 dev eth1 FAILED\n", "table ip nat {\n\tchain p {\n\t\ttype nat hook prerouting priority -100;\n\t\tdnat to 10.0.0.2\n\t}\n}\n")
	f.Add("TCP  198.18.0.1:80 rr persistent 60\n  -> RemoteAddress:Port\n  -> 198.18.0.2:80 Masq 1 2 3\n", "pro expire state\nTCP 01:00 ESTABLISHED 1.2.3.4:5 198.18.0.1:80 198.18.0.2:80\n", "State Recv-Q Send-Q Local Peer\nLISTEN 5 4 0.0.0.0:80 0.0.0.0:*\n")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		if len(a)+len(b)+len(c) > 1<<14 {
			return
		}
		rec, err := ReadLoose(looseTree(looseFile{"0/a", a, 0}, looseFile{"0/b", b, 0}, looseFile{"0/c", c, 0}, looseFile{"1/a", b, 9}, looseFile{"net", network, 0}), "", snapshot.NewBudget(16<<20))
		if err != nil {
			return
		}
		for _, c := range diagnose.Run(rec, diagnose.Rules()).Checks {
			if c.Defect {
				t.Errorf("%s: %s", c.ID, c.Why)
			}
		}
	})
}
