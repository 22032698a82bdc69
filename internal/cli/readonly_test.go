package cli

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/permit"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/spf13/cobra"
)

func allCommands(t *testing.T) (all []*cobra.Command) {
	t.Helper()
	root := newRoot(&Env{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard, Getenv: func(string) string { return "" }})
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		all = append(all, cmd)
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	for _, cmd := range root.Commands() {
		if cmd.Name() != "completion" {
			visit(cmd)
		}
	}
	return all
}

// TestVerbsAreClassified: of each verb it is known whether it changes the host. One that is not is refused where natkit is
// read-only.
func TestVerbsAreClassified(t *testing.T) {
	known := map[string]bool{"completion": true}
	for _, cmd := range allCommands(t) {
		path := strings.ReplaceAll(commandWords(cmd), " ", "/")
		known[path] = true
		change, changes := changing[path]
		if reads := slices.Contains(reading, path); reads == changes {
			t.Errorf("natkit %s: reading %v, changing %v: it belongs in one of both lists (readonly.go)", commandWords(cmd), reads, changes)
		}
		for _, name := range append(slices.Clone(change.with), change.unless) {
			if name != "" && cmd.Flags().Lookup(name) == nil {
				t.Errorf("natkit %s has no flag --%s", commandWords(cmd), name)
			}
		}
		// What changes the host asks, or does not ask for a reason.
		if asks := cmd.Flags().Lookup("yes") != nil; asks && !changes {
			t.Errorf("natkit %s has --yes, and is in the list of what reads", commandWords(cmd))
		}
	}
	for _, path := range slices.Concat(reading, slices.Collect(maps.Keys(changing))) {
		if !known[path] {
			t.Errorf("there is no verb %s", path)
		}
	}
}

// A verb that was forgotten in both lists is refused.
func TestUnknownVerbIsRefused(t *testing.T) {
	root := &cobra.Command{Use: "natkit"}
	forgotten := &cobra.Command{Use: "forgotten", Run: func(*cobra.Command, []string) {}}
	root.AddCommand(forgotten)
	if got := changedBy(forgotten); got != "forgotten" {
		t.Errorf("a verb in no list changes %q", got)
	}
}

// changingLines are command lines that would change something, one for each verb and flag of changing.
var changingLines = []string{
	"bench connect 127.0.0.1:1", "bench hold 1 127.0.0.1:1", "bench http http://127.0.0.1:1/", "bench packets 127.0.0.1:1",
	"bench rfc9693", "bench serve", "bench udp 127.0.0.1:1",
	"conntrack delete --all --yes", "conntrack -F",
	"doctor --fix --yes", "doctor --watch --exec true",
	"gateway apply gateway.yaml --yes", "gateway confirm", "gateway edit gateway.yaml", "gateway run gateway.yaml", "gateway undo",
	"gateway set gateway.yaml name=x",
	"lab clean", "lab down --all", "lab exec node -- true", "lab run table-full", "lab up table-full",
	"lab fill --netns x --entries 1", "lab fill --netns x --share 1%", "lab fill --netns x --free 1", "lab fill --remove",
	"tune apply net.ipv4.ip_forward=1 --yes", "tune apply net.ipv4.ip_forward=1 --dry-run=false --yes", "tune undo --all", "tune confirm",
}

// touching are system calls that change files, the network or other processes, or that are the first step of it.
const touching = "open,openat,openat2,creat,mkdir,mkdirat,unlink,unlinkat,rmdir,rename,renameat,renameat2,link,linkat,symlink,symlinkat,mknod,mknodat," +
	"chmod,fchmod,fchmodat,chown,fchown,lchown,fchownat,truncate,ftruncate,mount,umount2,setns,unshare,bpf,socket,ioctl,kill,setsockopt,execve,fork,vfork"

// TestReadOnlyRefuses: each verb that changes something is refused in one line. strace sees that it opened nothing for
// writing, no socket, no eBPF program, no other process.
func TestReadOnlyRefuses(t *testing.T) {
	tried := map[string]bool{}
	natkit := ownProgram(t, "natkit")
	// Of what every natkit does at its start (a probe of package rlimit, the terminal) none is a refused verb's.
	_, start := traced(t, natkit, exitOK, nil, "version")
	for _, line := range changingLines {
		tried[verbOf(strings.Fields(line))] = true
		for _, c := range []struct {
			way  string
			env  []string
			args []string
		}{{"environment", []string{readOnlyEnv + "=1"}, strings.Fields(line)}, {"flag", nil, append([]string{"--read-only"}, strings.Fields(line)...)}} {
			if permit.Built {
				c.way, c.env, c.args = "built", nil, strings.Fields(line)
			}
			t.Run(c.way+"/"+line, func(t *testing.T) {
				t.Parallel()
				stderr, calls := traced(t, natkit, exitFailed, c.env, c.args...)
				calls = slices.DeleteFunc(calls, func(call string) bool { return slices.Contains(start, call) })
				if strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, permit.ErrReadOnly.Error()) {
					t.Errorf("stderr is %q, want one line with %q", stderr, permit.ErrReadOnly)
				}
				if len(calls) > 0 {
					t.Errorf("it did something before it was refused:\n%s", strings.Join(calls, "\n"))
				}
			})
			if permit.Built {
				break
			}
		}
	}
	for path := range changing {
		if !tried[path] {
			t.Errorf("no command line of natkit %s was tried", path)
		}
	}
}

