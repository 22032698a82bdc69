package snapshot

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/flate"
	"context"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
)

// BundleSchema names the form of a bundle that this natkit writes: a tar.gz of the raw texts and netlink
// answers that recordings were made of. A member of snapshot S of recording R is R/S/NAME.
const BundleSchema = "natkit.bundle/2"

// schemas are the forms that are read, each with the name that a member of it has in the newest one.
var schemas = map[string]func(name string) string{
	// One recording: S/NAME.
	"natkit.bundle/1": func(name string) string { return "0/" + name },
	BundleSchema:      func(name string) string { return name },
}

const (
	bundleFirst = "natkit-bundle.json"
	bundleLast  = "end.json"
	// MemberMax bounds one member of a bundle, bundleMax all that it unpacks to: a
	// small file can unpack to any size.
	MemberMax = 16 << 20
	bundleMax = 4 << 30
)

// BundleHeader is the first member of a bundle.
type BundleHeader struct {
	Schema  string    `json:"schema"`
	TakenAt time.Time `json:"taken_at"`
	// WrittenBy is the version of the natkit that wrote it; empty before natkit.bundle/2.
	WrittenBy string `json:"written_by,omitempty"`
	// Anonymized is true where addresses and names were replaced.
	Anonymized bool `json:"anonymized,omitempty"`
	// Host is the one that it was taken on, as far as its writer said so.
	Host Host `json:"host,omitzero"`
}

