package build

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

var (
	gatewayPort = netip.MustParseAddrPort("198.18.0.1:8080")
	serverPort  = netip.MustParseAddrPort("198.19.0.2:80")
)

func scenario(t *testing.T, o lab.Overrides) *lab.Scenario {
	t.Helper()
	s, err := lab.Find("table-full")
	if err != nil {
		t.Fatal(err)
	}
	if s, err = s.With(o); err != nil {
		t.Fatal(err)
	}
	return s
}

// up builds the lab of scenario table-full in a directory of its own and sees
// that nothing of it is left at the end of the test.
func up(t *testing.T, o lab.Overrides) *Lab {
	t.Helper()
	testutil.NeedRoot(t)
	dir, before := t.TempDir(), namespaces(t)
	l, err := Up(t.Context(), scenario(t, o), Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		awaitNothingLeft(t, dir)
		if after := namespaces(t); after != before {
			t.Errorf("%d network namespaces are held after Close, %d before Up", after, before)
		}
	})
	return l
}

func withServer(t *testing.T, l *Lab, kind ServerKind) *Server {
	t.Helper()
	server, err := l.StartServer(t.Context(), kind)
	if err != nil {
		t.Fatal(err)
	}
	return server
}

func setNAT(t *testing.T, l *Lab, stage string) {
	t.Helper()
	st, ok := l.Scenario().Stage(stage)
	if !ok {
		t.Fatalf("no stage %s", stage)
	}
	if err := l.SetNAT(t.Context(), st.NAT); err != nil {
		t.Fatal(err)
	}
}

// get asks for / from the client's node and returns the whole answer.
func get(l *Lab, to netip.AddrPort) (string, error) {
	var conn net.Conn
	err := l.Node("client").Netns.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp4", to.String(), testutil.Patience(time.Minute))
		return err
	})
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(testutil.Patience(time.Minute))); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.0\r\nHost: lab\r\n\r\n"); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	return string(answer), err
}

// knock opens a connection without waiting for one whose SYN is lost.
func knock(l *Lab, to netip.AddrPort) bool {
	return l.Node("client").Netns.Do(func() error {
		conn, err := net.DialTimeout("tcp4", to.String(), 100*time.Millisecond)
		if err == nil {
			conn.Close()
		}
		return err
	}) == nil
}

// dropped counts the packets that the gateway's full table refused.
func dropped(t *testing.T, l *Lab) (packets uint64) {
	t.Helper()
	cpus, err := dump.Stats(l.Node("gateway").Netns)
	if err != nil {
		t.Fatal(err)
	}
	for _, cpu := range cpus {
		packets += cpu["drop"]
	}
	return packets
}

func mustGet(t *testing.T, l *Lab, to netip.AddrPort) string {
	t.Helper()
	answer, err := get(l, to)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(answer, " 200 OK\r\n") {
		t.Fatalf("answer of %s: %q", to, answer)
	}
	return answer
}

func entries(t *testing.T, l *Lab, node string) int64 {
	t.Helper()
	usage, err := dump.Count(l.Node(node).Netns)
	if err != nil {
		t.Fatal(err)
	}
	return usage.Entries
}

// run runs a program in a node to its end and returns what it said.
func run(t *testing.T, l *Lab, node string, stdin string, command ...string) string {
	t.Helper()
	var out bytes.Buffer
	p, err := l.Start(t.Context(), node, Command{
		Path: command[0], Args: command[1:], Stdin: strings.NewReader(stdin), Stdout: &out,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, out.String())
	}
	return out.String()
}

func TestServersAnswerThroughGatewayAndDNAT(t *testing.T) {
	for _, kind := range []ServerKind{Builtin, Nginx} {
		t.Run(string(kind), func(t *testing.T) {
			if kind == Nginx {
				testutil.NeedProgram(t, "nginx")
			}
			l := up(t, lab.Overrides{})
			server := withServer(t, l, kind)
			if kind == Nginx && !strings.HasPrefix(server.Name, "nginx/") || kind == Builtin && server.Name != "natkit builtin" {
				t.Errorf("server name %q", server.Name)
			}
			answer := mustGet(t, l, serverPort)
			if _, body, _ := strings.Cut(answer, "\r\n\r\n"); kind == Nginx && len(body) != pageBytes {
				t.Errorf("the page has %d bytes, want %d", len(body), pageBytes)
			}
			if _, err := get(l, gatewayPort); err == nil {
				t.Error("the gateway's port answers without a NAT rule")
			}
			setNAT(t, l, "nat")
			mustGet(t, l, gatewayPort)
			setNAT(t, l, "baseline")
			if _, err := get(l, gatewayPort); err == nil {
				t.Error("the gateway's port answers after its NAT rule was taken away")
			}
		})
	}
}

