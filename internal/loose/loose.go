// Package loose reads what people send of a host without natkit: a sosreport, a tree of must-gather, a
// directory or an archive with the output of sysctl, conntrack, dmesg, nstat, ss, ip, iptables-save, nft and
// with files of /proc. It recognises texts by their content, and brings them into the forms in which the
// kernel gives the same (files of /proc, counters, log records, rules), so that what reads the kernel reads
// them. It touches no file: what it reads is handed in.
package loose

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/snapshot"

	"github.com/natkit/natkit/internal/lazyregexp"
)

// File is a plain file of a directory or an archive.
type File struct {
	// Name is its path there, with slashes. It is a label, and opens nothing.
	Name string
	// Modified is when it was written last; zero where that is not known.
	Modified time.Time
	io.Reader
}

// Walk calls fn for each plain file and may be called again; fn's error ends it.
type Walk func(fn func(*File) error) error

// Text is the output of one command, or one file of the kernel.
type Text struct {
	// File is where it stands, Command what printed it, where the file says so; both are hints at most.
	File, Command string
	// At is when it was printed; zero where that is not known.
	At time.Time
	// Data are its lines, ended by \n alone; of a list of connections none, which is read where it stands: Lines
	// of them, Entries with a connection, from the byte first of the file on.
	Data           []byte
	Lines, Entries int64
	// first and end bound a list of connections in its file.
	first, end int64
	// host is the name of the machine, in a prompt or in uname's output; empty where nothing says it.
	host string
	// part is its number in what one command, or a file without prompts, printed.
	part int
	// cut is true where the file could not be read to its end.
	cut  bool
	kind *kind
}

// Kind names what the text is, by the command that prints it.
func (t *Text) Kind() string { return t.kind.name }

// Cut reports whether its file could not be read to its end.
func (t *Text) Cut() bool { return t.cut }

func (t *Text) String() string { return t.kind.name + " (" + t.File + ")" }

// hints are what may tell texts of the same content apart.
func (t *Text) hints() string { return t.File + " " + t.Command }

const (
	// headBytes of a text are what it is recognised by.
	headBytes = 16 << 10
	// textMax bounds one text, logs and lists of connections excepted: of logs the lines that are kept.
	textMax = snapshot.MemberMax
	// lineMax bounds a line; of a longer one the rest is passed over.
	lineMax = 64 << 10
	// mostFiles bounds those of a tree, mostWithout those before the first text, mostTexts those that are kept of it.
	mostFiles   = 500_000
	mostWithout = 50_000
	mostTexts   = 20_000
)

// Options specify how to read a tree.
type Options struct {
	Budget *snapshot.Budget
	// KeepLog reports whether a line of a kernel log is of interest; the others are passed over.
	KeepLog func(line string) bool
}

// command is a line of a terminal's session: a prompt, or what scripts print above the output.
var command = lazyregexp.New(commandPattern)

const commandPattern = `^\s*(?:[^\s#$%>]{0,64}(?: ?[^\s#$%>]{1,64}){0,2}[#$%>]+|\++|={2,}>?|-{2,}|\*{2,}|Command:)\s+(?:sudo\s+)?(?:/\S+/)?` +
	`((?:conntrack|sysctl|dmesg|journalctl|nstat|netstat|ss|ip6?tables(?:-(?:nft|legacy))?(?:-save)?|ip|nft|cat|uname|uptime|date|ipvsadm|tc|free|lscpu|nproc|head|tail|grep|for|watch|sleep|ping|curl|docker|kubectl|oc)\b.*)$`

// prompts end before a command.
var prompts = [][]byte{[]byte("# "), []byte("$ "), []byte("% "), []byte("> "), []byte("+ "), []byte("Command:")}

// mayPrompt reports whether a line may have a prompt. It is asked about each line, and most have none.
func mayPrompt(line []byte) bool {
	if len(line) > 1 && line[0] == line[1] && (line[0] == '=' || line[0] == '-' || line[0] == '*') {
		return true
	}
	head := line[:min(len(line), 192)]
	return slices.ContainsFunc(prompts, func(p []byte) bool { return bytes.Contains(head, p) })
}

