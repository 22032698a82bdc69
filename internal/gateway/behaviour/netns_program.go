package behaviour

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

func (w *netnsWorld) MTU(dev string, bytes int) error {
	link, err := w.links.LinkByName(dev)
	if err == nil {
		err = w.links.LinkSetMTU(link, bytes)
	}
	if err != nil {
		return fmt.Errorf("set the MTU of %s to %d: %w", dev, bytes, err)
	}
	return nil
}

// program is a socket in the gateway's namespace.
type program struct {
	world *netnsWorld
	conn  *net.UDPConn
}

// Program opens the socket as its user: a socket has that of the thread which opened it (sock_alloc_file, f_cred), and the
// thread ends with Do.
func (w *netnsWorld) Program(s Socket) (Program, error) {
	p := &program{world: w}
	err := w.gateway.Do(func() (err error) {
		if err := errors.Join(unix.Setfsgid(s.Group), unix.Setfsuid(s.User)); err != nil {
			return err
		}
		p.conn, err = net.ListenUDP("udp4", &net.UDPAddr{Port: int(s.Port)})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open a socket on the gateway, port %d: %w", s.Port, err)
	}
	return p, nil
}

func (p *program) Send(to netip.AddrPort, payload string) (Arrivals, error) {
	out, err := p.world.wires.after(func() error {
		_, err := p.conn.WriteToUDPAddrPort([]byte(payload), to)
		return err
	})
	return arrivalsOf(out), err
}

// Receive need not wait, as what has been sent has come when Send is done; but a deadline
// that passes before the first read, on a slow machine, would hide it.
func (p *program) Receive() (string, netip.AddrPort, bool, error) {
	b := make([]byte, 1<<16)
	if err := p.conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		return "", netip.AddrPort{}, false, err
	}
	n, from, err := p.conn.ReadFromUDPAddrPort(b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return "", netip.AddrPort{}, false, nil
	}
	return string(b[:n]), from, err == nil, err
}

func (p *program) Close() error { return p.conn.Close() }
