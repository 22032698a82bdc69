package tune

import (
	"testing"

	"github.com/natkit/natkit/internal/snapshot"
)

func TestDefaultFor(t *testing.T) {
	const gib = 1 << 30
	for _, tc := range []struct {
		name, release string
		memory        uint64
		want          string
	}{
		{"net.netfilter.nf_conntrack_udp_timeout_stream", "5.3.18", gib, "unknown"},
		{"net.netfilter.nf_conntrack_udp_timeout_stream", "5.4.0", gib, "120"},
		{"net.netfilter.nf_conntrack_events", "5.10.262", gib, "1"},
		{"net.netfilter.nf_conntrack_events", "5.15.0", gib, "unknown"},
		{"net.netfilter.nf_conntrack_events", "6.1.0", gib, "2"},
		{"net.netfilter.nf_conntrack_sctp_timeout_established", "6.1.0", gib, "unknown"},
		{"net.netfilter.nf_conntrack_sctp_timeout_established", "6.12.1", gib, "210"},
		{"net.netfilter.nf_conntrack_buckets", "5.15.0", 8 * gib, "unknown"},
		{"net.ipv4.tcp_tw_reuse", "6.1.0-13-amd64", gib, "2"},
		{"net.ipv4.ip_local_reserved_ports", "6.1.0", gib, ""},
		{"net.ipv4.conf.eth0/100.rp_filter", "6.1.0", gib, "0"},
		{"net.netfilter.nf_conntrack_buckets", "5.10.0", 8 * gib, "65536"},
		{"net.netfilter.nf_conntrack_max", "5.10.0", 8 * gib, "262144"},
		{"net.netfilter.nf_conntrack_max", "6.18.0", 8 * gib, "262144"},
		{"net.netfilter.nf_conntrack_buckets", "6.18.0", 2 * gib, "65536"},
		{"net.netfilter.nf_conntrack_buckets", "6.18.0", gib / 2, "4096"},
		{"net.netfilter.nf_conntrack_buckets", "6.18.0", 1 << 20, "1024"},
		{"net.netfilter.nf_conntrack_expect_max", "6.18.0", 8 * gib, "4096"},
		{"net.ipv4.tcp_max_tw_buckets", "6.18.0", 8 * gib, "131072"},
		{"net.ipv4.tcp_max_syn_backlog", "6.18.0", 8 * gib, "2048"},
		{"net.netfilter.nf_conntrack_count", "6.18.0", gib, "unknown"},
		{"net.netfilter.nf_conntrack_of_tomorrow", "6.18.0", gib, "unknown"},
	} {
		s := &snapshot.Snapshot{Kernel: snapshot.Kernel{Release: tc.release}, Memory: &snapshot.Memory{TotalBytes: tc.memory},
			Sysctls: snapshot.Sysctls{"net.ipv4.tcp_ehash_entries": "-262144"}}
		known, _ := FindKnown(tc.name)
		got, ok := known.DefaultFor(s)
		if !ok {
			got = "unknown"
		}
		if got != tc.want {
			t.Errorf("%s of Linux %s with %d bytes: default %q, want %q", tc.name, tc.release, tc.memory, got, tc.want)
		}
	}
	limit, _ := FindKnown(snapshot.ConntrackMax)
	if got, ok := limit.DefaultFor(&snapshot.Snapshot{Kernel: snapshot.Kernel{Release: "6.1"}}); ok {
		t.Errorf("without the machine's memory the default is %q", got)
	}
}
