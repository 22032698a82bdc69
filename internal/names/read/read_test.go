//go:build linux

package read

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/names"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/vishvananda/netlink"
)

// IDs of the containers in the testdata of package names.
const (
	dockerWeb   = "75e288e7ffe9aebc9956db8bccf605aa00fb02a4e4c9f7e02f204b395f929e88"
	dockerOther = "47ef698b70a720c20f2ec5ab977ec3f22815a804bc34d256513a2f50fe9653b9"
	podmanWeb   = "af80fed4b72923644d2e36ecf3173363dcea49939a211df0704de4f75089b4a5"
	sandbox     = "67fe3264d1e5a5807df6478002855d4fbb545a4be20acdb613d348bd0d7db8b6"
	podUID      = "8a2c5d1e-0b7f-4c3a-9d2e-6f1a2b3c4d5e"
)

// tree is a host's files in a directory of the test.
type tree struct {
	testing.TB
	root  string
	found []netns.Found
}

func newTree(t testing.TB) *tree { return &tree{TB: t, root: t.TempDir()} }

func (d *tree) write(name, text string) {
	d.Helper()
	path := filepath.Join(d.root, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		d.Fatal(err)
	}
}

// recorded writes what a runtime wrote.
func (d *tree) recorded(name, file string) {
	d.Helper()
	data, err := os.ReadFile("../testdata/" + file)
	if err != nil {
		d.Fatal(err)
	}
	d.write(name, string(data))
}

// process is one in a network namespace with addresses.
func (d *tree) process(pid int, inode uint64, comm, cgroup string, addresses ...string) {
	d.Helper()
	proc := fmt.Sprintf("proc/%d/", pid)
	d.write(proc+"comm", comm+"\n")
	d.write(proc+"cgroup", "0::"+cgroup+"\n")
	trie, inet6 := "Local:\n", ""
	for _, text := range addresses {
		if a := netip.MustParseAddr(text); a.Is4() {
			trie += "     |-- " + text + "\n        /32 host LOCAL\n"
		} else {
			inet6 += fmt.Sprintf("%032x 02 40 00 80     eth0\n", a.As16())
		}
	}
	d.write(proc+"net/fib_trie", trie)
	d.write(proc+"net/if_inet6", inet6)
	ns := filepath.Join(d.root, proc, "ns")
	if err := errors.Join(os.Mkdir(ns, 0o755), os.Symlink(fmt.Sprintf("net:[%d]", inode), filepath.Join(ns, "net"))); err != nil {
		d.Fatal(err)
	}
	d.found = append(d.found, netns.Found{Inode: inode, PID: pid})
}

func (d *tree) find(time.Time) ([]netns.Found, bool, error) { return d.found, false, nil }

// take reads the tree, whatever time that takes.
func (d *tree) take(asks bool) *census {
	return take(d.Context(), &host{root: d.root, asks: asks}, d.find, time.Now().Add(time.Hour))
}

// said are the names of a census by their addresses.
func (c *census) said() map[string]string {
	all := map[string]string{}
	book := c.book.Copy()
	for _, s := range c.spaces {
		for _, a := range s.addresses {
			book.Add(names.Kernel, a, s.name)
		}
	}
	addresses, _ := book.Addresses()
	for a, name := range addresses {
		all[a.String()] = name.String() + " by " + name.Source
	}
	return all
}

func kubepod(id string) string { return "/kubepods/besteffort/pod" + podUID + "/" + id }

