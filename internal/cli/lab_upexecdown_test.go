package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/lab/build"
	"github.com/natkit/natkit/internal/testutil"
)

// labShell runs `natkit lab …` with labs in a directory of its own.
type labShell struct {
	t   *testing.T
	dir string
}

func (s labShell) run(args ...string) (code int, stdout, stderr string) {
	s.t.Helper()
	var out, errs bytes.Buffer
	env := &Env{
		Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs,
		Getenv: func(name string) string { return map[string]string{runDirEnv: s.dir}[name] },
	}
	root := &cobra.Command{Use: "lab", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(newLabList(env), newLabUp(env), newLabExec(env), newLabDown(env))
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage(err) })
	requireKnownWords(root)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(s.t.Context())
	code = exitCode(&errs, cmd, err)
	return code, out.String(), errs.String()
}

// want runs a command and looks at its exit code and for a text in what it says.
func (s labShell) want(code int, text string, args ...string) string {
	s.t.Helper()
	got, stdout, stderr := s.run(args...)
	if got != code || !strings.Contains(stdout+stderr, text) {
		s.t.Errorf("lab %s: exit code %d, want %d and %q\n%s%s", strings.Join(args, " "), got, code, text, stdout, stderr)
	}
	return stdout
}

func (s labShell) list() labList {
	s.t.Helper()
	var l labList
	if err := json.Unmarshal([]byte(s.want(0, labListSchema, "list", "--json")), &l); err != nil {
		s.t.Fatal(err)
	}
	return l
}

// scenarioFile writes scenario table-full under another name, small and without
// a fill, so that a second lab can stand beside the first.
func scenarioFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../lab/scenarios/table-full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name+".yaml")
	renamed := strings.Replace(string(text), "name: table-full", "name: "+name, 1)
	if err := os.WriteFile(path, []byte(renamed), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLabUpExecDown(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "nginx")
	s := labShell{t, t.TempDir()}
	t.Cleanup(func() { s.run("down", "--all") })

	s.want(1, "no lab is up; 'natkit lab up NAME' builds one", "exec", "client", "true")
	s.want(0, "lab exec client -- curl -s http://198.18.0.1:8080/", "up", "table-full")
	s.want(1, "it is up already", "up", "table-full")
	s.want(0, "198.18.0.2/24", "exec", "client", "--", "ip", "-4", "addr", "show", "dev", "eth0")
	s.want(0, "198.18.0.1/24", "exec", "gateway", "ip", "-4", "addr")
	s.want(7, "", "exec", "client", "--", "sh", "-c", "exit 7")
	s.want(128+int(unix.SIGTERM), "", "exec", "client", "--", "sh", "-c", "kill -TERM $$")
	s.want(2, `unknown node "moon"; expected one of: client, gateway, server`, "exec", "moon", "true")
	s.want(127, "no-such-program", "exec", "client", "no-such-program")
	s.want(127, "/no/such/program", "exec", "client", "/no/such/program")
	s.want(126, "/etc/passwd", "exec", "client", "/etc/passwd")
	s.want(2, "no command given", "exec", "client", "--")

	s.want(0, "lab other is up", "up", scenarioFile(t, "other"), "--stage", "", "--bridge")
	s.want(2, "several labs are up (other, table-full)", "exec", "client", "true")
	s.want(0, "br0", "exec", "--lab", "other", "gateway", "ip", "link")
	s.want(1, `lab "third" is not up; up are: other, table-full`, "exec", "--lab", "third", "client", "true")
	s.want(2, "several labs are up", "down")
	s.want(2, "mutually exclusive", "down", "other", "--all")

	up := s.list().Up
	if len(up) != 2 || up[1].Name != "table-full" || up[1].Stage != "nat" || up[0].Stage != "" {
		t.Errorf("up: %+v", up)
	}
	s.want(0, "table-full", "list")
	s.want(0, "lab other is down", "down", "other")
	s.want(1, "", "down", "other")
	s.want(0, "lab table-full is down", "down")
	s.want(0, "no lab is up", "down")
	s.want(1, "no lab is up", "down", "nope")
	if up := s.list().Up; len(up) != 0 {
		t.Errorf("up after down: %+v", up)
	}
}

func TestLabListNoticesWhatIsGone(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "nginx")
	s := labShell{t, t.TempDir()}
	t.Cleanup(func() { s.run("down", "--all") })
	s.want(0, "is up", "up", "table-full")
	up := s.list().Up
	if len(up) != 1 {
		t.Fatalf("up: %+v", up)
	}
	kill(t, up[0])
	if up := s.list().Up; len(up) != 0 {
		t.Errorf("up after kill -9 of the holder: %+v", up)
	}
	s.want(0, "is up", "up", "table-full")
}

// kill ends the holder and waits until it is gone.
func kill(t *testing.T, s build.State) {
	t.Helper()
	fd, err := unix.PidfdOpen(s.PID, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000); err != nil {
		t.Fatal(err)
	}
}

func TestLabUpErrors(t *testing.T) {
	testutil.NeedRoot(t)
	s := labShell{t, t.TempDir()}
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("name: x\ncolour: red\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.want(2, `unknown scenario "nothing"; there are: `, "up", "nothing")
	s.want(1, "missing.yaml: no such file", "up", "missing.yaml")
	s.want(2, bad+`:2:1: unknown field "colour"; expected one of: name, title`, "up", bad)
	s.want(2, `no stage "late"`, "up", "table-full", "--stage", "late")
	s.want(2, `must be one of auto, nginx, builtin`, "up", "table-full", "--server", "apache")
	s.want(2, "an argument is missing", "up")
	files, err := os.ReadDir(filepath.Join(s.dir, "labs"))
	if err == nil && len(files) > 0 {
		t.Errorf("%d files left", len(files))
	}
}
