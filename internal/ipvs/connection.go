package ipvs

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"net/netip"
	"strconv"
	"strings"
)

// connectionsFile is named in errors.
const connectionsFile = "/proc/net/ip_vs_conn"

// Tuple is what an entry is found by.
type Tuple struct {
	// Protocol is tcp, udp or sctp; ip for templates of a firewall mark.
	Protocol        string
	Client, Service netip.AddrPort
}

// Connection is one entry of the table.
type Connection struct {
	Tuple
	Server netip.AddrPort
	// State is the kernel's name, such as TIME_WAIT.
	State string
	// Expires is the time left in seconds, 0 where it is over.
	Expires int64
}

// template: persistence keeps entries without a client port, beside those of connections.
func (c *Connection) template() bool { return c.Client.Port() == 0 }

// ParseConnections calls fn with each entry of /proc/net/ip_vs_conn; fn must not keep
// the pointer. A last line without an end was cut off and is left out.
//
// Columns are separated by blanks in all kernels (ip_vs_conn_seq_show,
// net/netfilter/ipvs/ip_vs_conn.c): protocol, client, service and server with a port
// each, state, seconds left, and since 2.6.37 name and data of a persistence engine,
// which are not looked at.
func ParseConnections(r io.Reader, fn func(*Connection)) error {
	text := bufio.NewReaderSize(r, 64<<10)
	names := map[string]string{}
	for number := 1; ; number++ {
		line, err := text.ReadSlice('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("parse %s, line %d: %w", connectionsFile, number, err)
		}
		if number == 1 {
			if !strings.HasPrefix(string(line), "Pro FromIP") {
				return fmt.Errorf("parse %s: header %.60q does not begin with Pro FromIP", connectionsFile, line)
			}
			continue
		}
		c, err := parseConnection(strings.Fields(string(line)), names)
		if err != nil {
			return fmt.Errorf("parse %s, line %d: %w", connectionsFile, number, err)
		}
		fn(&c)
	}
}

// parseConnection shares the texts of protocols and states by way of names.
func parseConnection(f []string, names map[string]string) (c Connection, err error) {
	if len(f) < 9 {
		return c, fmt.Errorf("%d columns, fewer than 9", len(f))
	}
	c.Protocol, c.State = shared(names, strings.ToLower(f[0])), shared(names, f[7])
	for i, to := range []*netip.AddrPort{&c.Client, &c.Service, &c.Server} {
		if *to, err = parseAddrPort(f[1+2*i], f[2+2*i]); err != nil {
			return c, err
		}
	}
	left, err := strconv.ParseUint(f[8], 10, 64)
	if err != nil {
		return c, fmt.Errorf("seconds left %.30q: not a number", f[8])
	}
	c.Expires = secondsLeft(left)
	return c, nil
}

// secondsLeft: where a timer is late the kernel's unsigned difference wraps around.
func secondsLeft(n uint64) int64 {
	if n > math.MaxInt32/1000 {
		return 0
	}
	return int64(n)
}

// mostNames bounds the texts that are shared: the kernel has about 40.
const mostNames = 100

func shared(names map[string]string, text string) string {
	if known, ok := names[text]; ok || len(names) >= mostNames {
		if !ok {
			return text
		}
		return known
	}
	text = strings.Clone(text)
	names[text] = text
	return text
}