// commandOf is the command of a line of a session; empty of any other line.
func commandOf(line []byte) string {
	if len(line) > 512 || !mayPrompt(line) || bytes.HasPrefix(line, []byte("# Generated")) {
		return ""
	}
	if m := command.FindSubmatch(line); m != nil {
		return strings.TrimRight(string(m[1]), " =-*<")
	}
	return ""
}

// reader takes texts off files.
type reader struct {
	Options
	files int
	// buffer is for the lines of one file after the other.
	buffer *bufio.Reader
	texts  []*Text
	// unknown are the files of which nothing was recognised, some at most, and others how many.
	unknown []string
	others  int
	// notes are what has to be said about files, lost what of them could not be read.
	notes, lost []string
}

// read takes the texts of a file.
func (r *reader) read(f *File) error {
	switch r.files++; {
	case r.files > mostFiles:
		return fmt.Errorf("more than %d files", mostFiles)
	case r.others > mostWithout && len(r.texts) == 0:
		return fmt.Errorf("%w: it looked at %d, such as %s", ErrNothing, mostWithout, r.unknown[0])
	}
	if ignored(f.Name) {
		return nil
	}
	plain, err := decompressed(f.Reader)
	switch damage := (*DamageError)(nil); {
	case errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &damage):
		r.lose(damage.Error())
		return nil
	case err != nil:
		r.note("%s: %v", f.Name, plainly(err))
		return nil
	}
	before := len(r.texts)
	if r.buffer == nil {
		r.buffer = bufio.NewReaderSize(nil, linesBytes)
	}
	r.buffer.Reset(plain)
	s := &session{reader: r, file: f, lines: &lines{r: r.buffer}}
	err = s.read()
	switch {
	case errors.Is(err, errBinary):
	case errors.Is(err, snapshot.ErrBudget), errors.Is(err, context.Canceled):
		return fmt.Errorf("%s: %w", f.Name, err)
	case err != nil && len(r.texts) > before:
		r.lose(fmt.Sprintf("%s (%s) cannot be read to its end: %v", f.Name, r.texts[len(r.texts)-1].kind.name, plainly(err)))
	case err != nil:
		r.note("%s: %v", f.Name, plainly(err))
	}
	shareHost(r.texts[before:])
	if len(r.texts) == before {
		if r.others++; len(r.unknown) < mostShown {
			r.unknown = append(r.unknown, f.Name)
		}
	}
	return nil
}

const mostShown = 20

// plainly is the error of a file in the words of those who read it.
func plainly(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("it is truncated")
	}
	return err
}

func (r *reader) lose(what string) {
	if len(r.lost) < mostShown {
		r.lost = append(r.lost, what)
	}
}

func (r *reader) note(format string, args ...any) {
	if len(r.notes) < mostShown {
		r.notes = append(r.notes, fmt.Sprintf(format, args...))
	}
}

// configured are files that say what is to be set, not what is.
var configured = lazyregexp.New(`(?:^|/)(?:etc|usr/lib|usr/share)/`)

// ignored reports whether a file is of no interest by its place.
func ignored(name string) bool {
	return configured.MatchString(name) && !strings.HasSuffix(name, "os-release")
}

// session is a file with the output of one command, or of several below the lines that name them.
type session struct {
	*reader
	file  *File
	lines *lines
	// at is the time that the session printed last.
	at time.Time
	// now is the text that is read, at the byte start; known is whether it was recognised.
	now     *Text
	known   bool
	dropped bool
	// sort is what its last line is of, where lines of it say so.
	sort string
	// host is whose prompt stood last.
	host string
}

func (s *session) read() error {
	s.begin("")
	for {
		line, err := s.lines.next()
		if errors.Is(err, io.EOF) {
			return s.finish()
		}
		if err != nil {
			return s.cutShort(err)
		}
		if c := commandOf(line); c != "" {
			if err := s.finish(); err != nil {
				return err
			}
			switch host := promptHost(line); {
			case elsewhere.MatchString(c):
				s.host = ""
			case host != "":
				s.host = host
			}
			s.begin(c)
			continue
		}
		if err := s.divide(line); err != nil {
			return err
		}
		if err := s.add(line); err != nil {
			return s.cutShort(err)
		}
	}
}

