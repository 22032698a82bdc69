package frame

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/testutil"
)

// compile has tcpdump compile a filter, without its optimizer, which refuses filters
// that match nothing.
func compile(t *testing.T, tcpdump, words string) (program string, accepted bool) {
	t.Helper()
	var out, failure bytes.Buffer
	cmd := exec.Command(tcpdump, "-n", "-O", "-y", "EN10MB", "-ddd", words)
	cmd.Stdout, cmd.Stderr = &out, &failure
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), err == nil
}

// agree compares Parse with tcpdump: both accept words, or none; and the canonical
// text compiles to the same program, so that the words mean to us what they mean to
// libpcap.
func agree(t *testing.T, tcpdump, words string) (accepted bool) {
	t.Helper()
	e, err := ParseFilter([]string{words})
	program, accepted := compile(t, tcpdump, words)
	if accepted && err != nil && (strings.Contains(err.Error(), "net is for prefixes") || strings.Contains(err.Error(), "are in parentheses already")) {
		return false // libpcap takes host 6 for an address, and port ((7)): see TestFilterParseIsStricter
	}
	if accepted != (err == nil) {
		t.Errorf("%q: tcpdump accepts it: %v; Parse: %v", words, accepted, err)
		return accepted
	}
	if err != nil {
		return false
	}
	if canonical, ok := compile(t, tcpdump, e.String()); !ok || canonical != program {
		t.Errorf("%q is taken for %q, which is another program", words, e)
	}
	return true
}

// TestFilterParseMeansWhatLibpcapMeans asks about inheritance of qualifiers, parentheses and
// precedence.
func TestFilterParseMeansWhatLibpcapMeans(t *testing.T) {
	tcpdump := testutil.NeedProgram(t, "tcpdump")
	for _, words := range strings.Split(strings.TrimSpace(grammar), "\n") {
		agree(t, tcpdump, words)
	}
}

const grammar = `
host 10.0.0.1
10.0.0.1
2001:db8::1
80
tcp
not tcp
not not tcp
tcp and 80
tcp or
or tcp
not
()
(tcp)
((tcp))
(tcp
tcp)
tcp udp
ip tcp
ip6 and tcp
tcp and udp
port 80 or 443
port 80 and 443 or tcp
tcp or udp and port 53
tcp and port 53 or udp
tcp or (udp and port 53)
src 10.0.0.1
src host 10.0.0.1 or 10.0.0.2
src or dst host 10.0.0.1
src and dst host 10.0.0.1
dst or src 10.0.0.1
dst and src port 80
src or src port 80
src dst port 80
src and
src tcp port 80
tcp src port 80
tcp src 10.0.0.1
tcp src or dst port 80
ip src 10.0.0.1
ip 10.0.0.1
ip6 port 80
ip port 80
icmp port 80
icmp host 10.0.0.1
tcp host 10.0.0.1
ip host 2001:db8::1
ip6 host 10.0.0.1
ip6 host 2001:db8::1
ip host 10.0.0.1 or 10.0.0.2
ip host 10.0.0.1 or 2001:db8::1
host 10.0.0.1 or 2001:db8::1
tcp port 80 or 10.0.0.1
port 80 or tcp or 443
port 80 or tcp port 90 or 91
port 80 or (443)
port 80 or (443 or 90)
port (80)
port (80 or 443)
port not 80
port (not 80 or 443)
port (80 or not (443 or 90))
port (80 or port 443)
port 80 or not 443
port 80 or not not 443
(port 80) or 443
tcp and (port 80) or 443
port 80 and (tcp) or 443
port 80 and (tcp or 443)
port 80 and ((tcp) or 443)
port 80 and not (tcp) or 443
port 80 and not tcp or 443
not port 80 or 81
host (10.0.0.1 or 10.0.0.2)
host ((10.0.0.1))
host ((10.0.0.1) or 10.0.0.2)
host 10.0.0.1 or (10.0.0.2 and port 80)
host 10.0.0.1 or (port 80 and 10.0.0.2)
host 10.0.0.1 or (port 80 or 90) or 10.0.0.2
host 10.0.0.1 or host 10.0.0.2 port 80
net 10
net 10.1
net 10.1.2
net 10.1.2.3
net 10.1/16
net 10.1.2/32
net 10.1/8
net 0.0
net 0.0.0.0/0
net 255
net 1.256
net 10.0.0.0/33
net 10.0.0.1/8
net 10.0.0.0/0
net 10 or 11
net 10 or 10.0.0.1
net 2001:db8::/32
net 2001:db8::
net 2001:db8::/129
net 2001:db8::1/32
net ::/0
ip net 0.0.0.0/0
ip6 net ::/0
ip6 net ::ffff:0:0/96
src net 10 or 192.168.0.0/16
host 10.0.0.0/8
src 10.0.0.0/8
host ::ffff:10.0.0.1
host ::
host ::1.2.3.4
host 1:2:3:4:5:6:7:8
host 1::2::3
host fe80::1%lo
host 2001:DB8::A
host 10.0.0.256
host 255.255.255.255
port 0
port 65535
port 65536
port -1
port 80-90
portrange 80
portrange 80-90
portrange 90-80
portrange 80-
portrange -80
portrange 10-70000
portrange 10-20 or 30
portrange 0-65535
port 80 or 10-20
udp dst portrange 1-2
TCP
`

// TestFilterParseAgreesWithLibpcap makes words in random order, so that what is accepted
// and what not is compared as well.
func TestFilterParseAgreesWithLibpcap(t *testing.T) {
	tcpdump := testutil.NeedProgram(t, "tcpdump")
	random := rand.New(rand.NewPCG(1, 2))
	accepted := 0
	const tries = 600
	for range tries {
		words := someWords(random)
		if agree(t, tcpdump, words) {
			accepted++
		}
	}
	if accepted < tries/4 || accepted > tries*9/10 {
		t.Errorf("%d of %d were accepted: the words are not well chosen", accepted, tries)
	}
}

// someWords are pieces of filters in an order that often makes one.
func someWords(random *rand.Rand) string {
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	var words []string
	open := 0
	for more := true; more; more = random.IntN(3) > 0 {
		if len(words) > 0 {
			words = append(words, pick("and", "or"))
		}
		for random.IntN(4) == 0 {
			p := pick("not", "(")
			open += strings.Count(p, "(")
			words = append(words, p)
		}
		words = append(words, pick("tcp", "ip6", "icmp", "tcp port 1", "udp src portrange 2-3", "port 4", "src host 10.0.0.1", "host 10.0.0.2",
			"src or dst port 5", "dst and src net 10.3", "ip6 host 2001:db8::4", "6", "7", "10.0.0.5", "10.0.0.6", "8-9"))
		for open > 0 && random.IntN(2) == 0 {
			open--
			words = append(words, ")")
		}
	}
	words = append(words, strings.Repeat(") ", open))
	if random.IntN(6) == 0 { // break something
		words[random.IntN(len(words))] = pick("", "and", "not", "src", "port", ")", "tcp", "net")
	}
	return strings.Join(words, " ")
}
