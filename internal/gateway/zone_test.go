package gateway

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/nat"
)

const twoZones = "interfaces: {wan: eth0, lan: [{interface: eth1, zone: red}, {interface: eth2, zone: blue}, {interface: eth3, zone: red}, eth4]}\n"

func zoned(t *testing.T, text string) *File {
	t.Helper()
	f, err := Parse("gateway.yaml", []byte("gateway:\n"+indentText(text)))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return f
}

// Zones have numbers in the order of the file, and the table of their VRF where they are in one.
func TestZones(t *testing.T) {
	f := zoned(t, twoZones+"zone-marks: 0x300\nnat: [snat: {in: eth2, to: 203.0.113.7}]\n")
	vrf := &VRF{"v", 10}
	p, err := Compile(&f.Config, Facts{Interfaces: []Interface{{Name: "eth2", VRF: vrf}, {Name: "v"}}})
	if err != nil {
		t.Fatal(err)
	}
	want := []Zone{{"red", []string{"eth1", "eth3"}, 26001, 0x100, 26001, ""}, {"blue", []string{"eth2"}, 26002, 0x200, 10, "v"}}
	if diff := cmp.Diff(want, p.Zones); diff != "" || p.ZoneMarks != 0x300 {
		t.Errorf("%#x %s", p.ZoneMarks, diff)
	}
	if lan := []string{"eth1", "eth2", "eth3", "eth4", "v"}; !slices.Equal(p.LAN, lan) || !slices.Equal(p.Sources[0].In, []string{"eth2", "v"}) {
		t.Errorf("lan %q, in %q", p.LAN, p.Sources[0].In)
	}
	if got := string(Marshal(&f.Config)); !strings.Contains(got, "lan: [{interface: eth1, zone: red}, {interface: eth2, zone: blue}, {interface: eth3, zone: red}, eth4]") {
		t.Error(got)
	}
}

// What has no connection is compared by the interfaces of the zone.
func TestByInterface(t *testing.T) {
	p := &Plan{Zones: []Zone{{Name: "red", Interfaces: []string{"eth1", "eth3"}, VRF: "v"}}}
	for _, c := range []struct {
		in   []string
		want string
	}{{nil, "eth1 eth3 v"}, {[]string{"eth3", "eth4"}, "eth3"}, {[]string{"eth4"}, "none"}} {
		m, some := p.ByInterface(nat.Match{Zone: "red", In: c.in})
		if got := strings.Join(m.In, " "); some && (got != c.want || m.Zone != "") || some == (c.want == "none") {
			t.Errorf("in %q: %q, %v", c.in, got, some)
		}
	}
}

