package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
)

//go:generate go test -count=1 -run ^TestSysctlDocIsCurrent$ . -args -update-docs

const sysctlDoc = "../../docs/sysctl.md"

// TestSysctlDocIsCurrent compares docs/sysctl.md with the table; `make generate`
// rewrites it.
func TestSysctlDocIsCurrent(t *testing.T) {
	var doc bytes.Buffer
	doc.WriteString("# The kernel's settings of connection tracking and NAT\n\n<!-- Made by `make generate` from internal/tune/sysctl.go. -->\n\n" +
		"`natkit sysctl` prints these with the current value, the default on this machine, and the files or\n" +
		"changes of natkit that set it. The defaults are those of new network namespaces of Linux 5.4, 5.10,\n" +
		"6.1, 6.12 and 6.18; for a release without a default here natkit prints none. Defaults that depend on\n" +
		"the machine have their formula.\n\n" +
		"| name | default | unit | what it means |\n|---|---|---|---|\n")
	for _, k := range tune.KnownSysctls {
		fmt.Fprintf(&doc, "| `%s` | %s | %s | %s |\n", k.Name, k.Default, k.Unit, k.Means)
	}
	if *updateDocs {
		if err := os.WriteFile(sysctlDoc, doc.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(sysctlDoc)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(have), doc.String()); diff != "" {
		t.Errorf("docs/sysctl.md is not what the table says; `make generate` rewrites it (-file +table):\n%s", diff)
	}
}

// TestSysctlsOfThisKernelAreKnown: none of connection tracking's is missing in the table.
func TestSysctlsOfThisKernelAreKnown(t *testing.T) {
	paths, _ := filepath.Glob("/proc/sys/net/netfilter/nf_conntrack_*")
	if len(paths) == 0 {
		t.Skip("connection tracking is not loaded")
	}
	for _, path := range paths {
		if name := "net.netfilter." + filepath.Base(path); !known(name) {
			t.Errorf("%s is not in tune.KnownSysctls", name)
		}
	}
}

func known(name string) bool {
	_, found := tune.FindKnown(name)
	return found
}

func shell(t *testing.T, command ...string) {
	t.Helper()
	if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
		t.Errorf("%s: %v: %s", strings.Join(command, " "), err, out)
	}
}

func runSysctl(t *testing.T, args ...string) (doc report.Sysctls, status int, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = Run(t.Context(), Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }},
		append([]string{"sysctl", "--json"}, args...))
	if out.Len() > 0 {
		if err := json.Unmarshal(out.Bytes(), &doc); err != nil {
			t.Fatal(err)
		}
	}
	return doc, status, errs.String()
}

