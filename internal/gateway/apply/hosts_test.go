package apply

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/health"
	"github.com/natkit/natkit/internal/gateway/look"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune"
)

// farm is a gateway at 198.18.0.1 with clients at 198.18.0.2 to .33 and two hosts behind it, a at 10.1.0.2 and b at
// 10.2.0.2.
type farm struct {
	*service
	clients *netns.Handle
	hosts   map[string]*farmHost
}

// farmHost serves at port 80: its name, and then what it is sent.
type farmHost struct {
	t        *testing.T
	ns       *netns.Handle
	name     string
	listener net.Listener
	// status is what it answers over HTTP at port 8080; 0: it accepts, and does not answer.
	status atomic.Int64
}

func newFarm(t *testing.T) *farm {
	w := newWorld(t)
	f := &farm{service: &service{world: w, file: filepath.Join(t.TempDir(), "gateway.yaml"), reload: make(chan os.Signal, 1), ended: make(chan error, 1)}, clients: testutil.Namespace(t), hosts: map[string]*farmHost{}}
	var addresses []string
	for i := range 32 {
		addresses = append(addresses, fmt.Sprintf("198.18.0.%d/24", 2+i))
	}
	testutil.Veth(t, testutil.End{Netns: w.ns, Name: "clients", Addresses: []string{"198.18.0.1/24"}}, testutil.End{Netns: f.clients, Name: "eth0", Addresses: addresses})
	for i, name := range []string{"a", "b"} {
		h := &farmHost{t: t, ns: testutil.Namespace(t), name: name}
		gw := netip.AddrFrom4([4]byte{10, byte(i + 1), 0, 1})
		testutil.Veth(t, testutil.End{Netns: w.ns, Name: name, Addresses: []string{gw.String() + "/24"}}, testutil.End{Netns: h.ns, Name: "eth0", Addresses: []string{gw.Next().String() + "/24"}})
		if err := testutil.Links(t, h.ns).AddRoute(netip.MustParsePrefix("0.0.0.0/0"), gw); err != nil {
			t.Fatal(err)
		}
		f.hosts[name] = h
		h.listen()
		h.listenHTTP()
	}
	return f
}

func (h *farmHost) listener80(address string) net.Listener {
	h.t.Helper()
	var l net.Listener
	err := h.ns.Do(func() (err error) { l, err = net.Listen("tcp4", address); return err })
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { l.Close() })
	return l
}

// listen accepts connections until the listener is closed; those that it has go on.
func (h *farmHost) listen() {
	h.t.Helper()
	l := h.listener80(":80")
	h.listener = l
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			h.t.Cleanup(func() { c.Close() })
			go func() {
				fmt.Fprintln(c, h.name)
				io.Copy(c, c)
			}()
		}
	}()
}

func (h *farmHost) listenHTTP() {
	h.t.Helper()
	h.status.Store(http.StatusOK)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if status := h.status.Load(); status != 0 {
			w.WriteHeader(int(status))
			return
		}
		<-r.Context().Done()
	})}
	h.t.Cleanup(func() { server.Close() })
	go server.Serve(h.listener80(":8080"))
}

// talk is a connection with what is left to read of it.
type talk struct {
	net.Conn
	r *bufio.Reader
	// host is the one that it reached.
	host string
}

// dial connects client i.
func (f *farm) dial(i int) (*talk, error) {
	var c net.Conn
	err := f.clients.Do(func() (err error) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(198, 18, 0, byte(2+i))}, Timeout: testutil.Patience(time.Minute)}
		c, err = d.Dial("tcp4", "198.18.0.1:8080")
		return err
	})
	if err != nil {
		return nil, err
	}
	f.t.Cleanup(func() { c.Close() })
	t := &talk{Conn: c, r: bufio.NewReader(c)}
	t.host, err = t.line()
	return t, err
}

func (t *talk) line() (string, error) {
	t.SetReadDeadline(time.Now().Add(testutil.Patience(time.Minute)))
	text, err := t.r.ReadString('\n')
	return strings.TrimSpace(text), err
}

// lives reports whether the other end still answers.
func (t *talk) lives() bool {
	fmt.Fprintln(t, "ping")
	text, err := t.line()
	return err == nil && text == "ping"
}

// reached are the hosts that each of the clients reaches.
func (f *farm) reached(n int) map[int]string {
	f.t.Helper()
	all := map[int]string{}
	for i := range n {
		c, err := f.dial(i)
		if err != nil {
			f.t.Fatal(err)
		}
		all[i] = c.host
		c.Close()
	}
	return all
}

