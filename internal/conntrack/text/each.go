package text

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/natkit/natkit/internal/conntrack"
)

const (
	// maxLine bounds a line; those of the kernel and of the tools have a few
	// hundred bytes.
	maxLine = 64 << 10
	// bufferSize is large beside a line, as what is left of one at the end of the
	// buffer is copied to its beginning.
	bufferSize = 256 << 10
	// kept is how many lines of a kind are remembered, keptText how much of one.
	kept     = 5
	keptText = 160
	// maxEmptyReads is when a reader that gives nothing and no error is given up.
	maxEmptyReads = 100
)

// Stats are what was read.
type Stats struct {
	// Lines are all lines, Entries those that fn was called with, Garbled those
	// that are no entry and no part of a list.
	Lines, Entries, Garbled int64
	// Unknown counts words, states and fields in entries that were passed over.
	Unknown int64
	// First are the first garbled lines, FirstUnknown the first of Unknown.
	First, FirstUnknown []Garbled
}

// Garbled is a line, or a word of it, that could not be read.
type Garbled struct {
	// Line is its number, from 1 on.
	Line int64
	// Text is its beginning, in printable ASCII with the escapes of Go.
	Text string
	Why  string
}

// The causes of an error of Each where what was read is no list at all.
var (
	// ErrEmpty may be the list of an empty table.
	ErrEmpty = errors.New("this is not a list of connections: it is empty")
	// ErrNoList is the cause where not one entry was found.
	ErrNoList = errors.New("this is not a list of connections")
)

// Each calls fn with every entry in r: lines of conntrack -L in all of its
// formats but XML, of /proc/net/nf_conntrack and of /proc/net/ip_conntrack, JSON
// lines and CSV as of AppendJSON and AppendCSV; gzipped or not, which it finds
// out itself. Garbled lines are passed over and counted.
//
// Of what a text does not say, an entry has zeros, and Fields tells which of
// these are none; its status is what can be derived. Times without a time zone
// are read as UTC. The entry and what it points to hold until fn returns.
//
// fn's error ends it and is returned as it is.
func Each(r io.Reader, fn func(*conntrack.Entry) error) (Stats, error) {
	p := &parser{}
	r, err := decompress(r)
	if err == nil {
		err = p.readAll(r, fn)
	}
	return p.stats, err
}

// decompress looks for gzip's magic number (RFC 1952, 2.3.1) and takes off a mark
// of byte order.
func decompress(r io.Reader) (io.Reader, error) {
	buffered := bufio.NewReaderSize(r, 4096)
	head, err := buffered.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read connections: %w", err)
	}
	if bytes.Equal(head, []byte{0x1f, 0x8b}) {
		unzipped, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, fmt.Errorf("read gzipped connections: %w", err)
		}
		buffered = bufio.NewReaderSize(unzipped, 4096)
	}
	// Some editors put the mark first. What is wrong with the input, reading it tells.
	if head, _ := buffered.Peek(3); bytes.Equal(head, []byte("\ufeff")) {
		_, err = buffered.Discard(len(head))
		return buffered, err
	}
	return buffered, nil
}

func (p *parser) readAll(r io.Reader, fn func(*conntrack.Entry) error) error {
	lines := lineReader{r: r, buf: make([]byte, bufferSize)}
	e := new(conntrack.Entry)
	for {
		line, tooLong, err := lines.next()
		if errors.Is(err, io.EOF) {
			return p.verdict()
		}
		if err != nil {
			return fmt.Errorf("read connections after line %d: %w", p.line, err)
		}
		p.line++
		p.stats.Lines++
		if tooLong {
			p.garbled(line, "the line is longer than 64 KiB")
		} else if err := p.one(line, e, fn); err != nil {
			return err
		}
		if p.line == judgedLines && p.stats.Entries == 0 && p.binary {
			return p.verdict()
		}
	}
}