// TestSysctlSetByNatkit: only a change of this boot and of this namespace is named, not one
// of a former namespace that had the same number.
func TestSysctlSetByNatkit(t *testing.T) {
	testutil.NeedRoot(t)
	const name = "net.ipv4.ip_local_port_range"
	ns, err := netns.New("sysctl")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	id, errID := netns.IDOf(ns)
	boot, errBoot := journal.ReadBootID("/proc")
	j, errJournal := journal.At(filepath.Join(t.TempDir(), "journal"))
	if err := errors.Join(errID, errBoot, errJournal); err != nil {
		t.Fatal(err)
	}
	testutil.NeedFeature(t, testutil.NetnsCookie)
	var now string
	err = ns.Do(func() error {
		b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
		now = strings.TrimSpace(string(b))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	unlock, err := j.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range []struct {
		cookie uint64
		boot   string
	}{{id.Cookie, "another"}, {id.Cookie - 1, boot}, {id.Cookie, boot}} {
		change := tune.Change{Kind: tune.Sysctl, Target: name, Before: "1024 65535", After: now}
		end, err := j.Begin(&journal.Transaction{BootID: of.boot, Origin: "test", Netns: id.Inode, NetnsCookie: of.cookie, Complete: true,
			Changes: []journal.Change{{Change: change, State: journal.Applied}}})
		if err != nil {
			t.Fatal(err)
		}
		end()
	}
	unlock()

	process := exec.Command("sleep", "infinity")
	if err := ns.Do(process.Start); err != nil {
		t.Fatal(err)
	}
	defer process.Wait()
	defer process.Process.Kill()
	var out, errs bytes.Buffer
	env := testEnv(&out, &errs)
	env.Getenv = func(name string) string {
		if name == journal.StateDirEnv {
			return filepath.Dir(j.Dir())
		}
		return ""
	}
	var doc report.Sysctls
	status := Run(t.Context(), *env, []string{"sysctl", "--json", "--pid", fmt.Sprint(process.Process.Pid), name})
	if err := json.Unmarshal(out.Bytes(), &doc); err != nil || status != 0 || len(doc.Sysctls) != 1 {
		t.Fatalf("%d, %v, %+v; %s", status, err, doc, &errs)
	}
	if diff := cmp.Diff([]string{"natkit t0003"}, doc.Sysctls[0].SetBy); diff != "" {
		t.Error(diff)
	}
}

// ofThisHost are what a new namespace has from the host.
var ofThisHost = []string{"conf", "nf_conntrack_acct", "nf_conntrack_max", "nf_conntrack_buckets", "nf_conntrack_expect_max", "bridge-nf"}

// TestSysctlOfNewNamespace: the values in a new namespace are the kernel's defaults, so
// the table's must be the same, on every kernel that this runs on.
func TestSysctlOfNewNamespace(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "ip")
	testutil.NeedProgram(t, "nsenter") // ip netns exec mounts, which a chroot has no root for
	name := fmt.Sprintf("natkit-sysctl-%d", os.Getpid())
	shell(t, "ip", "netns", "add", name)
	t.Cleanup(func() { shell(t, "ip", "netns", "del", name) })

	doc, status, stderr := runSysctl(t, "--netns", name)
	if status != 0 {
		t.Fatalf("exit code %d: %s", status, stderr)
	}
	compared := 0
	for _, r := range doc.Sysctls {
		inherited := slices.ContainsFunc(ofThisHost, func(part string) bool { return strings.Contains(r.Name, part) })
		if r.Usual == nil || inherited {
			continue
		}
		compared++
		if r.Changed {
			t.Errorf("%s of a new namespace is %s, and not the default of %q", r.Name, r.Now, r.Default)
		}
	}
	if compared < 45 {
		t.Errorf("the table has the defaults of %d sysctls of this kernel", compared)
	}
	shell(t, "nsenter", "--net=/run/netns/"+name, "sh", "-c", "echo 33 > /proc/sys/net/netfilter/nf_conntrack_udp_timeout; echo 1 > /proc/sys/net/ipv4/conf/lo/rp_filter")
	doc, _, _ = runSysctl(t, "--netns", name, "--changed", "*udp*", "*.lo.rp_filter")
	if len(doc.Sysctls) != 2 || doc.Sysctls[0].Now != "33" || *doc.Sysctls[0].Usual != "30" || doc.Sysctls[1].Name != "net.ipv4.conf.lo.rp_filter" {
		t.Errorf("changed: %+v", doc.Sysctls)
	}
	if _, status, stderr := runSysctl(t, "--netns", name, "no_such_name"); status != 1 || !strings.Contains(stderr, "none here is named no_such_name") {
		t.Errorf("unknown name: exit code %d, %s", status, stderr)
	}
	if _, _, stderr := runSysctl(t, "nf_conntrack_maxx"); !strings.Contains(stderr, `"nf_conntrack_max"`) {
		t.Errorf("a name that is nearly right: %s", stderr)
	}
	for _, absent := range []string{"tcp_tw_recycle", "net.ipv4.tcp_tw_recycle"} { // since Linux 4.12
		if _, status, stderr := runSysctl(t, absent); status != 1 || !strings.Contains(stderr, absent+" is not here") || strings.Contains(stderr, "did you mean") {
			t.Errorf("a known one that is not here: exit code %d, %s", status, stderr)
		}
	}
	if _, status, _ := runSysctl(t, "["); status != 2 {
		t.Errorf("a pattern that is none: exit code %d", status)
	}
}
