package anonymize

import (
	_ "embed"
	"encoding/hex"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/natkit/natkit/internal/lazyregexp"
)

// wordList has the words of the kernel's, nft's, iptables' and natkit's own that texts of snapshots have, one a
// line, in lower case. A test compares it with the code, and writes it anew.
//
//go:embed words.txt
var wordList string

var words = sync.OnceValue(func() map[string]bool {
	known := map[string]bool{}
	for word := range strings.FieldsSeq(wordList) {
		known[word] = true
	}
	return known
})

const (
	ipv4       = `\d{1,3}(?:\.\d{1,3}){3}`
	macPattern = `[0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){5,}`
)

// parts are what a text is taken apart into. What is between them is kept: no letters, and no digits.
var parts = regexp.MustCompile(strings.Join([]string{
	`comment (?P<comment>"(?:[^"\\]|\\.)*"?)`,
	`(?P<mac>\b` + macPattern + `\b)`,
	`(?P<ipv6>[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?:` + ipv4 + `)?(?:/\d{1,3}\b)?)`,
	`(?P<ipv4>\b` + ipv4 + `(?:/\d{1,2}|-` + ipv4 + `)?\b)`,
	`(?P<word>[\pL\pN_]+(?:[-./@+~][\pL\pN_]+)*)`,
}, "|"))

var (
	comment = parts.SubexpIndex("comment")
	mac     = parts.SubexpIndex("mac")
	ipv6    = parts.SubexpIndex("ipv6")
	ipv4At  = parts.SubexpIndex("ipv4")
	word    = regexp.MustCompile(`[\pL\pN_]+(?:[-./@+~][\pL\pN_]+)*`)
)

// Text replaces in a text addresses, comments of rules, and the words that natkit and the kernel do not use. It is
// the same for the whole text where that is a name: Text("eth-berlin") is what stands for it in others.
func (a *Anonymizer) Text(text string) string {
	var out strings.Builder
	at := 0
	for _, m := range parts.FindAllStringSubmatchIndex(text, -1) {
		out.WriteString(text[at:m[0]])
		at = m[1]
		part := text[m[0]:m[1]]
		switch {
		case m[2*comment] >= 0:
			quoted := text[m[2*comment]:m[1]]
			said, err := strconv.Unquote(quoted)
			if err != nil { // cut short
				said = strings.Trim(quoted, `"`)
			}
			part = "comment " + strconv.Quote(a.Comment(said))
		case m[2*mac] >= 0:
			part = a.macText(part)
		case m[2*ipv6] >= 0:
			part = a.ipv6Text(part)
		case m[2*ipv4At] >= 0:
			part = a.ipv4Text(part)
		default:
			part = a.Name(part)
		}
		out.WriteString(part)
	}
	out.WriteString(text[at:])
	return out.String()
}

// macText replaces a hardware address, or several in a row as netfilter's log has them (dump_mac_header,
// net/netfilter/nf_log_syslog.c): destination, source and type.
func (a *Anonymizer) macText(text string) string {
	b, err := hex.DecodeString(strings.ReplaceAll(text, ":", ""))
	if err != nil {
		return a.tag(text)
	}
	for i := 0; i+6 <= len(b); i += 6 {
		replaced := a.hardware([6]byte(b[i:]))
		copy(b[i:], replaced[:])
	}
	out := make([]string, len(b))
	for i := range b {
		out[i] = hex.EncodeToString(b[i : i+1])
	}
	return strings.Join(out, ":")
}

// ipv6Text replaces what looks like an IPv6 address; where it is none, its words.
func (a *Anonymizer) ipv6Text(text string) string {
	address, length, _ := strings.Cut(text, "/")
	if ip, err := netip.ParseAddr(address); err == nil {
		if p, err := netip.ParsePrefix(text); err == nil {
			return a.Prefix(p).String()
		}
		return joined(a.Addr(ip).String(), length)
	}
	return word.ReplaceAllStringFunc(text, a.Name)
}

func joined(address, length string) string {
	if length == "" {
		return address
	}
	return address + "/" + length
}

func (a *Anonymizer) ipv4Text(text string) string {
	if p, err := netip.ParsePrefix(text); err == nil {
		return a.Prefix(p).String()
	}
	if first, last, ok := strings.Cut(text, "-"); ok {
		f, err1 := netip.ParseAddr(first)
		l, err2 := netip.ParseAddr(last)
		if err1 == nil && err2 == nil {
			f, l = a.Range(f, l)
			return f.String() + "-" + l.String()
		}
	}
	if ip, err := netip.ParseAddr(text); err == nil {
		return a.Addr(ip).String()
	}
	return a.tag(text)
}

