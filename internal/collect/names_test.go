//go:build linux

package collect

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/natkit/natkit/internal/anonymize"
	"github.com/natkit/natkit/internal/names"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
)

// secretNames have words that natkit uses, too: these are as secret where people gave them.
func secretNames() *snapshot.Names {
	return &snapshot.Names{
		From: 4026531833,
		Addresses: map[netip.Addr]snapshot.Name{
			netip.MustParseAddr("198.18.7.1"): {Kind: snapshot.NameInterface, Text: "eth0", Source: names.SourceLinks},
			netip.MustParseAddr("10.244.1.7"): {Kind: snapshot.NamePod, Text: "acmeshop/acmeweb-7d9f", PID: 7, Source: names.SourceContainerd},
			netip.MustParseAddr("10.244.1.8"): {Kind: snapshot.NameContainer, Text: "conntrack-gateway", Source: names.SourceDocker},
			netip.MustParseAddr("10.244.1.9"): {Kind: snapshot.NameHosts, Text: "ldap1.acmecorp.example", Source: names.SourceHosts},
			netip.MustParseAddr("fd00::9"):    {Kind: snapshot.NameHost, Text: "host", Source: names.SourceInit},
		},
		Sockets: map[string]snapshot.Name{"tcp 198.18.7.1:80": {Kind: snapshot.NameProcess, Text: "acmed", PID: 812, Unit: "acmeunit.service", Source: names.SourceComm}},
		Netns:   map[uint64]snapshot.Name{4026532327: {Kind: snapshot.NameNetns, Text: "acmenet", Source: names.SourceNetns}},
	}
}

func writeNames(t *testing.T, o BundleOptions, read func(context.Context, *netns.Handle) *snapshot.Names) []byte {
	t.Helper()
	var file bytes.Buffer
	if _, err := WriteBundle(t.Context(), &file, RecordOptions{Options: Options{Names: read}, Bundle: o}); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

func gives(n *snapshot.Names) func(context.Context, *netns.Handle) *snapshot.Names {
	return func(context.Context, *netns.Handle) *snapshot.Names { return n }
}

// TestBundlesCarryNames: a bundle has the names that were read, and none where these were not asked for.
func TestBundlesCarryNames(t *testing.T) {
	rec, err := ReadBundle(bytes.NewReader(writeNames(t, BundleOptions{}, gives(secretNames()))), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range rec.Snapshots {
		if d := cmp.Diff(secretNames(), s.Names, cmpopts.EquateComparable(netip.Addr{})); d != "" {
			t.Error(d)
		}
	}
	rec, err = ReadBundle(bytes.NewReader(writeNames(t, BundleOptions{}, nil)), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range rec.Last().Parts {
		if p.Name == snapshot.PartNames {
			t.Errorf("names were not asked for: %+v", p)
		}
	}
	if rec.Last().Names != nil {
		t.Errorf("%+v", rec.Last().Names)
	}
}

// TestNamesAreAnonymized: no name that people gave comes through, and what stands for it is the same each time.
func TestNamesAreAnonymized(t *testing.T) {
	file := writeNames(t, BundleOptions{}, gives(secretNames()))
	anonymous := func() []byte {
		var out bytes.Buffer
		if err := Rewrite(&out, bytes.NewReader(file), BundleOptions{Anonymize: anonymize.New(anonymize.Key{})}); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	live := writeNames(t, BundleOptions{Anonymize: anonymize.New(anonymize.Key{})}, gives(secretNames()))
	for _, bundle := range [][]byte{anonymous(), live} {
		packed, err := gzip.NewReader(bytes.NewReader(bundle))
		text, errRead := io.ReadAll(packed)
		if err = errors.Join(err, errRead); err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{"acme", "7d9f", "conntrack-gateway", "ldap1", "10.244.1.", "198.18.7."} {
			if bytes.Contains(text, []byte(secret)) {
				t.Errorf("%q comes through", secret)
			}
		}
		rec, err := ReadBundle(bytes.NewReader(bundle), nil)
		if err != nil {
			t.Fatal(err)
		}
		got, a := rec.Last().Names, anonymize.New(anonymize.Key{})
		for address, was := range secretNames().Addresses {
			is, ok := got.Addresses[a.Addr(address)]
			kept := was.Kind == snapshot.NameInterface || was.Kind == snapshot.NameHost
			if !ok || is.Kind != was.Kind || is.PID != was.PID || is.Source != was.Source || (is.Text == was.Text) != kept || is.Text == "" {
				t.Errorf("%s: %+v becomes %+v", address, was, is)
			}
		}
		if len(got.Sockets) != 1 || len(got.Netns) != 1 || strings.Contains(got.Netns[4026532327].Text, "acme") {
			t.Errorf("%+v", got)
		}
	}
	again, err := ReadBundle(bytes.NewReader(anonymous()), nil)
	if err != nil {
		t.Fatal(err)
	}
	first, _ := ReadBundle(bytes.NewReader(anonymous()), nil)
	if d := cmp.Diff(first.Last().Names, again.Last().Names, cmpopts.EquateComparable(netip.Addr{})); d != "" {
		t.Error(d)
	}
}
