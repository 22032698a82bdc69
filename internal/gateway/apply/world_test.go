package apply

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/tune/journal"
	"golang.org/x/sys/unix"
)

// world is a namespace with the interfaces wan0 (203.0.113.7) and lan0 (192.168.0.1),
// behind which there is no host, and a state directory of its own.
type world struct {
	Host
	t  *testing.T
	ns *netns.Handle
}

func newWorld(t *testing.T) *world {
	t.Helper()
	testutil.NeedRoot(t)
	t.Parallel() // each has its own namespace and state, and waits most of the time
	return newWorldIn(t)
}

func newWorldIn(t *testing.T) *world {
	t.Helper()
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "ip")
	ns, err := netns.New("gateway-run")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	w := &world{t: t, ns: ns}
	for _, line := range []string{
		"ip link set lo up",
		"ip link add wan0 type veth peer name wan1", "ip link add lan0 type veth peer name lan1",
		"ip addr add 203.0.113.7/24 dev wan0", "ip addr add 192.168.0.1/24 dev lan0",
		"ip link set wan0 arp off up", "ip link set wan1 up", "ip link set lan0 arp off up", "ip link set lan1 up",
	} {
		w.ip(line)
	}
	j, err := journal.At(filepath.Join(t.TempDir(), "journal"))
	if err != nil {
		t.Fatal(err)
	}
	w.Host = Host{Netns: ns, Apply: apply.Options{Journal: j, Root: t.TempDir()}}
	return w
}

// ip runs a command inside.
func (w *world) ip(line string) string {
	w.t.Helper()
	words := strings.Fields(line)
	var out []byte
	err := w.ns.Do(func() (err error) {
		out, err = exec.Command(words[0], words[1:]...).CombinedOutput()
		return err
	})
	if err != nil {
		w.t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return string(out)
}

func (w *world) sysctl(name string) string {
	w.t.Helper()
	var value string
	err := w.ns.Do(func() (err error) { value, err = apply.ReadSysctl("/proc", name); return err })
	if err != nil {
		w.t.Fatal(err)
	}
	return value
}

func (w *world) wantSysctl(name, want string) {
	w.t.Helper()
	if got := w.sysctl(name); got != want {
		w.t.Errorf("%s is %s, want %s", name, got, want)
	}
}

func init() { apply.Init(Appliers) }

// state is what the engines of this version have in force.
func (w *world) state() *gateway.State {
	w.t.Helper()
	s, err := engine.Standard.Read(w.ns, w.store(), false)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// generation is that of the rules of nf_tables.
func (w *world) generation() uint32 {
	w.t.Helper()
	n, err := read.Generation(w.ns)
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

// value is what is in force.
func (w *world) value() string {
	w.t.Helper()
	s, err := w.Host.State()
	if err != nil {
		w.t.Fatal(err)
	}
	return Value(s)
}

// want says what must be in force.
func (w *world) want(value string) {
	w.t.Helper()
	if got := w.value(); got != value {
		w.t.Errorf("in force is %s, want %s", got, value)
	}
}

func wish(text string) Wish {
	return Wish{Name: "gateway.yaml", Text: []byte(text), Origin: Origin}
}

func (w *world) prepare(wish Wish) *Ready {
	w.t.Helper()
	r, err := w.Prepare(w.t.Context(), wish)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// later is a deadline for a confirmation that does not pass within a test, however busy the
// machine is.
const later = 30 * time.Minute

// apply puts a text in force, and gives its digest and the transaction.
func (w *world) apply(text string, confirm time.Duration) (digest, id string) {
	w.t.Helper()
	r := w.prepare(wish(text))
	a, err := r.Apply(w.t.Context(), confirm)
	if err != nil {
		w.t.Fatal(err)
	}
	return r.Digest, a.ID()
}

// expire has the guard of a transaction undo it now: at SIGTERM it does what it does when
// its deadline passes.
func (w *world) expire(id string) {
	w.t.Helper()
	if err := unix.Kill(w.load(id).Guard.PID, unix.SIGTERM); err != nil {
		w.t.Fatal(err)
	}
	within(w.t, 30*time.Second, "undone by the guard", func() bool { return w.load(id).Finished() })
}

func (w *world) load(id string) *journal.Transaction {
	w.t.Helper()
	tx, err := w.Apply.Journal.Load(id)
	if err != nil {
		w.t.Fatal(err)
	}
	return tx
}

// within waits for a condition that an idle machine meets within the limit; a busy one
// may take much longer.
func within(t *testing.T, limit time.Duration, what string, fn func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testutil.Patience(max(limit, 2*time.Minute))); !fn(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}

// send sends a UDP datagram from inside, from one address to another.
func (w *world) send(from, to string) {
	w.t.Helper()
	err := w.ns.Do(func() error {
		c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(from)), net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to)))
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("x"))
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// Configurations: masqueradeText is the first one, snatText has other rules and another
// sysctl.
const (
	masqueradeText = `gateway:
  interfaces: {wan: wan0, lan: lan0}
  nat:
    - masquerade: {from: 192.168.0.0/16}
`
	snatText = `gateway:
  interfaces: {wan: wan0, lan: lan0}
  accounting: on
  nat:
    - snat: {from: 192.168.0.0/24, to: 203.0.113.7}
    - dnat: {on: 203.0.113.7, port: tcp/8080, to: "192.168.0.2:80"}
`
)

// manyText has some hundred rules more, so that the kernel has something to do.
func manyText() string {
	var b strings.Builder
	b.WriteString(snatText)
	for i := range 300 {
		fmt.Fprintf(&b, "    - dnat: {on: 203.0.113.7, port: udp/%d, to: \"192.168.0.2:%d\"}\n", 1000+i, 2000+i)
	}
	return b.String()
}

// helperBrief is what a process of its own is to apply.
type helperBrief struct {
	Netns, Journal, Root, Text string
	Confirm                    time.Duration
	// Undone and Confirmed are transactions that it undoes or confirms instead.
	Undone, Confirmed string
	// Proc stands for /proc.
	Proc string
	// Service runs the file at this path instead; with Capabilities, in the namespace
	// and without any others.
	Service      string
	Capabilities []int
}

const helperEnv = "GATEWAY_RUN_TEST_HELPER"

func TestMain(m *testing.M) {
	if text := os.Getenv(helperEnv); text != "" {
		if err := helperMain(text); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// start runs this test's binary with a brief.
func (w *world) start(b helperBrief) *exec.Cmd {
	w.t.Helper()
	b.Netns = "/proc/" + strconv.Itoa(os.Getpid()) + "/fd/" + strconv.Itoa(w.ns.Fd())
	b.Journal, b.Root = w.Apply.Journal.Dir(), w.Apply.Root
	text, err := json.Marshal(b)
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), helperEnv+"="+string(text))
	return cmd
}

// orphanGuards reports whether a guard process runs in a namespace.
func orphanGuards(inode uint64) bool {
	comms, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, path := range comms {
		name, err := os.ReadFile(path)
		if err != nil || strings.TrimSpace(string(name)) != "nk-guard" && strings.TrimSpace(string(name)) != "exe" {
			continue
		}
		link, err := os.Readlink(filepath.Join(filepath.Dir(path), "ns/net"))
		if err == nil && link == fmt.Sprintf("net:[%d]", inode) {
			return true
		}
	}
	return false
}
