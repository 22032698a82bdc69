//go:build linux

package send

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/natlog"
	"github.com/natkit/natkit/internal/testutil"
)

// queued is how many bytes wait at a port of UDP, -1 where nobody has it.
func queued(t *testing.T, port int) (waiting int) {
	t.Helper()
	text, err := os.ReadFile("/proc/net/udp")
	if err != nil {
		t.Fatal(err)
	}
	waiting = -1
	for line := range strings.Lines(string(text)) {
		var number string
		var local, remote struct{ address, port int }
		var state, sends, receives int
		if n, _ := fmt.Sscanf(line, "%s %x:%x %x:%x %x %x:%x", &number, &local.address, &local.port, &remote.address, &remote.port, &state, &sends, &receives); n == 8 && local.port == port && remote.port == 0 {
			waiting = receives
		}
	}
	return waiting
}

// values of a record as nfdump shows it.
var value = regexp.MustCompile(`(?m)^ *(proto|src port|dst port|src addr|dst addr|src xlt ip|dst xlt ip|src xlt port|dst xlt port|nat event|Event time) += +([^ \n]+)`)

// A collector that knows nothing of natkit reads what it is sent as what it is.
func TestNfcapd(t *testing.T) {
	collector, dump := testutil.NeedNightlyProgram(t, "nfcapd"), testutil.NeedNightlyProgram(t, "nfdump")
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.LocalAddr().(*net.UDPAddr)
	l.Close()
	dir := t.TempDir()
	var says bytes.Buffer
	cmd := exec.Command(collector, "-w", dir, "-b", "127.0.0.1", "-p", fmt.Sprint(address.Port), "-t", "3600")
	cmd.Stdout, cmd.Stderr = &says, &says
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	testutil.Eventually(t, "a collector at its port", func() bool { return queued(t, address.Port) == 0 })

	start, six := record(5), natlog.Record{Kind: natlog.Start, Time: noon, Protocol: 17, Src: netip.MustParseAddrPort("[2001:db8::7]:7"), NAT: netip.MustParseAddrPort("[2001:db8:1::9]:9"), Dst: netip.MustParseAddrPort("[2001:db8:2::1]:53")}
	end := start
	end.Kind, end.Started, end.Ended, end.Time = natlog.End, noon, noon.Add(time.Second), noon.Add(time.Second)
	end.Server = netip.MustParseAddrPort("198.18.0.9:8080")
	all := append([]natlog.Record{start, end, six}, records(0, 500)...)
	c := NewCollector("udp", address.String(), 9, func() time.Time { return noon })
	defer c.Close()
	if n, err := c.Send(t.Context(), all); err != nil || n != len(all) {
		t.Fatal(n, err)
	}
	testutil.Eventually(t, "nothing that waits", func() bool { return queued(t, address.Port) == 0 })
	_ = cmd.Process.Signal(os.Interrupt) // it has read all, and writes it
	if err := cmd.Wait(); err != nil {
		t.Fatal(err, says.String())
	}
	if want := fmt.Sprintf("Flows: %d, Packets: 0, Bytes: 0, Sequence Errors: 0, Bad Packets: 0", len(all)); !strings.Contains(says.String(), want) {
		t.Errorf("%q is missing in: %s", want, says.String())
	}

	names, _ := filepath.Glob(filepath.Join(dir, "nfcapd.*"))
	read := exec.Command(dump, "-r", strings.Join(names, ""), "-o", "raw")
	read.Env = append(os.Environ(), "TZ=UTC")
	text, err := read.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	var got []string
	for _, record := range strings.Split(string(text), "Flow Record:")[1:] {
		var line []string
		for _, m := range value.FindAllStringSubmatch(record, -1) {
			line = append(line, m[2])
		}
		got = append(got, strings.Join(line, " "))
	}
	if len(got) != len(all) {
		t.Fatalf("%d records, want %d: %s", len(got), len(all), text[:min(len(text), 2000)])
	}
	if d := cmp.Diff([]string{
		"6 5 80 10.0.0.1 198.51.100.0 203.0.113.1 198.51.100.0 1 80 4: 1772366400000",
		"6 5 80 10.0.0.1 198.51.100.0 203.0.113.1 198.18.0.9 1 8080 5: 1772366401000",
		"17 7 53 2001:db8::7 2001:db8:2::1 9 53 1: 1772366400000", // nfdump 1.7.1 keeps no translated addresses of IPv6
		"6 0 80 10.0.0.1 198.51.100.0 203.0.113.1 198.51.100.0 1 80 4: 1772366400000",
	}, got[:4]); d != "" {
		t.Error(d)
	}
}