// verbOf is the verb of a command line in the form of changing.
func verbOf(words []string) string {
	path := words[0]
	if len(words) > 1 && changing[path].with == nil && !strings.HasPrefix(words[1], "-") {
		path += "/" + words[1]
	}
	return path
}

// ownProgram is this test binary under a name by which it is natkit (TestMain).
func ownProgram(t *testing.T, name string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	natkit := filepath.Join(t.TempDir(), name)
	if err := os.Symlink(self, natkit); err != nil {
		t.Fatal(err)
	}
	return natkit
}

// traced runs a command line, which is to end with a code, and returns its stderr and the system calls by which it did
// something, without the numbers that differ between runs.
func traced(t *testing.T, natkit string, code int, env []string, args ...string) (stderr string, calls []string) {
	t.Helper()
	trace := filepath.Join(t.TempDir(), "trace")
	cmd := exec.Command(testutil.NeedProgram(t, "strace"), append([]string{"-ff", "-o", trace, "-e", "trace=" + touching, natkit}, args...)...)
	cmd.Env, cmd.Dir = append(os.Environ(), env...), t.TempDir()
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if _ = cmd.Run(); cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != code {
		t.Errorf("%v, want exit code %d: %s", cmd.ProcessState, code, &errs)
	}
	for line := range strings.Lines(readTrace(t, trace)) {
		if !harmless.MatchString(line) {
			calls = append(calls, strings.TrimSpace(varying.ReplaceAllString(line, "$1")))
		}
	}
	return errs.String(), calls
}

// varying are addresses, and blanks before the result.
var varying = regexp.MustCompile(`0x[0-9a-f]{6,}| +(= -?\d)`)

