package collect

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/anonymize"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/snapshot"
)

// answerTypes are the members that have what natkit understood, each with its type. Those of which natkit does not know
// what is in them are in no anonymized bundle.
var answerTypes = map[string]func() any{
	namesMember:             func() any { return new(snapshot.Names) },
	"nat_rules.json":        func() any { return new(snapshot.NATRules) },
	"gateway_programs.json": func() any { return new(snapshot.Programs) },
	"dnat_targets.json":     func() any { return new(snapshot.DNATTargets) },
	"audit.json":            func() any { return new(snapshot.Audit) },
	"ways.json":             func() any { return new(snapshot.Ways) },
	"links.json":            func() any { return new(snapshot.Links) },
	"ipsec_policies.json":   func() any { return new([]snapshot.IPsecPolicy) },
	"accept_queues.json":    func() any { return new([]snapshot.AcceptQueue) },
	"own_ports.json":        func() any { return new(snapshot.OwnPorts) },
	"reverse_paths.json":    func() any { return new([]snapshot.ReversePath) },
	"icmp_errors.json":      func() any { return new(snapshot.Filter) },
	"ipvs_timeouts.json":    func() any { return new(snapshot.IPVSTimeouts) },
	askedNarrow.member:      func() any { return new([]snapshot.PortPool) },
	"routes.json":           func() any { return new(map[string]snapshot.Route) },
	traceName:               func() any { return new(snapshot.Trace) },
}

// distributions are names that many hosts have: they stay, others are replaced.
const distributions = "debian ubuntu rhel centos rocky almalinux ol fedora amzn sles opensuse-leap opensuse-tumbleweed alpine arch flatcar talos cos gardenlinux bottlerocket azurelinux mariner nixos gentoo photon raspbian openwrt"

// anonymousHost replaces the name of a host, and that of a distribution of its own.
func anonymousHost(a *anonymize.Anonymizer, h snapshot.Host) snapshot.Host {
	h.Name = a.Given(h.Name)
	id, version, _ := strings.Cut(h.Distribution, " ")
	if id != "" && !slices.Contains(strings.Fields(distributions), id) {
		h.Distribution = strings.TrimSpace(a.Name(id) + " " + a.Text(version))
	}
	return h
}

// numbers are the files of the kernel that have its own words and numbers alone.
var numbers = regexp.MustCompile(`^/(?:proc/(?:meminfo|net/(?:snmp6?|netstat|xfrm_stat|sockstat6?|softnet_stat|netlink|ip_vs_stats|stat/[a-z_]+)|sys/(?:net|fs|kernel)/[a-z0-9_/-]+)|sys/devices/system/cpu/online)$`)

// Texts of the machine's own below sys/kernel.
const (
	osRelease = sysctlRoot + "kernel/osrelease"
	bootID    = sysctlRoot + "kernel/random/boot_id"
)

// anonymous returns what stands for a member in an anonymized bundle; nil where nothing does.
func anonymous(a *anonymize.Anonymizer, name string, data []byte) ([]byte, error) {
	_, rest, err := recordingOf(name)
	if err != nil {
		return nil, err
	}
	if rest == resultName {
		return anonymousJSON(a, data, new(snapshot.Recording))
	}
	_, rest, _ = strings.Cut(rest, "/")
	switch answer := answerTypes[rest]; {
	case answer != nil:
		return anonymousJSON(a, data, answer())
	case rest == headName:
		return anonymousHead(a, data)
	case rest == tailName:
		return anonymousTail(a, data)
	case rest == kernelLogName:
		return anonymousLog(a, data), nil
	case rest == countersName || strings.HasPrefix(rest, tableFolder+"/"):
		data = bytes.Clone(data)
		return data, conntrack.Anonymize(data, a.Addr)
	case strings.HasPrefix(rest, fileFolder+"/"):
		return anonymousFile(a, strings.TrimPrefix(rest, fileFolder), data), nil
	}
	return nil, nil
}

// parseMember has for each member the memory that a recording has: no more than one is kept at a time.
func parseMember(data []byte, v any) error {
	return snapshot.NewBudget(snapshot.DefaultBudget).Unmarshal(data, v)
}

func anonymousJSON(a *anonymize.Anonymizer, data []byte, v any) ([]byte, error) {
	if err := parseMember(data, v); err != nil {
		return nil, err
	}
	a.Value(v)
	return json.Marshal(v)
}

// anonymousFailures keeps what was asked for, by which failures are found, and anonymizes why.
func anonymousFailures(a *anonymize.Anonymizer, all map[string]*failure) {
	for _, f := range all {
		if f != nil {
			f.Text = a.Text(f.Text)
		}
	}
}

