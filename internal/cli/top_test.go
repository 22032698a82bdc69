package cli

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tui"
)

// TestTopOnATerminal drives the whole program as a user would, in a terminal emulated by
// tmux.
func TestTopOnATerminal(t *testing.T) {
	space := filledNamespace(t)
	p := startPane(t, "C.UTF-8", "natkit top --netns "+space+" --interval 0.5")
	p.wait("3,000 of", `sample (all|[0-9,]+ of) 3,000 entries`, "ESTABLISHED", "198.18.0.7", "█")
	p.wait(`0 flows/s`) // after the second sample

	p.keys("6", "s")
	p.wait(`6 sources\]? +by name`)
	p.keys("/")
	p.keys("198.18.0.9", "Enter")
	p.wait("filter 198.18.0.9: [0-9,]+ entr")
	p.without("198.18.0.7")
	p.keys("Escape")
	p.wait("198.18.0.7")

	p.keys("p")
	p.wait("paused")
	p.tmux("resize-window", "-x", "120", "-y", "40")
	p.wait(`paused.*\n(.*\n){38}q quit`) // the last of 40 lines
	p.tmux("resize-window", "-x", "40", "-y", "10")
	p.wait(`\? help  q quit  tab panel`)
	p.tmux("resize-window", "-x", "80", "-y", "24")
	p.keys("p", "?")
	p.wait("natkit top: keys")
	p.keys("?", "n")
	p.wait(space + ` .*3,000 entries`)
	p.keys("Escape")
	p.without("network namespaces") // a key right behind Escape would be one with Alt
	p.keys("w")
	p.wait(`saved natkit-.*\.tar\.gz`)
	p.keys("w")
	p.wait("saving a snapshot")

	p.keys("q")
	p.ended()
	p.wait(`saved natkit-.*\.tar\.gz\nsaved natkit-.*\.tar\.gz\nended`) // the second one not in part
	if bundles, err := filepath.Glob(filepath.Join(p.dir, "natkit-*.tar.gz")); err != nil || len(bundles) != 2 {
		t.Errorf("saved %q, %v", bundles, err)
	}
}

// TestTopIsTerminated: a signal leaves the terminal as it was, too. And what is not
// UTF-8 gets ASCII, without colours where they are not wanted.
func TestTopIsTerminated(t *testing.T) {
	space := filledNamespace(t)
	p := startPane(t, "C", "NO_COLOR=1 natkit top --netns "+space)
	p.wait("3,000 of", "####|#\\.\\.")
	if text := p.screen("-e"); strings.ContainsFunc(text, func(r rune) bool { return r > 0x7e }) || strings.Contains(text, "\x1b[31m") {
		t.Errorf("more than ASCII, or a colour: %q", text)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(p.read("pid")))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pid, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.ended()
}

// TestTopPanics: what goes wrong in natkit does not leave the terminal unusable.
func TestTopPanics(t *testing.T) {
	p := startPane(t, "C.UTF-8", "top-that-panics")
	p.wait("natkit top")
	p.keys("w")
	p.endedWith(1, "program experienced a panic")
}

// panickingTopMain is a natkit top that panics when it saves.
func panickingTopMain() {
	_, err := tui.Run(context.Background(), tui.Options{Interval: time.Second, In: os.Stdin, Out: os.Stdout,
		Save: func(context.Context, *netns.Handle) (string, error) { panic("a panic on purpose") }})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// filledNamespace has 3,000 entries of three sources.
func filledNamespace(t *testing.T) (name string) {
	t.Helper()
	testutil.NeedRoot(t)
	ip := testutil.NeedProgram(t, "ip")
	name = fmt.Sprintf("natkit-top-%d", os.Getpid())
	if out, err := exec.Command(ip, "netns", "add", name).CombinedOutput(); err != nil {
		t.Fatalf("ip netns add: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command(ip, "netns", "del", name).CombinedOutput(); err != nil {
			t.Errorf("ip netns del: %v: %s", err, out)
		}
	})
	ns, err := netns.Named(name)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	testutil.ShareHost(t)
	i := 0
	taken, err := dump.Insert(t.Context(), ns, func(e *conntrack.Entry) bool {
		orig := conntrack.Tuple{Src: netip.AddrFrom4([4]byte{198, 18, 0, byte(7 + i%3)}), Dst: netip.MustParseAddr("203.0.113.1"),
			Proto: unix.IPPROTO_TCP, SrcPort: uint16(1024 + i), DstPort: 443}
		*e = conntrack.Entry{Family: unix.AF_INET, Orig: orig, Reply: orig.Mirror(), Status: conntrack.SeenReply | conntrack.Assured,
			TCPState: conntrack.TCPEstablished, Timeout: 3600}
		i++
		return i <= 3000
	})
	if err != nil || taken != 3000 {
		t.Fatalf("inserted %d entries: %v", taken, err)
	}
	return name
}

