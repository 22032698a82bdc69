//go:build linux

package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/testutil"
)

// TestWindows runs natkit.exe in Wine.
func TestWindows(t *testing.T) {
	w := newWindows(t, testutil.NeedNightlyProgram(t, "wine"))
	t.Run("as on Linux", func(t *testing.T) { w.in(t).asOnLinux() })
	t.Run("files", func(t *testing.T) { w.in(t).files() })
	t.Run("no host", func(t *testing.T) { w.in(t).noHost() })
	t.Run("packages", func(t *testing.T) { w.in(t).packages() })
}

// asOnLinux: what it prints of the files of a Linux machine, and its exit code, are those of natkit on Linux.
func (w *windows) asOnLinux() {
	recordings, err := filepath.Glob("../../internal/lab/run/testdata/recordings/*.tar.gz")
	if err != nil || len(recordings) == 0 {
		w.Fatalf("no recordings: %v", err)
	}
	for _, recording := range recordings {
		name := filepath.Base(recording)
		w.copy(recording, name)
		w.compare("", "doctor", "--json", "--from", name)
	}
	first := filepath.Base(recordings[0])
	w.compare("", "doctor", "--from", first)
	w.compare("", "ports", "--lvs", "--json", "--from", first)
	w.compare("", "doctor", "--rules")
	w.copy("../../internal/report/testdata/paws.pcap", "paws.pcap")
	w.compare("", "pcap", "--json", "paws.pcap")
	w.compare("", "conntrack", "list", "--from", w.write("list.txt", twoConnections))
	w.compare("", "conntrack", "--by", "proto", "--from", w.write("crlf.txt", strings.ReplaceAll(twoConnections, "\n", "\r\n")))
	w.compare(twoConnections, "ports", "--from", "-")
	w.compare("", "gateway", "import", w.write("rules.txt", masquerade))
	w.copy("../../examples/office.yaml", "office.yaml")
	w.compare("", "gateway", "check", "--offline", "office.yaml")
	w.compare("", "gateway", "schema")
	w.compare("", "simulate", "--ports", "2048-3047", "--rate", "20", "--for", "60")
	w.compare("", "doctor", "--from", "missing.tar.gz")
}

