package doctor

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
)

func TestNothingAskedFor(t *testing.T) {
	got := StartTrace(t.Context(), TraceOptions{}).Stop()
	if len(got.Parts) != 0 || got.Drops != nil || got.Profile != nil {
		t.Errorf("nothing was asked for, and there is %+v", got)
	}
}

// TestUnprivileged: what is unavailable is reported, by name, and nothing fails.
func TestUnprivileged(t *testing.T) {
	if os.Geteuid() == 0 {
		runAsNobody(t)
		return
	}
	got := StartTrace(t.Context(), TraceOptions{Drops: true, Profile: true, SYNs: true}).Stop()
	if got.Drops != nil || got.Profile != nil || got.SYNs != nil || len(got.Parts) != 3 {
		t.Fatalf("without privilege: %+v", got)
	}
	for _, p := range got.Parts {
		if !strings.Contains(p.Error, "CAP_") {
			t.Errorf("%s: %q does not say which capability is missing", p.Name, p.Error)
		}
	}
}

// runAsNobody runs the calling test without privilege.
func runAsNobody(t *testing.T) {
	t.Helper()
	program, err := os.CreateTemp("/tmp", "natkit-trace-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(program.Name()) })
	text, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if _, err = program.Write(text); err == nil {
		err = program.Chmod(0o755)
	}
	program.Close()
	if err != nil {
		t.Fatal(err)
	}
	const nobody = 65534
	cmd := exec.Command(program.Name(), "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
}

// TestAll traces a namespace in which datagrams reach a closed port.
func TestAll(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.BTF)
	ns, err := netns.New("trace")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	const sent = 200
	tracer := StartTrace(t.Context(), TraceOptions{Netns: ns, Drops: true, Profile: true, SYNs: true, FlowSample: 1, Hz: 499})
	if err := ns.Do(func() error { return knock(sent) }); err != nil {
		t.Error(err)
	}
	spin(50 * time.Millisecond)
	got := tracer.Stop()
	for _, p := range got.Parts {
		if p.Error != "" || p.DurationSeconds <= 0 {
			t.Errorf("%+v", p)
		}
	}
	if len(got.Parts) != 3 || got.Drops == nil || got.Profile == nil || got.SYNs == nil {
		t.Fatalf("%+v", got)
	}
	if n := dropped(got.Drops, ns, "udp"); n != sent {
		t.Errorf("%d of %d datagrams were dropped: %+v", n, sent, got.Drops.Sites)
	}
	if got.SYNs.Seconds <= 0 || got.SYNs.SYNs != 0 || got.SYNs.Sample != 1 {
		t.Errorf("SYNs: %+v", got.SYNs)
	}
	if got.Profile.Hz != 499 || got.Profile.Samples == 0 {
		t.Errorf("profile: %+v", got.Profile)
	}
}

// TestOwnNamespace: without a namespace it is that of natkit, not all of them.
func TestOwnNamespace(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.BTF)
	other, err := netns.New("other")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	tracer := StartTrace(t.Context(), TraceOptions{Drops: true, FlowSample: 1})
	if err := other.Do(func() error { return knock(10) }); err != nil {
		t.Error(err)
	}
	got := tracer.Stop()
	if got.Drops == nil {
		t.Fatalf("%+v", got)
	}
	if n := dropped(got.Drops, other, "udp"); n != 0 {
		t.Errorf("%d drops of another namespace", n)
	}
}

func dropped(d *snapshot.Drops, ns *netns.Handle, protocol string) (n uint64) {
	for _, s := range d.Sites {
		if s.Netns == ns.Inode() && s.Protocol == protocol {
			n += s.Packets
		}
	}
	return n
}

// knock sends datagrams over the loopback of the calling thread's namespace.
func knock(n int) error {
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("ip link set lo up: %w: %s", err, out)
	}
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	defer c.Close()
	for range n {
		if _, err := c.WriteTo([]byte("x"), &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9}); err != nil {
			return err
		}
	}
	return nil
}

// spin gives the profile something to see.
func spin(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
	}
}