func TestParseZones(t *testing.T) {
	for text, want := range map[string]string{
		twoZones + "nat: [masquerade: {zone: rde}]\n":                                        `rde is no zone; did you mean red?`,
		twoZones + "nat: [netmap: {inside: 10.0.0.0/24, outside: 198.18.0.0/24, zone: x}]\n": `x is no zone: name it below interfaces`,
		"interfaces: {lan: [{interface: eth1}, {interface: eth1, zone: red}]}\n":             "eth1 is there twice",
		"interfaces: {lan: [{interface: \"ppp*\", zone: red}]}\n":                            "a zone has single interfaces",
		"interfaces: {lan: [{zone: red}]}\n":                                                 "interface",
		"interfaces: {lan: [{interface: eth1, zone: \"a b\"}]}\n":                            "a name is one word",
		"interfaces: {lan: [{interface: eth1, weight: 1}]}\n":                                "weight",
	} {
		_, err := Parse("gateway.yaml", []byte("gateway:\n"+indentText(text)))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

func TestCheckZones(t *testing.T) {
	const both = "nat: [snat: {from: 10.0.0.0/24, zone: red, to: 203.0.113.7}, snat: {from: 10.0.0.0/24, zone: blue, to: 203.0.113.8}]\n"
	for text, want := range map[string][]string{
		twoZones + both:                                    nil,
		twoZones + "nat: [masquerade: {}]\n":               nil,
		twoZones + strings.Replace(both, "blue", "red", 1): {"rules-overlap"},
		twoZones + "nat: [masquerade: {zone: red}]\n":      {"zone-untranslated"},
		twoZones + "nat: [masquerade: {}, static: {inside: 10.0.0.2, outside: 203.0.113.7, zone: red}, static: {inside: 10.0.0.2, outside: 203.0.113.8, zone: blue}]\n":                nil,
		twoZones + "nat: [netmap: {inside: 10.0.0.0/24, outside: 198.18.1.0/24, zone: red}, netmap: {inside: 10.0.0.0/24, outside: 198.18.2.0/24, zone: blue}]\n":                      nil,
		twoZones + "nat: [masquerade: {}, static: {inside: 10.0.0.2, outside: 203.0.113.7, stateless: on}]\n":                                                                          {"stateless-and-zones"},
		twoZones + "nat: [masquerade: {}, notrack: {on: 203.0.113.7, port: udp/53}]\n":                                                                                                 {"stateless-and-zones"},
		twoZones + "nat: [masquerade: {}, masquerade: {user: 33, zone: red}]\n":                                                                                                        {"rule-never-matches"},
		twoZones + "nat: [masquerade: {}, dnat: {on: 203.0.113.7, port: tcp/80, to: \":3128\", zone: red}]\n":                                                                          {"zone-is-inside"},
		twoZones + "nat: [masquerade: {mark: 0x10000000}]\n":                                                                                                                           {"mark-collides"},
		twoZones + "nat: [masquerade: {mark: 0x10/0xff}]\n":                                                                                                                            nil,
		"interfaces: {wan: eth0, lan: [{interface: a, zone: a}, {interface: b, zone: b}, {interface: c, zone: c}, {interface: d, zone: d}]}\nzone-marks: 0x3\nnat: [masquerade: {}]\n": {"too-many-zones"},
		twoZones + "helpers: ftp\nnat: [masquerade: {}]\n":                                                                                                                             {"helpers-and-zones", "helpers-open"},
		"interfaces: {wan: eth0, lan: eth1}\nzone-marks: 0xf0\nnat: [masquerade: {}]\n":                                                                                                {"marks-unused"},
		"interfaces: {wan: [{interface: eth0}, {interface: eth1}], lan: [{interface: eth2, zone: red}]}\nzone-marks: 0xc000000\nnat: [masquerade: {}]\n":                               {"mark-collides"},
	} {
		var got []string
		for _, found := range Check(zoned(t, text), Facts{}) {
			got = append(got, found.ID)
		}
		if slices.Sort(got); len(got)+len(want) > 0 && !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}

// On a host a rule that leads to hosts of several zones has to say which.
func TestCheckZonesOnHost(t *testing.T) {
	file := zoned(t, "interfaces: {wan: eth0, lan: [{interface: eth1, zone: red}, {interface: eth2, zone: blue}, {interface: eth3, zone: red}]}\n"+
		"nat: [masquerade: {}, dnat: {on: 203.0.113.7, port: tcp/80, to: 10.0.0.2}, dnat: {on: 203.0.113.7, port: tcp/81, to: 10.0.0.2, zone: blue}, dnat: {on: 203.0.113.7, port: tcp/82, to: 10.1.0.2}]\n")
	at := func(name, prefix string) Interface {
		return Interface{Name: name, Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix(prefix)}}
	}
	facts := Facts{Known: true, Interfaces: []Interface{at("eth0", "203.0.113.7/24"), at("eth1", "10.0.0.1/24"), at("eth2", "10.0.0.1/24"), at("eth3", "10.1.0.1/24")},
		Inside: []RouteInside{{Interface: "eth1", To: netip.MustParsePrefix("10.0.0.0/24")}, {Interface: "eth3", To: netip.MustParsePrefix("10.1.0.0/24")}}}
	check := func(edit func(*Facts)) (ids []string) {
		other := facts
		other.Interfaces = slices.Clone(facts.Interfaces)
		edit(&other)
		for _, found := range Check(file, other) {
			if strings.Contains(found.ID, "zone") || strings.HasSuffix(found.ID, "taken") {
				ids = append(ids, found.ID)
			}
		}
		return ids
	}
	for want, edit := range map[string]func(*Facts){
		"": func(*Facts) {},
		"zone-missing": func(f *Facts) {
			f.Inside = append(f.Inside, RouteInside{Interface: "eth2", To: netip.MustParsePrefix("10.0.0.0/24")})
		},
		"zone-missing beside": func(f *Facts) { // by a network of no zone
			f.Interfaces = append(f.Interfaces, at("eth4", "10.0.0.1/24"))
		},
		" beside": func(f *Facts) { // the longer prefix is clear, and one that is down has no route
			down := at("eth5", "10.0.0.1/24")
			down.Up = false
			f.Inside = append(f.Inside[1:], RouteInside{Interface: "eth1", To: netip.MustParsePrefix("10.0.0.0/16")})
			f.Interfaces = append(f.Interfaces, at("eth4", "10.0.0.1/24"), down)
		},
		"zone-of-two-vrfs": func(f *Facts) { f.Interfaces[3].VRF = &VRF{"v", 10} },
		"mark-taken":       func(f *Facts) { f.Rules = []PolicyRule{{Priority: 100, Mark: 0x80000000, Mask: 0x80000000, Table: 7}} },
		"rule-taken":       func(f *Facts) { f.Rules = []PolicyRule{{Priority: 502, Table: 7}} },
	} {
		want = strings.TrimSuffix(want, " beside")
		if got := strings.Join(check(edit), " "); got != want {
			t.Errorf("%q: %s", want, got)
		}
	}
	if got := check(func(f *Facts) { f.Rules = []PolicyRule{{Priority: 7, Table: 26002}} }); !slices.Equal(got, []string{"rule-taken"}) {
		t.Error(got)
	}
}
