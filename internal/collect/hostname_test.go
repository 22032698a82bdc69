package collect

import (
	"bytes"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/anonymize"
	"github.com/natkit/natkit/internal/snapshot"
)

func TestParseOSRelease(t *testing.T) {
	for text, want := range map[string]string{
		"PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian\nVERSION_ID=\"12\"\n": "debian 12",
		"ID='arch'\n":       "arch",
		"VERSION_ID=1\n":    "",
		"":                  "",
		"ID\n=\n\x00\xff\n": "",
	} {
		if got := parseOSRelease(strings.NewReader(text)); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestAnonymousHost: a bundle that is anonymized names neither its host nor a distribution of its own.
func TestAnonymousHost(t *testing.T) {
	for _, host := range []snapshot.Host{{Name: "acme-gw7", Distribution: "debian 12"}, {Name: "acme-gw7", Distribution: "acmeos 3"}, {Name: "gateway"}, {Name: "fwd-4"}} {
		var out bytes.Buffer
		b, err := NewBundle(&out, BundleOptions{Host: host, Anonymize: anonymize.New(anonymize.Key{})})
		if err == nil {
			err = b.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		r, err := snapshot.NewBundleReader(&out, nil)
		if err != nil {
			t.Fatal(err)
		}
		h := r.Header.Host
		if h.Name == "" || h.Name == host.Name || strings.Contains(h.Name+h.Distribution, "acme") {
			t.Errorf("%v became %v", host, h)
		}
		if host.Distribution == "debian 12" && h.Distribution != host.Distribution {
			t.Errorf("the distribution became %q", h.Distribution)
		}
	}
}