// one reads a line and hands on its entry.
func (p *parser) one(line []byte, e *conntrack.Entry, fn func(*conntrack.Entry) error) error {
	entry, why := p.parse(line, e)
	if why != "" {
		p.garbled(line, why)
		return nil
	}
	if !entry {
		return nil
	}
	p.stats.Entries++
	return fn(e)
}

func (p *parser) garbled(line []byte, why string) {
	p.stats.Garbled++
	p.binary = p.binary || bytes.IndexByte(line, 0) >= 0
	p.stats.First = remember(p.stats.First, p.line, line, why)
}

func remember(first []Garbled, line int64, text []byte, why string) []Garbled {
	if len(first) == kept {
		return first
	}
	return append(first, Garbled{Line: line, Text: printable(text), Why: why})
}

// printable is the beginning of a text, safe for a terminal.
func printable(text []byte) string {
	cut := text[:min(len(text), keptText)]
	quoted := strconv.QuoteToASCII(string(cut))
	quoted = quoted[1 : len(quoted)-1]
	quoted = string(bytes.ReplaceAll([]byte(quoted), []byte(`\"`), []byte(`"`)))
	if len(cut) < len(text) {
		quoted += "…"
	}
	return quoted
}

// judgedLines is after how many lines without an entry a binary file is given up.
const judgedLines = 1000

// verdict is the error where nothing of what was read was of a list.
func (p *parser) verdict() error {
	switch s := &p.stats; {
	case s.Lines == 0:
		return ErrEmpty
	case s.Entries > 0 || s.Garbled == 0:
		return nil
	case p.binary:
		return fmt.Errorf("%w: it is a binary file; give the text of conntrack -L or of /proc/net/nf_conntrack, gzipped or not", ErrNoList)
	default:
		return fmt.Errorf("%w: none of its %d lines is an entry; line %d (%s): %s", ErrNoList, s.Lines, s.First[0].Line, s.First[0].Text, s.First[0].Why)
	}
}

// lineReader splits a stream into lines in one buffer.
type lineReader struct {
	r          io.Reader
	buf        []byte
	start, end int
	err        error
	// overlong is the beginning of a line whose rest is being passed over.
	overlong []byte
}

// next is the next line without its end, valid until the next call. Of one that
// is too long it is the beginning.
func (l *lineReader) next() (line []byte, tooLong bool, err error) {
	searched := 0
	for {
		if n := bytes.IndexByte(l.buf[l.start+searched:l.end], '\n'); n >= 0 {
			line = l.buf[l.start : l.start+searched+n]
			l.start += searched + n + 1
			return l.finish(line)
		}
		searched = l.end - l.start
		if searched > maxLine {
			l.skip()
			searched = 0
		}
		if l.err != nil {
			return l.last()
		}
		l.fill()
	}
}

// finish ends a line.
func (l *lineReader) finish(line []byte) ([]byte, bool, error) {
	if l.overlong != nil {
		line, l.overlong = l.overlong, nil
		return line, true, nil
	}
	if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	if len(line) > maxLine {
		return line[:keptText+1], true, nil
	}
	return line, false, nil
}

// skip forgets what has come of a line that is too long, but for its beginning.
func (l *lineReader) skip() {
	if l.overlong == nil {
		l.overlong = bytes.Clone(l.buf[l.start : l.start+keptText+1])
	}
	l.start = l.end
}

// last is what comes after the last line feed; nothing where reading failed, as what
// is cut off can look like an entry with another port.
func (l *lineReader) last() ([]byte, bool, error) {
	if !errors.Is(l.err, io.EOF) || l.start == l.end && l.overlong == nil {
		return nil, false, l.err
	}
	line := l.buf[l.start:l.end]
	l.start = l.end
	return l.finish(line)
}

// fill reads more behind what is there.
func (l *lineReader) fill() {
	if l.start > 0 {
		l.end = copy(l.buf, l.buf[l.start:l.end])
		l.start = 0
	}
	for range maxEmptyReads {
		n, err := l.r.Read(l.buf[l.end:])
		l.end += n
		if l.err = err; n > 0 || err != nil {
			return
		}
	}
	l.err = io.ErrNoProgress
}
