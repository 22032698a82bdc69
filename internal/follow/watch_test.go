package follow

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/snapshot"
)

// The world of the tests: a client asks the gateway's address, which is translated to a
// server; a client inside asks outside, from the gateway's address.
const (
	client  = "198.51.100.7:40000"
	public  = "203.0.113.1:80"
	server  = "192.168.1.10:8080"
	inside  = "192.168.1.20:50000"
	gateway = "203.0.113.1:61000"
	remote  = "198.51.100.99:443"
)

// Interfaces.
const (
	wan = 2
	lan = 3
)

// script plays packets: "0.1 in wan SYN client>public 7" is at 0.1 s, with the sequence number 7.
func script(t *testing.T, text string) *Watch {
	t.Helper()
	w := NewWatch(netip.AddrPort{}, netip.AddrPort{})
	play(t, w, text)
	return w
}

// play has a watch see more packets.
func play(t *testing.T, w *Watch, text string) {
	t.Helper()
	names := strings.NewReplacer("client", client, "public", public, "server", server, "inside", inside, "gateway", gateway, "remote", remote)
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		var at float64
		var way, device, kind, ends string
		var number uint32
		if _, err := fmt.Sscan(line, &at, &way, &device, &kind, &ends, &number); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		from, to, _ := strings.Cut(names.Replace(ends), ">")
		f := packet(kind, netip.MustParseAddrPort(from), netip.MustParseAddrPort(to), number)
		w.See(Packet{At: at, Interface: map[string]int{"wan": wan, "lan": lan, "wan1": 4, "bond": 5}[device], Sent: way == "out", Frame: f})
	}
}

func packet(kind string, from, to netip.AddrPort, number uint32) *frame.Frame {
	f := &frame.Frame{Version: 4, Source: from.Addr(), Destination: to.Addr(), Protocol: unix.IPPROTO_TCP, Transport: unix.IPPROTO_TCP}
	flags := map[string]frame.TCPFlags{"SYN": frame.SYN, "SYNACK": frame.SYN | frame.ACK, "RST": frame.RST | frame.ACK, "ACK": frame.ACK,
		"DATA": frame.ACK | frame.PSH, "BIG": frame.ACK, "RESET": frame.RST, "FIN": frame.FIN | frame.ACK}
	switch kind {
	case "UDP":
		f.Protocol, f.Transport = unix.IPPROTO_UDP, unix.IPPROTO_UDP
		f.UDP = frame.UDP{SourcePort: from.Port(), DestinationPort: to.Port(), Length: 12}
		f.Payload = []byte{byte(number >> 24), byte(number >> 16), byte(number >> 8), byte(number)}
	case "PING", "PONG":
		f.Protocol, f.Transport = unix.IPPROTO_ICMP, unix.IPPROTO_ICMP
		f.ICMP = frame.ICMP{Type: 8, Rest: uint32(from.Port())<<16 | number}
		if kind == "PONG" {
			f.ICMP = frame.ICMP{Type: 0, Rest: uint32(to.Port())<<16 | number}
		}
	case "ERROR": // about a SYN from the error's destination
		f.Protocol, f.Transport = unix.IPPROTO_ICMP, unix.IPPROTO_ICMP
		f.ICMP = frame.ICMP{Type: 3, Code: 13}
		server := netip.MustParseAddrPort(server)
		f.Payload = frame.IP{Source: to.Addr(), Destination: server.Addr(), Protocol: unix.IPPROTO_TCP, TTL: 64}.Append(nil,
			frame.AppendTCP(nil, frame.Tuple{Src: to, Dst: server}, frame.TCP{SequenceNumber: number, Flags: frame.SYN}, nil))
	case "DATA", "BIG", "RESET", "FIN":
		f.TCP = frame.TCP{SourcePort: from.Port(), DestinationPort: to.Port(), Flags: flags[kind], SequenceNumber: number}
		if size := map[string]int{"DATA": 100, "BIG": 1360}[kind]; size > 0 {
			f.Missing, f.IPv4.TotalLength = size, uint16(40+size)
		}
	default:
		f.TCP = frame.TCP{SourcePort: from.Port(), DestinationPort: to.Port(), Flags: flags[kind], SequenceNumber: number}
		if kind != "SYN" {
			f.TCP.SequenceNumber, f.TCP.AcknowledgmentNumber = 99, number+1
		}
	}
	return f
}

