package names

import (
	"net/netip"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// IDs of the containers in testdata, which are what Docker 20.10, containerd 1.6 with its CRI plugin and Podman 4.3 wrote.
const (
	dockerWeb   = "75e288e7ffe9aebc9956db8bccf605aa00fb02a4e4c9f7e02f204b395f929e88"
	dockerOther = "47ef698b70a720c20f2ec5ab977ec3f22815a804bc34d256513a2f50fe9653b9"
	podmanWeb   = "af80fed4b72923644d2e36ecf3173363dcea49939a211df0704de4f75089b4a5"
)

func recorded(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func addrs(texts ...string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

var equalAddr = cmpopts.EquateComparable(netip.Addr{})

func TestDockerState(t *testing.T) {
	for file, want := range map[string]Container{
		"docker-web.json":     {ID: dockerWeb, Name: "web", Addresses: addrs("198.18.77.2")},
		"docker-other.json":   {ID: dockerOther, Name: "other", Addresses: addrs("172.17.0.2")},
		"docker-hostnet.json": {ID: "c91a2f020139f78894ffe101a6dac8fca5403a10240904b5577444e3e40c0b11", Name: "hostnet"},
		"docker-joined.json":  {ID: "bce607b09cdda917c2806bc4ac61e283d510b0df20239d61942dcb0ba83fbecb", Name: "joined"},
	} {
		got, err := ParseDockerState(recorded(t, file))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(&want, got, equalAddr); d != "" {
			t.Errorf("%s: %s", file, d)
		}
	}
	stopped := `{"ID": "x", "Name": "/web", "State": {"Running": false}, "NetworkSettings": {"Networks": {"lan": {"IPAddress": "198.18.77.2"}}}}`
	if got, err := ParseDockerState([]byte(stopped)); err != nil || len(got.Addresses) != 0 {
		t.Errorf("one that does not run has addresses: %+v, %v", got, err)
	}
}

func TestDockerList(t *testing.T) {
	all, err := ParseDockerList(recorded(t, "docker-list.json"))
	if err != nil || len(all) != 4 {
		t.Fatalf("%d containers, %v", len(all), err)
	}
	got := map[string]Container{}
	for _, c := range all {
		got[c.Name] = c
	}
	want := Container{ID: dockerWeb, Name: "web", Addresses: addrs("198.18.77.2")}
	if d := cmp.Diff(want, got["web"], equalAddr); d != "" {
		t.Error(d)
	}
	if c := got["hostnet"]; c.ID == "" || len(c.Addresses) != 0 {
		t.Errorf("%+v", c)
	}
	linked := `[{"Id": "a", "Names": ["/web/db", "/db"]}, {"Id": "b", "Names": [], "Labels": {"io.kubernetes.pod.name": "p", "io.kubernetes.pod.namespace": "shop"}, "NetworkSettings": {"Networks": {"n": null}}}]`
	all, err = ParseDockerList([]byte(linked))
	if err != nil || len(all) != 2 || all[0].Name != "db" || all[1].Pod != "shop/p" {
		t.Errorf("%+v, %v", all, err)
	}
}

// TestSpec has CRI-O's annotations by its documentation; the others were recorded.
func TestSpec(t *testing.T) {
	crio := `{"annotations": {"io.kubernetes.pod.name": "web-7d9f", "io.kubernetes.pod.namespace": "shop", "io.kubernetes.container.name": "nginx", "io.kubernetes.cri-o.SandboxID": "x"}}`
	for name, tt := range map[string]struct {
		data []byte
		want Container
	}{
		"sandbox of containerd":   {recorded(t, "cri-sandbox.json"), Container{Pod: "shop/web-7d9f"}},
		"container of containerd": {recorded(t, "cri-container.json"), Container{Pod: "shop/web-7d9f", Name: "nginx"}},
		"container of Docker":     {recorded(t, "moby-web.json"), Container{}},
		"container of CRI-O":      {[]byte(crio), Container{Pod: "shop/web-7d9f", Name: "nginx"}},
		"half a pod":              {[]byte(`{"annotations": {"io.kubernetes.pod.name": "web-7d9f"}}`), Container{}},
	} {
		got, err := ParseSpec(tt.data)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(&tt.want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestStorage(t *testing.T) {
	all, err := ParseStorage(recorded(t, "podman.json"))
	if err != nil || len(all) != 2 || all[0].ID != podmanWeb || all[0].Name != "web" || all[1].Name != "plain" {
		t.Errorf("%+v, %v", all, err)
	}
}

// TestLease: the texts are those that host-local wrote for a pod of both versions of IP.
func TestLease(t *testing.T) {
	const id = "67fe3264d1e5a5807df6478002855d4fbb545a4be20acdb613d348bd0d7db8b6"
	for name, want := range map[string]string{"198.18.79.2": "198.18.79.2", "fd00:79::2": "fd00:79::2", "fd00_79__2": "fd00:79::2"} {
		address, got, ok := ParseLease(name, id+"\r\neth0")
		if !ok || got != id || address != netip.MustParseAddr(want) {
			t.Errorf("%s: %v %q %v", name, address, got, ok)
		}
	}
	for name, text := range map[string]string{"last_reserved_ip.0": "198.18.79.2", "lock": "", "198.18.79.3": "", "198.18.79.4": "../../etc", "198.18.79.5": ".."} {
		if _, id, ok := ParseLease(name, text); ok {
			t.Errorf("%s with %q is a lease of %q", name, text, id)
		}
	}
}

func TestPodLogs(t *testing.T) {
	pod, uid, ok := ParsePodLogs("shop_web-7d9f_8a2c5d1e-0b7f-4c3a-9d2e-6f1a2b3c4d5e")
	if !ok || pod != "shop/web-7d9f" || uid != "8a2c5d1e-0b7f-4c3a-9d2e-6f1a2b3c4d5e" {
		t.Error(pod, uid, ok)
	}
	for _, name := range []string{"", "a_b", "a_b_c_d", "__", "a__b"} {
		if _, _, ok := ParsePodLogs(name); ok {
			t.Errorf("%q is a directory of a pod", name)
		}
	}
}

// fuzz adds rubbish to the seeds of a parser of JSON.
func fuzz(f *testing.F, parse func(t *testing.T, data []byte), seeds ...[]byte) {
	f.Helper()
	for _, seed := range append(seeds, nil, []byte("{"), []byte("[]"), []byte("null"), []byte(`[null]`), []byte(`{"Name": 7}`)) {
		f.Add(seed)
	}
	f.Fuzz(parse)
}

func FuzzDockerState(f *testing.F) {
	fuzz(f, func(t *testing.T, data []byte) {
		if c, err := ParseDockerState(data); (c == nil) == (err == nil) {
			t.Errorf("%+v, %v", c, err)
		}
	}, recorded(f, "docker-web.json"), recorded(f, "docker-hostnet.json"))
}

func FuzzDockerList(f *testing.F) {
	fuzz(f, func(t *testing.T, data []byte) {
		all, err := ParseDockerList(data)
		if err != nil && all != nil {
			t.Errorf("%+v, %v", all, err)
		}
	}, recorded(f, "docker-list.json"))
}

func FuzzSpec(f *testing.F) {
	fuzz(f, func(t *testing.T, data []byte) {
		if c, err := ParseSpec(data); (c == nil) == (err == nil) {
			t.Errorf("%+v, %v", c, err)
		}
	}, recorded(f, "cri-sandbox.json"), recorded(f, "moby-web.json"))
}

func FuzzStorage(f *testing.F) {
	fuzz(f, func(t *testing.T, data []byte) {
		if all, err := ParseStorage(data); err != nil && all != nil {
			t.Errorf("%+v, %v", all, err)
		}
	}, recorded(f, "podman.json"))
}

// FuzzLease: an ID never leads out of its directory.
func FuzzLease(f *testing.F) {
	f.Add("198.18.79.2", "67fe3264\r\neth0")
	f.Add("fd00_79__2", "../x")
	f.Fuzz(func(t *testing.T, name, text string) {
		if address, id, ok := ParseLease(name, text); ok && (!address.IsValid() || !IsID(id)) {
			t.Errorf("%v %q", address, id)
		}
	})
}
