package collect

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/snapshot"
)

const (
	someServices = `IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  C6120050:01BB wrr 
  -> C613000B:01BB      Route   1      1          3         
  -> C613000C:01BB      Route   1      0          2         
`
	someCounters = `       Total Incoming Outgoing         Incoming         Outgoing
CPU    Conns  Packets  Packets            Bytes            Bytes
  0        A       2F       2E              DD5              FE4
  ~        0        0        0                0                0
`
	connHeader = "Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData\n"
)

func someConnections(n int, expires int) string {
	var b strings.Builder
	b.WriteString(connHeader)
	for i := range n {
		fmt.Fprintf(&b, "TCP C61201%02X %04X C6120050 01BB C613000B 01BB %-11s %7d\n", i>>15, 2048+i&0x7fff, "FIN_WAIT", expires)
	}
	return b.String()
}

// balancerProc is a /proc of a kernel with IPVS.
func balancerProc(t *testing.T, connections string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"net/ip_vs": someServices, "net/ip_vs_stats_percpu": someCounters, "net/ip_vs_conn": connections,
		"sys/net/ipv4/vs/conn_reuse_mode": "1\n", "sys/net/ipv4/vs/conntrack": "0\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestIPVSInBundles: what is read back is what was read.
func TestIPVSInBundles(t *testing.T) {
	o := Options{Proc: balancerProc(t, someConnections(5, 60)), Sys: t.TempDir(), Kmsg: "/nonexistent"}
	var file bytes.Buffer
	wrote, err := WriteBundle(t.Context(), &file, RecordOptions{Options: o})
	if err != nil {
		t.Fatal(err)
	}
	read, err := ReadBundle(&file, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range wrote.Snapshots {
		v := s.IPVS
		if v == nil || len(v.Services) != 1 || v.Stats == nil || v.Stats.Connections != 10 || v.Connections == nil || v.Connections.Sampled != 5 || !v.Connections.Complete {
			t.Fatalf("%+v, parts %+v", v, s.Parts)
		}
		if d := cmp.Diff(v, read.Snapshots[i].IPVS); d != "" {
			t.Errorf("snapshot %d (-written +read):\n%s", i, d)
		}
	}
	last := read.Last()
	if u := last.IPVS.Connections.Services[0]; last.IPVS.Connections.Compared != 5 || u.UsedAgain != 0 || u.Clients != 1 {
		t.Errorf("%+v", last.IPVS.Connections)
	}
	if mode, ok := last.Sysctls.Int(snapshot.IPVSReuse); !ok || mode != 1 {
		t.Errorf("%s is %d, %v", snapshot.IPVSReuse, mode, ok)
	}
}

// TestIPVSIsBounded: a large table is read in part, and the entry that is cut is left out.
func TestIPVSIsBounded(t *testing.T) {
	text := someConnections(100_000, 60)
	s, err := Read(t.Context(), Options{Proc: balancerProc(t, text), Sys: t.TempDir(), Kmsg: "/nonexistent"})
	if err != nil {
		t.Fatal(err)
	}
	line := int64(len(strings.SplitAfter(text, "\n")[1]))
	c := s.IPVS.Connections
	if c == nil || c.Complete || c.Sampled == 0 || c.Sampled > (ipvsBytes-int64(len(connHeader)))/line {
		t.Fatalf("%+v, parts %+v", c, s.Parts)
	}
}

// TestIPVSCutInBundles: a table that was read in part is one in the bundle, too.
func TestIPVSCutInBundles(t *testing.T) {
	o := Options{Proc: balancerProc(t, someConnections(100_000, 60)), Sys: t.TempDir(), Kmsg: "/nonexistent"}
	var file bytes.Buffer
	wrote, err := WriteBundle(t.Context(), &file, RecordOptions{Options: o})
	if err != nil {
		t.Fatal(err)
	}
	read, err := ReadBundle(&file, nil)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(wrote.Last().IPVS, read.Last().IPVS); d != "" || read.Last().IPVS.Connections.Complete {
		t.Errorf("complete %v (-written +read):\n%s", read.Last().IPVS.Connections.Complete, d)
	}
}

// TestReadStartIsPatientSoLong: without time it stops after what the kernel gives at once.
func TestReadStartIsPatientSoLong(t *testing.T) {
	l := newLive(Options{Proc: balancerProc(t, someConnections(1000, 60))})
	data, whole, err := l.readStart(procIPVSConnections, ipvsBytes, -time.Second)
	if err != nil || whole || len(data) == 0 || len(data) > os.Getpagesize() {
		t.Errorf("%d bytes, whole %v, %v", len(data), whole, err)
	}
	if data, whole, err = l.readStart(procIPVSConnections, ipvsBytes, time.Minute); err != nil || !whole || len(data) < 60_000 {
		t.Errorf("%d bytes, whole %v, %v", len(data), whole, err)
	}
}

func TestNoIPVS(t *testing.T) {
	s, err := Read(t.Context(), Options{Proc: t.TempDir(), Sys: t.TempDir(), Kmsg: "/nonexistent"})
	if err != nil || s.IPVS != nil || s.PartError("ipvs") != "" {
		t.Errorf("%v %+v %q", err, s.IPVS, s.PartError("ipvs"))
	}
	for _, p := range s.Parts {
		if strings.HasPrefix(p.Name, "ipvs") {
			t.Errorf("a part for what is not there: %+v", p)
		}
	}
}

func TestIPVSTimeoutsOfAttributes(t *testing.T) {
	attributes, err := netlink.ParseAttrs([]byte{8, 0, 4, 0, 132, 3, 0, 0, 8, 0, 5, 0, 120, 0, 0, 0, 8, 0, 6, 0, 44, 1, 0, 0})
	if err != nil {
		t.Fatal(err)
	}
	if got := timeoutsOf(attributes); *got != (snapshot.IPVSTimeouts{TCP: 900, TCPFin: 120, UDP: 300}) {
		t.Errorf("%+v", got)
	}
	if got := timeoutsOf(attributes[:1]); *got != (snapshot.IPVSTimeouts{TCP: 900}) {
		t.Errorf("%+v", got)
	}
}