func TestSteps(t *testing.T) {
	const translated = "0.0 in wan SYN client>public 7\n0.001 out lan SYN client>server 7\n"
	for name, c := range map[string]struct {
		packets string
		now     float64
		want    snapshot.Step
	}{
		"answered":                      {translated + "0.002 in lan SYNACK server>client 7\n0.003 out wan SYNACK public>client 7", 5, snapshot.StepAnswered},
		"answered, seen at a bridge":    {"0 in wan SYN client>public 7\n0 in lan SYN client>public 7\n0 out lan SYN client>server 7\n0 out wan SYN client>server 7\n0.1 in lan SYNACK server>client 7\n0.1 out wan SYNACK public>client 7", 5, snapshot.StepAnswered},
		"answered through br_netfilter": {"0 in lan SYN inside>remote 7\n0 out wan SYN gateway>remote 7\n0.1 in wan SYNACK remote>inside 7\n0.1 out lan SYNACK remote>inside 7", 5, snapshot.StepAnswered},
		"UDP through br_netfilter":      {"0 in lan UDP inside>remote 1\n0 out wan UDP gateway>remote 1\n0.1 in wan UDP remote>inside 2\n0.1 out lan UDP remote>inside 2", 5, snapshot.StepAnswered},
		"by a server here":              {"0 in wan SYN client>public 7\n0.1 out wan SYNACK public>client 7", 5, snapshot.StepAnswered},
		"of a client here":              {"0 out wan SYN gateway>remote 7\n0.1 in wan SYNACK remote>gateway 7", 5, snapshot.StepAnswered},
		"dropped":                       {"0 in wan SYN client>public 7\n1 in wan SYN client>public 7", 1.5, snapshot.StepLostHere},
		"just come":                     {"0 in wan SYN client>public 7", 0.1, snapshot.StepWaiting},
		"no server":                     {translated, 1.5, snapshot.StepNoAnswer},
		"just left":                     {translated, 0.5, snapshot.StepWaiting},
		"the server refuses":            {translated + "0.002 in lan RST server>client 7\n0.003 out wan RST public>client 7", 5, snapshot.StepRefused},
		"this host refuses":             {"0 in wan SYN client>public 7\n0.1 out wan RST public>client 7", 5, snapshot.StepRefusedHere},
		"a filter behind refuses":       {translated + "0.1 in lan ERROR server>client 7\n0.1 out wan ERROR public>client 7", 5, snapshot.StepUnreachable},
		"a filter here refuses":         {"0 in wan SYN client>public 7\n0.1 out wan ERROR public>client 7", 5, snapshot.StepUnreachableHere},
		"the answer is lost":            {translated + "0.002 in lan SYNACK server>client 7", 1.5, snapshot.StepAnswerLost},
		"the answer is not translated":  {translated + "0.002 in lan SYNACK server>client 7\n0.003 out wan SYNACK server>client 7", 5, snapshot.StepAnswerUntranslated},
		"another answers":               {translated + "0.002 in lan SYNACK 192.168.1.11:8080>client 7", 5, snapshot.StepOtherSource},
		"the client asks again":         {translated + "0.002 in lan SYNACK server>client 7\n0.003 out wan SYNACK public>client 7\n1 in wan SYN client>public 7\n3 in wan SYN client>public 7", 5, snapshot.StepClientSilent},
		"a repeated SYN":                {translated + "1 in wan SYN client>public 7\n1.1 out lan SYN client>server 7\n1.2 in lan SYNACK server>client 7\n1.3 out wan SYNACK public>client 7", 5, snapshot.StepAnswered},
		"UDP answered":                  {"0 in lan UDP inside>remote 1\n0 out wan UDP gateway>remote 1\n0.1 in wan UDP remote>gateway 2\n0.1 out lan UDP remote>inside 2", 5, snapshot.StepAnswered},
		"UDP without an answer":         {"0 in lan UDP inside>remote 1\n0 out wan UDP gateway>remote 1", 5, snapshot.StepNoAnswer},
		"UDP dropped":                   {"0 in lan UDP inside>remote 1", 5, snapshot.StepLostHere},
		"UDP whose answer is lost":      {"0 in lan UDP inside>remote 1\n0 out wan UDP gateway>remote 1\n0.1 in wan UDP remote>gateway 2", 5, snapshot.StepAnswerLost},
		"UDP of this host":              {"0 out wan UDP gateway>remote 1\n0.1 in wan UDP remote>gateway 2", 5, snapshot.StepAnswered},
		"UDP to this host":              {"0 in wan UDP client>public 1\n0.1 out wan UDP public>client 2", 5, snapshot.StepAnswered},
		"a ping":                        {"0 in lan PING inside>remote 1\n0 out wan PING gateway>remote 1\n0.1 in wan PONG remote>gateway 1\n0.1 out lan PONG remote>inside 1", 5, snapshot.StepAnswered},
		"a ping without an answer":      {"0 in lan PING inside>remote 1\n0 out wan PING gateway>remote 1", 5, snapshot.StepNoAnswer},
	} {
		got := script(t, c.packets).Result(c.now, func(int) string { return "" })
		if len(got.Services) != 1 || len(got.Services[0].Steps) != 1 || got.Services[0].Steps[c.want] != 1 {
			t.Errorf("%s: %+v, want one %s", name, got.Services, c.want)
		}
	}
}

