package apply

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
)

const unitFile = "../../../deploy/natkit-gateway.service"

// unitSettings are the settings of a unit: section and name, in order of their lines.
func unitSettings(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(unitFile)
	if err != nil {
		t.Fatal(err)
	}
	settings, section := map[string][]string{}, ""
	for line := range strings.Lines(strings.ReplaceAll(string(text), "\\\n", "")) {
		line = strings.TrimSpace(line)
		name, value, ok := strings.Cut(line, "=")
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '[':
			section = strings.Trim(line, "[]")
		case !ok:
			t.Errorf("not a setting: %q", line)
		default:
			settings[section+"."+name] = append(settings[section+"."+name], value)
		}
	}
	return settings
}

func TestUnit(t *testing.T) {
	u := unitSettings(t)
	for name, want := range map[string]string{
		"Service.Type":                  "notify",
		"Service.ExecStart":             "/usr/bin/natkit gateway run /" + tune.ConfPath(tune.GatewayFile),
		"Service.ExecReload":            "/bin/kill -HUP $MAINPID",
		"Service.CapabilityBoundingSet": "CAP_NET_ADMIN CAP_NET_RAW",
		"Service.NoNewPrivileges":       "yes",
		"Service.ProtectSystem":         "strict",
		"Service.User":                  "natkit",
		"Service.AmbientCapabilities":   "CAP_NET_ADMIN CAP_NET_RAW",
		// What is named here becomes the service's: root's transactions must not.
		"Service.StateDirectory":        "natkit/service",
		"Service.ProtectKernelTunables": "yes",
		"Service.ReadWritePaths":        "/proc/sys/net",
		"Unit.ConditionPathExists":      "/" + tune.ConfPath(tune.GatewayFile),
		"Unit.Wants":                    "network-pre.target",
	} {
		if got := strings.Join(u[name], "\n"); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	// What an undo has to take back under /etc is taken back before it starts.
	if pre := u["Service.ExecStartPre"]; len(pre) != 3 || pre[0] != "-+/usr/bin/natkit lab clean" {
		t.Errorf("ExecStartPre is %q", pre)
	}
	if after := strings.Fields(u["Unit.After"][0]); !slices.Contains(after, "nftables.service") {
		t.Errorf("After is %q: nftables.service would flush the rules that the gateway has put", after)
	}
	// A stop that undid the rules would cut connections at each restart; the other two
	// would keep the service from its work.
	for _, name := range []string{"Service.ExecStop", "Service.ExecStopPost", "Service.ProtectProc", "Service.PrivateNetwork"} {
		if got := u[name]; got != nil {
			t.Errorf("%s is %q", name, got)
		}
	}
}

// TestServicesTransactionIsUndoneAsRoot: whatever value a service may have set, root reads
// what another user wrote about it.
func TestServicesTransactionIsUndoneAsRoot(t *testing.T) {
	testutil.NeedRoot(t) // a file of another user's
	w := newWorld(t)
	j := w.Apply.Journal
	unlock, err := j.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	tx := &journal.Transaction{BootID: "x", Origin: OriginService}
	for _, name := range append([]string{"net.ipv6.conf.wan0.accept_ra", "net.ipv6.conf.eth0/7.accept_ra"}, Sysctls...) {
		c := tune.Change{Kind: tune.Sysctl, Target: name, Before: "0", After: "1"}
		tx.Changes = append(tx.Changes, journal.Change{Change: c, State: journal.Applied})
	}
	end, err := j.Begin(tx)
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	if err := os.Chown(filepath.Join(j.Dir(), tx.ID+".json"), 12345, 12345); err != nil {
		t.Fatal(err)
	}
	if got, err := j.Load(tx.ID); err != nil || !got.Foreign() {
		t.Errorf("%v, %v", got, err)
	}
}

// TestUnitIsUnderstood asks systemd, where it is installed.
func TestUnitIsUnderstood(t *testing.T) {
	systemd, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Log("systemd-analyze is not installed: the unit was not verified by it")
		return
	}
	text, err := os.ReadFile(unitFile)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "natkit-gateway.service")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(text), "/usr/bin/natkit ", "/bin/true ")), 0o644); err != nil {
		t.Fatal(err)
	}
	// What other units of this machine lack is not of this one.
	out, err := exec.Command(systemd, "verify", "--man=no", file).CombinedOutput()
	if err != nil || strings.Contains(string(out), "natkit-gateway.service:") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestLeastCapabilities runs the service with the capabilities of its unit and no
// others: it applies, follows its file and its addresses, and puts sysctls.
func TestLeastCapabilities(t *testing.T) {
	w := newWorld(t)
	w.ip("ip addr add 203.0.113.8/24 dev wan0")
	w.ip("ip addr add 192.168.0.9/24 dev lan0")
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(`gateway:
  interfaces: {wan: wan0, lan: lan0}
  accounting: on
  flowtable: on
  expect: {flows: 1k}
  nat:
    - snat: {from: 192.168.0.9, to: 203.0.113.8}
  ipv6:
    - masquerade: {from: fd00::/64}
`)
	cmd := w.start(helperBrief{Service: file, Capabilities: capabilitiesOf(t)})
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	lines := make(chan string, 100)
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
		close(lines)
	}()
	waitLine(t, lines, "in force as")
	if status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid)); err != nil || !strings.Contains(string(status), fmt.Sprintf("CapEff:\t%016x\n", 1<<unix.CAP_NET_ADMIN|1<<unix.CAP_NET_RAW)) {
		t.Fatalf("it has other capabilities: %v\n%s", err, status)
	}
	w.wantSysctl(Forward4, "1")
	w.wantSysctl(Accounting, "1")
	w.wantSysctl("net.ipv6.conf.wan0.accept_ra", "2")
	w.send("192.168.0.9:4000", "203.0.113.99:53")
	w.ip("ip addr del 203.0.113.8/24 dev wan0")
	waitLine(t, lines, "removed 1 connection")
	write(masqueradeText)
	waitLine(t, lines, "file changed: ")
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v", err)
	}
	if w.value() == tune.GatewayNone {
		t.Error("the rules went with the service")
	}
}

// capabilitiesOf are the numbers of the unit's.
func capabilitiesOf(t *testing.T) (numbers []int) {
	t.Helper()
	known := map[string]int{"CAP_NET_ADMIN": unix.CAP_NET_ADMIN, "CAP_NET_RAW": unix.CAP_NET_RAW}
	for _, name := range strings.Fields(unitSettings(t)["Service.CapabilityBoundingSet"][0]) {
		n, ok := known[name]
		if !ok {
			t.Fatalf("capability %s: the test does not know its number", name)
		}
		numbers = append(numbers, n)
	}
	return numbers
}

func waitLine(t *testing.T, lines <-chan string, words string) {
	t.Helper()
	var seen []string
	for deadline := time.After(testutil.Patience(30 * time.Second)); ; {
		select {
		case line, ok := <-lines:
			seen = append(seen, line)
			if strings.Contains(line, words) {
				return
			}
			if !ok {
				t.Fatalf("ended without %q: %q", words, seen)
			}
		case <-deadline:
			t.Fatalf("no %q: %q", words, seen)
		}
	}
}
