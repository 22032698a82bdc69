package cli

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/natkit/natkit/internal/loose"
)

// input is a file, or standard input for "-", that is being read. Reading ends with the
// context, also where a pipe has no writer.
type input struct {
	io.Reader
	io.Closer
	// name is "standard input" for "-".
	name string
	// size is that of a plain file, 0 where it is unknown.
	size int64
}

// open opens a file, or standard input for "-"; usage is what to pipe into it.
func (e *Env) open(ctx context.Context, name, usage string) (*input, error) {
	switch {
	case name == "-" && e.StdinTerminal:
		return nil, usagef("standard input is a terminal: pipe %s", usage)
	case name == "-":
		return &input{loose.UTF8(until(ctx, e.Stdin)), io.NopCloser(nil), "standard input", 0}, nil
	}
	file, err := openUntil(ctx, name)
	if err != nil {
		return nil, err
	}
	in := &input{loose.UTF8(until(ctx, file)), file, name, 0}
	if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
		in.size = info.Size()
	}
	return in, nil
}

// read is all of a file, or of standard input for "-", cut one byte beyond most.
func (e *Env) read(ctx context.Context, what, name string, most int64, usage string) ([]byte, error) {
	in, err := e.open(ctx, name, usage)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	defer in.Close()
	text, err := io.ReadAll(io.LimitReader(in, most+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	return text, nil
}

// openUntil opens a file for reading, or gives up when ctx ends: that of a pipe with
// a name waits for its writer. Its goroutine then ends with the process.
func openUntil(ctx context.Context, name string) (*os.File, error) {
	var file *os.File
	opened := make(chan error, 1)
	go func() {
		var err error
		file, err = os.Open(name)
		opened <- err
	}()
	select {
	case err := <-opened:
		return file, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// chunkSize is how much until reads at once.
const chunkSize = 256 << 10

// until reads from on a goroutine of its own, so that the end of ctx need not wait for
// input. That goroutine then ends with the process.
func until(ctx context.Context, from io.Reader) io.Reader {
	r, w := io.Pipe()
	context.AfterFunc(ctx, func() { w.CloseWithError(ctx.Err()) })
	go func() {
		// Without the methods by which a file would choose another size.
		_, err := io.CopyBuffer(w, struct{ io.Reader }{from}, make([]byte, chunkSize))
		w.CloseWithError(err)
	}()
	return r
}

// headSize is how many bytes of a file are read to recognise it.
const headSize = 4096

// otherInputs are what other verbs read, by how it begins, with comments before it; without a verb what none reads.
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
	{regexp.MustCompile(`^PK\x03\x04`), "a zip archive", ""},
	{regexp.MustCompile(`^7z\xbc\xaf\x27\x1c`), "a 7z archive", ""},
	{regexp.MustCompile(`^Rar!\x1a\x07`), "a rar archive", ""},
}

// howToRead is what to do with an input of another kind, empty where natkit does not know it.
func howToRead(head []byte, name string) string {
	switch what, verb := otherInput(head); {
	case what == "":
		return ""
	case verb == "":
		return fmt.Sprintf("this is %s: unpack it, and give the directory", what)
	default:
		return fmt.Sprintf("this is %s: natkit %s %s reads it", what, verb, name)
	}
}

// otherInput returns the kind of a file that begins with head, and the verb that reads it; empty
// where natkit does not know it.
func otherInput(head []byte) (what, verb string) {
	head = head[:min(len(head), headSize)]
	if z, err := gzip.NewReader(bytes.NewReader(head)); err == nil {
		head, _ = io.ReadAll(io.LimitReader(z, headSize)) // the file goes on behind its head
	}
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

// outFile is a file that a verb writes besides its report about R, or to stdout (-)
// instead of it.
type outFile[R any] struct {
	flag, usage string
	write       func(R, io.Writer) error
	// binary output is not for terminals.
	binary bool
	name   string
}

// outFiles are the extra output files of a verb.
type outFiles[R any] []outFile[R]

// check reports, before the work, what would keep the files from being written, and
// whether one of them replaces the report.
func (files outFiles[R]) check(e *Env) (toStdout bool, err error) {
	for i, f := range files {
		other := slices.IndexFunc(files[:i], func(o outFile[R]) bool { return filepath.Clean(o.name) == filepath.Clean(f.name) })
		switch {
		case f.name == "":
		case other >= 0:
			return false, usagef("--%s %s: --%s writes there, too", f.flag, f.name, files[other].flag)
		case f.name == "-" && e.asJSON:
			return false, usagef("--%s - and --json are mutually exclusive", f.flag)
		case f.name == "-" && f.binary && e.StdoutTerminal:
			return false, usagef("--%s -: stdout is a terminal and the output is binary: redirect it", f.flag)
		case f.name == "-":
			toStdout = true
		default:
			if err := mayWrite(f.name); err != nil {
				return false, fmt.Errorf("--%s: %w", f.flag, err)
			}
		}
	}
	return toStdout, nil
}

// save writes the files, each whole or not at all.
func (files outFiles[R]) save(e *Env, r R) error {
	var errs []error
	for _, f := range files {
		write := func(w io.Writer) error { return f.write(r, w) }
		var err error
		switch f.name {
		case "":
		case "-":
			err = write(e.Stdout)
		default:
			err = writeWhole(f.name, 0o644, write)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", f.flag, err))
		}
	}
	return errors.Join(errs...)
}

// addTo adds the flags.
func (files outFiles[R]) addTo(flags interface {
	StringVar(p *string, name, value, usage string)
}) {
	for i := range files {
		flags.StringVar(&files[i].name, files[i].flag, "", files[i].usage)
	}
}
