package build

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/lab"
	"golang.org/x/sys/unix"
)

// ServerKind chooses the web server.
type ServerKind string

const (
	// Auto is Nginx where it is installed, otherwise Builtin.
	Auto ServerKind = "auto"
	// Nginx is the real one, from PATH or /usr/sbin.
	Nginx ServerKind = "nginx"
	// Builtin is `natkit bench serve`.
	Builtin ServerKind = "builtin"
)

// Server is a web server that accepts connections.
type Server struct {
	// Name is "nginx/1.22.1" or "natkit builtin".
	Name string
	*Process
}

// StartServer starts the scenario's web server and waits until it accepts
// connections.
func (l *Lab) StartServer(ctx context.Context, kind ServerKind) (*Server, error) {
	node, addr := l.scenario.Topology.Server.Node, l.scenario.ServerAddr()
	listen := l.listening()
	name, command, err := l.serverCommand(ctx, kind, listen)
	if err != nil {
		return nil, fmt.Errorf("start the web server: %w", err)
	}
	for _, at := range listen.at {
		if err := l.Node(node).mayListen(at); err != nil {
			return nil, fmt.Errorf("start the web server in %s: %w", node, err)
		}
	}
	p, err := l.Start(ctx, node, command)
	if err != nil {
		return nil, fmt.Errorf("start the web server: %w", err)
	}
	deadline := time.Now().Add(startTimeout)
	if err := await(ctx, p, func() error { return l.Node(node).ask(ctx, addr, deadline) }); err != nil {
		p.Kill()
		return nil, fmt.Errorf("start the web server on %s in %s: %w", addr, node, err)
	}
	if err := l.startUDP(ctx); err != nil {
		return nil, err
	}
	if err := l.startHold(ctx); err != nil {
		return nil, err
	}
	return &Server{Name: name, Process: p}, nil
}

// listening returns the scenario's settings for its web server.
func (l *Lab) listening() listening {
	server, first := l.scenario.Topology.Server, l.scenario.ServerAddr()
	listen := listening{at: []netip.AddrPort{first}, keep: server.KeepAlive}
	for _, a := range server.Addresses {
		if a != first.Addr() {
			listen.at = append(listen.at, netip.AddrPortFrom(a, server.Port))
		}
	}
	return listen
}

// everywhere is the one address for a server that takes no list of them.
func (l listening) everywhere() netip.AddrPort {
	first := l.at[0]
	switch {
	case len(l.at) == 1:
		return first
	case first.Addr().Is6():
		return netip.AddrPortFrom(netip.IPv6Unspecified(), first.Port())
	}
	return netip.AddrPortFrom(netip.IPv4Unspecified(), first.Port())
}

// startUDP starts the server of datagrams where the scenario has one, and waits
// until its sockets are there.
func (l *Lab) startUDP(ctx context.Context) error {
	server := l.scenario.Topology.Server
	if server.UDP == 0 {
		return nil
	}
	node, addr := l.Node(server.Node), netip.AddrPortFrom(l.scenario.ServerAddr().Addr(), server.UDP)
	fail := func(err error) error {
		return fmt.Errorf("start the server of datagrams on %s in %s: %w", addr, server.Node, err)
	}
	p, err := l.Start(ctx, server.Node, Command{Path: self, Name: "natkit", Args: []string{"bench", "serve", "--udp", addr.String()}})
	if err != nil {
		return fail(err)
	}
	err = await(ctx, p, func() error {
		taken, err := node.udpTaken(addr)
		if err == nil && !taken {
			err = errors.New("it does not listen")
		}
		return err
	})
	if err != nil {
		p.Kill()
		return fail(err)
	}
	return nil
}

