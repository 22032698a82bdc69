package packets

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/testutil"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func TestParseEnd(t *testing.T) {
	for text, want := range map[string]End{
		"same":                          {Address: Same, Port: Same},
		"same:same":                     {Address: Same, Port: Same},
		"same:80":                       {Address: Same, Port: Inside, Ports: nat.Ports{First: 80, Last: 80}},
		"203.0.113.7":                   {Address: Inside, Prefix: prefix("203.0.113.7/32")},
		"203.0.113.7:same":              {Address: Inside, Prefix: prefix("203.0.113.7/32"), Port: Same},
		"203.0.113.7:80":                {Address: Inside, Prefix: prefix("203.0.113.7/32"), Port: Inside, Ports: nat.Ports{First: 80, Last: 80}},
		"203.0.113.7:1024-65535":        {Address: Inside, Prefix: prefix("203.0.113.7/32"), Port: Inside, Ports: nat.Ports{First: 1024, Last: 65535}},
		"203.0.113.7/24":                {Address: Inside, Prefix: prefix("203.0.113.0/24")},
		"netmap:203.0.113.0/24":         {Address: Netmap, Prefix: prefix("203.0.113.0/24")},
		"netmap:203.0.113.0/24:same":    {Address: Netmap, Prefix: prefix("203.0.113.0/24"), Port: Same},
		"2001:db8::7":                   {Address: Inside, Prefix: prefix("2001:db8::7/128")},
		"2001:db8::/64":                 {Address: Inside, Prefix: prefix("2001:db8::/64")},
		"[2001:db8::7]":                 {Address: Inside, Prefix: prefix("2001:db8::7/128")},
		"[2001:db8::7]:80":              {Address: Inside, Prefix: prefix("2001:db8::7/128"), Port: Inside, Ports: nat.Ports{First: 80, Last: 80}},
		"[2001:db8::7]:same":            {Address: Inside, Prefix: prefix("2001:db8::7/128"), Port: Same},
		"[2001:db8::/64]:1-9":           {Address: Inside, Prefix: prefix("2001:db8::/64"), Port: Inside, Ports: nat.Ports{First: 1, Last: 9}},
		"netmap:2001:db8:1::/48":        {Address: Netmap, Prefix: prefix("2001:db8:1::/48")},
		"netmap:[2001:db8:1::/48]:same": {Address: Netmap, Prefix: prefix("2001:db8:1::/48"), Port: Same},
		"2001:db8::7:80":                {Address: Inside, Prefix: prefix("2001:db8::7:80/128")}, // an address, as it stands
	} {
		if got, err := ParseEnd(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}
}

func TestParseEndRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                         `"" is not an address`,
		"any":                      `"any" is not an address`,
		"203.0.113":                `"203.0.113" is not an address`,
		"203.0.113.7/33":           `"203.0.113.7/33" is not a prefix`,
		"203.0.113.7/":             `"203.0.113.7/" is not a prefix`,
		"203.0.113.7:":             `ports "": want PORT`,
		"same:":                    `ports "": want PORT`,
		"203.0.113.7:0":            `ports "0": want PORT`,
		"203.0.113.7:9-5":          `ports "9-5": want PORT`,
		"203.0.113.7:65536":        `ports "65536": want PORT`,
		"203.0.113.7:http":         `ports "http": want PORT`,
		"203.0.113.7:80:90":        `"203.0.113.7:80:90" is not an address`,
		"[2001:db8::7":             "the bracket is not closed",
		"[2001:db8::7]80":          `"80" behind the bracket`,
		"[2001:db8::]/32":          `"/32" behind the bracket`,
		"[2001:db8::7]:":           `ports "": want PORT`,
		"[203.0.113.7]:80":         `"203.0.113.7" in brackets is not IPv6`,
		"[same]:80":                `"same" in brackets is not IPv6`,
		"netmap:":                  `"" is not an address`,
		"netmap:same":              "netmap needs a prefix",
		"netmap:203.0.113.7":       "netmap needs a prefix",
		"netmap:netmap:1.2.3.0/24": `"netmap" is not an address`,
		"fe80::1%eth0":             "packets carry it as fe80::1",
		"fe80::1%eth0/64":          "is not a prefix",
		"::ffff:203.0.113.7/120":   "is not a prefix",
		"::ffff:203.0.113.7":       "packets carry it as 203.0.113.7",
	} {
		got, err := ParseEnd(text)
		if err == nil || !strings.Contains(err.Error(), want) || got != (End{}) {
			t.Errorf("%q: %+v, %v; want an error with %q", text, got, err, want)
		}
		if err != nil && !strings.HasPrefix(err.Error(), "read expected mapping") {
			t.Errorf("%q: %v does not say what was read", text, err)
		}
	}
}