// TestSameContent: clients that ask the same are told apart.
func TestSameContent(t *testing.T) {
	w := script(t, `0 in wan UDP 198.51.100.1:5>203.0.113.1:53 1
0 in wan UDP 198.51.100.2:5>203.0.113.1:53 1
0 in wan UDP 198.51.100.3:5>203.0.113.1:53 1
0 out lan UDP 198.51.100.3:5>192.168.1.10:53 1
0 out lan UDP 198.51.100.1:5>192.168.1.10:53 1
0.1 in lan UDP 192.168.1.10:53>198.51.100.1:5 2
0.1 in lan UDP 192.168.1.10:53>198.51.100.3:5 2
0.1 out wan UDP 203.0.113.1:53>198.51.100.1:5 2
0.1 out wan UDP 203.0.113.1:53>198.51.100.3:5 2`)
	all := w.Result(5, func(int) string { return "" }).Services
	s := all[0]
	if len(all) != 2 || all[1].Steps[snapshot.StepAnswered] != 2 || s.Steps[snapshot.StepLostHere] != 1 {
		t.Errorf("%+v, want one lost and two answered", all)
	}
	if want := (&snapshot.FailedConnection{Step: snapshot.StepLostHere, Client: netip.MustParseAddrPort("198.51.100.2:5")}); cmp.Diff(want, s.Failed, byValue) != "" {
		t.Errorf("the one that was lost: %+v", s.Failed)
	}
}

var byValue = cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})

