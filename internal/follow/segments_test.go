package follow

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/snapshot"
)

// opened is a connection whose handshake went well.
const opened = "0.0 in wan SYN client>public 7\n0.001 out lan SYN client>server 7\n0.002 in lan SYNACK server>client 7\n0.003 out wan SYNACK public>client 7\n"

// gone is one whose answer does not pass.
const gone = "0.0 in wan SYN client>public 7\n0.001 out lan SYN client>server 7\n"

// asked is opened, with a question of the client that came to the server.
const asked = opened + "0.01 in wan DATA client>public 8\n0.011 out lan DATA client>server 8\n"

func TestLaterSteps(t *testing.T) {
	const reset = "0.5 in wan DATA client>public 8\n0.51 out wan RESET public>client 100\n"
	for name, c := range map[string]struct {
		packets string
		want    snapshot.Step
	}{
		"data passes":                                {asked + "0.1 in lan DATA server>client 100\n0.11 out wan DATA public>client 100", snapshot.StepAnswered},
		"data is sent again once":                    {asked + "0.3 in wan DATA client>public 8\n0.31 out lan DATA client>server 8", snapshot.StepAnswered},
		"data is lost here":                          {opened + "0.01 in wan DATA client>public 8\n0.3 in wan DATA client>public 8", snapshot.StepDataLost},
		"data is late":                               {opened + "0.01 in wan DATA client>public 8\n0.3 in wan DATA client>public 8\n0.31 out lan DATA client>server 8", snapshot.StepAnswered},
		"the rest goes on":                           {opened + "0.01 in wan DATA client>public 8\n0.3 in wan DATA client>public 8\n0.5 in wan DATA client>public 2000", snapshot.StepAnswered},
		"the server's data is lost here":             {asked + "0.1 in lan DATA server>client 100\n0.4 in lan DATA server>client 100", snapshot.StepDataLost},
		"data is not acknowledged":                   {asked + "0.3 out lan DATA client>server 8\n0.7 out lan DATA client>server 8", snapshot.StepDataUnanswered},
		"this host resets":                           {opened + reset, snapshot.StepResetHere},
		"a reset passes after an answer":             {asked + "0.1 in lan DATA server>client 100\n0.11 out wan DATA public>client 100\n0.2 in lan RESET server>client 500\n0.21 out wan RESET public>client 500", snapshot.StepAnswered},
		"a reset in place of an answer":              {asked + "0.2 in lan RESET server>client 100\n0.21 out wan RESET public>client 100", snapshot.StepReset},
		"the client resets":                          {asked + "0.2 in wan RESET client>public 108\n0.21 out lan RESET client>server 108", snapshot.StepAnswered},
		"this host resets what is closed":            {asked + "0.1 in lan FIN server>client 100\n0.11 out wan FIN public>client 100\n0.5 in wan DATA client>public 300\n0.51 out wan RESET public>client 101", snapshot.StepAnswered},
		"the handshake was not seen":                 {"0.01 in wan DATA client>public 8\n0.3 in wan DATA client>public 8\n0.7 in wan DATA client>public 8", snapshot.StepDataLost},
		"answers take another way, and data is lost": {gone + "0.3 in wan DATA client>public 8\n0.6 in wan DATA client>public 8", snapshot.StepDataLost},
		"answers take another way, and data passes":  {gone + "0.3 in wan DATA client>public 8\n0.31 out lan DATA client>server 8", snapshot.StepNoAnswer},
		"answers take another way, and it is reset":  {gone + "0.3 in wan DATA client>public 8\n0.31 out wan RESET public>client 0", snapshot.StepResetHere},
		"it ends here, or in a tunnel":               {"0 in wan SYN client>public 7\n0.1 out wan SYNACK public>client 7\n0.2 in wan DATA client>public 8\n0.5 in wan DATA client>public 8", snapshot.StepAnswered},
		"nor when this host resets it":               {reset, snapshot.StepResetHere},
		"seen at a bridge and its port":              {opened + "0.01 in wan1 DATA client>public 8\n0.01 in bond DATA client>public 8\n0.011 out lan DATA client>server 8", snapshot.StepAnswered},
	} {
		got := script(t, c.packets).Result(5, func(int) string { return "" })
		if len(got.Services) != 1 || got.Services[0].Steps[c.want] != 1 {
			t.Errorf("%s: %+v, want one %s", name, got.Services, c.want)
		}
	}
}

