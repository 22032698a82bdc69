package load

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseTarget(t *testing.T) {
	for _, tt := range []struct {
		url  string
		want Target
		err  string // part of it
	}{
		{"http://198.18.0.1:8080/a?b=c", Target{"198.18.0.1", 8080, "198.18.0.1:8080", "/a?b=c"}, ""},
		{"http://[2001:db8::1]/", Target{"2001:db8::1", 80, "[2001:db8::1]", "/"}, ""},
		{"localhost:8080", Target{"localhost", 8080, "localhost:8080", "/"}, ""},
		{"HTTP://example", Target{"example", 80, "example", "/"}, ""},
		{"http://h/a b", Target{"h", 80, "h", "/a%20b"}, ""},
		{"http://[fe80::1%25eth0]:81/", Target{"fe80::1%eth0", 81, "[fe80::1]:81", "/"}, ""},
		{"http://[fe80::1%253]", Target{"fe80::1%3", 80, "[fe80::1]", "/"}, ""},
		{"http://[fe80::1]/", Target{}, "needs an interface"},
		{"http://[2001:db8::1%25eth0]/", Target{}, "only a link-local address"},
		{"http://[::ffff:169.254.0.1%25eth0]/", Target{}, "only a link-local address"},
		{"", Target{}, "scheme must be http"},
		{"https://h/", Target{}, "scheme must be http"},
		{"http:///x", Target{}, "names no host"},
		{"http://u:p@h/", Target{}, "user names"},
		{"http://h:0/", Target{}, "port must be"},
		{"http://h:65536/", Target{}, "port must be"},
		{"http://h:x/", Target{}, "invalid port"},
		{"http://h/\r\nX: y", Target{}, "invalid control character"},
		{"http://h/" + strings.Repeat("x", maxTarget), Target{}, "longer than"},
	} {
		got, err := ParseTarget(tt.url)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q: error %v, want one line with %q", tt.url, err, tt.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", tt.url, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tt.url, diff)
		}
	}
}

func TestCheckedFillsDefaults(t *testing.T) {
	got, _, err := Config{URL: "http://h/", Requests: 1}.Checked()
	want := Config{URL: "http://h/", Requests: 1, Concurrency: 1, Timeout: DefaultTimeout, Close: CloseServer}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestCheckedRefuses(t *testing.T) {
	good := Config{URL: "http://198.18.0.1/", Requests: 100, Concurrency: 10}
	for _, tt := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.URL = "ftp://h/" }, "scheme"},
		{func(c *Config) { c.Concurrency = -1 }, "concurrency -1"},
		{func(c *Config) { c.Concurrency = 101 }, "greater than the number of requests"},
		{func(c *Config) { c.Requests = -1 }, "requests -1"},
		{func(c *Config) { c.Requests = 0 }, "never end"},
		{func(c *Config) { c.Duration = -1 }, "duration"},
		{func(c *Config) { c.Timeout = time.Microsecond }, "timeout"},
		{func(c *Config) { c.Rate = -1 }, "rate"},
		{func(c *Config) { c.Workers = 5000 }, "workers"},
		{func(c *Config) { c.AbortAfter = -1 }, "abort"},
		{func(c *Config) { c.Close = "never" }, "close mode"},
		{func(c *Config) { c.KeepAlive, c.PerConnection = true, -1 }, "requests per connection"},
		{func(c *Config) { c.PerConnection = 5 }, "keepalive"},
		{func(c *Config) { c.Batch = -1 }, "batches of -1"},
		{func(c *Config) { c.Batch, c.Rate = 5, 10 }, "batches and a rate"},
		{func(c *Config) { c.Pause = time.Second }, "a pause requires"},
		{func(c *Config) { c.ConnectTo = []netip.Addr{netip.MustParseAddr("0.0.0.0")} }, "connect to 0.0.0.0"},
		{func(c *Config) { c.ConnectTo = []netip.Addr{netip.MustParseAddr("fe80::1")} }, "connect to fe80::1: the link-local"},
		{func(c *Config) {
			c.ConnectTo = []netip.Addr{netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("2001:db8::1")}
		}, "different families"},
		{func(c *Config) {
			c.ConnectTo, c.Sources = []netip.Addr{netip.MustParseAddr("2001:db8::1")}, []netip.Addr{netip.MustParseAddr("198.18.0.1")}
		}, "same family"},
		{func(c *Config) { c.Sources = []netip.Addr{netip.MustParseAddr("2001:db8::1")} }, "family"},
		{func(c *Config) { c.Sources = []netip.Addr{{}} }, "source address"},
		{func(c *Config) {
			c.URL, c.Sources = "http://[fe80::1%25eth0]/", []netip.Addr{netip.MustParseAddr("fe80::2")}
		}, "source address fe80::2: the link-local address fe80::2 needs an interface"},
		{func(c *Config) { c.Sources = []netip.Addr{netip.MustParseAddr("0.0.0.0")} }, "source address"},
	} {
		c := good
		tt.change(&c)
		if _, _, err := c.Checked(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("error %v, want one with %q", err, tt.want)
		}
	}
}

