package snapshot

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// BundleSchema names the form of a bundle: a tar.gz of the raw texts and netlink
// answers that a recording was made of.
const BundleSchema = "natkit.bundle/1"

const (
	bundleFirst = "natkit-bundle.json"
	bundleLast  = "end.json"
	// MemberMax bounds one member of a bundle, bundleMax all that it unpacks to: a
	// small file can unpack to any size.
	MemberMax = 16 << 20
	bundleMax = 4 << 30
)

// bundleHeader is the first member of a bundle.
type bundleHeader struct {
	Schema  string    `json:"schema"`
	TakenAt time.Time `json:"taken_at"`
}

// bundleEnd is the last one; without it a bundle was cut short.
type bundleEnd struct {
	Members int `json:"members"`
}

// BundleWriter writes a bundle, member by member.
type BundleWriter struct {
	gz      *gzip.Writer
	tar     *tar.Writer
	takenAt time.Time
	members int
}

// NewBundleWriter begins a bundle.
func NewBundleWriter(w io.Writer, takenAt time.Time) (*BundleWriter, error) {
	// Dumps of the table are large and repetitive: more effort gains little.
	gz, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	b := &BundleWriter{gz: gz, tar: tar.NewWriter(gz), takenAt: takenAt}
	return b, b.AddJSON(bundleFirst, bundleHeader{Schema: BundleSchema, TakenAt: takenAt})
}

// Add writes one member.
func (b *BundleWriter) Add(name string, data []byte) error {
	if len(data) > MemberMax {
		return fmt.Errorf("write %s to the bundle: %d bytes, at most %d fit", name, len(data), MemberMax)
	}
	b.members++
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: int64(len(data)), ModTime: b.takenAt}
	if err := b.tar.WriteHeader(h); err != nil {
		return fmt.Errorf("write %s to the bundle: %w", name, err)
	}
	if _, err := b.tar.Write(data); err != nil {
		return fmt.Errorf("write %s to the bundle: %w", name, err)
	}
	return nil
}

// AddJSON writes v as one member.
func (b *BundleWriter) AddJSON(name string, v any) error {
	data, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return fmt.Errorf("write %s to the bundle: %w", name, err)
	}
	return b.Add(name, append(data, '\n'))
}

// Close ends the bundle; it does not close what it was written to.
func (b *BundleWriter) Close() error {
	if err := b.AddJSON(bundleLast, bundleEnd{Members: b.members}); err != nil {
		return err
	}
	if err := b.tar.Close(); err != nil {
		return fmt.Errorf("end the bundle: %w", err)
	}
	if err := b.gz.Close(); err != nil {
		return fmt.Errorf("end the bundle: %w", err)
	}
	return nil
}

// BundleReader reads a bundle that may come from anybody.
type BundleReader struct {
	// Budget is for all that is kept of the bundle.
	*Budget
	unpacked *limited
	tar      *tar.Reader
	members  int
}

// NewBundleReader reads the beginning of a bundle. It fails where r is none, or
// one of another version. Each member that Next gives is charged to the budget, which is
// for what is made of it, too.
func NewBundleReader(r io.Reader, budget *Budget) (*BundleReader, error) {
	gz, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("not written by natkit snapshot: %w", whole(err))
	}
	b := &BundleReader{Budget: budget, unpacked: &limited{r: gz, left: bundleMax}}
	b.tar = tar.NewReader(b.unpacked)
	name, data, err := b.member()
	if err != nil {
		return nil, fmt.Errorf("not written by natkit snapshot: %w", err)
	}
	var h bundleHeader
	if name != bundleFirst || json.Unmarshal(data, &h) != nil {
		return nil, fmt.Errorf("not written by natkit snapshot: it begins with %q, not with %s", name, bundleFirst)
	}
	if h.Schema != BundleSchema {
		return nil, fmt.Errorf("its form is %q and this natkit reads %s: use the natkit that wrote it", h.Schema, BundleSchema)
	}
	return b, nil
}

// Next is the next member; io.EOF after the last one of a whole bundle.
func (b *BundleReader) Next() (name string, data []byte, err error) {
	name, data, err = b.member()
	if err != nil {
		return "", nil, err
	}
	if name != bundleLast {
		return name, data, nil
	}
	var end bundleEnd
	if err := json.Unmarshal(data, &end); err != nil {
		return "", nil, fmt.Errorf("%s: %w", bundleLast, err)
	}
	if end.Members != b.members-1 {
		return "", nil, fmt.Errorf("%d members, %d were written", b.members-1, end.Members)
	}
	// The checksum of the gzip stream stands behind the tar archive's padding.
	if _, err := io.Copy(io.Discard, b.unpacked); err != nil {
		return "", nil, whole(err)
	}
	return "", nil, io.EOF
}

func (b *BundleReader) member() (string, []byte, error) {
	h, err := b.tar.Next()
	if err != nil {
		return "", nil, whole(err)
	}
	if h.Typeflag != tar.TypeReg {
		return "", nil, fmt.Errorf("%q is not a plain file", h.Name)
	}
	if h.Size > MemberMax {
		return "", nil, fmt.Errorf("%q has %d bytes, more than %d", h.Name, h.Size, MemberMax)
	}
	b.members++
	if err := b.Charge(h.Size); err != nil {
		return "", nil, fmt.Errorf("%s: %w", h.Name, err)
	}
	data := make([]byte, h.Size)
	if _, err := io.ReadFull(b.tar, data); err != nil {
		return "", nil, fmt.Errorf("%s: %w", h.Name, whole(err))
	}
	return h.Name, data, nil
}

// whole says in words that a bundle ends before its last member.
func whole(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the file is truncated")
	}
	return err
}

// limited fails, where io.LimitedReader would feign an end.
type limited struct {
	r    io.Reader
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, fmt.Errorf("it unpacks to more than %d bytes", int64(bundleMax))
	}
	n, err := l.r.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	return n, err
}
