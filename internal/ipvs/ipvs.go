// Package ipvs understands what the kernel's load balancer writes below /proc/net, and
// compares two of its tables of connections: which tuples were used again, and whether
// they stayed on their real server. It reads nothing itself.
package ipvs

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
)

// parseAddr reads an address as the kernel writes it: eight hexadecimal digits in the
// order of reading (%08X of ntohl), or all groups of an IPv6 address (%pI6).
func parseAddr(text string) (netip.Addr, error) {
	if strings.Contains(text, ":") {
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.Zone() != "" {
			return netip.Addr{}, fmt.Errorf("address %.60q: not like 2001:0db8:0000:0000:0000:0000:0000:0001", text)
		}
		return addr, nil
	}
	var four [4]byte
	if len(text) != 8 {
		return netip.Addr{}, fmt.Errorf("address %.60q: not eight hexadecimal digits", text)
	}
	if _, err := hex.Decode(four[:], []byte(text)); err != nil {
		return netip.Addr{}, fmt.Errorf("address %.60q: not eight hexadecimal digits", text)
	}
	return netip.AddrFrom4(four), nil
}

// parsePort reads four hexadecimal digits.
func parsePort(text string) (uint16, error) {
	var two [2]byte
	if len(text) != 4 {
		return 0, fmt.Errorf("port %.60q: not four hexadecimal digits", text)
	}
	if _, err := hex.Decode(two[:], []byte(text)); err != nil {
		return 0, fmt.Errorf("port %.60q: not four hexadecimal digits", text)
	}
	return binary.BigEndian.Uint16(two[:]), nil
}

func parseAddrPort(addr, port string) (netip.AddrPort, error) {
	a, err := parseAddr(addr)
	if err != nil {
		return netip.AddrPort{}, err
	}
	p, err := parsePort(port)
	return netip.AddrPortFrom(a, p), err
}

// splitAddrPort reads C6120001:0050 and [2001:0db8:…]:0050.
func splitAddrPort(text string) (netip.AddrPort, error) {
	at := strings.LastIndexByte(text, ':')
	if at < 0 {
		return netip.AddrPort{}, fmt.Errorf("%.60q: not an address and a port", text)
	}
	addr := text[:at]
	if inner, ok := strings.CutPrefix(addr, "["); ok {
		addr = strings.TrimSuffix(inner, "]")
	}
	return parseAddrPort(addr, text[at+1:])
}

// number reads a decimal count; negative ones, which the kernel's atomic counters show
// for a moment, are 0.
func number(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	return max(0, n), err
}

// servicesFile is named in errors.
const servicesFile = "/proc/net/ip_vs"