// TestHost has a container of each runtime, in files that they wrote.
func TestHost(t *testing.T) {
	d := newTree(t)
	d.process(1, 100, "systemd", "/init.scope", "198.18.0.1", "127.0.0.1")
	d.process(197, 101, "sleep", "/docker/"+dockerWeb, "198.18.77.2", "127.0.0.1")
	d.recorded("var/lib/docker/containers/"+dockerWeb+"/config.v2.json", "docker-web.json")
	d.recorded("var/lib/docker/containers/"+dockerOther+"/config.v2.json", "docker-other.json") // whose process is not seen
	d.process(120, 102, "pause", kubepod(sandbox), "198.18.79.2", "fd00:79::2")
	d.recorded("run/containerd/io.containerd.runtime.v2.task/k8s.io/"+sandbox+"/config.json", "cri-sandbox.json")
	d.process(74, 103, "sleep", "/machine.slice/libpod-"+podmanWeb+".scope", "198.18.78.2")
	d.recorded("var/lib/containers/storage/vfs-containers/containers.json", "podman.json")
	const crioID = "aa00fb02a4e4c9f7e02f204b395f929e8875e288e7ffe9aebc9956db8bccf605"
	d.process(300, 104, "nginx", "/kubepods.slice/kubepods-pod11111111_2222_3333_4444_555555555555.slice/crio-"+crioID+".scope", "198.18.80.2")
	d.write("run/containers/storage/overlay-containers/"+crioID+"/userdata/config.json", `{"annotations": {"io.kubernetes.pod.name": "api-0", "io.kubernetes.pod.namespace": "shop"}}`)
	// A pod of which only the directory of its logs is left, and one of k3s.
	d.process(301, 105, "pause", "/kubepods/pod99999999-2222-3333-4444-555555555555/"+strings.Repeat("9", 64), "198.18.81.2")
	d.write("var/log/pods/shop_job-1_99999999-2222-3333-4444-555555555555/x/0.log", "")
	d.process(302, 106, "pause", "/kubepods/pod77777777-2222-3333-4444-555555555555/"+strings.Repeat("7", 64), "198.18.82.2")
	d.write("run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/"+strings.Repeat("7", 64)+"/config.json",
		`{"annotations": {"io.kubernetes.cri.sandbox-name": "dns", "io.kubernetes.cri.sandbox-namespace": "kube-system"}}`)
	d.process(303, 107, "openvpn", "/system.slice/openvpn@lan.service", "198.18.83.2")
	d.process(304, 108, "router", "/user.slice", "198.18.84.2")
	d.process(305, 109, "init", "/lxc.payload.mail/init.scope", "198.18.85.2")
	d.process(306, 110, "sleep", "/docker/"+strings.Repeat("6", 64), "198.18.86.2") // nothing is known of it
	// Two with one address: behind bridges of their own.
	d.process(307, 111, "a", "/system.slice/a.service", "198.18.87.2")
	d.process(308, 112, "b", "/system.slice/b.service", "198.18.87.2")
	// The number of its process is another one's by now.
	d.process(309, 113, "c", "/system.slice/c.service", "198.18.88.2")
	d.found[len(d.found)-1].Inode = 114
	// Leases: of the pod above, and of one that is no more.
	d.write("var/lib/cni/networks/podnet/198.18.79.9", sandbox+"\r\neth0")
	d.write("var/lib/cni/networks/podnet/198.18.79.8", strings.Repeat("8", 64)+"\r\neth0")
	d.write("var/lib/cni/networks/podnet/last_reserved_ip.0", "198.18.79.9")
	d.write("etc/hosts", "127.0.0.1 localhost\n198.18.77.2 old-name\n198.18.90.1 db1.example db1\n")
	d.found = append(d.found, netns.Found{Inode: 120, Path: "/proc/304/fd/9"}, netns.Found{Inode: 121, Path: "/run/docker/netns/gone"})

	c := d.take(true)
	want := map[string]string{
		"198.18.0.1":  "this host by /proc/1/ns/net",
		"198.18.77.2": "container web by /var/lib/docker/containers",
		"172.17.0.2":  "container other by /var/lib/docker/containers",
		"198.18.79.2": "pod shop/web-7d9f by /run/containerd",
		"fd00:79::2":  "pod shop/web-7d9f by /run/containerd",
		"198.18.79.9": "pod shop/web-7d9f by /var/lib/cni/networks",
		"198.18.78.2": "container web by /var/lib/containers/storage",
		"198.18.80.2": "pod shop/api-0 by /run/containers/storage",
		"198.18.81.2": "pod shop/job-1 by /var/log/pods",
		"198.18.82.2": "pod kube-system/dns by /run/containerd",
		"198.18.83.2": "unit openvpn@lan.service by /proc/PID/cgroup",
		"198.18.84.2": "router pid 304 by /proc/PID/comm",
		"198.18.85.2": "container mail by /proc/PID/cgroup",
		"198.18.86.2": "container 666666666666 by /proc/PID/cgroup",
		"198.18.90.1": "db1.example by /etc/hosts",
	}
	if d := cmp.Diff(want, c.said()); d != "" {
		t.Error(d)
	}
	if len(c.why) != 0 {
		t.Error(c.why)
	}
}

