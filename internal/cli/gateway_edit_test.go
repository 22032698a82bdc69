package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/testutil"
)

// editor is a user's: it makes the next of some edits, each a script of sed. natkit gets a signal as of a Ctrl-C, which
// is the editor's.
const editor = `#!/bin/sh
kill -INT "$(cat pid)"
cd "$(dirname "$0")"
step=$(cat step)
echo $((step + 1)) >step
exec sed -i -f "edit$step" "$1"
`

// TestGatewayEdit edits a file on a terminal: with a mistake, again, applied; and one that is left.
func TestGatewayEdit(t *testing.T) {
	testutil.NeedRoot(t)
	ip, dir := testutil.NeedProgram(t, "ip"), t.TempDir()
	name := fmt.Sprintf("natkit-edit-%d", os.Getpid())
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command(ip, args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", args, err, out)
		}
	}
	run("netns", "add", name)
	t.Cleanup(func() { run("netns", "del", name) })
	for _, link := range []string{"wan0", "lan0"} {
		run("-n", name, "link", "add", link, "type", "veth", "peer", "name", link+".peer")
		run("-n", name, "link", "set", link, "up")
	}
	run("-n", name, "address", "add", "203.0.113.7/24", "dev", "wan0")
	const before = "# ours\ngateway:\n  interfaces: {wan: wan0, lan: lan0}\n  nat:\n    - masquerade: {from: 10.0.0.0/24}\n"
	file := filepath.Join(dir, "g.yaml")
	for path, text := range map[string]string{
		"g.yaml": before, "ed": editor, "step": "1",
		"edit1": "s/10.0.0.0/10.0.0.1/", "edit2": "s/10.0.0.1/10.1.0.0/", // as a file
		"edit3": "s/10.1.0.0/10.2.0.0/", "edit4": "",
	} {
		if err := os.WriteFile(filepath.Join(dir, path), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	content := func(want string) {
		t.Helper()
		if got, err := os.ReadFile(file); err != nil || string(got) != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	command := fmt.Sprintf("env NATKIT_STATE_DIR=%s/state TMPDIR=%[1]s VISUAL=%[1]s/ed natkit gateway edit %s --netns %s", dir, file, name)

	p := startPane(t, "C.UTF-8", command)
	p.tmux("resize-window", "-x", "180", "-y", "60")
	p.wait(`g.yaml:5:26: .*bits of a host are set`, `\nedit again, leave\? \[e/l\]`)
	content(before)
	p.keys("x", "Enter")
	p.wait(`\[e/l\] x\nedit again, leave\?`)
	p.keys("e", "Enter")
	p.wait(`\+ nat\[0\] masquerade: from 10.1.0.0/24 out wan0`, `\nedit again, apply, save without applying, leave\? \[e/a/s/l\]`)
	content(before)
	p.keys("a", "Enter")
	p.wait("applied as t0001")
	p.ended()
	after := strings.Replace(before, "10.0.0.0", "10.1.0.0", 1)
	content(after)
	if rules := rulesIn(t, name); !strings.Contains(rules, "10.1.0.0/24") {
		t.Error(rules)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "natkit-edit-*")); len(left) > 0 {
		t.Errorf("left behind: %s", left)
	}

	p = startPane(t, "C.UTF-8", command)
	p.tmux("resize-window", "-x", "180", "-y", "60")
	p.wait(`10.2.0.0/24`, `leave\? \[e/a/s/l\]`)
	if err := exec.Command("kill", "-INT", strings.TrimSpace(p.read("pid"))).Run(); err != nil { // Ctrl-C would end the shell, too
		t.Fatal(err)
	}
	p.wait(`g.yaml is not changed; your copy is`)
	p.endedWith(exitInterrupted)
	content(after)
	screen := p.screen("-J")
	kept := regexp.MustCompile(`your copy is (\S+)`).FindStringSubmatch(screen)
	if kept == nil {
		t.Fatal(screen)
	}
	if text, err := os.ReadFile(kept[1]); err != nil || !strings.Contains(string(text), "10.2.0.0") {
		t.Errorf("%q, %v", text, err)
	}

	p = startPane(t, "C.UTF-8", command)
	p.wait(`nothing was changed`)
	p.ended()
	content(after)
}

func rulesIn(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command(testutil.NeedProgram(t, "ip"), "netns", "exec", name, testutil.NeedProgram(t, "nft"), "list", "ruleset").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// Without a terminal, a file or an editor there is nothing to edit.
func TestGatewayEditCannot(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if name, err := findEditor(func(string) string { return "" }); err == nil {
		t.Error(name)
	}
	if name, err := findEditor(func(variable string) string { return map[string]string{"EDITOR": "code --wait"}[variable] }); err != nil || name != "code --wait" {
		t.Error(name, err)
	}
	var out, said strings.Builder
	if code := Run(t.Context(), *testEnv(&out, &said), []string{"gateway", "edit", "g.yaml"}); code != exitUsage || !strings.Contains(said.String(), "must be a terminal") {
		t.Error(code, said.String())
	}
	env := testEnv(&out, &said)
	env.StdinTerminal, env.StdoutTerminal = true, true
	said.Reset()
	if code := Run(t.Context(), *env, []string{"gateway", "edit", "none.yaml"}); code != exitFailed || !strings.Contains(said.String(), "none.yaml") {
		t.Error(code, said.String())
	}
}

// What could not be written in the end is said before the editor opens.
func TestGatewayEditBeforehand(t *testing.T) {
	file := filepath.Join(t.TempDir(), "g.yaml")
	if err := errors.Join(os.WriteFile(file, []byte("gateway: {}\n"), 0o600), os.Link(file, file+"2")); err != nil {
		t.Fatal(err)
	}
	var out, said strings.Builder
	env := testEnv(&out, &said)
	env.StdinTerminal, env.StdoutTerminal = true, true
	env.Getenv = func(string) string { return "false" }
	if code := Run(t.Context(), *env, []string{"gateway", "edit", file}); code != exitFailed || !strings.Contains(said.String(), "2 names (hard links)") {
		t.Error(code, said.String())
	}
}

// What is quoted of a command line stays on the line of its message.
func TestGatewaySetQuotes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "g\n.yaml")
	if err := os.WriteFile(file, []byte("gateway:\n  interfaces: {wan: eth0}\n  nat:\n    - masquerade: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, edit := range []string{"nat[a\nb].to=1", "nat.0.from=a\nb", "nat.0.fr\x1bom=1", "nat.0.from=\x1b[2J", "nat.0.note=a\u202eb", "a\nb=1", "a\nb", "nat[0].dnat.to\n+=1", "ns\n[0", "mss=clamp"} {
		var out, said strings.Builder
		Run(t.Context(), *testEnv(&out, &said), []string{"gateway", "set", file, edit, "--dry-run"})
		if text, lines := said.String(), strings.Split(said.String(), "\n"); strings.ContainsAny(text, "\x1b\u202e") || edit != "mss=clamp" && (!strings.HasPrefix(lines[0], "natkit: ") || len(lines) > 4) {
			t.Errorf("%q: %q", edit, text)
		}
		if strings.Contains(out.String(), "g\n.yaml") {
			t.Errorf("%q", out.String())
		}
	}
}
