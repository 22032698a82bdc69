package collect

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
)

// Files of kernels of different times, with the names that matter in their order.
const (
	snmpOld = `Ip: Forwarding DefaultTTL InReceives
Ip: 1 64 1000
Icmp: InMsgs InErrors
Icmp: 3 0
Tcp: RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens PassiveOpens AttemptFails EstabResets CurrEstab InSegs OutSegs RetransSegs InErrs OutRsts
Tcp: 1 200 120000 -1 7 13 1 2 4 900 800 5 0 6
Udp: InDatagrams NoPorts
Udp: 10 0
`
	snmpNew = `Tcp: RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens PassiveOpens AttemptFails EstabResets CurrEstab InSegs OutSegs RetransSegs InErrs OutRsts InCsumErrors
Tcp: 1 200 120000 -1 7 13 1 2 4 900 800 5 0 6 0
`
	netstat26 = `TcpExt: SyncookiesSent EmbryonicRsts TW TWRecycled TWKilled PAWSPassive PAWSActive PAWSEstab DelayedACKs
TcpExt: 0 0 21000 0 0 211 0 216576 17
IpExt: InNoRoutes InTruncatedPkts
IpExt: 0 0
`
	netstat510 = `TcpExt: SyncookiesSent EmbryonicRsts TW TWRecycled TWKilled PAWSActive PAWSEstab DelayedACKs TCPSYNChallenge TCPSynRetrans TCPACKSkippedTimeWait
TcpExt: 0 0 21000 0 0 0 216576 17 0 9 3
IpExt: InNoRoutes InTruncatedPkts
IpExt: 0 0
`
	netstat618 = `TcpExt: SyncookiesSent EmbryonicRsts TW TWRecycled TWKilled PAWSActive PAWSEstab BeyondWindow TSEcrRejected PAWSOldAck PAWSTimewait DelayedACKs TCPSYNChallenge TCPSynRetrans TCPACKSkippedTimeWait TcpTimeoutRehash
TcpExt: 0 0 21000 0 0 0 15 0 0 1 512 17 0 9 3 8
IpExt: InNoRoutes InTruncatedPkts
IpExt: 0 0
MPTcpExt: MPCapableSYNRX
MPTcpExt: 0
`
	sockstat4 = "sockets: used 130\nTCP: inuse 12 orphan 1 tw 1180 alloc 14 mem 3\nUDP: inuse 4 mem 2\nFRAG: inuse 0 memory 0\n"
	sockstat6 = "TCP6: inuse 5\nUDP6: inuse 3\n"
)