func TestRoutedTrafficIsTrackedOnlyWithRules(t *testing.T) {
	l := up(t, lab.Overrides{})
	withServer(t, l, Builtin)
	setNAT(t, l, "baseline")
	for range 5 {
		mustGet(t, l, serverPort)
	}
	for _, n := range l.Nodes() {
		if got := entries(t, l, n.Name); got != 0 {
			t.Errorf("without a rule %s tracks %d connections", n.Name, got)
		}
	}
	setNAT(t, l, "nat")
	mustGet(t, l, gatewayPort)
	if got := entries(t, l, "gateway"); got != 1 {
		t.Errorf("with DNAT the gateway tracks %d connections, want 1", got)
	}
	if err := l.ClearLoad(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := entries(t, l, "gateway"); got != 0 {
		t.Errorf("the gateway tracks %d connections after ClearLoad", got)
	}
}

// TestTopologyIsQuiet looks for what would disturb a measurement: IPv6
// addresses, and neighbours to be asked for.
func TestTopologyIsQuiet(t *testing.T) {
	testutil.NeedProgram(t, "ip")
	l := up(t, lab.Overrides{})
	for _, n := range l.Nodes() {
		if out := run(t, l, n.Name, "", "ip", "-6", "addr"); strings.Contains(out, "inet6") {
			t.Errorf("%s has IPv6 addresses:\n%s", n.Name, out)
		}
		for line := range strings.Lines(run(t, l, n.Name, "", "ip", "neigh")) {
			if !strings.HasSuffix(strings.TrimSpace(line), "PERMANENT") {
				t.Errorf("%s: neighbour %s", n.Name, line)
			}
		}
	}
	if out := run(t, l, "server", "", "cat", "/proc/sys/net/core/somaxconn"); out != "65535\n" {
		t.Errorf("somaxconn of the server is %s", out)
	}
	if out := run(t, l, "client", "", "cat", "/proc/sys/net/ipv4/ip_forward"); out != "0\n" {
		t.Errorf("the client forwards: %s", out)
	}
}

// TestBridgePassesNetfilter proves that br_netfilter works, and only in the lab.
// The IPv4 prerouting chain marks packets; the bridge's input chain comes after
// it only where the bridge itself calls the IPv4 chain (br_nf_pre_routing), and
// otherwise sees packets without a mark.
func TestBridgePassesNetfilter(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	bridgeSwitch := sysctlPath(lab.BridgeSysctl)
	host, _ := os.ReadFile(bridgeSwitch)
	l := up(t, lab.Overrides{Bridge: true})
	withServer(t, l, Builtin)
	run(t, l, "gateway", `
table ip t {
	chain p { type filter hook prerouting priority -300; iifname "br0" meta mark set 7; }
}
table bridge t {
	chain i { type filter hook input priority 0; ether type ip meta mark 7 counter comment "seen"; ether type ip meta mark != 7 counter comment "unseen"; }
}`, "nft", "-f", "-")
	mustGet(t, l, serverPort)
	rules := run(t, l, "gateway", "", "nft", "list", "table", "bridge", "t")
	if !strings.Contains(rules, `counter packets 0 bytes 0 comment "unseen"`) || strings.Contains(rules, `counter packets 0 bytes 0 comment "seen"`) {
		t.Errorf("packets from the bridge did not pass the IPv4 prerouting hook in the bridge:\n%s", rules)
	}
	setNAT(t, l, "nat")
	mustGet(t, l, gatewayPort)
	if now, _ := os.ReadFile(bridgeSwitch); !bytes.Equal(host, now) {
		t.Errorf("the host's %s went from %q to %q", lab.BridgeSysctl, host, now)
	}
}

// exactly is a fill to that many entries.
func exactly(f lab.Fill, entries int64) *lab.Fill {
	f.Amount = lab.Amount{Entries: entries}
	return &f
}

func TestFillIsExactAndGoesAway(t *testing.T) {
	testutil.ShareHost(t)
	l := up(t, lab.Overrides{})
	withServer(t, l, Builtin)
	setNAT(t, l, "fault")
	fault, _ := l.Scenario().Stage("fault")
	const want = 20000
	for _, target := range []int64{want / 2, want, want} {
		if err := l.SetFill(t.Context(), exactly(*fault.Fill, target), 0); err != nil {
			t.Fatal(err)
		}
		if got := entries(t, l, "gateway"); got != target {
			t.Fatalf("%d entries, want %d", got, target)
		}
	}
	mustGet(t, l, gatewayPort)
	if err := l.ClearLoad(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := entries(t, l, "gateway"); got != want {
		t.Errorf("%d entries after ClearLoad, want the fill's %d", got, want)
	}
	if err := l.SetFill(t.Context(), nil, 0); err != nil {
		t.Fatal(err)
	}
	if got := entries(t, l, "gateway"); got != 0 {
		t.Errorf("%d entries after the fill was taken away", got)
	}
}

// TestFillOfAnotherMix replaces a fill by one of another mix, and of another seed.
func TestFillOfAnotherMix(t *testing.T) {
	testutil.ShareHost(t)
	l := up(t, lab.Overrides{})
	for _, f := range []lab.Fill{{Mix: "gateway"}, {Mix: "gateway", Seed: 1}, {Mix: "syn-flood"}, {}} {
		f.Node, f.Free = "gateway", 1
		if err := l.SetFill(t.Context(), exactly(f, 5000), 0); err != nil {
			t.Fatal(err)
		}
		if got := entries(t, l, "gateway"); got != 5000 {
			t.Errorf("mix %q, seed %d: %d entries, want 5000", f.Mix, f.Seed, got)
		}
		filler, err := f.Filler()
		if err != nil {
			t.Fatal(err)
		}
		var first conntrack.Entry
		filler.Entry(0, &first)
		if d, err := dump.DeleteKeys(t.Context(), l.Node("gateway").Netns, []conntrack.Key{first.Key()}); err != nil || d.Deleted != 1 {
			t.Errorf("mix %q, seed %d: its first entry: %v", f.Mix, f.Seed, err)
		}
	}
	f := lab.Fill{Node: "gateway", Amount: lab.Amount{Free: 1}, Mix: "nothing"}
	if err := l.SetFill(t.Context(), exactly(f, 5000), 0); err == nil || !strings.Contains(err.Error(), `unknown mix "nothing"`) {
		t.Errorf("an unknown mix: %v", err)
	}
}

// TestFullTableStopsNewConnections fills to the host's own maximum, as the
// scenario does, and sees the fault, and its end.
func TestFullTableStopsNewConnections(t *testing.T) {
	testutil.LockHost(t)
	l := up(t, lab.Overrides{})
	withServer(t, l, Builtin)
	setNAT(t, l, "fault")
	const free = 3
	limit, err := ConntrackMax()
	if err != nil {
		t.Fatal(err)
	}
	target, err := lab.Amount{Free: free}.Target(limit)
	if err != nil {
		t.Fatal(err)
	}
	fault, _ := l.Scenario().Stage("fault")
	start := time.Now()
	if err := l.SetFill(t.Context(), exactly(*fault.Fill, target), 0); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d entries in %s", target, time.Since(start))
	for range free {
		mustGet(t, l, gatewayPort)
	}
	// Entries that were there before the fill may expire at any time, and leave room for
	// as many more: one connection that gets through says nothing.
	testutil.Eventually(t, "a new connection is dropped", func() bool {
		return !knock(l, gatewayPort) && dropped(t, l) > 0
	})
	if err := l.SetFill(t.Context(), nil, 0); err != nil {
		t.Fatal(err)
	}
	mustGet(t, l, gatewayPort)
}

func TestFailuresLeaveNothing(t *testing.T) {
	testutil.NeedRoot(t)
	broken := *scenario(t, lab.Overrides{})
	broken.Topology.Nodes = append([]lab.NodeSpec{}, broken.Topology.Nodes...)
	broken.Topology.Nodes[2].Sysctls = map[string]string{"net.ipv4.no_such_value": "1"}
	hostWide := *scenario(t, lab.Overrides{})
	hostWide.Topology.Nodes = append([]lab.NodeSpec{}, hostWide.Topology.Nodes...)
	hostWide.Topology.Nodes[1].Sysctls = map[string]string{"net.netfilter.nf_conntrack_max": "1000"}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tc := range []struct {
		name string
		ctx  context.Context
		s    *lab.Scenario
		want string
	}{
		{"unknown sysctl", t.Context(), &broken, "no such value in a namespace"},
		{"value of the host", t.Context(), &hostWide, "a value of the whole host is not changed from a lab"},
		{"cancelled", cancelled, scenario(t, lab.Overrides{}), "context canceled"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir, before := t.TempDir(), namespaces(t)
			l, err := Up(tc.ctx, tc.s, Options{Dir: dir})
			if err == nil {
				l.Close()
				t.Fatal("no error")
			}
			if !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q, want one line with %q", err, tc.want)
			}
			awaitNothingLeft(t, dir)
			if after := namespaces(t); after != before {
				t.Errorf("%d network namespaces are held after the error, %d before", after, before)
			}
		})
	}
}

