package load

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/nat"
)

// DefaultTimeout is ab's.
const DefaultTimeout = 30 * time.Second

// Bounds that keep a typing mistake from taking the machine's memory.
const (
	maxConcurrency = 1_000_000
	maxWorkers     = 1024
	maxRate        = 1e8
	maxSources     = 1 << 16
	maxTarget      = 4096
	// maxPerConnection is far more than any server allows.
	maxPerConnection = 1_000_000_000
)

// Target is what a URL names.
type Target struct {
	// Host is a literal address, without brackets but with its zone, or a name.
	Host string
	Port uint16
	// Authority is the Host header's value; a zone is left out (RFC 6874, 3).
	Authority string
	// Path is the request target: path and query, escaped.
	Path string
}

// ParseTarget takes a URL apart. Only http is spoken.
func ParseTarget(raw string) (Target, error) {
	if raw != "" && !strings.Contains(raw, "://") {
		raw = "http://" + raw
	}
	u, err := url.Parse(raw)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return Target{}, fmt.Errorf("read URL %q: %w", raw, err)
	}
	fail := func(cause string) (Target, error) {
		return Target{}, fmt.Errorf("read URL %q: %s; give http://ADDRESS[:PORT]/PATH", raw, cause)
	}
	switch {
	case u.Scheme != "http":
		return fail("the scheme must be http")
	case u.Hostname() == "":
		return fail("it names no host")
	case u.User != nil:
		return fail("user names are not supported")
	case len(u.RequestURI()) > maxTarget:
		return fail(fmt.Sprintf("the path is longer than %d bytes", maxTarget))
	}
	t := Target{Host: u.Hostname(), Port: 80, Authority: withoutZone(u.Host), Path: u.RequestURI()}
	if a, err := netip.ParseAddr(t.Host); err == nil {
		if cause := ZoneError(a); cause != "" {
			return fail(cause)
		}
	}
	if p := u.Port(); p != "" {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return fail("the port must be 1 to 65535")
		}
		t.Port = uint16(n)
	}
	if strings.ContainsAny(t.Authority, " \t\r\n") {
		return fail("the host contains a blank")
	}
	return t, nil
}

// withoutZone takes %eth0 out of [fe80::1%eth0]:80.
func withoutZone(host string) string {
	zone, end := strings.IndexByte(host, '%'), strings.LastIndexByte(host, ']')
	if zone < 0 || end < zone {
		return host
	}
	return host[:zone] + host[end:]
}

// ZoneError returns what is wrong with an address's zone; empty where nothing is. The
// kernel knows the way to a link-local address only with one, and would pass over
// the zone of any other (ipv6(7), sin6_scope_id).
func ZoneError(a netip.Addr) string {
	local := a.Is6() && !a.Is4In6() && a.IsLinkLocalUnicast()
	switch {
	case local && a.Zone() == "":
		return fmt.Sprintf("the link-local address %v needs an interface, %%25eth0 after it in a URL, %%eth0 elsewhere", a)
	case !local && a.Zone() != "":
		return fmt.Sprintf("only a link-local address has an interface, not %v", a)
	}
	return ""
}

// HostPort is the target's network address, for messages.
func (t Target) HostPort() string {
	if strings.Contains(t.Host, ":") {
		return fmt.Sprintf("[%s]:%d", t.Host, t.Port)
	}
	return fmt.Sprintf("%s:%d", t.Host, t.Port)
}

