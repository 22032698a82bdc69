// Package files reads NAT logs from disk: JSON lines, compressed or not, and tables of nat_log in Parquet.
package files

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/natkit/natkit/internal/natlog"
	"github.com/natkit/natkit/internal/table"
	"github.com/parquet-go/parquet-go"
)

// Found is what was read.
type Found struct {
	// Files are those that had records, Skipped lines that were none of a NAT log. Tables are those of the files that have
	// rows of a table, without begin and stop.
	Files   int
	Skipped int
	// Others are names below a directory that are links or no files, and were not read.
	Others int
	Tables int
}

// most bounds the number of files below a directory.
const most = 1_000_000

// Read calls each for the records of a file, or of all files below a directory, the ones that were written last last. Records
// without want are passed over, but for those about the log itself, the first of a file and of each minute, and the last before one
// of these or the end of the file: they show when it was written. The error is of the files that could not be read, or not to their end: what was read of them counts.
func Read(ctx context.Context, path string, want netip.Addr, each func(*natlog.Record)) (found Found, err error) {
	names, others, err := list(path)
	found.Others = others
	if err != nil {
		return found, fmt.Errorf("read the NAT log %s: %w", path, err)
	}
	var errs []error
	for _, name := range names {
		n, skipped, err := one(ctx, name, want, each)
		if ctx.Err() != nil {
			return found, ctx.Err()
		}
		if err != nil && len(errs) < mostErrors {
			errs = append(errs, fmt.Errorf("read the NAT log %s: %w", name, err))
		}
		if found.Skipped += skipped; n > 0 {
			found.Files++
			if isTable(name) {
				found.Tables++
			}
		}
	}
	return found, errors.Join(errs...)
}

// mostErrors bounds how many files are named that could not be read.
const mostErrors = 10

func isTable(name string) bool { return strings.HasSuffix(name, ".parquet") }

// list has the files in the order in which they were last written, and how many names stand for something else: links, which may
// lead anywhere, and what is no file.
func list(path string) (names []string, others int, err error) {
	written := map[string]time.Time{}
	err = filepath.WalkDir(path, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if !d.Type().IsRegular() && name != path {
			others++
			return nil
		}
		base := d.Name()
		if strings.HasPrefix(base, ".") && name != path || base == "position" || base == "lock" {
			return nil
		}
		info, err := os.Stat(name)
		if err != nil {
			return err
		}
		if len(names) == most {
			return fmt.Errorf("more than %d files", most)
		}
		names, written[name] = append(names, name), info.ModTime()
		return nil
	})
	slices.SortStableFunc(names, func(a, b string) int { return written[a].Compare(written[b]) })
	return names, others, err
}

func one(ctx context.Context, name string, want netip.Addr, each func(*natlog.Record)) (n, skipped int, err error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	if isTable(name) {
		n, err = rows(ctx, f, want, each)
		return n, 0, err
	}
	in, done, err := plain(name, f)
	if err != nil {
		return 0, 0, err
	}
	defer done()
	return lines(ctx, in, want, each)
}

// plain undoes the compression that the name shows.
func plain(name string, f io.Reader) (io.Reader, func(), error) {
	switch filepath.Ext(name) {
	case ".gz":
		z, err := gzip.NewReader(f)
		if err != nil {
			return nil, nil, err
		}
		return z, func() { z.Close() }, nil
	case ".zst":
		z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
		if err != nil {
			return nil, nil, err
		}
		return z, z.Close, nil
	}
	return f, func() {}, nil
}

// lines reads JSON lines. Those that are longer than any of a log are skipped.
func lines(ctx context.Context, in io.Reader, want netip.Addr, each func(*natlog.Record)) (n, skipped int, err error) {
	needle := []byte(`"` + want.String() + `"`)
	reader := bufio.NewReaderSize(in, natlog.MaxLine)
	take := func(text []byte) {
		if r, err := natlog.ParseJSON(bytes.TrimSpace(text)); err == nil {
			n++
			each(&r)
		} else if len(bytes.TrimSpace(text)) > 0 {
			skipped++
		}
	}
	var passed []byte // the last line that was passed over: it says until when there was a log
	var minute []byte // that of the last line
	long := false
	for count := 0; ; count++ {
		if count%4096 == 0 && ctx.Err() != nil {
			return n, skipped, ctx.Err()
		}
		text, err := reader.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			long = true
			continue
		}
		about := !bytes.Contains(text, session) || isOther(text, minute)
		minute = append(minute[:0], minuteOf(text)...)
		if passed != nil && (err != nil || about) {
			take(passed)
			passed = nil
		}
		if err != nil && err != io.EOF {
			return n, skipped, err
		}
		switch {
		case long:
			long = false
			skipped++
		case len(text) == 0:
		case about || n == 0 || bytes.Contains(text, needle):
			take(text)
		default:
			passed = append(passed[:0], text...)
		}
		if err == io.EOF {
			return n, skipped, nil
		}
	}
}

// session is in lines about connections, stamp before the time of a line.
var (
	session = []byte(`"protocol"`)
	stamp   = []byte(`"time":`)
)

// minuteOf is the time of a line up to its minute, nil where it is not to be found.
func minuteOf(text []byte) []byte {
	_, text, _ = bytes.Cut(text, stamp)
	text = bytes.TrimLeft(text, ` "`)
	const size = len("2006-01-02T15:04")
	if len(text) < size {
		return nil
	}
	return text[:size]
}

// isOther reports whether a line is of another minute than the one before it, or does not say so.
func isOther(text, minute []byte) bool {
	now := minuteOf(text)
	return now == nil || !bytes.Equal(now, minute)
}

// rowsAtOnce is how many rows are decoded at once.
const rowsAtOnce = 1024

func rows(ctx context.Context, f *os.File, want netip.Addr, each func(*natlog.Record)) (n int, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	file, err := parquet.OpenFile(f, info.Size())
	if err != nil {
		return 0, err
	}
	if name, ok := file.Lookup(table.MetaTable); !ok || name != table.NATLogs {
		return 0, nil // another table beside it
	}
	if err := table.OtherSchema(file.Lookup); err != nil {
		return 0, err
	}
	reader := parquet.NewGenericReader[table.NATLog](file)
	defer reader.Close()
	batch := make([]table.NATLog, rowsAtOnce)
	text := want.String()
	take := func(row *table.NATLog) {
		if r, ok := natlog.OfRow(row); ok {
			each(&r)
		}
	}
	var passed *table.NATLog
	for {
		read, err := reader.Read(batch)
		for i := range batch[:read] {
			row := &batch[i]
			if n++; n > 1 && row.Src != text && row.NATAddress != text && row.Dst != text && row.Server != text {
				passed = row
				continue
			}
			passed = nil
			take(row)
		}
		if passed != nil { // until when there was a log; the batch is used again
			take(passed)
			passed = nil
		}
		if err == io.EOF {
			return n, nil
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return n, err
		}
	}
}