func TestServerErrors(t *testing.T) {
	testutil.NeedProgram(t, "nginx")
	l := up(t, lab.Overrides{})
	withServer(t, l, Nginx)
	for kind, want := range map[ServerKind]string{
		Nginx:    "198.19.0.2:80: bind: address already in use",
		Builtin:  "198.19.0.2:80: bind: address already in use",
		"apache": `unknown server "apache"; expected auto, nginx or builtin`,
	} {
		_, err := l.StartServer(t.Context(), kind)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("a second server (%s): error %q, want one line with %q", kind, err, want)
		}
	}
	mustGet(t, l, serverPort)
}

// TestNginxSaysItself lets nginx fail where natkit cannot know why.
func TestNginxSaysItself(t *testing.T) {
	testutil.NeedProgram(t, "nginx")
	l := up(t, lab.Overrides{})
	if err := os.Mkdir(l.box.file("nginx.pid"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := l.StartServer(t.Context(), Nginx)
	if want := "nginx.pid\" failed (21: Is a directory)"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want nginx's own (%s)", err, want)
	}
}

func TestProcessesSeeOnlyTheLab(t *testing.T) {
	l := up(t, lab.Overrides{})
	if out := run(t, l, "client", "", "readlink", "/proc/self/ns/net"); out != fmt.Sprintf("net:[%d]\n", l.Node("client").Netns.Inode()) {
		t.Errorf("the program's network namespace is %s", out)
	}
	if out := run(t, l, "client", "", "cat", "/proc/1/comm"); out != initName+"\n" {
		t.Errorf("process 1 is %q", out)
	}
	p, err := l.Start(t.Context(), "client", Command{Path: "sh", Args: []string{"-c", "echo no >&2; exit 3"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err == nil || err.Error() != "sh: exit status 3: no" {
		t.Errorf("error %v", err)
	}
	for node, want := range map[string]string{
		"nobody": `unknown node "nobody"; expected one of: client, gateway, server`,
	} {
		if _, err := l.Start(t.Context(), node, Command{Path: "true"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("start in %s: %v", node, err)
		}
	}
}

// TestCloseEndsEverything has a program that ignores signals and a child of its
// own in the lab.
func TestCloseEndsEverything(t *testing.T) {
	testutil.NeedRoot(t)
	l, err := Up(t.Context(), scenario(t, lab.Overrides{}), Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	p, err := l.Start(t.Context(), "client", Command{Path: "sh", Args: []string{"-c", "trap '' TERM INT HUP; setsid sleep 1000 & sleep 1000"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Done():
	default:
		t.Error("the program still runs")
	}
	if err := unix.Kill(l.init.pid, 0); err == nil {
		t.Error("the lab's init still runs")
	}
	if _, err := l.Start(t.Context(), "client", Command{Path: "true"}); err == nil {
		t.Error("a program could be started in a closed lab")
	}
}

// TestLockThatFailsIsNotKept: a file that cannot be written to is locked, and let go.
func TestLockThatFailsIsNotKept(t *testing.T) {
	testutil.NeedRoot(t)
	dir := t.TempDir()
	first, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	first.Close()
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if lock, err := Lock(dir); err == nil {
		lock.Close()
		t.Error("a file that cannot be written to holds who has it")
	}
	if disk.IsHeld(filepath.Join(dir, "lab.lock")) {
		t.Error("it is locked still")
	}
}

func TestLockIsExclusive(t *testing.T) {
	dir := t.TempDir()
	first, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("another lab is running (pid %d); wait for its end", os.Getpid())
	if _, err := Lock(dir); err == nil || err.Error() != want {
		t.Errorf("error %v, want %q", err, want)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}