var (
	// known are words that are kept whatever their letters: numbers, with a unit as well, and marks.
	known = lazyregexp.New(`^(?:[0-9]+(?:ns|us|µs|ms|s|m|min|h|d|b|B|k|kB|KiB|MiB|kbit|Mbit|Gbit|mbytes|kbytes)?|0x[0-9a-fA-F]{1,8})$`)
	// function are names of functions of the kernel in its log: symbol+0x1/0x2.
	function = lazyregexp.New(`^_*(?:nf|nft|xt|ipt|ip6t|ip|ipv6|tcp|udp|icmp|icmpv6|inet|inet6|sk|skb|dev|netif|neigh|arp|xfrm|bpf|br)_[a-z0-9_]+(?:\.[a-z0-9_.]+)?(?:\+0x[0-9a-f]+/0x[0-9a-f]+)?$`)
	// device are interfaces that are named after their kind and a number (systemd.net-naming-scheme(7)).
	device = lazyregexp.New(`^(?:lo|(?:eth|wan|lan|wlan|wwan|bond|team|br|virbr|docker|lxcbr|lxdbr|vmbr|cni|podman|tun|tap|wg|dummy|ifb|ppp|vxlan|gre|gretap|erspan|sit|ip6tnl|ip6gre|tunl|ipip|macvlan|macvtap|ipvlan|vrf|veth|geneve|teredo|xfrm|ipsec|vti|ip_vti|ip6_vti|usb|ib|em|kube-ipvs|vlan|tailscale)[0-9]{0,4}|(?:en|wl|ww|ib)(?:o[0-9]+|(?:P[0-9]+)?(?:p[0-9]+)?s[0-9]+(?:f[0-9]+)?)(?:np?[0-9]+|d[0-9]+)?|flannel\.[0-9]{1,4}|cilium_(?:host|net|vxlan)|lxc_health)(?:[.:][0-9]{1,4})?$`)
	// prefixed are names of which the beginning says whose they are, and the rest what for.
	prefixed   = lazyregexp.New(`^(veth|br-|cali-?|lxc|vnet|tap|tun|wg-|enx|KUBE-(?:SVC-|SEP-|EXT-|FW-|XLB-|SVL-|SRV-|POD-|NODE-)?|DOCKER-|cali-[a-z]{2}-|CNI-(?:DN-|HOSTPORT-)?|CILIUM_|OLD_CILIUM_|FLANNEL-|WEAVE-?|ISTIO_|LIBVIRT_|NETAVARK-|ts-|f2b-|ufw6?-|IP-MASQ-)(.+)$`)
	separators = regexp.MustCompile(`[-_./@+~]+`)
)

// mostWord bounds the words that are kept: nothing that people or programs name is hidden in a long one.
const mostWord = 128

// Name replaces a name, unless it is made of words that the kernel or natkit use.
func (a *Anonymizer) Name(name string) string {
	if name == "" {
		return ""
	}
	if replaced, done := a.words[name]; done {
		return replaced
	}
	if len(a.words) >= mostCached {
		clear(a.words)
	}
	replaced := a.name(name)
	a.words[name] = replaced
	return replaced
}

func (a *Anonymizer) name(name string) string {
	switch m := prefixed.FindStringSubmatch(name); {
	case len(name) <= mostWord && (known.MatchString(name) || device.MatchString(name) || function.MatchString(name) || ofWords(name)):
		return name
	case m != nil:
		return m[1] + a.tag(name)
	}
	return a.tag(name)
}

func ofWords(name string) bool {
	return !slices.ContainsFunc(separators.Split(name, -1), func(part string) bool {
		return part != "" && !known.MatchString(part) && !words()[strings.ToLower(part)]
	})
}

// endings of comments are kept: natkit's rules read them.
var endings = []string{" has no endpoints", " has no local endpoints"}

// ownRule is the comment of a rule of natkit's gateway: its place in the file.
var ownRule = regexp.MustCompile(`^[a-z]+\[[0-9]+\](?: [a-z0-9]+)*$`)

// Comment replaces the comment of a rule as a whole.
func (a *Anonymizer) Comment(text string) string {
	if text == "" || ownRule.MatchString(text) && a.Text(text) == text {
		return text
	}
	for _, ending := range endings {
		if before, ok := strings.CutSuffix(text, ending); ok {
			return a.tag(before) + ending
		}
	}
	return a.tag(text)
}

// release is the version of a kernel, and what a distribution appends: 6.1.0-13-cloud-amd64, 5.14.0-362.el9.x86_64.
var (
	release    = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)*)(.*)$`)
	flavour    = lazyregexp.New(`^(?:[0-9]+|rc[0-9]+|el[0-9]+|fc[0-9]+|amzn[0-9]+|bpo[0-9]*|deb[0-9]+u?[0-9]*|ubuntu[0-9]*|generic|lowlatency|realtime|rt[0-9]*|cloud|virtual|kvm|aws|azure|gcp|gke|oracle|oem|raspi|rpi|v[678]l?|amd64|arm64|x86|64|686|i686|pae|x86_64|aarch64|riscv64|ppc64le|s390x|armv[67]l?|lts|default|stable|arch[0-9]*|hardened|zen[0-9]*|microsoft|standard|WSL2|pve|pmox|xanmod[0-9]*|linuxkit|talos|flatcar|cos|gardenlinux|uek|elrepo|lt|ml|fips|hwe|edge|debug|dirty)$`)
	releaseSep = regexp.MustCompile(`[-_.+~]`)
)

// Release replaces in the release of a kernel what is not its version or a distribution's.
func (a *Anonymizer) Release(text string) string {
	m := release.FindStringSubmatch(strings.TrimSpace(text))
	if m == nil {
		return a.Text(text)
	}
	var out strings.Builder
	out.WriteString(m[1])
	rest := m[2]
	for rest != "" {
		sep := releaseSep.FindStringIndex(rest)
		if sep == nil || sep[0] > 0 {
			end := len(rest)
			if sep != nil {
				end = sep[0]
			}
			if part := rest[:end]; flavour.MatchString(part) {
				out.WriteString(part)
			} else {
				out.WriteString(a.tag(part))
			}
			rest = rest[end:]
			continue
		}
		out.WriteString(rest[:sep[1]])
		rest = rest[sep[1]:]
	}
	return out.String()
}