// Checked fills in the defaults and finds what cannot be run. Workers stay 0
// where not given.
func (c Config) Checked() (Config, Target, error) {
	target, err := ParseTarget(c.URL)
	if err != nil {
		return c, target, err
	}
	if c.Concurrency == 0 {
		c.Concurrency = 1
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Close == "" {
		c.Close = CloseServer
	}
	if err := c.checkBounds(); err != nil {
		return c, target, err
	}
	return c, target, c.checkSources(target)
}

func (c Config) checkBounds() error {
	switch {
	case c.Concurrency < 1 || c.Concurrency > maxConcurrency:
		return fmt.Errorf("concurrency %d: must be 1 to %d", c.Concurrency, maxConcurrency)
	case c.Requests < 0:
		return fmt.Errorf("requests %d: must not be negative", c.Requests)
	case c.Duration < 0:
		return fmt.Errorf("duration %v: must not be negative", c.Duration)
	case c.Requests == 0 && c.Duration == 0:
		return errors.New("requests and duration are both 0: the run would never end; give one of them")
	case c.Requests > 0 && int64(c.Concurrency) > c.Requests:
		return fmt.Errorf("concurrency %d is greater than the number of requests (%d)", c.Concurrency, c.Requests)
	case c.Timeout < time.Millisecond || c.Timeout > time.Hour:
		return fmt.Errorf("timeout %v: must be 1ms to 1h", c.Timeout)
	case c.Rate < 0 || math.IsNaN(c.Rate) || c.Rate > maxRate:
		return fmt.Errorf("rate %g: must be 0 (closed loop) to %g requests per second", c.Rate, float64(maxRate))
	case c.Workers < 0 || c.Workers > maxWorkers:
		return fmt.Errorf("workers %d: must be 0 (one per CPU) to %d", c.Workers, maxWorkers)
	case c.AbortAfter < 0:
		return fmt.Errorf("abort after %d failures: must not be negative", c.AbortAfter)
	case c.PerConnection < 0 || c.PerConnection > maxPerConnection:
		return fmt.Errorf("%d requests per connection: must be 1 to %d", c.PerConnection, maxPerConnection)
	case c.PerConnection > 0 && !c.KeepAlive:
		return errors.New("several requests per connection require keepalive")
	case c.Batch < 0 || c.Pause < 0:
		return fmt.Errorf("batches of %d with a pause of %v: must not be negative", c.Batch, c.Pause)
	case c.Batch > 0 && c.Rate > 0:
		return errors.New("batches and a rate: what is started on a schedule does not wait for a batch; give one of them")
	case c.Pause > 0 && c.Batch == 0:
		return errors.New("a pause requires the size of a batch")
	case !c.Close.known():
		return c.Close.unknown()
	case c.NoRequest && c.KeepAlive:
		return errors.New("keepalive requires requests")
	}
	return nil
}

func (c Config) checkSources(t Target) error {
	to, _ := netip.ParseAddr(t.Host) // a name is resolved later
	if len(c.ConnectTo) > 0 {
		if err := checkDestinations(c.ConnectTo); err != nil {
			return err
		}
		to = c.ConnectTo[0]
	}
	return CheckSources(c.Sources, to)
}

// checkDestinations finds addresses that cannot be connected to, and different
// families: a socket has one.
func checkDestinations(to []netip.Addr) error {
	if len(to) > maxSources {
		return fmt.Errorf("%d addresses to connect to: at most %d are supported", len(to), maxSources)
	}
	for _, a := range to {
		switch cause := ZoneError(a); {
		case !IsHost(a):
			return fmt.Errorf("connect to %v: not an address of a host", a)
		case cause != "":
			return fmt.Errorf("connect to %v: %s", a, cause)
		case a.Unmap().Is4() != to[0].Unmap().Is4():
			return fmt.Errorf("connect to %v and %v: they are of different families", to[0], a)
		}
	}
	return nil
}

// IsHost reports whether an address can be that of a host.
func IsHost(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && a.Unmap() != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// CheckSources finds addresses that cannot be sent from; to may be the zero Addr
// where it is not known yet.
func CheckSources(sources []netip.Addr, to netip.Addr) error {
	if len(sources) > maxSources {
		return fmt.Errorf("%d source addresses: at most %d are supported", len(sources), maxSources)
	}
	for _, s := range sources {
		if !IsHost(s) {
			return fmt.Errorf("source address %v: not an address of a host", s)
		}
		if cause := ZoneError(s); cause != "" {
			return fmt.Errorf("source address %v: %s", s, cause)
		}
		if to.IsValid() && s.Unmap().Is4() != to.Unmap().Is4() {
			return fmt.Errorf("source address %v is not of the same family as the target %v", s, to)
		}
	}
	return nil
}

// ParseSources reads "ADDR", "FIRST-LAST", both ends included, or "PREFIX/LENGTH",
// all addresses that a host in it can have.
func ParseSources(text string) ([]netip.Addr, error) {
	first, last, err := sourceRange(text)
	if err != nil {
		return nil, fmt.Errorf("read addresses %q: %w", text, err)
	}
	if first.BitLen() != last.BitLen() || last.Less(first) {
		return nil, fmt.Errorf("read addresses %q: the last address is before the first", text)
	}
	var all []netip.Addr
	for a := first; ; a = a.Next() {
		if len(all) == maxSources {
			return nil, fmt.Errorf("read addresses %q: more than %d addresses", text, maxSources)
		}
		all = append(all, a)
		if a == last {
			return all, nil
		}
	}
}

func sourceRange(text string) (first, last netip.Addr, err error) {
	if strings.Contains(text, "/") {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return first, last, err
		}
		hosts := nat.Hosts(p)
		return hosts.First, hosts.Last, nil
	}
	from, to, isRange := strings.Cut(text, "-")
	if first, err = netip.ParseAddr(strings.TrimSpace(from)); err != nil || !isRange {
		return first, first, err
	}
	last, err = netip.ParseAddr(strings.TrimSpace(to))
	return first, last, err
}

// RequestBytes is the request as it goes over the wire. It is HTTP/1.0, as ab's,
// so that the server closes; where the client is to close first, or the
// connection is to stay, it asks the server to keep the connection open.
func RequestBytes(t Target, c Config) []byte {
	var b strings.Builder
	b.WriteString("GET " + t.Path + " HTTP/1.0\r\nHost: " + t.Authority + "\r\n")
	b.WriteString("User-Agent: natkit\r\nAccept: */*\r\n")
	if c.KeepAlive || c.Close != CloseServer {
		b.WriteString("Connection: keep-alive\r\n")
	}
	b.WriteString("\r\n")
	return []byte(b.String())
}
