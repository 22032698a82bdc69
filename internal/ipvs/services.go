package ipvs

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
)

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