// pane is a terminal of 80×24 in which a command runs.
type pane struct {
	t      *testing.T
	dir    string
	server []string
}

// afterwards prints what the command left: its exit code, and whether the terminal
// echoes and returns whole lines again.
const afterwards = `echo "ended with $?"; stty -a | tr ' ;' '\n\n' | grep -x -e echo -e icanon | tr '\n' ' '; echo; exec sleep 60`

func startPane(t *testing.T, locale, command string) *pane {
	t.Helper()
	tmux := testutil.NeedProgram(t, "tmux")
	// The socket's path must be short.
	sockets, err := os.MkdirTemp("", "tmux")
	if err != nil {
		t.Fatal(err)
	}
	p := &pane{t: t, dir: t.TempDir(), server: []string{tmux, "-u", "-S", filepath.Join(sockets, "s"), "-f", "/dev/null"}}
	t.Cleanup(func() {
		exec.Command(p.server[0], append(p.server[1:], "kill-server")...).Run() // there may be none
		os.RemoveAll(sockets)
	})
	script := fmt.Sprintf(`cd %s; export LC_ALL=%s; sh -c 'echo $$ >pid; %s'; %s`, p.dir, locale, exported(command), afterwards)
	p.tmux("new-session", "-d", "-x", "80", "-y", "24", "sh", "-c", script)
	return p
}

// exported has variables before a command set for it, and the shell's process become it.
func exported(command string) string {
	if variables, program, found := strings.Cut(command, "=1 "); found {
		return "export " + variables + "=1; exec " + program
	}
	return "exec " + command
}

func (p *pane) tmux(args ...string) string {
	p.t.Helper()
	out, err := exec.Command(p.server[0], append(p.server[1:], args...)...).CombinedOutput()
	if err != nil {
		p.t.Fatalf("tmux %q: %v: %s", args, err, out)
	}
	return string(out)
}

// keys types keys of tmux's names, or text.
func (p *pane) keys(keys ...string) {
	p.t.Helper()
	p.tmux(append([]string{"send-keys"}, keys...)...)
}

func (p *pane) screen(options ...string) string {
	p.t.Helper()
	return p.tmux(append([]string{"capture-pane", "-p"}, options...)...)
}

// wait waits until the screen matches all patterns.
func (p *pane) wait(patterns ...string) {
	p.t.Helper()
	p.until(fmt.Sprintf("%q", patterns), func(screen string) bool {
		for _, pattern := range patterns {
			if !regexp.MustCompile(pattern).MatchString(screen) {
				return false
			}
		}
		return true
	})
}

// without waits until a text is not on the screen.
func (p *pane) without(text string) {
	p.t.Helper()
	p.until("without "+text, func(screen string) bool { return !strings.Contains(screen, text) })
}

func (p *pane) until(what string, ok func(screen string) bool) {
	p.t.Helper()
	var screen string
	for deadline := time.Now().Add(testutil.Patience(time.Minute)); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if screen = p.screen(); ok(screen) {
			return
		}
	}
	p.t.Fatalf("waited for a screen %s, got:\n%s", what, screen)
}

// ended waits for the end of the command, and looks at the terminal.
func (p *pane) ended() {
	p.t.Helper()
	p.endedWith(0)
	if screen := p.screen(); strings.Contains(screen, "natkit top") {
		p.t.Errorf("the screen is still there:\n%s", screen)
	}
}

func (p *pane) endedWith(code int, patterns ...string) {
	p.t.Helper()
	p.wait(append(patterns, fmt.Sprintf(`(?m)^ended with %d$`, code), `(?m)^(icanon echo|echo icanon) *$`)...)
	if got := strings.TrimSpace(p.tmux("display-message", "-p", "#{alternate_on} #{cursor_flag}")); got != "0 1" {
		p.t.Errorf("alternate screen and cursor are %q, want 0 1", got)
	}
}

func (p *pane) read(name string) string {
	p.t.Helper()
	text, err := os.ReadFile(filepath.Join(p.dir, name))
	if err != nil {
		p.t.Fatal(err)
	}
	return string(text)
}
