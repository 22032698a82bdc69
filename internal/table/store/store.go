// Package store writes tables to where engines read them: a directory that is partitioned by day and node, one file, or
// a store that speaks S3. A file is visible when it is whole, and not before.
package store

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"
)

// Options say where tables go, and of whom they are.
type Options struct {
	// To is a directory, a file (*.parquet, or - for Stdout), or s3://BUCKET/PREFIX.
	To string
	// Node is the partition of rows that name none.
	Node string
	// Version is that of natkit.
	Version string
	// Now is when the files are written; it is in their names.
	Now    time.Time
	Stdout io.Writer
	S3     S3
}

// file is one that is being written. One of commit and abort ends it; both may be called, commit after finish alone.
type file interface {
	io.Writer
	// finish has all that can fail for want of room or of a right behind it.
	finish() error
	commit() error
	// abort leaves nothing of it; after commit it does nothing.
	abort()
}

// place is where files go.
type place interface {
	// begin makes the file of this path, of which the elements are separated by slashes.
	begin(path string) (file, error)
	// single is true where there is one file alone, whatever the path.
	single() bool
	// end leaves nothing of what was made for files that are not there.
	end()
}

// Store takes the rows of tables. It is used by one goroutine.
type Store struct {
	opt   Options
	place place
	run   string
	parts int
	// sinks are those that rows go to, files those that are whole and not visible yet.
	sinks []ender
	files []file
	rows  map[string]int64
	// mutex is for files and parts.
	mutex sync.Mutex
}

// ender is a sink of whichever rows; stop is end without writing what waits.
type ender interface {
	end() error
	stop()
}

// Open checks that files can be written there, as far as that is known without writing one.
func Open(ctx context.Context, o Options) (*Store, error) {
	s := &Store{opt: o, rows: map[string]int64{}}
	random := make([]byte, 4)
	_, _ = rand.Read(random) // never fails
	s.run = o.Now.UTC().Format("20060102T150405Z") + "-" + hex.EncodeToString(random)
	var err error
	switch kind, _ := KindOf(o.To); kind {
	case ToS3:
		s.place, err = openBucket(ctx, o.To, o.S3)
	case ToFile:
		s.place, err = openFile(o.To, o.Stdout)
	case ToDirectory:
		s.place, err = openDirectory(o.To)
	}
	if err != nil {
		return nil, fmt.Errorf("write tables to %s: %w", o.To, err)
	}
	return s, nil
}

// checkPatience is how long a store may take to say that it is none.
const checkPatience = 5 * time.Second

// Check is for who writes much later: it fails where nothing can ever be written there, such as in a bucket that does not exist
// or with credentials that are not accepted. A store that is away may be back by then, a disk that is full have room.
func Check(ctx context.Context, o Options) error {
	o.S3.Patience = min(cmp.Or(o.S3.Patience, usualPatience), checkPatience)
	s, err := Open(ctx, o)
	if err == nil {
		s.Abort()
		return nil
	}
	if kind, _ := KindOf(o.To); kind == ToS3 && !errors.Is(err, ErrSettings) || errors.Is(err, syscall.ENOSPC) {
		return ctx.Err()
	}
	return err
}

// Kind is a kind of places.
type Kind int

// The kinds of places.
const (
	ToDirectory Kind = iota + 1
	ToFile
	ToS3
)

// KindOf is the kind that a name stands for.
func KindOf(to string) (Kind, error) {
	scheme, rest, is := strings.Cut(to, "://")
	switch {
	case to == "":
		return 0, errors.New("must be a directory, a file *.parquet, or s3://BUCKET/PREFIX")
	case is && scheme == "s3":
		if bucket, _, _ := strings.Cut(rest, "/"); bucket == "" {
			return 0, errors.New("the bucket is missing: s3://BUCKET/PREFIX")
		}
		return ToS3, nil
	case is:
		return 0, fmt.Errorf("unknown scheme %s://; must be a directory, a file *.parquet, or s3://BUCKET/PREFIX", scheme)
	case to == "-" || strings.HasSuffix(to, ".parquet"):
		return ToFile, nil
	}
	return ToDirectory, nil
}

