//go:build linux

package text_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/conntrack/text"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/unix"
)

func within(t *testing.T, ns *netns.Handle, fn func() error) {
	t.Helper()
	if err := ns.Do(fn); err != nil {
		t.Fatal(err)
	}
}

// setting writes a sysctl that the kernel may be built without.
func setting(name, value string) error {
	err := os.WriteFile("/proc/sys/net/netfilter/"+name, []byte(value), 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// add makes one entry and reports whether the kernel knows how to.
func add(t *testing.T, ns *netns.Handle, e conntrack.Entry) bool {
	t.Helper()
	done := false
	_, err := dump.Insert(t.Context(), ns, func(to *conntrack.Entry) bool {
		*to, done = e, !done
		return done
	})
	if err != nil {
		t.Logf("%s is not here: %v", nat.ProtocolName(e.Orig.Proto), err)
	}
	return err == nil
}

var (
	v4a, v4b = netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("198.18.0.2")
	v6a, v6b = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
	public4  = netip.MustParseAddr("203.0.113.9")
	public6  = netip.MustParseAddr("::198.18.0.9") // inet_ntop has a form of its own
)

// entry returns a plain entry of its protocol; n makes it unique.
func entry(proto uint8, n uint16, v6 bool) conntrack.Entry {
	e := conntrack.Entry{Family: unix.AF_INET, Timeout: 3000 + uint32(n)}
	e.Orig = conntrack.Tuple{Src: v4a, Dst: v4b, Proto: proto, SrcPort: n, DstPort: 80}
	if v6 {
		e.Family, e.Orig.Src, e.Orig.Dst = unix.AF_INET6, v6a, v6b
	}
	switch proto {
	case unix.IPPROTO_ICMP:
		e.Orig.SrcPort, e.Orig.DstPort, e.Orig.ICMPType, e.Orig.ICMPID = 0, 0, 8, n
	case unix.IPPROTO_ICMPV6:
		e.Orig.SrcPort, e.Orig.DstPort, e.Orig.ICMPType, e.Orig.ICMPID = 0, 0, 128, n
	case unix.IPPROTO_SCTP:
		e.SCTPState = 4
	}
	e.Reply = e.Orig.Mirror()
	return e
}

// fillByHand makes entries of all kinds that ctnetlink can make, and returns their
// number.
func fillByHand(t *testing.T, ns *netns.Handle) (n int) {
	t.Helper()
	count := func(e conntrack.Entry) {
		if add(t, ns, e) {
			n++
		}
	}
	for s := conntrack.TCPNone; s <= conntrack.TCPSynSent2; s++ {
		for _, v6 := range []bool{false, true} {
			e := entry(unix.IPPROTO_TCP, 100+uint16(s), v6)
			e.TCPState, e.Mark = s, uint32(s)<<28
			e.Status = []conntrack.Status{0, conntrack.SeenReply, conntrack.SeenReply | conntrack.Assured}[s%3]
			count(e)
		}
	}
	for s := uint8(1); s <= 8; s++ {
		e := entry(unix.IPPROTO_SCTP, 200+uint16(s), s%2 == 0)
		e.SCTPState = s
		count(e)
	}
	for s := uint8(1); s <= 7; s++ {
		e := entry(unix.IPPROTO_DCCP, 220+uint16(s), s%2 == 0)
		e.DCCPState = s
		count(e)
	}
	for proto := 1; proto < 256; proto++ { // each has a name, or none
		count(entry(uint8(proto), 300, false))
		count(entry(uint8(proto), 300, true))
	}
	for _, e := range variants() {
		count(e)
	}
	return n
}

// variants are translated, in zones, with labels and helpers.
func variants() (all []conntrack.Entry) {
	for i, proto := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_UDPLITE, unix.IPPROTO_ICMP} {
		e := entry(proto, 400+uint16(i), false)
		if proto == unix.IPPROTO_TCP {
			e.TCPState = conntrack.TCPEstablished
		}
		e.Reply.Dst, e.Reply.Src = public4, netip.MustParseAddr("203.0.113.200")
		all = append(all, e)
		e = entry(proto, 500+uint16(i), false)
		e.Zone, e.ReplyZone = []uint16{7, 65535, 0, 9}[i], []uint16{7, 0, 1, 9}[i]
		if proto == unix.IPPROTO_TCP {
			e.TCPState = conntrack.TCPSynSent
		}
		all = append(all, e)
	}
	e := entry(unix.IPPROTO_UDP, 600, true)
	e.Reply.Dst = public6
	e.Orig.Dst, e.Reply.Src = netip.MustParseAddr("::ffff:198.18.0.1"), netip.MustParseAddr("::ffff:198.18.0.1")
	all = append(all, e)
	e = entry(unix.IPPROTO_TCP, 601, false)
	e.TCPState, e.Helper = conntrack.TCPEstablished, []byte("ftp")
	all = append(all, e)
	e = entry(unix.IPPROTO_TCP, 602, false)
	e.TCPState, e.Labels = conntrack.TCPEstablished, append([]byte{0x22}, make([]byte, 15)...)
	return append(all, e)
}

// rules make the kernel track, label and translate what goes over loopback.
const rules = `
table inet natkit_text {
	chain zones { type filter hook output priority raw; udp dport 5303 ct zone set 12; udp dport 5304 ct original zone set 13; }
	chain out { type filter hook output priority filter; ct mark set 77; ct label set 5; }
}
table ip natkit_text_nat {
	chain to { type nat hook output priority -100; udp dport 5300 dnat to 127.0.0.2:5301; }
	chain from { type nat hook postrouting priority 100; udp dport 5302 snat to 127.0.0.9:4000-4010; }
}`

// traffic makes entries by packets: counted, with their time, translated.
func traffic(t *testing.T, ns *netns.Handle) {
	t.Helper()
	ip, nft := testutil.NeedProgram(t, "ip"), testutil.NeedProgram(t, "nft")
	within(t, ns, func() error {
		if out, err := exec.Command(ip, "link", "set", "lo", "up").CombinedOutput(); err != nil {
			return fmt.Errorf("lo up: %w: %s", err, out)
		}
		load := exec.Command(nft, "-f", "-")
		load.Stdin = strings.NewReader(rules)
		if out, err := load.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	})
	within(t, ns, func() error { return talk(t) })
}

// talk sends by UDP and opens a connection of TCP that stays until the test ends.
func talk(t *testing.T) error {
	for _, port := range []string{"5300", "5302", "5303", "5304"} {
		c, err := net.Dial("udp4", "127.0.0.1:"+port)
		if err != nil {
			return err
		}
		_, _ = c.Write([]byte("closed port"))
		_ = c.Close()
	}
	l, err := net.Listen("tcp4", "127.0.0.1:8080")
	if err != nil {
		return err
	}
	t.Cleanup(func() { _ = l.Close() })
	c, err := net.DialTimeout("tcp4", l.Addr().String(), testutil.Patience(time.Minute))
	if err != nil {
		return err
	}
	t.Cleanup(func() { _ = c.Close() })
	_, err = c.Write([]byte("hello"))
	return err
}

// entries are those of the namespace, copied.
func entries(t *testing.T, ns *netns.Handle) (all []conntrack.Entry) {
	t.Helper()
	r, err := dump.Each(t.Context(), ns, nil, func(e *conntrack.Entry) error {
		all = append(all, e.Clone())
		return nil
	})
	if err != nil || !r.Complete {
		t.Fatalf("dump: %+v, %v", r, err)
	}
	return all
}

// compareLines looks at the table by other eyes between two dumps, and compares
// entry for entry. Times run on meanwhile: of each entry, any line is right that
// it had at a moment between.
func compareLines(t *testing.T, ns *netns.Handle, o text.Options, look func() []byte) []byte {
	t.Helper()
	from, before := time.Now().Unix(), entries(t, ns)
	list := look()
	after, to := entries(t, ns), time.Now().Unix()
	shown := map[string]bool{}
	for line := range strings.Lines(string(list)) {
		shown[strings.TrimSuffix(line, "\n")] = true
	}
	if len(before) != len(after) || len(shown) != len(after) {
		t.Errorf("%d lines are shown, %d entries were there before and %d after", len(shown), len(before), len(after))
	}
	last := map[uint32]uint32{}
	for i := range after {
		last[after[i].ID] = after[i].Timeout
	}
	for _, e := range before {
		if line, ok := take(shown, &e, last[e.ID], o, from, to); !ok {
			t.Errorf("not shown, or not so:\n%s", line)
		}
	}
	for line := range shown {
		t.Errorf("shown, and not by natkit:\n%s", line)
	}
	return list
}

// take removes the line of e from shown, and reports whether there was one.
func take(shown map[string]bool, e *conntrack.Entry, last uint32, o text.Options, from, to int64) (string, bool) {
	line := ""
	for ; e.Timeout >= last && e.Timeout > 0; e.Timeout-- {
		for o.Now = from; o.Now <= to; o.Now++ {
			if line = string(text.Append(nil, e, o)); shown[line] {
				delete(shown, line)
				return line, true
			}
		}
	}
	return line, false
}

// zone is one that no program takes for granted: 5 hours and a half east.
const zone = "XYZ-5:30"

func tool(t *testing.T, ns *netns.Handle, args ...string) []byte {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(testutil.NeedProgram(t, "conntrack"), append([]string{"-L"}, args...)...)
	cmd.Stdout, cmd.Stderr, cmd.Env = &stdout, &stderr, append(os.Environ(), "TZ="+zone)
	within(t, ns, func() error { return cmd.Run() })
	return stdout.Bytes()
}

// TestSameAsTheTool compares, entry for entry, on one table.
func TestSameAsTheTool(t *testing.T) {
	ns := testutil.Namespace(t)
	testutil.ShareHost(t)
	within(t, ns, func() error {
		return errors.Join(setting("nf_conntrack_acct", "1"), setting("nf_conntrack_timestamp", "1"),
			setting("nf_conntrack_udp_timeout", "3000")) // longer than the test takes on a slow machine
	})
	traffic(t, ns)
	if n := fillByHand(t, ns); n < 500 {
		t.Fatalf("only %d kinds of entries could be made", n)
	}
	east := time.FixedZone(zone, 5*3600+1800)
	for _, c := range []struct {
		args []string
		o    text.Options
	}{
		{nil, text.Options{}},
		{[]string{"-o", "extended"}, text.Options{Extended: true}},
		{[]string{"-o", "id"}, text.Options{ID: true}},
		{[]string{"-o", "extended,id,ktimestamp"}, text.Options{Extended: true, ID: true, Timestamps: true, Location: east}},
	} {
		t.Run(fmt.Sprint(c.args), func(t *testing.T) {
			list := compareLines(t, ns, c.o, func() []byte { return tool(t, ns, c.args...) })
			compareRead(t, list, entries(t, ns))
		})
	}
	checkKinds(t, entries(t, ns))
}

// TestLabelsAreSameAsTheTool gives the tool a file of names in a file system of
// its own.
func TestLabelsAreSameAsTheTool(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.OwnMounts)
	ns := testutil.Namespace(t)
	testutil.ShareHost(t)
	traffic(t, ns) // the kernel keeps labels where a rule needs them
	for _, e := range variants() {
		add(t, ns, e)
	}
	names := &text.Labels{1: "web", 9: "x"}
	got := compareLines(t, ns, text.Options{Labels: names}, func() []byte {
		cmd := exec.Command("sh", "-c", `mount -t tmpfs natkit /etc && mkdir /etc/xtables &&
			printf '1 web\n9 x\n' > /etc/xtables/connlabel.conf && exec "$0" -L -o labels`, testutil.NeedProgram(t, "conntrack"))
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		var out []byte
		within(t, ns, func() (err error) { out, err = cmd.Output(); return err })
		return out
	})
	if !bytes.Contains(got, []byte("labels=web")) {
		t.Errorf("no label with a name:\n%s", got)
	}
}