// readTrace returns the system calls of all threads, of each in a file of its own: no line is of a call that another one
// interrupted. It fails where strace saw nothing, not even that natkit was started.
func readTrace(t *testing.T, trace string) string {
	t.Helper()
	files, err := filepath.Glob(trace + ".*")
	var all strings.Builder
	for _, name := range files {
		text, readErr := os.ReadFile(name)
		err = cmp.Or(err, readErr)
		all.Write(text)
	}
	if err == nil && !strings.Contains(all.String(), "execve(") {
		err = errors.New("strace saw nothing")
	}
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

// harmless are files that are opened to be read, the start of natkit itself, signals and ends; and a call of which strace has
// not even the name, as the process ended when its thread came to it.
var harmless = regexp.MustCompile(`open(at)?\([^)]*O_RDONLY[^)]*\)|^execve\("[^"]*natkit"|^(---|\+\+\+)|^\?\?\?\( <unfinished`)

// TestReadOnlyReads: with --read-only what reads works, and writes nothing but what is named for output. strace sees its
// requests by netlink too.
func TestReadOnlyReads(t *testing.T) {
	testutil.NeedRoot(t)
	strace := testutil.NeedProgram(t, "strace")
	natkit := ownProgram(t, "natkit")
	dir := t.TempDir()
	gateway, err := filepath.Abs("../../examples/home.yaml")
	if err != nil {
		t.Fatal(err)
	}
	output := filepath.Join(dir, "host.tar.gz")
	for _, line := range []string{
		"doctor --for 0.1", "snapshot --for 0.1 -o " + output, "conntrack count", "conntrack delete --all --dry-run", "ports", "sysctl", "tune list",
		"exporter --once --all-netns", "record show", "tune apply --dry-run net.ipv4.ip_forward=1", "gateway check " + gateway, "gateway plan " + gateway, "gateway status", "lab list", "plan --rate 100",
	} {
		t.Run(line, func(t *testing.T) {
			trace := filepath.Join(t.TempDir(), "trace")
			cmd := exec.Command(strace, append([]string{"-ff", "-o", trace, "-e", "trace=execve,open,openat,creat,mkdir,mkdirat,unlink,unlinkat,rename,renameat,renameat2,mount,unshare,sendto,sendmsg,write", natkit}, strings.Fields(line)...)...)
			cmd.Env = append(os.Environ(), readOnlyEnv+"=1", "NATKIT_STATE_DIR="+filepath.Join(dir, "state"))
			out, err := cmd.CombinedOutput()
			if bytes.Contains(out, []byte("read-only")) {
				t.Errorf("refused something of what only reads (%v):\n%s", err, out)
			}
			for call := range strings.Lines(readTrace(t, trace)) {
				if changesHost(call, dir) {
					t.Errorf("it changed something: %s", strings.TrimSpace(call))
				}
			}
		})
	}
	if _, err := os.Stat(output); err != nil {
		t.Errorf("the file that was named for output: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "state")); err == nil {
		t.Error("a folder for the journal was made")
	}
}

var (
	opensForWriting = regexp.MustCompile(`open(at)?\(.*O_(WRONLY|RDWR|CREAT|TRUNC)`)
	fileCall        = regexp.MustCompile(`^(creat|mkdir|mkdirat|unlink|unlinkat|rename|renameat|renameat2|mount|unshare)\(`)
	netlinkChange   = regexp.MustCompile(`nlmsg_type=[^,]*(_NEW|_DEL|_SET|_DELETE|_CTRZERO|BATCH)`)
)

// changesHost reports whether a line of strace is a change of something outside a folder. CLONE_FS is how a thread gets a
// working directory of its own.
func changesHost(call, dir string) bool {
	if netlinkChange.MatchString(call) {
		return true
	}
	return (opensForWriting.MatchString(call) || fileCall.MatchString(call)) && !strings.Contains(call, dir) &&
		!strings.Contains(call, `"/dev/null"`) && !strings.Contains(call, "unshare(CLONE_FS)") && !strings.Contains(call, "ENOENT")
}

// A recording is an output: the recorder writes into its directory, and into none of the system's.
func TestReadOnlyRecords(t *testing.T) {
	testutil.NeedRoot(t)
	natkit := ownProgram(t, "natkit")
	dir := filepath.Join(t.TempDir(), "record")
	cmd := exec.Command(natkit, "record", "--dir", dir, "--every", "1s", "--drops=false", "--packets=false", "--outcomes", "0")
	cmd.Env = append(os.Environ(), readOnlyEnv+"=1")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (string, error) {
		c := exec.Command(natkit, args...)
		c.Env = cmd.Env
		out, err := c.CombinedOutput()
		return string(out), err
	}
	testutil.Eventually(t, "the recorder takes a mark", func() bool { _, err := run("record", "mark", "--dir", dir); return err == nil })
	testutil.Eventually(t, "the recording has two snapshots to export", func() bool {
		_, err := run("record", "export", dir, "--at", "-0s", "-o", dir+".tar.gz")
		return err == nil
	})
	_ = cmd.Process.Signal(os.Interrupt)
	if err := cmd.Wait(); err != nil {
		t.Errorf("record: %v\n%s", err, &errs)
	}
	for _, args := range [][]string{{"record", "show", dir}, {"record", "list", dir}} {
		if out, err := run(args...); err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
	if out, err := run("record", "--dir", "/etc/natkit-record-test"); err == nil || !strings.Contains(out, permit.ErrReadOnly.Error()) {
		t.Errorf("a recording in /etc: %v\n%s", err, out)
	}
}

// unclassifiedMain is a natkit that takes every verb for one that reads, as if its lists were wrong.
func unclassifiedMain() {
	reading = slices.AppendSeq(reading, maps.Keys(changing))
	natkitMain()
}

// TestWritersRefuse: where a verb is wrongly taken for one that reads, what writes refuses all the same. A network namespace
// of its own bounds the harm where it does not.
func TestWritersRefuse(t *testing.T) {
	testutil.NeedRoot(t)
	unshare := testutil.NeedProgram(t, "unshare")
	natkit := ownProgram(t, "natkit-unclassified")
	dir := t.TempDir()
	file := filepath.Join(dir, "gateway.yaml")
	text := []byte("gateway:\n  interfaces: {wan: lo}\n  nat:\n    - masquerade: {from: 10.0.0.0/8}\n")
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(dir, "state")
	for _, line := range []string{
		"tune apply net.ipv4.ip_forward=1 --yes", "gateway apply FILE --yes --force", "gateway run FILE", "gateway set FILE nat[0].enabled=off",
		"lab run table-full", "lab up table-full", "lab clean", "lab fill --this-netns --entries 10 --keep --yes",
		"bench connect 127.0.0.1:9 -n 1", "bench hold 1 127.0.0.1:9", "bench http http://127.0.0.1:9/ -n 1", "bench udp 127.0.0.1:9 -n 1",
		"bench serve",
	} {
		t.Run(line, func(t *testing.T) {
			args := append([]string{"--net", natkit, "--read-only"}, strings.Fields(strings.ReplaceAll(line, "FILE", file))...)
			cmd := exec.Command(unshare, args...)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "NATKIT_STATE_DIR="+state)
			out, err := cmd.CombinedOutput()
			if err == nil || !bytes.Contains(out, []byte(permit.ErrReadOnly.Error())) {
				t.Errorf("it was not refused (%v):\n%s", err, out)
			}
		})
	}
	if now, err := os.ReadFile(file); err != nil || !bytes.Equal(now, text) {
		t.Errorf("the gateway's file was changed (%v):\n%s", err, now)
	}
	if _, err := os.Stat(state); err == nil {
		t.Error("a folder for the journal was made")
	}
}
