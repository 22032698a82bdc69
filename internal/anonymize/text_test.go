package anonymize

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/snapshot"
)

func TestText(t *testing.T) {
	a := testKey(t, testSecret)
	addr := func(text string) string { return a.Addr(netip.MustParseAddr(text)).String() }
	for text, want := range map[string]string{
		// What the kernel and natkit say stays.
		"": "",
		"ip nat prerouting: iifname eth0 tcp dport 8080":                              "ip nat prerouting: iifname eth0 tcp dport 8080",
		"masquerade to :1024-2047 fully-random":                                       "masquerade to :1024-2047 fully-random",
		"iptables -t filter -A FORWARD -m state --state INVALID -j DROP":              "iptables -t filter -A FORWARD -m state --state INVALID -j DROP",
		"nf_conntrack: nf_conntrack: table full in netns 4026532246, dropping packet": "nf_conntrack: nf_conntrack: table full in netns 4026532246, dropping packet",
		"read /proc/net/ip_vs: no such file or directory":                             "read /proc/net/ip_vs: no such file or directory",
		"RIP: 0010:nf_nat_setup_info+0x3a/0x1a0":                                      "RIP: 0010:nf_nat_setup_info+0x3a/0x1a0",
		"tcp/TIME_WAIT 10s 0x1f 1,204":                                                "tcp/TIME_WAIT 10s 0x1f 1,204",
		"enp3s0f1 br0.100 veth0 wg0 lo":                                               "enp3s0f1 br0.100 veth0 wg0 lo",
		"lost-here":                                                                   "lost-here",
		"ff:ff:ff:ff:ff:ff 00:00:5e:00:01:07":                                         "ff:ff:ff:ff:ff:ff 00:00:5e:00:01:07",
		"12:30:45":                                                                    "12:30:45",
		// What people and programs name is replaced.
		"oifname acmewan":                                                      "oifname " + a.tag("acmewan"),
		"-A KUBE-SVC-ERIFXISQEP7F7OF4":                                         "-A KUBE-SVC-" + a.tag("KUBE-SVC-ERIFXISQEP7F7OF4"),
		"veth1a2b3c4 br-0a1b2c3d4e5f":                                          "veth" + a.tag("veth1a2b3c4") + " br-" + a.tag("br-0a1b2c3d4e5f"),
		`drop comment "for Berlin" accept`:                                     `drop comment "` + a.tag("for Berlin") + `" accept`,
		`-m comment --comment "a \"b\" c" -j DROP`:                             `-m comment --comment "` + a.tag(`a "b" c`) + `" -j DROP`,
		`reject comment "shop/web:http has no endpoints"`:                      `reject comment "` + a.tag("shop/web:http") + ` has no endpoints"`,
		`comment "nat[3] snat"`:                                                `comment "nat[3] snat"`,
		"snat to 81.2.69.10-81.2.69.20":                                        "snat to " + addr("81.2.69.10") + "-" + addr("81.2.69.20"),
		"-s 10.77.3.0/24 to 81.2.69.142:8000":                                  "-s " + a.Prefix(netip.MustParsePrefix("10.77.3.0/24")).String() + " to " + addr("81.2.69.142") + ":8000",
		"[2a02:6b8:5::160]:80 and fd42::/64":                                   "[" + addr("2a02:6b8:5::160") + "]:80 and " + a.Prefix(netip.MustParsePrefix("fd42::/64")).String(),
		"IN=eth0 SRC=81.2.69.1 MAC=02:42:ac:11:00:02:02:42:0a:00:00:01:08:00 ": "IN=eth0 SRC=" + addr("81.2.69.1") + " MAC=" + a.macText("02:42:ac:11:00:02:02:42:0a:00:00:01:08:00") + " ",
		"martian source 10.1.2.3 from 81.2.69.9, on dev acme0":                 "martian source " + addr("10.1.2.3") + " from " + addr("81.2.69.9") + ", on dev " + a.tag("acme0"),
		"BUG: soft lockup - CPU#3 stuck for 22s! [acmed:812]":                  "BUG: soft lockup - CPU#3 stuck for 22s! [" + a.tag("acmed") + ":812]",
	} {
		if got := a.Text(text); got != want {
			t.Errorf("%q\n becomes %q,\n want %q", text, got, want)
		}
	}
	for from, want := range map[string]string{
		"6.1.0-13-cloud-amd64": "6.1.0-13-cloud-amd64", "5.14.0-362.el9.x86_64": "5.14.0-362.el9.x86_64", "6.8.0-45-generic": "6.8.0-45-generic",
		"6.6.9-acme3+": "6.6.9-" + a.tag("acme3") + "+",
	} {
		if got := a.Release(from); got != want {
			t.Errorf("release %q becomes %q", from, got)
		}
	}
}

func TestSymbols(t *testing.T) {
	a := testKey(t, testSecret)
	for name, want := range map[string]string{
		"nf_hook_slow": "nf_hook_slow", "__netif_receive_skb_core.constprop.0+0x1f": "__netif_receive_skb_core.constprop.0+0x1f",
		"bpf_prog_7d14f8a1b2c3d4e5_acme_filter": "bpf_prog_" + a.tag("7d14f8a1b2c3d4e5_acme_filter"), "bpf_prog_1_acme+0x12": "bpf_prog_" + a.tag("1_acme") + "+0x12",
	} {
		if got := symbol(a, name); got != want {
			t.Errorf("%s becomes %s", name, got)
		}
	}
}