func TestParseSources(t *testing.T) {
	got, err := ParseSources("198.18.0.254-198.18.1.1")
	want := []string{"198.18.0.254", "198.18.0.255", "198.18.1.0", "198.18.1.1"}
	var text []string
	for _, a := range got {
		text = append(text, a.String())
	}
	if diff := cmp.Diff(want, text); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if one, err := ParseSources("2001:db8::5"); err != nil || len(one) != 1 {
		t.Errorf("%v, %v", one, err)
	}
	for _, bad := range []string{"", "x", "198.18.0.2-198.18.0.1", "198.18.0.1-2001:db8::1", "10.0.0.0-10.255.255.255", "198.18.0.1-", "198.18.0.0/33", "198.18.0.0/15", "2001:db8::/64", "/8"} {
		if got, err := ParseSources(bad); err == nil || got != nil {
			t.Errorf("%q: %d addresses, error %v", bad, len(got), err)
		}
	}
	for text, want := range map[string]struct {
		n           int
		first, last string
	}{
		"198.18.0.0/29":   {6, "198.18.0.1", "198.18.0.6"}, // not the network, not the broadcast address
		"198.18.0.5/29":   {6, "198.18.0.1", "198.18.0.6"},
		"198.18.0.4/31":   {2, "198.18.0.4", "198.18.0.5"}, // RFC 3021
		"198.18.0.4/32":   {1, "198.18.0.4", "198.18.0.4"},
		"198.18.0.0/16":   {65534, "198.18.0.1", "198.18.255.254"},
		"2001:db8::/125":  {7, "2001:db8::1", "2001:db8::7"},
		"2001:db8::2/127": {2, "2001:db8::2", "2001:db8::3"},
	} {
		got, err := ParseSources(text)
		if err != nil || len(got) != want.n || got[0].String() != want.first || got[want.n-1].String() != want.last {
			t.Errorf("%s: %d addresses, %v", text, len(got), err)
		}
	}
	if all, err := ParseSources("255.255.255.254-255.255.255.255"); err != nil || len(all) != 2 {
		t.Errorf("the end of the address space: %v, %v", all, err)
	}
}

func TestRequestBytes(t *testing.T) {
	target := Target{Host: "h", Port: 81, Authority: "h:81", Path: "/p?q"}
	plain := "GET /p?q HTTP/1.0\r\nHost: h:81\r\nUser-Agent: natkit\r\nAccept: */*\r\n\r\n"
	if got := string(RequestBytes(target, Config{Close: CloseServer})); got != plain {
		t.Errorf("%q", got)
	}
	for _, c := range []Config{{KeepAlive: true, Close: CloseServer}, {Close: CloseClient}, {Close: CloseReset}} {
		if got := string(RequestBytes(target, c)); !strings.HasSuffix(got, "\r\nConnection: keep-alive\r\n\r\n") {
			t.Errorf("%+v: %q", c, got)
		}
	}
}