// open is a connection to a host.
func (f *farm) open(host string) *talk {
	f.t.Helper()
	for i := range 64 {
		c, err := f.dial(i % 32)
		if err != nil {
			f.t.Fatal(err)
		}
		if c.host == host {
			return c
		}
	}
	f.t.Fatalf("no client reaches %s", host)
	return nil
}

func farmText(fields string) string {
	return "gateway:\n  nat:\n    - dnat: {on: 198.18.0.1, port: tcp/8080, to: [\"10.1.0.2:80\", \"10.2.0.2:80\"], " + fields + "}\n"
}

const quick = ", interval: 100ms, timeout: 100ms, rise: 2, fall: 2}"

func (f *farm) run(text string) {
	f.write(text)
	f.begin(nil)
}

// intact fails if the rules are not as natkit wrote them.
func (f *farm) intact() {
	f.t.Helper()
	if s, err := f.State(); err != nil || s.Integrity != gateway.RulesIntact {
		f.t.Errorf("%+v, %v", s, err)
	}
}

// inUse are the hosts of the only rule that new connections go to.
func (f *farm) inUse() string {
	f.t.Helper()
	p, err := f.InForce()
	if err != nil || p == nil {
		f.t.Fatal(p, err)
	}
	used, err := f.Engines.InUse(f.ns, p)
	if err != nil {
		f.t.Fatal(err)
	}
	return fmt.Sprint(used[gateway.Ref{List: "nat", Index: 0, Kind: "dnat"}])
}

// look is what 'natkit gateway status' reports.
func (f *farm) look() *observe.Status {
	f.t.Helper()
	s, err := look.New(look.Options{Netns: f.ns, Store: f.store(), Journal: f.Apply.Journal}).Look(f.t.Context())
	if err != nil || len(s.Rules) != 1 {
		f.t.Fatalf("%+v, %v", s, err)
	}
	return s
}

// TestHostThatGoesAndComes: the clients of a host that stops listening move, the others, and connections that there are,
// do not; when it comes back each client has the host of before.
func TestHostThatGoesAndComes(t *testing.T) {
	f := newFarm(t)
	f.run(farmText("balance: hash, health: {tcp: on" + quick))
	before := f.reached(32)
	onA, onB := f.open("a"), f.open("b")
	f.hosts["a"].listener.Close()
	f.waitSaid("host 10.1.0.2:80 is down: connection refused; it gets no new connections; nat[0] dnat")
	within(t, time.Minute, "b alone", func() bool { return f.inUse() == "[false true]" })
	for i, host := range f.reached(32) {
		if host != "b" {
			t.Errorf("client %d, of %s, reaches %s", i, before[i], host)
		}
	}
	if !onA.lives() || !onB.lives() {
		t.Error("a connection ended")
	}
	f.intact()
	status := f.look()
	if hosts := status.Rules[0].Hosts; status.Checker == "" || status.Unchecked || len(hosts) != 2 ||
		*hosts[0].Up || *hosts[0].InUse || hosts[0].Since == nil || hosts[0].LastError != "connection refused" || hosts[0].Flows == 0 ||
		!*hosts[1].Up || !*hosts[1].InUse || hosts[1].Since != nil || hosts[1].LastError != "" || hosts[1].Flows == 0 {
		t.Errorf("status %+v", status)
	}
	f.hosts["a"].listen()
	f.waitSaid("host 10.1.0.2:80 is up")
	within(t, time.Minute, "both again", func() bool { return f.inUse() == "[true true]" })
	if after := f.reached(32); !maps.Equal(after, before) {
		t.Errorf("clients reached %v, and now %v", before, after)
	}
	if !onA.lives() || !onB.lives() {
		t.Error("a connection ended")
	}
	f.intact()
	if said := f.said(); strings.Contains(said, "not as they were applied") || strings.Count(said, " is down") != 1 {
		t.Error(said)
	}
	f.end()
}