// cutShort ends the file before its end.
func (s *session) cutShort(why error) error {
	s.now.cut = true
	return cmp.Or(s.finish(), why)
}

// divide begins another text at a line that is surely of another sort than those above: outputs of several commands in
// one file, without prompts.
func (s *session) divide(line []byte) error {
	if s.sort == kindTable && bytes.Contains(line, entryMark) {
		return nil
	}
	sort := sortOf(line)
	if sort == "" || sort == s.sort {
		return nil
	}
	if s.now.Lines > 0 {
		if err := s.finish(); err != nil {
			return err
		}
		part := s.now.part + 1
		s.begin(s.now.Command)
		s.now.first, s.now.part = s.lines.start, part
	}
	s.sort = sort
	return nil
}

func (s *session) begin(command string) {
	at := s.at
	if at.IsZero() {
		at = s.file.Modified
	}
	s.now = &Text{File: s.file.Name, Command: command, At: at, first: s.lines.offset, host: s.host}
	s.known, s.dropped, s.sort = false, false, ""
}

// add takes a line, and recognises the text once its head is there.
func (s *session) add(line []byte) error {
	t := s.now
	t.Lines++
	if (!s.known || t.kind.streamed) && bytes.Contains(line, entryMark) {
		t.Entries++
	}
	switch {
	case s.dropped:
		return nil
	case s.known && t.kind.streamed:
		return nil
	case s.known && t.kind.log && (s.KeepLog != nil && !s.KeepLog(string(line))):
		return nil
	case len(t.Data)+len(line) >= textMax && t.kind != nil && t.kind.log:
		half := len(t.Data) / 2 // the newest lines count
		t.Data = append([]byte(nil), t.Data[half:]...)
		s.release(half)
	case len(t.Data)+len(line) >= textMax:
		s.dropped = true
		return fmt.Errorf("%s has more than %d bytes", cmp.Or(t.Command, "it"), textMax)
	}
	if err := s.charge(len(line) + 1); err != nil {
		return err
	}
	t.Data = append(append(t.Data, line...), '\n')
	if !s.known && len(t.Data) >= headBytes {
		s.recognise()
	}
	return nil
}

func (s *session) charge(n int) error {
	if s.Budget == nil {
		return nil
	}
	return s.Budget.Charge(int64(n))
}

// release gives back what is not held any more: the most that is held at a time is bounded, not all that was read.
func (s *session) release(n int) {
	if s.Budget != nil {
		s.Budget.Release(int64(n))
	}
}

func (s *session) recognise() {
	t := s.now
	t.kind = kindOf(t)
	s.known, s.dropped = t.kind != nil, t.kind == nil
	held := len(t.Data)
	switch {
	case s.dropped || t.kind.streamed:
		t.Data = nil
	case t.kind.log && s.KeepLog != nil:
		t.Data = s.interesting(t.Data)
	}
	s.release(held - len(t.Data))
}

func (s *session) interesting(data []byte) (kept []byte) {
	for line := range bytes.Lines(data) {
		if s.KeepLog(string(line)) {
			kept = append(kept, line...)
		}
	}
	return kept
}

// emptyList is what a file without a line has to be named that it is a list of no connections.
var emptyList = lazyregexp.New(`conntrack[ _-]+(?:\w+[ _-]+)?L\b|conntrack[ _]-L|\bnf_conntrack$`)

// finish keeps the text if it was recognised.
func (s *session) finish() error {
	t := s.now
	if !s.known && !s.dropped && len(t.Data) > 0 {
		s.recognise()
	}
	if t.Lines == 0 && !t.cut && emptyList.MatchString(strings.TrimSpace(t.hints())) { // the list of an empty table is empty
		t.kind = kindNamed(kindTable)
	}
	if t.kind == nil {
		return nil
	}
	t.end = s.lines.start
	if t.kind.name == kindDate {
		if at, ok := parseDate(string(t.Data)); ok {
			s.at = at
		}
	}
	if t.kind.name == kindUname {
		t.host = unameHost(t.Data)
	}
	if len(s.texts) >= mostTexts {
		return fmt.Errorf("more than %d texts", mostTexts)
	}
	s.texts = append(s.texts, t)
	return nil
}