// TestOwner: whose a namespace is, with what its files say.
func TestOwner(t *testing.T) {
	o := OwnerOf(netns.Found{PID: os.Getpid(), Name: "blue"})
	if o.Process == "" || o.PID != os.Getpid() || o.Netns != "blue" || o.Held {
		t.Errorf("%+v", o)
	}
	if o := OwnerOf(netns.Found{Path: "/proc/1/task/77/fd/9"}); o.PID != 77 || !o.Held {
		t.Errorf("held: %+v", o)
	}
	d := newTree(t)
	d.process(197, 101, "sleep", "/docker/"+dockerWeb)
	d.recorded("var/lib/docker/containers/"+dockerWeb+"/config.v2.json", "docker-web.json")
	got, _ := (&host{root: d.root}).owner(t.Context(), d.found[0])
	if want := (snapshot.Owner{PID: 197, Process: "sleep", Runtime: "docker", Container: dockerWeb, ContainerName: "web"}); got != want {
		t.Errorf("%+v", got)
	}
}

// daemon is a server at Docker's socket of a tree. asked counts what came.
func (d *tree) daemon(runs bool, answer http.HandlerFunc) (asked *atomic.Int32) {
	d.Helper()
	asked = new(atomic.Int32)
	d.write("run/docker.pid", "15")
	if runs {
		d.write("proc/15/comm", "dockerd\n")
	}
	l, err := net.Listen("unix", filepath.Join(d.root, dockerSocket))
	if err != nil {
		d.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		answer(w, r)
	})}
	go s.Serve(l)
	d.Cleanup(func() { s.Close() })
	return asked
}

func list(t testing.TB) http.HandlerFunc {
	data, err := os.ReadFile("../testdata/docker-list.json")
	if err != nil {
		t.Fatal(err)
	}
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.Path != "/containers/json" {
			t.Errorf("%s %s", r.Method, r.URL)
		}
		w.Write(data)
	}
}

// TestDockerIsAsked where its files are elsewhere, once, and not where it does not run: systemd would start it.
func TestDockerIsAsked(t *testing.T) {
	for _, tt := range []struct {
		name        string
		runs, files bool
		answer      http.HandlerFunc
		asked       int32
		want        string
	}{
		{"files elsewhere", true, false, list(t), 1, "container web by docker.sock"},
		{"files here", true, true, list(t), 0, "container web by /var/lib/docker/containers"},
		{"no daemon", false, false, list(t), 0, "container 75e288e7ffe9 by /proc/PID/cgroup"},
		{"an error", true, false, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusInternalServerError) }, 1, "container 75e288e7ffe9 by /proc/PID/cgroup"},
		{"a redirect", true, false, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://198.18.0.1/", http.StatusFound)
		}, 1, "container 75e288e7ffe9 by /proc/PID/cgroup"},
		{"rubbish", true, false, func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("{")) }, 1, "container 75e288e7ffe9 by /proc/PID/cgroup"},
		{"silence", true, false, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, 1, "container 75e288e7ffe9 by /proc/PID/cgroup"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := newTree(t)
			asked := d.daemon(tt.runs, tt.answer)
			d.process(197, 101, "sleep", "/docker/"+dockerWeb, "198.18.77.2")
			d.process(198, 102, "sleep", "/docker/"+strings.Repeat("5", 64), "198.18.77.5")
			if tt.files {
				d.found = d.found[:1]
				d.recorded("var/lib/docker/containers/"+dockerWeb+"/config.v2.json", "docker-web.json")
			}
			c := d.take(true)
			if got := c.said()["198.18.77.2"]; got != tt.want || asked.Load() != tt.asked {
				t.Errorf("%q after %d questions, want %q after %d", got, asked.Load(), tt.want, tt.asked)
			}
		})
	}
}

