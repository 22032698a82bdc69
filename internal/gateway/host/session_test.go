package host

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/natkit/natkit/internal/gateway"
)

// process writes a process into a made-up /proc.
func process(t *testing.T, proc string, pid, parent int, name, environ string) string {
	t.Helper()
	dir := filepath.Join(proc, fmt.Sprint(pid))
	if err := os.MkdirAll(filepath.Join(dir, "fd"), 0o755); err != nil {
		t.Fatal(err)
	}
	err := errors.Join(os.WriteFile(filepath.Join(dir, "environ"), []byte(environ), 0o644),
		os.WriteFile(filepath.Join(dir, "stat"), fmt.Appendf(nil, "%d (%s) S %d 1 1 0 -1", pid, name, parent), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestSessionUnderSudo(t *testing.T) {
	proc := t.TempDir()
	process(t, proc, 1, 0, "systemd", "")
	sshd := process(t, proc, 50, 1, "sshd-session", "PATH=/bin\x00")
	process(t, proc, 60, 50, "a (odd) name", "HOME=/root\x00SSH_CONNECTION=198.51.100.9 50000 203.0.113.7 22\x00")
	process(t, proc, 70, 60, "sudo", "SUDO_USER=me\x00")
	process(t, proc, 80, 70, "natkit", "")
	session := gateway.Session{Client: netip.MustParseAddrPort("198.51.100.9:50000"), Server: netip.MustParseAddrPort("203.0.113.7:22")}
	if got := sessions(proc, 80); !slices.Equal(got, []gateway.Session{session}) {
		t.Errorf("by the environment: %v", got)
	}
	// tmux keeps the environment of the session in which it was started.
	err := errors.Join(os.MkdirAll(sshd+"/net", 0o755), os.Symlink("socket:[4711]", sshd+"/fd/4"), os.Symlink("socket:[4712]", sshd+"/fd/5"),
		os.WriteFile(sshd+"/net/tcp", []byte(`  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 077100CB:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4712 1 0 100 0 0 10 0
   1: 077100CB:0016 096433C6:C351 01 00000000:00000000 02:00000000 00000000     0        0 4711 4 0 20 4 30 10 -1
   2: 077100CB:0016 096433C6:C352 01 00000000:00000000 02:00000000 00000000     0        0 4799 4 0 20 4 30 10 -1
`), 0o644),
		os.WriteFile(sshd+"/net/tcp6", []byte("rubbish\n 1: zz:1 00:2 01 0 0 0 0 0 0 4711\n"), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	want := []gateway.Session{session, {Client: netip.MustParseAddrPort("198.51.100.9:50001"), Server: session.Server}}
	if got := sessions(proc, 80); !slices.Equal(got, want) {
		t.Errorf("by the socket: %v", got)
	}
	here := []gateway.Interface{{Addresses: []netip.Prefix{netip.MustParsePrefix("203.0.113.7/24")}}}
	if got := ofHost(slices.Clone(want), here); len(got) != 2 {
		t.Errorf("here: %v", got)
	}
	if got := ofHost(slices.Clone(want), nil); len(got) != 0 {
		t.Errorf("elsewhere: %v", got)
	}
}

func TestSessionsEndInACircle(t *testing.T) {
	proc := t.TempDir()
	process(t, proc, 5, 6, "a", "")
	process(t, proc, 6, 5, "b", "SSH_CONNECTION=x y z\x00")
	if got := sessions(proc, 5); len(got) != 0 {
		t.Errorf("%v", got)
	}
	if got := sessions(proc, 99); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

func TestParseSocketOfIPv6(t *testing.T) {
	for text, want := range map[string]string{
		"0000000000000000FFFF0000077100CB:0016": "203.0.113.7:22",
		"B80D0120000000000000000007000000:0016": "[2001:db8::7]:22",
	} {
		if got, err := parseSocket(text); err != nil || got.String() != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", ":", "01:1", "0100007F", "0100007F:1FFFFF", "0100007G:1"} {
		if got, err := parseSocket(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

// TestSessionOfARealProcess: the parent has what its child was started without, as
// with sudo.
func TestSessionOfARealProcess(t *testing.T) {
	cmd := exec.Command("sh", "-c", "env -i sh -c 'echo $$; read line'; true")
	cmd.Env = append(os.Environ(), "SSH_CONNECTION=198.51.100.9 50000 203.0.113.7 22")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); cmd.Process.Kill(); cmd.Wait() }()
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	if got := sessions("/proc", pid); len(got) == 0 || got[0].Client.String() != "198.51.100.9:50000" {
		t.Errorf("%v", got)
	}
}