// TestUnseenOnes: connections whose handshake was not seen are not listed where they go on.
func TestUnseenOnes(t *testing.T) {
	w := script(t, "0.01 in wan DATA client>public 8\n0.011 out lan DATA client>server 8")
	if got := w.Result(5, func(int) string { return "" }); len(got.Services) != 0 || got.Connections != 0 {
		t.Errorf("%+v", got)
	}
}

// TestUnknownOnes: of a connection whose handshake was not seen, and of which nothing left, nothing is known as long as it
// did not come again often, as of those of which one direction is lost here.
func TestUnknownOnes(t *testing.T) {
	w := script(t, gone+"0.3 in wan DATA client>public 8\n0.6 in wan DATA client>public 8\n0.7 in wan DATA inside>public 70\n0.8 in wan DATA inside>public 70\n0.9 in wan DATA inside>public 70\n1 in wan DATA remote>public 90")
	for _, s := range w.Result(5, func(int) string { return "" }).Services {
		if s.Steps[snapshot.StepAnswered] != 0 || s.Steps[snapshot.StepDataLost] != 1 || s.Failed.OneSided != s.Failed.LeftTo.IsValid() {
			t.Errorf("%+v %+v", s, s.Failed)
		}
	}
}

// TestUnasked: SYN-ACKs that come again and do not leave, and whose SYNs do not pass.
func TestUnasked(t *testing.T) {
	for name, c := range map[string]struct {
		packets string
		want    snapshot.Step
	}{
		"lost here":       {"0.1 in lan SYNACK server>client 7\n1.1 in lan SYNACK server>client 7", snapshot.StepAnswerLost},
		"once":            {"0.1 in lan SYNACK server>client 7", ""},
		"passes":          {"0.1 in lan SYNACK server>client 7\n0.1 out wan SYNACK server>client 7\n1.1 in lan SYNACK server>client 7", ""},
		"the SYN is seen": {"0.1 in lan SYNACK server>client 7\n1.1 in lan SYNACK server>client 7\n1.2 in wan SYN client>server 7\n1.2 out lan SYN client>server 7\n1.3 in lan SYNACK server>client 7\n1.3 out wan SYNACK server>client 7", snapshot.StepAnswered},
	} {
		all := script(t, c.packets).Result(5, func(i int) string { return map[int]string{lan: "lan"}[i] }).Services
		if (len(all) == 1) != (c.want != "") || len(all) == 1 && all[0].Steps[c.want] != 1 {
			t.Errorf("%s: %+v", name, all)
		}
		if c.want == snapshot.StepAnswerLost && (!all[0].Failed.OneSided || all[0].Failed.AnswerIn != "lan" || all[0].Failed.Client.String() != client || all[0].Clients != 1) {
			t.Errorf("%s: %+v", name, all[0].Failed)
		}
	}
}

// TestResampled: where not all segments are seen, a RST may come after an answer.
func TestResampled(t *testing.T) {
	w := script(t, asked)
	w.partial = true
	play(t, w, "0.2 in lan RESET server>client 100\n0.21 out wan RESET public>client 100")
	if s := w.Result(5, func(int) string { return "" }).Services[0]; s.Steps[snapshot.StepAnswered] != 1 {
		t.Errorf("%+v", s)
	}
}

// TestOldOnes: what was lost is known after segments have been forgotten.
func TestOldOnes(t *testing.T) {
	w := script(t, opened+"0.01 in wan DATA client>public 8\n0.3 in wan DATA client>public 8\n5 in wan DATA inside>remote 900\n10 in wan DATA inside>remote 950\n15 in wan DATA inside>remote 990")
	if s := w.Result(20, func(int) string { return "" }).Services[0]; s.Steps[snapshot.StepDataLost] != 1 {
		t.Errorf("%+v", s)
	}
}