// Host is what tells a machine from others.
type Host struct {
	// Name is its host name, Distribution as in os-release(5): "debian 12".
	Name         string `json:"name,omitempty"`
	Distribution string `json:"distribution,omitempty"`
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

// NewBundleWriter begins a bundle, in the form BundleSchema.
func NewBundleWriter(w io.Writer, h BundleHeader) (*BundleWriter, error) {
	// Dumps of the table are large and repetitive: more effort gains little.
	gz, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	h.Schema = BundleSchema
	b := &BundleWriter{gz: gz, tar: tar.NewWriter(gz), takenAt: h.TakenAt}
	return b, b.AddJSON(bundleFirst, h)
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

// BundleReader reads an untrusted bundle.
type BundleReader struct {
	// Budget is for all that is kept of the bundle.
	*Budget
	// Header is its first member.
	Header BundleHeader
	// OnMember, where set, is called with each member that Next returns, once.
	OnMember func(name string, size int)
	unpacked *limited
	tar      *tar.Reader
	members  int
	// last is the name of the last member that was read.
	last string
	// again is what Unread gave back.
	again *BundleMember
}

// BundleMember is one file of a bundle.
type BundleMember struct {
	Name string
	Data []byte
}

// NewBundleReader reads the beginning of a bundle. It fails where r is none, or
// one of another version. Each member that Next gives is charged to the budget (nil: the default one), which is
// for what is made of it, too.
func NewBundleReader(r io.Reader, budget *Budget) (*BundleReader, error) {
	if budget == nil {
		budget = NewBudget(DefaultBudget)
	}
	b := &BundleReader{Budget: budget}
	gz, err := gzip.NewReader(r)
	if err != nil {
		return nil, foreign(b.damaged(err))
	}
	b.unpacked = &limited{r: gz, left: bundleMax}
	b.tar = tar.NewReader(b.unpacked)
	name, data, err := b.member()
	if err != nil {
		return nil, foreign(err)
	}
	if name != bundleFirst || json.Unmarshal(data, &b.Header) != nil {
		return nil, fmt.Errorf("not written by natkit snapshot: it begins with %q, not with %s", name, bundleFirst)
	}
	if schemas[b.Header.Schema] == nil {
		return nil, b.Header.unknown()
	}
	return b, nil
}

// unknown is the error for a form that this natkit does not read.
func (h BundleHeader) unknown() error {
	by := "the natkit that wrote it"
	if h.WrittenBy != "" {
		by = fmt.Sprintf("natkit %.40q or later", h.WrittenBy)
	}
	known := slices.Sorted(maps.Keys(schemas))
	return fmt.Errorf("its form is %.40q, and this natkit reads %s: use %s", h.Schema, strings.Join(known, " and "), by)
}

// IsBundle reports whether a file that begins so is a bundle, whatever its version.
func IsBundle(head []byte) bool {
	gz, err := gzip.NewReader(bytes.NewReader(head))
	if err != nil {
		return false
	}
	name := make([]byte, len(bundleFirst))
	_, err = io.ReadFull(gz, name)
	return err == nil && string(name) == bundleFirst
}

// foreign is an error at the beginning of a file; where that could be read, the file is
// something else.
func foreign(err error) error {
	var path *fs.PathError
	if errors.Is(err, ErrBudget) || errors.Is(err, context.Canceled) || errors.As(err, &path) {
		return err
	}
	return fmt.Errorf("not written by natkit snapshot: %w", err)
}

// Unread makes Next return a member once more, and charge it then.
func (b *BundleReader) Unread(name string, data []byte) {
	b.again = &BundleMember{name, data}
	b.left += int64(len(data))
}

// Next is the next member, by the name that it has in the form BundleSchema; io.EOF after the last one of a
// whole bundle.
func (b *BundleReader) Next() (name string, data []byte, err error) {
	if m := b.again; m != nil {
		b.again = nil
		if err := b.Charge(int64(len(m.Data))); err != nil {
			return "", nil, fmt.Errorf("%s: %w", m.Name, err)
		}
		return m.Name, m.Data, nil
	}
	name, data, err = b.member()
	if err != nil {
		return "", nil, err
	}
	if name != bundleLast {
		name = schemas[b.Header.Schema](name)
		if b.OnMember != nil {
			b.OnMember(name, len(data))
		}
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
		return "", nil, b.damaged(err)
	}
	return "", nil, io.EOF
}

func (b *BundleReader) member() (string, []byte, error) {
	h, err := b.tar.Next()
	if err != nil {
		return "", nil, b.damaged(err)
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
		return "", nil, b.damaged(err)
	}
	b.last = h.Name
	return h.Name, data, nil
}

// DamageError is why a bundle cannot be read to its end.
type DamageError struct {
	// Last is the last member that was read, empty where there is none.
	Last string
	Err  error
}

func (d *DamageError) Error() string {
	what := "the file is truncated"
	if !d.truncated() {
		what = fmt.Sprintf("the file is damaged (%v)", d.Err)
	}
	if d.Last == "" {
		return what
	}
	what += fmt.Sprintf(" behind %s: what followed is lost", d.Last)
	if !d.truncated() {
		what += ", and what came before may be wrong"
	}
	return what
}

func (d *DamageError) truncated() bool { return errors.Is(d.Err, io.ErrUnexpectedEOF) }

func (d *DamageError) Unwrap() error { return d.Err }

// damaged is an error of the archive, or else of what it is read from.
func (b *BundleReader) damaged(err error) error {
	corrupt := new(flate.CorruptInputError)
	switch {
	case errors.Is(err, io.EOF):
		return &DamageError{b.last, io.ErrUnexpectedEOF}
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, tar.ErrHeader), errors.Is(err, gzip.ErrHeader), errors.Is(err, gzip.ErrChecksum), errors.As(err, corrupt):
		return &DamageError{b.last, err}
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

// DefaultBudget is what a bundle may take in memory, in bytes.
const DefaultBudget = 256 << 20

// Budget bounds what a bundle becomes in memory: a small file unpacks to a large one,
// and three bytes of JSON to a struct of hundreds.
type Budget struct{ most, left int64 }

// NewBudget returns one of most bytes.
func NewBudget(most int64) *Budget { return &Budget{most, most} }

// Renew makes the budget whole again, where nothing is kept of what was charged.
func (b *Budget) Renew() { b.left = b.most }

// Release gives back what was charged for something that is not kept.
func (b *Budget) Release(n int64) { b.left = min(b.most, b.left+n) }

// ErrBudget is what Charge's errors are.
var ErrBudget = errors.New("takes more memory than a bundle may")

// Charge takes bytes that are about to be allocated from the budget.
func (b *Budget) Charge(n int64) error {
	if b.left -= n; b.left < 0 {
		return fmt.Errorf("%w: %d MiB; if you trust its origin, natkit doctor --max-memory allows more", ErrBudget, b.most>>20)
	}
	return nil
}

// Unmarshal is json.Unmarshal that charges beforehand what v will take.
func (b *Budget) Unmarshal(data []byte, v any) error {
	if err := b.Charge(int64(len(data))); err != nil {
		return err
	}
	if json.Valid(data) { // not so deep that it overflows the stack, then
		m := meter{json.NewDecoder(bytes.NewReader(data)), b, map[reflect.Type][]structField{}}
		m.UseNumber()
		if err := m.value(reflect.TypeOf(v)); err != nil {
			return err
		}
	}
	err := json.Unmarshal(data, v)
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) { // without the names of Go types
		return fmt.Errorf("%s: a %s does not fit there", wrong.Field, wrong.Value)
	}
	return err
}

// meter walks through valid JSON and its type together and charges what each value takes.
type meter struct {
	*json.Decoder
	budget *Budget
	fields map[reflect.Type][]structField
}

type structField struct {
	name string
	t    reflect.Type
}

var (
	jsonUnmarshaler = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// value passes over the next value, which is read into t; nil where nothing is.
func (m *meter) value(t reflect.Type) error {
	if t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
		if err := m.budget.Charge(int64(t.Size())); err != nil {
			return err
		}
	}
	token, err := m.Token()
	if err != nil {
		return err
	}
	switch token {
	case json.Delim('['):
		return m.list(t)
	case json.Delim('{'):
		return m.object(t)
	}
	if text, ok := token.(string); ok && t != nil && t.Kind() == reflect.String {
		return m.budget.Charge(int64(len(text)))
	}
	return nil
}

// list charges items twice: what holds them grows by being copied.
func (m *meter) list(t reflect.Type) error {
	var item reflect.Type
	var size int64
	if t != nil && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) {
		item = t.Elem()
		size = 2 * int64(item.Size())
	}
	for m.More() {
		if err := m.budget.Charge(size); err != nil {
			return err
		}
		if err := m.value(item); err != nil {
			return err
		}
	}
	_, err := m.Token() // ]
	return err
}

func (m *meter) object(t reflect.Type) error {
	if t != nil && (reflect.PointerTo(t).Implements(jsonUnmarshaler) || reflect.PointerTo(t).Implements(textUnmarshaler)) {
		t = nil
	}
	for m.More() {
		key, err := m.Token()
		if err != nil {
			return err
		}
		inner, size := m.key(t, key.(string))
		if err := m.budget.Charge(size); err != nil {
			return err
		}
		if err := m.value(inner); err != nil {
			return err
		}
	}
	_, err := m.Token() // }
	return err
}

// key is the type of what a key leads to, and what the key itself takes.
func (m *meter) key(t reflect.Type, key string) (reflect.Type, int64) {
	switch {
	case t == nil:
	case t.Kind() == reflect.Map:
		return t.Elem(), 2*int64(t.Key().Size()+t.Elem().Size()) + int64(len(key))
	case t.Kind() == reflect.Struct:
		for _, f := range m.structFields(t) {
			if strings.EqualFold(f.name, key) {
				return f.t, 0
			}
		}
	}
	return nil, 0
}

func (m *meter) structFields(t reflect.Type) []structField {
	known, met := m.fields[t]
	if !met {
		for _, f := range reflect.VisibleFields(t) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			known = append(known, structField{cmp.Or(name, f.Name), f.Type})
		}
		m.fields[t] = known
	}
	return known
}