func TestFits(t *testing.T) {
	const sent = "198.18.0.5:1024"
	for _, tt := range []struct{ rule, sent, got, no string }{ // got fits, no does not
		{"same", sent, sent, "198.18.0.5:1025"},
		{"same", sent, sent, "198.18.0.6:1024"},
		{"same:80", sent, "198.18.0.5:80", sent},
		{"203.0.113.7", sent, "203.0.113.7:9", "203.0.113.8:1024"},
		{"203.0.113.7:same", sent, "203.0.113.7:1024", "203.0.113.7:1025"},
		{"203.0.113.7:2000-3000", sent, "203.0.113.7:2000", "203.0.113.7:1999"},
		{"203.0.113.7:2000-3000", sent, "203.0.113.7:3000", "203.0.113.7:3001"},
		{"203.0.113.0/28", sent, "203.0.113.15:1", "203.0.113.16:1"},
		{"netmap:203.0.113.0/24", sent, "203.0.113.5:9", "203.0.113.6:9"},
		{"netmap:203.0.113.0/24", sent, "203.0.113.5:1024", "203.0.112.5:1024"},
		{"netmap:203.0.113.16/28", "198.18.0.37:1", "203.0.113.21:1", "203.0.113.37:1"},
		{"netmap:203.0.113.16/28", "198.18.0.37:1", "203.0.113.21:1", "203.0.113.20:1"},
		{"netmap:203.0.113.0/24:same", sent, "203.0.113.5:1024", "203.0.113.5:9"},
		{"netmap:0.0.0.0/0", sent, sent, "198.18.0.6:1024"},
		{"netmap:203.0.113.5/32", sent, "203.0.113.5:1", "203.0.113.6:1"},
		{"netmap:2001:db8:1::/61", "[fd00:0:0:f:e::1]:1", "[2001:db8:1:7:e::1]:1", "[2001:db8:1:f:e::1]:1"},
		{"[2001:db8::/64]:same", "[fd00::1]:5", "[2001:db8::9]:5", "[2001:db8::9]:6"},
	} {
		end, err := ParseEnd(tt.rule)
		if err != nil {
			t.Fatal(err)
		}
		from, got, no := netip.MustParseAddrPort(tt.sent), netip.MustParseAddrPort(tt.got), netip.MustParseAddrPort(tt.no)
		if !end.Fits(from, got) {
			t.Errorf("%s: %v sent, %v does not fit", tt.rule, from, got)
		}
		if end.Fits(from, no) {
			t.Errorf("%s: %v sent, %v fits", tt.rule, from, no)
		}
	}
}

func TestFitsAny(t *testing.T) {
	if !(End{}).Fits(tuple4.Src, tuple6.Dst) || (Expectation{}).Given() {
		t.Error("nothing is expected, and something does not fit")
	}
	if !(Expectation{Destination: End{Address: Same}}).Given() {
		t.Error("something is expected")
	}
}

// Addresses of the other family fit no prefix, and are no reason to panic.
func TestFitsOtherFamily(t *testing.T) {
	for _, rule := range []string{"same", "203.0.113.0/24", "2001:db8::/64", "netmap:203.0.113.0/24", "netmap:2001:db8::/64"} {
		end, err := ParseEnd(rule)
		if err != nil {
			t.Fatal(err)
		}
		for _, sent := range []netip.AddrPort{tuple4.Src, tuple6.Src, {}} {
			for _, got := range []netip.AddrPort{tuple4.Dst, tuple6.Dst, {}} {
				want := end.Address == Inside && end.Prefix.Contains(got.Addr()) || end.Address == Same && sent == got
				if fits := end.Fits(sent, got); fits && !want {
					t.Errorf("%s: %v sent, %v fits", rule, sent, got)
				}
			}
		}
	}
}

func TestExpectationCheck(t *testing.T) {
	v4, v6 := End{Address: Inside, Prefix: prefix("203.0.113.0/24")}, End{Address: Netmap, Prefix: prefix("2001:db8::/64")}
	for _, tt := range []struct {
		expect Expectation
		ipv6   bool
		good   bool
	}{
		{Expectation{}, false, true},
		{Expectation{}, true, true},
		{Expectation{Source: v4}, false, true},
		{Expectation{Source: v4}, true, false},
		{Expectation{Destination: v6}, true, true},
		{Expectation{Destination: v6}, false, false},
		{Expectation{Source: v4, Destination: v6}, false, false},
		{Expectation{Source: End{Address: Same}}, true, true},
	} {
		if err := tt.expect.Check(tt.ipv6); (err == nil) != tt.good {
			t.Errorf("%+v, IPv6 %v: %v", tt.expect, tt.ipv6, err)
		}
	}
}

// FuzzParseEnd: what is read is consistent, and fits itself.
func FuzzParseEnd(f *testing.F) {
	for _, seed := range []string{"same", "same:80", "203.0.113.7:1-9", "netmap:203.0.113.0/24:same", "[2001:db8::/64]:80", "2001:db8::1", "[", "netmap:["} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		defer testutil.Bounded(t, len(text))()
		end, err := ParseEnd(text)
		switch {
		case err != nil && end != (End{}):
			t.Fatalf("%q: %+v and %v", text, end, err)
		case err != nil:
			return
		case (end.Address == Same) == end.Prefix.IsValid(), end.Prefix != end.Prefix.Masked():
			t.Fatalf("%q: %+v", text, end)
		case (end.Port == Inside) != (end.Ports.Len() > 0):
			t.Fatalf("%q: %+v", text, end)
		}
		address := netip.MustParseAddr("198.18.0.1")
		if end.Address != Same {
			address = end.Prefix.Addr()
		}
		at := netip.AddrPortFrom(address, end.Ports.First)
		if !end.Fits(at, at) {
			t.Fatalf("%q: %v does not fit", text, at)
		}
	})
}