// TestHostsInTurns: without one of two, all connections go to the other.
func TestHostsInTurns(t *testing.T) {
	f := newFarm(t)
	f.run(farmText("health: {tcp: on" + quick))
	counts := map[string]int{}
	for _, host := range f.reached(20) {
		counts[host]++
	}
	if counts["a"] != 10 || counts["b"] != 10 {
		t.Errorf("%v", counts)
	}
	f.hosts["b"].listener.Close()
	within(t, time.Minute, "a alone", func() bool { return f.inUse() == "[true false]" })
	for _, host := range f.reached(20) {
		if host != "a" {
			t.Errorf("reached %s", host)
		}
	}
	within(t, time.Minute, "the manager knows", func() bool { return f.notified("; 1 of 2 hosts down") > 0 })
	// Rules that are written anew leave it out from the start, also where checks have changed.
	f.write(farmText("health: {tcp: on, interval: 150ms, timeout: 100ms}") + "    - masquerade: {from: 10.1.0.0/24, out: clients}\n")
	f.waitSaid("file changed: ")
	if got := f.inUse(); got != "[true false]" {
		t.Errorf("in use after another file: %s", got)
	}
	f.intact()
	f.end()
}

// TestApplySaysWhoChecks: without the service none does.
func TestApplySaysWhoChecks(t *testing.T) {
	w := newWorld(t)
	text := farmText("health: {tcp: on}")
	if r := w.prepare(wish(text)); len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "2 hosts of health: checks run under 'natkit gateway run'") {
		t.Errorf("%q", r.Notes)
	}
	service := wish(text)
	service.Origin = OriginService
	if r := w.prepare(service); len(r.Notes) != 0 {
		t.Errorf("%q", r.Notes)
	}
}

// TestAllHostsDown: with reject clients are refused, with last the host that was up last stays.
func TestAllHostsDown(t *testing.T) {
	testutil.NeedFeature(t, testutil.EarlyReject)
	f := newFarm(t)
	f.run(farmText("all-down: reject, health: {tcp: on" + quick))
	f.hosts["a"].listener.Close()
	within(t, time.Minute, "b alone", func() bool { return f.inUse() == "[false true]" })
	f.write(farmText("all-down: last, health: {tcp: on" + quick))
	f.waitSaid("file changed: ")
	f.hosts["b"].listener.Close()
	f.waitSaid("host 10.1.0.2:80 is down: connection refused; it gets no new connections; nat[0] dnat")
	f.waitSaid("host 10.2.0.2:80 is down: connection refused; it still gets new connections, as no other host is up; nat[0] dnat")
	f.waitSaid("nat[0] dnat: all hosts are down: new connections still go to 10.2.0.2:80")
	if got := f.inUse(); got != "[false true]" {
		t.Errorf("in use is %s, not the last one", got)
	}
	f.write(farmText("all-down: reject, health: {tcp: on" + quick))
	within(t, time.Minute, "the other file", func() bool { return strings.Count(f.said(), "file changed: ") == 2 })
	within(t, time.Minute, "none", func() bool { return f.inUse() == "[false false]" })
	if _, err := f.dial(0); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a client gets %v", err)
	}
	s, err := f.State()
	if err != nil || s.Integrity != gateway.RulesIntact {
		t.Errorf("%+v, %v", s, err)
	}
	rejected := uint64(0)
	for _, c := range s.Counts {
		if c.What == "all-down" && c.Dropped {
			rejected += c.Packets
		}
	}
	if rejected != 1 {
		t.Errorf("%d packets counted as rejected", rejected)
	}
	f.hosts["b"].listen()
	within(t, time.Minute, "b again", func() bool { return f.inUse() == "[false true]" })
	if c, err := f.dial(0); err != nil || c.host != "b" {
		t.Errorf("%+v, %v", c, err)
	}
	f.end()
}

// TestUDPIsRejected: by ICMP, where all of the hosts that TCP checks are down.
func TestUDPIsRejected(t *testing.T) {
	testutil.NeedFeature(t, testutil.EarlyReject)
	f := newFarm(t)
	for _, h := range f.hosts {
		h.listener.Close()
	}
	f.run("gateway:\n  nat:\n    - dnat: {on: 198.18.0.1, port: udp/53, to: [10.1.0.2, 10.2.0.2], all-down: reject, health: {tcp: on, port: 80" + quick + "}\n")
	within(t, time.Minute, "none", func() bool { return f.inUse() == "[false false]" })
	f.waitSaid("nat[0] dnat: all hosts are down: new connections are rejected")
	err := f.clients.Do(func() error {
		c, err := net.Dial("udp4", "198.18.0.1:53")
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
		c.SetReadDeadline(time.Now().Add(testutil.Patience(time.Minute)))
		_, err = c.Read(make([]byte, 1))
		return err
	})
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a client gets %v", err)
	}
	f.end()
}