// files: names of files are those of Windows, and files are written there.
func (w *windows) files() {
	w.write("list.txt", twoConnections)
	path := func(name string) string { return `Z:` + strings.ReplaceAll(filepath.Join(w.dir, name), "/", `\`) }
	if out, code := w.run("", "conntrack", "list", "--from", path("list.txt")); code != 0 || strings.Count(out, "\n") != 2 {
		w.Errorf("exit code %d, stdout %q", code, out)
	}
	for range 2 { // the second one replaces the first
		if out, code := w.run("", "simulate", "--ports", "2048-3047", "--rate", "20", "--for", "60", "--csv", path("curves.csv")); code != 0 {
			w.Errorf("exit code %d, stdout %q, stderr %q", code, out, w.stderr)
		}
	}
	if text, err := os.ReadFile(filepath.Join(w.dir, "curves.csv")); err != nil || len(text) == 0 {
		w.Errorf("%d bytes were written: %v", len(text), err)
	}
	if left, _ := filepath.Glob(filepath.Join(w.dir, ".natkit*")); len(left) > 0 {
		w.Errorf("%v were left", left)
	}
}

// noHost: what reads or changes a host is a usage error.
func (w *windows) noHost() {
	for _, line := range []string{
		"doctor", "doctor --fix", "doctor --netns x", "conntrack", "conntrack events", "conntrack delete --all", "ports", "ports --lvs",
		"snapshot", "top", "drops", "flows", "path", "profile", "tune list", "sysctl", "lab run table-full", "bench http",
		"gateway import", "gateway plan x.yaml", "gateway apply x.yaml", "gateway status",
	} {
		if out, code := w.run("", strings.Fields(line)...); code != 2 || out != "" || !strings.Contains(w.stderr, "requires Linux") {
			w.Errorf("natkit %s: exit code %d, stdout %q, stderr %q", line, code, out, w.stderr)
		}
	}
}

// packages runs the tests of packages that touch no kernel in Wine.
func (w *windows) packages() {
	if os.Getenv("NATKIT_WINE") == "" {
		testutil.Impossible(w, "takes minutes: 'make nightly PART=wine' runs it")
	}
	list := exec.Command("go", "list", "-deps", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}", ".")
	// Programs that tests compare with are not there.
	environment := append(w.environment, "CGO_ENABLED=0", "GOOS=windows", "GOFLAGS=-buildvcs=false", "NATKIT_NO_SKIP=", "NATKIT_NIGHTLY=")
	list.Env = environment
	out, err := list.Output()
	if err != nil {
		w.Fatalf("go list: %v", err)
	}
	tests := 0
	for name := range strings.FieldsSeq(string(out)) {
		if !strings.HasPrefix(name, "github.com/natkit/natkit/internal/") || kernelPackages.MatchString(name) {
			continue
		}
		tests++
		test := exec.CommandContext(w.Context(), "go", "test", "-count=1", "-exec", w.wine, name)
		test.Env = environment
		if out, err := test.CombinedOutput(); err != nil {
			w.Errorf("%s: %v\n%s", name, err, out)
		}
	}
	if tests < 10 {
		w.Errorf("%d packages have tests", tests)
	}
}

// kernelPackages are natkit's on Windows whose tests need Linux: its kernel, or its files (/dev/full, /etc).
var kernelPackages = regexp.MustCompile(`/internal/(cli|collect|conntrack/dump|netns|permit|table/store)$`)

const (
	twoConnections = `tcp      6 431999 ESTABLISHED src=198.18.0.2 dst=198.18.1.1 sport=4000 dport=443 src=198.18.1.1 dst=198.18.2.1 sport=443 dport=4000 [ASSURED] mark=0 use=1
udp      17 20 src=198.18.0.3 dst=198.18.1.2 sport=5000 dport=53 [UNREPLIED] src=198.18.1.2 dst=198.18.2.1 sport=53 dport=5000 mark=0 use=1
`
	masquerade = "*nat\n:POSTROUTING ACCEPT [0:0]\n-A POSTROUTING -s 198.18.0.0/24 -o eth0 -j MASQUERADE\nCOMMIT\n"
)

// windows is a folder, and natkit of both systems.
type windows struct {
	*testing.T
	dir, wine, native, exe string
	environment            []string
	stderr                 string
}

func newWindows(t *testing.T, wine string) *windows {
	dir, programs := t.TempDir(), t.TempDir()
	w := &windows{T: t, dir: dir, wine: wine, native: filepath.Join(programs, "natkit"), exe: filepath.Join(programs, "natkit.exe"),
		environment: append(os.Environ(), "WINEPREFIX="+filepath.Join(programs, "prefix"), "WINEDEBUG=-all", "WINEDLLOVERRIDES=winemenubuilder.exe=d;mscoree=d;mshtml=d")}
	for name, system := range map[string]string{w.native: "linux", w.exe: "windows"} {
		build := exec.Command("go", "build", "-o", name, ".")
		build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system, "GOFLAGS=-buildvcs=false")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build for %s: %v\n%s", system, err, out)
		}
	}
	w.boot()
	return w
}

// in is w with the test that fails.
func (w *windows) in(t *testing.T) *windows {
	of := *w
	of.T = t
	return &of
}

// boot makes the folder that stands for drive C:. The program that serves all of Wine's ends with the test.
func (w *windows) boot() {
	w.Helper()
	boot := exec.Command("wineboot", "--init")
	boot.Env = w.environment
	if out, err := boot.CombinedOutput(); err != nil {
		w.Fatalf("wineboot: %v\n%s", err, out)
	}
	w.Cleanup(func() {
		stop := exec.Command("wineserver", "--kill", "--wait")
		stop.Env = w.environment
		_ = stop.Run()
	})
	library := filepath.Join(filepath.Dir(w.exe), "prefix/drive_c/windows/system32/bcryptprimitives.dll")
	if _, err := os.Stat(library); errors.Is(err, os.ErrNotExist) { // Wine before 9
		if err := os.WriteFile(library, forwarder("bcryptprimitives.dll", "ProcessPrng", "advapi32.SystemFunction036"), 0o644); err != nil {
			w.Fatal(err)
		}
	}
}

func (w *windows) copy(from, name string) {
	w.Helper()
	text, err := os.ReadFile(from)
	if err != nil {
		w.Fatal(err)
	}
	w.write(name, string(text))
}

func (w *windows) write(name, text string) string {
	w.Helper()
	if err := os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o644); err != nil {
		w.Fatal(err)
	}
	return name
}

// compare runs a command line on both systems.
func (w *windows) compare(stdin string, args ...string) {
	w.Helper()
	want, wantCode := w.start(stdin, w.native, args...)
	got, gotCode := w.run(stdin, args...)
	if diff := cmp.Diff(want, got); diff != "" || gotCode != wantCode {
		w.Errorf("natkit %s: exit code %d, want %d; stdout (-Linux +Windows):\n%s", strings.Join(args, " "), gotCode, wantCode, diff)
	}
}

// run runs natkit.exe, and keeps what it wrote to stderr.
func (w *windows) run(stdin string, args ...string) (stdout string, code int) {
	w.Helper()
	return w.start(stdin, w.wine, append([]string{w.exe}, args...)...)
}

func (w *windows) start(stdin, program string, args ...string) (string, int) {
	w.Helper()
	cmd := exec.CommandContext(w.Context(), program, args...)
	var stdout, stderr bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = w.dir, w.environment, strings.NewReader(stdin), &stdout, &stderr
	err := cmd.Run()
	w.stderr = stderr.String()
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		w.Fatalf("%s: %v", program, err)
	}
	return stdout.String(), cmd.ProcessState.ExitCode()
}

// forwarder is a library for Windows on x86-64 without code, whose only function is one of another library: what Go's
// runtime takes random bytes from (ProcessPrng) came with Wine 9, and what stands behind it (RtlGenRandom) is older.
// Its parts are those of Microsoft's "PE Format": the header of DOS, the headers, a section with the export table.
func forwarder(name, function, to string) []byte {
	const section, alignment = 0x1000, 0x200
	le := binary.LittleEndian
	table := make([]byte, 40+4+4+2) // export directory, address, name and ordinal of the function
	add := func(text string) uint32 {
		at := section + len(table)
		table = append(append(table, text...), 0)
		return uint32(at)
	}
	le.PutUint32(table[12:], add(name))
	for i, v := range []uint32{1, 1, 1, section + 40, section + 44, section + 48} { // base, counts, tables
		le.PutUint32(table[16+4*i:], v)
	}
	target := add(to) // an address within the table is that of a forwarder
	le.PutUint32(table[40:], target)
	le.PutUint32(table[44:], add(function))
	size := uint32(len(table))

	file := make([]byte, alignment)
	copy(file, "MZ")
	le.PutUint32(file[0x3c:], 0x40)
	headers := file[:0x40]
	put := func(values ...any) {
		for _, v := range values {
			headers, _ = binary.Append(headers, le, v)
		}
	}
	const is64, library, console = 0x20b, 0x2022, 3
	put([]byte("PE\x00\x00"), uint16(0x8664), uint16(1), uint32(0), uint32(0), uint32(0), uint16(240), uint16(library))
	put(uint16(is64), uint16(0), uint32(0), uint32(alignment), uint32(0), uint32(0), uint32(section))
	put(uint64(0x180000000), uint32(section), uint32(alignment), uint16(6), uint16(0), uint16(0), uint16(0), uint16(6), uint16(0), uint32(0))
	put(uint32(2*section), uint32(alignment), uint32(0), uint16(console), uint16(0x160))
	put(uint64(1<<20), uint64(1<<12), uint64(1<<20), uint64(1<<12), uint32(0), uint32(16))
	put(uint32(section), size, make([]byte, 15*8))
	put([]byte(".edata\x00\x00"), size, uint32(section), uint32(alignment), uint32(alignment), uint32(0), uint32(0), uint32(0), uint32(0x40000040))
	return append(file[:alignment], append(table, make([]byte, alignment-len(table))...)...)
}