// checkKinds holds that the table had what the comparison is about.
func checkKinds(t *testing.T, all []conntrack.Entry) {
	t.Helper()
	has := func(what string, fn func(*conntrack.Entry) bool) {
		if !slices.ContainsFunc(all, func(e conntrack.Entry) bool { return fn(&e) }) {
			t.Errorf("no entry with %s", what)
		}
	}
	has("counters", func(e *conntrack.Entry) bool { return e.Sent.Packets > 0 && e.Received.Bytes > 0 })
	has("a time", func(e *conntrack.Entry) bool { return e.Start > 0 })
	has("a zone of both directions", func(e *conntrack.Entry) bool { return e.Zone == 12 && e.ReplyZone == 12 })
	has("a zone of its original direction", func(e *conntrack.Entry) bool { return e.Zone == 13 && e.ReplyZone == 0 })
	has("a zone of the reply", func(e *conntrack.Entry) bool { return e.Zone == 0 && e.ReplyZone == 1 })
	has("labels", func(e *conntrack.Entry) bool { return len(e.Labels) == 16 && e.Labels[0] == 1<<5 })
	has("DNAT", func(e *conntrack.Entry) bool { return e.Status.Has(conntrack.DstNAT) && e.Sent.Packets > 0 })
	has("SNAT", func(e *conntrack.Entry) bool { return e.Status.Has(conntrack.SrcNAT) && e.Sent.Packets > 0 })
	has("a mark", func(e *conntrack.Entry) bool { return e.Mark == 77 })
	has("references", func(e *conntrack.Entry) bool { return e.Use > 0 })
	has("a state of SCTP", func(e *conntrack.Entry) bool { return e.SCTPState == 7 })
	has("nothing known of its protocol", func(e *conntrack.Entry) bool { return e.Orig.Proto == 253 })
}

