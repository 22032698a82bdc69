package collect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/anonymize"
	"github.com/natkit/natkit/internal/snapshot"
)

// BundleOptions specify how a bundle is written.
type BundleOptions struct {
	// Version is that of this natkit.
	Version string
	// Host is the one that the bundle is taken on.
	Host snapshot.Host
	// Anonymize, where set, replaces addresses and names.
	Anonymize *anonymize.Anonymizer
}

// Bundle is a bundle that is being written. It holds addresses and ports of connections, and log lines about NAT.
type Bundle struct {
	out       *snapshot.BundleWriter
	anonymize *anonymize.Anonymizer
	// recordings counts those that are complete.
	recordings int
}

// NewBundle begins a bundle, a tar.gz.
func NewBundle(w io.Writer, o BundleOptions) (*Bundle, error) {
	return newBundle(w, o, snapshot.BundleHeader{TakenAt: newLive(Options{}).clock("bundle").Wall, Host: o.Host})
}

func newBundle(w io.Writer, o BundleOptions, h snapshot.BundleHeader) (*Bundle, error) {
	h.WrittenBy, h.Anonymized = o.Version, h.Anonymized || o.Anonymize != nil
	if o.Anonymize != nil {
		h.Host = anonymousHost(o.Anonymize, h.Host)
	}
	out, err := snapshot.NewBundleWriter(w, h)
	return &Bundle{out: out, anonymize: o.Anonymize}, err
}

// Rewrite writes the recordings of a bundle into a new one, as of the same time.
func Rewrite(w io.Writer, r io.Reader, o BundleOptions) error {
	in, err := snapshot.NewBundleReader(r, unbounded())
	if err != nil {
		return err
	}
	b, err := newBundle(w, o, snapshot.BundleHeader{TakenAt: in.Header.TakenAt, Anonymized: in.Header.Anonymized, Host: in.Header.Host})
	if err == nil {
		err = b.append(in)
	}
	if err != nil {
		return err
	}
	return b.Close()
}

// unbounded is the budget of what keeps no more than a member at a time.
func unbounded() *snapshot.Budget { return snapshot.NewBudget(math.MaxInt64) }

func (b *Bundle) add(name string, data []byte) error {
	if b.anonymize != nil {
		var err error
		if data, err = anonymous(b.anonymize, name, data); err != nil {
			return fmt.Errorf("anonymize %s: %w", name, err)
		}
		if data == nil {
			return nil
		}
	}
	return b.out.Add(name, data)
}

func (b *Bundle) addJSON(name string, v any) error {
	data, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return fmt.Errorf("write %s to the bundle: %w", name, err)
	}
	return b.add(name, append(data, '\n'))
}

// Record does what Record does, and writes all that was read.
func (b *Bundle) Record(ctx context.Context, o RecordOptions) (*snapshot.Recording, error) {
	src := newLive(o.Options)
	var current *recorder
	rec, err := record(ctx, o, func(i int) (source, bool, error) {
		if current != nil {
			if err := current.end(); err != nil {
				return nil, false, err
			}
		}
		current = newRecorder(src, b, place{b.recordings, i}, o.Owner)
		more := o.more(ctx, i)
		current.head.More = more && i > 0
		if i > 0 {
			current.head.CutShortOf = o.cutShort(ctx)
		}
		return current, more, nil
	})
	if err != nil {
		return nil, err
	}
	if err := current.end(); err != nil {
		return nil, err
	}
	rec.Owner = o.Owner
	if err := b.addJSON(inRecording(b.recordings, resultName), rec); err != nil {
		return nil, err
	}
	b.recordings++
	return rec, nil
}

// Append adds the recordings of another bundle, as they are there or anonymized.
func (b *Bundle) Append(r io.Reader) error {
	in, err := snapshot.NewBundleReader(r, unbounded())
	if err != nil {
		return err
	}
	return b.append(in)
}

func (b *Bundle) append(in *snapshot.BundleReader) error {
	before := b.recordings
	for {
		name, data, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		n, rest, err := recordingOf(name)
		if err != nil {
			return err
		}
		b.recordings = max(b.recordings, before+n+1)
		if err := b.add(inRecording(before+n, rest), data); err != nil {
			return err
		}
	}
}