func TestReadTCP(t *testing.T) {
	files := func(snmp, netstat string) map[string]string {
		return map[string]string{procSNMP: snmp, procNetstat: netstat, procSockstat: sockstat4, procSockstat6: sockstat6}
	}
	sockets := &snapshot.TCPSockets{InUse: 12, InUse6: 5, TimeWait: 1180, Orphans: 1, MemoryPages: 3}
	for _, tc := range []struct {
		name, snmp, netstat string
		want                map[string]uint64
		absent              []string
	}{
		{"2.6.32", snmpOld, netstat26, map[string]uint64{"TcpPassiveOpens": 13, "TcpRetransSegs": 5, "TcpExtPAWSPassive": 211, "TcpExtPAWSEstab": 216576, "IpInReceives": 1000, "UdpInDatagrams": 10},
			[]string{"TcpExtPAWSTimewait", "TcpExtTCPACKSkippedTimeWait", "TcpMaxConn", "MPTcpExtMPCapableSYNRX"}},
		{"5.10", snmpNew, netstat510, map[string]uint64{"TcpExtPAWSEstab": 216576, "TcpExtTCPACKSkippedTimeWait": 3}, []string{"TcpExtPAWSPassive", "TcpExtPAWSTimewait"}},
		{"6.18", snmpNew, netstat618, map[string]uint64{"TcpExtPAWSEstab": 15, "TcpExtPAWSTimewait": 512, "TcpExtTcpTimeoutRehash": 8}, []string{"TcpExtPAWSPassive", "MPTcpExtMPCapableSYNRX"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := readTCP(&fixture{files: files(tc.snmp, tc.netstat)})
			if err != nil {
				t.Fatal(err)
			}
			for name, want := range tc.want {
				if got.Counters[name] != want {
					t.Errorf("%s = %d, want %d", name, got.Counters[name], want)
				}
			}
			for _, name := range tc.absent {
				if v, ok := got.Counters[name]; ok {
					t.Errorf("%s = %d, this kernel has it not, or it is no counter of TCP", name, v)
				}
			}
			if d := cmp.Diff(sockets, got.Sockets); d != "" {
				t.Errorf("sockets (-want +got):\n%s", d)
			}
		})
	}
	for name, broken := range map[string]map[string]string{
		"no file":              {},
		"no counters":          files("IcmpMsg: A\nIcmpMsg: 1\n", netstat618),
		"names only":           files("Tcp: A B\n", netstat618),
		"values of others":     files("Tcp: A\nUdp: 1\n", netstat618),
		"fewer values":         files("Tcp: A B\nTcp: 1\n", netstat618),
		"no number":            files("Tcp: A\nTcp: x\n", netstat618),
		"no lines":             files("what is this", netstat618),
		"netstat is not there": {procSNMP: snmpNew, procSockstat: sockstat4},
	} {
		if got, err := readTCP(&fixture{files: broken}); err == nil || got != nil || !strings.Contains(err.Error(), "/proc/net/") {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// Counters are usable without the sockets, and the error is reported all the same.
func TestReadTCPWithoutSockstat(t *testing.T) {
	for name, text := range map[string]string{"absent": "", "no TCP": "UDP: inuse 4\n", "odd": "TCP: inuse\n", "no number": "TCP: inuse x\n"} {
		f := &fixture{files: map[string]string{procSNMP: snmpNew, procNetstat: netstat618}}
		if text != "" {
			f.files[procSockstat] = text
		}
		got, err := readTCP(f)
		if err == nil || got == nil || got.Sockets != nil || got.Counters["TcpExtPAWSTimewait"] != 512 {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	got, err := readTCP(&fixture{files: map[string]string{procSNMP: snmpNew, procNetstat: netstat618, procSockstat: sockstat4}})
	if err != nil || got.Sockets.TimeWait != 1180 || got.Sockets.InUse6 != 0 {
		t.Errorf("without IPv6: %+v, %v", got, err)
	}
}

func FuzzParseCounters(f *testing.F) {
	for _, text := range []string{snmpOld, netstat618, "Tcp:\nTcp:\n", "Tcp: A\nTcp: 99999999999999999999\n"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		defer testutil.Bounded(t, len(text))()
		counters, err := parseCounters(strings.NewReader(text), procSNMP, "Tcp", "TcpExt")
		if err == nil && len(counters) == 0 {
			t.Error("nothing was read, and that is no error")
		}
	})
}

// TestReadTCPOfANamespace: the counters are those of the namespace, not of the process.
func TestReadTCPOfANamespace(t *testing.T) {
	testutil.NeedRoot(t)
	ns, err := netns.New("tcp-test")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	got, err := ReadTCP(ns)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"TcpPassiveOpens", "TcpExtPAWSEstab"} {
		if v, ok := got.Counters[name]; !ok || v != 0 {
			t.Errorf("%s of a new namespace is %d, %v", name, v, ok)
		}
	}
	if got.Sockets == nil || got.Sockets.TimeWait != 0 {
		t.Errorf("sockets of a new namespace: %+v", got.Sockets)
	}
	s, err := Read(t.Context(), Options{Netns: ns})
	if err != nil || s.TCP == nil || s.PartError(snapshot.PartTCP) != "" {
		t.Errorf("%+v, %v", s, err)
	}
	if v, ok := s.Sysctls.Int(snapshot.TCPTimestamps); !ok || v < 0 {
		t.Errorf("%s is %d, %v", snapshot.TCPTimestamps, v, ok)
	}
}