// compareRead reads a list back and compares what it says with the dump.
func compareRead(t *testing.T, list []byte, all []conntrack.Entry) {
	t.Helper()
	byTuple := map[string]*conntrack.Entry{}
	for i := range all {
		byTuple[identity(&all[i])] = &all[i]
	}
	n := 0
	stats, err := text.Each(bytes.NewReader(list), func(e *conntrack.Entry) error {
		want := byTuple[identity(e)]
		if want == nil {
			return fmt.Errorf("an entry that the kernel does not have: %+v", *e)
		}
		n++
		return sameAsRead(want, e)
	})
	if err != nil || n != len(all) || stats.Garbled != 0 || stats.Unknown != 0 {
		t.Errorf("read %d of %d entries: %+v, %v", n, len(all), stats, err)
	}
}

func identity(e *conntrack.Entry) string {
	t := e.Orig
	if t.Proto != unix.IPPROTO_GRE && !(t.SrcPort != 0 && e.Orig.DstPort != 0) {
		t.SrcPort, t.DstPort = 0, 0
	}
	return fmt.Sprint(t, e.Zone)
}

// sameAsRead compares what every text has.
func sameAsRead(want, got *conntrack.Entry) error {
	const bits = conntrack.SeenReply | conntrack.Assured | conntrack.Confirmed
	a, b := *want, *got
	a.Status, b.Status = a.Status&bits, b.Status&bits
	a.ID, b.ID, a.Timeout, b.Timeout, a.Start, b.Start, a.Labels = 0, 0, 0, 0, 0, 0, nil
	a.DeltaTime, b.DeltaTime, a.Fields, b.Fields = 0, 0, a.Fields&conntrack.HasCounters, b.Fields&conntrack.HasCounters
	if !a.Equal(&b) {
		return fmt.Errorf("the kernel says\n%+v, the text\n%+v", a, b)
	}
	return nil
}

// TestReadsProc compares what the kernel prints itself.
func TestReadsProc(t *testing.T) {
	testutil.NeedFeature(t, testutil.ConntrackProcfs)
	ns := testutil.Namespace(t)
	testutil.ShareHost(t)
	within(t, ns, func() error { return setting("nf_conntrack_acct", "1") })
	fillByHand(t, ns)
	var list []byte
	within(t, ns, func() (err error) {
		list, err = os.ReadFile("/proc/thread-self/net/nf_conntrack")
		return err
	})
	all := entries(t, ns)
	for i := range all {
		all[i].Helper, all[i].Use = nil, 2 // /proc holds a reference itself
	}
	compareRead(t, list, all)
}