func TestKeys(t *testing.T) {
	if _, err := NewKey([]byte("  short \n")); err == nil {
		t.Error("a short key was taken")
	}
	with, err := NewKey([]byte(testSecret + "\n"))
	if without, _ := NewKey([]byte(testSecret)); err != nil || with != without {
		t.Errorf("the end of the line is of the key: %v", err)
	}
	a, b := testKey(t, testSecret), testKey(t, "another key of 16")
	if a.Name("acmewan") != testKey(t, testSecret).Name("acmewan") || a.Name("acmewan") == b.Name("acmewan") || len(a.Name("acmewan")) != tagLen {
		t.Errorf("%s, %s", a.Name("acmewan"), b.Name("acmewan"))
	}
}

// secret is in no list of words.
const secret = "zqxsecret"

// FuzzText: whatever stands beside a name or an address, it does not come through.
func FuzzText(f *testing.F) {
	for _, text := range []string{"", `comment "`, "10.0.0.1/", "aa:bb:cc:dd:ee:", "::", "[", "-", ".", "KUBE-SVC-", "1.2.3.4-", "µ", `comment "\`} {
		f.Add(text, " ")
	}
	key, err := NewKey([]byte(testSecret))
	if err != nil {
		f.Fatal(err)
	}
	a := New(key)
	f.Fuzz(func(t *testing.T, before, after string) {
		if strings.Contains(before+after, secret) || len(before)+len(after) > 1<<16 {
			t.Skip()
		}
		if got := a.Text(before + secret + after); strings.Contains(got, secret) {
			t.Errorf("%q", got)
		}
		const address = "81.2.69.142"
		if got := a.Text(before + " " + address + " " + after); strings.Contains(got, " "+address+" ") {
			t.Errorf("%q", got)
		}
		if text := before + after; a.Text(text) != New(key).Text(text) {
			t.Errorf("%q is replaced in two ways", text)
		}
	})
}

// TestValue: no string, name of a map or address of a recording comes through, in whatever field, but the kernel's own
// symbols.
func TestValue(t *testing.T) {
	rec := &snapshot.Recording{}
	fill(reflect.ValueOf(rec).Elem(), 0)
	before, err := json.Marshal(rec)
	if err != nil {
		t.Fatal(err)
	}
	testKey(t, testSecret).Value(rec)
	after, err := json.Marshal(rec)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(before), secret); n < 200 {
		t.Fatalf("only %d strings", n)
	}
	kept := map[string]bool{"Function": true, "Functions": true}
	for name, how := range fields {
		if reflect.ValueOf(how).Pointer() == reflect.ValueOf(asIs).Pointer() {
			kept[name] = true
		}
	}
	walk(t, reflect.ValueOf(rec).Elem(), "", kept)
	if strings.Contains(string(after), "81.2.69.142") || strings.Contains(string(after), "2a02:6b8:5::160") {
		t.Error("an address came through")
	}
}

// fill sets every field below v.
func fill(v reflect.Value, depth int) {
	switch v.Interface().(type) {
	case netip.Addr:
		v.Set(reflect.ValueOf(netip.MustParseAddr("81.2.69.142")))
		return
	case netip.Prefix:
		v.Set(reflect.ValueOf(netip.MustParsePrefix("2a02:6b8:5::160/64")))
		return
	case netip.AddrPort:
		v.Set(reflect.ValueOf(netip.MustParseAddrPort("81.2.69.142:80")))
		return
	case time.Time:
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(secret)
	case reflect.Pointer:
		if depth < 12 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem(), depth+1)
		}
	case reflect.Slice:
		if depth < 12 {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			fill(v.Index(0), depth+1)
		}
	case reflect.Map:
		m := reflect.MakeMap(v.Type())
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, depth+1)
		fill(value, depth+1)
		m.SetMapIndex(key, value)
		v.Set(m)
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && f.Tag.Get("json") != "-" {
				fill(v.Field(i), depth+1)
			}
		}
	case reflect.Interface, reflect.Func, reflect.Chan:
		panic("a recording has a " + v.Kind().String() + ", which Value does not walk through")
	}
}

// walk finds strings that came through in fields that are not kept.
func walk(t *testing.T, v reflect.Value, name string, kept map[string]bool) {
	t.Helper()
	switch v.Kind() {
	case reflect.String:
		if v.String() == secret && !kept[name] {
			t.Errorf("field %s came through", name)
		}
	case reflect.Pointer:
		if !v.IsNil() {
			walk(t, v.Elem(), name, kept)
		}
	case reflect.Slice:
		for i := range v.Len() {
			walk(t, v.Index(i), name, kept)
		}
	case reflect.Map:
		for each := v.MapRange(); each.Next(); {
			walk(t, each.Key(), "", kept)
			walk(t, each.Value(), name, kept)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				walk(t, v.Field(i), f.Name, kept)
			}
		}
	}
}
