package frame

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/unix"
)

func TestFilterParseErrors(t *testing.T) {
	for _, tt := range []struct{ words, want string }{
		{"host example.org", `word 2 "example.org": want an address`},
		{"host fe80::1%eth0", `word 2 "fe80::1%eth0": want an address`},
		{"port http", `word 2 "http": want a number`},
		{"port 80-90", `portrange is for ranges`},
		{"portrange http-https", `word 2 "http-https": want two numbers`},
		{"net example.org", `word 2 "example.org": want a prefix`},
		{"net 10.0.0.1/8", `word 2 "10.0.0.1/8": want a prefix`},
		{"net 10.0.0.0/33", `word 2 "10.0.0.0/33": want a prefix`},
		{"net 10.0.0.0/08", `word 2 "10.0.0.0/08": want a prefix`},
		{"net 10/8", `word 2 "10/8": want a prefix`},
		{"10.0.0.1", `word 1 "10.0.0.1": want one of host net`},
		{"tcp and 80", `word 3 "80": want host, net, port or portrange before it`},
		{"(port 80) or 443", `word 6 "443": want host, net`},
		{"src 10.0.0.0/8", `net is for prefixes`},
		{"tcp && udp", `word 2 "&&": want "and" or "or"`},
		{"!tcp", `word 1 "!tcp": want one of`},
		{"TCP port 80", `word 1 "TCP": want one of`},
		{"ether host 00:00:5e:00:53:01", `word 1 "ether": want one of host net`},
		{"tcp[13]", `word 1 "tcp[13]": want one of`},
		{"ip6 port 80", `word 1 "ip6": does not go with port; write "ip6 and port …"`},
		{"tcp src 10.0.0.1", `word 1 "tcp": does not go with host; write "tcp and host …"`},
		{"ip host 2001:db8::1", `word 3 "2001:db8::1": is no address of the protocol ip`},
		{"tcp udp", `word 2 "udp": want "and" or "or"`},
		{"tcp)", `word 2 ")": want "and" or "or"`},
		{"(tcp", `ends after word 2: want ")"`},
		{"(tcp udp)", `word 3 "udp": want ")"`},
		{"()", `word 2 ")": want one of`},
		{"tcp and", `ends after word 2: want one of`},
		{"port", `ends after word 1: want a number`},
		{"src or dst", `ends after word 3: want an address`},
		{"host port 80", `word 2 "port": want an address`},
		{"port (80 or port 443)", `word 5 "port": want a number`},
		{"port ((80))", `word 3 "(": values are in parentheses already`},
		{"port 1 or \x1b[31m", `word 4 "\x1b[31m": want a number`},
		{"host " + strings.Repeat("x", 1000), `word 2 "` + strings.Repeat("x", 64) + `": want an address`},
		{strings.Repeat("(", 100) + "tcp" + strings.Repeat(")", 100), `word 33 "(": nested more than 32 deep`},
		{"port " + strings.Repeat("not ", 100) + "1", `word 34 "not": nested more than`},
		{"tcp" + strings.Repeat(" and tcp", 200), `401 words and parentheses: at most 256`},
	} {
		e, err := ParseFilter([]string{tt.words})
		if e != nil || err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%.60q: got %v, %v; want an error with\n%s", tt.words, e, err, tt.want)
		} else if strings.ContainsAny(err.Error(), "\n\x1b") || !strings.HasPrefix(err.Error(), "filter: ") {
			t.Errorf("%.60q: %q is not for a terminal", tt.words, err)
		}
	}
}

// TestFilterParseIsStricter has what libpcap takes in ways that surprise.
func TestFilterParseIsStricter(t *testing.T) {
	for words, why := range map[string]string{
		"host 10":                    "an address as one number, 0.0.0.10 or 10.0.0.0/8",
		"host 10.1":                  "a net",
		"src 10.1":                   "a net",
		"net 0":                      "the address 0.0.0.0",
		"net 256":                    "the net 1.0.0.0/16",
		"host 010.0.0.1":             "10.0.0.1 or 8.0.0.1",
		"port 010":                   "the port 8",
		"port 080":                   "an error or not, by version",
		"portrange 010-020":          "the ports 10 to 20",
		"port 0x50":                  "the port 80",
		"portrange 10-20-30":         "the ports 10 to 20",
		"net 10.1 mask 255.255.0.0":  "a net; mask is not one of the words",
		"host 2001:db8::1/128":       "an address",
		"net 10.0.0.0 / 8":           "a net",
		"port ((80))":                "the port 80, and host ((10.0.0.1)) is an error",
		"sctp port 1":                "ports of SCTP; sctp is not one of the words",
		"host 10.0.0.1 mask 0.0.0.0": "",
	} {
		if e, err := ParseFilter([]string{words}); err == nil {
			t.Errorf("%q is accepted as %q; to libpcap it is %s", words, e, why)
		}
	}
}