// ParseServices reads /proc/net/ip_vs (ip_vs_info_seq_show, net/netfilter/ipvs/ip_vs_ctl.c):
// a line for each service, and one for each of its real servers below it.
func ParseServices(r io.Reader) (*snapshot.IPVS, error) {
	lines := bufio.NewScanner(r)
	v := &snapshot.IPVS{Services: []snapshot.IPVSService{}}
	if !lines.Scan() {
		return nil, errors.Join(fmt.Errorf("parse %s: empty", servicesFile), lines.Err())
	}
	if _, err := fmt.Sscanf(lines.Text(), "IP Virtual Server version %s (size=%d)", &v.Version, &v.Buckets); err != nil {
		return nil, fmt.Errorf("parse %s: header %.60q does not name the version and the size", servicesFile, lines.Text())
	}
	for lines.Scan() {
		if err := addLine(v, strings.Fields(lines.Text())); err != nil {
			return nil, fmt.Errorf("parse %s, line %.80q: %w", servicesFile, lines.Text(), err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("parse %s: %w", servicesFile, err)
	}
	return v, nil
}

func addLine(v *snapshot.IPVS, f []string) error {
	switch {
	case len(f) == 0 || f[0] == "Prot":
		return nil
	case f[0] != "->":
		s, err := parseService(f)
		if err == nil {
			v.Services = append(v.Services, s)
		}
		return err
	case len(f) > 1 && strings.HasPrefix(f[1], "RemoteAddress"):
		return nil
	case len(v.Services) == 0:
		return errors.New("a server without a service")
	}
	server, err := parseServer(f)
	if err == nil {
		last := &v.Services[len(v.Services)-1]
		last.Servers = append(last.Servers, server)
	}
	return err
}

// parseService reads "TCP  C6120001:0050 wlc persistent 75000 FFFFFFFF" and "FWM  00000007
// rr".
func parseService(f []string) (s snapshot.IPVSService, err error) {
	if len(f) < 3 {
		return s, errors.New("neither a service nor a server")
	}
	s.Servers = []snapshot.IPVSServer{}
	if f[0] == "FWM" {
		mark, err := strconv.ParseUint(f[1], 16, 32)
		if err != nil {
			return s, fmt.Errorf("firewall mark %.20q: not a hexadecimal number", f[1])
		}
		s.Address = fmt.Sprintf("fwmark %d", mark)
	} else {
		address, err := splitAddrPort(f[1])
		if err != nil {
			return s, err
		}
		s.Protocol, s.Address = strings.ToLower(f[0]), address.String()
	}
	addFlags(&s, f[2:])
	return s, nil
}

// addFlags reads the scheduler and what stands behind it. The time of persistence is in
// ticks, 75000 for 300 s where HZ is 250.
func addFlags(s *snapshot.IPVSService, f []string) {
	s.Scheduler = f[0]
	s.OnePacket = slices.Contains(f[1:], "ops")
	s.Persistent = slices.Contains(f[1:], "persistent")
}

// parseServer reads "-> C6120102:0050      Masq    1      3          1200".
func parseServer(f []string) (s snapshot.IPVSServer, err error) {
	if len(f) < 6 {
		return s, errors.New("a server has an address, a way of forwarding, a weight and two numbers of connections")
	}
	address, err := splitAddrPort(f[1])
	if err != nil {
		return s, err
	}
	s.Address, s.Forward = address.String(), f[2]
	for i, to := range []*int64{&s.Weight, &s.Active, &s.Inactive} {
		if *to, err = number(f[3+i]); err != nil {
			return s, fmt.Errorf("column %d: %w", 4+i, err)
		}
	}
	return s, nil
}

// TimeWait is the timeout of TIME_WAIT, in seconds, which cannot be configured
// (tcp_timeouts, net/netfilter/ipvs/ip_vs_proto_tcp.c).
const TimeWait = 120

// allPorts are those from 1024 on, of which clients and NATs take theirs.
const allPorts = 64512

// PassesBy reports whether answers of a service do not pass the balancer, so that closed
// connections stay in FIN_WAIT: direct routing and tunnels.
func PassesBy(s *snapshot.IPVSService) bool {
	return s != nil && slices.ContainsFunc(s.Servers, func(r snapshot.IPVSServer) bool {
		return r.Forward == "Route" || r.Forward == "Tunnel"
	})
}

// Hold is how long the entry of a closed TCP connection stays, in seconds.
func Hold(v *snapshot.IPVS, s *snapshot.IPVSService) int64 {
	switch {
	case !PassesBy(s):
		return TimeWait
	case v.Timeouts != nil && v.Timeouts.TCPFin > 0:
		return v.Timeouts.TCPFin
	case v.Connections != nil && v.Connections.TimeoutSeconds["tcp/FIN_WAIT"] > 0:
		return v.Connections.TimeoutSeconds["tcp/FIN_WAIT"]
	}
	return TimeWait // the default of FIN_WAIT, too
}

// Ports is how many ports a client has: those between its lowest and its highest one
// where most of them have an entry, else all from 1024 on.
func Ports(c *snapshot.IPVSClient) int64 {
	span := int64(c.LastPort) - int64(c.FirstPort) + 1
	if 2*c.Ports >= span {
		return span
	}
	return allPorts
}

// MostSessions is the rate of connections of one client address beyond which ports come
// again while their entries are there: from then on IPVS counts no more new ones.
func MostSessions(v *snapshot.IPVS, s *snapshot.IPVSService, c *snapshot.IPVSClient) float64 {
	return float64(Ports(c)) / float64(Hold(v, s))
}

// ReuseInterval is the time from one connection of a port to its next one, on average, in
// seconds; false where it is not known, or no port came again.
func ReuseInterval(c *snapshot.IPVSClient, of *snapshot.IPVSConnections) (float64, bool) {
	n := c.New + c.UsedAgain
	if c.UsedAgain == 0 || of.Seconds <= 0 || !of.NewKnown {
		return 0, false
	}
	return float64(c.Ports) * of.Seconds / float64(n), true
}

// ServiceOf is the configuration of a service that connections were seen of; nil where
// there is none: a firewall mark chose it, or it was removed.
func ServiceOf(v *snapshot.IPVS, u *snapshot.IPVSUse) *snapshot.IPVSService {
	for i := range v.Services {
		if s := &v.Services[i]; s.Protocol == u.Protocol && s.Address == u.Address {
			return s
		}
	}
	return nil
}

// UseOf is what the table of connections has of a service; nil where it has nothing, or
// too little to be listed.
func UseOf(v *snapshot.IPVS, s *snapshot.IPVSService) *snapshot.IPVSUse {
	if v.Connections == nil {
		return nil
	}
	for i := range v.Connections.Services {
		if u := &v.Connections.Services[i]; s.Protocol == u.Protocol && s.Address == u.Address {
			return u
		}
	}
	return nil
}