func anonymousHead(a *anonymize.Anonymizer, data []byte) ([]byte, error) {
	var h head
	if err := parseMember(data, &h); err != nil {
		return nil, err
	}
	h.Machine.Netns.Name = a.Text(h.Machine.Netns.Name)
	if h.Owner != nil {
		a.Value(h.Owner)
	}
	for _, names := range h.Lists {
		for i := range names {
			names[i] = a.Text(names[i])
		}
	}
	anonymousFailures(a, h.Failures)
	return json.Marshal(h)
}

func anonymousTail(a *anonymize.Anonymizer, data []byte) ([]byte, error) {
	var t tail
	if err := parseMember(data, &t); err != nil {
		return nil, err
	}
	if t.Failure != nil {
		t.Failure.Text = a.Text(t.Failure.Text)
	}
	anonymousFailures(a, t.Failures)
	for name, answered := range t.Answers {
		answer := answerTypes[name]
		if answer == nil {
			delete(t.Answers, name)
			continue
		}
		data, err := anonymousJSON(a, answered, answer())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		t.Answers[name] = data
	}
	return json.Marshal(t)
}

// anonymousLog keeps the first line of each record: those behind it name devices (" DEVICE=c1:3").
func anonymousLog(a *anonymize.Anonymizer, text []byte) []byte {
	out := []byte{}
	for len(text) > 0 {
		n := recordLen(text)
		record := text[:n]
		text = text[n:]
		if _, ok := parseLine(record); !ok {
			continue
		}
		head, _, _ := bytes.Cut(record, []byte(";"))
		r, err := parseRecord(record)
		if err != nil {
			continue
		}
		out = fmt.Appendf(out, "%s;%s\n", head, a.Text(r.text))
	}
	return out
}

// anonymousFile is a file of the kernel's; nil where natkit does not know what is in it.
func anonymousFile(a *anonymize.Anonymizer, path string, data []byte) []byte {
	switch {
	case path == osRelease:
		return []byte(a.Release(string(data)) + "\n")
	case path == bootID:
		return []byte(a.BootID(string(data)) + "\n")
	case path == slabinfo:
		return conntrackSlabs(data)
	case path == procIPVS:
		return anonymousIPVS(a, string(data))
	case path == procIPVSConnections: // the reader passes over a last line that was cut off
		return anonymousIPVS(a, string(data[:bytes.LastIndexByte(data, '\n')+1]))
	case !numbers.MatchString(path):
		return nil
	case strings.HasPrefix(path, sysctlRoot):
		return []byte(a.Text(string(data)))
	}
	return data
}

// conntrackSlabs leaves out the slabs that are no conntrack's, as those of control groups are named after these.
func conntrackSlabs(data []byte) []byte {
	var out []byte
	for line := range bytes.Lines(data) {
		name, _, _ := bytes.Cut(line, []byte(" "))
		if bytes.HasPrefix(line, []byte("slabinfo ")) || line[0] == '#' || string(name) == "nf_conntrack" || extensionSlab.Match(name) {
			out = append(out, line...)
		}
	}
	return out
}

var (
	// ipvsHex is an IPv4 address and, in the list of services, its port (ip_vs_info_seq_show and
	// ip_vs_conn_seq_show, net/netfilter/ipvs).
	ipvsHex = regexp.MustCompile(`\b[0-9A-F]{8}\b`)
	// ipvsPersistence is what a connection's line has behind its time: the name of a persistence engine, and data of the
	// packet, such as the Call-ID of SIP.
	ipvsPersistence = regexp.MustCompile(`(?m)^((?:\S+ +){8}[0-9]+).*$`)
	ipvsAddress6    = regexp.MustCompile(`[0-9a-f]{4}(?::[0-9a-f]{4}){7}`)
)

// anonymousIPVS maps the addresses of IPVS's services or connections. A firewall mark has eight digits as well.
func anonymousIPVS(a *anonymize.Anonymizer, text string) []byte {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "FWM") {
			out.WriteString(line)
			continue
		}
		line = ipvsPersistence.ReplaceAllString(line, "$1")
		line = ipvsAddress6.ReplaceAllStringFunc(line, func(hex string) string {
			ip, err := netip.ParseAddr(hex)
			if err != nil {
				return hex
			}
			return a.Addr(ip).StringExpanded()
		})
		out.WriteString(ipvsHex.ReplaceAllStringFunc(line, func(hex string) string {
			var ip [4]byte
			if _, err := fmt.Sscanf(hex, "%02X%02X%02X%02X", &ip[0], &ip[1], &ip[2], &ip[3]); err != nil {
				return hex
			}
			ip = a.Addr(netip.AddrFrom4(ip)).As4()
			return fmt.Sprintf("%02X%02X%02X%02X", ip[0], ip[1], ip[2], ip[3])
		}))
	}
	return []byte(out.String())
}
