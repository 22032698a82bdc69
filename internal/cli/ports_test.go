package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/report"
)

// balancerBundle is written from a /proc with a service of two servers, and removed or
// marked ones that are in the table of connections only.
func balancerBundle(t *testing.T) string {
	t.Helper()
	proc := t.TempDir()
	connections := "Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData\n"
	for i := range 60 {
		connections += fmt.Sprintf("TCP C6120109 %04X C6120050 01BB C613000%X 01BB FIN_WAIT        %3d\n", 20000+i, 0xB+i%2, 30+i)
	}
	connections += "TCP C6120109 0800 C6120051 01BB C613000B 01BB TIME_WAIT       117\n"
	for name, text := range map[string]string{
		"net/ip_vs": `IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  C6120050:01BB wrr 
  -> C613000B:01BB      Route   3      0          30        
  -> C613000C:01BB      Route   1      0          30        
UDP  C6120050:0035 rr ops 
`,
		"net/ip_vs_stats": "   Total Incoming Outgoing         Incoming         Outgoing\n   Conns  Packets  Packets            Bytes            Bytes\n      3D      100        0              DD5                0\n",
		"net/ip_vs_conn":  connections, "sys/net/ipv4/vs/conn_reuse_mode": "1\n", "sys/kernel/osrelease": "6.12.0-test\n",
	} {
		path := filepath.Join(proc, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var bundle bytes.Buffer
	o := collect.RecordOptions{Options: collect.Options{Proc: proc, Sys: t.TempDir(), Kmsg: "/nonexistent"}}
	if _, err := collect.WriteBundle(t.Context(), &bundle, o); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "bundle.tar.gz")
	if err := os.WriteFile(path, bundle.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPortsLVS(t *testing.T) {
	bundle := balancerBundle(t)
	var stdout, stderr bytes.Buffer
	if code := runNatkit(t.Context(), &stdout, &stderr, "ports", "--lvs", "--from", bundle); code != 0 {
		t.Fatalf("code %d: %s", code, stderr.String())
	}
	t.Log("\n" + stdout.String())
	for _, want := range []string{
		"IPVS with 2 services, 61 connections", "net.ipv4.vs.conn_reuse_mode is 1", "tcp 198.18.0.80:443, wrr", "udp 198.18.0.80:53, rr, one packet",
		"198.19.0.11:443", "75 %", "from 1 client address", "198.18.1.9: 60 ports with an entry, of 20000-20059", "chosen by a firewall mark, or removed", "198.18.0.81:443",
	} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("%q is missing", want)
		}
	}
	stdout.Reset()
	if code := runNatkit(t.Context(), &stdout, &stderr, "ports", "--lvs", "--json", "--from", bundle); code != 0 {
		t.Fatalf("code %d: %s", code, stderr.String())
	}
	var doc report.LVS
	if err := json.Unmarshal(stdout.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Schema != lvsSchema || doc.Kernel != "6.12.0-test" || doc.IPVS == nil || doc.IPVS.Connections.Services[0].Clients != 1 || doc.Sysctls["net.ipv4.vs.conn_reuse_mode"] != "1" {
		t.Errorf("%+v", doc)
	}
}

func TestPortsLVSWithoutIPVS(t *testing.T) {
	var bundle bytes.Buffer
	o := collect.RecordOptions{Options: collect.Options{Proc: t.TempDir(), Sys: t.TempDir(), Kmsg: "/nonexistent"}}
	if _, err := collect.WriteBundle(t.Context(), &bundle, o); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "bundle.tar.gz")
	if err := os.WriteFile(path, bundle.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	if code := runNatkit(t.Context(), &stdout, &stderr, "ports", "--lvs", "--from", path); code != 1 || !strings.Contains(stderr.String(), "ip_vs is not loaded") {
		t.Errorf("code %d: %s", code, stderr.String())
	}
}
