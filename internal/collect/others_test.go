package collect

import (
	"bytes"
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/ports"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

func TestOtherTicksOfProcesses(t *testing.T) {
	all := map[int]process{}
	for _, line := range []string{
		"1 (init) S 0 1 1 0 -1 0 0 0 0 0 1 2 3 4 20 0",
		"2 (kthreadd) S 0 0 0 0 -1 0 0 0 0 0 0 100 0 0 20 0",
		"7 (ksoftirqd/0) S 2 0 0 0 -1 0 0 0 0 0 0 1000 0 0 20 0",
		"40 (sh) S 1 0 0 0 -1 0 0 0 0 0 10 0 0 0 20 0",
		"50 (natkit) S 40 0 0 0 -1 0 0 0 0 0 10000 0 0 0 20 0",
		"60 (a) 1 (b) S 50 0 0 0 -1 0 0 0 0 0 100000 0 0 0 20 0",
		"70 (nginx) S 60 0 0 0 -1 0 0 0 0 0 100000 0 0 0 20 0",
		"80 (circle) S 81 0 0 0 -1 0 0 0 0 0 5 0 0 0 20 0",
		"81 (circle) S 80 0 0 0 -1 0 0 0 0 0 5 0 0 0 20 0",
	} {
		pid, p, ok := parseProcess([]byte(line))
		if !ok {
			t.Fatalf("%s is not understood", line)
		}
		all[pid] = p
	}
	if got := otherTicks(all, 50); got != 30 {
		t.Errorf("%d ticks of others, want 30", got)
	}
	for _, bad := range []string{"", "1", "1 (x", "x (y) S 1", "1 (x) S 0 1"} {
		if _, _, ok := parseProcess([]byte(bad)); ok {
			t.Errorf("%q is taken for a process", bad)
		}
	}
}

// TestOtherTicksOfThisMachine: a loop beside grows them, and is not counted where it is
// one's own.
func TestOtherTicksOfThisMachine(t *testing.T) {
	loop := exec.Command("sh", "-c", "while :; do :; done")
	if err := loop.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = loop.Process.Kill(); _ = loop.Wait() })
	ticks := func() uint64 {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", loop.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		_, p, _ := parseProcess(text)
		return p.ticks
	}
	other := func(own int) uint64 {
		n, err := OtherTicks(own)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before, own := other(1<<30), ticks()
	for end := time.Now().Add(testutil.Patience(30 * time.Second)); ticks() < own+10; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the loop got no CPU")
		}
	}
	if grown := other(1<<30) - before; grown < 10 {
		t.Errorf("the loop is not seen: %d ticks", grown)
	}
	mine := other(loop.Process.Pid)
	if whole := other(1 << 30); whole < mine+10 {
		t.Errorf("%d ticks without the loop, %d with it", mine, whole)
	}
}

// Sockets of a namespace are found there, and not elsewhere.
func TestSockets(t *testing.T) {
	ns := testutil.Namespace(t)
	var listener net.Listener
	var packets net.PacketConn
	if err := ns.Do(func() (err error) {
		if listener, err = net.Listen("tcp", "[::]:0"); err != nil {
			return err
		}
		packets, err = net.ListenPacket("udp4", "0.0.0.0:0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	defer packets.Close()
	tcp := ports.Socket{Proto: unix.IPPROTO_TCP, Local: netip.MustParseAddrPort(listener.Addr().String()), Remote: netip.MustParseAddrPort("[::]:0")}
	udp := ports.Socket{Proto: unix.IPPROTO_UDP, Local: netip.MustParseAddrPort(packets.LocalAddr().String()), Remote: netip.MustParseAddrPort("0.0.0.0:0")}
	there, err := Sockets(ns)
	if err != nil {
		t.Fatal(err)
	}
	if len(there) != 2 || !slices.Contains(there, tcp) || !slices.Contains(there, udp) {
		t.Errorf("found %v, want %v and %v", there, tcp, udp)
	}
	if _, err := Sockets(nil); err != nil {
		t.Error(err)
	}
}

func TestBundleCarriesNATRules(t *testing.T) {
	ns := testutil.Namespace(t)
	testutil.NeedProgram(t, "nft")
	err := ns.Do(func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(`table ip nat { chain post {
			type nat hook postrouting priority srcnat
			ip saddr 198.18.0.0/16 meta l4proto tcp masquerade to :1024-2047 random
		}
		}`)
		return cmd.Run()
	})
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	live, err := WriteBundle(t.Context(), &file, RecordOptions{Options: Options{Netns: ns}})
	if err != nil {
		t.Fatal(err)
	}
	again, err := ReadBundle(&file, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range live.Snapshots {
		if s.NATRules == nil || len(s.NATRules.Rules) != 1 || s.NATRules.Rules[0].Text != "masquerade to :1024-2047 random" {
			t.Errorf("snapshot %d has the rules %+v, %q", i, s.NATRules, s.PartError("nat_rules"))
		}
		if !reflect.DeepEqual(s.NATRules, again.Snapshots[i].NATRules) {
			t.Errorf("the bundle has other rules: %+v", again.Snapshots[i].NATRules)
		}
	}
}

func TestOldBundleHasNoNATRules(t *testing.T) {
	var file bytes.Buffer
	b, err := snapshot.NewBundleWriter(&file, snapshot.BundleHeader{TakenAt: time.Time{}})
	for _, name := range []string{"0/0/head.json", "0/0/tail.json", "0/1/head.json", "0/1/tail.json"} {
		err = cmp.Or(err, b.Add(name, []byte("{}")))
	}
	if err := cmp.Or(err, b.Close()); err != nil {
		t.Fatal(err)
	}
	rec, err := ReadBundle(&file, nil)
	if err != nil {
		t.Fatal(err)
	}
	if why := rec.Last().PartError("nat_rules"); rec.Last().NATRules != nil || !strings.Contains(why, "not in the bundle") {
		t.Errorf("rules %+v, %q", rec.Last().NATRules, why)
	}
}
