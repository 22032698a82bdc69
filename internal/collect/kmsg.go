package collect

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
)

// keptLines bounds the log lines in a snapshot; the newest are kept.
const keptLines = 1000

// logRecord is one record of /dev/kmsg.
type logRecord struct {
	// facility is 0 for the kernel's own records; user space cannot write any with it, as devkmsg_write
	// (kernel/printk/printk.c) gives those that claim it to LOG_USER.
	facility uint64
	seq      uint64
	uptime   float64
	text     string
}

// parseRecord reads "prio,seq,usec,flags[,more];text\n" with " KEY=value\n" lines
// behind (Documentation/ABI/testing/dev-kmsg).
func parseRecord(b []byte) (logRecord, error) {
	head, text, ok := bytes.Cut(b, []byte(";"))
	fields := strings.Split(string(head), ",")
	if !ok || len(fields) < 4 {
		return logRecord{}, fmt.Errorf("kernel log record %.60q: not prio,seq,usec,flags;text", b)
	}
	prio, err0 := strconv.ParseUint(fields[0], 10, 64)
	seq, err1 := strconv.ParseUint(fields[1], 10, 64)
	usec, err2 := strconv.ParseUint(fields[2], 10, 64)
	if err := errors.Join(err0, err1, err2); err != nil {
		return logRecord{}, fmt.Errorf("kernel log record %.60q: %w", b, err)
	}
	text, _, _ = bytes.Cut(text, []byte("\n"))
	return logRecord{facility: prio >> 3, seq: seq, uptime: float64(usec) / 1e6, text: unescape(string(text))}, nil
}

// nextSeq is the number behind a record's; 0 where it has none.
func nextSeq(b []byte) uint64 {
	head := b[:min(len(b), 64)]
	_, after, _ := bytes.Cut(head, []byte(","))
	seq, _, _ := bytes.Cut(after, []byte(","))
	n, err := strconv.ParseUint(string(seq), 10, 63)
	if err != nil {
		return 0
	}
	return n + 1
}

var escaped = regexp.MustCompile(`\\x[0-9a-f]{2}`)

// unescape undoes the kernel's \xNN for bytes that are not printable. What is
// still not printable text then is replaced, as it may come from a packet.
func unescape(s string) string {
	if strings.Contains(s, `\x`) {
		s = escaped.ReplaceAllStringFunc(s, func(e string) string {
			n, _ := strconv.ParseUint(e[2:], 16, 8)
			return string([]byte{byte(n)})
		})
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}

var (
	suppressedLine = regexp.MustCompile(`^net_ratelimit: (\d+) callbacks suppressed`)
	netnsNumber    = regexp.MustCompile(`\bin netns (\d+)\b`)
)

// interesting are the lines that concern NAT and what is mistaken for it: by text that they contain, and a pattern
// where that is not enough. Few lines of a log contain any, and patterns are slow.
var interesting = []struct {
	contains string
	pattern  *regexp.Regexp
}{
	{"table full", regexp.MustCompile(`table full(?: in netns \d+)?, dropping packet`)},
	{" callbacks suppressed", suppressedLine},
	{"nf_conntrack: falling back to vmalloc", nil},
	{"default automatic helper assignment has been turned off", nil},
	{"ate my IP address", nil},
	{"neighbour table overflow", nil},
	{"neighbor table overflow", nil},
	{"Possible SYN flooding on port", nil},
	{"UDP: bad checksum", nil},
	{"time wait bucket table overflow", nil},
	{"nf_ct_", regexp.MustCompile(`nf_ct_proto_\d+:|nf_ct_\w+: dropping packet:`)},
	{"soft lockup", nil},
	// The function that a CPU is stuck in follows in the lines of its registers.
	{"+0x", regexp.MustCompile(`\b(?:RIP|pc|PC is at)\b.*\b_*nf_(?:nat|ct|conntrack)_\w+\+0x`)},
	{"martian source ", regexp.MustCompile(`martian source .*, on dev`)},
}

func isInteresting(text string) bool {
	for _, i := range interesting {
		if strings.Contains(text, i.contains) && (i.pattern == nil || i.pattern.MatchString(text)) {
			return true
		}
	}
	return false
}

// parseLine is the log line of a record; false where it does not concern NAT, or a program wrote it.
func parseLine(b []byte) (snapshot.LogLine, bool) {
	r, err := parseRecord(b)
	if err != nil || r.facility != 0 || !isInteresting(r.text) {
		return snapshot.LogLine{}, false
	}
	l := snapshot.LogLine{Seq: r.seq, UptimeSeconds: r.uptime, Text: r.text}
	if m := suppressedLine.FindStringSubmatch(r.text); m != nil {
		l.Suppressed, _ = strconv.ParseUint(m[1], 10, 64)
	}
	if m := netnsNumber.FindStringSubmatch(r.text); m != nil {
		l.Netns, _ = strconv.ParseUint(m[1], 10, 64)
	}
	return l, true
}

// logReader gathers lines from records.
type logReader struct{ lines []snapshot.LogLine }

// add reports whether the record is to be kept in a bundle.
func (l *logReader) add(b []byte) bool {
	line, ok := parseLine(b)
	if !ok {
		return false
	}
	if len(l.lines) >= 2*keptLines {
		l.lines = append(l.lines[:0], l.lines[len(l.lines)-keptLines:]...)
	}
	l.lines = append(l.lines, line)
	return true
}

func (l *logReader) newest() []snapshot.LogLine {
	return l.lines[max(0, len(l.lines)-keptLines):]
}