// TestManyContainers are all named, by files alone.
func TestManyContainers(t *testing.T) {
	const n = 300
	got := containers(t, n).take(false).said()
	for i := range n {
		address := netip.AddrFrom4([4]byte{198, 18, byte(4 + i/250), byte(1 + i%250)}).String()
		if want := fmt.Sprintf("container c%d by /var/lib/docker/containers", i); got[address] != want {
			t.Fatalf("%s: %q, want %q", address, got[address], want)
		}
	}
}

func containers(t testing.TB, n int) *tree {
	d := newTree(t)
	for i := range n {
		id := fmt.Sprintf("%064x", i+1)
		address := netip.AddrFrom4([4]byte{198, 18, byte(4 + i/250), byte(1 + i%250)}).String()
		d.process(1000+i, uint64(5000+i), "app", "/system.slice/docker-"+id+".scope", address)
		d.write("var/lib/docker/containers/"+id+"/config.v2.json", fmt.Sprintf(`{"ID": %q, "Name": "/c%d", "State": {"Running": true}, "Config": {"Image": %q}}`, id, i, strings.Repeat("x", 3000)))
	}
	return d
}

func BenchmarkThousandContainers(b *testing.B) {
	d := containers(b, 1000)
	for b.Loop() {
		d.take(false)
	}
}

// TestOverTime: what is not reached is missing, and the reading says so.
func TestOverTime(t *testing.T) {
	d := newTree(t)
	d.process(197, 101, "sleep", "/docker/"+dockerWeb, "198.18.77.2")
	c := take(t.Context(), &host{root: d.root}, d.find, time.Time{})
	if len(c.spaces) != 0 || len(c.why) != 1 {
		t.Errorf("%+v %q", c.spaces, c.why)
	}
}

// listens is the environment's name of the address at which the test's own program listens instead of testing.
const listens = "NATKIT_TEST_LISTENS"

func TestMain(m *testing.M) {
	at := os.Getenv(listens)
	if at == "" {
		os.Exit(m.Run())
	}
	if _, err := net.Listen("tcp4", at); err != nil {
		panic(err)
	}
	fmt.Println("listening")
	io.Copy(io.Discard, os.Stdin) // until the test ends
}

