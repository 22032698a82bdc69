package report

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/snapshot"
)

func pressedPorts() *snapshot.Ports {
	return &snapshot.Ports{
		Sampled: 70000, Complete: true, Translated: 61000, Seconds: 1.04, Probing: snapshot.PortProbeRandom, Evicts: true, Total: 9,
		Pools: []snapshot.PortPool{
			{Address: "203.0.113.1", Protocol: "udp", Destination: "198.19.0.1:53", FirstPort: 1024, LastPort: 65535,
				RangeSource: "ip nat post: masq\x1b[2Juerade", Used: 60000, Share: 0.93, RateKnown: true, NewPerSecond: 120, EndedPerSecond: 3, SecondsLeft: 37,
				Users: []snapshot.Talker{{Who: "198.18.0.10", Entries: 59000}}, Known: true, FailsIfTaken: 0.697, FailsIfKept: 0.697, TakenShare: 0.5, Fails: 0.3485,
				FailsScattered: 1e-8, Alternatives: []snapshot.PortAlternative{
					{What: snapshot.PortsFullyRandom, FailsNow: 0.697, FailsLater: 1e-8},
					{What: snapshot.PortsAnotherAddress, FailsNow: 0.17, FailsLater: 0},
				}},
			{Address: "203.0.113.1", Protocol: "tcp", Destination: "[2001:db8::1]:443", Zone: 4, Class: "privileged", FirstPort: 1, LastPort: 511,
				Used: 500, TimeWait: 40, Share: 0.978, SecondsLeft: -1, FailsIfTaken: 0, FailsIfKept: 0.5, Known: true},
			{Address: "203.0.113.2", Protocol: "icmp", Destination: "198.19.0.9", LastPort: 65535, Used: 4, Share: 4.0 / 65536, RateKnown: true, SecondsLeft: -1},
		},
	}
}

func TestPorts(t *testing.T) {
	var got bytes.Buffer
	view := Ports{Ports: pressedPorts(), Source: "network namespace gate\x1b[0m", Notes: []string{"the rules\nare not known"},
		Shared: []snapshot.SharedAddress{{Address: "203.0.113.1", Protocol: "tcp", Listening: 1, Wildcard: 2, Connected: 1500}, {Address: "203.0.113.2", Protocol: "udp", Wildcard: 3}}}
	if err := view.Text(&got, Style{}); err != nil {
		t.Fatal(err)
	}
	const want = `network namespace gate␛[0m: 61,000 connections with a translated source, of 70,000, compared over 1.0 s

  used    of ports    share  TIME_WAIT  new/s  used up in  if taken   fails  address > destination, top user
60,000  1024-65535     93 %          –  120.0        37 s    69.7 %  34.8 %  203.0.113.1 > 198.19.0.1:53 udp, 198.18.0.10 98.3 %
   500       1-511   97.8 %         40      –           –       0 %     0 %  203.0.113.1 > [2001:db8::1]:443 tcp zone 4, privileged ports
     4     0-65535  <0.01 %          –      0       never         –       –  203.0.113.2 > 198.19.0.9 icmp
… and 6 more with less of their range in use (--top 0 shows all)

"if taken" is the chance that a new connection finds no port whose own is taken by another, "fails"
that of any new one. This kernel tries 128, 64, 32, 16 and 8 consecutive ports from random starts
and then drops the packet: the distribution of the used ports matters.
Of TCP the chance is that of a connection past the sequence numbers of all that have ended, whose
ports this kernel then takes (Linux 6.6); for one past none it is up to 50 %.

what would change for 203.0.113.1 > 198.19.0.1:53 udp (range from ip nat post: masq␛[2Juerade)
with                                               fails at once  once ports lie by chance
the rule as it is                                         34.8 %                         –
a random port for every connection (fully-random)         69.7 %                   <0.01 %
one more address, to share the connections                  17 %                       0 %

warning: tcp sockets of this machine use 203.0.113.1, too: 1,500 connected, 1 bound to it, 2 bound
to all addresses. Their ports come out of net.ipv4.ip_local_port_range, and NAT does not know that
they are taken unless the connection is tracked.
note: the rules are not known
`
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Error(diff)
	}
	_, explained, _ := strings.Cut(want, "\n\n\"if taken\"")
	explained, _, _ = strings.Cut(explained, "\nOf TCP")
	if doc, err := os.ReadFile("../../docs/conntrack.md"); err != nil || !strings.Contains(string(doc), explained) {
		t.Errorf("docs/conntrack.md does not show %q: %v", explained, err)
	}
}

func TestPortsUsedUp(t *testing.T) {
	for want, pool := range map[string]snapshot.PortPool{
		"–":     {Share: 1, SecondsLeft: -1},
		"now":   {Share: 1, SecondsLeft: -1, RateKnown: true},
		"never": {Share: 0.5, SecondsLeft: -1, RateKnown: true},
		"37 s":  {Share: 0.5, SecondsLeft: 37, RateKnown: true},
	} {
		if got := usedUpIn(&snapshot.Ports{Seconds: 1}, &pool); got != want {
			t.Errorf("%+v: used up in %q, want %q", pool, got, want)
		}
	}
	if got := usedUpIn(&snapshot.Ports{}, &snapshot.PortPool{SecondsLeft: -1, RateKnown: true}); got != "–" {
		t.Errorf("of one dump: used up in %q", got)
	}
}

// Of a kernel that looks at the whole range, of a sample, and of nothing.
func TestPortsOfOtherTables(t *testing.T) {
	ports := pressedPorts()
	ports.Probing, ports.Evicts, ports.Pools = snapshot.PortProbeAll, false, ports.Pools[2:]
	var got bytes.Buffer
	if err := (Ports{Source: "x", Ports: ports}).Text(&got, Style{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"tries the whole range", "        –      –  203.0.113.2 > 198.19.0.9 icmp"} {
		if !strings.Contains(got.String(), want) {
			t.Errorf("%q is not in\n%s", want, &got)
		}
	}
	got.Reset()
	if err := (Ports{Source: "this network namespace", Ports: &snapshot.Ports{Sampled: 5}}).Text(&got, Style{}); err != nil ||
		got.String() != "no connection of this network namespace has a translated source\n" {
		t.Errorf("%v %q", err, got.String())
	}
}