// TestHTTPHosts: a status above 399 and a host that accepts and does not answer are down, each with its reason.
func TestHTTPHosts(t *testing.T) {
	f := newFarm(t)
	f.run(farmText("health: {http: /up, port: 8080" + quick))
	f.waitSaid("checking 2 hosts")
	f.hosts["a"].status.Store(http.StatusInternalServerError)
	f.waitSaid("host 10.1.0.2:8080 is down: HTTP status 500;")
	f.hosts["a"].status.Store(http.StatusFound)
	f.waitSaid("host 10.1.0.2:8080 is up")
	f.hosts["b"].status.Store(0)
	f.waitSaid("host 10.2.0.2:8080 is down: no answer within 100ms;")
	within(t, time.Minute, "a alone", func() bool { return f.inUse() == "[true false]" })
	f.end()
}

// TestHostsAfterAKill: a service that begins anew goes on with hosts as they are in the rules, and with what it found.
func TestHostsAfterAKill(t *testing.T) {
	f := newFarm(t)
	f.write(farmText("health: {tcp: on" + quick))
	cmd := f.start(helperBrief{Service: f.file})
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	within(t, time.Minute, "rules", func() bool { return f.value() != tune.GatewayNone && f.inUse() == "[true true]" })
	f.hosts["a"].listener.Close()
	within(t, time.Minute, "b alone", func() bool { return f.inUse() == "[false true]" })
	killHard(t, cmd)
	f.intact()
	if s := f.look(); s.Checker != "" || !s.Unchecked || s.Rules[0].Hosts[0].Up != nil || *s.Rules[0].Hosts[0].InUse || !*s.Rules[0].Hosts[1].InUse {
		t.Errorf("status %+v", s)
	}
	id, err := f.id()
	if err != nil {
		t.Fatal(err)
	}
	p, err := f.InForce()
	if err != nil {
		t.Fatal(err)
	}
	e := p.Checked()[gateway.Ref{List: "nat", Index: 0, Kind: "dnat"}]
	target := health.TargetOf(&e.Action, nat.Backend{Address: netip.MustParseAddr("10.1.0.2"), Port: 80})
	was, ok := health.ParseReport(f.store().Health(id)).State(target)
	if !ok || was.Up || was.Error != "connection refused" || was.Since.IsZero() {
		t.Errorf("reported was %+v, %t", was, ok)
	}
	generation := f.generation()
	f.begin(nil)
	now, ok := health.ParseReport(f.store().Health(id)).State(target)
	if !ok || now.Up || !now.Since.Equal(was.Since) || f.generation() != generation {
		t.Errorf("%+v became %+v; %d transactions", was, now, f.generation()-generation)
	}
	if got := f.inUse(); got != "[false true]" {
		t.Errorf("in use %s", got)
	}
	f.hosts["a"].listen()
	within(t, time.Minute, "both again", func() bool { return f.inUse() == "[true true]" })
	f.end()
}

// TestManyHosts: hosts that go together are taken out by few transactions.
func TestManyHosts(t *testing.T) {
	testutil.NeedFeature(t, testutil.EarlyReject)
	w := newWorld(t)
	w.ip("ip route add local 10.77.0.0/24 dev lo")
	var hosts []string
	for i := range 200 {
		hosts = append(hosts, fmt.Sprintf("10.77.0.%d:9", i+1))
	}
	text := "gateway:\n  nat:\n"
	for i := range 5 {
		text += fmt.Sprintf("    - dnat: {on: 203.0.113.7, port: tcp/%d, to: [%s], all-down: reject, health: {tcp: on, interval: 1s, fall: 1}}\n", 8000+i, `"`+strings.Join(hosts[i*40:i*40+40], `", "`)+`"`)
	}
	s := w.serve(text)
	s.waitSaid("checking 200 hosts")
	within(t, time.Minute, "all are down", func() bool {
		return strings.Count(s.said(), " is down: connection refused") == 200 && strings.Count(s.said(), "all hosts are down") == 5
	})
	plan, err := w.InForce()
	if err != nil {
		t.Fatal(err)
	}
	within(t, time.Minute, "all are out", func() bool {
		used, err := w.Engines.InUse(w.ns, plan)
		if err != nil {
			t.Fatal(err)
		}
		for _, all := range used {
			for _, one := range all {
				if one {
					return false
				}
			}
		}
		return len(used) == 5
	})
	s.end()
}