// TestLostData: what is said of large data that is lost, and of the ICMP error about it.
func TestLostData(t *testing.T) {
	big := asked + "0.1 in lan DATA server>client 100\n0.11 out wan DATA public>client 100\n2.2 in lan BIG server>client 200\n2.5 in lan BIG server>client 200"
	w := script(t, big)
	f := w.Result(5, func(int) string { return "" }).Services[0].Failed
	if !f.Answer || f.Bytes != 1400 || f.PassedBytes != 140 || f.PauseSeconds < 2 || f.TooBig != nil {
		t.Errorf("%+v", f)
	}
	tooBig := packet("ERROR", netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort(server), 200)
	tooBig.ICMP = frame.ICMP{Type: 3, Code: 4, Rest: 1300}
	tooBig.Payload = frame.IP{Source: netip.MustParseAddrPort(server).Addr(), Destination: netip.MustParseAddrPort(client).Addr(), Protocol: unix.IPPROTO_TCP, TTL: 64}.Append(nil,
		frame.AppendTCP(nil, frame.Tuple{Src: netip.MustParseAddrPort(server), Dst: netip.MustParseAddrPort(client)}, frame.TCP{SequenceNumber: 200}, nil))
	for _, sent := range []bool{false, true} {
		w.See(Packet{At: 2.3, Interface: wan, Sent: sent, Frame: tooBig})
		f = w.Result(5, func(int) string { return "" }).Services[0].Failed
		if b := f.TooBig; b == nil || b.MTUBytes != 1300 || b.Here || b.Passed != sent {
			t.Errorf("sent %v: %+v", sent, b)
		}
	}
}

// TestPartOfAFlow: of one flow of datagrams a part is lost here.
func TestPartOfAFlow(t *testing.T) {
	for every, want := range map[int]snapshot.Step{0: snapshot.StepAnswered, 3: snapshot.StepPartLost} {
		w := script(t, "0 in wan UDP client>public 1\n0 out lan UDP client>server 1\n0.1 in lan UDP server>client 2\n0.1 out wan UDP public>client 2")
		for i := range 60 {
			at, number := 1+float64(i)/50, uint32(10+i)
			w.See(Packet{At: at, Interface: wan, Frame: packet("UDP", netip.MustParseAddrPort(client), netip.MustParseAddrPort(public), number)})
			if every == 0 || i%every != 0 {
				w.See(Packet{At: at, Interface: lan, Sent: true, Frame: packet("UDP", netip.MustParseAddrPort(client), netip.MustParseAddrPort(server), number)})
			}
		}
		s := w.Result(5, func(int) string { return "" }).Services[0]
		if s.Steps[want] != 1 || want == snapshot.StepPartLost && (s.Failed.DatagramsIn != 61 || s.Failed.DatagramsOut != 41) {
			t.Errorf("one in %d lost: %+v %+v", every, s, s.Failed)
		}
	}
}

// TestOthers: what a bridge forwards, protocols without ports, and what programs here cannot send.
func TestOthers(t *testing.T) {
	w := NewWatch(netip.AddrPort{}, netip.AddrPort{})
	a, b := netip.MustParseAddrPort("10.0.0.1:40000"), netip.MustParseAddrPort("10.0.0.2:80")
	w.See(Packet{At: 0, Interface: wan, Passing: true, Frame: packet("SYN", a, b, 7)})
	esp := packet("UDP", netip.AddrPortFrom(a.Addr(), 0), netip.AddrPortFrom(b.Addr(), 0), 1)
	esp.Protocol, esp.Transport = unix.IPPROTO_ESP, 0
	w.See(Packet{At: 0, Interface: wan, Frame: esp})
	r := w.Result(5, func(int) string { return "p1" })
	for _, s := range r.Services {
		if s.Steps[snapshot.StepLostHere] != 1 || s.Bridged != (s.Protocol == "tcp") || s.Protocol != "tcp" && s.Protocol != "esp" {
			t.Errorf("%+v", s)
		}
	}
	w.unsent(r, []frame.Tuple{{Src: netip.MustParseAddrPort("10.0.0.9:1"), Dst: b}, {Src: netip.MustParseAddrPort("10.0.0.9:2"), Dst: b}})
	if s := r.Services[0]; len(r.Services) != 3 || s.In != "" || s.Steps[snapshot.StepLostHere] != 2 || s.Failed == nil {
		t.Errorf("%+v", r.Services)
	}
}