// TestFilterParseArguments: however a shell takes words apart, they are the same filter.
func TestFilterParseArguments(t *testing.T) {
	want := "tcp and (src port 80 or src port 443)"
	for _, words := range [][]string{
		{"tcp and (src port 80 or 443)"},
		{"tcp", "and", "(", "src", "port", "80", "or", "443", ")"},
		{"tcp", "and", "(src", "port", "80", "or", "443)"},
		{"tcp and(src port", " 80\tor\n443 )", ""},
	} {
		if e, err := ParseFilter(words); err != nil || e.String() != want {
			t.Errorf("%q: %v, %v", words, e, err)
		}
	}
	for _, none := range [][]string{nil, {}, {""}, {" ", "\t"}} {
		if e, err := ParseFilter(none); e != nil || err != nil || e.String() != "" || !e.Match(&Frame{}) {
			t.Errorf("%q: %v, %v", none, e, err)
		}
	}
}

// TestFilterUsage: what the help shows is so.
func TestFilterUsage(t *testing.T) {
	for _, word := range keywords {
		if !strings.Contains(FilterUsage, word) {
			t.Errorf("the word %s is not in the usage", word)
		}
	}
	_, examples, _ := strings.Cut(FilterUsage, "for the shell.\n")
	lines := strings.Split(examples, "\n")
	if len(lines) != 4 {
		t.Fatalf("%d examples", len(lines))
	}
	for _, line := range lines {
		if _, err := ParseFilter([]string{strings.Trim(line, " '")}); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// FuzzParseFilter: nothing panics, and what is accepted is accepted again as its text, and
// the same.
func FuzzParseFilter(f *testing.F) {
	for _, words := range strings.Split(grammar, "\n") {
		f.Add(words)
	}
	f.Fuzz(func(t *testing.T, words string) {
		defer testutil.Bounded(t, len(words))()
		e, err := ParseFilter([]string{words})
		if err != nil {
			if e != nil || strings.ContainsAny(err.Error(), "\n\x1b") {
				t.Errorf("%q: %v, %q", words, e, err)
			}
			return
		}
		again, err := ParseFilter([]string{e.String()})
		if err != nil && strings.Contains(err.Error(), "at most") {
			return // spelt out it has more words
		}
		if diff := cmp.Diff(e, again, cmpopts.EquateComparable(Term{})); err != nil || diff != "" {
			t.Errorf("%q becomes %q: %v\n%s", words, e, err, diff)
		}
		e.Match(&Frame{})
	})
}

// TestWords: each of them is known, alone or not.
func TestFilterWords(t *testing.T) {
	for _, word := range FilterWords {
		if !(token{1, word}).keyword() || word == "(" || word == ")" {
			t.Errorf("%q is no word of a filter", word)
		}
	}
}

// TestFilterMatch has a few packets; package bpf compares many, with tcpdump.
func TestFilterMatch(t *testing.T) {
	parse := func(source, destination string, protocol uint8) *Frame {
		t := Tuple{netip.MustParseAddrPort(source), netip.MustParseAddrPort(destination)}
		segment, etherType := AppendUDP(nil, t, nil, false), uint16(EtherTypeIPv6)
		if protocol == unix.IPPROTO_TCP {
			segment, etherType = AppendTCP(nil, t, TCP{Flags: SYN}, nil), EtherTypeIPv4
		}
		ip := IP{Source: t.Src.Addr(), Destination: t.Dst.Addr(), Protocol: protocol}
		f, _ := Parse(ip.Append(Link{}.Append(nil, 0, etherType), segment))
		return &f
	}
	syn := parse("198.18.0.1:1024", "198.19.0.1:80", unix.IPPROTO_TCP)
	datagram := parse("[2001:db8::1]:5353", "[2001:db8:1::1]:53", unix.IPPROTO_UDP)
	for words, want := range map[string][2]bool{
		"":                                  {true, true},
		"tcp":                               {true, false},
		"udp":                               {false, true},
		"ip6":                               {false, true},
		"not ip6":                           {true, false},
		"icmp or net 0.0.0.0/0":             {true, false},
		"port 80 or 53":                     {true, true},
		"src port 80 or 53":                 {false, false},
		"dst portrange 50-79":               {false, true},
		"tcp port 1024 and not host ::":     {true, false},
		"src and dst net 198.18.0.0/15":     {true, false},
		"src and dst net 198.18":            {false, false},
		"net 2001:db8::/32":                 {false, true},
		"dst 2001:db8::1 or 198.19.0.1":     {true, false},
		"ip host 198.18.0.1 and (tcp)":      {true, false},
		"not (port 80 or port 53)":          {false, false},
		"tcp or udp and port 53":            {false, true},
		"tcp or (udp and port 53)":          {true, true},
		"udp src portrange 6000-5000":       {false, true},
		"not tcp and not dst port 5353":     {false, true},
		"host 198.18.0.1 and dst port 1024": {false, false},
	} {
		e, err := ParseFilter([]string{words})
		if err != nil {
			t.Fatal(err)
		}
		if got := [2]bool{e.Match(syn), e.Match(datagram)}; got != want {
			t.Errorf("%q matches SYN, datagram: %v, want %v", words, got, want)
		}
	}
}
