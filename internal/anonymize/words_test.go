package anonymize

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

//go:generate go test -count=1 -run ^TestWords$ . -args -update-words

var updateWords = flag.Bool("update-words", false, "write words.txt")

// spoken are the packages whose texts are in snapshots.
var spoken = []string{
	"bpf/drops", "bpf/plane", "bpf/profile", "collect", "conntrack", "conntrack/aggregate", "conntrack/dump", "doctor", "follow", "gateway/engine/ebpf", "names", "names/read", "nat", "netlink", "netlink/socket", "netns",
	"profile", "ruleset", "ruleset/read", "snapshot", "syn",
}

// kernelWords are those that the kernel alone uses, in its errors (errno(3)), its log, and for kinds of queues, filters,
// tunnels, schedulers and helpers.
const kernelWords = `
file directory such no network unreachable permitted not operation supported denied permission argument invalid device busy
resource temporarily unavailable process refused timed out host exists memory allocate cannot protocol too long
ate my address table full dropping packet falling back vmalloc default automatic helper assignment been turned off overflow
possible flooding port sending cookies check counters bad checksum time wait bucket soft lockup stuck watchdog bug
martian source header short ulen len rip pc lr callbacks suppressed ratelimit
in out physin physout mac src dst tos prec ttl id df mf proto spt dpt window res urgp type code seq
noqueue pfifo bfifo fast fq codel pie cake htb hfsc tbf sfq red prio mq mqprio multiq netem ingress clsact drr ets etf hhf choke gred qfq taprio sfb
u32 flower matchall bpf basic cgroup flow fw route mirred gact police direct
ipip sit gre gretap erspan vxlan geneve wireguard gtp tun vti xfrm bareudp fou
rr wrr lc wlc lblc lblcr dh sh sed nq fo ovf mh twos
ftp sip h323 q931 ras pptp irc tftp amanda snmp sane netbios
`

var letters = regexp.MustCompile(`[A-Za-z]+(?:[0-9]+[A-Za-z]*)*`)

// hexadecimal are hashes in the code, no words.
var hexadecimal = regexp.MustCompile(`^[0-9a-f]*[0-9][0-9a-f]*$`)

// TestWords: every word that natkit writes into a snapshot is in the list, or it would be replaced.
func TestWords(t *testing.T) {
	used := map[string]bool{}
	for word := range strings.FieldsSeq(kernelWords) {
		used[word] = true
	}
	for _, dir := range spoken {
		files, err := filepath.Glob(filepath.Join("..", dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", dir, len(files), err)
		}
		for _, name := range files {
			if !strings.HasSuffix(name, "_test.go") {
				wordsOf(t, name, used)
			}
		}
	}
	if *updateWords {
		text := strings.Join(slices.Sorted(maps.Keys(used)), "\n") + "\n"
		if err := os.WriteFile("words.txt", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for word := range used {
		if !words()[word] {
			t.Errorf("%q is not in words.txt: make generate", word)
		}
	}
}

// wordsOf adds those of the string literals of a file; imports and tags are none.
func wordsOf(t *testing.T, name string, used map[string]bool) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.Field:
			n.Tag = nil
		case *ast.BasicLit:
			if n.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(n.Value)
			if err != nil {
				t.Fatal(err)
			}
			for _, word := range letters.FindAllString(text, -1) {
				if word = strings.ToLower(word); !hexadecimal.MatchString(word) {
					used[word] = true
				}
			}
		}
		return true
	})
}
