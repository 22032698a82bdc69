package cli

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/snapshot"
)

// readBundleFile reads what 'natkit snapshot' wrote, which may take so many bytes of
// memory; - is standard input.
func readBundleFile(env *Env, name string, memory int64) (*snapshot.Recording, error) {
	r := io.NopCloser(env.Stdin)
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("read bundle: %w", err)
		}
		r = file
	}
	defer r.Close()
	buffered := bufio.NewReaderSize(r, bundleHead)
	head, err := buffered.Peek(bundleHead)
	if len(head) == 0 && errors.Is(err, io.EOF) {
		return nil, malformed(fmt.Errorf("read bundle %s: the file is empty; 'natkit snapshot' writes one", name))
	}
	// The reader meets another error again.
	head = append([]byte(nil), plain(head)...) // reading on overwrites what was peeked
	rec, err := collect.ReadBundle(buffered, snapshot.NewBudget(memory))
	if err != nil {
		if what, verb := otherInput(head); what != "" {
			return nil, malformed(fmt.Errorf("read bundle %s: this is %s, not a bundle of 'natkit snapshot': natkit %s %s reads it", name, what, verb, name))
		}
		return nil, malformed(fmt.Errorf("read bundle %s: %w", name, err))
	}
	return rec, nil
}

// bundleHead is how much of a file is looked at to say what it is.
const bundleHead = 4096

// otherInputs are what other verbs read, by how it begins, with comments before it.
var otherInputs = []struct {
	begins     *regexp.Regexp
	what, verb string
}{
	{regexp.MustCompile(`^(\xd4\xc3\xb2\xa1|\xa1\xb2\xc3\xd4|\x4d\x3c\xb2\xa1|\xa1\xb2\x3c\x4d|\x0a\x0d\x0d\x0a)`), "a capture of packets", "pcap"},
	{regexp.MustCompile(`(?m)^(ipv[46] +[0-9]+ +)?[a-z0-9]+ +[0-9]+ .*\bsrc=\S+ dst=`), "a list of conntrack entries", "conntrack --from"},
	{regexp.MustCompile(`(?m)^\*(nat|filter|mangle|raw|security)\s*$`), "the text of iptables-save", "gateway import"},
	{regexp.MustCompile(`(?m)^table (ip|ip6|inet|arp|bridge|netdev) \S+ \{`), "the text of 'nft list ruleset'", "gateway import"},
	{regexp.MustCompile(`(?m)^gateway:`), "a gateway's file", "gateway check"},
	{regexp.MustCompile(`(?m)^(topology|stages):`), "a scenario of the lab", "lab run"},
	{regexp.MustCompile(`(?m)^arrivals:`), "a simulation", "simulate"},
}

// otherInput says what a file is whose first bytes these are, and the verb that reads it;
// empty where it is nothing that natkit knows.
func otherInput(head []byte) (what, verb string) {
	latin := make([]rune, len(head)) // a byte each, for the capture's first ones
	for i, b := range head {
		latin[i] = rune(b)
	}
	for _, o := range otherInputs {
		if o.begins.MatchString(string(latin)) {
			return o.what, o.verb
		}
	}
	return "", ""
}

// plain uncompresses the beginning of a file where it is compressed.
func plain(head []byte) []byte {
	z, err := gzip.NewReader(bytes.NewReader(head))
	if err != nil {
		return head
	}
	text := make([]byte, bundleHead)
	n, _ := io.ReadFull(z, text) // the file goes on behind its head
	return text[:n]
}