// TestMissing: clients that give up waiting for data that is too large for the interface, or after which more came.
func TestMissing(t *testing.T) {
	const asks = "0 in lan SYN inside>remote 7\n0.001 out wan SYN gateway>remote 7\n0.002 in wan SYNACK remote>gateway 7\n0.003 out lan SYNACK remote>inside 7\n" +
		"0.01 in lan DATA inside>remote 8\n0.011 out wan DATA gateway>remote 8\n"
	const head = "0.02 in wan DATA remote>gateway 0\n0.021 out lan DATA remote>inside 0\n"
	const givesUp = "2 in lan FIN inside>remote 108\n2.001 out wan FIN gateway>remote 108\n"
	const tail = "0.03 in wan DATA remote>gateway 3000\n0.031 out lan DATA remote>inside 3000\n"
	for name, c := range map[string]struct {
		packets string
		mtu     int
		server  int
		want    snapshot.Step
	}{
		"nothing comes":                      {asks + givesUp, 1400, 0, snapshot.StepDataMissing},
		"a small head comes":                 {asks + head + givesUp, 1400, 0, snapshot.StepDataMissing},
		"the MSS fits":                       {asks + head + givesUp, 1500, 0, snapshot.StepAnswered},
		"the server's own link takes less":   {asks + head + givesUp, 1400, 1300, snapshot.StepAnswered},
		"the MTU is not known":               {asks + head + givesUp, 0, 0, snapshot.StepAnswered},
		"later bytes come":                   {asks + head + tail + givesUp, 1500, 0, snapshot.StepDataMissing},
		"the client reads on":                {asks + head + "0.4 in lan FIN inside>remote 108\n0.41 out wan FIN gateway>remote 108\n", 1400, 0, snapshot.StepAnswered},
		"an idle connection ends":            {asks + head + givesUp + "2.1 in wan FIN remote>gateway 100\n2.11 out lan FIN remote>inside 100\n", 1400, 0, snapshot.StepAnswered},
		"it half closed, and the rest comes": {asks + givesUp + "2.5 in wan BIG remote>gateway 0\n2.51 out lan BIG remote>inside 0\n", 1400, 0, snapshot.StepAnswered},
		"the client resets an idle one":      {asks + head + "2 in lan RESET inside>remote 108\n2.001 out wan RESET gateway>remote 108\n", 1400, 0, snapshot.StepAnswered},
		"the client is gone, and data comes": {asks + givesUp + "2.1 in lan RESET inside>remote 109\n2.11 out wan RESET gateway>remote 109\n", 1400, 0, snapshot.StepAnswered},
	} {
		w := script(t, c.packets)
		w.all[0].mss, w.all[0].mtu, w.all[0].answeredMSS = 1460, c.mtu, c.server
		got := w.Result(5, func(int) string { return "" })
		if len(got.Services) != 1 || got.Services[0].Steps[c.want] != 1 {
			t.Errorf("%s: %+v, want one %s", name, got.Services, c.want)
		}
	}
}

// TestMSS: what the SYN names as it leaves counts.
func TestMSS(t *testing.T) {
	f := packet("SYN", netip.MustParseAddrPort(gateway), netip.MustParseAddrPort(remote), 7)
	f.TCP.Options = []byte{1, 1, 2, 4, 0x05, 0xb4}
	if got := mssOf(f); got != 1460 {
		t.Errorf("%d, want 1460", got)
	}
}