// recordingOf splits the name of a member.
func recordingOf(name string) (n int, rest string, err error) {
	number, rest, ok := strings.Cut(name, "/")
	if _, err := fmt.Sscanf(number, "%d", &n); err != nil || !ok || fmt.Sprint(n) != number || n < 0 || n >= mostRecordings {
		return 0, "", fmt.Errorf("%q is in no recording's folder", name)
	}
	return n, rest, nil
}

// mostRecordings bounds the recordings of a bundle.
const mostRecordings = 100_000

// Close ends the bundle; it does not close what it was written to.
func (b *Bundle) Close() error { return b.out.Close() }

// WriteBundle writes a bundle of one recording to w.
func WriteBundle(ctx context.Context, w io.Writer, o RecordOptions) (*snapshot.Recording, error) {
	b, err := NewBundle(w, o.Bundle)
	if err != nil {
		return nil, err
	}
	rec, err := b.Record(ctx, o)
	if err != nil {
		return nil, err
	}
	return rec, b.Close()
}

// ReadBundle is the first recording of a bundle, and checks the others.
func ReadBundle(r io.Reader, budget *snapshot.Budget) (*snapshot.Recording, error) {
	var first *snapshot.Recording
	err := EachRecording(r, budget, func(rec *snapshot.Recording) error {
		if first == nil {
			first = rec
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return first, nil
}

// EachRecording reads what a Bundle wrote with the collectors that read the running kernel, and calls fn with
// each recording, of which the last one may have one snapshot alone where the file is truncated or damaged. That is a
// snapshot.DamageError, returned after all that could be read; a recording that contradicts itself, or takes more memory
// than the budget has (nil: the default one), is another error. fn's error ends it and is returned.
func EachRecording(r io.Reader, budget *snapshot.Budget, fn func(*snapshot.Recording) error) error {
	b, err := snapshot.NewBundleReader(r, budget)
	if err != nil {
		return err
	}
	return eachRecording(b, fn)
}

func eachRecording(b *snapshot.BundleReader, fn func(*snapshot.Recording) error) error {
	for n := 0; n < mostRecordings; n++ {
		rec, damage, err := readRecording(b, n)
		if err != nil { // a recording that contradicts itself is none
			return err
		}
		rec.Bundle = b.Header
		more := false
		if damage == nil {
			more, err = skipRest(b, n)
		}
		if err != nil && !errors.As(err, &damage) {
			return err
		}
		if err := fn(rec); err != nil {
			return err
		}
		switch {
		case damage != nil:
			return damage
		case !more:
			return nil
		}
		b.Renew()
	}
	return fmt.Errorf("more than %d recordings", mostRecordings)
}

// readRecording reads a recording, of a damaged bundle the snapshots before the damage.
func readRecording(b *snapshot.BundleReader, n int) (rec *snapshot.Recording, damage *snapshot.DamageError, err error) {
	var first, current *tape
	// What was recorded was bounded when it was written.
	o := RecordOptions{Options: Options{MaxEntries: math.MaxInt}}
	rec, err = record(context.Background(), o, func(i int) (source, bool, error) {
		if current != nil && current.err != nil {
			return nil, false, current.err
		}
		if current != nil && current.damage != nil {
			return nil, false, errNoMore
		}
		next, err := newTape(b, place{n, i})
		if i > 0 && errors.As(err, &damage) {
			return nil, false, errNoMore
		}
		if err != nil {
			return nil, false, err
		}
		if current = next; first == nil {
			first = current
		}
		return current, i == 0 || current.head.More && i+1 < mostSnapshots, nil
	})
	if err != nil {
		return nil, nil, err
	}
	if current.err != nil {
		return nil, nil, current.err
	}
	if current.damage != nil {
		damage = current.damage
	}
	rec.CutShortOf, rec.Owner = current.head.CutShortOf, first.head.Owner
	if len(rec.Snapshots) == 1 {
		rec.SinceStartOf(rec.Last())
	}
	rec.NoUptime = first.headless
	rec.SomeSysctls = rec.NoUptime
	return rec, damage, contradiction(rec)
}

// contradiction is why the snapshots of a recording cannot be of one namespace, one after the other.
func contradiction(rec *snapshot.Recording) error {
	first := rec.Snapshots[0]
	for i, s := range rec.Snapshots[1:] {
		switch seconds := s.UptimeSeconds - rec.Snapshots[i].UptimeSeconds; {
		case !(seconds >= 0 && seconds <= maxSpan):
			return fmt.Errorf("its snapshots are %g seconds apart", seconds)
		case s.Kernel.BootID != first.Kernel.BootID && s.Kernel.BootID != "" && first.Kernel.BootID != "":
			return fmt.Errorf("its snapshots are of two boots, %.40q and %.40q", first.Kernel.BootID, s.Kernel.BootID)
		case s.Netns.Inode != first.Netns.Inode:
			return fmt.Errorf("its snapshots are of two network namespaces, %d and %d", first.Netns.Inode, s.Netns.Inode)
		}
	}
	return nil
}

// skipRest reads what follows the snapshots of a recording, up to the next one or to the end, which proves that
// the bundle is whole. more is whether there is another one.
func skipRest(b *snapshot.BundleReader, n int) (more bool, err error) {
	for {
		name, data, err := b.Next()
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		switch of, _, err := recordingOf(name); {
		case err != nil:
			return false, err
		case of == n+1:
			b.Unread(name, data)
			return true, nil
		case of != n:
			return false, fmt.Errorf("%q where %s… was due", name, inRecording(n+1, ""))
		}
	}
}

// List reads what is in a bundle. On an error it returns what came before it as well.
func List(r io.Reader, budget *snapshot.Budget) (*snapshot.Contents, error) {
	b, err := snapshot.NewBundleReader(r, budget)
	if err != nil {
		return nil, err
	}
	c := &snapshot.Contents{Schema: snapshot.ContentsSchema, Bundle: b.Header, Recordings: []snapshot.RecordingContents{}}
	reading := snapshot.RecordingContents{}
	next := 0 // the number of the recording that is being read
	var ahead []snapshot.Member
	b.OnMember = func(name string, size int) {
		c.Bytes += int64(size)
		n, rest, err := recordingOf(name)
		switch {
		case err != nil: // which the reader refuses
		case n != next:
			ahead = append(ahead, snapshot.Member{Name: rest, Bytes: int64(size)})
		default:
			addMember(&reading, rest, int64(size))
		}
	}
	err = eachRecording(b, func(rec *snapshot.Recording) error {
		reading.Netns, reading.Owner = rec.Last().Netns, rec.Owner
		for i, s := range rec.Snapshots[:min(len(rec.Snapshots), len(reading.Snapshots))] {
			reading.Snapshots[i].TakenAt, reading.Snapshots[i].Parts = s.TakenAt, s.Parts
		}
		c.Recordings = append(c.Recordings, reading)
		reading, next = snapshot.RecordingContents{}, next+1
		for _, m := range ahead {
			addMember(&reading, m.Name, m.Bytes)
		}
		ahead = nil
		return nil
	})
	return c, err
}

// addMember counts a member of a recording.
func addMember(c *snapshot.RecordingContents, name string, size int64) {
	number, rest, ok := strings.Cut(name, "/")
	if !ok {
		if name == resultName {
			c.Result += size
		}
		return
	}
	i, err := strconv.Atoi(number)
	switch {
	case err != nil || i < 0 || i > len(c.Snapshots):
		return
	case i == len(c.Snapshots):
		c.Snapshots = append(c.Snapshots, snapshot.SnapshotContents{Members: []snapshot.Member{}, Parts: []snapshot.Part{}})
	}
	s := &c.Snapshots[i]
	if strings.HasPrefix(rest, tableFolder+"/") {
		rest = tableFolder + "/"
	}
	rest = strings.TrimPrefix(rest, fileFolder+"/")
	if last := len(s.Members) - 1; last >= 0 && s.Members[last].Name == rest {
		s.Members[last].Bytes += size
		return
	}
	s.Members = append(s.Members, snapshot.Member{Name: rest, Bytes: size})
}