// mostNode bounds the name of a node: that of a host name.
const mostNode = 253

// isPlain reports whether a character stands for itself in every path.
func isPlain(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r)
}

// CheckNode refuses a name that no host has. Recordings may have others, which are escaped in paths.
func CheckNode(node string) error {
	if node == "" || len(node) > mostNode || strings.Trim(node, ".") == "" || strings.ContainsFunc(node, func(r rune) bool { return !isPlain(r) }) {
		return fmt.Errorf("must have 1 to %d letters, digits, dots, dashes and underscores", mostNode)
	}
	return nil
}

// part is the path of the next file of a table.
func (s *Store) part(name, day, node string) string {
	return path.Join(name, "day="+day, "node="+partition(cmp.Or(node, s.opt.Node)), fmt.Sprintf("part-%s-%04d.parquet", s.run, s.parts))
}

// mostPartition bounds what stands behind "node=": file systems take 255 bytes.
const mostPartition = 250

// partition is the name of a node in a path, another one for each: any character can be in a name that a bundle claims. Letters,
// digits, dots, dashes and underscores stand for themselves, as does what is printed outside of ASCII, of which Spark decodes no
// escape; all others are escaped as in Hive. What is too long for the name of a file ends in a tilde and a hash, which no other does.
func partition(node string) string {
	var b strings.Builder
	for rest := node; rest != ""; {
		r, size := utf8.DecodeRuneInString(rest)
		if isPlain(r) || size > 1 && unicode.IsPrint(r) {
			b.WriteString(rest[:size])
		} else {
			for i := range size {
				fmt.Fprintf(&b, "%%%02X", rest[i])
			}
		}
		rest = rest[size:]
	}
	name := b.String()
	if len(name) <= mostPartition {
		return name
	}
	sum := sha256.Sum256([]byte(node))
	end := "~" + hex.EncodeToString(sum[:16])
	begin := name[:mostPartition-len(end)]
	for i := 1; i <= 2; i++ { // no half of an escape
		if at := len(begin) - i; begin[at] == '%' {
			begin = begin[:at]
			break
		}
	}
	return strings.ToValidUTF8(begin, "") + end
}

// Commit makes all files visible. Where it fails, as few as possible are: none, unless the last step of one failed.
func (s *Store) Commit() error {
	defer s.Abort()
	for _, sink := range s.sinks {
		if err := sink.end(); err != nil {
			return err
		}
	}
	s.sinks = nil
	for _, f := range s.files {
		if err := f.finish(); err != nil {
			return s.failed(err)
		}
	}
	for _, f := range s.files {
		if err := f.commit(); err != nil {
			return s.failed(err)
		}
	}
	s.files = nil
	return nil
}

// Abort removes what is not visible yet.
func (s *Store) Abort() {
	for _, sink := range s.sinks {
		sink.stop()
	}
	for _, f := range s.files {
		f.abort()
	}
	s.sinks, s.files = nil, nil
	s.place.end()
}

// Rows are how many were taken, by table.
func (s *Store) Rows() map[string]int64 { return s.rows }

func (s *Store) failed(err error) error { return fmt.Errorf("write tables to %s: %w", s.opt.To, err) }

// begin makes a file.
func (s *Store) begin(name, day, node string) (file, error) {
	s.mutex.Lock() // of sinks, which have a goroutine each
	defer s.mutex.Unlock()
	if s.place.single() && len(s.files) > 0 {
		return nil, errors.New("it is one file, and there are several tables: give a directory")
	}
	s.parts++
	f, err := s.place.begin(s.part(name, day, node))
	if err != nil {
		return nil, err
	}
	s.files = append(s.files, f)
	return f, nil
}

// count notes that rows of a table were taken.
func (s *Store) count(name string, rows int) { s.rows[name] += int64(rows) }
