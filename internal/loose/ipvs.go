package loose

import (
	"bytes"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// readIPVS writes what ipvsadm -Ln prints as the kernel does (ip_vs_info_seq_show): addresses and ports in
// hexadecimal.
func readIPVS(s *Sample, t *Text) error {
	var b bytes.Buffer
	b.WriteString("IP Virtual Server version 1.2.1 (size=4096)\n")
	services := 0
	for words := range fieldsOf(t.Data) {
		switch words[0] {
		case "TCP", "UDP", "SCTP":
			end, ok := ipvsEnd(words[1:])
			if !ok || len(words) < 3 {
				return fmt.Errorf("names a service by words: %.60q; ipvsadm -Ln prints numbers", strings.Join(words, " "))
			}
			fmt.Fprintf(&b, "%s  %s %s\n", words[0], end, strings.Join(words[2:], " "))
			services++
		case "FWM":
			if len(words) < 3 {
				continue
			}
			mark, err := strconv.ParseUint(words[1], 10, 32)
			if err != nil {
				return fmt.Errorf("has a mark that is no number: %.20q", words[1])
			}
			fmt.Fprintf(&b, "FWM  %08X %s\n", mark, strings.Join(words[2:], " "))
			services++
		case "->":
			end, ok := ipvsEnd(words[1:])
			if !ok || len(words) < 6 || services == 0 {
				continue // the header, or a list with other columns (--stats)
			}
			fmt.Fprintf(&b, "  -> %s %s\n", end, strings.Join(words[2:6], " "))
		}
	}
	if services == 0 {
		return fmt.Errorf("has no service")
	}
	s.addFile("/proc/net/ip_vs", b.Bytes())
	return nil
}

// ipvsEnd is the kernel's form of 198.18.0.1:80 and [2001:db8::1]:80.
func ipvsEnd(words []string) (string, bool) {
	if len(words) == 0 {
		return "", false
	}
	end, err := netip.ParseAddrPort(words[0])
	if err != nil {
		return "", false
	}
	return fmt.Sprintf("%s:%04X", hexAddress(end.Addr()), end.Port()), true
}

func hexAddress(a netip.Addr) string {
	if a.Is4() {
		four := a.As4()
		return fmt.Sprintf("%02X%02X%02X%02X", four[0], four[1], four[2], four[3])
	}
	return "[" + a.StringExpanded() + "]"
}

// readIPVSConnections writes what ipvsadm -Lnc prints as the kernel does (ip_vs_conn_seq_show).
func readIPVSConnections(s *Sample, t *Text) error {
	var b bytes.Buffer
	b.WriteString("Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData\n")
	for words := range fieldsOf(t.Data) {
		if len(words) < 6 || words[0] == "pro" {
			continue
		}
		minutes, seconds, _ := strings.Cut(words[1], ":")
		m, err1 := strconv.ParseUint(minutes, 10, 32)
		sec, err2 := strconv.ParseUint(seconds, 10, 32)
		if err1 != nil || err2 != nil {
			continue
		}
		line := words[0]
		for _, w := range words[3:6] {
			end, err := netip.ParseAddrPort(w)
			if err != nil {
				line = ""
				break
			}
			address := strings.Trim(hexAddress(end.Addr()), "[]")
			line += fmt.Sprintf(" %s %04X", address, end.Port())
		}
		if line != "" {
			fmt.Fprintf(&b, "%s %s %d\n", line, words[2], m*60+sec)
		}
	}
	s.addFile("/proc/net/ip_vs_conn", b.Bytes())
	return nil
}
