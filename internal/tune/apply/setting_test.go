package apply

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestSetting: files that name a sysctl, in the order in which they are read.
func TestSetting(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"etc/sysctl.d/10-a.conf":     "net.netfilter.nf_conntrack_buckets = 1\n",
		"usr/lib/sysctl.d/10-a.conf": "net.ipv4.ip_forward = 1\n", // masked by the one in etc
		"usr/lib/sysctl.d/05-b.conf": "net/netfilter/nf_conntrack_buckets=2\n",
		"etc/sysctl.d/99-c.conf":     "# net.netfilter.nf_conntrack_buckets = 3\n",
		"etc/sysctl.conf":            "net.ipv4.ip_forward=1\n",
		"etc/modprobe.d/nf.conf":     "options nf_conntrack hashsize=4\n",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string][]string{
		"net.netfilter.nf_conntrack_buckets": {"usr/lib/sysctl.d/05-b.conf", "etc/sysctl.d/10-a.conf", "etc/modprobe.d/nf.conf"},
		"net.ipv4.ip_forward":                {"etc/sysctl.conf"},
		"net.ipv4.tcp_tw_reuse":              nil,
	} {
		var got []string
		for _, path := range Setting(root, name) {
			short, _ := filepath.Rel(root, path)
			got = append(got, short)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