// listener is a process in a namespace that listens, and its number.
func listener(t *testing.T, ns *netns.Handle, at string) int {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), listens+"="+at)
	in, errIn := cmd.StdinPipe()
	out, errOut := cmd.StdoutPipe()
	if err := errors.Join(errIn, errOut); err != nil {
		t.Fatal(err)
	}
	testutil.Inside(t, ns, cmd.Start)
	t.Cleanup(func() { in.Close(); cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "listening\n" {
		t.Fatalf("%q, %v", line, err)
	}
	return cmd.Process.Pid
}

// packets are those that the interfaces of a namespace have sent and received.
func packets(t *testing.T, ns *netns.Handle) (n uint64) {
	testutil.Inside(t, ns, func() error {
		links, err := netlink.LinkList()
		for _, l := range links {
			n += l.Attrs().Statistics.TxPackets + l.Attrs().Statistics.RxPackets
		}
		return err
	})
	return n
}

// TestNamespaces reads real ones: own addresses have the names of their interfaces, those of others that of the process in
// them, and sockets the process that listens. No packet is sent, also not on the loopback interface, whatever the names are.
func TestNamespaces(t *testing.T) {
	here, there := testutil.Namespace(t, "here"), testutil.Namespace(t, "there")
	for _, ns := range []*netns.Handle{here, there} { // which sends packets whenever it likes
		testutil.Sysctl(t, ns, "net/ipv6/conf/all/disable_ipv6", "1")
		testutil.Sysctl(t, ns, "net/ipv6/conf/default/disable_ipv6", "1")
	}
	testutil.Veth(t, testutil.End{Netns: here, Name: "eth0", Addresses: []string{"198.18.3.1/24"}}, testutil.End{Netns: there, Name: "eth0", Addresses: []string{"198.18.3.2/24"}})
	pid := listener(t, there, "198.18.3.2:81")
	server := listener(t, here, "198.18.3.1:8080")

	before := packets(t, here) + packets(t, there)
	got := Names(t.Context(), here)
	if after := packets(t, here) + packets(t, there); after != before {
		t.Errorf("%d packets were sent or received meanwhile", after-before)
	}
	own, _ := got.Addr(netip.MustParseAddr("198.18.3.1"))
	if own.Text != "eth0" || own.Kind != snapshot.NameInterface {
		t.Errorf("own address: %+v", own)
	}
	other, _ := got.Addr(netip.MustParseAddr("198.18.3.2"))
	if other.PID != pid || got.Netns[there.Inode()].PID != pid {
		t.Errorf("the other's address: %+v; its namespace: %+v, want pid %d", other, got.Netns[there.Inode()], pid)
	}
	socket, ok := got.Listener("tcp", netip.MustParseAddrPort("198.18.3.1:8080"))
	if !ok || socket.PID != server || socket.Kind != snapshot.NameProcess {
		t.Errorf("socket: %+v, want pid %d", socket, server)
	}
	if got.From != here.Inode() {
		t.Errorf("seen from %d, want %d", got.From, here.Inode())
	}
}

// TestCache: what is read is the same until it is too old, and other namespaces have what is the same for all.
func TestCache(t *testing.T) {
	ns := testutil.Namespace(t)
	c := &Cache{For: time.Hour}
	first := c.Names(t.Context(), nil)
	if again := c.Names(t.Context(), nil); again != first {
		t.Error("it is read anew at once")
	}
	host := c.host
	if other := c.Names(t.Context(), ns); other.From != ns.Inode() || c.host != host {
		t.Error("another namespace is read with all that is the same")
	}
	c.For, c.Share, c.took = 0, 0.5, time.Hour
	if c.Names(t.Context(), nil); c.host != host {
		t.Error("a reading that took long is not kept longer")
	}
	c.Share = 0
	if c.Names(context.Background(), ns); c.host == host {
		t.Error("it is never read anew")
	}
}

// TestNamedNamespace: that of 'ip netns add' has no process. One that is not connected to the namespace that is examined is
// not where its packets go, though it has the address.
func TestNamedNamespace(t *testing.T) {
	testutil.NeedRoot(t)
	ip := testutil.NeedProgram(t, "ip")
	names := [2]string{}
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command(ip, args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v\n%s", args, err, out)
		}
	}
	for i := range names {
		names[i] = fmt.Sprintf("names-%d-%d", os.Getpid(), i)
		run("netns", "add", names[i])
		t.Cleanup(func() { exec.Command(ip, "netns", "del", names[i]).Run() })
	}
	run("link", "add", "d0", "netns", names[0], "type", "veth", "peer", "name", "d0", "netns", names[1])
	for i, name := range names {
		run("-n", name, "addr", "add", fmt.Sprintf("198.18.6.%d/24", i+1), "dev", "d0")
		run("-n", name, "link", "set", "d0", "up")
	}
	here, err := netns.Named(names[0])
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	address := netip.MustParseAddr("198.18.6.2")
	want := snapshot.Name{Kind: snapshot.NameNetns, Text: names[1], Source: "/run/netns"}
	if got, _ := Names(t.Context(), here).Addr(address); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got, ok := Names(t.Context(), testutil.Namespace(t)).Addr(address); ok {
		t.Errorf("without a route it is %+v", got)
	}
}