// TestService: a service has the names, times and the worst of its connections.
func TestService(t *testing.T) {
	w := script(t, `0.0 in wan SYN client>public 7
0.001 out lan SYN client>server 7
0.011 in lan SYNACK server>client 7
0.013 out wan SYNACK public>client 7
1 in wan SYN client>public 8
1 out lan SYN client>server 8
1.1 in lan RST server>client 8
2 in wan SYN client>public 9
2 out lan SYN client>server 9
2.1 in lan RST server>client 9
3 in wan SYN client>public 10
4 in wan SYN client>public 10
5 in lan SYN inside>remote 11
5 out wan SYN gateway>remote 11`)
	got := w.Result(10, func(i int) string { return map[int]string{wan: "wan0", lan: "lan0"}[i] })
	end := netip.MustParseAddrPort
	want := &snapshot.Followed{Sample: 1, Connections: 5, Answered: 1, Services: []snapshot.FollowedService{
		{Protocol: "tcp", Service: end(public), Target: end(server), In: "wan0", Out: "lan0", Clients: 1, Mixed: 2,
			Steps:       map[snapshot.Step]uint64{snapshot.StepAnswered: 1, snapshot.StepRefused: 2},
			HereSeconds: 0.001, BeyondSeconds: 0.01, BackSeconds: 0.002,
			Failed: &snapshot.FailedConnection{Step: snapshot.StepRefused, Client: end(client), LeftFrom: end(client), LeftTo: end(server), By: end(server).Addr()}},
		{Protocol: "tcp", Service: end(remote), Given: end(gateway).Addr(), In: "lan0", Out: "wan0", Clients: 1, Steps: map[snapshot.Step]uint64{snapshot.StepNoAnswer: 1},
			Failed: &snapshot.FailedConnection{Step: snapshot.StepNoAnswer, Client: end(inside), LeftFrom: end(gateway), LeftTo: end(remote)}},
		{Protocol: "tcp", Service: end(public), In: "wan0", Repeated: 1, Clients: 1, Mixed: 1, Steps: map[snapshot.Step]uint64{snapshot.StepLostHere: 1},
			Failed: &snapshot.FailedConnection{Step: snapshot.StepLostHere, Client: end(client)}},
	}}
	if d := cmp.Diff(want, got, byValue, cmpopts.EquateApprox(0, 1e-9)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestRows: what became of connections tells rows of a service apart.
func TestRows(t *testing.T) {
	const answered = "0 in wan SYN client>public 1\n0 out lan SYN client>server 1\n0.1 in lan SYNACK server>client 1\n0.1 out wan SYNACK public>client 1\n"
	for name, c := range map[string]struct {
		packets, want string
	}{
		"two targets, and one that did not leave": {answered + "1 in wan SYN client>public 2\n1 out lan SYN client>192.168.1.11:8080 2\n1 in wan SYN client>public 3",
			"wan0 > map[lost-here:1]; wan0 >lan0 192.168.1.11:8080 map[no-answer:1]; wan0 >lan0 192.168.1.10:8080 map[answered:1]"},
		"two uplinks": {"0 in lan SYN inside>remote 1\n0 out wan SYN gateway>remote 1\n0 in lan SYN inside>remote 2\n0 out wan1 SYN gateway>remote 2",
			"lan0 >wan0 from 203.0.113.1 map[no-answer:1]; lan0 >wan1 from 203.0.113.1 map[no-answer:1]"},
		"all of one interface fail": {answered + "0 in wan1 SYN client>public 5\n0 in wan1 SYN client>public 6\n0 in wan1 SYN client>public 7",
			"only wan1 > map[lost-here:3]; wan0 >lan0 192.168.1.10:8080 map[answered:1]"},
		"two of one interface fail": {answered + "0 in wan1 SYN client>public 5\n0 in wan1 SYN client>public 6",
			"wan1 > map[lost-here:2]; wan0 >lan0 192.168.1.10:8080 map[answered:1]"},
		"the answer leaves elsewhere": {"0 in wan1 SYN client>public 1\n0 out lan SYN client>server 1\n0.1 in lan SYNACK server>client 1\n0.1 out wan SYNACK public>client 1\n1 in wan1 SYN client>public 1\n3 in wan1 SYN client>public 1",
			"wan1 >lan0 192.168.1.10:8080 map[client-asks-again:1] answer out by wan0"},
		"in by a bond and its port, the answer by another port": {"0 in wan1 SYN client>public 1\n0 in bond SYN client>public 1\n0 out lan SYN client>server 1\n0.1 in lan SYNACK server>client 1\n0.1 out bond SYNACK public>client 1\n0.1 out wan SYNACK public>client 1\n1 in wan1 SYN client>public 1\n3 in wan1 SYN client>public 1",
			"bond0 >lan0 192.168.1.10:8080 map[client-asks-again:1]"},
		"DNS answered by another address": {"0 in wan UDP client>203.0.113.1:53 1\n0 out lan UDP client>192.168.1.10:53 1\n0.1 in lan UDP 192.168.1.11:53>client 2\n0.1 out wan UDP 203.0.113.1:1024>client 2",
			"wan0 >lan0 192.168.1.10:53 map[answered-by-another:1]"},
		"two name servers are asked by one socket": {"0 in lan UDP inside>198.51.100.1:53 1\n0 out wan UDP gateway>198.51.100.1:53 1\n0.1 in lan UDP inside>198.51.100.2:53 2\n0.1 out wan UDP gateway>198.51.100.2:53 2\n0.2 in wan UDP 198.51.100.2:53>gateway 3\n0.2 out lan UDP 198.51.100.2:53>inside 3",
			"lan0 >wan0 from 203.0.113.1 map[no-answer:1]; lan0 >wan0 from 203.0.113.1 map[answered:1]"},
	} {
		var got []string
		for _, s := range script(t, c.packets).Result(5, func(i int) string { return map[int]string{wan: "wan0", lan: "lan0", 4: "wan1", 5: "bond0"}[i] }).Services {
			row := fmt.Sprintf("%s >%s", s.In, s.Out)
			if s.InOnly {
				row = "only " + row
			}
			if s.Target.IsValid() {
				row += " " + s.Target.String()
			}
			if s.Given.IsValid() {
				row += " from " + s.Given.String()
			}
			row += fmt.Sprint(" ", s.Steps)
			if s.Failed != nil && s.Failed.AnswerOut != "" {
				row += " answer out by " + s.Failed.AnswerOut
			}
			got = append(got, row)
		}
		if d := cmp.Diff(c.want, strings.Join(got, "; ")); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

// TestTimeHere: the time until the client asks again is no time in the host.
func TestTimeHere(t *testing.T) {
	w := script(t, "0 in wan SYN client>public 7\n1 in wan SYN client>public 7\n1.001 out lan SYN client>server 7\n1.1 in lan SYNACK server>client 7\n1.1 out wan SYNACK public>client 7")
	if s := w.Result(5, func(int) string { return "" }).Services[0]; s.HereSeconds < 0.0005 || s.HereSeconds > 0.0015 {
		t.Errorf("%f s here, want 0.001", s.HereSeconds)
	}
}

// TestBounds: what finds no room is counted.
func TestBounds(t *testing.T) {
	w := NewWatch(netip.AddrPort{}, netip.AddrPort{})
	to := netip.MustParseAddrPort(public)
	for i := range mostAttempts + 5 {
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}), 1024)
		w.See(Packet{Interface: wan, Frame: packet("SYN", from, to, uint32(i))})
	}
	if r := w.Result(1, func(int) string { return "" }); r.Lost != 5 || r.Services[0].Steps[snapshot.StepLostHere] != mostAttempts {
		t.Errorf("%d lost, %+v", r.Lost, r.Services)
	}
}

// FuzzWatch: whatever packets come in whatever order, a result has each connection once.
func FuzzWatch(f *testing.F) {
	f.Add([]byte("\x00\x01\x02\x03\x04\x05\x06\x07"))
	ends := []netip.AddrPort{netip.MustParseAddrPort(client), netip.MustParseAddrPort(public), netip.MustParseAddrPort(server),
		netip.MustParseAddrPort(inside), netip.MustParseAddrPort(gateway), netip.MustParseAddrPort(remote)}
	kinds := []string{"SYN", "SYNACK", "RST", "ACK", "UDP"}
	f.Fuzz(func(t *testing.T, script []byte) {
		w := NewWatch(netip.AddrPort{}, netip.AddrPort{})
		asked := uint64(0)
		for i := 0; i+3 < len(script) && i < 4000; i += 4 {
			kind := kinds[int(script[i])%len(kinds)]
			from, to := ends[int(script[i+1])%len(ends)], ends[int(script[i+1]>>4)%len(ends)]
			if kind == "SYN" || kind == "UDP" {
				asked++
			}
			w.See(Packet{At: float64(i) / 100, Interface: wan + int(script[i+2]>>7), Sent: script[i+2]&1 != 0, Frame: packet(kind, from, to, uint32(script[i+3]))})
		}
		var all uint64
		for _, s := range w.Result(100, func(int) string { return "eth" }).Services {
			for _, n := range s.Steps {
				all += n
			}
		}
		if all > asked {
			t.Errorf("%d connections of %d first packets", all, asked)
		}
	})
}

// TestPause: before a pause, what has come so far stays, and what waits is forgotten.
func TestPause(t *testing.T) {
	w := script(t, `
		0.0 in wan SYN client>public 1
		0.0 out lan SYN client>server 1
		0.1 in lan SYNACK server>client 1
		0.1 out wan SYNACK public>client 1
		0.2 in wan SYN client>public 5
		0.9 in wan SYN client>public 9`)
	w.Pause(1)
	w.See(Packet{At: 6, Interface: wan, Frame: packet("SYN", netip.MustParseAddrPort(client), netip.MustParseAddrPort(public), 5)})
	r := w.Result(7, func(int) string { return "" })
	if len(r.Services) != 2 || r.Services[0].Steps[snapshot.StepLostHere] != 1 || r.Services[1].Steps[snapshot.StepAnswered] != 1 {
		t.Errorf("%+v, want one answered and one lost", r.Services)
	}
}

// TestDetour: answers of UDP that leave by another interface than the questions came in by are counted, and
// flows that go on.
func TestDetour(t *testing.T) {
	ask := func(at float64, out string, again int) string {
		text := fmt.Sprintf("%v in wan UDP client>public 1\n%v out lan UDP client>server 1\n%v in lan UDP server>client 2\n%v out %s UDP public>client 2\n", at, at, at, at, out)
		for range again {
			text += fmt.Sprintf("%v in wan UDP client>public 3\n%v out lan UDP client>server 3\n", at+0.1, at+0.1)
		}
		return text
	}
	for name, c := range map[string]struct {
		packets          string
		detoured, wentOn uint64
	}{
		"the same way":          {ask(0, "wan", 9), 0, 0},
		"by another one":        {ask(0, "wan1", 2), 1, 0},
		"by another one, alive": {ask(0, "wan1", 9), 1, 1},
	} {
		s := script(t, c.packets).Result(5, func(i int) string { return fmt.Sprint("if", i) }).Services
		if len(s) != 1 || s[0].Detoured != c.detoured || s[0].WentOn != c.wentOn || (s[0].DetourOut == "if4") != (c.detoured > 0) {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// TestAstray: an answer whose frame has another hardware address is none, and is noted where none else comes.
func TestAstray(t *testing.T) {
	for name, c := range map[string]struct {
		asked, kind string
		also        string
		want        string
	}{
		"TCP":                  {"0 in lan SYN inside>remote 7\n0 out wan SYN gateway>remote 7", "SYNACK", "", "wan0"},
		"UDP":                  {"0 in lan UDP inside>remote 1\n0 out wan UDP gateway>remote 1", "UDP", "", "wan0"},
		"a copy of the answer": {"0 in lan UDP inside>remote 1\n0 out wan UDP gateway>remote 1", "UDP", "0.1 in wan UDP remote>gateway 2\n0.1 out lan UDP remote>inside 2", ""},
	} {
		w := script(t, c.asked)
		w.See(Packet{At: 0.05, Interface: wan, Passing: true, Astray: true, Frame: packet(c.kind, netip.MustParseAddrPort(remote), netip.MustParseAddrPort(gateway), 7)})
		if c.also != "" {
			play(t, w, c.also)
		}
		r := w.Result(5, func(i int) string { return map[int]string{wan: "wan0", lan: "lan0"}[i] })
		got := ""
		if f := r.Services[0].Failed; f != nil {
			got = f.AstrayIn
		}
		if len(r.Services) != 1 || got != c.want {
			t.Errorf("%s: %q, want %q: %+v", name, got, c.want, r.Services)
		}
	}
}

// TestFewErrors: of connections that get no answer those that got an ICMP error say why, as hosts send few of them.
func TestFewErrors(t *testing.T) {
	for name, c := range map[string]struct {
		steps map[snapshot.Step]uint64
		want  snapshot.Step
	}{
		"beyond":         {map[snapshot.Step]uint64{snapshot.StepNoAnswer: 13, snapshot.StepUnreachable: 5}, snapshot.StepUnreachable},
		"here":           {map[snapshot.Step]uint64{snapshot.StepLostHere: 13, snapshot.StepUnreachableHere: 5}, snapshot.StepUnreachableHere},
		"others answer":  {map[snapshot.Step]uint64{snapshot.StepNoAnswer: 13, snapshot.StepUnreachable: 1, snapshot.StepAnswered: 9}, snapshot.StepNoAnswer},
		"no error comes": {map[snapshot.Step]uint64{snapshot.StepNoAnswer: 13}, snapshot.StepNoAnswer},
	} {
		s := newService(serviceKey{protocol: unix.IPPROTO_TCP}, func(int) string { return "" })
		s.Steps = c.steps
		for step := range c.steps {
			s.example[step] = &attempt{}
		}
		if got := s.result(func(int) string { return "" }); got.Failed == nil || got.Failed.Step != c.want {
			t.Errorf("%s: %+v", name, got.Failed)
		}
	}
}
