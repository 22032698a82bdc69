package host

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
)

// maxParents bounds the walk: a table of processes that changes could make a circle.
const maxParents = 64

// sessions are the SSH connections that a process was started through: what its
// environment, or that of the nearest parent that has it, calls SSH_CONNECTION
// (sudo takes it away from the process itself), and the sockets of the parents that
// are sshd's. What may not be read adds none.
func sessions(proc string, pid int) []gateway.Session {
	var found []gateway.Session
	fromEnviron := false
	for range maxParents {
		if pid <= 0 {
			break
		}
		dir := filepath.Join(proc, strconv.Itoa(pid))
		if s, ok := environ(dir); ok && !fromEnviron {
			found, fromEnviron = append(found, s), true
		}
		parent, name := stat(dir)
		if strings.HasPrefix(name, "sshd") { // sshd, and sshd-session since OpenSSH 9.8
			found = append(found, sockets(dir)...)
		}
		pid = parent
	}
	slices.SortStableFunc(found, func(a, b gateway.Session) int { return a.Client.Compare(b.Client) })
	return slices.Compact(found)
}

// ofHost leaves those that end at an address of these interfaces: a namespace may
// have been entered from a session elsewhere.
func ofHost(all []gateway.Session, interfaces []gateway.Interface) []gateway.Session {
	return slices.DeleteFunc(all, func(s gateway.Session) bool {
		return !slices.ContainsFunc(interfaces, func(i gateway.Interface) bool {
			return slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return p.Addr() == s.Server.Addr().WithZone("") })
		})
	})
}

func environ(dir string) (gateway.Session, bool) {
	text, err := os.ReadFile(dir + "/environ")
	if err != nil {
		return gateway.Session{}, false
	}
	for variable := range bytes.SplitSeq(text, []byte{0}) {
		if value, ok := bytes.CutPrefix(variable, []byte("SSH_CONNECTION=")); ok {
			return parseSSHConnection(string(value))
		}
	}
	return gateway.Session{}, false
}

// parseSSHConnection reads "client port server port" (ssh(1)).
func parseSSHConnection(text string) (gateway.Session, bool) {
	f := strings.Fields(text)
	if len(f) != 4 {
		return gateway.Session{}, false
	}
	client, ok := addrPort(f[0], f[1])
	server, ok2 := addrPort(f[2], f[3])
	return gateway.Session{Client: client, Server: server}, ok && ok2
}

func addrPort(addr, port string) (netip.AddrPort, bool) {
	a, err := netip.ParseAddr(addr)
	p, err2 := strconv.ParseUint(port, 10, 16)
	return netip.AddrPortFrom(a.Unmap(), uint16(p)), err == nil && err2 == nil
}

// stat is the parent and the name of a process (proc_pid_stat(5)): the name stands in
// parentheses and may have any character.
func stat(dir string) (parent int, name string) {
	text, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return 0, ""
	}
	s := string(text)
	open, end := strings.IndexByte(s, '('), strings.LastIndexByte(s, ')')
	if open < 0 || end < open {
		return 0, ""
	}
	f := strings.Fields(s[end+1:])
	if len(f) < 2 {
		return 0, ""
	}
	parent, _ = strconv.Atoi(f[1])
	return parent, s[open+1 : end]
}

// sockets are the established TCP connections that a process holds, in the namespace
// that it is in itself.
func sockets(dir string) []gateway.Session {
	inodes := map[string]bool{}
	fds, err := os.ReadDir(dir + "/fd")
	if err != nil {
		return nil
	}
	for _, fd := range fds {
		if target, err := os.Readlink(filepath.Join(dir, "fd", fd.Name())); err == nil {
			if inode, ok := strings.CutPrefix(target, "socket:["); ok {
				inodes[strings.TrimSuffix(inode, "]")] = true
			}
		}
	}
	return append(established(dir+"/net/tcp", inodes), established(dir+"/net/tcp6", inodes)...)
}

// established reads /proc/PID/net/tcp (proc_net_tcp in Documentation/networking): of
// each line the local and the remote address, the state and the inode.
func established(path string, inodes map[string]bool) []gateway.Session {
	file, err := os.Open(path)
	if err != nil || len(inodes) == 0 {
		return nil
	}
	defer file.Close()
	var found []gateway.Session
	for lines := bufio.NewScanner(file); lines.Scan(); {
		f := strings.Fields(lines.Text())
		const tcpEstablished = "01"
		if len(f) < 10 || f[3] != tcpEstablished || !inodes[f[9]] {
			continue
		}
		server, err := parseSocket(f[1])
		client, err2 := parseSocket(f[2])
		if err == nil && err2 == nil {
			found = append(found, gateway.Session{Client: client, Server: server})
		}
	}
	return found
}

// parseSocket reads "0100007F:1F90": 32-bit words as numbers of the machine, the port
// in plain hexadecimal.
func parseSocket(text string) (netip.AddrPort, error) {
	addr, port, _ := strings.Cut(text, ":")
	b, err := hex.DecodeString(addr)
	p, err2 := strconv.ParseUint(port, 16, 16)
	if err != nil || err2 != nil || len(b) != 4 && len(b) != 16 {
		return netip.AddrPort{}, fmt.Errorf("parse socket address %q: not an address and a port in hexadecimal", text)
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	a, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a.Unmap(), uint16(p)), nil
}