// startHold starts the server that holds connections where the scenario has one, and waits until it
// listens at the last of its ports.
func (l *Lab) startHold(ctx context.Context) error {
	server, addr := l.scenario.Topology.Server, l.scenario.ServerAddr().Addr()
	if server.Hold == (lab.Ports{}) {
		return nil
	}
	at := net.JoinHostPort(addr.String(), server.Hold.String())
	fail := func(err error) error {
		return fmt.Errorf("start the server that holds connections on %s in %s: %w", at, server.Node, err)
	}
	p, err := l.Start(ctx, server.Node, Command{Path: self, Name: "natkit",
		Args: []string{"bench", "serve", "--tcp", at, "--limit", strconv.Itoa(l.scenario.Connections() + spareHeld)}})
	if err != nil {
		return fail(err)
	}
	deadline := time.Now().Add(startTimeout)
	err = await(ctx, p, func() error {
		return l.Node(server.Node).Netns.Do(func() error {
			dialer := net.Dialer{Deadline: deadline}
			conn, err := dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(addr, server.Hold.Last).String())
			if err != nil {
				return err
			}
			return conn.Close()
		})
	})
	if err != nil {
		p.Kill()
		return fail(err)
	}
	return nil
}

// spareHeld is how many connections more than a load holds its server takes: those that a client has
// given up and the server has not.
const spareHeld = 10_000

// udpTaken reports whether a socket of the node has the port, by the kernel's own list:
// taking the port for a moment could be what keeps the server from it.
func (n *Node) udpTaken(addr netip.AddrPort) (taken bool, err error) {
	file := "/proc/thread-self/net/udp"
	if addr.Addr().Is6() {
		file += "6"
	}
	err = n.Netns.Do(func() error {
		text, err := os.ReadFile(file)
		// sl local_address rem_address …, each ADDRESS:PORT in hexadecimal.
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			taken = taken || len(fields) > 1 && strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", addr.Port()))
		}
		return err
	})
	return taken, err
}

func (l *Lab) serverCommand(ctx context.Context, kind ServerKind, listen listening) (string, Command, error) {
	builtin := Command{Path: self, Name: "natkit", Args: []string{"bench", "serve", "--listen", listen.everywhere().String()}}
	switch kind {
	case Builtin:
		return "natkit builtin", builtin, nil
	case Auto, Nginx, "":
	default:
		return "", Command{}, fmt.Errorf("unknown server %q; expected auto, nginx or builtin", kind)
	}
	n, err := findNginx(ctx)
	switch {
	case errors.Is(err, errNoNginx) && kind != Nginx:
		return "natkit builtin", builtin, nil
	case err != nil:
		return "", Command{}, err
	}
	if err := n.writeFiles(l.box, listen); err != nil {
		return "", Command{}, err
	}
	return n.version, n.command(l.box.mount), nil
}

// await returns when ready does not fail any more. That the server's process has ended is
// the error then, with its own message.
func await(ctx context.Context, p *Process, ready func() error) error {
	for deadline := time.Now().Add(startTimeout); ; {
		err := ready()
		select {
		case <-p.done:
			return cmp.Or(p.err, errors.New("the server ended at once"))
		default:
		}
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not ready after %s: %w", startTimeout, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.done:
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// mayListen sees whether the address is free: a server that finds it taken may
// try again for a while (nginx does), and meanwhile another one answers.
func (n *Node) mayListen(addr netip.AddrPort) error {
	return n.Netns.Do(func() error {
		l, err := net.Listen("tcp", addr.String())
		if err != nil {
			return err
		}
		return l.Close()
	})
}

// ask requests a page. That the kernel accepts a connection is not enough: nginx
// listens before it has read and opened all that it needs.
func (n *Node) ask(ctx context.Context, addr netip.AddrPort, deadline time.Time) error {
	return n.Netns.Do(func() error {
		dialer := net.Dialer{Deadline: deadline}
		conn, err := dialer.DialContext(ctx, "tcp", addr.String())
		if err != nil {
			return err
		}
		defer conn.Close()
		defer context.AfterFunc(ctx, func() { conn.Close() })()
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
		if _, err := io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n"); err != nil {
			return err
		}
		_, err = io.ReadFull(conn, make([]byte, len("HTTP/1.0 200")))
		return err
	})
}

// fileLimit is the number of files that a process may open at most.
func fileLimit() uint64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 1024
	}
	return limit.Max
}

func writeAll(files map[string]string) error {
	for name, text := range files {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
